//! How much Kiln's ratios to the others differ between two result files: of the same versions, that is the noise of the bench.
//!
//! A ratio is taken round by round within a file, so that what the machine did meanwhile falls on both sides. How unsure a median of
//! such ratios is, its rounds tell: its standard error is shown beside it. What differs by much more than that differs from run
//! to run, and not from round to round.

use std::fmt::Write as _;

use crate::engines::catalog::Name;
use crate::report::{Samples, Table};
use crate::results::Row;
use crate::summary::cells::{Cell, Group, Kind, THROUGHPUT, groups};
use crate::summary::idleness::{APART_MAX, apart};
use crate::summary::ratio_text;

/// Two runs of the same versions on an idle machine should not differ by more.
const NOISE_MAX: f64 = 0.15;

/// Kiln's ratio to another, in both files.
struct Ratio {
    /// Who, and at what.
    names: [String; 4],
    old: Samples,
    new: Samples,
    /// The part of each side's measurements in which the processors were apart, where somebody looked.
    apart: [Option<f64>; 2],
}

impl Ratio {
    /// New over old.
    fn change(&self) -> f64 {
        self.new.median() / self.old.median()
    }

    /// The processors were near each other on both sides.
    fn is_near(&self) -> bool {
        self.apart.iter().all(|apart| apart.is_some_and(|apart| apart <= APART_MAX))
    }

    fn is_beyond(&self) -> bool {
        self.difference() > NOISE_MAX
    }

    /// By which part the larger one is larger.
    fn difference(&self) -> f64 {
        let change = self.change();
        change.max(1.0 / change) - 1.0
    }
}

/// All ratios of both files, the most different ones first.
fn ratios(old: &[Row], new: &[Row]) -> Vec<Ratio> {
    let new_groups = groups(new);
    let mut ratios = Vec::new();
    for old in &groups(old) {
        let same = |new: &&Group<'_>| new.task == old.task && new.promise == old.promise;
        let Some(new) = new_groups.iter().find(same) else { continue };
        ratios.extend(old.cells.iter().filter_map(|cell| ratio(old, cell, new)));
    }
    ratios.sort_by(|a, b| b.difference().total_cmp(&a.difference()));
    ratios
}

fn ratio(old_group: &Group<'_>, old: &Cell<'_>, new_group: &Group<'_>) -> Option<Ratio> {
    let is_compared = old.contestant.kind != Kind::Kiln && old.contestant.engine != Name::Generator.text();
    let new = new_group.cells.iter().find(|new| is_compared && new.is_same(old))?;
    let task = &old.task;
    let apart_of = |group: &Group<'_>, cell: &Cell<'_>| {
        apart(group.base().into_iter().chain([cell]).flat_map(|cell| cell.rows.iter().copied()))
    };
    let ratio = Ratio {
        apart: [apart_of(old_group, old), apart_of(new_group, new)],
        names: [task.workload.clone(), task.load(), old.contestant.engine.clone(), old.contestant.mode()],
        old: old_group.base()?.ratios_to(old, THROUGHPUT),
        new: new_group.base()?.ratios_to(new, THROUGHPUT),
    };
    ratio.difference().is_finite().then_some(ratio)
}

