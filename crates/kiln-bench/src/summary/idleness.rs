//! Whether the machine had nothing else to do: what was measured on a busy one is no measure of an engine.
//!
//! It is judged by group, which is everything that is compared with each other, over all its rounds: a single measurement of a
//! tenth of a second is too short for the ticks that the kernel counts in. What is said names the workloads to measure again.
//!
//! What other machines take of shared caches shows in no ticks, but in what a read of memory takes ([`MemorySpeed`](crate::memory_speed::MemorySpeed)). How long
//! that is where nobody is in the way is not known, so a comparison is held against the quietest tenth of its run. Nor do ticks show where the host has put the
//! processors; how long they take to hand something to each other does ([`placement`](crate::placement)).

use std::fmt::Write as _;

use super::cells::{Group, groups};
use crate::machine::{OTHERS_MAX, STEAL_MAX};
use crate::placement::{APART_NS, is_apart};
use crate::report::Samples;
use crate::results::Row;

/// Where reads of memory take so many times as long as in the quietest tenth of the run, figures are off by more than their noise.
const SLOWNESS_MAX: f64 = 1.25;

/// Where the processors were apart in a larger part of the measurements than this, medians are not those of near ones.
pub(crate) const APART_MAX: f64 = 0.1;

/// So many disturbed groups are named.
const NAMED_MAX: usize = 6;

/// What others took of the processors' time while something was measured.
#[derive(Clone, Copy, Default)]
struct Taken {
    seconds: f64,
    /// Seconds times parts.
    others: f64,
    steal: f64,
}

impl Taken {
    fn of<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Taken {
        rows.into_iter().fold(Taken::default(), |sum, row| {
            let seconds = row.seconds + row.persist_s;
            Taken {
                seconds: sum.seconds + seconds,
                others: sum.others + seconds * row.others,
                steal: sum.steal + seconds * row.steal,
            }
        })
    }

    fn part_of_others(self) -> f64 {
        (self.others / self.seconds.max(1e-9)).max(0.0)
    }

    fn part_of_steal(self) -> f64 {
        self.steal / self.seconds.max(1e-9)
    }

    /// How many times as much as nobody minds.
    fn excess(self) -> f64 {
        (self.part_of_others() / OTHERS_MAX).max(self.part_of_steal() / STEAL_MAX)
    }

    fn text(self) -> String {
        format!(
            "other processes {:.1}%, other machines {:.1}%",
            100.0 * self.part_of_others(),
            100.0 * self.part_of_steal()
        )
    }
}

fn rows_of<'g>(group: &'g Group<'_>) -> impl Iterator<Item = &'g Row> {
    group.cells.iter().flat_map(|cell| cell.rows.iter().copied())
}

/// What reads of memory took, where somebody looked, in nanoseconds.
fn memory_ns<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Samples {
    rows.into_iter().filter_map(|row| row.memory_ns).collect()
}

/// What they take when the machine has its caches to itself, as far as a run can tell.
fn quiet_memory_ns(rows: &[Row]) -> Option<f64> {
    const QUIETEST: f64 = 0.1;
    let samples = memory_ns(rows);
    (samples.count() > 0).then(|| samples.quantile(QUIETEST))
}

/// The part of measurements in which the processors were apart, where somebody looked.
pub(crate) fn apart<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Option<f64> {
    let looked = rows.into_iter().filter(|row| row.core_to_core_ns.is_some());
    let (count, apart) = looked
        .fold((0, 0), |(count, apart), row| (count + 1, apart + u32::from(is_apart(row.core_to_core_ns))));
    (count > 0).then(|| f64::from(apart) / f64::from(count))
}

/// What others took of the machine: of all measurements together.
pub(crate) fn text(rows: &[Row]) -> String {
    let mut text = format!("Of the processors' time others took: {}.", Taken::of(rows).text());
    if let Some(quiet_ns) = quiet_memory_ns(rows) {
        let median_ns = memory_ns(rows).median();
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            " A read of memory took {median_ns:.0} ns, {:.2} times as long as in the quietest tenth of the run.",
            median_ns / quiet_ns
        );
    }
    if let Some(apart) = apart(rows) {
        let _ = write!(
            text,
            " The processors were apart in {:.1}% of the measurements (more than {APART_NS} ns for a cache line there and back).",
            100.0 * apart
        );
    }
    text
}

