//! Checkpoints whose checksums hold and whose contents make no sense: they are put aside, told, and the log is read.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::lock;
use crate::database::check_on;
use crate::device::{BLOCK_BYTES, Keep, OpenMode, SimulatedDevice};
use crate::error::ErrorKind;
use crate::kernel::named_snapshot::SNAPSHOTS_OBJECT;
use crate::kernel::recovery::Division;
use crate::kernel::session::SESSIONS_OBJECT;
use crate::storage::checkpoint::{self, Block, Header, Reader, Section, SystemItem, Writer, kind};
use crate::storage::hash_index::{self, HashIndex};
use crate::storage::superblock::SuperblockFile;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread;
use crate::{Kiln, Object, Options, Result};

thread_local! {
    /// How many keys of checkpoints were asked for an entry.
    pub(super) static ASKED: Cell<u64> = const { Cell::new(0) };
}

fn try_open(disk: &SimulatedDevice) -> Result<Kiln> {
    let mut options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
    // However many processors there are; and the log is read, by a thread of its own, while the checkpoint is loaded.
    options.recovery = Division { workers: Some(3), threads_from_bytes: 0, ..Division::default() };
    options.open_on(Arc::new(disk.clone()))
}

fn open(disk: &SimulatedDevice) -> Kiln {
    try_open(disk).expect("it opens, whatever the checkpoint says")
}

/// A database with a map, a table, a session, deleted keys, and a checkpoint.
fn lived() -> SimulatedDevice {
    let disk = SimulatedDevice::new(1);
    let db = open(&disk);
    let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
    for number in 0..50_u32 {
        db.put(&map, number.to_be_bytes(), "value").unwrap().forget();
        db.put(&table, number.to_be_bytes(), "value").unwrap().forget();
    }
    db.session("one").unwrap().transact(|tx| tx.put(&map, "key", "value")).unwrap().forget();
    db.persist().unwrap();
    // Without a sweep behind it the tombstone is still in the index.
    db.delete(&table, 7_u32.to_be_bytes()).unwrap().safe().unwrap();
    assert!(db.checkpoint().unwrap());
    db.put(&map, "later", "value").unwrap().forget();
    db.close().unwrap();
    disk
}

/// A checkpoint taken apart.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) header: Header,
    system: Vec<(u32, u64, Vec<u8>, Vec<u8>)>,
    pub(crate) buckets: Vec<(u64, Vec<u64>)>,
    keys: Vec<(u32, Vec<u8>)>,
    /// What belongs to the system's section, and comes behind the keys.
    late: Vec<(u32, u64, Vec<u8>, Vec<u8>)>,
}

pub(crate) fn take_apart(disk: &SimulatedDevice) -> Parts {
    let superblock = SuperblockFile::open(disk, OpenMode::Read).unwrap().current().clone();
    let mut reader = Reader::open(disk, superblock.database, superblock.checkpoint).unwrap().unwrap();
    let header = reader.header.clone();
    let mut parts =
        Parts { header, system: Vec::new(), buckets: Vec::new(), keys: Vec::new(), late: Vec::new() };
    for section in Section::ALL {
        let mut block = Block::default();
        while reader.read(section, &mut block).unwrap() {
            let mut items = block.check(&reader.name, section).unwrap();
            match section {
                Section::System => {
                    while let Some(item) = items.next_system().unwrap() {
                        parts.system.push((item.kind, item.number, item.key.to_vec(), item.value.to_vec()));
                    }
                }
                Section::Entries => {
                    while let Some((low_bits, entries)) = items.next_bucket().unwrap() {
                        parts.buckets.push((low_bits, entries.collect()));
                    }
                }
                Section::Keys => {
                    while let Some((object, key)) = items.next_key().unwrap() {
                        parts.keys.push((object, key.to_vec()));
                    }
                }
            }
        }
    }
    parts
}

