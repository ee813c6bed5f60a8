//! Checkpoints whose checksums hold and whose contents make no sense: they are put aside, told, and the log is read.

use std::sync::Arc;

use crate::device::{OpenMode, SimulatedDevice};
use crate::storage::checkpoint::{Block, Header, Reader, Section, SystemItem, Writer, kind};
use crate::storage::hash_index;
use crate::storage::superblock::SuperblockFile;
use crate::{Kiln, Object, Options};

fn open(disk: &SimulatedDevice) -> Kiln {
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
    options.open_on(Arc::new(disk.clone())).expect("it opens, whatever the checkpoint says")
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
struct Parts {
    header: Header,
    system: Vec<(u32, u64, Vec<u8>, Vec<u8>)>,
    buckets: Vec<(u64, Vec<u64>)>,
    keys: Vec<(u32, Vec<u8>)>,
}

fn take_apart(disk: &SimulatedDevice) -> Parts {
    let superblock = SuperblockFile::open(disk, OpenMode::Read).unwrap().current().clone();
    let mut reader = Reader::open(disk, superblock.database, superblock.checkpoint).unwrap();
    let mut parts =
        Parts { header: reader.header.clone(), system: Vec::new(), buckets: Vec::new(), keys: Vec::new() };
    for section in [Section::System, Section::Entries, Section::Keys] {
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
fn with(disk: &SimulatedDevice, parts: &Parts) -> SimulatedDevice {
    let disk = disk.after_crash(&mut |_| crate::device::Keep::Kept);
    let mut superblock = SuperblockFile::open(&disk, OpenMode::ReadWrite).unwrap();
    let mut writer = Writer::create(&disk, parts.header.database, parts.header.number).unwrap();
    for (kind, number, key, value) in &parts.system {
        writer.add_system(SystemItem { kind: *kind, number: *number, key, value }).unwrap();
    }
    parts.buckets.iter().for_each(|(low_bits, entries)| writer.add_entries(*low_bits, entries).unwrap());
    parts.keys.iter().for_each(|(object, key)| writer.add_key(*object, key).unwrap());
    let (named, _) = writer.finish(parts.header.clone()).unwrap();
    superblock.update(|superblock| superblock.checkpoint = named).unwrap();
    disk
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
        ("a record that says nothing", |parts| {
            parts.system.push((kind::RECORD, 0, b"name".to_vec(), vec![3]));
        }),
        ("a number given twice", |parts| {
            parts.system.push((kind::RECORD, 0, b"other".to_vec(), vec![2, 16, 0, 0, 0]));
        }),
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
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        assert_eq!((map.len(), table.len()), (52, 49), "{what}");
        let check = db.check().unwrap();
        assert!(check.problems.is_empty(), "{what}: {check}");
    }
}
