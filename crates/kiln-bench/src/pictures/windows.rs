//! What Kiln's vulnerability window costs and gains (the figures 6 and 7 of AciKV's paper): throughput, latency, and the lag from
//! commit to durable, each over the length of the window.

use super::Picture;
use super::chart::{Chart, Series};
use super::svg::Svg;
use crate::summary::cells::{Cell, Field, Kind, THROUGHPUT, Task};
use crate::summary::numbers;

const HEIGHT: f64 = 120.0;

/// One picture for each load that Kiln ran with two or more windows. Numbers of threads are lines of one picture.
pub(crate) fn draw(cells: &[&Cell<'_>]) -> Vec<Picture> {
    let kiln: Vec<&Cell<'_>> = cells.iter().copied().filter(|cell| is_drawn(cell)).collect();
    let mut tasks: Vec<Task> = Vec::new();
    for cell in &kiln {
        let task = without_threads(&cell.task);
        if !tasks.contains(&task) {
            tasks.push(task);
        }
    }
    let of_task = |task: &Task| -> Vec<&Cell<'_>> {
        kiln.iter().copied().filter(|cell| without_threads(&cell.task) == *task).collect()
    };
    tasks.iter().filter_map(|task| picture(task, &of_task(task))).collect()
}

fn is_drawn(cell: &Cell<'_>) -> bool {
    // A commit that waits until it is durable does not make use of its window.
    let is_fast = !cell.contestant.mode.is_durable();
    cell.contestant.kind == Kind::Kiln
        && is_fast
        && cell.contestant.window_ms.is_some_and(|window| window > 0)
}

fn without_threads(task: &Task) -> Task {
    Task { threads: 0, ..task.clone() }
}

fn picture(task: &Task, cells: &[&Cell<'_>]) -> Option<Picture> {
    let mut windows: Vec<u64> = cells.iter().filter_map(|cell| cell.contestant.window_ms).collect();
    windows.sort_unstable();
    windows.dedup();
    if windows.len() < 2 {
        return None;
    }
    let x_values: Vec<f64> = windows.iter().map(|&window| window as f64).collect();
    let x_text = |value: f64| numbers::window(value as u64);

    let title = format!("{}: Kiln by vulnerability window", task.workload);
    let mut svg = Svg::new(&title, &["Fast commits; medians of the rounds, over the window", &task.data()]);
    let mut chart =
        |heading: &str, fields: &[(&str, Field)], reference, y_text: &dyn Fn(f64) -> String, logarithmic| {
            let series = series(cells, fields);
            if !series.is_empty() {
                let names = 130.0;
                let series = &series;
                Chart {
                    heading: Some(heading),
                    series,
                    reference,
                    x_values: &x_values,
                    x_text: &x_text,
                    y_text,
                    logarithmic,
                    names,
                    height: HEIGHT,
                }
                .draw(&mut svg);
            }
        };
    chart(
        "Operations per second",
        &[("", THROUGHPUT)],
        None,
        &|value| numbers::trimmed(&numbers::rate(value)),
        false,
    );
    chart("Latency", &[("p50", |row| row.p50_us), ("p99", |row| row.p99_us)], None, &time_text, true);
    let window = x_values.iter().map(|&window| (window, window * 1000.0)).collect();
    let lag: &[(&str, Field)] = &[("p50", |row| row.lag_p50_us), ("p99", |row| row.lag_p99_us)];
    chart("From commit to durable", lag, Some(("the window itself", window)), &time_text, true);
    Some(Picture { name: format!("window-{}", task.workload), svg })
}

/// The lines of some fields, for each number of threads.
fn series(cells: &[&Cell<'_>], fields: &[(&str, Field)]) -> Vec<Series> {
    let mut loads: Vec<(usize, String)> =
        cells.iter().map(|cell| (cell.task.threads, cell.task.load())).collect();
    loads.sort();
    loads.dedup();
    let mut all = Vec::new();
    for (at, (threads, load)) in loads.iter().enumerate() {
        for (index, (name, field)) in fields.iter().enumerate() {
            let mut points: Vec<(f64, f64)> = cells
                .iter()
                .filter(|cell| cell.task.threads == *threads)
                .filter_map(|cell| Some((cell.contestant.window_ms? as f64, cell.samples(*field).median())))
                .filter(|(_, value)| value.is_finite())
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            if !points.is_empty() {
                let name = if name.is_empty() { load.clone() } else { format!("{name}, {load}") };
                all.push(Series { name, color: color(at), dashed: index > 0, strong: false, points });
            }
        }
    }
    all
}

/// Kiln's own colour for the first number of threads, the others for more.
fn color(at: usize) -> String {
    match at {
        0 => "kiln".to_owned(),
        at => ((at - 1) % super::svg::COLORS).to_string(),
    }
}

fn time_text(us: f64) -> String {
    numbers::trimmed(&numbers::microseconds(us))
}
