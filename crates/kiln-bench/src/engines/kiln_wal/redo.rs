//! One thread's side of the log: what a commit writes, the latches that it holds meanwhile, and its place in the log.
//!
//! ```text
//!  record   head | entry | entry | ...                     in words of eight bytes
//!  head     words of the record, head included (62 bits) | 1 committed, 2 void
//!  entry    bytes of the key (32 bits), of the value (32 bits) | key | value     each filled up with zeros to whole words
//! ```

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};

use super::log::Log;
use crate::engines::OnRow;

/// A power of two.
const LATCHES: usize = 1 << 16;
/// Looks at a latch before the processor is left to others: whoever holds it may be without one.
const LOOKS: u32 = 100;

const COMMITTED: u64 = 1;
const VOID: u64 = 2;
const STATE_BITS: u32 = 2;

/// A latch for each of so many parts of all keys.
pub(super) struct Latches(Box<[AtomicBool]>);

impl Latches {
    pub(super) fn new() -> Latches {
        Latches((0..LATCHES).map(|_| AtomicBool::new(false)).collect())
    }

    #[inline]
    fn try_lock(&self, at: u32) -> bool {
        !self.0[at as usize].swap(true, Ordering::Acquire)
    }

    #[inline]
    fn lock(&self, at: u32) {
        let mut looks = 0;
        while !self.try_lock(at) {
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    #[inline]
    fn unlock(&self, at: u32) {
        self.0[at as usize].store(false, Ordering::Release);
    }

    /// Runs something while nobody commits a write. Whoever holds a latch may be waiting for room in the log, which `between` must make.
    pub(super) fn with_all<T>(
        &self,
        between: &mut dyn FnMut() -> Result<()>,
        run: impl FnOnce(&mut dyn FnMut() -> Result<()>) -> Result<T>,
    ) -> Result<T> {
        let mut locked = 0;
        let mut outcome = Ok(());
        while locked < LATCHES as u32 && outcome.is_ok() {
            if self.try_lock(locked) {
                locked += 1;
            } else {
                outcome = between();
                std::thread::yield_now();
            }
        }
        let outcome = outcome.and_then(|()| run(between));
        (0..locked).for_each(|at| self.unlock(at));
        outcome
    }
}

/// The latch of a key.
fn latch_of(key: &[u8]) -> u32 {
    let mut hash = 0_u64;
    each_word(key, |word| hash = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29));
    (hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - LATCHES.ilog2())) as u32
}

#[inline]
fn each_word(bytes: &[u8], mut word: impl FnMut(u64)) {
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        // The chunk has eight bytes.
        word(chunk.first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk)));
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        word(u64::from_le_bytes(last));
    }
}

/// The commit that a thread is making.
pub(super) struct Redo<'a> {
    log: &'a Log,
    latches: &'a Latches,
    /// The latches of all keys that are written.
    held: Vec<u32>,
    is_locked: bool,
    /// The record without its head.
    words: Vec<u64>,
    /// Where the record stands.
    start: Option<u64>,
}

impl<'a> Redo<'a> {
    pub(super) fn new(log: &'a Log, latches: &'a Latches) -> Redo<'a> {
        Redo { log, latches, held: Vec::new(), is_locked: false, words: Vec::new(), start: None }
    }

    /// A key gets a value.
    #[inline]
    pub(super) fn entry(&mut self, key: &[u8], value: &[u8]) {
        if !self.is_locked {
            self.held.push(latch_of(key));
        }
        self.words.push((key.len() as u64) << 32 | value.len() as u64);
        each_word(key, |word| self.words.push(word));
        each_word(value, |word| self.words.push(word));
    }

    /// Takes the latch of the only key that will be written.
    #[inline]
    pub(super) fn latch(&mut self, key: &[u8]) {
        self.held.push(latch_of(key));
        self.lock();
    }

    #[inline]
    fn lock(&mut self) {
        if self.held.len() > 1 {
            self.held.sort_unstable();
            self.held.dedup();
        }
        self.held.iter().for_each(|&at| self.latches.lock(at));
        self.is_locked = true;
    }

    /// The commit may begin: takes the latches, and a place in the log. Nothing to do without entries.
    #[inline]
    pub(super) fn begin(&mut self) -> Result<()> {
        if self.words.is_empty() {
            return Ok(());
        }
        if !self.is_locked {
            self.lock();
        }
        let start = self.log.reserve(1 + self.words.len() as u64)?;
        self.start = Some(start);
        (start + 1..).zip(&self.words).for_each(|(at, &word)| self.log.fill(at, word));
        Ok(())
    }

    /// The commit is done. Returns the end of its record, if it has one.
    #[inline]
    pub(super) fn commit(&mut self) -> Option<u64> {
        self.end(COMMITTED)
    }

    /// There will be no such commit.
    #[inline]
    pub(super) fn abandon(&mut self) {
        self.end(VOID);
    }

    #[inline]
    fn end(&mut self, state: u64) -> Option<u64> {
        let words = 1 + self.words.len() as u64;
        let start = self.start.take();
        if let Some(start) = start {
            self.log.publish(start, words << STATE_BITS | state);
        }
        if self.is_locked {
            self.held.iter().for_each(|&at| self.latches.unlock(at));
            self.is_locked = false;
        }
        self.held.clear();
        self.words.clear();
        start.map(|start| start + words)
    }
}

impl Drop for Redo<'_> {
    fn drop(&mut self) {
        // Who panics in the middle of a commit must not leave the log's writer waiting.
        self.abandon();
    }
}

/// How many words a record has that begins so.
#[inline]
pub(super) fn record_words(head: u64) -> u64 {
    head >> STATE_BITS
}

/// Hands on the entries of all committed records of a group, in their order. Nothing in it is trusted.
pub(super) fn entries(mut group: &[u64], entry: &mut OnRow<'_>) -> Result<()> {
    let mut bytes = Vec::new();
    while let Some(&head) = group.first() {
        let words = record_words(head);
        ensure!(
            (1..=group.len() as u64).contains(&words),
            "a record of {words} words in {} words",
            group.len()
        );
        let (record, rest) = group.split_at(words as usize);
        group = rest;
        match head & ((1 << STATE_BITS) - 1) {
            COMMITTED => record_entries(&record[1..], &mut bytes, entry)?,
            VOID => {}
            state => anyhow::bail!("a record in the state {state}"),
        }
    }
    Ok(())
}

fn record_entries(mut words: &[u64], bytes: &mut Vec<u8>, entry: &mut OnRow<'_>) -> Result<()> {
    while let Some((&lengths, rest)) = words.split_first() {
        let (key_bytes, value_bytes) = ((lengths >> 32) as usize, (lengths & 0xFFFF_FFFF) as usize);
        let (key_words, value_words) = (key_bytes.div_ceil(8), value_bytes.div_ceil(8));
        ensure!(key_words + value_words <= rest.len(), "an entry is longer than its record");
        let (own, others) = rest.split_at(key_words + value_words);
        words = others;
        bytes.clear();
        own.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        let (key, value) = bytes.split_at(8 * key_words);
        entry(&key[..key_bytes], &value[..value_bytes])?;
    }
    Ok(())
}
