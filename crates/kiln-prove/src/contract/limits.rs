//! The edges: limits and what an error says at them, what opening refuses, and transactions of the largest size.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kiln::device::{Device, FileDevice, Keep, SimulatedDevice};
use kiln::{Error, ErrorKind, Isolation, Kiln, Object, ObjectKind, Options, Transaction};

use crate::crash::reopen;
use crate::support::{Random, manual};
use crate::testing::{PATIENCE, at_test, background, budget, seed, watched};

/// The longest key and value of a database with segments of 64 KiB: an eighth of a segment, and half of one.
const KEY_BYTES_MAX: usize = 8 << 10;
const VALUE_BYTES_MAX: usize = 32 << 10;

fn kind<T>(result: Result<T, Error>) -> ErrorKind {
    match result {
        Ok(_) => panic!("this must fail"),
        Err(error) => {
            assert!(error.to_string().len() > 15, "an error says what to do: {error}");
            error.kind()
        }
    }
}

fn memory_database(options: &Options) -> Kiln {
    options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap()
}

#[test]
fn c1_keys_and_values_of_every_length_up_to_the_limit() {
    let db = memory_database(&manual());
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    let lengths = [0, 1, 7, 8, 9, 255, 4_096, KEY_BYTES_MAX - 1, KEY_BYTES_MAX];
    for key_bytes in lengths {
        for value_bytes in [0, 1, 8, 511, 512, 4_096, VALUE_BYTES_MAX - 1, VALUE_BYTES_MAX] {
            let (key, value) = (vec![b'k'; key_bytes], vec![b'v'; value_bytes]);
            db.put(&table, &key, &value).unwrap().forget();
            db.put(&map, &key, &value).unwrap().safe().unwrap();
            assert!(db.get(&table, &key).unwrap().unwrap() == value);
            assert!(db.get(&map, &key).unwrap().unwrap() == value);
        }
    }
    assert_eq!((table.len(), map.len()), (lengths.len() as u64, lengths.len() as u64));
    let long_key = vec![b'k'; KEY_BYTES_MAX + 1];
    assert_eq!(kind(db.put(&table, &long_key, "value")), ErrorKind::Input);
    assert_eq!(kind(db.put(&map, "key", vec![0; VALUE_BYTES_MAX + 1])), ErrorKind::Input);
    assert_eq!(db.get(&map, "key").unwrap(), None);
    // A transaction lives on after a wrong argument.
    let tx = db.begin().unwrap();
    assert_eq!(kind(tx.put(&map, &long_key, "value")), ErrorKind::Input);
    assert_eq!(kind(tx.get(&table, &long_key)), ErrorKind::Input);
    tx.put(&map, "key", "value").unwrap();
    tx.commit().unwrap().safe().unwrap();
    assert_eq!(db.get(&map, "key").unwrap().unwrap(), b"value");
}

#[test]
fn c1_values_of_sixteen_megabytes_and_keys_of_sixty_four_kilobytes() {
    let disk = SimulatedDevice::new(seed());
    let options = Options::new().background(false).memory(128 << 20);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    let (key, value) = (vec![b'k'; 64 << 10], vec![b'v'; 16 << 20]);
    for round in 0..3_u8 {
        let key = [key.as_slice(), &[]].concat();
        db.put(&table, &key[round.into()..], &value).unwrap().safe().unwrap();
    }
    assert_eq!(kind(db.put(&table, [key.as_slice(), b"k"].concat(), "value")), ErrorKind::Input);
    assert_eq!(kind(db.put(&table, "key", vec![b'v'; (16 << 20) + 1])), ErrorKind::Input);
    drop((table, db));
    let db = options.open_on(Arc::new(disk)).unwrap();
    let table = db.table("table").unwrap();
    for round in 0..3 {
        assert!(db.get(&table, &key[round..]).unwrap().unwrap() == value);
    }
}

