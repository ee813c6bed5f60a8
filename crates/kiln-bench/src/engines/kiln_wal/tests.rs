//! What is in the log can be recovered from it alone: the store below has nothing of it until there is a checkpoint.

use std::path::Path;
use std::time::Duration;

use kiln::Map;

use super::*;
use crate::generate::Sizes;

const SIZES: Sizes = Sizes { key_bytes: 8, value_bytes: 8 };
/// Of so many keys all threads write some.
const KEYS: u64 = 8;

fn settings(path: &Path) -> Settings {
    Settings {
        path: path.to_owned(),
        mode: Mode::Weak,
        shape: Shape::Map,
        sizes: SIZES,
        records: KEYS,
        cache_bytes: 8 << 20,
        window: Duration::from_millis(2),
        cold: false,
        limited: false,
        checkpoints: true,
    }
}

fn open(path: &Path) -> WalEngine<Map> {
    WalEngine::create(&settings(path)).unwrap()
}

/// Not in the system's temporary directory, which may be a file system in memory.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

/// What a crash at this moment would leave.
fn crashed(path: &Path) -> tempfile::TempDir {
    let image = directory();
    std::fs::create_dir(image.path().join("store")).unwrap();
    for folder in ["", "store"] {
        for entry in std::fs::read_dir(path.join(folder)).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), image.path().join(folder).join(entry.file_name())).unwrap();
            }
        }
    }
    image
}

/// The counters of all keys, of those that are there.
fn counters(engine: &WalEngine<Map>) -> Vec<Option<u64>> {
    let (mut worker, mut value) = (engine.worker().unwrap(), Vec::new());
    let counter = |index| {
        let found = worker.get(&SIZES.key(index), &mut value).unwrap();
        found.then(|| SIZES.check(&value, index).unwrap())
    };
    (0..KEYS).map(counter).collect()
}

fn put(worker: &mut impl Worker, index: u64, counter: u64) {
    let entry = SIZES.entry(index, counter);
    worker.put(&entry.key, &entry.value).unwrap();
}

#[test]
fn what_was_hardened_is_recovered_from_the_log_and_what_was_not_is_lost() {
    let directory = directory();
    let engine = open(directory.path());
    let mut worker = engine.worker().unwrap();
    put(&mut worker, 0, 1);
    worker
        .transact(&mut |access| {
            (1..4).try_for_each(|index| {
                let entry = SIZES.entry(index, 10);
                access.put(&entry.key, &entry.value)
            })
        })
        .unwrap();
    worker.add(&SIZES.key(2), 5).unwrap();
    engine.persist().unwrap();
    let horizon = engine.kiln.db().horizon(Level::LOCAL);
    let image = crashed(directory.path());
    let expected = [Some(1), Some(10), Some(15), Some(10), None, None, None, None];
    assert_eq!(counters(&open(image.path())), expected);
    // It came from nowhere else: without the log nothing is there.
    let image = crashed(directory.path());
    std::fs::remove_file(image.path().join("wal")).unwrap();
    assert_eq!(counters(&open(image.path())), [None; KEYS as usize]);
    assert_eq!(engine.kiln.db().horizon(Level::LOCAL), horizon);
}

#[test]
fn a_transaction_that_gives_up_is_not_in_the_log_and_one_that_reads_takes_no_place() {
    let directory = directory();
    let engine = open(directory.path());
    let mut worker = engine.worker().unwrap();
    put(&mut worker, 0, 1);
    let tail = engine.log.tail();
    worker.transact(&mut |access| access.get(&SIZES.key(0), &mut Vec::new()).map(drop)).unwrap();
    assert_eq!(engine.log.tail(), tail);
    let given_up = worker.transact(&mut |access| {
        access.put(&SIZES.key(0), &SIZES.entry(0, 2).value)?;
        anyhow::bail!("no")
    });
    assert!(given_up.is_err());
    assert!(worker.add(&SIZES.key(5), 1).is_err());
    put(&mut worker, 1, 1);
    engine.persist().unwrap();
    let image = crashed(directory.path());
    assert_eq!(counters(&open(image.path()))[..3], [Some(1), Some(1), None]);
}

