//! The hash index under growth and concurrency.

use std::collections::HashMap;
use std::sync::mpsc;
use std::time::Duration;

use super::growth::Split;
use super::walk::CURSOR_BITS;
use super::*;
use crate::storage::epoch;
use crate::sync::atomic::{AtomicBool, AtomicUsize};

const KEYS: u64 = if cfg!(miri) { 300 } else { 400_000 };

fn hash(key: u64) -> u64 {
    hash_of(1, 16, &key.to_le_bytes())
}

fn address(key: u64) -> Address {
    (key + 1) * 8
}

fn lock(index: &HashIndex, key: u64) -> Bucket {
    (0..1_000).find_map(|_| index.lock(hash(key))).expect("nobody holds a lock for long")
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
    assert!(index.remove(bucket, hash(key), address(key)), "key {key} is lost");
    index.unlock_changed(bucket);
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

#[test]
fn every_key_is_found_while_the_index_grows() {
    let index = HashIndex::new(0).unwrap();
    let before = index.bucket_count();
    for key in 0..KEYS {
        insert(&index, key);
        assert!(finds(&index, key));
        assert!(finds(&index, key / 2));
    }
    (0..KEYS).for_each(|key| assert!(finds(&index, key), "key {key} is lost"));
    assert!(!finds(&index, KEYS));
    if !cfg!(miri) {
        assert!(index.bucket_count() > 3 * before, "the index did not grow: {}", index.bucket_count());
        let load = KEYS as f64 / index.bucket_count() as f64;
        assert!((2.0..6.0).contains(&load), "{load} keys a bucket");
    }
}

/// Who inserted split for as long as others went on inserting.
#[test]
#[cfg_attr(miri, ignore = "so few keys overflow nothing")]
fn who_inserts_splits_for_a_few_others_and_leaves_the_rest_to_the_keeper() {
    let (index, keys) = (HashIndex::new(0).unwrap(), KEYS / 2);
    for key in 0..keys {
        let bucket = lock(&index, key);
        let _ = index.insert(bucket, hash(key), address(key));
        index.unlock_changed(bucket);
    }
    let before = index.bucket_count();
    index.grow(1);
    let by_one = index.bucket_count() - before;
    assert!((1..200).contains(&by_one), "{by_one} buckets were split by who inserted one key");
    index.catch_up();
    assert!(index.bucket_count() > keys / 8, "{} buckets for {keys} keys", index.bucket_count());
    assert!((0..keys).all(|key| finds(&index, key)));
}

/// All that were due were given up, and chains stayed long as long as nobody inserted.
#[test]
fn splits_stay_due_while_somebody_holds_the_bucket_that_is_next() {
    let index = HashIndex::new(0).unwrap();
    let before = index.bucket_count();
    index.splits_due.store(3, Ordering::Relaxed);
    assert!(index.try_lock(1, LOCK));
    index.catch_up();
    assert_eq!(index.bucket_count(), before + 1);
    index.unlock_unchanged(1);
    index.catch_up();
    assert_eq!(index.bucket_count(), before + 3);
    index.catch_up();
    assert_eq!(index.bucket_count(), before + 3, "nothing is due");
}

/// A transaction of many inserts calls for growth once, at its end; so the index used to stay far too small.
#[test]
fn the_index_grows_with_the_keys_however_seldom_it_is_called_for() {
    let (index, keys) = (HashIndex::new(1 << 20).unwrap(), KEYS / 8);
    for key in 0..keys {
        let bucket = index.lock(hash(key)).unwrap();
        let _ = index.insert(bucket, hash(key), address(key));
        index.unlock_changed(bucket);
        if key % 500 == 499 {
            index.grow(500);
        }
    }
    assert!(index.bucket_count() > keys / 8, "{} buckets for {keys} keys", index.bucket_count());
    assert!((0..keys).all(|key| finds(&index, key)));
}

#[test]
fn an_entry_moves_on_and_goes_away() {
    let index = HashIndex::new(0).unwrap();
    insert(&index, 7);
    let bucket = index.lock(hash(7)).unwrap();
    assert!(index.replace(bucket, hash(7), Candidate::at(address(7)), 80_000));
    assert!(!index.replace(bucket, hash(7), Candidate::at(address(7)), 80_000), "there is one entry a key");
    assert!(index.remove(bucket, hash(7), 80_000));
    assert!(!index.remove(bucket, hash(7), 80_000));
    index.unlock_changed(bucket);
    assert!(!finds(&index, 7));
}

/// A free slot looks like an entry whose tag is zero. A key with such a hash (one of half a million) seemed to be absent to single reads, if a
/// slot before its own had become free.
#[test]
fn a_free_slot_is_no_candidate() {
    let index = HashIndex::new(0).unwrap();
    let (gone, there) = (5 | 3 << index.base_level(), 5);
    let bucket = index.lock(there).unwrap();
    assert_eq!(index.first_candidate(bucket, there), None);
    for (hash, address) in [(gone, 800), (there, 1_600)] {
        assert!(!index.insert(bucket, hash, address));
    }
    assert!(index.remove(bucket, gone, 800));
    assert_eq!(index.first_candidate(bucket, there).map(|candidate| candidate.address), Some(1_600));
}

#[test]
fn a_stamp_holds_until_the_bucket_changes_and_not_while_it_may_lock() {
    let index = HashIndex::new(0).unwrap();
    let (bucket, stamp) = index.stamp(hash(1)).unwrap();
    assert!(index.unchanged(bucket, stamp));
    let locked = index.lock(hash(1)).unwrap();
    assert!(!index.unchanged(bucket, stamp));
    assert!(index.unchanged_under_own_lock(bucket, stamp));
    assert!(index.lock(hash(1)).is_none(), "a lock is exclusive, and waiting for it is bounded");
    assert!(index.stamp(hash(1)).is_none());
    index.unlock_unchanged(locked);
    assert!(index.unchanged(bucket, stamp));
    insert(&index, 1);
    assert!(!index.unchanged(bucket, stamp));
}

#[test]
fn a_stamp_holds_for_who_looks_while_an_entry_leaves_quietly() {
    let index = HashIndex::new(0).unwrap();
    insert(&index, 1);
    let (bucket, stamp) = index.stamp(hash(1)).unwrap();
    let locked = index.lock_quietly(hash(1)).unwrap();
    assert!(index.unchanged(bucket, stamp));
    assert!(index.lock(hash(1)).is_none() && index.lock_quietly(hash(1)).is_none(), "the lock is exclusive");
    assert!(index.stamp(hash(1)).is_none());
    assert!(index.remove(locked, hash(1), address(1)));
    index.unlock_unchanged(locked);
    assert!(index.unchanged(bucket, stamp) && !finds(&index, 1));
    assert_eq!(index.stamp(hash(1)), Some((bucket, stamp)));
    insert(&index, 1);
    assert!(!index.unchanged(bucket, stamp));
}

#[test]
fn readers_miss_nothing_while_others_insert_and_buckets_split() {
    let index = HashIndex::new(0).unwrap();
    let half = KEYS / 2;
    (0..half).for_each(|key| insert(&index, key));
    std::thread::scope(|scope| {
        let inserter = scope.spawn(|| (half..KEYS).for_each(|key| insert(&index, key)));
        let mut key = 0;
        while !inserter.is_finished() {
            assert!(finds(&index, key % half), "key {} was missed", key % half);
            key += 7;
        }
        inserter.join().unwrap();
    });
    (0..KEYS).for_each(|key| assert!(finds(&index, key)));
}

#[test]
fn a_walk_meets_every_entry_exactly_once_while_the_index_grows() {
    let index = HashIndex::new(0).unwrap();
    let old = KEYS / 4;
    (0..old).for_each(|key| insert(&index, key));
    let mut met: HashMap<Address, u32> = HashMap::new();
    let (mut cursor, mut next_key) = (Some(0), old);
    while let Some(at) = cursor {
        let (addresses, next) = index.addresses_at(at);
        addresses.into_iter().for_each(|address| *met.entry(address).or_default() += 1);
        cursor = next;
        for _ in 0..20 {
            if next_key < KEYS {
                insert(&index, next_key);
                next_key += 1;
            }
        }
    }
    for key in 0..old {
        assert_eq!(met.get(&address(key)), Some(&1), "key {key}");
    }
    assert!(met.values().all(|&times| times == 1), "an entry was met twice");
}

#[test]
fn memory_goes_back_when_most_entries_have_gone_and_no_key_is_missed_before_or_after() {
    let index = HashIndex::new(0).unwrap();
    for _ in 0..2 {
        (0..KEYS).for_each(|key| insert(&index, key));
        let before = index.memory_bytes();
        index.shrink();
        assert_eq!(index.memory_bytes(), before, "all is needed");
        let goes = |key: &u64| !key.is_multiple_of(100);
        (0..KEYS).filter(goes).for_each(|key| remove(&index, key));
        index.shrink();
        let after = index.memory_bytes();
        assert!(cfg!(miri) || after < before / 20, "{after} of {before}");
        (0..KEYS).for_each(|key| assert_eq!(finds(&index, key), !goes(&key), "key {key}"));
        (0..KEYS).filter(|key| !goes(key)).for_each(|key| remove(&index, key));
    }
}

/// Also of buckets whose memory was given back, and that are there again.
#[test]
fn no_stamp_holds_any_more_when_its_bucket_has_been_merged() {
    for reserved in [0, KEYS / 2] {
        let index = HashIndex::new(0).unwrap();
        index.reserve(reserved);
        (0..KEYS / 4).for_each(|key| insert(&index, key));
        let mut stamps: Vec<_> = (0..KEYS).map(|key| index.stamp(hash(key)).unwrap()).collect();
        (0..KEYS / 4).for_each(|key| remove(&index, key));
        let before = index.bucket_count();
        stamps.extend((0..KEYS).map(|key| index.stamp(hash(key)).unwrap()));
        for most in [index.bucket_count() / 2, 0] {
            index.shrink_to(most);
            stamps.retain(|(bucket, _)| *bucket >= index.bucket_count());
        }
        assert!(cfg!(miri) || !stamps.is_empty() && before >= 4 * index.bucket_count());
        let none_holds = || assert!(!stamps.iter().any(|(bucket, stamp)| index.unchanged(*bucket, *stamp)));
        none_holds();
        for key in 0..KEYS / 4 {
            insert(&index, key);
            if key % (KEYS / 20) == 0 {
                none_holds();
            }
        }
        assert!(index.bucket_count() >= before || reserved > 0);
        none_holds();
    }
}

/// The half that moves is another bucket's from then on: whoever had read the whole would not see what is written there.
#[test]
fn no_stamp_holds_any_more_when_its_bucket_has_been_split() {
    let index = HashIndex::new(0).unwrap();
    let before = index.bucket_count();
    let stamps: Vec<_> = (0..before).map(|key| index.stamp(hash(key)).unwrap()).collect();
    (0..before).for_each(|_| assert_eq!(index.split_next(&mut index.growth.lock()), Split::Made));
    assert!(!stamps.iter().any(|(bucket, stamp)| index.unchanged(*bucket, *stamp)));
}

/// Stops another thread when it is dropped, also by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The split overwrote the lock of whoever had read the index's state before the merger, and released it afterwards: two held the bucket.
#[test]
fn a_split_waits_for_who_found_its_bucket_before_it_was_merged() {
    let index = HashIndex::new(0).unwrap();
    let split_next = || index.split_next(&mut index.growth.lock());
    assert_eq!(split_next(), Split::Made);
    let last = index.bucket_count() - 1;
    index.shrink_to(0);
    assert_eq!(index.bucket_count(), last);
    assert!(index.try_lock(last, LOCK));
    assert_eq!(split_next(), Split::Held, "a bucket that somebody holds was taken");
    assert_eq!(index.bucket_count(), last);
    index.unlock_unchanged(last);
    assert_eq!(split_next(), Split::Made);
    assert_eq!(index.bucket_count(), last + 1);
    // Nothing is left locked.
    [0, last].into_iter().for_each(|bucket| {
        assert!(index.try_lock(bucket, LOCK));
        index.unlock_unchanged(bucket);
    });
}

/// What others had merged while it waited was given back, too: the lock of who had just found such a bucket was gone, and two could hold it.
#[test]
fn a_bucket_that_somebody_else_merges_meanwhile_keeps_its_lock() {
    const YIELDS: usize = 2_000;
    let index = HashIndex::new(0).unwrap();
    let least = index.bucket_count();
    (0..3 * least).for_each(|_| assert_eq!(index.split_next(&mut index.growth.lock()), Split::Made));
    // In the middle of what is merged behind the wait, where whole pages are.
    let (merged, held) = (3 * least, 5 * least / 2);
    let flag = || AtomicBool::new(false);
    let (is_pinned, waits, is_found, may_lock, has_locked) = (flag(), flag(), flag(), flag(), flag());
    let until = |flag: &AtomicBool| {
        while !flag.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    };
    let wait = || {
        let _pin = epoch::pin();
        is_pinned.store(true, Ordering::SeqCst);
        until(&has_locked);
    };
    let hold = || {
        until(&waits);
        let _pin = epoch::pin();
        is_found.store(true, Ordering::SeqCst);
        until(&may_lock);
        // It was found before it was merged.
        assert!(index.try_lock(held, LOCK));
        has_locked.store(true, Ordering::SeqCst);
        (0..YIELDS).for_each(|_| std::thread::yield_now());
        assert!(!index.try_lock(held, LOCK), "its lock is gone");
        index.unlock_unchanged(held);
    };
    // Whoever shrinks looks at the threads in the order of their numbers, and is to have passed the holder.
    let numbers = [0, 1].map(|_| AtomicUsize::new(usize::MAX));
    std::thread::scope(|scope| {
        for me in [0, 1] {
            let (numbers, wait, hold) = (&numbers, &wait, &hold);
            scope.spawn(move || {
                let number = epoch::thread_index();
                numbers[me].store(number, Ordering::SeqCst);
                let mut other = usize::MAX;
                while other == usize::MAX {
                    other = numbers[1 - me].load(Ordering::SeqCst);
                    std::thread::yield_now();
                }
                if number < other { hold() } else { wait() }
            });
        }
        until(&is_pinned);
        scope.spawn(|| index.shrink_to(merged));
        while index.bucket_count() > merged {
            std::thread::yield_now();
        }
        // By now it waits, most probably.
        (0..YIELDS).for_each(|_| std::thread::yield_now());
        waits.store(true, Ordering::SeqCst);
        until(&is_found);
        if let Some(mut growth) = index.growth.try_lock() {
            (0..least).for_each(|_| assert!(index.merge_last(&mut growth)));
        }
        may_lock.store(true, Ordering::SeqCst);
    });
}

#[test]
fn readers_miss_nothing_while_others_insert_and_remove_and_the_index_shrinks() {
    let index = HashIndex::new(0).unwrap();
    let (stay, wave) = (KEYS / 100, KEYS / 20);
    let stop = AtomicBool::new(false);
    (0..stay).for_each(|key| insert(&index, key));
    std::thread::scope(|scope| {
        let waves = [1, 2].map(|thread| {
            let index = &index;
            scope.spawn(move || {
                for _ in 0..if cfg!(miri) { 2 } else { 8 } {
                    let keys = stay + thread * wave..stay + (thread + 1) * wave;
                    keys.clone().for_each(|key| insert(index, key));
                    keys.clone().for_each(|key| assert!(finds(index, key), "key {key} was missed"));
                    keys.clone().for_each(|key| remove(index, key));
                    keys.for_each(|key| assert!(!finds(index, key), "key {key} came back"));
                }
            })
        });
        let stopper = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                index.shrink();
                index.shrink_to(index.bucket_count() / 2);
            }
        });
        let mut walks = 0;
        while !waves.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let (mut met, mut cursor) = (vec![0; stay as usize], Some(0));
            while let Some(at) = cursor {
                let (addresses, next) = index.addresses_at(at);
                let keys = addresses.iter().map(|at| at / 8 - 1).filter(|key| *key < stay);
                keys.for_each(|key| met[key as usize] += 1);
                cursor = next;
            }
            assert!(met.iter().all(|times| *times == 1), "a walk met some key twice, or not at all");
            (0..stay).for_each(|key| assert!(finds(&index, key), "key {key} was missed"));
            walks += 1;
        }
        assert!(walks > 0);
        drop(stopper);
        waves.into_iter().for_each(|wave| wave.join().unwrap());
    });
    index.shrink();
    assert_eq!(index.entry_count(), stay);
}

