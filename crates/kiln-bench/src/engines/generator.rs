//! No engine at all: what the load costs by itself.

use std::hint::black_box;

use anyhow::Result;

use super::catalog::{Description, Mode, Shape};
use super::{Access, Engine, Worker};
use crate::generate::{Entry, INDEX_END, SEQUENTIAL, Sizes, stamp};

pub(super) const DESCRIPTION: Description = Description {
    what: "no engine: what the load costs by itself",
    modes: &[Mode::Floor],
    shapes: &[Shape::Table, Shape::Map],
    transactions: true,
    keeps_data: false,
    durable_puts: false,
    past_page_cache: false,
    reopens: false,
    snapshot_scans: false,
    settings: |_| "answers every read with the right value, forgets every write",
    version: || Ok(String::new()),
};

/// Answers every read with the right value and forgets every write.
pub(crate) struct Generator {
    sizes: Sizes,
}

impl Generator {
    /// A generator of values of this size.
    pub(crate) fn new(sizes: Sizes) -> Generator {
        Generator { sizes }
    }
}

/// One thread's access to the [`Generator`].
///
/// What is measured is the load, and not the making up of an answer: that is done once for a buffer, in which the words that name the
/// key are then replaced.
pub(crate) struct GeneratorWorker {
    blank: Vec<u8>,
    scanned: Vec<u8>,
}

impl GeneratorWorker {
    #[inline]
    fn answer(&mut self, key: &[u8], value: &mut Vec<u8>) {
        if value.len() != self.blank.len() {
            value.clear();
            value.extend_from_slice(&self.blank);
        }
        stamp(value, index_of(black_box(key)), 0);
    }
}

/// The index that a key was made from.
#[inline]
pub(super) fn index_of(key: &[u8]) -> u64 {
    let word = |from: usize| {
        key.get(from..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_be_bytes(*bytes))
    };
    if key.len() >= 16 {
        return word(8);
    }
    let mixed = word(0);
    if mixed >> 63 == 1 {
        return mixed & (INDEX_END - 1);
    }
    // The inverse of the factor modulo 2^63, which the missing first bit does not disturb.
    mixed.wrapping_mul(0xF1DE_83E1_9937_733D) & (SEQUENTIAL - 1)
}

impl Engine for Generator {
    type Worker<'a> = GeneratorWorker;

    const MAKES_ROWS_UP: bool = true;

    fn worker(&self) -> Result<GeneratorWorker> {
        Ok(GeneratorWorker { blank: self.sizes.blank_value(), scanned: Vec::new() })
    }

    fn key_count(&self) -> Result<u64> {
        Ok(0)
    }

    fn persist(&self) -> Result<()> {
        Ok(())
    }
}

impl Worker for GeneratorWorker {
    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.answer(key, value);
        Ok(true)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        black_box((key, value));
        Ok(())
    }

    fn put_durably(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Worker::put(self, key, value)
    }

    #[inline]
    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        black_box((key, delta));
        Ok(())
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        black_box(entries);
        Ok(())
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        // All rows are the first one. Where its value is comes from memory, as it does of every row of an engine.
        let mut value = std::mem::take(&mut self.scanned);
        self.answer(from, &mut value);
        let from = black_box(from);
        let outcome = (0..count).try_for_each(|_| row(from, black_box(&value)));
        self.scanned = value;
        outcome
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        body(self)
    }
}

impl Access for GeneratorWorker {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.answer(key, value);
        Ok(true)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        black_box((key, value));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_of_every_key_is_found() {
        for key_bytes in [8, 16, 30] {
            let sizes = Sizes { key_bytes, value_bytes: 8 };
            for index in (0..1000).chain([SEQUENTIAL - 1, SEQUENTIAL, SEQUENTIAL + 5]) {
                assert_eq!(index_of(&sizes.key(index)), index);
            }
        }
    }
}
