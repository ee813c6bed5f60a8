//! Transactions of three keys on a map: three puts, and reading, changing and writing three keys.

use std::time::Duration;

use anyhow::{Result, ensure};
use kiln::Map;

use super::{Run, SIZES};
use crate::engines::catalog::{Mode, Name, Shape};
use crate::engines::{Engine, KilnEngine};
use crate::generate::draws::Distribution;
use crate::report::{Samples, Table, Wanted};
use crate::results::Row;
use crate::scratch::disk_bytes;
use crate::workloads::{self, Data, Operation};

const WINDOW: Duration = Duration::from_millis(100);
const THREADS: [usize; 2] = [1, 2];
const MODIFY: Operation = Operation::ModifyMany(3);
/// The workloads with their names in the table and in results.
const WORKLOADS: [(Operation, &str, &str); 2] =
    [(MODIFY, "read, change and write 3 keys", "txn-3"), (Operation::PutMany(3), "put 3 keys", "txn-put-3")];
/// Measurements in a round.
pub(super) const STEPS: u64 = 4;

const MILLION: f64 = 1e6;

pub(super) fn run(run: &mut Run<'_>) -> Result<()> {
    let title =
        format!("Transactions on Map, fast commits: million per second ({}, 100 ms window)", run.method());
    let mut table =
        Table::new(title, &["transaction", "threads", "median", "min", "max", "per thread", "CPU ns"]);
    for (operation, name, result_name) in WORKLOADS {
        let samples = measure(run, operation, result_name)?;
        for (threads, (samples, cpu)) in THREADS.iter().zip(&samples) {
            let per_thread = samples.median() / MILLION / *threads as f64;
            let cells = [name.to_owned(), threads.to_string()].into_iter().chain(samples.cells(MILLION, 2));
            table.row(cells.chain([format!("{per_thread:.2}"), cpu.cells(1.0, 0)[0].clone()]));
            let what = format!("{name}: million transactions per second and thread, {threads} thread(s)");
            run.goal(what, samples.over(MILLION * *threads as f64), Wanted::AtLeast(1.0));
        }
    }
    run.print(&table);
    Ok(())
}

/// The rates and the processor time of a transaction, for each number of threads.
fn measure(run: &mut Run<'_>, operation: Operation, result_name: &str) -> Result<[(Samples, Samples); 2]> {
    let records = run.settings.records;
    run.progress.now(format!("{result_name}: loading"));
    let engine = KilnEngine::<Map>::create(&run.database("transactions", Shape::Map, WINDOW)?)?;
    let data = Data::new(&engine, SIZES, records);
    data.load()?;
    run.progress.now(format!("{result_name}: warming up"));
    data.warm_up()?;
    let mut samples: [(Samples, Samples); 2] = Default::default();
    let mut ops = 0;
    for round in 0..run.settings.rounds() {
        for (threads, (samples, cpu)) in THREADS.into_iter().zip(&mut samples) {
            run.next(format!("{result_name}: {threads} thread(s)"))?;
            let measured =
                workloads::run(&data, operation, Distribution::Uniform, threads, run.settings.duration())?;
            data.check_sample()?;
            samples.push(measured.ops_per_s);
            cpu.push(measured.cpu_ns());
            ops += measured.ops;
            let row = Row {
                workload: result_name.to_owned(),
                threads,
                window_ms: Some(WINDOW.as_millis() as u64),
                disk_bytes: disk_bytes(&run.scratch.join("transactions")),
                ..Row::measured(Name::Kiln, Mode::Fast, SIZES, &measured)
            };
            run.record(row, round)?;
        }
    }
    let sum = data.check_all()?;
    let expected = 3 * ops;
    ensure!(
        operation != MODIFY || sum == expected,
        "{ops} transactions should have counted up to {expected}, and the sum is {sum}"
    );
    engine.close()?;
    run.scratch.remove("transactions")?;
    Ok(samples)
}
