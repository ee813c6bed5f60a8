//! The hash index: entries while buckets split, and the lock that is a bucket's sequence, too.

use std::ops::Range;
use std::sync::Arc;

use super::{quietly, together};
use crate::storage::epoch;
use crate::storage::hash_index::{HashIndex, address_of};
use crate::storage::record::Address;
use crate::sync::atomic::{AtomicU64, Ordering};

/// All belong to bucket 0 at first, which is the first to be split, and to two buckets after that.
fn hash(key: u64) -> u64 {
    key << 8
}

fn address(key: u64) -> Address {
    (key + 1) * 8
}

fn new_index() -> HashIndex {
    HashIndex::new(0).unwrap_or_else(|error| panic!("{error}"))
}

fn insert(index: &HashIndex, key: u64) {
    let pin = epoch::pin();
    let bucket = lock(index, key);
    let overflowed = index.insert(bucket, hash(key), address(key));
    index.unlock_changed(bucket);
    drop(pin);
    if overflowed {
        index.grow(1);
    }
}

fn remove(index: &HashIndex, key: u64) {
    let _pin = epoch::pin();
    let bucket = lock(index, key);
    assert!(index.remove(bucket, hash(key), address(key)), "key {key} was lost");
    index.unlock_changed(bucket);
}

fn lock(index: &HashIndex, key: u64) -> u64 {
    loop {
        if let Some(bucket) = index.lock(hash(key)) {
            return bucket;
        }
    }
}

fn finds(index: &HashIndex, key: u64) -> bool {
    loop {
        let Some((bucket, stamp)) = index.stamp(hash(key)) else { continue };
        let found = index.find(bucket, hash(key), |at| (at == address(key)).then_some(())).is_some();
        if index.unchanged(bucket, stamp) {
            return found;
        }
    }
}

/// A walk over bucket 0 as it was at first, and those that have split off from it, meets these keys.
fn assert_walk_meets_once(index: &HashIndex, keys: Range<u64>) {
    let mut entries = Vec::new();
    index.read_family(index.base_level(), 0, &mut entries);
    keys.for_each(|key| {
        let count = entries.iter().filter(|&&entry| address_of(entry) == address(key)).count();
        assert_eq!(count, 1, "a walk met key {key} {count} times");
    });
}

/// Keys that are there are found, and those that are not are not, while others come, go and split their bucket.
pub(super) fn entries_survive_splits() {
    let index = quietly(|| {
        let index = new_index();
        (0..6).for_each(|key| insert(&index, key));
        index
    });
    let index = Arc::new(index);
    let inserter: Box<dyn FnOnce() + Send> = {
        let index = index.clone();
        // The second of them overflows the bucket.
        Box::new(move || (10..13).for_each(|key| insert(&index, key)))
    };
    let remover: Box<dyn FnOnce() + Send> = {
        let index = index.clone();
        Box::new(move || {
            for key in 4..6 {
                remove(&index, key);
                assert!(!finds(&index, key), "key {key} came back");
            }
        })
    };
    let reader: Box<dyn FnOnce() + Send> = {
        let index = index.clone();
        Box::new(move || {
            (0..4).for_each(|key| assert!(finds(&index, key), "key {key} was missed"));
            assert_walk_meets_once(&index, 0..4);
        })
    };
    together(vec![inserter, remover, reader]);
    quietly(|| {
        for key in 0..20 {
            let there = key < 4 || (10..13).contains(&key);
            assert_eq!(finds(&index, key), there, "key {key}");
        }
    });
}