#[test]
fn a_group_that_is_torn_ends_the_log_and_what_is_behind_it_is_not_taken_for_the_next() {
    let directory = directory();
    let engine = open(directory.path());
    let mut worker = engine.worker().unwrap();
    for index in 0..3 {
        put(&mut worker, index, 7);
        engine.persist().unwrap();
    }
    for (at, expected) in [(60, 0), (4096 + 8, 1), (2 * 4096 + 41, 2)] {
        let image = crashed(directory.path());
        let mut bytes = std::fs::read(image.path().join("wal")).unwrap();
        bytes[at] ^= 1;
        std::fs::write(image.path().join("wal"), bytes).unwrap();
        let found = counters(&open(image.path()));
        assert_eq!(found.iter().flatten().count(), expected, "{at}");
    }
}

#[test]
fn after_a_checkpoint_the_log_before_it_is_not_replayed() {
    let directory = directory();
    let engine = open(directory.path());
    let mut worker = engine.worker().unwrap();
    put(&mut worker, 0, 1);
    put(&mut worker, 1, 1);
    engine.checkpoint().unwrap();
    let image = crashed(directory.path());
    assert_eq!(counters(&open(image.path()))[..3], [Some(1), Some(1), None]);
    // The first group is overwritten, what was behind it is still there.
    put(&mut worker, 0, 2);
    engine.persist().unwrap();
    let image = crashed(directory.path());
    let again = open(image.path());
    assert_eq!(counters(&again)[..3], [Some(2), Some(1), None]);
    put(&mut again.worker().unwrap(), 2, 3);
    again.close().unwrap();
    assert_eq!(counters(&open(image.path()))[..3], [Some(2), Some(1), Some(3)]);
}

/// Threads overwrite the same few keys without reading them, in pairs and one by one: whoever came last in the store must be last in the log, and a
/// pair must be whole wherever the log ends.
#[test]
fn the_log_has_the_order_of_the_commits_and_whole_transactions() {
    let directory = directory();
    let engine = open(directory.path());
    let mut worker = engine.worker().unwrap();
    (0..KEYS).for_each(|index| put(&mut worker, index, 0));
    engine.persist().unwrap();
    let images = std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let engine = &engine;
            scope.spawn(move || {
                let mut worker = engine.worker().unwrap();
                for turn in 0..5000 {
                    let (counter, pair) = (3 * turn + thread, 2 * (turn % (KEYS / 2)));
                    let entries = [pair, pair + 1].map(|index| SIZES.entry(index, counter));
                    worker.put_all(&entries).unwrap();
                }
            });
        }
        let image = |_| {
            engine.persist().unwrap();
            crashed(directory.path())
        };
        (0..3).map(image).collect::<Vec<_>>()
    });
    engine.persist().unwrap();
    let last = crashed(directory.path());
    assert_eq!(counters(&open(last.path())), counters(&engine));
    for image in images {
        let found = counters(&open(image.path()));
        assert!(found.chunks(2).all(|pair| pair[0].is_some() && pair[0] == pair[1]), "{found:?}");
    }
}

/// For each pair of keys all threads begin at once, and nobody writes it again: the last of them in the store must be the last in the log.
#[test]
fn who_comes_last_in_the_store_comes_last_in_the_log() {
    const PAIRS: u64 = 1500;
    let directory = directory();
    let engine = open(directory.path());
    let barrier = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (engine, barrier) = (&engine, &barrier);
            scope.spawn(move || {
                let mut worker = engine.worker().unwrap();
                for pair in 0..PAIRS {
                    let entries = [2 * pair, 2 * pair + 1].map(|index| SIZES.entry(index, thread));
                    barrier.wait();
                    worker.put_all(&entries).unwrap();
                }
            });
        }
    });
    engine.persist().unwrap();
    let image = crashed(directory.path());
    let again = open(image.path());
    let (mut live, mut recovered) = (engine.worker().unwrap(), again.worker().unwrap());
    let (mut value, mut other) = (Vec::new(), Vec::new());
    for index in 0..2 * PAIRS {
        let key = SIZES.key(index);
        assert!(live.get(&key, &mut value).unwrap() && recovered.get(&key, &mut other).unwrap());
        assert_eq!(value, other, "{index}");
    }
}
