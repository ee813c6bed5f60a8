//! `kiln-bench report`: result files as one page with pictures and tables.
//!
//! ```text
//!  mod           which pictures there are, and their colours
//!   ├── bars, windows, timeline, scaling    the kinds of pictures
//!   ├── figures       those of the papers
//!   │    ├── chart      lines, with their names at their ends
//!   │    ├── scale      axes
//!   │    └── svg        elements, escaping, colours
//!   ├── page          the pictures and tables as HTML
//!   └── directory     where all goes, and what is never overwritten
//! ```
//!
//! The same input makes the same output, to the byte. The page asks for nothing from elsewhere, and everything that comes from
//! result files is escaped: they may be somebody else's.

mod bars;
mod chart;
mod directory;
mod figures;
mod page;
mod scale;
mod scaling;
mod svg;
#[cfg(test)]
mod tests;
mod timeline;
mod windows;

use std::path::PathBuf;

use anyhow::Result;

use self::svg::Svg;
use crate::arguments::ReportSettings;
use crate::engines::catalog::Mode;
use crate::results::{self, Row};
use crate::summary;
use crate::summary::cells::{self, Cell, Contestant, Group, Kind};
use crate::summary::numbers;

/// The tables as text, which documents can quote.
const TABLES: &str = "tables.md";

/// A picture and the name of its file, which is not yet unique.
pub(crate) struct Picture {
    name: String,
    svg: Svg,
}

/// A file of the report.
struct Output {
    name: String,
    text: String,
}

/// Draws the report of some result files into a directory.
pub(crate) fn run(settings: &ReportSettings) -> Result<()> {
    let rows = read(&settings.files)?;
    directory::write(&settings.out, &outputs(&rows))?;
    println!("{}", settings.out.join(page::FILE).display());
    Ok(())
}

/// The rows of all files. Rounds are numbered on from file to file, so that none is compared with one of another run.
pub(crate) fn read(files: &[PathBuf]) -> Result<Vec<Row>> {
    let mut all: Vec<Row> = Vec::new();
    for path in files {
        let mut rows = results::read(path)?;
        let first = all.iter().map(|row| row.round.saturating_add(1)).max().unwrap_or(0);
        rows.iter_mut().for_each(|row| row.round = row.round.saturating_add(first));
        all.extend(rows);
    }
    Ok(all)
}

/// The page, the tables and each picture.
fn outputs(rows: &[Row]) -> Vec<Output> {
    let sections = sections(rows);
    let figures = figures::draw(rows, &Palette::new(rows));
    let pictures = sections.iter().flat_map(|section| {
        let bars = section.groups.iter().map(|(_, picture)| picture);
        bars.chain(&section.others)
    });
    let pictures = figures.iter().chain(pictures);
    let mut outputs = vec![
        Output { name: page::FILE.to_owned(), text: page::page(rows, &figures, &sections) },
        Output { name: TABLES.to_owned(), text: summary::tables(rows) },
    ];
    for picture in pictures {
        outputs.push(Output { name: format!("{}.svg", picture.name), text: picture.svg.file() });
    }
    outputs
}

/// All of one workload.
struct Section<'a> {
    workload: &'a str,
    /// What links to it name.
    anchor: String,
    /// Each group with its bars.
    groups: Vec<(Group<'a>, Picture)>,
    /// The other pictures.
    others: Vec<Picture>,
}

