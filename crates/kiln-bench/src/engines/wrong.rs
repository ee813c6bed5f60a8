//! A table that can be told to be wrong, so that tests see whether it is found out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Access, Engine, Hardening, MemoryTable, Worker};
use crate::generate::Entry;

/// How long it takes to persist.
pub(crate) const PERSISTING: Duration = Duration::from_millis(20);

/// How long it goes on in the background.
const BUSY: Duration = Duration::from_millis(700);

/// A table that does what it has to, but for what it is told to do wrong.
#[derive(Default)]
pub(crate) struct Wrong {
    pub(crate) table: MemoryTable,
    /// Drop the second write of each transaction.
    pub(crate) half: bool,
    /// Drop writes of single keys.
    pub(crate) loses: bool,
    /// Leave the last row of each scan out.
    pub(crate) short: bool,
    /// Drop what is added to single keys.
    pub(crate) loses_adds: bool,
    /// Show each row of a scan twice.
    pub(crate) stutters: bool,
    /// Go on for [`BUSY`] after each time that it was asked to persist, in the background.
    pub(crate) lingers: bool,
    /// Whether it does.
    pub(crate) is_busy: Arc<AtomicBool>,
    /// What was asked of it, in order.
    pub(crate) journal: Mutex<Journal>,
}

/// What a [`Wrong`] was asked to do.
#[derive(Default)]
pub(crate) struct Journal {
    /// Transactions since it was last asked to persist.
    transactions: u64,
    /// How many of them each time that it was asked to persist something made durable.
    pub(crate) persisted: Vec<u64>,
    /// How often it had persisted when it was last asked for all rows.
    pub(crate) persisted_before_last_scan: usize,
}

/// One thread's access to a [`Wrong`].
pub(crate) struct WrongWorker<'a>(<MemoryTable as Engine>::Worker<'a>, &'a Wrong);

struct HalfAccess<'a>(&'a mut dyn Access, u32);

impl Access for HalfAccess<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.0.get(key, value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.1 += 1;
        if self.1 == 2 { Ok(()) } else { self.0.put(key, value) }
    }
}

impl Engine for Wrong {
    type Worker<'a> = WrongWorker<'a>;

    fn worker(&self) -> Result<WrongWorker<'_>> {
        Ok(WrongWorker(self.table.worker()?, self))
    }

    fn key_count(&self) -> Result<u64> {
        self.table.key_count()
    }

    /// Takes [`PERSISTING`].
    fn persist(&self) -> Result<()> {
        let mut journal = self.journal.lock().unwrap();
        let transactions = std::mem::take(&mut journal.transactions);
        journal.persisted.push(transactions);
        drop(journal);
        std::thread::sleep(PERSISTING);
        if self.lingers && !self.is_busy.swap(true, Ordering::Relaxed) {
            let is_busy = self.is_busy.clone();
            std::thread::spawn(move || {
                let end = Instant::now() + BUSY;
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                is_busy.store(false, Ordering::Relaxed);
            });
        }
        Ok(())
    }

    fn progress(&self) -> Option<Hardening> {
        let durable = self.journal.lock().unwrap().persisted.len() as u64;
        Some(Hardening { current: durable + 1, durable })
    }
}

impl Worker for WrongWorker<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.0.get(key, value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if self.1.loses { Ok(()) } else { self.0.put(key, value) }
    }

    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        if self.1.loses_adds { Ok(()) } else { self.0.add(key, delta) }
    }

    fn put_durably(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put(key, value)
    }

    fn put_all(&mut self, entries: &[Entry]) -> Result<()> {
        self.0.put_all(entries)
    }

    fn scan(
        &mut self,
        from: &[u8],
        count: usize,
        row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        if count == usize::MAX {
            let mut journal = self.1.journal.lock().unwrap();
            journal.persisted_before_last_scan = journal.persisted.len();
        }
        let (count, stutters) = (count - usize::from(self.1.short && count > 1), self.1.stutters);
        let (mut left, mut shown) = (count, |key: &[u8], value: &[u8]| row(key, value));
        self.0.scan(from, if stutters { count.div_ceil(2) } else { count }, &mut |key, value| {
            for _ in 0..left.min(if stutters { 2 } else { 1 }) {
                left -= 1;
                shown(key, value)?;
            }
            Ok(())
        })
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        let half = self.1.half;
        self.0.transact(&mut |access| {
            if half { body(&mut HalfAccess(access, 0)) } else { body(access) }
        })?;
        self.1.journal.lock().unwrap().transactions += 1;
        Ok(())
    }
}
