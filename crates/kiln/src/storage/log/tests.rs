//! The log's tail, and what threads take of it ahead.

use std::sync::Arc;

use super::*;

const RECORD_BYTES: u64 = 64;

fn log() -> Log {
    let log = Log::new(4 << 20, 1 << 20, 0).expect("memory");
    log.resume(0, 0);
    log.set_limit(64 << 20, 4 << 20);
    log
}

/// Takes space for one record and marks it as padding, as what a commit gives back.
fn take(log: &Log, behind: Address) -> Address {
    let _pin = epoch::pin();
    let at = log.reserve(RECORD_BYTES, Purpose::Ordinary, behind).expect("space");
    log.pad(at, RECORD_BYTES);
    at
}

/// Until the thread has space that it took ahead; where that begins.
fn take_many(log: &Log) -> Address {
    loop {
        let end = take(log, NO_ADDRESS) + RECORD_BYTES;
        if end < log.tail() {
            return end;
        }
    }
}

/// The items between two addresses of which all are padding, and each begins where the one before it ends.
fn are_padding(log: &Log, mut from: Address, end: Address) -> bool {
    while from < end {
        match log.item_at(from) {
            Some(Item::Other(bytes)) => from += bytes,
            _ => return false,
        }
    }
    from == end
}

/// Its magic bytes were taken for a record of some megabytes that expires, and all behind them was never kept warm.
#[test]
fn the_room_of_a_seal_in_memory_is_no_record() {
    let log = Log::new(64 << 20, 32 << 20, 0).expect("memory");
    log.note_seal(0);
    assert!(matches!(log.item_at(0), Some(Item::Other(SEAL_BYTES))));
}

#[test]
fn who_commits_now_and_then_takes_nothing_ahead() {
    let log = log();
    for _ in 0..100 {
        take(&log, NO_ADDRESS);
        let end = log.finish_tail();
        assert_eq!(end, log.hardened() + BLOCK_BYTES as u64);
        assert!(log.chunks.rests_between(0, end).next().is_none());
        log.set_hardened(end);
    }
}

#[test]
fn what_is_taken_ahead_is_an_eighth_of_what_was_taken_at_the_most() {
    let log = log();
    for number in 1..2_000 {
        take(&log, NO_ADDRESS);
        let taken = log.tail() - SEAL_BYTES;
        assert!(taken - number * RECORD_BYTES <= taken / 8, "{taken} bytes for {number} records");
    }
}

#[test]
fn c9_a_record_lies_behind_the_one_that_it_replaces() {
    let log = Arc::new(log());
    let rest = take_many(&log);
    let others = std::thread::spawn({
        let log = log.clone();
        move || take(&log, NO_ADDRESS)
    });
    let others = others.join().expect("it has space");
    assert!(rest < others);
    assert!(take(&log, others) > others);
    assert!(take(&log, NO_ADDRESS) > rest, "the rest of a chunk that was given up is used");
    let end = log.finish_tail();
    assert!(are_padding(&log, SEAL_BYTES, end));
}

#[test]
fn c9_what_a_thread_that_sleeps_or_has_ended_took_ahead_is_padding_once_the_log_is_read_only() {
    let log = Arc::new(log());
    let ended = std::thread::spawn({
        let log = log.clone();
        move || take_many(&log)
    });
    let ended = ended.join().expect("it has space");
    // Of what the ring held there before, nothing must be left.
    log.memory(ended, 8)[0].store(u64::MAX, Ordering::SeqCst);
    let end = log.finish_tail();
    assert!(are_padding(&log, SEAL_BYTES, end));
}

/// By then the memory may hold others' records.
#[test]
fn c9_who_wakes_up_leaves_alone_what_it_took_ahead_long_ago() {
    let log = log();
    let rest = take_many(&log);
    let end = log.finish_tail();
    log.set_hardened(end);
    let words = log.memory(rest, 8);
    words[0].store(u64::MAX, Ordering::SeqCst);
    assert!(take(&log, NO_ADDRESS) > end, "what is read-only is written");
    assert_eq!(words[0].load(Ordering::SeqCst), u64::MAX);
}

/// Who comes late with less than others have freed would have readers look for what was there.
#[test]
fn c9_memory_that_was_freed_stays_free_whoever_comes_late() {
    let log = log();
    let ends = [(); 2].map(|()| {
        take(&log, NO_ADDRESS);
        let end = log.finish_tail();
        log.set_hardened(end);
        end
    });
    log.evict(ends[1]);
    log.evict(ends[0]);
    assert_eq!(log.head(), ends[1]);
    assert!(log.item_at(ends[0] + SEAL_BYTES).is_none());
}

/// An opening after a crash could not write what the crash had taken, on a disk that those before it had filled.
#[test]
fn c5_on_a_full_disk_each_leaves_some_space_to_those_that_make_room_for_it() {
    const PREPARED_BYTES: u64 = 1 << 20;
    let log = log();
    log.set_limit(PREPARED_BYTES, 4 << 20);
    let left = |purpose| {
        let _pin = epoch::pin();
        while log.reserve(RECORD_BYTES, purpose, NO_ADDRESS).is_some() {}
        PREPARED_BYTES - SHIFT_BYTES - log.tail()
    };
    let [ordinary, deletion, sweep, opening] =
        [Purpose::Ordinary, Purpose::Deletion, Purpose::Sweep, Purpose::Opening].map(left);
    assert!(ordinary >= deletion + BLOCK_BYTES as u64, "{ordinary} and {deletion} bytes");
    assert!(deletion >= sweep + SWEEP_BYTES_MIN, "{deletion} and {sweep} bytes");
    assert!(sweep >= OPENING_BYTES && opening < RECORD_BYTES, "{sweep} and {opening} bytes");
}