#[test]
fn c1_a_transaction_over_a_limit_is_aborted_and_others_go_on() {
    let db = memory_database(&manual().transaction_entries(10).transaction_bytes(2_000).open_transactions(2));
    let map = db.map("map").unwrap();
    let tx = db.begin().unwrap();
    for number in 0..10_u8 {
        tx.put(&map, [number], "value").unwrap();
    }
    // What is written again is no entry more, nor is what it reads of its own.
    tx.put(&map, [7], "another value").unwrap();
    assert_eq!(tx.get(&map, [7]).unwrap().unwrap(), b"another value");
    assert_eq!(kind(tx.put(&map, "one more", "value")), ErrorKind::Limit);
    assert_eq!(kind(tx.get(&map, [1])), ErrorKind::Aborted);
    assert_eq!(kind(tx.commit()), ErrorKind::Aborted);
    assert!(map.is_empty());

    // A row that is read and written is two, and each read of it counts; a leaf that is read again and again is one.
    let table = db.table("table").unwrap();
    let tx = db.begin().unwrap();
    (0..20).for_each(|_| assert_eq!(tx.range::<&[u8]>(&table, ..).count(), 0));
    (0..4_u8).for_each(|key| assert!(!tx.delete(&map, [key]).unwrap()));
    tx.update(&map, [9], |_| Some("value")).unwrap();
    (0..3).for_each(|_| assert_eq!(tx.get(&map, [8]).unwrap(), None));
    assert_eq!(kind(tx.get(&map, [8])), ErrorKind::Limit);
    drop(tx);

    let tx = db.begin().unwrap();
    tx.put(&map, "a", vec![0; 1_500]).unwrap();
    assert_eq!(kind(tx.put(&map, "b", vec![0; 1_500])), ErrorKind::Limit);
    drop(tx);
    let too_many = db.transact(|tx| (0..20_u8).try_for_each(|key| tx.get(&map, [key]).map(drop)));
    assert_eq!(kind(too_many), ErrorKind::Limit);

    let open = (db.begin().unwrap(), db.begin_with(Isolation::Snapshot).unwrap());
    assert_eq!(kind(db.begin()), ErrorKind::Limit);
    db.put(&map, "key", "closures are not counted").unwrap().safe().unwrap();
    drop(open.0);
    db.begin().unwrap().abort();
    assert_eq!(db.statistics().open_transactions, 1);
}

#[test]
fn c1_an_old_transaction_fails_and_a_stuck_one_blocks_nobody() {
    let db = memory_database(&background().transaction_age(Duration::from_millis(20)));
    let table = db.table("table").unwrap();
    let stuck = db.begin().unwrap();
    stuck.put(&table, "key", "stuck").unwrap();
    assert_eq!(stuck.range::<&[u8]>(&table, ..).count(), 1);
    for round in 0..20_u8 {
        db.put(&table, "key", [round]).unwrap().safe().unwrap();
    }
    thread::sleep(Duration::from_millis(25));
    assert_eq!(kind(stuck.get(&table, "key")), ErrorKind::Limit);
    assert_eq!(kind(stuck.commit()), ErrorKind::Aborted);
    assert_eq!(db.get(&table, "key").unwrap().unwrap(), [19]);
}

/// It kept what its snapshot saw until it was dropped, be it never.
#[test]
fn c1_a_transaction_that_has_failed_holds_no_snapshot() {
    let age = Duration::from_millis(20);
    let db = memory_database(&background().transaction_age(age).transaction_entries(10));
    let map = db.map("map").unwrap();
    db.put(&map, "key", "value").unwrap().forget();
    let begin = || db.begin_with(Isolation::Snapshot).unwrap();
    let (old, large) = (begin(), begin());
    assert_eq!(db.statistics().snapshots, 2);
    while let Ok(value) = old.get(&map, "key") {
        assert_eq!(value.unwrap(), b"value");
    }
    assert_eq!(db.statistics().snapshots, 1);
    assert!((0..11_u8).any(|key| large.put(&map, [key], "value").is_err()));
    assert_eq!(db.statistics().snapshots, 0);
    for failed in [old, large] {
        assert_eq!(kind(failed.get(&map, "key")), ErrorKind::Aborted);
        assert_eq!(kind(failed.commit()), ErrorKind::Aborted);
    }
    assert_eq!(db.statistics().snapshots, 0);
}

