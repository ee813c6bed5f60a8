//! The engines that are measured, behind two small traits.
//!
//! An [`Engine`] is an opened database with one object (a table, a map) in it; a [`Worker`] is one thread's access to it, with
//! whatever buffers it keeps. Workloads are generic over both, so that nothing stands between the timed loop and the engine.
//! A new peer is one file here that implements the two traits and passes the tests in `conformance`.

#[cfg(test)]
mod conformance;
mod generator;
mod kiln;

use anyhow::Result;

pub(crate) use self::generator::Generator;
pub(crate) use self::kiln::{KilnEngine, KilnObject, KilnSettings};
use crate::generate::Key;

/// An opened database with one object in it.
pub(crate) trait Engine: Sync {
    /// One thread's access.
    type Worker<'a>: Worker
    where
        Self: 'a;

    /// The engine's name in results.
    fn name(&self) -> &'static str;

    /// Access for one thread.
    fn worker(&self) -> Self::Worker<'_>;

    /// How many keys there are.
    fn key_count(&self) -> Result<u64>;

    /// Makes everything committed so far durable.
    fn persist(&self) -> Result<()>;

    /// Whether enough was written for the engine to be as fast as it will stay: its memory touched, its files recycled.
    fn is_warm(&self) -> bool;

    /// The size of its files.
    fn disk_bytes(&self) -> u64;
}

/// One thread's access to an engine. Each method is a transaction of its own, acknowledged when it is committed unless said.
pub(crate) trait Worker {
    /// Reads a value into `value`. False if the key is not there.
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool>;

    /// Writes one key.
    fn put(&mut self, key: &Key, value: &[u8]) -> Result<()>;

    /// Writes one key, acknowledged when it is durable.
    fn put_durably(&mut self, key: &Key, value: &[u8]) -> Result<()>;

    /// Writes some keys.
    fn put_all<'v>(&mut self, entries: impl Iterator<Item = (Key, &'v [u8])> + Clone) -> Result<()>;

    /// Reads some keys, changes their values, and writes them. `change` is called with the key's place and its value, perhaps
    /// more than once if the transaction is tried again; an error of it, or a key that is not there, fails the transaction.
    fn modify_all(&mut self, keys: &[Key], change: impl FnMut(usize, &mut [u8]) -> Result<()>) -> Result<()>;
}