#[test]
fn an_impossible_cursor_ends_the_walk() {
    let index = HashIndex::new(0).unwrap();
    (0..KEYS).for_each(|key| insert(&index, key));
    for cursor in [u64::MAX, 1 << 53, 1 << CURSOR_BITS] {
        assert_eq!(index.addresses_at(cursor), (Vec::new(), None));
    }
    assert_eq!(index.addresses_at((1 << CURSOR_BITS) - 1).1, None);
}

/// One of a level from long ago, or made up, had all buckets read that had split off from one since, at once: of a large index thousands.
#[test]
#[cfg_attr(miri, ignore = "so few keys are in a bucket each")]
fn whatever_a_cursor_is_a_step_of_the_walk_is_one_bucket() {
    let index = HashIndex::new(0).unwrap();
    (0..KEYS).for_each(|key| insert(&index, key));
    for cursor in (0..64).chain((6..CURSOR_BITS).map(|bit| 3 << (bit - 1) | 1)) {
        let (addresses, _) = index.addresses_at(cursor);
        assert!(addresses.len() < 64, "{} keys at {cursor}", addresses.len());
    }
}

/// All of them were read again and again until none of them had changed meanwhile.
#[test]
#[cfg_attr(miri, ignore = "so few keys are in a bucket each")]
fn buckets_are_walked_over_though_there_is_always_somebody_who_writes_in_one_of_them() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let (index, old) = (HashIndex::new(0).unwrap(), KEYS / 2);
    (0..old).for_each(|key| insert(&index, key));
    let (level, first) = (BASE_LEVEL_MIN, 1);
    let mut ours: Vec<u64> = (0..old).filter(|key| hash(*key) & ((1 << level) - 1) == first).collect();
    let bucket_of = |key: u64| index.bucket_of(hash(key));
    let hot = [ours[0], *ours.iter().find(|key| bucket_of(**key) != bucket_of(ours[0])).unwrap()];
    let (stop, (tell, told)) = (AtomicBool::new(false), mpsc::channel());
    std::thread::scope(|scope| {
        let stopper = Stop(&stop);
        scope.spawn(|| {
            let _pin = epoch::pin();
            let mut held = lock(&index, hot[0]);
            for turn in 1.. {
                let next = lock(&index, hot[turn % 2]);
                index.unlock_changed(held);
                held = next;
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            index.unlock_changed(held);
        });
        scope.spawn(|| {
            let keys = (old..KEYS).take_while(|_| !stop.load(Ordering::Relaxed));
            keys.for_each(|key| insert(&index, key));
        });
        let walker = scope.spawn(|| {
            let mut entries = Vec::new();
            index.read_family(level, first, &mut entries);
            let _ = tell.send(());
            entries
        });
        let has_ended = told.recv_timeout(PATIENCE).is_ok();
        // Only now; nobody is in its way then, and it comes to an end in any case.
        drop(stopper);
        let keys = walker.join().unwrap().into_iter().map(|entry| address_of(entry) / 8 - 1);
        let mut met: Vec<u64> = keys.filter(|key| *key < old).collect();
        assert!(has_ended, "it goes on for ever");
        ours.sort_unstable();
        met.sort_unstable();
        assert_eq!(met, ours, "a walk met some key twice, or not at all");
    });
}

