//! The server beside Redis, both under `redis-benchmark` on loopback: safe SETs against `appendfsync always`, fast ones and GETs
//! against `appendfsync everysec`.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::{Run, SIZES};
use crate::engines::catalog::Mode;
use crate::generate::draws::{Distribution, Draws};
use crate::report::{Samples, Table, Wanted};
use crate::results::Row;
use crate::scratch::disk_bytes;
use crate::servers::{self, Load, Seen, Server};

/// Measurements in a round: two safe cells, and four fast ones, on two servers each.
pub(super) const STEPS: u64 = 2 * 6;
const CONNECTIONS: usize = 64;
/// Requests of the first short run, which finds out how many fill the time.
const TRIAL_REQUESTS: u64 = 6400;
/// With several threads `redis-benchmark` looks four times a second whether all is answered: so long a measurement is that it is at most 6% off.
const THREADED_SECONDS_MIN: f64 = 4.0;
/// Keys of one request while a server is loaded.
const LOAD_KEYS: u64 = 500;

/// One kind of load on a pair of servers.
#[derive(Clone, Copy)]
struct Cell {
    test: &'static str,
    pipeline: u32,
    /// Threads of the client.
    client_threads: usize,
    what: &'static str,
    wanted: Wanted,
}

/// A pair of servers in the modes that are compared.
struct Pairing {
    durability: &'static str,
    fsync: &'static str,
    kiln_mode: Mode,
    redis_mode: Mode,
    cells: &'static [Cell],
}

const PAIRINGS: [Pairing; 2] = [
    Pairing {
        durability: "safe",
        fsync: "always",
        kiln_mode: Mode::Safe,
        redis_mode: Mode::Strong,
        cells: &[
            Cell {
                test: "set",
                pipeline: 1,
                client_threads: 1,
                what: "RESP: safe SETs, 64 connections of one thread, over Redis with appendfsync always",
                wanted: Wanted::AtLeast(1.0),
            },
            Cell {
                test: "set",
                pipeline: 1,
                client_threads: 2,
                what: "RESP: safe SETs, 64 connections of two threads, over Redis with appendfsync always",
                wanted: Wanted::AtLeast(1.0),
            },
        ],
    },
    Pairing {
        durability: "fast",
        fsync: "everysec",
        kiln_mode: Mode::Fast,
        redis_mode: Mode::Weak,
        cells: &[
            Cell {
                test: "set",
                pipeline: 16,
                client_threads: 1,
                what: "RESP: fast SETs, 16 in flight, over Redis with appendfsync everysec",
                wanted: Wanted::AtLeast(1.0),
            },
            Cell {
                test: "set",
                pipeline: 64,
                client_threads: 1,
                what: "RESP: fast SETs, 64 in flight, over Redis with appendfsync everysec",
                wanted: Wanted::AtLeast(1.0),
            },
            Cell {
                test: "get",
                pipeline: 16,
                client_threads: 1,
                what: "RESP: GETs, 16 in flight, over Redis",
                wanted: Wanted::Nothing,
            },
            Cell {
                test: "get",
                pipeline: 64,
                client_threads: 1,
                what: "RESP: GETs, 64 in flight, over Redis",
                wanted: Wanted::Nothing,
            },
        ],
    },
];

pub(super) fn run(run: &mut Run<'_>) -> Result<()> {
    let kiln = run.kiln.clone().context("there is no program to serve with")?;
    let title =
        format!("Over RESP, {CONNECTIONS} connections: thousand requests per second ({})", run.method());
    let columns =
        ["load", "modes", "Kiln", "min", "max", "Redis", "min", "max", "ratio", "p50 ms", "Redis p50 ms"];
    let mut table = Table::new(title, &columns);
    for pairing in &PAIRINGS {
        pair(run, &mut table, pairing, &kiln)?;
    }
    run.print(&table);
    Ok(())
}

/// A server and what was seen of it in the cell at hand.
struct Side {
    server: Server,
    directory: PathBuf,
    mode: Mode,
    requests: u64,
    rate: Samples,
    p50_ms: Samples,
}

impl Side {
    fn new(server: Server, directory: PathBuf, mode: Mode) -> Side {
        Side { server, directory, mode, requests: 0, rate: Samples::default(), p50_ms: Samples::default() }
    }

    fn begin(&mut self, requests: u64) {
        (self.requests, self.rate, self.p50_ms) = (requests, Samples::default(), Samples::default());
    }
}

