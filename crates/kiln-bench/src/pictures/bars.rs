//! One bar for each engine: how much it does in a second.

use super::Picture;
use super::scale::Scale;
use super::svg::{Anchor, Svg, WIDTH, text_width};
use crate::summary::cells::{Cell, Group, Kind, THROUGHPUT};
use crate::summary::{self, numbers};

const ROW: f64 = 24.0;
const BAR: f64 = 15.0;
/// Room for the value and the ratio behind the longest bar.
const VALUES: f64 = 132.0;
/// A floor that is further above everything else than this is cut off, or it would make all bars of engines short.
const FLOOR_MAX: f64 = 1.3;

/// The bars of a group, the fastest above.
pub(crate) fn draw(group: &Group<'_>) -> Picture {
    let title = format!("{}, {}", group.task.workload, group.task.load());
    let promise = format!("Operations per second; {}", group.promise.text());
    let mut svg = Svg::new(&title, &[&promise, &group.task.data()]);
    let mut cells: Vec<&Cell<'_>> = group.cells.iter().collect();
    cells.sort_by(|a, b| median(b).total_cmp(&median(a)));

    let names =
        cells.iter().map(|cell| text_width(&super::label(cell))).fold(60.0, f64::max).min(150.0) + 8.0;
    let most = |floors: bool| {
        let chosen = cells.iter().filter(|cell| (cell.contestant.kind == Kind::Floor) == floors);
        chosen.map(|cell| cell.samples(THROUGHPUT).max()).fold(0.0, f64::max)
    };
    let (engines, floors) = (most(false), most(true));
    let end = if engines > 0.0 { engines.max(floors.min(engines * FLOOR_MAX)) } else { floors };
    let scale = Scale::linear(end, names, WIDTH - VALUES);

    svg.grow(6.0);
    let top = svg.height();
    let bottom = top + ROW * cells.len() as f64;
    for tick in scale.ticks() {
        let x = scale.at(tick);
        svg.line((x, top), (x, bottom), "p-grid");
        svg.text((x, bottom + 14.0), Anchor::Middle, "p-small", &numbers::trimmed(&numbers::rate(tick)));
    }
    for (row, cell) in cells.into_iter().enumerate() {
        bar(&mut svg, &scale, top + ROW * row as f64, group, cell, median(cell) > end * 1.001);
    }
    svg.line((names, top), (names, bottom), "p-axis");
    svg.grow(bottom - top + 20.0);
    let (task, promise) = (&group.task, group.promise.word());
    Picture { name: format!("bars-{}-{}-threads-{promise}", task.workload, task.threads), svg }
}

/// One bar with its name, whisker and values.
fn bar(svg: &mut Svg, scale: &Scale, top: f64, group: &Group<'_>, cell: &Cell<'_>, is_cut: bool) {
    let throughput = cell.samples(THROUGHPUT);
    let [median, min, max] = [throughput.median(), throughput.min(), throughput.max()];
    let (start, end) = (scale.at(0.0), scale.at(median));
    let (baseline, middle) = (top + ROW / 2.0 + 4.0, top + ROW / 2.0);
    let is_kiln = cell.contestant.kind == Kind::Kiln;
    let (class, name_class) = match cell.contestant.kind {
        Kind::Kiln => ("p-bar-kiln", "p-strong"),
        Kind::Peer => ("p-bar-peer", ""),
        Kind::Floor => ("p-bar-floor", "p-muted"),
    };
    let name = super::label(cell);
    let range = format!(
        "{name}: {} (from {} to {} in {} rounds)",
        numbers::rate(median),
        numbers::rate(min),
        numbers::rate(max),
        cell.rows.len()
    );
    svg.explained(&range, |svg| {
        svg.text((start - 6.0, baseline), Anchor::End, name_class, &name);
        svg.rect((start, middle - BAR / 2.0), ((end - start).max(1.0), BAR), class);
        let mut after = end;
        if is_cut {
            for x in [end - 14.0, end - 9.0] {
                svg.line((x - 3.0, middle + BAR / 2.0 + 1.0), (x + 3.0, middle - BAR / 2.0 - 1.0), "p-break");
            }
        } else if scale.at(max) - scale.at(min) >= 1.0 {
            let (left, right) = (scale.at(min), scale.at(max));
            svg.line((left, middle), (right, middle), "p-whisker");
            for x in [left, right] {
                svg.line((x, middle - 4.0), (x, middle + 4.0), "p-whisker");
            }
            after = right.max(end);
        }
        let ratio = summary::kiln_ratio(group, cell);
        let compared = if is_kiln || !ratio.is_finite() {
            String::new()
        } else {
            format!("\u{2003}Kiln ×{}", summary::ratio_text(ratio))
        };
        let value = numbers::rate(median);
        let value_class = if is_kiln { "p-strong" } else { "" };
        svg.texts((after + 6.0, baseline), Anchor::Start, &[(value_class, &value), ("p-muted", &compared)]);
    });
}

fn median(cell: &Cell<'_>) -> f64 {
    cell.samples(THROUGHPUT).median()
}
