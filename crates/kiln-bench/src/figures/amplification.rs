//! Write and space amplification of a table under uniform updates: what goes to the device for each byte that is put, and what lies on
//! the disk for each byte that is live, looked at all the time.
//!
//! How much is put depends on the time, so that it is told with them; until the log's memory has been filled once nothing is compacted, so
//! that the table is warmed up first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use kiln::Table as KilnTable;

use super::{Run, SIZES};
use crate::engines::catalog::{Mode, Name, Shape};
use crate::engines::{Engine, KilnEngine};
use crate::generate::draws::Distribution;
use crate::measure::Measured;
use crate::report::{Samples, Table, Wanted};
use crate::results::Row;
use crate::scratch::disk_bytes;
use crate::summary::numbers;
use crate::usage::Usage;
use crate::workloads::{self, Data, Operation};

/// The vulnerability windows that are compared.
const WINDOWS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// One, which leaves a processor to what goes on in the background.
const THREADS: usize = 1;
/// How often the disk is looked at.
const WATCHED_EACH: Duration = Duration::from_millis(50);
/// Measurements in a round.
pub(super) const STEPS: u64 = WINDOWS.len() as u64;
const DIRECTORY: &str = "amplification";

pub(super) fn run(run: &mut Run<'_>) -> Result<()> {
    let title =
        format!("Amplification of a table under uniform updates, {THREADS} thread ({})", run.method());
    let columns = [
        "window",
        "put",
        "over live",
        "written to the device over put",
        "on the disk over live, mean",
        "most",
        "log's memory over live",
    ];
    let mut table = Table::new(title, &columns);
    for window in WINDOWS {
        with_window(run, &mut table, window)?;
    }
    run.print(&table);
    Ok(())
}

fn with_window(run: &mut Run<'_>, table: &mut Table, window: Duration) -> Result<()> {
    let window_text = numbers::window(window.as_millis() as u64);
    run.progress.now(format!("amplification, {window_text}: loading"));
    let engine = KilnEngine::<KilnTable>::create(&run.database(DIRECTORY, Shape::Table, window)?)?;
    let data = Data::new(&engine, SIZES, run.settings.records);
    data.load()?;
    data.warm_up()?;
    let row_bytes = (SIZES.key_bytes + SIZES.value_bytes) as f64;
    let live_bytes = run.settings.records as f64 * row_bytes;
    let (before, mut put_bytes, mut disk_over_live) = (Usage::own(), 0.0, Samples::default());
    for round in 0..run.settings.rounds() {
        run.next(format!("amplification, {window_text}"))?;
        let (measured, sizes) = watched(run, &data)?;
        data.check_sample()?;
        put_bytes += measured.ops as f64 * row_bytes;
        sizes.into_iter().for_each(|bytes| disk_over_live.push(bytes as f64 / live_bytes));
        let row = Row {
            workload: "overwrite".to_owned(),
            threads: THREADS,
            window_ms: Some(window.as_millis() as u64),
            disk_bytes: disk_bytes(&run.scratch.join(DIRECTORY)),
            ..Row::measured(Name::Kiln, Mode::Fast, SIZES, &measured)
        };
        run.record(row, round)?;
    }
    // All that was put is on the disk when it is counted.
    engine.persist()?;
    let device_over_put = Usage::own().since(before).device_bytes as f64 / put_bytes;
    let log_over_live = engine.log_memory_bytes() as f64 / live_bytes;
    data.check_all()?;
    engine.close()?;
    run.scratch.remove(DIRECTORY)?;

    let [_, _, most] = disk_over_live.cells(1.0, 2);
    let ratios = [put_bytes / live_bytes, device_over_put, disk_over_live.mean()];
    let texts = [window_text.clone(), numbers::bytes(put_bytes)];
    let texts = texts.into_iter().chain(ratios.map(|ratio| format!("{ratio:.2}")));
    table.row(texts.chain([most, format!("{log_over_live:.2}")]));
    let what = format!("Table {window_text}: bytes written to the device over bytes put");
    run.goal(what, [device_over_put].into_iter().collect(), Wanted::Nothing);
    run.goal(
        format!("Table {window_text}: bytes on the disk over live bytes"),
        disk_over_live,
        Wanted::Nothing,
    );
    Ok(())
}

/// One round, with the bytes on the disk at evenly spaced times.
fn watched(run: &Run<'_>, data: &Data<'_, KilnEngine<KilnTable>>) -> Result<(Measured, Vec<u64>)> {
    const PUT: Operation = Operation::GetOrPut { reads: 0 };
    let (stop, path) = (AtomicBool::new(false), run.scratch.join(DIRECTORY));
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut sizes = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                sizes.push(disk_bytes(&path));
                std::thread::sleep(WATCHED_EACH);
            }
            sizes
        });
        let measured = workloads::run(data, PUT, Distribution::Uniform, THREADS, run.settings.duration());
        stop.store(true, Ordering::Relaxed);
        let sizes = watching.join().map_err(|_| anyhow!("the thread that looks at the disk panicked"))?;
        Ok((measured?, sizes))
    })
}
