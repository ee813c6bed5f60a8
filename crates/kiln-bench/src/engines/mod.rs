//! The engines that are measured, behind a few small traits.
//!
//! An [`Engine`] is an opened database with one keyed object (a table, a map) in it; a [`Worker`] is one thread's access to it,
//! with whatever buffers it keeps; an [`Access`] is a running transaction. Workloads are generic over the engine, so that
//! nothing stands between the timed loop and it. [`catalog`] lists the engines and opens them.
//!
//! A new peer is one file here that implements the traits, one line in the catalog, and a test in `conformance`.

mod berkeleydb;
pub(crate) mod catalog;
mod commits;
#[cfg(test)]
mod conformance;
mod device;
mod faster;
mod fjall;
mod generator;
mod in_place;
mod kiln;
mod kiln_wal;
mod kyotocabinet;
mod leveldb;
mod library;
mod lmdb;
mod memory;
mod raw_reads;
mod redb;
mod rocksdb;
mod sled;
mod sqlite;
mod versions;
#[cfg(test)]
pub(crate) mod wrong;

use anyhow::Result;

pub(crate) use self::generator::Generator;
pub(crate) use self::kiln::{KilnEngine, KilnObject};
#[cfg(test)]
pub(crate) use self::memory::{MemoryMap, MemoryTable};
use crate::generate::{Entry, Key, add_to_first_word};

/// An opened database with one keyed object in it. Dropping it closes it.
pub(crate) trait Engine: Sync {
    /// One thread's access.
    type Worker<'a>: Worker
    where
        Self: 'a;

    /// Whether it makes rows up, and so cannot have them in order.
    const MAKES_ROWS_UP: bool = false;

    /// Access for one thread; called on that thread.
    fn worker(&self) -> Result<Self::Worker<'_>>;

    /// How many keys there are. May read all of them.
    fn key_count(&self) -> Result<u64>;

    /// Makes everything committed so far durable, as cheaply as the engine can. Nothing to do where each commit is durable.
    fn persist(&self) -> Result<()>;

    /// Makes everything committed so far durable, and as cheap to find again as the engine can.
    fn checkpoint(&self) -> Result<()> {
        self.persist()
    }

    /// Whether enough was written for the engine to be as fast as it will stay: its memory touched, its files recycled.
    fn is_warm(&self) -> bool {
        true
    }

    /// How far commits and hardening have come, if the engine tells.
    fn progress(&self) -> Option<Hardening> {
        None
    }

    /// How many hardenings there have been, if the engine counts them.
    fn hardenings(&self) -> Option<u64> {
        None
    }

    /// Closes the database, and says whether that went well.
    fn close(self) -> Result<()>
    where
        Self: Sized,
    {
        Ok(())
    }
}

/// What is done with each row of a scan; an error ends the scan and is returned.
pub(crate) type OnRow<'a, T = ()> = dyn FnMut(&[u8], &[u8]) -> Result<T> + 'a;

/// How far an engine that commits first and hardens later has come, in versions of its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hardening {
    /// Commits are given this version now, or an earlier one.
    pub(crate) current: u64,
    /// Everything of this version or an earlier one is durable.
    pub(crate) durable: u64,
}

/// One thread's access to an engine. Each method is a transaction of its own, acknowledged as the database's mode says: when it
/// is durable, or when it is committed.
pub(crate) trait Worker {
    /// Reads a value into `value`, in place of what was there. False if the key is not there.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Writes one key.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Writes one key, acknowledged when it is durable whatever the mode. Only asked of engines whose description says that they
    /// can.
    fn put_durably(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Adds to the first word of a key's value (little endian), in the way that is fastest for the engine. The key is there.
    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        add_in_transaction(self, key, delta)
    }

    /// Reads some keys and hands their values on, in the order of the keys; an error of `row`, or a missing key, is an error.
    /// Engines that are faster at many keys than at one override it.
    fn get_all(&mut self, keys: &[Key], row: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let mut value = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            anyhow::ensure!(self.get(key, &mut value)?, "a key is missing");
            row(at, &value)?;
        }
        Ok(())
    }

    /// Writes some keys: in one transaction or batch if the engine has them.
    fn put_all(&mut self, entries: &[Entry]) -> Result<()>;

    /// Reads up to `count` rows from the key `from` on, in the order of keys, until there are no more. Only asked of ordered
    /// engines. What is done with a row is known to the compiler, because for an engine in memory a call of it is a part of what a row
    /// costs.
    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()>;

    /// Writes one key as the next operation of a session of this worker, and returns the version with which it becomes durable
    /// (see [`Hardening`]). Only asked of engines that have sessions, as are the two below.
    fn put_in_session(&mut self, _key: &[u8], _value: &[u8]) -> Result<u64> {
        anyhow::bail!("it has no sessions")
    }

    /// Asks for making everything committed so far durable soon, and does not wait.
    fn harden_soon(&self) {}

    /// Waits until a version is durable, and returns how many operations of the session are.
    fn wait_in_session(&mut self, _version: u64) -> Result<u64> {
        anyhow::bail!("it has no sessions")
    }

    /// Runs a transaction and commits it; if it conflicts with others, runs it again. An error of `body` that is not a conflict
    /// takes its writes back and is returned. `body` never reads what it has itself written. Only asked of engines whose
    /// description says that they have transactions.
    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()>;
}

/// Reads and writes inside a transaction. An error of the engine must be handed on by whoever calls.
pub(crate) trait Access {
    /// Tells the engine which keys come next, if it can make use of that.
    fn prefetch(&mut self, _keys: &[Key]) {}

    /// Reads a value into `value`, in place of what was there, so that it stays as it is until the transaction commits. False if
    /// the key is not there.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Writes one key.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
}

/// [`Worker::add`] for engines that have nothing better than a transaction.
fn add_in_transaction<W: Worker + ?Sized>(worker: &mut W, key: &[u8], delta: u64) -> Result<()> {
    let mut value = Vec::new();
    worker.transact(&mut |access| {
        anyhow::ensure!(access.get(key, &mut value)?, "a key is missing");
        add_to_first_word(&mut value, delta)?;
        access.put(key, &value)
    })
}