fn pair(run: &mut Run<'_>, table: &mut Table, pairing: &Pairing, kiln: &std::path::Path) -> Result<()> {
    let directories = ["kiln-server", "redis-server"].map(|name| run.scratch.join(name));
    let [kiln_directory, redis_directory] = directories;
    let kiln = Server::kiln(kiln, &kiln_directory, pairing.durability, run.settings.memory_bytes())?;
    let redis = Server::redis(&run.settings.redis_server, &redis_directory, pairing.fsync)?;
    let mut sides = [
        Side::new(kiln, kiln_directory, pairing.kiln_mode),
        Side::new(redis, redis_directory, pairing.redis_mode),
    ];
    for side in &sides {
        run.progress.now(format!("RESP: loading {}", side.server.name()));
        load(&side.server, run.settings.records)?;
    }
    for cell in pairing.cells {
        rounds(run, &mut sides, cell)?;
        let [ours, theirs] = &sides;
        let ratios = ours.rate.ratios_to(&theirs.rate);
        let ratio = ratios.median();
        let clients = if cell.client_threads > 1 { ", two client threads" } else { "" };
        let name = format!("{}, {} in flight{clients}", cell.test.to_uppercase(), cell.pipeline);
        let modes = format!("{} / {}", pairing.durability, pairing.fsync);
        let rates = ours.rate.cells(1000.0, 1).into_iter().chain(theirs.rate.cells(1000.0, 1));
        let p50 = [&ours.p50_ms, &theirs.p50_ms].map(|samples| format!("{:.2}", samples.median()));
        table.row([name, modes].into_iter().chain(rates).chain([format!("{ratio:.2}")]).chain(p50));
        run.goal(cell.what, ratios, cell.wanted);
    }
    for side in sides {
        check(&side.server, run.settings.records)?;
        side.server.stop()?;
    }
    run.scratch.remove("kiln-server")?;
    run.scratch.remove("redis-server")
}

/// Both servers in turn, each with as many requests as fill the time.
fn rounds(run: &mut Run<'_>, sides: &mut [Side; 2], cell: &Cell) -> Result<()> {
    let (records, value_bytes) = (run.settings.records, SIZES.value_bytes);
    let load = |requests| Load {
        test: cell.test,
        connections: CONNECTIONS,
        client_threads: cell.client_threads,
        pipeline: cell.pipeline,
        requests,
        records,
        value_bytes,
    };
    let program = &run.settings.redis_benchmark;
    let seconds = match cell.client_threads {
        1 => run.settings.duration().as_secs_f64(),
        _ => run.settings.duration().as_secs_f64().max(THREADED_SECONDS_MIN),
    };
    for side in sides.iter_mut() {
        // Twice, because the first run of a server pays for its growth.
        let trial_requests = TRIAL_REQUESTS * u64::from(cell.pipeline);
        let trial_load = Load { client_threads: 1, ..load(trial_requests) };
        servers::redis_benchmark(program, &side.server, trial_load)?;
        let trial = servers::redis_benchmark(program, &side.server, trial_load)?;
        let requests = trial.requests_per_s * seconds;
        side.begin((requests as u64).max(TRIAL_REQUESTS));
    }
    for round in 0..run.settings.rounds() {
        for side in sides.iter_mut() {
            run.next(format!("RESP: {} {} -P {}", side.server.name(), cell.test, cell.pipeline))?;
            let before = side.server.usage();
            let seen = servers::redis_benchmark(program, &side.server, load(side.requests))?;
            side.rate.push(seen.requests_per_s);
            side.p50_ms.push(seen.p50_ms);
            let row = row(side, cell, &seen, side.server.usage().since(before));
            run.record(row, round)?;
        }
    }
    Ok(())
}

fn row(side: &Side, cell: &Cell, seen: &Seen, usage: crate::usage::Usage) -> Row {
    Row {
        workload: format!("resp-{}{}", cell.test, if cell.client_threads > 1 { "-two-threads" } else { "" }),
        threads: CONNECTIONS,
        pipeline: cell.pipeline,
        window_ms: (side.server.name() == "kiln").then_some(100),
        ops: side.requests,
        seconds: side.requests as f64 / seen.requests_per_s,
        ops_per_s: seen.requests_per_s,
        p50_us: Some(seen.p50_ms * 1000.0),
        p99_us: Some(seen.p99_ms * 1000.0),
        max_us: Some(seen.max_ms * 1000.0),
        cpu_s: usage.cpu_s,
        rss_bytes: usage.rss_bytes,
        device_bytes: usage.device_bytes,
        disk_bytes: disk_bytes(&side.directory),
        ..Row::new(side.server.name(), side.mode, SIZES)
    }
}

/// The keys that `redis-benchmark` uses.
fn key(index: u64) -> String {
    format!("key:{index:012}")
}

/// Writes all keys, so that every GET finds one.
fn load(server: &Server, records: u64) -> Result<()> {
    let mut connection = server.connect()?;
    let value = vec![b'v'; SIZES.value_bytes];
    for first in (0..records).step_by(LOAD_KEYS as usize) {
        crate::interrupt::check()?;
        let mut command = redis::cmd("MSET");
        for index in first..records.min(first + LOAD_KEYS) {
            command.arg(key(index)).arg(&value);
        }
        command.exec(&mut connection)?;
    }
    check(server, records)
}

/// All keys are there, and a sample of the values has the right size.
fn check(server: &Server, records: u64) -> Result<()> {
    let mut connection = server.connect()?;
    let count: u64 = redis::cmd("DBSIZE").query(&mut connection)?;
    ensure!(count == records, "{} has {count} keys, not {records}", server.name());
    let mut draws = Draws::new(Distribution::Uniform, 0, records)?;
    for _ in 0..1000 {
        let key = key(draws.next().index());
        let value: Option<Vec<u8>> = redis::cmd("GET").arg(&key).query(&mut connection)?;
        let size = value.map(|value| value.len());
        ensure!(
            size == Some(SIZES.value_bytes),
            "{}: the value of {key} has the size {size:?}",
            server.name()
        );
    }
    Ok(())
}