/// What a commit did for phantoms grew with its insertions times its reads of leaves, with its locks held: it took minutes.
#[test]
fn c1_a_transaction_that_looks_before_each_of_many_insertions_commits_soon() {
    const KEYS: u32 = 20_000;
    watched("c1_a_transaction_that_looks_before_each_of_many", PATIENCE, |_| {
        let db = memory_database(&manual().memory(64 << 20));
        let table = db.table("table").unwrap();
        for first in [0, KEYS] {
            let insert = |tx: &Transaction<'_>| {
                (first..first + KEYS).try_for_each(|number| {
                    let key = (number * 7_919).to_be_bytes();
                    assert!(tx.prefix(&table, key).next().is_none());
                    tx.put(&table, key, "value")
                })
            };
            db.transact(insert).unwrap().forget();
        }
        assert_eq!(table.len(), u64::from(2 * KEYS));
    });
}

/// Transactions as large as they may be, again and again, in little memory: they must find space wherever the log's tail happens to be, however
/// long their values are in comparison with a segment.
#[test]
fn c5b_the_largest_transactions_always_find_space() {
    let name = "c5b_the_largest_transactions_always_find_space";
    watched(name, 3 * PATIENCE, |replay| {
        for round in 0..budget(120) {
            let seed = seed() + round;
            at_test(replay, name, seed);
            let mut random = Random::new(seed);
            let segment_bytes = (16 << 10) << random.below(3);
            let memory = *random.pick(&[0, 150 << 10, 400 << 10, 1 << 20]);
            let options = manual().segment_bytes(segment_bytes).memory(memory);
            let options = options.unhardened_bytes(segment_bytes * (2 + random.below(8) as u64));
            let db = options.open_on(Arc::new(SimulatedDevice::new(seed))).unwrap();
            let map = db.map("map").unwrap();
            // The second is less only where that is below 49 KiB.
            let unhardened_bytes = db.statistics().unhardened_bytes_max as usize;
            let transaction_bytes_max = (unhardened_bytes / 8 * 3).min(unhardened_bytes / 20 * 9 - 4_600);
            let value_bytes_max = segment_bytes as usize / 2;
            for number in 0..12_u8 {
                let parts = 1 + random.below(transaction_bytes_max / value_bytes_max + 3);
                // Each record has a header of 24 bytes, and its key and value are filled up to 8.
                let most = (transaction_bytes_max / parts - 40).min(value_bytes_max);
                let bytes = if random.one_in(2) { most } else { random.below(most) };
                let write = db.transact(|tx| {
                    (0..parts)
                        .try_for_each(|part| tx.put(&map, [number % 4, part as u8], vec![number; bytes]))
                });
                write.unwrap().forget();
                for part in 0..parts {
                    assert!(db.get(&map, [number % 4, part as u8]).unwrap().unwrap() == vec![number; bytes]);
                }
            }
        }
    });
}

/// What each of them leaves free at a segment's end is nearly as long as itself, and nobody had counted on it: what was taken in vain became padding,
/// again and again, until the disk was full.
#[test]
fn c5_transactions_of_values_longer_than_half_a_segment_commit() {
    watched("c5_transactions_of_values_longer_than_half", PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let db = manual().segment_bytes(16 << 10).memory(1 << 20).open_on(Arc::new(disk.clone())).unwrap();
        let map = db.map("map").unwrap();
        for number in 0..10_u8 {
            let put = |tx: &Transaction<'_>| {
                (0..2_u8).try_for_each(|part| tx.put(&map, [number, part], [number; 8 << 10]))
            };
            db.transact(put).unwrap().forget();
        }
        assert_eq!(map.len(), 20);
        // A segment for each, and what is prepared ahead.
        assert!(disk.used_bytes() < 40 * (16 << 10), "{} bytes", disk.used_bytes());
    });
}

