//! The index under several threads. The same tests run under Miri, in small.

use std::ops::{Bound, RangeBounds};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};

use crate::storage::epoch;

use super::tests::{Random, insert_ascending, key, reads_of_all, scan};
use super::{Insertion, LeafBatch, LeafRead, OrderedIndex, Run};

const SCALE: u64 = if cfg!(miri) { 1 } else { 200 };

/// Stops the other threads of a test when it is dropped, also by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Keys that stay are even; keys that come and go are odd.
fn numbered(number: u64) -> Vec<u8> {
    let mut key = [b"equal heads here", number.to_be_bytes().as_slice()].concat();
    if number.is_multiple_of(3) {
        key.drain(..16);
    }
    key
}

#[test]
fn a_scan_sees_every_key_that_stays_in_order_and_once() {
    let index = OrderedIndex::new();
    let count = 60 * SCALE;
    let mut staying: Vec<_> = (0..count).map(|number| numbered(2 * number)).collect();
    staying.iter().for_each(|key| assert!(index.insert(&epoch::pin(), key) != Insertion::Present));
    staying.sort();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        for seed in 0..2 {
            let (index, stop) = (&index, &stop);
            scope.spawn(move || {
                let mut random = Random(seed);
                while !stop.load(Ordering::Relaxed) {
                    // Runs of neighbours, so that whole leaves fill up, split, and become empty.
                    let first = random.below(count);
                    let last = (first + random.below(80)).min(count);
                    for number in first..last {
                        index.insert(&epoch::pin(), &numbered(2 * number + 1));
                    }
                    for number in first..last {
                        index.remove(&epoch::pin(), &numbered(2 * number + 1));
                    }
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                index.reclaim();
                thread::yield_now();
            }
        });
        for round in 0..if cfg!(miri) { 4 } else { 300 } {
            let mut seen = changing_scan(&index, round % 2 == 0);
            if round % 2 == 1 {
                seen.reverse();
            }
            assert!(seen.is_sorted_by(|a, b| a < b), "out of order or twice");
            let mut rest = seen.iter();
            for key in &staying {
                assert!(rest.any(|seen| seen == key), "a key that was there throughout was missed");
            }
            let key = &staying[round as usize % staying.len()];
            assert!(index.contains(&epoch::pin(), key));
        }
    });
    index.verify();
}

/// As recovery does it: each takes the next run of keys.
#[test]
fn runs_that_several_insert_fill_leaves_to_three_quarters_and_lose_nothing_beside_who_removes_others() {
    let (run, runs) = (if cfg!(miri) { 70 } else { 5_000 }, 12);
    let keys: Vec<Vec<u8>> =
        (0..run * runs).map(|number| (2 * number as u64).to_be_bytes().to_vec()).collect();
    let fill = |index: &OrderedIndex| {
        let next = std::sync::atomic::AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while let Some(mine) = keys.chunks(run).nth(next.fetch_add(1, Ordering::Relaxed)) {
                        mine.chunks(64).for_each(|keys| insert_ascending(index, keys, Run::Dense));
                    }
                });
            }
        });
    };
    let index = OrderedIndex::new();
    fill(&index);
    index.verify();
    assert!(scan(&index, true, Bound::Unbounded) == keys);
    let (leaves, filled) = (index.nodes_in_use().0, keys.len().div_ceil(23));
    assert!(leaves <= filled + filled / 10 + 8 * runs, "{leaves} leaves where {filled} have room");
    assert!(leaves >= filled - filled / 10, "{leaves} leaves, and {filled} would have some room left");

    let index = OrderedIndex::new();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stopper = Stop(&stop);
        scope.spawn(|| {
            let mut random = Random(1);
            while !stop.load(Ordering::Relaxed) {
                let first = random.below(keys.len() as u64);
                let odd = |number: u64| (2 * number + 1).to_be_bytes();
                (first..first + 40).for_each(|number| _ = index.insert(&epoch::pin(), &odd(number)));
                (first..first + 40).for_each(|number| _ = index.remove(&epoch::pin(), &odd(number)));
            }
        });
        fill(&index);
        drop(stopper);
    });
    index.verify();
    assert!(scan(&index, true, Bound::Unbounded) == keys);
}

