//! What clients wrote last, so that an overwrite is found that was acknowledged and is not there: the value before it names its key just as well.

use std::collections::HashSet;

use anyhow::{Context, Result, bail};

use super::Data;
use crate::engines::{Engine, Worker};

/// So many of a client's latest writes are read again.
const KEPT: usize = 64;
/// A value's counter names the client that wrote it, and which of its writes it was, both as far as there is room.
const NUMBER_BITS: u32 = 20;
const CLIENT_BITS: u32 = 8;

/// What one client has written.
pub(super) struct Written {
    client: u64,
    count: u64,
    /// Indexes of the keys, each in the place of its number.
    recent: [u64; KEPT],
}

impl Written {
    /// Of the client with this number, which no other one of the same measurement has, while they are fewer than 256.
    pub(super) fn new(client: u64) -> Written {
        Written { client: client % (1 << CLIENT_BITS), count: 0, recent: [0; KEPT] }
    }

    /// Notes the next write, of the key with this index. What its value has to count.
    #[inline]
    pub(super) fn next(&mut self, index: u64) -> u64 {
        self.count += 1;
        self.recent[self.count as usize % KEPT] = index;
        self.counter(self.count)
    }

    /// How many there were.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    fn counter(&self, number: u64) -> u64 {
        (self.client << NUMBER_BITS) | (number % (1 << NUMBER_BITS))
    }

    /// The latest writes, of each key the last one: the key's index and what its value must count.
    fn latest(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut seen = HashSet::new();
        let numbers = (self.count.saturating_sub(KEPT as u64) + 1..=self.count).rev();
        let entries = numbers.map(|number| (self.recent[number as usize % KEPT], self.counter(number)));
        entries.filter(move |(index, _)| seen.insert(*index))
    }
}

impl<E: Engine> Data<'_, E> {
    /// Reads what each client of the last measurement wrote last: its value is there, or one that another of these clients wrote.
    pub(crate) fn check_written(&self) -> Result<()> {
        let all = std::mem::take(&mut *self.written());
        let clients: HashSet<u64> = all.iter().map(|written| written.client).collect();
        let (mut worker, mut buffer) = (self.engine.worker()?, Vec::new());
        for written in &all {
            for (index, expected) in written.latest() {
                let is_there = worker.get(&self.sizes.key(index), &mut buffer)?;
                let found = is_there.then(|| self.sizes.check(&buffer, index)).transpose()?;
                let found =
                    found.with_context(|| format!("key {index} is missing, which was just written"))?;
                let client = found >> NUMBER_BITS;
                let is_others = client != written.client && clients.contains(&client);
                if found != expected && !is_others {
                    bail!(
                        "a lost write: key {index} was written with the counter {expected}, and has {found}"
                    );
                }
            }
        }
        Ok(())
    }
}