#[test]
fn c1_objects_are_checked_by_name_kind_and_database() {
    let db = memory_database(&manual());
    let table = db.table("name").unwrap();
    assert_eq!(kind(db.map("name")), ErrorKind::Input);
    assert_eq!(kind(db.table("")), ErrorKind::Input);
    assert_eq!(kind(db.table(&"x".repeat(256))), ErrorKind::Input);
    db.map(&"x".repeat(255)).unwrap();
    let other = memory_database(&manual());
    let foreign = other.map("name").unwrap();
    assert_eq!(kind(db.put(&foreign, "key", "value")), ErrorKind::Input);
    assert_eq!(kind(db.get(&foreign, "key")), ErrorKind::Input);
    assert_eq!(kind(db.transact(|tx| tx.get(&foreign, "key"))), ErrorKind::Input);
    assert_eq!(kind(db.snapshot().unwrap().get(&foreign, "key")), ErrorKind::Input);
    // A name of one database may be another kind in the other; two handles are one object.
    db.put(&db.table("name").unwrap(), "key", "value").unwrap().forget();
    assert_eq!(db.get(&table, "key").unwrap().unwrap(), b"value");
    let objects: Vec<_> =
        db.objects().into_iter().map(|info| (info.name.len(), info.kind, info.keys)).collect();
    assert_eq!(objects, [(4, ObjectKind::Table, 1), (255, ObjectKind::Map, 0)]);
}

/// Another database, by the same names, must not be written to by accident.
#[test]
fn c2_ranges_and_watches_of_another_database_are_refused() {
    let (db, other) = (memory_database(&manual()), memory_database(&manual()));
    let (own, foreign) = (db.table("table").unwrap(), other.table("table").unwrap());
    db.put(&own, "key", "own").unwrap().forget();
    other.put(&foreign, "key", "foreign").unwrap().forget();
    let tx = db.begin().unwrap();
    assert_eq!(kind(tx.range::<&[u8]>(&foreign, ..).next().transpose()), ErrorKind::Input);
    assert_eq!(kind(tx.prefix(&foreign, "k").next().transpose()), ErrorKind::Input);
    let snapshot = db.snapshot().unwrap();
    assert_eq!(kind(snapshot.range::<&[u8]>(&foreign, ..).next().transpose()), ErrorKind::Input);
    assert_eq!(kind(db.watch(&foreign, "key")), ErrorKind::Input);
}

/// What a watch remembers is a place of the index of one opening: in another index it may be anybody's, or not be there.
#[test]
fn c2_a_watch_of_another_opening_is_refused() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let table = db.table("table").unwrap();
    db.put(&table, "key", "value").unwrap().forget();
    let watch = db.watch(&table, "key").unwrap();
    let larger = memory_database(&manual().memory(64 << 20));
    let far = larger.table("table").unwrap();
    // In as many of its places as it takes for some that the smaller index does not have.
    let far_watches: Vec<_> = (0..64_u8).map(|key| larger.watch(&far, [key]).unwrap()).collect();
    let refuses = |db: &Kiln, watch| {
        let tx = db.begin().unwrap();
        assert_eq!(kind(tx.require(watch)), ErrorKind::Input);
        // A wrong argument does not end it.
        tx.commit().unwrap().forget();
    };
    refuses(&larger, &watch);
    far_watches.iter().for_each(|watch| refuses(&db, watch));
    assert!(db.transact(|tx| tx.require(&watch)).unwrap().forget(), "its own database knows it");
    drop((table, db));
    refuses(&reopen(&disk).unwrap(), &watch);
}