/// Waves of keys come and go, as when rows settle, while memory is given back beneath who reads and who writes.
#[test]
fn memory_that_is_given_back_takes_no_key_along_and_ends_every_read_of_it() {
    let index = OrderedIndex::new();
    let (staying, wave) = (10 * SCALE, if cfg!(miri) { 60 } else { 40_000 });
    let own = |number: u64, thread: u64| numbered(number * 4 + thread);
    (0..staying).for_each(|number| _ = index.insert(&epoch::pin(), &own(number * 20, 0)));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stopper = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                index.give_back_memory();
                index.reclaim();
                thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let seen = changing_scan(&index, true);
                assert!(seen.is_sorted_by(|one, other| one < other), "out of order or twice");
                let there = (0..staying).map(|number| own(number * 20, 0));
                there
                    .for_each(|key| assert!(seen.binary_search(&key).is_ok(), "a key that stays was missed"));
            }
        });
        let waves = [1, 2].map(|thread| {
            let index = &index;
            scope.spawn(move || {
                for round in 0..if cfg!(miri) { 2 } else { 6 } {
                    for number in 0..wave {
                        let key = own(number * 2 + round % 2, thread);
                        assert!(index.insert(&epoch::pin(), &key) != Insertion::Present);
                    }
                    // All leaves with keys of this wave, each of which changes before the wave is gone.
                    let reads = reads_of_all(index);
                    for number in 0..wave {
                        let (pin, key) = (epoch::pin(), own(number * 2 + round % 2, thread));
                        assert!(index.contains(&pin, &key));
                        assert!(index.remove(&pin, &key));
                    }
                    let unchanged = reads.iter().filter(|read| index.validate(read)).count() as u64;
                    assert!(unchanged <= staying + 2 * wave / 10, "{unchanged} of {}", reads.len());
                }
            })
        });
        waves.into_iter().for_each(|wave| wave.join().unwrap());
        drop(stopper);
    });
    index.give_back_memory();
    index.verify();
    assert_eq!(index.len() as u64, staying);
}

/// A scan that pins anew for each batch, as a transaction does.
fn changing_scan(index: &OrderedIndex, forward: bool) -> Vec<Vec<u8>> {
    let (mut batch, mut next) = (LeafBatch::new(), LeafBatch::new());
    let mut keys = Vec::new();
    if forward {
        index.read_forward(&epoch::pin(), Bound::Unbounded, &mut batch);
    } else {
        index.reader(None).read_backward(&epoch::pin(), Bound::Unbounded, &mut batch);
    }
    loop {
        keys.extend(batch.keys().map(<[u8]>::to_vec));
        if !index.read_next(&epoch::pin(), &batch, &mut next) {
            return keys;
        }
        std::mem::swap(&mut batch, &mut next);
    }
}

