//! Throughput over time (the figure 12 of CPR's paper): whether an engine keeps its pace while it makes things durable.
//!
//! Each engine has a strip of its own: a dozen lines in one another hide the dips that the picture is for. A strip is as high as
//! its engine was fast at best, and begins at zero.

use super::scale::Scale;
use super::svg::{Anchor, Svg, WIDTH, text_width};
use super::{Palette, Picture, label};
use crate::results::Row;
use crate::summary::cells::{Cell, Group, KILN, Kind};
use crate::summary::numbers;

const STRIP: f64 = 34.0;
const STRIP_GAP: f64 = 18.0;
/// What is drawn of one moment is this wide; bins that fall on it are put together.
const STEP: f64 = 2.0;
/// Marks nearer than this would be one black bar.
const MARK_GAP: f64 = 3.0;
/// A line needs some moments.
const BINS_MIN: usize = 4;

/// The picture of the longest round, if there is one with bins: of rounds about as long, the first in which commits were seen to
/// harden. The second part is the place of its group.
pub(crate) fn draw(groups: &[Group<'_>], palette: &Palette) -> Option<(usize, Picture)> {
    let mut best: Option<(usize, (u64, bool))> = None;
    for (at, group) in groups.iter().enumerate() {
        let rows = group.cells.iter().filter_map(longest);
        // Rounds end within milliseconds of the same time, so that only seconds tell how long they are.
        let score = rows.map(|row| (row.seconds.round() as u64, !row.hardened_ms.is_empty())).max();
        if let Some(score) = score
            && best.is_none_or(|(_, before)| score > before)
        {
            best = Some((at, score));
        }
    }
    let (at, _) = best?;
    Some((at, picture(&groups[at], palette, false)))
}

/// The picture of a group, beside each other those of an engine with hardening and without.
pub(crate) fn beside_floors(group: &Group<'_>, palette: &Palette) -> Picture {
    picture(group, palette, true)
}

/// A cell's longest round with bins. The floors have no work of their own to keep pace with.
fn longest<'a>(cell: &Cell<'a>) -> Option<&'a Row> {
    longest_of_all(cell).filter(|_| cell.contestant.kind != Kind::Floor)
}

fn longest_of_all<'a>(cell: &Cell<'a>) -> Option<&'a Row> {
    let rows = cell.rows.iter().copied().filter(|row| row.complete_bins().len() >= BINS_MIN);
    rows.rev().max_by(|a, b| a.seconds.round().total_cmp(&b.seconds.round()))
}

fn picture(group: &Group<'_>, palette: &Palette, with_floors: bool) -> Picture {
    let longest = if with_floors { longest_of_all } else { longest };
    let title = format!("{}, {}: throughput over time", group.task.workload, group.task.load());
    let promise = format!("Each strip from 0 to its engine's best; {}", group.promise.text());
    let mut svg = Svg::new(&title, &[&promise, &group.task.data()]);
    let mut strips: Vec<(&Cell<'_>, &Row)> =
        group.cells.iter().filter_map(|cell| Some((cell, longest(cell)?))).collect();
    strips.sort_by_key(|(cell, _)| cell.contestant.engine != KILN);
    if strips.iter().any(|(_, row)| !row.hardened_ms.is_empty()) {
        svg.grow(15.0);
        svg.text(
            (0.0, svg.height() - 4.0),
            Anchor::Start,
            "p-small",
            "Marks below a strip: commits hardened",
        );
    }
    let names =
        strips.iter().map(|(cell, _)| text_width(&label(cell))).fold(60.0, f64::max).min(150.0) + 10.0;
    let length = |row: &Row| (row.complete_bins().len() as u64 * row.bin_ms) as f64 / 1000.0;
    let seconds = strips.iter().map(|(_, row)| length(row)).fold(0.0, f64::max);
    let time = Scale::linear(seconds, names, WIDTH - 10.0);
    svg.grow(6.0);
    let top = svg.height();
    let bottom = top + strips.len() as f64 * (STRIP + STRIP_GAP);
    for tick in time.ticks() {
        svg.line((time.at(tick), top), (time.at(tick), bottom), "p-grid");
        let text = format!("{} s", (tick * 1000.0).round() / 1000.0);
        svg.text((time.at(tick), bottom + 14.0), Anchor::Middle, "p-small", &text);
    }
    for (at, (cell, row)) in strips.into_iter().enumerate() {
        strip(&mut svg, &time, top + at as f64 * (STRIP + STRIP_GAP), cell, row, palette);
    }
    svg.grow(bottom - top + 20.0);
    let (task, promise) = (&group.task, group.promise.word());
    Picture { name: format!("time-{}-{}-threads-{promise}", task.workload, task.threads), svg }
}

/// One engine's line, with the range of the bins that fall on one place behind it, and marks under it.
fn strip(svg: &mut Svg, time: &Scale, top: f64, cell: &Cell<'_>, row: &Row, palette: &Palette) {
    let bins = row.complete_bins();
    let seconds_of_bin = row.bin_ms.max(1) as f64 / 1000.0;
    let rates: Vec<f64> = bins.iter().map(|&count| count as f64 / seconds_of_bin).collect();
    let best = rates.iter().copied().fold(0.0, f64::max);
    let bottom = top + STRIP;
    let y = Scale::linear(best, bottom, top);
    let width = time.at(seconds_of_bin) - time.at(0.0);
    let together = (STEP / width).ceil().max(1.0) as usize;
    let (mut middle, mut upper, mut lower) = (Vec::new(), Vec::new(), Vec::new());
    for (at, part) in rates.chunks(together).enumerate() {
        let from = (at * together) as f64;
        let x = time.at((from + part.len() as f64 / 2.0) * seconds_of_bin);
        middle.push((x, y.at(part.iter().sum::<f64>() / part.len() as f64)));
        upper.push((x, y.at(part.iter().copied().fold(0.0, f64::max))));
        lower.push((x, y.at(part.iter().copied().fold(f64::INFINITY, f64::min))));
    }
    let color = palette.color(&cell.contestant);
    let name = label(cell);
    let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let explanation = format!(
        "{name}: from {} to {} operations per second in {} ms",
        numbers::rate(slowest),
        numbers::rate(best),
        row.bin_ms
    );
    svg.explained(&explanation, |svg| {
        let class = if cell.contestant.kind == Kind::Kiln { "p-strong" } else { "" };
        let left = time.at(0.0) - 8.0;
        svg.text((left, top + 14.0), Anchor::End, class, &name);
        svg.text((left, top + 29.0), Anchor::End, "p-small", &format!("best {}", numbers::rate(best)));
        let range: Vec<_> = upper.into_iter().chain(lower.into_iter().rev()).collect();
        svg.polygon(&range, &format!("p-area p-f-{color}"));
        svg.polyline(&middle, &format!("p-line p-s-{color}"));
        svg.line((time.at(0.0), bottom), (time.at(bins.len() as f64 * seconds_of_bin), bottom), "p-axis");
        let mut last = f64::NEG_INFINITY;
        for mark in
            row.hardened_ms.iter().filter(|&&ms| ms <= row.seconds * 1000.0).map(|ms| time.at(ms / 1000.0))
        {
            if mark - last >= MARK_GAP {
                svg.line((mark, bottom), (mark, bottom + 6.0), "p-mark");
                last = mark;
            }
        }
    });
}