fn sections(rows: &[Row]) -> Vec<Section<'_>> {
    let palette = Palette::new(rows);
    let mut names = Names::default();
    let groups = cells::groups(rows);
    let mut timeline = timeline::draw(&groups, &palette);
    let timed = timeline.as_ref().map(|(at, _)| groups[*at].task.workload.clone());
    let all = cells::cells(rows);
    let mut sections: Vec<Section<'_>> = cells::workloads(rows)
        .into_iter()
        .map(|workload| {
            let anchor = names.unique(&format!("workload-{workload}"));
            Section { workload, anchor, groups: Vec::new(), others: Vec::new() }
        })
        .collect();
    for group in groups {
        let picture = names.named(bars::draw(&group));
        if let Some(section) = sections.iter_mut().find(|section| section.workload == group.task.workload) {
            section.groups.push((group, picture));
        }
    }
    for section in &mut sections {
        let of_workload: Vec<&Cell<'_>> =
            all.iter().filter(|cell| cell.task.workload == section.workload).collect();
        let mut pictures = scaling::draw(&of_workload, &palette);
        pictures.extend(windows::draw(&of_workload));
        if timed.as_deref() == Some(section.workload) {
            pictures.extend(timeline.take().map(|(_, picture)| picture));
        }
        section.others = pictures.into_iter().map(|picture| names.named(picture)).collect();
    }
    sections
}

/// What a contestant is called in pictures, where its mode is known from the heading.
fn label(cell: &Cell<'_>) -> String {
    const LONGEST: usize = 22;
    let contestant = &cell.contestant;
    let name = match contestant.window_ms {
        Some(window) if !contestant.mode.is_durable() => {
            format!("{} {}", contestant.engine, numbers::window(window))
        }
        None if contestant.engine == cells::KILN && contestant.mode == Mode::Floor => {
            format!("{} never", contestant.engine)
        }
        _ => contestant.engine.clone(),
    };
    if name.chars().count() <= LONGEST {
        return name;
    }
    name.chars().take(LONGEST - 1).chain(['…']).collect()
}

/// The colours of peers' lines. An engine has the colour that its name stands for, or the next free one, so that it mostly is the same in
/// every report and never that of another engine while there are colours left.
pub(crate) struct Palette(Vec<(String, usize)>);

impl Palette {
    fn new(rows: &[Row]) -> Palette {
        let peers = rows.iter().filter(|row| row.engine != cells::KILN && row.mode != Mode::Floor);
        let mut engines: Vec<&str> = peers.map(|row| row.engine.as_str()).collect();
        engines.sort_unstable();
        engines.dedup();
        let mut colors: Vec<(String, usize)> = Vec::new();
        for engine in engines {
            // FNV-1a, whose values stay the same with every version of the compiler.
            let hash = engine.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
            let first = (hash % svg::COLORS as u64) as usize;
            let is_taken = |color: usize| colors.iter().any(|(_, taken)| *taken == color);
            let candidates = (0..svg::COLORS).map(|step| (first + step) % svg::COLORS);
            let color = candidates.into_iter().find(|&color| !is_taken(color)).unwrap_or(first);
            colors.push((engine.to_owned(), color));
        }
        Palette(colors)
    }

    /// Of the color classes, what is behind "p-s-" and "p-f-".
    fn color(&self, contestant: &Contestant) -> String {
        match contestant.kind {
            Kind::Kiln => "kiln".to_owned(),
            Kind::Floor => "floor".to_owned(),
            Kind::Peer => {
                let own = self.0.iter().find(|(engine, _)| *engine == contestant.engine);
                own.map_or(0, |(_, color)| *color).to_string()
            }
        }
    }
}

/// Names of files and anchors, each given once.
#[derive(Default)]
struct Names(Vec<String>);

impl Names {
    fn unique(&mut self, text: &str) -> String {
        let plain = file_name(text);
        let mut name = plain.clone();
        let mut count = 1;
        while self.0.contains(&name) {
            count += 1;
            name = format!("{plain}-{count}");
        }
        self.0.push(name.clone());
        name
    }

    fn named(&mut self, picture: Picture) -> Picture {
        Picture { name: self.unique(&picture.name), ..picture }
    }
}

/// A text with nothing in it but what a file, an anchor and every file system take.
fn file_name(text: &str) -> String {
    let kept = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    text.chars().map(kept).take(100).collect()
}