/// What to say of groups that were measured while the machine was busy, if any were.
pub(crate) fn warning(rows: &[Row]) -> Option<String> {
    let warnings: Vec<String> =
        [warning_of_processors(rows), warning_of_memory(rows), warning_of_placement(rows)]
            .into_iter()
            .flatten()
            .collect();
    (!warnings.is_empty()).then(|| warnings.join(" "))
}

fn warning_of_memory(rows: &[Row]) -> Option<String> {
    let quiet_ns = quiet_memory_ns(rows)?;
    let groups = groups(rows);
    let (slow, worst) = disturbed(&groups, |group| {
        let slowness = memory_ns(rows_of(group)).median() / quiet_ns;
        (slowness / SLOWNESS_MAX, format!("{slowness:.2} times"))
    })?;
    Some(format!(
        "{} of {} comparisons were made while reads of memory took more than {SLOWNESS_MAX} times as long as in the quietest tenth of \
         the run, though nobody here was at work: other machines share caches and memory with this one. Worst: {worst}.",
        slow.len(),
        groups.len(),
    ))
}

fn warning_of_placement(rows: &[Row]) -> Option<String> {
    let groups = groups(rows);
    let (moved, worst) = disturbed(&groups, |group| {
        let apart = apart(rows_of(group)).unwrap_or(0.0);
        (apart / APART_MAX, format!("{:.0}%", 100.0 * apart))
    })?;
    Some(format!(
        "{} of {} comparisons were made while the host had the processors apart, in more than {:.0}% of their measurements: what two threads \
         share costs more then, of each engine another part. Compare them with such only. Worst: {worst}.",
        moved.len(),
        groups.len(),
        100.0 * APART_MAX
    ))
}

fn warning_of_processors(rows: &[Row]) -> Option<String> {
    let groups = groups(rows);
    let (busy, worst) = disturbed(&groups, |group| {
        let taken = Taken::of(rows_of(group));
        (taken.excess(), taken.text())
    })?;
    let seconds = Taken::of(busy.iter().flat_map(|group| rows_of(group))).seconds;
    Some(format!(
        "{} of {} comparisons, {:.0}% of the measured time, were made while others used more than {:.0}% of the processors (or \
         other machines more than {:.0}%): stop what else runs and measure these again. Worst: {worst}.",
        busy.len(),
        groups.len(),
        100.0 * seconds / Taken::of(rows).seconds.max(1e-9),
        100.0 * OTHERS_MAX,
        100.0 * STEAL_MAX
    ))
}

/// The groups that are judged to have an excess above 1, the worst first, if there are any; and the first of them by name, with what is told of each.
fn disturbed<'g, 'r>(
    groups: &'g [Group<'r>],
    judge: impl Fn(&Group<'r>) -> (f64, String),
) -> Option<(Vec<&'g Group<'r>>, String)> {
    let judged = groups.iter().map(|group| (group, judge(group)));
    let mut disturbed: Vec<_> = judged.filter(|(_, (excess, _))| *excess > 1.0).collect();
    disturbed.sort_by(|(_, (a, _)), (_, (b, _))| b.total_cmp(a));
    let first = disturbed.iter().take(NAMED_MAX).map(|(Group { task, promise, .. }, (_, told))| {
        format!("{}, {}, {}: {told}", task.workload, task.load(), promise.text())
    });
    let named = first.collect::<Vec<_>>().join("; ");
    let disturbed: Vec<_> = disturbed.into_iter().map(|(group, _)| group).collect();
    (!disturbed.is_empty()).then_some((disturbed, named))
}

