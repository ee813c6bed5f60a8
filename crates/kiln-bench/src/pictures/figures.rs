//! The figures of the papers that no workload's own pictures show: a log at commit, hardening beside none, buffers, and throughput against latency.

use std::collections::BTreeSet;

use super::chart::{Chart, Series};
use super::svg::Svg;
use super::{Palette, Picture, timeline};
use crate::generate::draws::Distribution;
use crate::results::Row;
use crate::summary::cells::{Cell, Group, KILN, THROUGHPUT, cells, groups};
use crate::summary::numbers;
use crate::summary::papers::{is_fast, is_group_commit, keys_of, room_of, without_hardening};

const HEIGHT: f64 = 170.0;
const NAMES: f64 = 150.0;

/// All figures that there are rows for.
pub(super) fn draw(rows: &[Row], palette: &Palette) -> Vec<Picture> {
    let cells = cells(rows);
    let mut pictures = transactions(&cells, palette);
    pictures.extend(hardening(&groups(rows), palette));
    pictures.extend(buffers(&cells));
    pictures.extend(latency(&cells));
    for picture in &mut pictures {
        // Of a workload's own pictures none is called so.
        picture.name = format!("figure-{}", picture.name);
    }
    pictures
}

fn rate(cell: &Cell<'_>) -> f64 {
    cell.samples(THROUGHPUT).median()
}

fn rate_text(value: f64) -> String {
    numbers::trimmed(&numbers::rate(value))
}

/// CPR, figures 10, 11 and 16: one picture for each distribution and number of threads, over the keys of a transaction.
fn transactions(cells: &[Cell<'_>], palette: &Palette) -> Vec<Picture> {
    let load = |cell: &Cell<'_>| keys_of(cell).map(|_| (cell.task.distribution, cell.task.threads));
    let loads: BTreeSet<(Distribution, usize)> = cells.iter().filter_map(load).collect();
    let pictures = loads.into_iter().map(|(distribution, threads)| {
        let own: Vec<&Cell<'_>> =
            cells.iter().filter(|cell| load(cell) == Some((distribution, threads))).collect();
        let x_values: BTreeSet<usize> = own.iter().filter_map(|cell| Some(keys_of(cell)?.0)).collect();
        let x_values: Vec<f64> = x_values.into_iter().map(|keys| keys as f64).collect();
        let lines: BTreeSet<_> =
            own.iter().filter_map(|cell| Some((cell.contestant.clone(), keys_of(cell)?.1))).collect();
        let series = lines.into_iter().map(|(contestant, reads)| {
            let of_line = |cell: &&&Cell<'_>| {
                cell.contestant == contestant && keys_of(cell).is_some_and(|of| of.1 == reads)
            };
            let point = |cell: &&Cell<'_>| Some((keys_of(cell)?.0 as f64, rate(cell)));
            Series {
                name: format!("{}, {reads}% read", contestant.engine),
                color: palette.color(&contestant),
                dashed: reads == 0,
                strong: contestant.engine == KILN,
                points: sorted(own.iter().filter(of_line).filter_map(point).collect()),
            }
        });
        let series: Vec<Series> = series.collect();
        let threads_text = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
        let title = format!("Transactions, {distribution}, {threads_text}: Kiln and a log at commit");
        let described = "Operations per second over the keys of a transaction (CPR, figures 10, 11, 16)";
        let mut svg = Svg::new(&title, &[described, &own[0].task.data()]);
        chart(&series, &x_values, &|value| format!("{value}"), &rate_text, false).draw(&mut svg);
        Picture { name: format!("transactions-{distribution}-{threads}-threads"), svg }
    });
    pictures.collect()
}

/// CPR, figures 12 and 13: each load with and without hardening.
fn hardening(groups: &[Group<'_>], palette: &Palette) -> Vec<Picture> {
    let has_both = |group: &&Group<'_>| {
        group.cells.iter().any(|cell| is_fast(cell) && without_hardening(cell, &group.cells).is_some())
    };
    groups.iter().filter(has_both).map(|group| timeline::beside_floors(group, palette)).collect()
}

