//! Single-key get and put (fast commits), on Map and Table, with a short and a long window, with one and two threads.

use std::time::Duration;

use anyhow::Result;
use kiln::{Map, Table as KilnTable};

use super::{Run, SIZES};
use crate::engines::catalog::{Mode, Name, Shape};
use crate::engines::{Engine, Generator, KilnEngine, KilnObject};
use crate::generate::draws::Distribution;
use crate::report::{Samples, Table, Wanted};
use crate::results::Row;
use crate::scratch::disk_bytes;
use crate::workloads::{self, Data, Operation};

/// The vulnerability windows that are compared.
const WINDOWS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// The numbers of threads that are compared.
const THREADS: [usize; 2] = [1, 2];
/// Measurements in a round: two objects, two windows, two numbers of threads, get and put; and the generator's get and put.
pub(super) const STEPS: u64 = 2 * 2 * 2 * 2 + 2;

const MILLION: f64 = 1e6;
const GET: Operation = Operation::GetOrPut { reads: 100 };
const PUT: Operation = Operation::GetOrPut { reads: 0 };

/// The name of one of both in results.
fn workload(shape: Shape, operation: Operation) -> String {
    let name = match (shape, operation == GET) {
        (Shape::Map, true) => "map-read",
        (Shape::Map, false) => "map-upsert",
        (Shape::Table, true) => "read",
        (Shape::Table, false) => "update",
    };
    name.to_owned()
}

pub(super) fn run(run: &mut Run<'_>) -> Result<()> {
    let title = format!(
        "Single keys, fast commits: million operations per second ({}; CPU: of the whole process, for one operation)",
        run.method()
    );
    let columns =
        ["object", "window", "operation", "threads", "median", "min", "max", "per thread", "CPU ns"];
    let mut table = Table::new(title, &columns);
    for window in WINDOWS {
        object::<Map>(run, &mut table, window, 2.0)?;
        object::<KilnTable>(run, &mut table, window, 1.0)?;
    }
    generator(run, &mut table)?;
    run.print(&table);
    Ok(())
}

/// Measures one object with one window. `goal` is in millions of puts per second and thread.
fn object<O: KilnObject>(run: &mut Run<'_>, table: &mut Table, window: Duration, goal: f64) -> Result<()> {
    let records = run.settings.records;
    let what = format!("{} {} ms", O::KIND, window.as_millis());
    run.progress.now(format!("{what}: loading"));
    let engine = KilnEngine::<O>::create(&run.database("single", O::SHAPE, window)?)?;
    let data = Data::new(&engine, SIZES, records);
    data.load()?;
    // Reads first, while every value is where the load has put it, in memory.
    let gets = rounds::<O>(run, &data, GET, window)?;
    run.progress.now(format!("{what}: warming up"));
    data.warm_up()?;
    let puts = rounds::<O>(run, &data, PUT, window)?;
    data.check_all()?;
    engine.close()?;
    run.scratch.remove("single")?;

    for (operation, samples) in [("get", &gets), ("put", &puts)] {
        for (threads, (samples, cpu)) in THREADS.iter().zip(samples) {
            let [median, min, max] = samples.cells(MILLION, 2);
            let per_thread = samples.median() / MILLION / *threads as f64;
            let window = format!("{} ms", window.as_millis());
            let cells =
                [O::KIND.to_owned(), window, operation.to_owned(), threads.to_string(), median, min, max];
            table.row(cells.into_iter().chain([format!("{per_thread:.2}"), cpu.cells(1.0, 0)[0].clone()]));
            let wanted = if operation == "put" { Wanted::AtLeast(goal) } else { Wanted::Nothing };
            let what = format!("{what}: million {operation}s per second and thread, {threads} thread(s)");
            run.goal(what, samples.over(MILLION * *threads as f64), wanted);
        }
    }
    Ok(())
}

/// Repeats a workload with each number of threads in turn: the rates and the processor time of an operation.
fn rounds<O: KilnObject>(
    run: &mut Run<'_>,
    data: &Data<'_, KilnEngine<O>>,
    operation: Operation,
    window: Duration,
) -> Result<[(Samples, Samples); 2]> {
    let mut samples: [(Samples, Samples); 2] = Default::default();
    for round in 0..run.settings.rounds() {
        for (threads, (samples, cpu)) in THREADS.into_iter().zip(&mut samples) {
            run.next(format!(
                "{} {} ms: {}, {threads} thread(s)",
                O::KIND,
                window.as_millis(),
                workload(O::SHAPE, operation)
            ))?;
            let measured =
                workloads::run(data, operation, Distribution::Uniform, threads, run.settings.duration())?;
            data.check_sample()?;
            samples.push(measured.ops_per_s);
            cpu.push(measured.cpu_ns());
            let row = Row {
                workload: workload(O::SHAPE, operation),
                threads,
                window_ms: Some(window.as_millis() as u64),
                disk_bytes: disk_bytes(&run.scratch.join("single")),
                ..Row::measured(Name::Kiln, Mode::Fast, SIZES, &measured)
            };
            run.record(row, round)?;
        }
    }
    Ok(samples)
}

/// What the load costs without an engine: to be subtracted in thought from everything above.
fn generator(run: &mut Run<'_>, table: &mut Table) -> Result<()> {
    run.progress.now("generator");
    let engine = Generator::new(SIZES);
    let data = Data::new(&engine, SIZES, run.settings.records);
    for (name, operation) in [("get", GET), ("put", PUT)] {
        let (mut samples, mut cpu) = (Samples::default(), Samples::default());
        for round in 0..run.settings.rounds() {
            let duration = run.settings.duration().min(Duration::from_millis(200));
            let measured = workloads::run(&data, operation, Distribution::Uniform, 1, duration)?;
            samples.push(measured.ops_per_s);
            cpu.push(measured.cpu_ns());
            let row = Row {
                workload: workload(Shape::Map, operation),
                threads: 1,
                ..Row::measured(Name::Generator, Mode::Floor, SIZES, &measured)
            };
            run.record(row, round)?;
        }
        let cells = ["no engine", "-", name, "1"].map(str::to_owned);
        let last = [format!("{:.2}", samples.median() / MILLION), cpu.cells(1.0, 0)[0].clone()];
        table.row(cells.into_iter().chain(samples.cells(MILLION, 2)).chain(last));
    }
    Ok(())
}
