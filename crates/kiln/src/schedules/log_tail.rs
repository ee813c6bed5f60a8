//! The log's tail: reservations, read-only shifts, and memory that is used again.

use std::collections::BTreeMap;
use std::sync::Arc;

use shuttle::rand::Rng as _;
use shuttle::sync::{Mutex, MutexGuard};

use super::{quietly, together};
use crate::storage::epoch;
use crate::storage::extent::{Chain, ExtentWriter};
use crate::storage::log::{Log, Purpose};
use crate::storage::record::{self, Address, Kind, NO_ADDRESS, Shape};
use crate::storage::seal::SEAL_BYTES;

const SEGMENT_BYTES: u64 = 64 << 10;
const RING_BYTES: u64 = 2 * SEGMENT_BYTES;
/// What the log keeps for the hardener at the end of the ring.
const KEPT_BYTES: u64 = 8 << 10;

/// The record of one writer: the key says who, the value repeats it.
fn shape(value_words: usize) -> Shape {
    Shape { kind: Kind::Put, object: 7, key_bytes: 8, value_bytes: value_words * 8 }
}

fn fill(log: &Log, at: Address, key: u64, shape: Shape) {
    let value = key.to_le_bytes().repeat(shape.value_bytes / 8);
    record::write(
        log.memory(at, shape.bytes()),
        shape,
        1,
        NO_ADDRESS,
        &key.to_le_bytes(),
        (&value, record::NEVER),
    );
}

/// A log whose tail is so many bytes before the end of a segment, and of the ring.
fn log_before_a_boundary(bytes: u64) -> Log {
    let begin = 7 * SEGMENT_BYTES;
    let log = Log::new(RING_BYTES, SEGMENT_BYTES, begin).unwrap_or_else(|error| panic!("{error}"));
    log.resume(begin, begin);
    log.set_limit(begin + 16 * SEGMENT_BYTES, RING_BYTES);
    pad(&log, SEGMENT_BYTES - SEAL_BYTES - bytes);
    log
}

/// Each writer has so many records first, so that it takes space ahead for those that count.
const RECORDS_BEFORE: u64 = 24;
const SHARED_KEY: u64 = 99 << 32;

/// Concurrent reservations around the end of a segment and of the ring, while the hardener makes the log read-only and
/// copies it out: each record is copied once, whole, and where its writer put it, and one of a key that both write lies behind the one before it.
pub(super) fn records_never_overlap() {
    const HARDENINGS: usize = 2;
    let bytes_max = 2 * RECORDS_BEFORE * shape(2).bytes() + 8 * 40;
    let bytes = 8 * shuttle::rand::thread_rng().gen_range(2..bytes_max / 8);
    let log = Arc::new(quietly(|| log_before_a_boundary(bytes)));
    let written = Arc::new(Mutex::new(BTreeMap::new()));
    let newest_shared = Arc::new(Mutex::new(NO_ADDRESS));
    let writer = |who: u64| -> Box<dyn FnOnce() + Send> {
        let (log, written, newest_shared) = (log.clone(), written.clone(), newest_shared.clone());
        let write = move |key: u64, shape: Shape, behind: Address| {
            let at = log.reserve(shape.bytes(), Purpose::Ordinary, behind);
            let at = at.unwrap_or_else(|| panic!("there is space"));
            fill(&log, at, key, shape);
            // Within the pin, so that the hardener finds it here, too.
            locked(&written).insert(at, (key, shape));
            at
        };
        Box::new(move || {
            quietly(|| {
                let _pin = epoch::pin();
                (0..RECORDS_BEFORE).for_each(|number| {
                    write(who << 32 | 16 | number, shape(2), NO_ADDRESS);
                });
            });
            for number in 0..4 {
                let shape = shape(shuttle::rand::thread_rng().gen_range(1..6));
                let _pin = epoch::pin();
                if shuttle::rand::thread_rng().gen_bool(0.5) {
                    write(who << 32 | number, shape, NO_ADDRESS);
                } else {
                    // As under the key's lock.
                    let mut newest = locked(&newest_shared);
                    let at = write(SHARED_KEY, shape, *newest);
                    assert!(at > *newest, "a record lies before the one that it replaces");
                    *newest = at;
                }
            }
        })
    };
    let hardener: Box<dyn FnOnce() + Send> = {
        let (log, written) = (log.clone(), written.clone());
        Box::new(move || (0..HARDENINGS).for_each(|_| harden(&log, &written)))
    };
    together(vec![writer(1), writer(2), hardener]);
    harden(&log, &written);
    assert!(locked(&written).is_empty(), "a record was not copied out");
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|_| panic!("poisoned"))
}