/// A walk over a map goes by the object's number, which another database gives to an object of its own.
#[test]
fn c2_walks_over_a_map_of_another_database_are_refused() {
    let (db, other) = (memory_database(&manual()), memory_database(&manual()));
    let (own, foreign) = (db.table("table").unwrap(), other.map("map").unwrap());
    for rows in 0..2 {
        let snapshot = db.snapshot().unwrap();
        let mut pairs = snapshot.iter(&foreign);
        assert_eq!(kind(pairs.next().transpose()), ErrorKind::Input, "{rows} rows");
        assert!(pairs.next().is_none(), "the walk has ended");
        assert_eq!(kind(db.scan_map(&foreign, 0, 10)), ErrorKind::Input, "{rows} rows");
        assert_eq!(kind(db.scan_map_keys(&foreign, 0, 10)), ErrorKind::Input, "{rows} rows");
        db.put(&own, "key", "own").unwrap().forget();
    }
}

#[test]
fn c8_a_second_opening_is_refused_and_names_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = Kiln::open(&path).unwrap();
    let refused = Kiln::open(&path).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Locked);
    assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
    assert_eq!(kiln::check(&path).unwrap_err().kind(), ErrorKind::Locked);
    let map = db.map("map").unwrap();
    db.put(&map, "key", "value").unwrap().forget();
    db.close().unwrap();
    // A closed database reads on, writes no more, and lets nobody in before it is dropped or after it is closed.
    assert_eq!(db.get(&map, "key").unwrap().unwrap(), b"value");
    assert_eq!(kind(db.put(&map, "key", "later")), ErrorKind::Aborted);
    assert_eq!(kind(db.session("late")), ErrorKind::Aborted);
    drop((map, db));
    let db = Kiln::open(&path).unwrap();
    assert!(db.recovery_report().clean);
    assert_eq!(db.get(&db.map("map").unwrap(), "key").unwrap().unwrap(), b"value");

    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let refused = reopen(&disk).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Locked);
    assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
    drop(db);
    reopen(&disk).unwrap();
}

#[test]
fn c9_opening_refuses_what_is_no_database_and_touches_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    assert_eq!(kind(Options::new().create(false).open(&path)), ErrorKind::NotFound);
    assert!(!path.exists());
    assert_eq!(kind(kiln::check(&path)), ErrorKind::NotFound);
    assert_eq!(kind(Kiln::open(directory.path().join("no").join("parent"))), ErrorKind::NotFound);
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("letter.txt"), "not yours").unwrap();
    assert_eq!(kind(Kiln::open(&path)), ErrorKind::NotFound);
    assert_eq!(std::fs::read_to_string(path.join("letter.txt")).unwrap(), "not yours");
    let file = path.join("letter.txt");
    assert!(matches!(kind(Kiln::open(&file)), ErrorKind::Io | ErrorKind::NotFound));
    // The same on the simulated disk, where an empty directory may be refused, too.
    let disk = SimulatedDevice::new(seed());
    assert_eq!(kind(manual().create(false).open_on(Arc::new(disk.clone()))), ErrorKind::NotFound);
    assert_eq!(disk.list().unwrap().len(), 0);
    disk.set_bytes("stranger", b"not yours");
    assert_eq!(kind(reopen(&disk)), ErrorKind::NotFound);
    assert_eq!(disk.list().unwrap(), ["stranger"]);
}

