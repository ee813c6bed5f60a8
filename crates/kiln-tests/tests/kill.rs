//! `kill -9` under load from real Redis clients, again and again on the same database: everything that was acknowledged as safe
//! is there, no transaction is half there, sessions know exactly what survived. At last the server ends in peace.
//!
//! The moment of the kill and all that clients do come from a seed, which is printed; `KILN_SEED` repeats it (the machine's own
//! timing is of course not repeated). See the crate's documentation for the other variables.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use kiln_tests::actors::{
    Actor, Auditor, FastWriter, Mode, Pairs, SafeWriter, Session, Transfers, create_accounts,
};
use kiln_tests::program;
use kiln_tests::server::Server;
use redis::RedisError;

/// Small, so that much of the data is only on disk and the log goes round often.
const SERVER: &[&str] = &["--memory", "64MiB", "--window", "50ms"];

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")),
        Err(_) => default,
    }
}

fn actors() -> Vec<Box<dyn Actor>> {
    let mut actors: Vec<Box<dyn Actor>> = vec![Box::new(Auditor)];
    actors.extend((0..4).map(|id| Box::new(SafeWriter::new(id)) as Box<dyn Actor>));
    actors.extend((0..2).map(|id| Box::new(FastWriter::new(id)) as Box<dyn Actor>));
    for (id, mode) in [(0, Mode::Safe), (1, Mode::Fast)] {
        actors.push(Box::new(Transfers::new(mode)));
        actors.push(Box::new(Pairs::new(id as u64, mode)));
        actors.push(Box::new(Session::new(id, mode)));
    }
    actors
}

/// Lets the actors work until `stop` has returned.
fn work(server: &Server, actors: &mut [Box<dyn Actor>], random: &mut Rng, stop: impl FnOnce()) {
    let stopped = AtomicBool::new(false);
    let connections: Vec<_> = actors
        .iter_mut()
        .map(|actor| {
            let mut connection = server.connect();
            actor.begin(&mut connection).unwrap_or_else(|error| panic!("a client cannot begin: {error}"));
            connection
        })
        .collect();
    std::thread::scope(|scope| {
        let workers: Vec<_> = actors
            .iter_mut()
            .zip(connections)
            .map(|(actor, mut connection)| {
                let (mut random, stopped) = (random.fork(), &stopped);
                scope.spawn(move || {
                    while !stopped.load(Ordering::Acquire) {
                        actor.step(&mut connection, &mut random)?;
                    }
                    Ok::<(), RedisError>(())
                })
            })
            .collect();
        stop();
        stopped.store(true, Ordering::Release);
        for worker in workers {
            match worker.join() {
                Ok(Ok(())) => {}
                // The kill takes the connections with it.
                Ok(Err(error)) if error.is_io_error() || error.is_connection_dropped() => {}
                Ok(Err(error)) => panic!("the server refused: {error}"),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
}

fn check(server: &Server, actors: &mut [Box<dyn Actor>]) {
    for actor in actors {
        actor.check(&mut server.connect()).unwrap_or_else(|error| panic!("a check failed: {error}"));
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_no_transaction_is_half_there_after_kill_9() {
    let seed = number("KILN_SEED", fastrand::u64(..));
    let rounds = number("KILN_ROUNDS", 20);
    let soak = Duration::from_secs(number("KILN_SOAK_SECONDS", 0));
    println!("kill -9 loop: {rounds} rounds or {soak:?}; replay with KILN_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let database = directory.path().join("database");
    let (start, mut actors) = (Instant::now(), actors());

    let mut server = Server::start(&database, SERVER);
    create_accounts(&mut server.connect()).unwrap();
    let mut round = 0;
    while round < rounds || start.elapsed() < soak {
        server = one_round(server, &database, &mut actors, &mut random);
        round += 1;
    }

    work(&server, &mut actors, &mut random, || std::thread::sleep(Duration::from_millis(200)));
    let status = server.terminate();
    assert!(status.success(), "the server was asked to end, and ended with {status}");
    program::check(&database);
    let server = Server::start(&database, SERVER);
    check(&server, &mut actors);
    assert!(server.log().to_lowercase().contains("listening"));
    let acknowledged: u64 = actors.iter().map(|actor| actor.acknowledged()).sum();
    println!("{round} kills, {acknowledged} acknowledged writes, in {:.1?}", start.elapsed());
}

fn one_round(server: Server, database: &Path, actors: &mut [Box<dyn Actor>], random: &mut Rng) -> Server {
    // Early kills matter most: they hit the first hardenings after a recovery.
    let moment = Duration::from_millis(if random.bool() { random.u64(1..60) } else { random.u64(60..900) });
    work(&server, actors, random, || {
        std::thread::sleep(moment);
        server.kill();
    });
    server.assert_killed();
    // What a kill leaves is no damage: at most the torn end of an unfinished write.
    program::check(database);
    let server = Server::start(database, SERVER);
    check(&server, actors);
    server
}
