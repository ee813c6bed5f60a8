//! Safe commits with one client and with 64, as threads and as tasks, against one direct write and sync on the same disk.

use std::time::Duration;

use anyhow::Result;
use kiln::Map;

use super::{Run, SIZES};
use crate::engines::catalog::{Mode, Name, Shape};
use crate::engines::{Engine, KilnEngine};
use crate::floor::{Floor, SharedFloor};
use crate::generate::draws::Distribution;
use crate::generate::stamp;
use crate::measure::{self, Meanwhile, Measured};
use crate::report::{Samples, Table, Wanted};
use crate::results::Row;
use crate::scratch::disk_bytes;
use crate::workloads::{self, Data, Operation};

const WINDOW: Duration = Duration::from_millis(100);
/// Measurements in a round.
pub(super) const STEPS: u64 = CONTESTANTS.len() as u64;
/// A round is cut into this many slices, in which they alternate: the device's speed changes within seconds.
const SLICES: u32 = 6;

/// What alternates.
#[derive(Clone, Copy)]
struct Contestant {
    name: &'static str,
    clients: usize,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Floor,
    Threads,
    Tasks,
}

const CONTESTANTS: [Contestant; 5] = [
    Contestant { name: "floor: one 4 KiB direct write + sync", clients: 1, kind: Kind::Floor },
    Contestant { name: "floor: 64 threads that share such writes", clients: 64, kind: Kind::Floor },
    Contestant { name: "safe put, 1 client", clients: 1, kind: Kind::Threads },
    Contestant { name: "safe puts, 64 clients: a thread each", clients: 64, kind: Kind::Threads },
    Contestant { name: "safe puts, 64 clients: a task each", clients: 64, kind: Kind::Tasks },
];

/// What was seen of a contestant over all rounds.
#[derive(Default)]
struct Seen {
    rate: Samples,
    p50_us: Samples,
    p99_us: Samples,
}

pub(super) fn run(run: &mut Run<'_>) -> Result<()> {
    let records = run.settings.records;
    run.progress.now("safe commits: loading");
    let engine = KilnEngine::<Map>::create(&run.database("safe", Shape::Map, WINDOW)?)?;
    let data = Data::new(&engine, SIZES, records);
    data.load()?;
    let mut floor = Floor::create(&run.scratch.join("floor"))?;
    let mut seen: [Seen; CONTESTANTS.len()] = Default::default();
    for round in 0..run.settings.rounds() {
        let measured = alternate(run, &data, &mut floor)?;
        for ((contestant, seen), measured) in CONTESTANTS.iter().zip(&mut seen).zip(measured) {
            seen.rate.push(measured.ops_per_s);
            seen.p50_us.push(measured.latency_us(0.5));
            seen.p99_us.push(measured.latency_us(0.99));
            let is_floor = contestant.kind == Kind::Floor;
            let (name, mode) = if is_floor { (Name::Device, Mode::Floor) } else { (Name::Kiln, Mode::Safe) };
            let row = Row {
                workload: if contestant.kind == Kind::Tasks { "safe-commit-tasks" } else { "safe-commit" }
                    .to_owned(),
                threads: contestant.clients,
                window_ms: (!is_floor).then_some(WINDOW.as_millis() as u64),
                disk_bytes: disk_bytes(&run.scratch.join(if is_floor { "floor" } else { "safe" })),
                ..Row::measured(name, mode, SIZES, &measured)
            };
            run.record(row, round)?;
        }
    }
    data.check_all()?;
    engine.close()?;
    run.scratch.remove("safe")?;
    run.scratch.remove("floor")?;
    report(run, &seen);
    Ok(())
}