#[test]
fn c9_bad_options_are_refused_and_segment_bytes_stay_as_created() {
    for bad in [0, 1, 8 << 10, 3 << 20, 2 << 30] {
        let disk = Arc::new(SimulatedDevice::new(seed()));
        assert_eq!(kind(Options::new().segment_bytes(bad).open_on(disk)), ErrorKind::Input);
    }
    let disk = SimulatedDevice::new(seed());
    let zero_window = manual().window(Duration::ZERO);
    assert_eq!(kind(zero_window.open_on(Arc::new(disk.clone()))), ErrorKind::Input);
    drop(reopen(&disk).unwrap());
    let before = disk.bytes("segment-00000000").len();
    let db = Options::new().background(false).segment_bytes(1 << 20).open_on(Arc::new(disk.clone())).unwrap();
    db.put(&db.map("map").unwrap(), "key", "value").unwrap().safe().unwrap();
    drop(db);
    assert_eq!((before, disk.bytes("segment-00000000").len()), (64 << 10, 64 << 10));
}

/// Overwrites a number in both slots of the superblock, checksum included.
fn rewrite_superblock(disk: &SimulatedDevice, place: RangeInclusive<usize>, bytes: &[u8]) {
    let mut file = disk.bytes("superblock");
    for slot in [0, 4096] {
        file[slot + place.start()..=slot + place.end()].copy_from_slice(bytes);
        let checksum = crc32c::crc32c(&file[slot..slot + 124]);
        file[slot + 124..slot + 128].copy_from_slice(&checksum.to_le_bytes());
    }
    disk.set_bytes("superblock", file);
}

#[test]
fn c9_a_newer_format_is_refused_by_version_and_left_alone() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    db.put(&db.map("map").unwrap(), "key", "value").unwrap().safe().unwrap();
    drop(db);
    rewrite_superblock(&disk, 8..=11, &99_u32.to_le_bytes());
    let before = disk.bytes("superblock");
    let refused = reopen(&disk).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Version);
    assert!(refused.to_string().contains("99"), "{refused}");
    assert_eq!(kiln::check_on(Arc::new(disk.clone())).unwrap_err().kind(), ErrorKind::Version);
    assert!(disk.bytes("superblock") == before, "a database of another version was written to");
    // The helper itself is right: the format of this version is accepted.
    rewrite_superblock(&disk, 8..=11, &1_u32.to_le_bytes());
    reopen(&disk).unwrap();
}

/// Whether this process has the file open for direct I/O.
fn is_open_for_direct_io(path: &Path) -> bool {
    const O_DIRECT: u32 = 0o40_000;
    std::fs::read_dir("/proc/self/fd").unwrap().any(|entry| {
        let entry = entry.unwrap();
        let info = Path::new("/proc/self/fdinfo").join(entry.file_name());
        let info = std::fs::read_to_string(info).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("0");
        std::fs::read_link(entry.path()).is_ok_and(|target| target == path)
            && u32::from_str_radix(flags.trim(), 8).unwrap() & O_DIRECT != 0
    })
}

#[test]
fn c8_settled_rows_survive_reopening_through_the_systems_page_cache_or_past_it() {
    const ROWS: u64 = 100;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let row = |number: u64| (number.to_be_bytes(), [number as u8; 300]);
    for (round, through) in [(0, true), (1, false), (2, true)] {
        let db = manual().system_page_cache(through).open(&path).unwrap();
        let table = db.table("table").unwrap();
        for number in 0..=round * ROWS {
            let found = db.get(&table, row(number).0).unwrap();
            assert_eq!(found, (number < round * ROWS).then(|| row(number).1.to_vec()));
        }
        let mut rows = (round * ROWS..(round + 1) * ROWS).map(row);
        db.transact(|tx| rows.try_for_each(|(key, value)| tx.put(&table, key, value))).unwrap().forget();
        db.persist().unwrap();
        assert_eq!(db.settle().unwrap(), ROWS);
        for file in std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()) {
            let name = file.file_name().unwrap().to_str().unwrap();
            let has_records = name == "tree" || name.starts_with("segment-");
            assert!(!through || !has_records || !is_open_for_direct_io(&file), "{name}");
        }
        db.close().unwrap();
        drop((table, db));
        let report = kiln::check(&path).unwrap();
        assert!(report.problems.is_empty(), "{report}");
    }
}

