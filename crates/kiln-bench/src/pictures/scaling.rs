//! Throughput over the number of threads, one line for each engine. Both axes are logarithmic: lines of the same slope gain the
//! same factor, however fast they are.

use super::chart::{Chart, Series};
use super::svg::Svg;
use super::{Palette, Picture, label};
use crate::engines::catalog::Name;
use crate::summary::cells::{Cell, Contestant, Kind, Promise, THROUGHPUT, Task};
use crate::summary::numbers;

/// One picture for each load and promise that some engine ran with two or more numbers of threads.
pub(crate) fn draw(cells: &[&Cell<'_>], palette: &Palette) -> Vec<Picture> {
    let mut loads: Vec<(Task, Promise)> = Vec::new();
    for cell in cells {
        let load = load(cell);
        if !loads.contains(&load) {
            loads.push(load);
        }
    }
    let pictures = loads.iter().filter_map(|wanted| {
        let cells: Vec<&Cell<'_>> = cells.iter().copied().filter(|cell| load(cell) == *wanted).collect();
        picture(wanted, &cells, palette)
    });
    pictures.collect()
}

/// What is the same along a line, and between lines.
fn load(cell: &Cell<'_>) -> (Task, Promise) {
    (Task { threads: 0, ..cell.task.clone() }, cell.contestant.promise())
}

fn picture((task, promise): &(Task, Promise), cells: &[&Cell<'_>], palette: &Palette) -> Option<Picture> {
    let series = series(cells, palette);
    let mut threads: Vec<usize> = cells.iter().map(|cell| cell.task.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    if !series.iter().any(|series| series.points.len() > 1) {
        return None;
    }
    let who = if task.workload.starts_with("resp-") { "connections" } else { "threads" };
    let title = format!("{}: scaling with {who}", task.workload);
    let described = format!("Operations per second; {}; ×: most {who} over fewest", promise.text());
    let mut svg = Svg::new(&title, &[&described, &task.data()]);
    let x_values: Vec<f64> = threads.iter().map(|&threads| threads as f64).collect();
    Chart {
        heading: None,
        series: &series,
        reference: None,
        x_values: &x_values,
        x_text: &|value| format!("{value}"),
        y_text: &|value| numbers::trimmed(&numbers::rate(value)),
        logarithmic: true,
        names: 158.0,
        height: 180.0,
    }
    .draw(&mut svg);
    Some(Picture { name: format!("scaling-{}-{}", task.workload, promise.word()), svg })
}

fn series(cells: &[&Cell<'_>], palette: &Palette) -> Vec<Series> {
    // The load without an engine is so far above all others that they would share one corner.
    let generator = Name::Generator.text();
    let shown = cells.iter().map(|cell| &cell.contestant).filter(|contestant| contestant.engine != generator);
    let mut contestants: Vec<&Contestant> = shown.collect();
    contestants.sort();
    contestants.dedup();
    let shortest = contestants.iter().find(|contestant| contestant.kind == Kind::Kiln).copied();
    let is_longer_window =
        |contestant: &Contestant| contestant.kind == Kind::Kiln && shortest != Some(contestant);
    let lines = contestants.into_iter().map(|contestant| {
        let own: Vec<&&Cell<'_>> = cells.iter().filter(|cell| cell.contestant == *contestant).collect();
        let mut points: Vec<(f64, f64)> =
            own.iter().map(|cell| (cell.task.threads as f64, cell.samples(THROUGHPUT).median())).collect();
        points.retain(|(_, value)| *value > 0.0);
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let gain = match (points.first(), points.last()) {
            (Some(first), Some(last)) if first.0 < last.0 => {
                format!(" ×{}", numbers::significant(last.1 / first.1))
            }
            _ => String::new(),
        };
        Series {
            name: format!("{}{gain}", own.first().map_or_else(String::new, |cell| label(cell))),
            color: palette.color(contestant),
            // Kiln's longer windows have the colour of its shortest one.
            dashed: contestant.kind == Kind::Floor || is_longer_window(contestant),
            strong: contestant.kind == Kind::Kiln,
            points,
        }
    });
    lines.filter(|series| !series.points.is_empty()).collect()
}
