//! What a cell does: one operation on uniformly chosen keys, with its result checked.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::engines::{Engine, Worker};
use crate::generate::{self, Indexes, VALUE_BYTES, blank_value, key};
use crate::interrupt;
use crate::measure::{self, Measured};

/// Keys of a transaction while a database is loaded.
const LOAD_KEYS: u64 = 500;
/// Keys whose values are read and checked after each cell that writes.
const SAMPLE_KEYS: u64 = 2000;

/// One operation, repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Read one key and check its value.
    Get,
    /// Write one key.
    Put,
    /// Write one key and wait until it is durable.
    PutDurably,
    /// Write three keys in one transaction.
    PutThree,
    /// Read three keys, count each one up, and write them in one transaction.
    ModifyThree,
}

/// Writes all keys, from as many threads as there are processors, and makes them durable.
pub(crate) fn load(engine: &impl Engine, records: u64) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let load_range = |from: u64, to: u64| -> Result<()> {
        let mut worker = engine.worker();
        let mut values = vec![blank_value(); LOAD_KEYS as usize];
        for first in (from..to).step_by(LOAD_KEYS as usize) {
            interrupt::check()?;
            let indexes = first..to.min(first + LOAD_KEYS);
            for (index, value) in indexes.clone().zip(&mut values) {
                generate::stamp(value, index, 0);
            }
            worker.put_all(indexes.zip(&values).map(|(index, value)| (key(index), &value[..])))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let loaders: Vec<_> = (0..threads)
            .map(|thread| {
                let (from, to) = (records * thread / threads, records * (thread + 1) / threads);
                scope.spawn(move || load_range(from, to))
            })
            .collect();
        loaders.into_iter().try_for_each(|loader| loader.join().expect("a loading thread does not panic"))
    })
    .context("cannot load the database")?;
    engine.persist()?;
    let count = engine.key_count()?;
    ensure!(count == records, "{records} keys were loaded and {count} are there");
    Ok(())
}

/// Loads again and again until the engine is as fast as it will stay, or for 60 seconds.
pub(crate) fn warm_up(engine: &impl Engine, records: u64) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    while !engine.is_warm() && Instant::now() < end {
        // Loading ends with everything durable; so each time all records move on, and are not just updated in place.
        load(engine, records)?;
    }
    Ok(())
}

/// Repeats a workload on `threads` threads for `duration`.
pub(crate) fn run(
    engine: &impl Engine,
    workload: Workload,
    threads: usize,
    duration: Duration,
    records: u64,
) -> Result<Measured> {
    let indexes = |thread: usize| Indexes::new(thread as u64, records);
    let measured = match workload {
        Workload::Get => measure::throughput(threads, duration, |thread| {
            let (mut worker, mut indexes) = (engine.worker(), indexes(thread));
            let mut buffer = Vec::with_capacity(VALUE_BYTES);
            Ok(move || {
                let index = indexes.next();
                ensure!(worker.get(&key(index), &mut buffer)?, "key {index} is missing");
                generate::check(&buffer, index).map(drop)
            })
        })?,
        Workload::Put => measure::throughput(threads, duration, |thread| {
            let (mut worker, mut indexes, mut value) = (engine.worker(), indexes(thread), blank_value());
            let mut counter = 0;
            Ok(move || {
                let index = indexes.next();
                counter += 1;
                generate::stamp(&mut value, index, counter);
                worker.put(&key(index), &value)
            })
        })?,
        Workload::PutDurably => measure::latency(threads, duration, |thread| {
            let (mut worker, mut indexes, mut value) = (engine.worker(), indexes(thread), blank_value());
            Ok(move || {
                let index = indexes.next();
                generate::stamp(&mut value, index, 1);
                worker.put_durably(&key(index), &value)
            })
        })?,
        Workload::PutThree => measure::throughput(threads, duration, |thread| {
            let (mut worker, mut indexes, mut values) =
                (engine.worker(), indexes(thread), [blank_value(); 3]);
            Ok(move || {
                let three = indexes.next_distinct::<3>();
                for (&index, value) in three.iter().zip(&mut values) {
                    generate::stamp(value, index, 0);
                }
                worker.put_all(three.iter().zip(&values).map(|(&index, value)| (key(index), &value[..])))
            })
        })?,
        Workload::ModifyThree => modify_three(engine, threads, duration, records)?,
    };
    if workload != Workload::Get {
        check_sample(engine, records)?;
    }
    Ok(measured)
}

fn modify_three(engine: &impl Engine, threads: usize, duration: Duration, records: u64) -> Result<Measured> {
    measure::throughput(threads, duration, |thread| {
        let (mut worker, mut indexes) = (engine.worker(), Indexes::new(thread as u64, records));
        Ok(move || {
            let three = indexes.next_distinct::<3>();
            worker.modify_all(&three.map(key), |at, value| {
                let counter = generate::check(value, three[at])?;
                value[8..16].copy_from_slice(&(counter + 1).to_le_bytes());
                Ok(())
            })
        })
    })
}

/// Reads all keys, checks them, and returns the sum of their counters.
pub(crate) fn check_all(engine: &impl Engine, records: u64) -> Result<u64> {
    let count = engine.key_count()?;
    ensure!(count == records, "{records} keys should be there and {count} are");
    let (mut worker, mut buffer) = (engine.worker(), Vec::new());
    let mut sum: u64 = 0;
    for index in 0..records {
        ensure!(worker.get(&key(index), &mut buffer)?, "key {index} is missing");
        sum = sum.wrapping_add(generate::check(&buffer, index)?);
    }
    Ok(sum)
}

fn check_sample(engine: &impl Engine, records: u64) -> Result<()> {
    if engine.key_count()? == 0 {
        // The generator keeps nothing.
        return Ok(());
    }
    let (mut worker, mut buffer, mut indexes) = (engine.worker(), Vec::new(), Indexes::new(99, records));
    for _ in 0..SAMPLE_KEYS.min(records) {
        let index = indexes.next();
        ensure!(worker.get(&key(index), &mut buffer)?, "key {index} is missing");
        generate::check(&buffer, index)?;
    }
    Ok(())
}