/// The same while buckets that have split are merged, and split again.
pub(super) fn entries_survive_mergers() {
    let index = Arc::new(quietly(|| {
        let index = new_index();
        (0..8).for_each(|key| insert(&index, key));
        assert!(index.bucket_count() > new_index().bucket_count());
        (4..6).for_each(|key| remove(&index, key));
        index
    }));
    let merger: Box<dyn FnOnce() + Send> = {
        let index = index.clone();
        Box::new(move || index.shrink_to(0))
    };
    let inserter: Box<dyn FnOnce() + Send> = {
        let index = index.clone();
        Box::new(move || (10..13).for_each(|key| insert(&index, key)))
    };
    let reader: Box<dyn FnOnce() + Send> = {
        let index = index.clone();
        Box::new(move || {
            // What was seen of a key that is not there may hold as long as it is not.
            let seen = index.stamp(hash(10));
            let was_there = finds(&index, 10);
            (0..4).for_each(|key| assert!(finds(&index, key), "key {key} was missed"));
            (4..6).for_each(|key| assert!(!finds(&index, key), "key {key} came back"));
            assert_walk_meets_once(&index, 0..4);
            let is_there = finds(&index, 10);
            if seen.is_some_and(|(bucket, stamp)| index.unchanged(bucket, stamp)) {
                assert_eq!(was_there, is_there, "a stamp holds, and yet a key has come");
            }
        })
    };
    together(vec![merger, inserter, reader]);
    quietly(|| {
        for key in 0..20 {
            let there = key < 4 || (6..8).contains(&key) || (10..13).contains(&key);
            assert_eq!(finds(&index, key), there, "key {key}");
        }
    });
}

/// What hangs off a bucket is changed by one at a time, and a reader whose stamp holds has seen one state of it.
pub(super) fn a_bucket_is_read_whole() {
    let index = Arc::new(quietly(new_index));
    let words: Arc<[AtomicU64; 2]> = Arc::default();
    let writer = |times: usize| -> Box<dyn FnOnce() + Send> {
        let (index, words) = (index.clone(), words.clone());
        Box::new(move || {
            for _ in 0..times {
                let bucket = lock(&index, 1);
                let value = words[0].load(Ordering::Relaxed);
                words[0].store(value + 1, Ordering::Relaxed);
                words[1].store(value + 1, Ordering::Relaxed);
                index.unlock_changed(bucket);
            }
        })
    };
    let reader: Box<dyn FnOnce() + Send> = {
        let (index, words) = (index.clone(), words.clone());
        Box::new(move || {
            for _ in 0..3 {
                let Some((bucket, stamp)) = index.stamp(hash(1)) else { continue };
                let seen = [words[0].load(Ordering::Relaxed), words[1].load(Ordering::Relaxed)];
                if index.is_as_read(bucket, stamp) {
                    assert_eq!(seen[0], seen[1], "a stamp holds, and yet what was read is torn");
                }
            }
        })
    };
    together(vec![writer(2), writer(2), reader]);
    assert_eq!(words[0].load(Ordering::Relaxed), 4, "an update under the bucket's lock was lost");
}

/// A key is the first candidate, or behind it, though the entry of another one with its tag is removed as settling does: the bucket's sequence stays as it was.
pub(super) fn a_key_is_seen_beside_one_that_settles() {
    /// They agree in all bits of which a bucket and a tag are made.
    const SETTLES: u64 = 0;
    const STAYS: u64 = 1 << 40;
    let index = Arc::new(quietly(|| {
        let (index, _pin) = (new_index(), epoch::pin());
        for (hash, address) in [(SETTLES, address(0)), (STAYS, address(1))] {
            let bucket = index.lock(hash).unwrap_or_else(|| unreachable!("nobody else locks it"));
            assert!(!index.insert(bucket, hash, address), "there is room");
            index.unlock_changed(bucket);
        }
        index
    }));
    let settler: Box<dyn FnOnce() + Send> = {
        let index = index.clone();
        Box::new(move || {
            let _pin = epoch::pin();
            let Some(bucket) = index.lock_quietly(SETTLES) else { return };
            assert!(index.remove(bucket, SETTLES, address(0)), "nobody else removes it");
            index.unlock_unchanged(bucket);
        })
    };
    let reader: Box<dyn FnOnce() + Send> = {
        let index = index.clone();
        Box::new(move || {
            let _pin = epoch::pin();
            let Some((bucket, stamp)) = index.stamp_at_once(STAYS) else { return };
            let candidate = index.first_candidate(bucket, STAYS).map(|candidate| candidate.address);
            if index.unchanged(bucket, stamp) {
                assert!(
                    candidate.is_some_and(|at| at != 0),
                    "a stamp holds, and yet a key that is there was missed"
                );
            }
        })
    };
    together(vec![settler, reader]);
}