/// The same disk with this checkpoint instead.
pub(crate) fn with(disk: &SimulatedDevice, parts: &Parts) -> SimulatedDevice {
    let disk = disk.after_crash(&mut |_| Keep::Kept);
    let mut superblock = SuperblockFile::open(&disk, OpenMode::ReadWrite).unwrap();
    let mut writer = Writer::create(&disk, parts.header.database, parts.header.number).unwrap();
    let add_system = |writer: &mut Writer<'_>, items: &[(u32, u64, Vec<u8>, Vec<u8>)]| {
        for (kind, number, key, value) in items {
            writer.add_system(SystemItem { kind: *kind, number: *number, key, value }).unwrap();
        }
    };
    add_system(&mut writer, &parts.system);
    parts.buckets.iter().for_each(|(low_bits, entries)| writer.add_entries(*low_bits, entries).unwrap());
    parts.keys.iter().for_each(|(object, key)| writer.add_key(*object, key).unwrap());
    add_system(&mut writer, &parts.late);
    let (named, _) = writer.finish(parts.header.clone()).unwrap();
    superblock.update(|superblock| superblock.checkpoint = named).unwrap();
    disk
}

/// Half of the buckets of a level were split while the other half was filled, and all of these were split, too, by one thread while opening waited.
#[test]
fn the_index_of_a_checkpoint_has_its_size_from_the_beginning() {
    let disk = SimulatedDevice::new(1);
    let db = open(&disk);
    let map = db.map("map").unwrap();
    for number in 0..2_700_u32 {
        db.put(&map, number.to_be_bytes(), "").unwrap().forget();
    }
    db.persist().unwrap();
    assert!(db.checkpoint().unwrap());
    let db = open(&disk.after_crash(&mut |_| Keep::Kept));
    let index = &db.engine().index;
    // In the middle between two levels, where most buckets overflow.
    assert_eq!((index.entry_count() / 7 * 2, index.level()), (index.bucket_count(), 9));
    assert!(!index.is_growth_due());
    assert!(db.check().unwrap().is_clean());
}

/// A deletion that is believed to be the key's newest record, if it is.
fn forge_tombstone(parts: &mut Parts, key: Vec<u8>, address: u64) {
    let object = parts.keys[0].0;
    parts.system.push((kind::TOMBSTONE, object.into(), key, address.to_le_bytes().to_vec()));
}