/// How much they differ in all, and which ones differ by too much.
pub(super) fn text(old: &[Row], new: &[Row]) -> String {
    let ratios = ratios(old, new);
    let beyond: Vec<&Ratio> = ratios.iter().filter(|ratio| ratio.is_beyond()).collect();
    let Some(largest) = ratios.first() else { return String::new() };
    let (mut differences, mut errors) = (Samples::default(), Samples::default());
    for ratio in &ratios {
        differences.push(ratio.difference());
        let error = ratio.old.error_of_median().hypot(ratio.new.error_of_median());
        if error.is_finite() {
            errors.push(error);
        }
    }
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "\nOf {} ratios of Kiln to another {} differ by at most {:.0}%, half of them by at most {:.1}%, and all by at most \
         {:.1}%; going by their rounds, half of them would by chance be up to {:.1}% apart.",
        ratios.len(),
        ratios.len() - beyond.len(),
        100.0 * NOISE_MAX,
        100.0 * differences.median(),
        100.0 * largest.difference(),
        100.0 * PROBABLE * errors.median(),
    );
    let near: Vec<&Ratio> = ratios.iter().filter(|ratio| ratio.is_near()).collect();
    if !near.is_empty() && near.len() < ratios.len() {
        let within = near.iter().filter(|ratio| !ratio.is_beyond()).count();
        let _ = writeln!(
            text,
            "In both files the processors were near each other for {} of them; of these {within} differ by at most {:.0}%.",
            near.len(),
            100.0 * NOISE_MAX
        );
    }
    if !beyond.is_empty() {
        let title = format!("Ratios that differ by more than {:.0}%: Kiln over it", 100.0 * NOISE_MAX);
        let mut table = Table::new(
            title,
            &["workload", "load", "engine", "mode", "old", "new", "new/old", "rounds", "apart"],
        );
        for ratio in beyond {
            let [workload, load, engine, mode] = ratio.names.clone();
            let rounds = format!("{}, {}", ratio.old.count(), ratio.new.count());
            let change = format!("{:.2}", ratio.change());
            let (old, new) = (with_error(&ratio.old), with_error(&ratio.new));
            let apart =
                ratio.apart.map(|part| part.map_or("-".to_owned(), |part| format!("{:.0}%", 100.0 * part)));
            table.row([workload, load, engine, mode, old, new, change, rounds, apart.join(", ")]);
        }
        text.push_str(&table.text());
    }
    text
}

/// Half of what is normally distributed is within so many standard deviations.
const PROBABLE: f64 = 0.6745;

fn with_error(samples: &Samples) -> String {
    let error = 100.0 * samples.error_of_median();
    let error = if error.is_finite() { format!(" ± {error:.1}%") } else { String::new() };
    format!("{}{error}", ratio_text(samples.median()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::catalog::Mode;
    use crate::summary::tests::sample;

    fn run(rates: [(&str, [f64; 3]); 4]) -> Vec<Row> {
        let rows = rates.into_iter().flat_map(|(engine, rates)| {
            let mode = if engine == "kiln" { Mode::Fast } else { Mode::Weak };
            (0..).zip(rates).map(move |(round, rate)| sample(engine, mode, "read", round, rate))
        });
        rows.collect()
    }

    #[test]
    fn ratios_that_differ_by_more_than_they_may_are_shown_and_what_the_machine_did_drops_out() {
        let steady = ("generator", [1.0; 3]);
        let old = run([("kiln", [8.0; 3]), ("lmdb", [2.0; 3]), ("sled", [1.0, 2.0, 4.0]), steady]);
        // The machine is half as fast; sled has lost a fifth more, lmdb a tenth.
        let new = run([("kiln", [4.0; 3]), ("lmdb", [0.9; 3]), ("sled", [0.4, 0.8, 1.6]), steady]);
        let text = text(&old, &new);
        assert!(text.contains("Of 2 ratios of Kiln to another 1 differ by at most 15%"), "{text}");
        assert!(text.contains("half of them by at most 18.1%, and all by at most 25.0%"), "{text}");
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("| read")).collect();
        assert_eq!(lines.len(), 1, "{text}");
        for part in ["sled", "4.00 ± ", "5.00 ± ", "1.25", "3, 3"] {
            assert!(lines[0].contains(part), "{}", lines[0]);
        }
        assert!(!super::text(&old, &old).contains("| read"));
        assert_eq!(super::text(&old, &[]), "");
    }

    #[test]
    fn those_whose_processors_were_apart_in_one_file_are_told_from_those_that_were_near_in_both() {
        let rates = [("kiln", [8.0; 3]), ("lmdb", [2.0; 3]), ("sled", [1.0; 3]), ("generator", [1.0; 3])];
        let mut old = run(rates);
        old.iter_mut().for_each(|row| row.core_to_core_ns = Some(45.0));
        let mut new = old.clone();
        for row in new.iter_mut().filter(|row| row.engine == "lmdb") {
            (row.ops_per_s, row.core_to_core_ns) = (1.0, Some(400.0));
        }
        let text = text(&old, &new);
        assert!(text.contains("near each other for 1 of them; of these 1 differ"), "{text}");
        let line = text.lines().find(|line| line.contains("lmdb")).unwrap();
        // Half of what its ratios are made of are Kiln's, which were near.
        assert!(line.contains("0%, 50%"), "{line}");
    }
}
