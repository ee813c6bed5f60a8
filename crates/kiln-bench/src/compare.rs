//! `kiln-bench compare`: which cells of two result files differ by more than the noise.
//!
//! A difference is beyond the noise when the medians differ by more than a threshold, and by more than three times as much as the rounds let expect; of few rounds, when
//! the ranges of both sides do not overlap: of many there is always one that was disturbed. Two runs do not share their slow moments, as the rounds of one run do; what moved the peers, whose code is the
//! same, is the machine. Its part is shown beside Kiln's changes, and left in the verdicts: it is a median over other loads. Kiln's
//! ratios to the others, in which that drops out, are compared by themselves ([`ratios`]).

mod ratios;

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{Result, ensure};

use crate::arguments::CompareSettings;
use crate::report::{Samples, Table};
use crate::results::{self, Row};
use crate::summary::cells::{Cell, Field, Kind, THROUGHPUT, cells};
use crate::summary::idleness;
use crate::summary::numbers::{self, microseconds, rate, significant};

/// So many cells of other engines are needed to tell what the machine did.
const DRIFT_CELLS_MIN: usize = 3;
/// What the other engines changed by, at least, to be worth a warning.
const DRIFT_MIN: f64 = 0.05;

/// So many rounds tell by themselves how unsure their median is.
const ROUNDS_MIN: usize = 5;
/// So many standard errors apart is no chance.
const ERRORS_APART: f64 = 3.0;

/// How a cell changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Faster,
    Slower,
    Same,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::Same => "same",
        }
    }
}

/// A cell of both files.
struct Change<'a> {
    old: Cell<'a>,
    new: Cell<'a>,
    /// New over old.
    ratio: f64,
    verdict: Verdict,
}

/// What two files have in common, and what they have not.
struct Comparison<'a> {
    changes: Vec<Change<'a>>,
    old_only: Vec<Cell<'a>>,
    new_only: Vec<Cell<'a>>,
}

