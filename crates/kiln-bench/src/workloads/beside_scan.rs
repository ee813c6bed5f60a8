//! What a long scan costs writers: the same writers alone and beside a thread that reads the whole table, again and again.
//!
//! Writers move amounts between two keys in a transaction, so that all counters always add up to the same, modulo what one can hold. A
//! scan that shows one half of a move adds up to something else: each has to be of one state from its first row to its last.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::{Data, Operation, run};
use crate::engines::{Engine, Worker};
use crate::generate::draws::Distribution;
use crate::generate::{COUNTER_BITS, Key};
use crate::measure::{BesideScan, Measured, make_durable};

/// Which half of the time writers are alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alone {
    First,
    Last,
}

/// Measures `threads` writers for half of the time alone and for half beside a scan: what they did beside it, and what they did alone. Each half is made
/// durable by itself, if it is to be, before anything else is done.
pub(crate) fn run_beside_scan<E: Engine>(
    data: &Data<'_, E>,
    distribution: Distribution,
    threads: usize,
    duration: Duration,
    alone: Alone,
    persists: bool,
) -> Result<Measured> {
    let sum = scan(data, &mut data.engine.worker()?)?;
    let writers = || {
        let mut measured = run(data, Operation::Transfer, distribution, threads, duration / 2)?;
        if persists {
            make_durable(std::slice::from_mut(&mut measured), || data.engine.persist())?;
        }
        anyhow::Ok(measured)
    };
    let alone_before = (alone == Alone::First).then(writers).transpose()?;
    let stop = AtomicBool::new(false);
    let (measured, rows_per_s) = std::thread::scope(|scope| {
        let scanner = scope.spawn(|| scan_until(data, sum, &stop));
        let measured = writers();
        stop.store(true, Ordering::Relaxed);
        let rows_per_s = scanner.join().map_err(|_| anyhow!("the scanning thread panicked"))?;
        anyhow::Ok((measured?, rows_per_s?))
    })?;
    let alone = match alone_before {
        Some(alone) => alone,
        None => writers()?,
    };
    let after = scan(data, &mut data.engine.worker()?)?;
    ensure!(after == sum, "amounts were moved, and the counters add up to {after}, not to {sum} any more");
    let scan = BesideScan { alone_ops_per_s: alone.ops_per_s, rows_per_s };
    Ok(Measured { scan: Some(scan), ..measured })
}

/// Scans until it is to stop, at least once, and each time to the end: how many rows it read in a second.
fn scan_until<E: Engine>(data: &Data<'_, E>, sum: u64, stop: &AtomicBool) -> Result<f64> {
    let mut worker = data.engine.worker()?;
    let (began, mut rows) = (Instant::now(), 0);
    loop {
        let found = scan(data, &mut worker)?;
        ensure!(found == sum, "a scan is not of one state: its counters add up to {found}, not to {sum}");
        rows += data.expected_count();
        if stop.load(Ordering::Relaxed) {
            return Ok(rows as f64 / began.elapsed().as_secs_f64());
        }
    }
}

/// Reads all rows at once, and returns what their counters add up to, modulo what one can hold.
fn scan<'e, E: Engine>(data: &Data<'e, E>, worker: &mut E::Worker<'e>) -> Result<u64> {
    let (mut rows, mut sum, mut last) = (0, 0_u64, Key::new(&[]));
    let mut check = |key: &[u8], value: &[u8]| {
        ensure!(*key > *last, "a row is out of order");
        last = Key::new(key);
        rows += 1;
        sum = sum.wrapping_add(data.sizes.check_row(key, value)?);
        Ok(())
    };
    worker.scan(&[], usize::MAX, &mut check).context("of a scan of all rows")?;
    let expected = data.expected_count();
    ensure!(rows == expected, "{expected} rows should be there and a scan finds {rows}");
    Ok(sum % (1 << COUNTER_BITS))
}