#[test]
fn chains_are_as_long_as_their_keys_make_them() {
    let index = HashIndex::new(0).unwrap();
    let empty = index.chains();
    assert_eq!((empty.sampled, empty.entries_mean, empty.lines_mean, empty.lines_max), (256, 0.0, 1.0, 1));
    // All of one bucket, which does not grow: 7 in it, and as many in each overflow bucket.
    let ours: Vec<u64> = (0..).filter(|&key| index.bucket_of(hash(key)) == 0).take(15).collect();
    for &key in &ours {
        let _pin = epoch::pin();
        let bucket = lock(&index, key);
        let _ = index.insert(bucket, hash(key), address(key));
        index.unlock_changed(bucket);
    }
    let chains = index.chains();
    assert_eq!((chains.lines_max, chains.entries_mean, chains.lines_mean), (3, 15.0 / 256.0, 258.0 / 256.0));
    let held = lock(&index, ours[0]);
    assert_eq!(index.chains().sampled, 255, "what is being written is not looked at");
    index.unlock_unchanged(held);
    if !cfg!(miri) {
        (0..KEYS).for_each(|key| insert(&index, key));
        let grown = index.chains();
        let entries = index.entry_count() as f64 / index.bucket_count() as f64;
        assert!((513..=1024).contains(&grown.sampled), "{grown:?}");
        assert!((grown.entries_mean / entries - 1.0).abs() < 0.1, "{grown:?}, {entries} in all");
    }
}

/// Clients that are written in JavaScript may have it in a double: some went round for ever, others missed keys.
#[test]
fn a_cursor_is_a_small_number() {
    let index = HashIndex::new(64 << 20).unwrap();
    (0..KEYS).for_each(|key| insert(&index, key));
    let (mut cursor, mut last) = (0, 0);
    while let (_, Some(next)) = index.addresses_at(cursor) {
        (cursor, last) = (next, last.max(next));
    }
    assert!(last > 0 && last < 1 << 53, "{last}");
}

#[test]
fn an_index_with_room_beforehand_finds_every_key_and_hardly_grows() {
    for wanted in [0, 1, 3_000, KEYS / 3, KEYS / 2, KEYS] {
        let index = HashIndex::new(0).unwrap();
        index.reserve(wanted);
        let before = index.bucket_count();
        assert!(before >= wanted / 7 * 2);
        (0..KEYS).for_each(|key| insert(&index, key));
        assert!((0..KEYS).all(|key| finds(&index, key)), "with room for {wanted}");
        assert!(
            wanted < KEYS || index.bucket_count() < before + before / 4,
            "{before}, {}",
            index.bucket_count()
        );
    }
}