/// Prints how the cells of two files differ. Fails the run only if that was asked for.
pub(crate) fn run(settings: &CompareSettings) -> Result<ExitCode> {
    let (old, new) = (results::read(&settings.old)?, results::read(&settings.new)?);
    let comparison = Comparison::new(&old, &new, settings.threshold / 100.0);
    ensure!(
        !comparison.changes.is_empty(),
        "{} and {} have no cell in common; compare runs of the same workloads with the same sizes",
        settings.old.display(),
        settings.new.display()
    );
    print!("{}{}", comparison.text(settings.threshold), ratios::text(&old, &new));
    for (path, rows) in [(&settings.old, &old), (&settings.new, &new)] {
        println!("\n{}: {}", path.display(), idleness::text(rows));
        if let Some(warning) = idleness::warning(rows) {
            println!("WARNING: {warning}");
        }
        if let Some(unchecked) = results::unchecked_text(rows) {
            println!("WARNING: {unchecked}");
        }
    }
    let failed = settings.fail_on_slower && comparison.is_kiln_slower();
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl<'a> Comparison<'a> {
    fn new(old: &'a [Row], new: &'a [Row], threshold: f64) -> Comparison<'a> {
        let mut new_cells = cells(new);
        let (mut changes, mut old_only) = (Vec::new(), Vec::new());
        for old in cells(old) {
            match new_cells.iter().position(|new| new.is_same(&old)) {
                Some(at) => changes.push(Change::new(old, new_cells.remove(at), threshold)),
                None => old_only.push(old),
            }
        }
        changes.sort_by(|a, b| b.size().total_cmp(&a.size()));
        Comparison { changes, old_only, new_only: new_cells }
    }

    fn text(&self, threshold: f64) -> String {
        let drift = self.drift();
        let (changed, same): (Vec<&Change<'_>>, Vec<&Change<'_>>) =
            self.changes.iter().partition(|change| change.verdict != Verdict::Same);
        let mut text = String::new();
        if !changed.is_empty() {
            let title = format!(
                "Throughput beyond the noise: medians more than {}% apart, and more than their rounds explain",
                numbers::trimmed(&significant(threshold))
            );
            text.push_str(&change_table(&title, &changed, drift).text());
        }
        let hidden: Vec<&Change<'_>> = same.iter().copied().filter(|change| change.is_kiln()).collect();
        if drift.is_some_and(is_drift) && !hidden.is_empty() {
            let title = "Kiln's cells that are the same, which the machine's change may hide";
            text.push_str(&change_table(title, &hidden, drift).text());
        }
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n{} cells changed, {} are the same.", changed.len(), same.len());
        let single = self.changes.iter().filter(|change| change.is_single()).count();
        if single > 0 {
            let _ = writeln!(
                text,
                "{single} of them have one round on a side, and so no range: only the threshold tells. Measure more rounds."
            );
        }
        for (which, cells) in [("old", &self.old_only), ("new", &self.new_only)] {
            if !cells.is_empty() {
                let _ = writeln!(text, "\nOnly in the {which} file, {} cells:", cells.len());
                text.push_str(&cells_text(cells));
            }
        }
        text.push_str(&self.version_text());
        text.push_str(&self.drift_text(drift));
        text
    }

    /// What the cells of other engines changed by: the median of new over old, if there are enough of them.
    fn drift(&self) -> Option<f64> {
        let mut ratios = Samples::default();
        let others = self.changes.iter().filter(|change| !change.is_kiln() && change.ratio.is_finite());
        let count = others.map(|change| ratios.push(change.ratio)).count();
        (count >= DRIFT_CELLS_MIN).then(|| ratios.median())
    }

    fn drift_text(&self, drift: Option<f64>) -> String {
        let Some(drift) = drift else {
            return "\nToo few cells of other engines to tell whether the machine itself changed.\n"
                .to_owned();
        };
        if !is_drift(drift) {
            return format!("\nThe other engines stayed where they were (median x{drift:.2}).\n");
        }
        let direction = if drift > 1.0 { "faster" } else { "slower" };
        format!(
            "\nWARNING: most other engines became {direction}, too (median x{drift:.2}): the machine changed. Kiln's ratios without \
             that are in the column \"without drift\"; the verdicts are not corrected. Measure both versions in turn.\n"
        )
    }

    /// The engines whose versions differ.
    fn version_text(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        for change in &self.changes {
            let (old, new) = (change.old.versions(), change.new.versions());
            let line = format!(
                "Version of {}: {} -> {}",
                change.old.contestant.engine,
                old.join(", "),
                new.join(", ")
            );
            if old != new && !lines.contains(&line) {
                lines.push(line);
            }
        }
        if lines.is_empty() { String::new() } else { format!("\n{}\n", lines.join("\n")) }
    }

    fn is_kiln_slower(&self) -> bool {
        self.changes.iter().any(|change| change.is_kiln() && change.verdict == Verdict::Slower)
    }
}

impl<'a> Change<'a> {
    fn new(old: Cell<'a>, new: Cell<'a>, threshold: f64) -> Change<'a> {
        let (before, after) = (old.samples(THROUGHPUT), new.samples(THROUGHPUT));
        let ratio = after.median() / before.median();
        let is_apart = if before.count().min(after.count()) >= ROUNDS_MIN {
            ratio.ln().abs() > ERRORS_APART * before.error_of_median().hypot(after.error_of_median())
        } else {
            after.min() > before.max() || after.max() < before.min()
        };
        let verdict = match is_apart {
            true if ratio > 1.0 + threshold => Verdict::Faster,
            true if ratio < 1.0 - threshold => Verdict::Slower,
            _ => Verdict::Same,
        };
        Change { old, new, ratio, verdict }
    }

    /// How large the change is, whichever its direction.
    fn size(&self) -> f64 {
        self.ratio.ln().abs()
    }

    fn is_kiln(&self) -> bool {
        self.new.contestant.kind == Kind::Kiln
    }

    fn is_single(&self) -> bool {
        self.old.rows.len() == 1 || self.new.rows.len() == 1
    }
}

fn is_drift(drift: f64) -> bool {
    (drift - 1.0).abs() > DRIFT_MIN
}