/// CPR, figure 15: throughput over the room of clients' buffers.
fn buffers(cells: &[Cell<'_>]) -> Option<Picture> {
    let own: Vec<&Cell<'_>> = cells.iter().filter(|cell| room_of(cell).is_some()).collect();
    let first = own.first()?;
    let x_values: BTreeSet<usize> = own.iter().filter_map(|cell| room_of(cell)).collect();
    let x_values: Vec<f64> = x_values.into_iter().map(|room| room as f64).collect();
    let loads: BTreeSet<(Distribution, usize)> =
        own.iter().map(|cell| (cell.task.distribution, cell.task.threads)).collect();
    let series = loads.into_iter().enumerate().map(|(at, (distribution, threads))| {
        let of_line =
            |cell: &&&Cell<'_>| (cell.task.distribution, cell.task.threads) == (distribution, threads);
        let point = |cell: &&Cell<'_>| Some((room_of(cell)? as f64, rate(cell)));
        Series {
            name: format!("{distribution}, {threads} clients"),
            color: "kiln".to_owned(),
            dashed: at > 0,
            strong: false,
            points: sorted(own.iter().filter(of_line).filter_map(point).collect()),
        }
    });
    let series: Vec<Series> = series.collect();
    let described =
        "Operations per second over the writes that a client's buffer has room for (CPR, figure 15)";
    let mut svg = Svg::new("Clients that keep what is not durable", &[described, &first.task.data()]);
    chart(&series, &x_values, &rate_text, &rate_text, false).draw(&mut svg);
    Some(Picture { name: "buffers".to_owned(), svg })
}

/// AciKV, figure 7: the latency of what throughput, for windows and for group commit.
fn latency(cells: &[Cell<'_>]) -> Option<Picture> {
    let point = |cell: &Cell<'_>| {
        Some((rate(cell), cell.samples(|row| row.p50_us).median())).filter(|(x, y)| *x > 0.0 && *y > 0.0)
    };
    let line = |name: &str, color: &str, own: &[&Cell<'_>]| Series {
        name: name.to_owned(),
        color: color.to_owned(),
        dashed: color != "kiln",
        strong: color == "kiln",
        points: sorted(own.iter().filter_map(|cell| point(cell)).collect()),
    };
    let group_commit: Vec<&Cell<'_>> = cells.iter().filter(|cell| is_group_commit(cell)).collect();
    let data = group_commit.first()?.task.data();
    let weak =
        |cell: &&Cell<'_>| is_fast(cell) && cell.task.workload == WEAK_WORKLOAD && cell.task.data() == data;
    let weak: Vec<&Cell<'_>> = cells.iter().filter(weak).collect();
    let series = [line("windows", "kiln", &weak), line("group commit", "0", &group_commit)];
    if series.iter().any(|series| series.points.len() < 3) {
        return None;
    }
    let rates = || series.iter().flat_map(|series| &series.points).map(|point| point.0);
    let (least, most) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
    let decades = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let x_values: Vec<f64> = decades.map(|exponent| 10_f64.powi(exponent)).collect();
    let described =
        "Median latency over operations per second, for windows and for numbers of clients (AciKV, figure 7)";
    let mut svg = Svg::new("Weak durability and group commit", &[described, &data]);
    let time_text = |us: f64| numbers::trimmed(&numbers::microseconds(us));
    chart(&series, &x_values, &rate_text, &time_text, true).draw(&mut svg);
    Some(Picture { name: "latency".to_owned(), svg })
}

/// What AciKV's figures 6 and 7 write.
const WEAK_WORKLOAD: &str = "update";

fn sorted(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

fn chart<'a>(
    series: &'a [Series],
    x_values: &'a [f64],
    x_text: &'a dyn Fn(f64) -> String,
    y_text: &'a dyn Fn(f64) -> String,
    logarithmic: bool,
) -> Chart<'a> {
    Chart {
        heading: None,
        series,
        reference: None,
        x_values,
        x_text,
        y_text,
        logarithmic,
        names: NAMES,
        height: HEIGHT,
    }
}