#[test]
fn c8_a_database_on_a_real_directory_survives_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    for round in 0..3_u64 {
        let db = background().open(&path).unwrap();
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        assert_eq!(table.len(), round * 500);
        for number in 0..500 {
            let key = (round * 500 + number).to_be_bytes();
            let commit =
                db.transact(|tx| tx.put(&table, key, [7; 900]).and_then(|()| tx.add(&map, "rows", 1)));
            if number % 100 == 0 {
                commit.unwrap().safe().unwrap()
            } else {
                commit.unwrap().forget()
            };
        }
        assert_eq!(db.get(&map, "rows").unwrap().unwrap(), (table.len() as i64).to_le_bytes());
        db.close().unwrap();
        drop((table, map, db));
        let report = kiln::check(&path).unwrap();
        assert!(report.problems.is_empty(), "{report}");
        let mut dump = Vec::new();
        kiln::dump_log(&path, &mut dump).unwrap();
        assert!(dump.len() > 1_000);
        assert!(FileDevice::open(&path, false).unwrap().list().unwrap().len() >= 2);
    }
}

/// With less a database could be made, and then not be opened after a crash, or have no objects.
#[test]
fn what_the_database_itself_commits_is_within_the_least_limits_that_there_may_be() {
    let disk = SimulatedDevice::new(seed());
    for too_small in [manual().transaction_entries(7), manual().transaction_bytes(1_023)] {
        assert_eq!(kind(too_small.open_on(Arc::new(disk.clone()))), ErrorKind::Input);
    }
    let options = manual().transaction_entries(8).transaction_bytes(1_024);
    let names: Vec<_> = ['a', 'b', 'c'].map(|letter| letter.to_string().repeat(255)).into();
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map_with_time_to_live(&names[0], Duration::from_secs(1)).unwrap();
    db.table(&names[1]).unwrap();
    db.bulk_load(&names[2], [Ok::<_, Error>(("key", "value"))], |_| {}).unwrap();
    db.create_snapshot(&names[0]).unwrap();
    db.drop_snapshot(&names[0]).unwrap();
    db.drop_table(&names[1]).unwrap().safe().unwrap();
    let session = db.session("client").unwrap();
    session.put(&map, "key", "value").unwrap().safe().unwrap();
    drop(session);
    db.forget_session("client").unwrap().safe().unwrap();
    db.put(&map, "lost", "value").unwrap().forget();
    disk.crash_after(disk.steps());
    let left = disk.after_crash(&mut |_| Keep::Lost);
    drop((map, db));
    let db = options.open_on(Arc::new(left.clone())).unwrap();
    assert!(db.recovery_report().lost_versions.is_some());
    db.map(&names[1]).unwrap();
    db.persist().unwrap();
    assert!(db.check().unwrap().is_clean());
}

/// Of the table of pages 128 bytes were written for every 8 KiB of pages that there may ever be; where that was too much the process ended.
#[test]
fn memory_that_nobody_has_used_is_not_taken() {
    let used_bytes = || {
        let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
        sizes.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let open = |bytes| manual().memory(bytes).open_on(Arc::new(SimulatedDevice::new(seed())));
    assert_eq!(kind(open(1 << 46)), ErrorKind::Input);
    let before = used_bytes();
    match open(256 << 30) {
        Ok(db) => {
            let table = db.table("table").unwrap();
            db.put(&table, "key", "value").unwrap().safe().unwrap();
            assert_eq!(db.settle().unwrap(), 1);
            assert_eq!(db.get(&table, "key").unwrap().unwrap(), b"value");
            // Other tests take some, too.
            let used_bytes = used_bytes().saturating_sub(before);
            assert!(used_bytes < 2 << 30, "{used_bytes} bytes");
        }
        // A system that promises no more than it has.
        Err(error) => assert_eq!(error.kind(), ErrorKind::Io),
    }
}