/// Each thread has its own keys, so that it knows the outcome of each of its operations.
#[test]
fn threads_that_insert_and_remove_their_own_keys_lose_none() {
    let index = OrderedIndex::new();
    let kept: Vec<Vec<u8>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..3u64)
            .map(|thread| {
                let index = &index;
                scope.spawn(move || {
                    let mut random = Random(thread);
                    let mut mine = std::collections::BTreeSet::new();
                    for step in 0..150 * SCALE {
                        let key = numbered(random.below(40 * SCALE) * 3 + thread);
                        let pin = epoch::pin();
                        if random.below(3) > 0 && step < 120 * SCALE {
                            assert_eq!(index.insert(&pin, &key) != Insertion::Present, mine.insert(key));
                        } else {
                            assert_eq!(index.remove(&pin, &key), mine.remove(&key));
                        }
                    }
                    mine
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    index.reclaim();
    index.verify();
    let mut kept = kept;
    kept.sort();
    assert_eq!(scan(&index, true, Bound::Unbounded), kept);
}

/// Reads taken while others insert, remove, split and unlink. Afterwards, when nothing moves any more, each
/// read that still validates must agree with the index about its interval.
#[test]
fn a_read_taken_in_the_midst_of_changes_that_validates_has_no_phantoms() {
    let mut validated = 0;
    for round in 0..if cfg!(miri) { 2 } else { 40u64 } {
        let index = OrderedIndex::new();
        let (key_count, steps) = (200 + 20 * SCALE, 40 * SCALE);
        let reads = thread::scope(|scope| {
            let changing = [0, 1].map(|seed| {
                let index = &index;
                scope.spawn(move || {
                    let mut random = Random(round * 2 + seed);
                    for step in 0..steps {
                        let growing = step / (steps / 4) % 2 == 0;
                        let key = key(random.below(key_count));
                        if (random.below(10) < 8) == growing {
                            index.insert(&epoch::pin(), &key);
                        } else {
                            index.remove(&epoch::pin(), &key);
                        }
                    }
                })
            });
            let mut random = Random(!round);
            let mut reads: Vec<(Vec<u8>, LeafBatch)> = Vec::new();
            while !changing.iter().all(ScopedJoinHandle::is_finished) {
                let (from, mut batch) = (key(random.below(key_count)), LeafBatch::new());
                index.read_forward(&epoch::pin(), Bound::Included(&from), &mut batch);
                reads.retain(|(_, batch)| index.validate(&batch.read()));
                reads.push((from, batch));
            }
            reads
        });
        let all = scan(&index, true, Bound::Unbounded);
        for (from, batch) in reads.iter().filter(|(_, batch)| index.validate(&batch.read())) {
            let fence = match batch.next() {
                Some(Bound::Included(fence)) => Bound::Excluded(fence),
                _ => Bound::Unbounded,
            };
            let covered = (Bound::Included(from.as_slice()), fence);
            let inside = |key: &&Vec<u8>| RangeBounds::<[u8]>::contains(&covered, key.as_slice());
            assert!(all.iter().filter(inside).eq(batch.keys()), "a phantom passed");
            validated += 1;
        }
        index.verify();
    }
    assert!(validated > 0, "no read validated, so nothing was tested");
}

/// The root is replaced while readers are between its word and its version. The key that stays is the highest,
/// so that a reader that took the left half of a split root for the root would miss it.
#[test]
fn readers_follow_a_root_that_changes() {
    let index = OrderedIndex::new();
    let staying = [255; 20];
    index.insert(&epoch::pin(), &staying);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        let reader = scope.spawn(|| {
            let mut found = true;
            while found && !stop.load(Ordering::Relaxed) {
                found = index.contains(&epoch::pin(), &staying);
            }
            found
        });
        for _ in 0..if cfg!(miri) { 3 } else { 20_000 } {
            (0..40u8)
                .for_each(|number| assert!(index.insert(&epoch::pin(), &[number]) != Insertion::Present));
            (0..40u8).for_each(|number| assert!(index.remove(&epoch::pin(), &[number])));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap(), "a key that was there throughout was missed");
    });
    index.verify();
    assert_eq!(index.nodes_in_use(), (1, 0));
}

/// Two threads each read the leaf that the other one inserts into, insert, and validate: never both succeed
/// (write skew by phantoms). Each round uses two leaves of a fresh pair of indexes.
#[test]
fn two_crossing_insertions_never_both_validate() {
    for round in 0..if cfg!(miri) { 8 } else { 3_000u64 } {
        let indexes = [OrderedIndex::new(), OrderedIndex::new()];
        let reads: Vec<LeafRead> = indexes
            .iter()
            .map(|index| {
                let mut batch = LeafBatch::new();
                index.read_forward(&epoch::pin(), Bound::Unbounded, &mut batch);
                batch.read()
            })
            .collect();
        let commit = |mine: usize| {
            indexes[mine].insert(&epoch::pin(), &round.to_be_bytes());
            indexes[1 - mine].validate(&reads[1 - mine])
        };
        let both = thread::scope(|scope| {
            let other = scope.spawn(|| commit(1));
            let own = commit(0);
            own && other.join().unwrap()
        });
        assert!(!both, "two transactions missed each other's insertion");
    }
}