/// One hardening; what it finds is removed from what was written.
fn harden(log: &Log, written: &Mutex<BTreeMap<Address, (u64, Shape)>>) {
    let mut writer = ExtentWriter::new(1, Chain::default());
    let (mut from, end) = (log.hardened(), log.finish_tail());
    while from < end {
        let to = (from + 1).next_multiple_of(SEGMENT_BYTES).min(end);
        let mut found = Vec::new();
        quietly(|| {
            writer.copy_out(log, from, to, &mut |record| {
                found.push((record.address, record.key.to_vec()));
            });
        });
        let mut written = locked(written);
        for (address, key) in found {
            let (expected, _) = written
                .remove(&address)
                .unwrap_or_else(|| panic!("nobody wrote the record at {address:#x}, or it was copied twice"));
            assert_eq!(key, expected.to_le_bytes(), "the record at {address:#x} is another's");
        }
        from = to;
    }
    log.set_hardened(end);
}

/// A record that a pinned reader looks at stays, although its memory is wanted for new ones.
pub(super) fn readers_keep_their_memory() {
    let begin = 6 * SEGMENT_BYTES;
    let log = quietly(|| {
        let log = Log::new(RING_BYTES, SEGMENT_BYTES, begin).unwrap_or_else(|error| panic!("{error}"));
        log.resume(begin, begin + SEGMENT_BYTES);
        for number in 0..4 {
            fill(&log, begin + SEAL_BYTES + number * shape(2).bytes(), number, shape(2));
        }
        log.set_limit(begin + 16 * SEGMENT_BYTES, RING_BYTES);
        pad(&log, SEGMENT_BYTES - SEAL_BYTES - KEPT_BYTES);
        log
    });
    let log = Arc::new(log);
    let reader: Box<dyn FnOnce() + Send> = {
        let log = log.clone();
        Box::new(move || {
            for number in 0..4 {
                let _pin = epoch::pin();
                let Some(view) = log.view(begin + SEAL_BYTES + number * shape(2).bytes()) else { continue };
                let (mut key, mut value) = (Vec::new(), Vec::new());
                view.key_into(&mut key);
                view.value_into(key.len(), &mut value);
                assert_eq!(key, number.to_le_bytes(), "a record has changed under a reader's pin");
                assert_eq!(
                    value,
                    number.to_le_bytes().repeat(2),
                    "a record has changed under a reader's pin"
                );
            }
        })
    };
    let evicter: Box<dyn FnOnce() + Send> = {
        let log = log.clone();
        Box::new(move || {
            log.evict(begin + SEGMENT_BYTES);
            log.set_limit(begin + 16 * SEGMENT_BYTES, RING_BYTES);
        })
    };
    let writer: Box<dyn FnOnce() + Send> = Box::new(move || {
        // The rest of the ring, and over its end to where the records are.
        while !pad(&log, KEPT_BYTES) {
            shuttle::thread::yield_now();
        }
        for number in 100..103 {
            let _pin = epoch::pin();
            let at = log.reserve(shape(2).bytes(), Purpose::Ordinary, NO_ADDRESS);
            fill(&log, at.unwrap_or_else(|| panic!("there is space")), number, shape(2));
        }
    });
    together(vec![reader, evicter, writer]);
}

/// Takes space that nobody needs; false if there is none.
fn pad(log: &Log, bytes: u64) -> bool {
    let _pin = epoch::pin();
    let at = log.reserve(bytes, Purpose::Ordinary, NO_ADDRESS);
    if let Some(at) = at {
        log.pad(at, bytes);
    }
    at.is_some()
}
