//! The models: each a program of two or three threads on a piece of the engine, and what must hold however they interleave and
//! whatever memory shows them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Counter, Ordering as CounterOrdering};
use std::time::Instant;

use loom::model::Builder;

use crate::kernel::clock::Clock;
use crate::kernel::horizon::{Horizon, Lost};
use crate::storage::epoch;
use crate::storage::hash_index::HashIndex;
use crate::storage::log::{Log, Purpose};
use crate::storage::record::{self, Address, Kind, NO_ADDRESS, RecordView, Shape};
use crate::storage::seal::SEAL_BYTES;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread;

/// A model, its name, and how many times a thread may be interrupted; none: as often as there are places for it.
type Model = (&'static str, fn(), Option<usize>);

const MODELS: [Model; 10] = [
    ("what was done under a pin is seen after it", pins_are_seen_whole, None),
    ("and behind a later pin of another kind", commits_are_seen_behind_a_later_pin, Some(3)),
    ("pins hold actions up", pins_hold_actions_up, Some(3)),
    ("nothing joins a closed version", nothing_joins_a_closed_version, Some(3)),
    ("readers keep their memory", readers_keep_their_memory, Some(3)),
    ("what a bucket covers is read whole", what_a_bucket_covers_is_read_whole, Some(3)),
    ("no wake-up is missed", no_wake_up_is_missed, Some(3)),
    ("what became durable is not called lost", durable_is_not_lost, Some(3)),
    ("what is taken ahead is used or padded", what_is_taken_ahead_is_used_or_padded, Some(3)),
    // The longest, so the last.
    ("log records never overlap and are copied out whole", records_are_copied_out_whole, Some(2)),
];

/// Runs all of them, and says how many executions each has.
///
/// # Panics
/// If something is wrong in one.
pub(crate) fn run_all() {
    for (name, model, interruptions) in MODELS {
        let (executions, began) = (Arc::new(Counter::new(0)), Instant::now());
        let mut builder = Builder::new();
        builder.preemption_bound = interruptions;
        builder.max_branches = 100_000;
        let counted = executions.clone();
        builder.check(move || {
            counted.fetch_add(1, CounterOrdering::Relaxed);
            model();
        });
        let (executions, took) = (executions.load(CounterOrdering::Relaxed), began.elapsed().as_secs_f64());
        println!("{name}: {executions} executions in {took:.1} s");
    }
}

/// Who waits for a pin that it knows of sees what was done under it, though that was done without any order.
fn pins_are_seen_whole() {
    let (begun, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let worker = {
        let (begun, done) = (begun.clone(), done.clone());
        thread::spawn(move || {
            let _pin = epoch::pin();
            begun.store(true, Ordering::Relaxed);
            done.store(true, Ordering::Relaxed);
        })
    };
    if begun.load(Ordering::Relaxed) {
        epoch::quiesce();
        assert!(done.load(Ordering::Relaxed), "a pin that was waited for is not over");
    }
    join(worker);
}

/// Who closes a version sees what was committed in it, though the committer's thread is pinned again, for another reason, when the closer looks at it.
fn commits_are_seen_behind_a_later_pin() {
    let (begun, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let worker = {
        let (begun, done) = (begun.clone(), done.clone());
        thread::spawn(move || {
            let pin = epoch::pin_for_commit();
            begun.store(true, Ordering::Relaxed);
            done.store(true, Ordering::Relaxed);
            drop(pin);
            drop(epoch::pin());
        })
    };
    if begun.load(Ordering::Relaxed) {
        epoch::quiesce_commits();
        assert!(done.load(Ordering::Relaxed), "what a commit has done is not there when its version is closed");
    }
    join(worker);
}

/// What was taken out of sight is put to another use only when nobody looks at it any more.
fn pins_hold_actions_up() {
    let shown = Arc::new(AtomicU64::new(0));
    let reused = Arc::new(AtomicBool::new(false));
    let reader = || {
        let (shown, reused) = (shown.clone(), reused.clone());
        thread::spawn(move || {
            let _pin = epoch::pin();
            if shown.load(Ordering::Acquire) == 0 {
                assert!(!reused.load(Ordering::Relaxed), "what a pinned reader looks at was used again");
            }
        })
    };
    let readers = [reader(), reader()];
    shown.store(1, Ordering::Release);
    epoch::quiesce();
    reused.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(join);
}

/// Who joins a version is done before that version counts as closed.
fn nothing_joins_a_closed_version() {
    let clock = Arc::new(Clock::new(1));
    let closed = Arc::new(AtomicU64::new(0));
    let committer = || {
        let (clock, closed) = (clock.clone(), closed.clone());
        thread::spawn(move || {
            let _pin = epoch::pin_for_commit();
            let version = clock.join();
            let newest = closed.load(Ordering::Relaxed);
            assert!(newest < version, "version {version} was joined, and {newest} is closed");
        })
    };
    let committers = [committer(), committer()];
    closed.store(clock.close(), Ordering::Relaxed);
    committers.into_iter().for_each(join);
}

/// The smallest there can be: segments of one block, and a ring with room for one besides what a hardening may need.
const SEGMENT_BYTES: u64 = 4096;
const RING_BYTES: u64 = 4 * SEGMENT_BYTES;

fn log() -> Arc<Log> {
    let begin = 2 * RING_BYTES;
    let log = Log::new(RING_BYTES, SEGMENT_BYTES, begin).unwrap_or_else(|error| panic!("{error}"));
    log.resume(begin, begin);
    log.set_limit(begin + 64 * SEGMENT_BYTES, RING_BYTES);
    Arc::new(log)
}

const SHAPE: Shape = Shape { kind: Kind::Put, object: 7, key_bytes: 8, value_bytes: 8 };

fn fill(log: &Log, at: Address, key: u64) {
    let key = key.to_le_bytes();
    record::write(log.memory(at, SHAPE.bytes()), SHAPE, 1, NO_ADDRESS, &key, (&key, record::NEVER));
}

/// Puts a record where the log has space for it.
fn write(log: &Log, key: u64) -> Address {
    let _pin = epoch::pin();
    let at = log.reserve(SHAPE.bytes(), Purpose::Ordinary, NO_ADDRESS);
    let at = at.unwrap_or_else(|| panic!("there is space"));
    fill(log, at, key);
    at
}

/// Whoever makes the log read-only and waits for all pins finds every record below, whole, where its writer put it.
fn records_are_copied_out_whole() {
    let log = log();
    let writer = |key: u64| {
        let log = log.clone();
        thread::spawn(move || write(&log, key))
    };
    let writers = [writer(1), writer(2)];
    let (start, end) = (log.read_only() + SEAL_BYTES, log.finish_tail());
    let found: Vec<(Address, Option<u64>)> = (start..end.min(start + 2 * SHAPE.bytes()))
        .step_by(SHAPE.bytes() as usize)
        .map(|at| (at, key_at(&log, at)))
        .take_while(|(_, key)| *key != Some(0))
        .collect();
    let places = writers.map(|writer| writer.join().unwrap_or_else(|_| panic!("a thread panicked")));
    assert_ne!(places[0], places[1], "two writers got the same space");
    for (at, key) in (1_u64..).zip(places).map(|(key, at)| (at, key)) {
        let copied = found.iter().find(|(place, _)| *place == at);
        assert!(at > end || copied == Some(&(at, Some(key))), "the record at {at} was copied as {copied:?}");
    }
}

/// Space that a thread has taken ahead it uses only where nobody has made the log read-only; there, whoever does finds its records whole, and padding.
fn what_is_taken_ahead_is_used_or_padded() {
    let log = log();
    let mut ahead = NO_ADDRESS;
    while ahead != log.tail() {
        ahead = write(&log, 1) + 2 * SHAPE.bytes();
    }
    // What the ring held there before.
    log.memory(ahead - SHAPE.bytes(), 8)[0].store(u64::MAX, Ordering::Relaxed);
    let hardener = {
        let log = log.clone();
        thread::spawn(move || {
            let end = log.finish_tail();
            // The last record but one, and what was taken ahead behind it.
            let start = ahead - 2 * SHAPE.bytes();
            (end, (start..ahead).step_by(SHAPE.bytes() as usize).map(|at| key_at(&log, at)).collect::<Vec<_>>())
        })
    };
    let places = [write(&log, 2), write(&log, 3)];
    let (end, found) = hardener.join().unwrap_or_else(|_| panic!("a thread panicked"));
    assert!(places[1] >= ahead, "two records got the same space");
    let used = if places[0] < end { Some(2) } else { Some(0) };
    assert_eq!(found, [Some(1), used], "of {places:?} before {end}");
}

/// The key of a record, if it is there as it was written; 0 where there is none.
fn key_at(log: &Log, at: Address) -> Option<u64> {
    let words = log.memory(at, SHAPE.bytes());
    let Some(record) = RecordView::at(words) else {
        let word = words[0].load(Ordering::Relaxed);
        return (word == 0 || record::padding_bytes(word).is_some()).then_some(0);
    };
    let (mut key, mut value) = (Vec::new(), Vec::new());
    record.key_into(&mut key);
    record.value_into(key.len(), &mut value);
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
    number(&key).filter(|key| number(&value) == Some(*key))
}

/// Log memory that a pinned reader may look at is not written again.
fn readers_keep_their_memory() {
    const OLD: u64 = 5;
    let log = log();
    let at = write(&log, OLD);
    let end = log.finish_tail();
    log.set_hardened(end);
    let reader = {
        let log = log.clone();
        thread::spawn(move || {
            let _pin = epoch::pin();
            if log.view(at).is_some() {
                assert_eq!(key_at(&log, at), Some(OLD), "what a reader looks at was written again");
            }
        })
    };
    log.evict(end);
    // One turn of the ring later.
    fill(&log, at + RING_BYTES, OLD + 1);
    join(reader);
}

/// A record that is written in place under its bucket's lock is seen as it was before or after, by who finds the bucket as it was.
fn what_a_bucket_covers_is_read_whole() {
    const HASH: u64 = 1;
    let index = Arc::new(HashIndex::new(0).unwrap_or_else(|_| panic!("there is memory")));
    let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let writer = {
        let (index, words) = (index.clone(), words.clone());
        thread::spawn(move || {
            let bucket = index.lock(HASH).unwrap_or_else(|| panic!("nobody else locks it"));
            words.iter().for_each(|word| word.store(1, Ordering::Relaxed));
            index.unlock_changed(bucket);
        })
    };
    if let Some((bucket, stamp)) = index.stamp_at_once(HASH) {
        let seen = [&words[0], &words[1]].map(|word| word.load(Ordering::Relaxed));
        assert!(!index.is_as_read(bucket, stamp) || seen[0] == seen[1], "torn: {seen:?}");
    }
    join(writer);
}

/// Whoever waits for a version hears of it, whether it becomes durable or is lost meanwhile.
fn no_wake_up_is_missed() {
    for is_lost in [false, true] {
        let horizon = Arc::new(Horizon::new(0));
        let waiter = {
            let horizon = horizon.clone();
            thread::spawn(move || {
                let seen = horizon.place(1).read();
                if horizon.register_thread(1) {
                    horizon.place(1).wait(seen);
                }
                let outcome = horizon.outcome(1).unwrap_or_else(|| panic!("a wait ended too early"));
                assert_eq!(outcome.is_err(), is_lost);
            })
        };
        let covered = match is_lost {
            true => horizon.fail(Lost::new(0, "as the model wants it".to_owned())),
            false => horizon.publish(1),
        };
        horizon.tell(covered);
        join(waiter);
    }
}

/// A version that becomes durable right before a failure is durable for everybody.
fn durable_is_not_lost() {
    let horizon = Arc::new(Horizon::new(0));
    let asking = {
        let horizon = horizon.clone();
        thread::spawn(move || {
            let outcome = horizon.outcome(1);
            assert!(!matches!(outcome, Some(Err(_))), "a durable version was called lost");
        })
    };
    let covered = horizon.publish(1);
    let lost = horizon.fail(Lost::new(1, "as the model wants it".to_owned()));
    horizon.tell(covered);
    horizon.tell(lost);
    join(asking);
}

fn join<T>(handle: thread::JoinHandle<T>) -> T {
    handle.join().unwrap_or_else(|_| panic!("a thread panicked"))
}
