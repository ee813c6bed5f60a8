//! No engine at all: what the load costs by itself.

use std::hint::black_box;

use anyhow::Result;

use super::{Engine, Worker};
use crate::generate::{self, Key, Value};

/// Answers every read with the right value and forgets every write.
pub(crate) struct Generator;

/// One thread's access to the [`Generator`].
pub(crate) struct GeneratorWorker {
    value: Value,
}

impl GeneratorWorker {
    fn stamp(&mut self, key: &Key) {
        let mut index = [0; 8];
        index.copy_from_slice(&key[8..]);
        generate::stamp(&mut self.value, u64::from_be_bytes(index), 0);
    }
}

impl Engine for Generator {
    type Worker<'a> = GeneratorWorker;

    fn name(&self) -> &'static str {
        "generator"
    }

    fn worker(&self) -> GeneratorWorker {
        GeneratorWorker { value: generate::blank_value() }
    }

    fn key_count(&self) -> Result<u64> {
        Ok(0)
    }

    fn persist(&self) -> Result<()> {
        Ok(())
    }

    fn is_warm(&self) -> bool {
        true
    }

    fn disk_bytes(&self) -> u64 {
        0
    }
}

impl Worker for GeneratorWorker {
    #[inline]
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        self.stamp(black_box(key));
        value.clear();
        value.extend_from_slice(&self.value);
        Ok(true)
    }

    #[inline]
    fn put(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        black_box((key, value));
        Ok(())
    }

    #[inline]
    fn put_durably(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        self.put(key, value)
    }

    fn put_all<'v>(&mut self, entries: impl Iterator<Item = (Key, &'v [u8])> + Clone) -> Result<()> {
        for (key, value) in entries {
            self.put(&key, value)?;
        }
        Ok(())
    }

    fn modify_all(
        &mut self,
        keys: &[Key],
        mut change: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        for (at, key) in keys.iter().enumerate() {
            self.stamp(black_box(key));
            change(at, &mut self.value)?;
            black_box(&self.value);
        }
        Ok(())
    }
}