/// What the reader of a run's tables must know about the machine.
pub(crate) fn verdict(rows: &[Row], load_before: f64) -> String {
    let whole = format!("{} Load before the run: {load_before:.2}.", text(rows));
    match warning(rows) {
        Some(warning) => format!("THE MACHINE WAS NOT IDLE. {whole}\n{warning}"),
        None => format!("The machine was idle otherwise, in every comparison. {whole}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::catalog::Mode;
    use crate::summary::tests::sample;

    fn rounds(workload: &str, others: &[f64], steal: f64) -> Vec<Row> {
        let rows = (0..).zip(others);
        rows.map(|(round, &others)| Row { others, steal, ..sample("kiln", Mode::Fast, workload, round, 1.0) })
            .collect()
    }

    #[test]
    fn what_is_too_much_is_the_mean_of_a_comparison_and_not_one_short_measurement() {
        // Ticks are coarse: what one measurement has too much, another has too little.
        let quiet = rounds("read", &[0.30, -0.15, -0.05], 0.01);
        assert_eq!(warning(&quiet), None);
        assert!(verdict(&quiet, 0.5).starts_with("The machine was idle otherwise"));
        assert!(text(&quiet).contains("other processes 3.3%, other machines 1.0%"), "{}", text(&quiet));
        assert!(text(&rounds("read", &[-0.1], 0.0)).contains("other processes 0.0%"));
    }

    #[test]
    fn a_busy_comparison_is_named_with_its_part_of_the_run() {
        let mut rows = rounds("read", &[0.05, 0.05, 0.05], 0.01);
        rows.extend(rounds("update", &[0.2], 0.0));
        assert!(
            warning(&rows).is_some_and(|text| text.starts_with("1 of 2 comparisons, 25% of the measured"))
        );
        rows.extend(rounds("insert", &[0.0], 0.4));
        let warning = warning(&rows).unwrap();
        assert!(warning.starts_with("2 of 3 comparisons, 40%"), "{warning}");
        // The worst comes first.
        let worst = warning.split("Worst:").nth(1).unwrap();
        assert!(
            worst
                .starts_with(" insert, 1 thread, durable later: other processes 0.0%, other machines 40.0%;")
        );
        assert!(
            worst.ends_with("update, 1 thread, durable later: other processes 20.0%, other machines 0.0%.")
        );
        assert!(verdict(&rows, 0.5).starts_with("THE MACHINE WAS NOT IDLE."));
    }

    #[test]
    fn a_comparison_made_while_the_processors_were_apart_is_named() {
        let of = |workload: &str, taken: [f64; 10]| {
            let mut rows = rounds(workload, &[0.0; 10], 0.0);
            rows.iter_mut().zip(taken).for_each(|(row, ns)| row.core_to_core_ns = Some(ns));
            rows
        };
        let mut once = [45.0; 10];
        once[3] = 400.0;
        let mut rows = [of("read", [120.0; 10]), of("update", once)].concat();
        assert_eq!(warning(&rows), None, "one of ten does not move a median");
        rows.extend(of("insert", [400.0; 10]));
        let warning = warning(&rows).unwrap();
        assert!(warning.starts_with("1 of 3 comparisons were made while the host"), "{warning}");
        assert!(warning.ends_with("Worst: insert, 1 thread, durable later: 100%."), "{warning}");
        assert!(
            text(&rows).contains("The processors were apart in 36.7% of the measurements"),
            "{}",
            text(&rows)
        );
    }

    #[test]
    fn a_comparison_made_while_memory_was_slow_is_named() {
        let of = |workload: &str, ns: f64| {
            let mut rows = rounds(workload, &[0.0; 10], 0.0);
            rows.iter_mut().for_each(|row| row.memory_ns = Some(ns));
            rows
        };
        let mut rows = [of("read", 100.0), of("update", 120.0)].concat();
        assert_eq!(warning(&rows), None, "what differs by as much is usual");
        rows.extend(of("insert", 130.0));
        let warning = warning(&rows).unwrap();
        assert!(warning.starts_with("1 of 3 comparisons were made while reads of memory"), "{warning}");
        assert!(warning.ends_with("Worst: insert, 1 thread, durable later: 1.30 times."), "{warning}");
        assert!(text(&rows).ends_with(
            "A read of memory took 120 ns, 1.20 times as long as in the quietest tenth of the run."
        ));
        // Files from before anybody looked.
        assert!(!text(&rounds("read", &[0.0], 0.0)).contains("apart"));
        assert!(!text(&rounds("read", &[0.0], 0.0)).contains("memory"));
    }
}