fn change_table(title: &str, changes: &[&Change<'_>], drift: Option<f64>) -> Table {
    let drift = drift.filter(|&drift| is_drift(drift));
    let mut columns =
        vec!["verdict", "engine", "mode", "workload", "load", "old ops/s", "new ops/s", "new/old"];
    columns.extend(drift.map(|_| "without drift"));
    columns.extend(["old p99", "new p99"]);
    let mut table = Table::new(title, &columns);
    for change in changes {
        let cell = &change.new;
        let mut texts = vec![
            change.verdict.text().to_owned(),
            cell.contestant.engine.clone(),
            cell.contestant.mode(),
            cell.task.workload.clone(),
            format!("{}, {}", cell.task.load(), cell.task.distribution),
            range(&change.old),
            range(cell),
            format!("{:.2}", change.ratio),
        ];
        if let Some(drift) = drift {
            // The peers' own changes are what the drift was computed from.
            texts.push(if change.is_kiln() {
                format!("{:.2}", change.ratio / drift)
            } else {
                "-".to_owned()
            });
        }
        const P99: Field = |row| row.p99_us;
        texts.extend([&change.old, &change.new].map(|cell| microseconds(cell.samples(P99).median())));
        table.row(texts);
    }
    table
}

/// The median with its range.
fn range(cell: &Cell<'_>) -> String {
    let throughput = cell.samples(THROUGHPUT);
    let [median, min, max] = [throughput.median(), throughput.min(), throughput.max()].map(rate);
    format!("{median} ({min} to {max})")
}

/// A line for each task, with everyone who did it.
fn cells_text(cells: &[Cell<'_>]) -> String {
    let lines = cells.chunk_by(|a, b| a.task == b.task).map(|cells| {
        let names: Vec<String> = cells
            .iter()
            .map(|cell| format!("{} {}", cell.contestant.engine, cell.contestant.mode()))
            .collect();
        let task = cells.first().map_or_else(String::new, |cell| {
            format!("{}, {}; {}", cell.task.workload, cell.task.load(), cell.task.data())
        });
        format!("  {task}: {}\n", names.join(", "))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::engines::catalog::Mode;
    use crate::summary::cells::KILN;
    use crate::summary::tests::sample;

    fn rounds(engine: &str, workload: &str, rates: &[f64]) -> Vec<Row> {
        let mode = if engine == KILN { Mode::Fast } else { Mode::Weak };
        (0..).zip(rates).map(|(round, &rate)| sample(engine, mode, workload, round, rate)).collect()
    }

    fn verdict(old: &[f64], new: &[f64]) -> Verdict {
        let (old, new) = (rounds(KILN, "read", old), rounds(KILN, "read", new));
        Comparison::new(&old, &new, 0.1).changes[0].verdict
    }

    #[test]
    fn only_what_is_beyond_the_ranges_and_the_threshold_is_a_change() {
        assert_eq!(verdict(&[100.0, 101.0, 102.0], &[150.0, 151.0, 149.0]), Verdict::Faster);
        assert_eq!(verdict(&[100.0, 101.0, 102.0], &[80.0, 81.0, 79.0]), Verdict::Slower);
        // The ranges overlap.
        assert_eq!(verdict(&[100.0, 101.0, 150.0], &[150.0, 151.0, 149.0]), Verdict::Same);
        assert_eq!(verdict(&[100.0, 101.0, 80.0], &[80.0, 81.0, 79.0]), Verdict::Same);
        // Of many rounds one that was disturbed hides nothing, and what differs as much from round to round is no change.
        let disturbed = [100.0, 101.0, 102.0, 100.0, 101.0, 60.0];
        assert_eq!(verdict(&disturbed, &[80.0, 81.0, 79.0, 80.0, 81.0, 79.0]), Verdict::Slower);
        let unsteady = [100.0, 150.0, 70.0, 130.0, 80.0, 110.0];
        assert_eq!(verdict(&unsteady, &unsteady.map(|rate| 0.85 * rate)), Verdict::Same);
        // The medians are too near.
        assert_eq!(verdict(&[100.0, 101.0, 102.0], &[109.0, 110.0, 111.0]), Verdict::Same);
        assert_eq!(verdict(&[100.0, 101.0, 102.0], &[92.0, 93.0, 94.0]), Verdict::Same);
        assert_eq!(verdict(&[f64::NAN], &[92.0]), Verdict::Same);
    }

    #[test]
    fn changes_come_by_size_and_the_rest_is_counted_or_named() {
        let old = [
            rounds(KILN, "read", &[100.0]),
            rounds(KILN, "update", &[100.0]),
            rounds(KILN, "scan", &[100.0]),
            rounds(KILN, "gone", &[100.0]),
        ]
        .concat();
        let new = [
            rounds(KILN, "came", &[100.0]),
            rounds(KILN, "read", &[120.0]),
            rounds(KILN, "update", &[50.0]),
            rounds(KILN, "scan", &[101.0]),
        ]
        .concat();
        let comparison = Comparison::new(&old, &new, 0.1);
        let text = comparison.text(10.0);
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).collect();
        assert!(lines[1].starts_with("| slower") && lines[1].contains("update") && lines[1].contains("0.50"));
        assert!(lines[2].starts_with("| faster") && lines[2].contains("read") && lines[2].contains("1.20"));
        assert_eq!(lines.len(), 3);
        assert!(text.contains("2 cells changed, 1 are the same."));
        assert!(text.contains("3 of them have one round"));
        assert!(text.contains("Only in the old file, 1 cells:\n  gone, 1 thread; "));
        assert!(text.contains("Only in the new file, 1 cells:\n  came, 1 thread; "));
        assert!(comparison.is_kiln_slower());
        assert!(!Comparison::new(&new, &new, 0.1).is_kiln_slower());
    }

    #[test]
    fn a_peer_that_is_slower_fails_nothing() {
        let (old, new) = (rounds("lmdb", "read", &[100.0]), rounds("lmdb", "read", &[10.0]));
        assert!(!Comparison::new(&old, &new, 0.1).is_kiln_slower());
    }

    #[test]
    fn what_most_peers_did_is_taken_for_the_machine() {
        let run = |kiln: f64, peer: f64| {
            let peers = ["lmdb", "redb", "sled"].map(|name| rounds(name, "read", &[peer]));
            [rounds(KILN, "read", &[kiln]), peers.concat()].concat()
        };
        let (old, new) = (run(100.0, 100.0), run(60.0, 80.0));
        let text = Comparison::new(&old, &new, 0.1).text(10.0);
        assert!(text.contains("most other engines became slower, too (median x0.80)"), "{text}");
        let line = text.lines().find(|line| line.contains("| kiln")).unwrap();
        assert!(line.contains("0.60") && line.contains("0.75"), "{line}");

        // What looks the same on a machine that became faster is shown, too.
        let text = Comparison::new(&old, &run(100.0, 125.0), 0.1).text(10.0);
        let line = text.lines().find(|line| line.contains("| kiln")).unwrap();
        assert!(line.starts_with("| same") && line.contains("0.80"), "{line}");

        let text = Comparison::new(&old, &run(60.0, 101.0), 0.1).text(10.0);
        assert!(text.contains("stayed where they were (median x1.01)") && !text.contains("drift"), "{text}");
        let kiln = rounds(KILN, "read", &[100.0]);
        assert!(Comparison::new(&kiln, &kiln, 0.1).text(10.0).contains("Too few cells"));
    }

    #[test]
    fn other_versions_are_named_once() {
        let old = [rounds(KILN, "read", &[1.0]), rounds(KILN, "update", &[1.0])].concat();
        let mut new = old.clone();
        new.iter_mut().for_each(|row| row.version = "2".to_owned());
        let text = Comparison::new(&old, &new, 0.1).text(10.0);
        assert_eq!(text.matches("Version of kiln: 1.2.3 -> 2").count(), 1);
    }

    #[test]
    fn files_without_a_common_cell_and_failures_on_request() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, rows: &[Row]| {
            let path = directory.path().join(name);
            let mut writer = results::RowWriter::create(Some(&path)).unwrap();
            rows.iter().for_each(|row| writer.write(row).unwrap());
            path
        };
        let fast = write("fast", &rounds(KILN, "read", &[100.0]));
        let slow = write("slow", &rounds(KILN, "read", &[10.0]));
        let other = write("other", &rounds(KILN, "scan", &[10.0]));
        let settings = |new: &Path, fail_on_slower| CompareSettings {
            old: fast.clone(),
            new: new.to_owned(),
            threshold: 10.0,
            fail_on_slower,
        };
        let text = |settings: &CompareSettings| format!("{:?}", run(settings).unwrap());
        assert_eq!(text(&settings(&slow, true)), format!("{:?}", ExitCode::FAILURE));
        assert_eq!(text(&settings(&slow, false)), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(text(&settings(&fast, true)), format!("{:?}", ExitCode::SUCCESS));
        assert!(run(&settings(&other, false)).unwrap_err().to_string().contains("no cell in common"));
    }
}