/// One round: short slices of each contestant in turn, put together.
fn alternate(
    run: &mut Run<'_>,
    data: &Data<'_, KilnEngine<Map>>,
    floor: &mut Floor,
) -> Result<Vec<Measured>> {
    let duration = run.settings.duration() / SLICES;
    let mut parts: [Vec<Measured>; CONTESTANTS.len()] = Default::default();
    for slice_index in 0..SLICES {
        for at in 0..CONTESTANTS.len() {
            // Each slice begins with another contestant, so that none always follows the same one.
            let at = (at + slice_index as usize) % CONTESTANTS.len();
            let contestant = &CONTESTANTS[at];
            run.next(contestant.name.to_owned())?;
            let clients = contestant.clients;
            parts[at].push(match contestant.kind {
                Kind::Floor => measure_floor(floor, clients, duration)?,
                Kind::Threads => {
                    workloads::run(data, Operation::PutDurably, Distribution::Uniform, clients, duration)?
                }
                Kind::Tasks => measure_tasks(data, clients, duration)?,
            });
        }
    }
    parts.into_iter().map(measure::join).collect()
}

fn measure_floor(floor: &mut Floor, clients: usize, duration: Duration) -> Result<Measured> {
    let floor = SharedFloor::new(floor);
    measure::repeat(clients, &Meanwhile::nothing(duration), |_| Ok(|| floor.write().map(|()| 1)))
}

fn measure_tasks(data: &Data<'_, KilnEngine<Map>>, clients: usize, duration: Duration) -> Result<Measured> {
    // All tasks draw from one sequence, each from a place of its own.
    let draws = data.draws(Distribution::Uniform, 0)?;
    measure::task_latency(clients, duration, |number, mut timer| {
        let (client, mut draws, mut value) =
            (data.engine.client(), draws.at_place(number), SIZES.blank_value());
        async move {
            loop {
                let index = draws.next().index();
                stamp(&mut value, index, 1);
                client.put_durably(&SIZES.key(index), &value).await?;
                if !timer.tick() {
                    return Ok(timer);
                }
            }
        }
    })
}

fn report(run: &mut Run<'_>, seen: &[Seen; CONTESTANTS.len()]) {
    let title = format!("Safe commits beside the device's floor, alternating ({})", run.method());
    let columns = ["", "commits/s", "min", "max", "p50 us", "p99 us", "latency / floor", "rate / floor"];
    let mut table = Table::new(title, &columns);
    let [floor, shared_floor, alone, threads, _] = seen;
    for (contestant, seen) in CONTESTANTS.iter().zip(seen) {
        let [rate, min, max] = seen.rate.cells(1.0, 0);
        let latencies = [&seen.p50_us, &seen.p99_us].map(|samples| format!("{:.0}", samples.median()));
        let ratios = [seen.p50_us.ratios_to(&floor.p50_us), seen.rate.ratios_to(&floor.rate)];
        let cells = [contestant.name.to_owned(), rate, min, max].into_iter().chain(latencies);
        table.row(cells.chain(ratios.map(|ratios| format!("{:.2}", ratios.median()))));
    }
    run.print(&table);
    let latency = alone.p50_us.ratios_to(&floor.p50_us);
    run.goal("Safe commit, 1 client: median latency over the floor's", latency, Wanted::AtMost(1.3));
    let shared = |contestant: &Contestant| contestant.clients > 1 && contestant.kind != Kind::Floor;
    for (contestant, seen) in CONTESTANTS.iter().zip(seen).filter(|(contestant, _)| shared(contestant)) {
        let rate = seen.rate.ratios_to(&alone.rate);
        run.goal(format!("{}: rate over that of 1 client", contestant.name), rate, Wanted::AtLeast(20.0));
    }
    let what = "safe puts, 64 clients: a thread each: rate over that of the floor's 64 threads";
    run.goal(what, threads.rate.ratios_to(&shared_floor.rate), Wanted::Nothing);
    let what = "floor: 64 threads that share such writes: rate over that of one alone";
    run.goal(what, shared_floor.rate.ratios_to(&floor.rate), Wanted::Nothing);
}
