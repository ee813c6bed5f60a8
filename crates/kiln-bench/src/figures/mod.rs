//! The figures of the README: sections, each a table, and the goals that they are held to.

mod amplification;
mod resp;
mod safe_commits;
mod single_key;
mod transactions;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::arguments::{Section, Settings};
use crate::awake::Awake;
use crate::engines::catalog::{self, Mode, Shape};
use crate::generate::Sizes;
use crate::machine::Watch;
use crate::placement::{self, Patience};
use crate::progress::Progress;
use crate::report::{Goal, Samples, Table, Wanted, goals_table};
use crate::results::{Row, RowWriter};
use crate::scratch::Scratch;
use crate::servers;

/// What the log grows by in a second of writing with one thread, at most: to see beforehand whether the disk has room.
const LOG_BYTES_PER_SECOND: u64 = 400 << 20;

/// Keys and values of all sections.
const SIZES: Sizes = Sizes { key_bytes: 16, value_bytes: 100 };

/// What all sections share.
struct Run<'a> {
    settings: &'a Settings,
    /// The program to serve with, where a section serves.
    kiln: Option<PathBuf>,
    scratch: Scratch,
    progress: Progress,
    rows: RowWriter,
    goals: Vec<Goal>,
    patience: Patience,
    /// What a round trip between processors took before the present measurement.
    core_to_core_ns: Option<f64>,
    measurements: u32,
    /// Those of them during which the processors were apart, before or after.
    apart: u32,
}

impl Run<'_> {
    /// Waits for the host to have the processors near each other, and says what is measured next.
    fn next(&mut self, what: String) -> Result<()> {
        self.core_to_core_ns = self.patience.wait(&self.progress)?;
        self.progress.now(what);
        Ok(())
    }

    /// Writes down one measurement, and moves the bar on.
    fn record(&mut self, mut row: Row, round: u32) -> Result<()> {
        row.core_to_core_ns = placement::longest_ns(self.core_to_core_ns);
        self.measurements += 1;
        self.apart += u32::from(placement::is_apart(row.core_to_core_ns));
        row.round = round;
        row.records = self.settings.records;
        row.checked = true;
        self.rows.write(&row)?;
        self.progress.steps(1);
        Ok(())
    }

    /// Prints a finished table.
    fn print(&self, table: &Table) {
        self.progress.print(table.text().trim_end_matches('\n'));
    }

    /// Adds a figure of the README, which may have a goal.
    fn goal(&mut self, what: impl Into<String>, measured: Samples, wanted: Wanted) {
        self.goals.push(Goal { what: what.into(), measured, wanted });
    }

    /// How a Kiln database in this directory is opened.
    fn database(&self, name: &str, shape: Shape, window: Duration) -> Result<catalog::Settings> {
        Ok(catalog::Settings {
            path: self.scratch.make(name)?,
            mode: Mode::Fast,
            shape,
            sizes: SIZES,
            records: self.settings.records,
            cache_bytes: self.settings.memory_bytes(),
            window,
            cold: false,
            limited: false,
            checkpoints: true,
        })
    }

    /// The settings as words, for the title of a table.
    fn method(&self) -> String {
        format!("{} rounds of {} s", self.settings.rounds(), self.settings.duration().as_secs_f64())
    }
}

/// Measures everything that was asked for.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    // First: who waits for the other sections would else learn in the end that it cannot be built.
    let serves = settings.sections.contains(&Section::Resp);
    let kiln = serves.then(|| servers::find_kiln(settings.kiln.as_deref())).transpose()?;
    let watch = Watch::start(None);
    let scratch = Scratch::for_measuring(&settings.dir, settings.json.as_deref(), space_needed(settings))?;
    let awake = Awake::hold();
    if let Some(warning) = awake.warning() {
        eprintln!("kiln-bench: {warning}");
    }
    let steps = settings.sections.iter().map(|section| match section {
        Section::Single => single_key::STEPS,
        Section::Transactions => transactions::STEPS,
        Section::Safe => safe_commits::STEPS,
        Section::Resp => resp::STEPS,
        Section::Amplification => amplification::STEPS,
    });
    let progress = Progress::new(steps.sum::<u64>() * u64::from(settings.rounds()));
    let rows = RowWriter::create(settings.json.as_deref())?;
    let mut run = Run {
        settings,
        kiln,
        scratch,
        progress,
        rows,
        goals: Vec::new(),
        patience: Patience::start(),
        core_to_core_ns: None,
        measurements: 0,
        apart: 0,
    };
    run.progress.print(&heading(settings, &awake.machine()));
    for section in &settings.sections {
        match section {
            Section::Single => single_key::run(&mut run)?,
            Section::Transactions => transactions::run(&mut run)?,
            Section::Safe => safe_commits::run(&mut run)?,
            Section::Resp => resp::run(&mut run)?,
            Section::Amplification => amplification::run(&mut run)?,
        }
    }
    let goals =
        goals_table("Figures of the README: medians, with the range of the rounds", &run.goals).text();
    let apart = format!(
        "The host had the processors apart during {} of {} measurements, having been waited for {} s.",
        run.apart,
        run.measurements,
        run.patience.waited().as_secs()
    );
    run.progress.print(&format!("{goals}\n{}\n{apart}", watch.finish().verdict()));
    Ok(())
}

fn heading(settings: &Settings, machine: &str) -> String {
    format!(
        "kiln {}; {machine}\n{} keys of {} bytes with values of {}, chosen uniformly; {} MiB of log memory; every \
         result checked",
        env!("CARGO_PKG_VERSION"),
        settings.records,
        SIZES.key_bytes,
        SIZES.value_bytes,
        settings.memory_bytes() >> 20
    )
}

/// The most that one section has on the disk at a time.
fn space_needed(settings: &Settings) -> u64 {
    let seconds = settings.duration().as_secs_f64() * f64::from(settings.rounds());
    // One thread and two threads write in turn.
    let written = (3.0 * seconds * LOG_BYTES_PER_SECOND as f64) as u64;
    2 * settings.memory_bytes() + settings.records * 256 + written
}