#[test]
fn c9_a_checkpoint_that_makes_no_sense_is_told_and_not_used() {
    type Forgery = (&'static str, fn(&mut Parts));
    const FORGERIES: &[Forgery] = &[
        ("an unknown kind", |parts| parts.system.push((9, 0, Vec::new(), Vec::new()))),
        ("a count of an unknown object", |parts| {
            parts.system.push((kind::KEY_COUNT, 99, Vec::new(), vec![0; 8]));
        }),
        ("a count that is cut short", |parts| {
            parts.system.push((kind::KEY_COUNT, 0, Vec::new(), vec![0; 7]));
        }),
        ("a count that no database has", |parts| {
            parts.system.push((kind::KEY_COUNT, 0, Vec::new(), i64::MAX.to_le_bytes().to_vec()));
        }),
        ("counts that are too much together", |parts| {
            for object in 0..3 {
                let count = (1_u64 << 48) - 10;
                parts.system.push((kind::KEY_COUNT, object, Vec::new(), count.to_le_bytes().to_vec()));
            }
        }),
        ("a record that says nothing", |parts| {
            parts.system.push((kind::RECORD, 0, b"name".to_vec(), vec![3]));
        }),
        ("a number given twice", |parts| {
            parts.system.push((kind::RECORD, 0, b"other".to_vec(), vec![2, 16, 0, 0, 0]));
        }),
        ("an object that is of another kind", |parts| {
            parts.system.push((kind::RECORD, 0, b"map".to_vec(), vec![2, 16, 0, 0, 0]));
        }),
        ("an object that has another name", |parts| {
            parts.system.push((kind::RECORD, 0, b"other".to_vec(), vec![1, 16, 0, 0, 0]));
        }),
        ("a named snapshot, where the superblock says that none has a name", |parts| {
            parts.system.push((kind::RECORD, SNAPSHOTS_OBJECT.into(), b"monday".to_vec(), vec![0; 16]));
        }),
        ("an item behind the keys", |parts| parts.late.push(parts.system[0].clone())),
        ("keys without end", |parts| parts.header.keys = 1 << 40),
        ("liveness of a segment far away", |parts| {
            parts.system.push((kind::LIVENESS, 1 << 40, Vec::new(), vec![0; 52]));
        }),
        ("liveness of a segment that is not the next", |parts| {
            let known = parts.system.iter().filter(|item| item.0 == kind::LIVENESS).map(|item| item.1).max();
            parts.system.push((kind::LIVENESS, known.unwrap_or(0) + 2, Vec::new(), vec![0; 52]));
        }),
        ("a key that is too long", |parts| {
            let object = parts.keys[0].0;
            parts.keys.push((object, vec![1; 70_000]));
            parts.header.keys += 1;
        }),
        ("a deleted key that is too long", |parts| {
            let address = parts.header.end - 8;
            forge_tombstone(parts, vec![1; 70_000], address);
        }),
        ("a deleted key of an unknown object", |parts| {
            let address = (parts.header.end - 8).to_le_bytes().to_vec();
            parts.system.push((kind::TOMBSTONE, 99, b"deleted".to_vec(), address));
        }),
        ("a deletion without an address", |parts| forge_tombstone(parts, b"deleted".to_vec(), 0)),
        ("a deletion between two addresses", |parts| {
            let address = parts.header.end - 4;
            forge_tombstone(parts, b"deleted".to_vec(), address);
        }),
        ("a deletion behind the end", |parts| {
            let address = parts.header.end;
            forge_tombstone(parts, b"deleted".to_vec(), address);
        }),
        ("liveness of more than a segment has room for", |parts| {
            let known = parts.system.iter().filter(|item| item.0 == kind::LIVENESS).map(|item| item.1).max();
            let mut counts = vec![0; 52];
            counts[5] = 1;
            parts.system.push((kind::LIVENESS, known.unwrap_or(0), Vec::new(), counts));
        }),
        ("liveness that is cut short", |parts| {
            parts.system.push((kind::LIVENESS, 0, Vec::new(), vec![0; 51]));
        }),
        ("an entry behind the end", |parts| {
            let end = parts.header.end;
            parts.buckets[0].1.push(hash_index::with_address(0, end));
            parts.header.entries += 1;
        }),
        ("an entry without an address", |parts| {
            parts.buckets[0].1.push(1 << 60);
            parts.header.entries += 1;
        }),
        ("an entry too few", |parts| parts.header.entries += 1),
        ("a key too many", |parts| parts.header.keys -= 1),
        ("a key of a map", |parts| {
            let map = parts.keys[0].0 - 1;
            parts.keys[0].0 = map;
        }),
        ("entries without end", |parts| parts.header.entries = 1 << 40),
        ("an impossible base level", |parts| parts.header.base_level = 3),
        ("another database", |parts| parts.header.database ^= 1),
    ];
    let disk = lived();
    let parts = take_apart(&disk);
    let db = open(&with(&disk, &parts));
    assert!(db.recovery_report().checkpoint.is_some(), "{}", db.recovery_report());
    for (what, forge) in FORGERIES {
        let mut forged = parts.clone();
        forge(&mut forged);
        let disk = with(&disk, &forged);
        let db = open(&disk);
        let report = db.recovery_report();
        assert!(report.checkpoint.is_none() && report.checkpoint_damage.is_some(), "{what}: {report}");
        assert!(report.to_string().contains("the checkpoint is damaged"), "{what}: {report}");
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        assert_eq!((map.len(), table.len()), (52, 49), "{what}");
        let check = db.check().unwrap();
        assert!(check.problems.is_empty(), "{what}: {check}");
    }
}

/// The log is read from there on for what has settled since: a sound place of it was called damaged.
#[test]
fn c9_a_checkpoint_that_says_that_settling_came_to_where_no_seal_is_is_not_used() -> Result<()> {
    let disk = SimulatedDevice::new(1);
    let db = open(&disk);
    let table = db.table("table")?;
    for number in 0..100_u32 {
        db.put(&table, number.to_be_bytes(), [7; 1_000])?.forget();
    }
    db.persist()?;
    assert!(db.checkpoint()?);
    db.persist()?;
    let parts = take_apart(&disk);
    db.settle()?;
    assert!(db.engine().settled.tree.settled_to() > BLOCK_BYTES as u64);
    drop(table);
    db.close()?;
    for (settled_to, is_used) in [(0, true), (8, false)] {
        let mut forged = parts.clone();
        forged.header.settled_to = settled_to;
        let db = open(&with(&disk, &forged));
        let report = db.recovery_report();
        assert_eq!(report.checkpoint.is_some(), is_used, "{settled_to}: {report}");
        assert_eq!(db.snapshot()?.range::<&[u8]>(&db.table("table")?, ..).count(), 100);
    }
    Ok(())
}

/// A hardening that stands still between closing a version and taking the log's tail seals records of newer versions, the last of which may drop an object: the
/// seal's version passed for that of the drop.
#[test]
fn c4_what_a_checkpoint_says_was_dropped_stays_for_snapshots_up_to_the_newest_version_before_its_end()
-> Result<()> {
    let disk = SimulatedDevice::new(1);
    let db = open(&disk);
    let map = db.map("map")?;
    db.put(&map, "key", "value")?.safe()?;
    let version = db.create_snapshot("monday")?.version.number();
    drop(map);
    db.drop_map("map")?.safe()?;
    assert!(db.checkpoint()?);
    db.close()?;
    let mut parts = take_apart(&disk);
    assert!(parts.header.newest_version > version);
    parts.header.horizon = version;
    let db = open(&with(&disk, &parts));
    assert!(db.recovery_report().checkpoint.is_some());
    db.engine().remove_dropped();
    let monday = db.open_snapshot("monday")?;
    assert_eq!(monday.get(&monday.map("map")?, "key")?.as_deref(), Some(&b"value"[..]));
    Ok(())
}

/// For each key there was a miss of the index, which nearly each has in it.
#[test]
fn keys_of_a_checkpoint_are_asked_for_an_entry_only_where_it_may_have_gone_and_orders_have_no_others()
-> Result<()> {
    for (keep, has_dropped) in
        [(Keep::Kept, false), (Keep::Lost, false), (Keep::Kept, true), (Keep::Lost, true)]
    {
        let disk = SimulatedDevice::new(1);
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
        // Nothing hardens by itself.
        let db = options.window(Duration::from_secs(3600)).open_on(Arc::new(disk.clone()))?;
        let table = db.table("table")?;
        if has_dropped {
            drop(db.map("map")?);
            db.drop_map("map")?.forget();
        }
        let put = |key: u32| db.put(&table, key.to_be_bytes(), "value").map(|commit| commit.forget());
        (0..50).try_for_each(put)?;
        db.persist()?;
        db.delete(&table, 7_u32.to_be_bytes())?.safe()?;
        // These have no entry in the checkpoint.
        (50..80).try_for_each(put)?;
        db.delete(&table, 55_u32.to_be_bytes())?.forget();
        assert!(db.checkpoint()?);
        assert_eq!(take_apart(&disk).keys.len(), 80);
        if keep == Keep::Kept {
            db.persist()?;
        }
        let disk = disk.after_crash(&mut |_| keep);
        ASKED.set(0);
        let db = open(&disk);
        assert!(db.recovery_report().checkpoint.is_some());
        assert_eq!(ASKED.get(), if has_dropped { 80 } else { 0 });
        let in_order: usize =
            db.engine().objects.iter().filter_map(|object| object.ordered()).map(|keys| keys.len()).sum();
        assert_eq!(in_order, if keep == Keep::Kept { 78 } else { 49 }, "{keep:?}");
        assert!(db.engine().settled.orders_are_exact, "{keep:?}");
        assert!(db.check()?.is_clean());
    }
    Ok(())
}

/// A checkpoint of more than a megabyte.
fn long(parts: &Parts) -> Parts {
    let mut parts = parts.clone();
    for number in 0..24_u8 {
        let serial = u64::from(number).to_le_bytes().to_vec();
        parts.system.push((kind::RECORD, SESSIONS_OBJECT.into(), vec![number; 60_000], serial));
    }
    parts
}

#[test]
fn c7_c9_several_threads_read_a_long_checkpoint() {
    let disk = lived();
    let parts = long(&take_apart(&disk));
    let db = open(&with(&disk, &parts));
    let report = db.recovery_report();
    assert!(report.checkpoint.is_some(), "{:?}", report.checkpoint_damage);
    assert_eq!(report.sessions.len(), 25);
    assert_eq!((db.map("map").unwrap().len(), db.table("table").unwrap().len()), (52, 49));
    let mut forged = parts;
    forged.buckets[0].1.push(hash_index::with_address(0, forged.header.end));
    forged.header.entries += 1;
    let db = open(&with(&disk, &forged));
    assert!(db.recovery_report().checkpoint_damage.is_some());
    assert_eq!(db.recovery_report().sessions.len(), 1, "what it had filled was put aside");
    assert_eq!((db.map("map").unwrap().len(), db.table("table").unwrap().len()), (52, 49));
}

/// Opening believes these; the log says otherwise.
#[test]
fn c9_a_checkpoint_that_says_something_else_than_the_log_is_found_by_the_check() {
    type Forgery = (&'static str, fn(&mut Parts));
    const FORGERIES: &[Forgery] = &[
        ("is of another hash than its key", |parts| {
            let addresses = [0, 1].map(|bucket| hash_index::address_of(parts.buckets[bucket].1[0]));
            for (bucket, address) in [(0, addresses[1]), (1, addresses[0])] {
                let entry = &mut parts.buckets[bucket].1[0];
                *entry = hash_index::with_address(*entry, address);
            }
        }),
        ("is not of a key's newest record", |parts| {
            let entry = &mut parts.buckets[0].1[0];
            *entry = hash_index::with_address(*entry, hash_index::address_of(*entry) + 8);
        }),
        ("is there twice", |parts| {
            let entry = parts.buckets[0].1[0];
            parts.buckets[0].1.push(entry);
            parts.header.entries += 1;
        }),
        ("has no entry", |parts| {
            parts.buckets[0].1.remove(0);
            parts.header.entries -= 1;
        }),
        ("a key of object", |parts| {
            parts.keys.remove(0);
            parts.header.keys -= 1;
        }),
    ];
    let disk = lived();
    let parts = take_apart(&disk);
    let problems = |parts: &Parts| check_on(Arc::new(with(&disk, parts))).unwrap().problems;
    assert_eq!(problems(&parts), Vec::<String>::new());
    for (what, forge) in FORGERIES {
        let mut forged = parts.clone();
        forge(&mut forged);
        let found = problems(&forged);
        assert!(found.iter().any(|problem| problem.contains(what)), "{what:?} is not in {found:?}");
    }
}

/// It was told that nothing is lost by it, and to compact the database, which takes away what the log still has.
#[test]
fn c9_who_has_a_checkpoint_that_says_something_else_than_the_log_is_told_to_remove_it() {
    let disk = lived();
    let mut parts = take_apart(&disk);
    let lost = parts.buckets.iter().map(|(_, entries)| entries.len() as u64).sum::<u64>();
    parts.buckets.clear();
    parts.header.entries -= lost;
    let disk = with(&disk, &parts);
    let report = check_on(Arc::new(disk.clone())).unwrap();
    assert!(!report.is_mendable(), "{report}");
    let name = checkpoint::name_of(parts.header.number);
    assert!(report.wrong_checkpoint.as_ref().is_some_and(|file| file.contains(&name)), "{report}");
    disk.remove_file(&name);
    let db = open(&disk);
    assert_eq!((db.map("map").unwrap().len(), db.table("table").unwrap().len()), (52, 49));
}

/// It was called damaged, and scripts that looked at what `kiln check` ends with restored a backup.
#[test]
fn a_checkpoint_of_another_format_is_not_used_and_no_damage() {
    let disk = lived();
    let mut superblock = SuperblockFile::open(&disk, OpenMode::ReadWrite).unwrap();
    let name = checkpoint::name_of(superblock.current().checkpoint.number);
    let mut file = disk.bytes(&name);
    file[8] = 1;
    let checksum = crc32c::crc32c(&file[..124]);
    file[124..128].copy_from_slice(&checksum.to_le_bytes());
    disk.set_bytes(&name, file);
    superblock.update(|superblock| superblock.checkpoint.checksum = checksum).unwrap();
    drop(superblock);
    let problems = check_on(Arc::new(disk.clone())).unwrap().problems;
    assert_eq!(problems, Vec::<String>::new());
    let db = open(&disk);
    let report = db.recovery_report();
    assert_eq!((report.checkpoint, &report.checkpoint_damage), (None, &None));
    assert!(report.to_string().contains("another Kiln's format"), "{report}");
    assert_eq!((db.map("map").unwrap().len(), db.table("table").unwrap().len()), (52, 49));
}

/// Nobody can tell which of the two is right.
#[test]
fn c9_a_checkpoint_that_the_log_does_not_continue_is_an_error() {
    let refused = |forge: fn(&mut Parts)| {
        let disk = lived();
        let mut parts = take_apart(&disk);
        forge(&mut parts);
        let error = try_open(&with(&disk, &parts)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted);
        assert!(error.to_string().contains("does not continue the checkpoint"), "{error}");
    };
    refused(|parts| parts.header.chain.checksum ^= 1);
    // It ends in the middle of the first extent.
    refused(|parts| {
        parts.header.end = BLOCK_BYTES as u64;
        (parts.header.entries, parts.header.keys) = (0, 0);
        parts.system.retain(|item| item.0 == kind::RECORD);
        parts.buckets.clear();
        parts.keys.clear();
    });
}

#[test]
fn c9_a_checkpoint_that_ends_where_the_log_is_not_known_to_be_is_not_used() {
    let ends: [fn(u64) -> u64; 2] = [|known_end| known_end + BLOCK_BYTES as u64, |known_end| known_end - 8];
    for end_of in ends {
        let disk = lived();
        let mut superblock = SuperblockFile::open(&disk, OpenMode::ReadWrite).unwrap();
        let end = end_of(superblock.current().known_end);
        superblock.update(|superblock| superblock.checkpoint.end = end).unwrap();
        drop(superblock);
        let db = open(&disk);
        assert_eq!(db.recovery_report().checkpoint, None);
        assert_eq!((db.map("map").unwrap().len(), db.table("table").unwrap().len()), (52, 49));
    }
}

#[test]
fn who_comes_upon_a_locked_bucket_waits_for_it() {
    let index = HashIndex::new(1 << 20).unwrap();
    let (begun, released) = (AtomicBool::new(false), AtomicBool::new(false));
    let held = lock(&index, 7);
    thread::scope(|scope| {
        scope.spawn(|| {
            begun.store(true, Ordering::SeqCst);
            let bucket = lock(&index, 7);
            assert!(released.load(Ordering::SeqCst), "two hold a bucket");
            index.unlock_changed(bucket);
        });
        while !begun.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        // More often than one try takes.
        (0..2_000).for_each(|_| thread::yield_now());
        released.store(true, Ordering::SeqCst);
        index.unlock_changed(held);
    });
}

/// Opening took longer the more memory there was: half of it was filled with what nobody had asked for.
#[test]
fn c8_of_what_a_checkpoint_tells_a_bounded_part_is_read_and_the_rest_is_found_on_disk() -> Result<()> {
    const SEGMENT_BYTES: u64 = 64 << 10;
    let open = |disk: &SimulatedDevice, (warm, last)| {
        let mut options = Options::new().background(false).segment_bytes(SEGMENT_BYTES).memory(1 << 20);
        let (warm_bytes, last_bytes) = (warm * SEGMENT_BYTES, last * SEGMENT_BYTES);
        options.recovery = Division { warm_bytes, last_bytes, ..Division::default() };
        options.open_on(Arc::new(disk.clone()))
    };
    let disk = SimulatedDevice::new(1);
    let db = open(&disk, (0, 0))?;
    let table = db.table("table")?;
    for number in 0..400_u32 {
        db.put(&table, number.to_be_bytes(), [number as u8; 1000])?.safe()?;
    }
    assert!(db.checkpoint()?);
    db.put(&table, 400_u32.to_be_bytes(), [400_u32 as u8; 1000])?.safe()?;
    drop((table, db));
    let mut heads = Vec::new();
    // The log is longer than what fits into memory.
    for segments in [(0, 64), (2, 64), (64, 64), (64, 2)] {
        let db = open(&disk.after_crash(&mut |_| Keep::Kept), segments)?;
        assert!(db.recovery_report().checkpoint.is_some());
        heads.push((db.engine().log.tail() - db.engine().log.head()) / SEGMENT_BYTES);
        let table = db.table("table")?;
        for number in 0..=400_u32 {
            assert_eq!(db.get(&table, number.to_be_bytes())?, Some(vec![number as u8; 1000]));
        }
    }
    assert_eq!(heads, [0, 1, 3, 1], "segments are in memory");
    Ok(())
}
