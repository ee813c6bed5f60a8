//! What a check of an open database finds where an index does not agree with the log, what it does where it cannot read,
//! and what a printed log shows.

use std::sync::Arc;

use super::check::check_on;
use super::dump::dump_log;
use super::forged_tests::options;
use crate::Kiln;
use crate::device::{Fault, FaultKind, OperationKind, SimulatedDevice};
use crate::error::{ErrorKind, Result};
use crate::kernel::catalog::FIRST_OBJECT;
use crate::kernel::recovery::{DROP_UNEXPECTED, EXPIRY_UNEXPECTED};
use crate::storage::epoch;
use crate::storage::record::{Address, NEVER};
use crate::storage::tree::Change;

const OBJECT: u32 = FIRST_OBJECT;
const KEY: &[u8] = b"key";

/// A database with one key in a table.
fn database() -> Result<(SimulatedDevice, Kiln)> {
    let disk = SimulatedDevice::new(1);
    let db = options().open_on(Arc::new(disk.clone()))?;
    db.put(&db.table("table")?, KEY, "value")?.safe()?;
    assert!(db.check()?.is_clean());
    Ok((disk, db))
}

/// The key's entry in the hash index.
fn entry(db: &Kiln) -> Address {
    let engine = db.engine();
    engine.index.addresses_of(engine.hash(OBJECT, KEY)).next().expect("it is there")
}

/// Adds an entry to the bucket of one key as if it were that of another, or takes it away.
fn change_index(db: &Kiln, key: &[u8], change: impl FnOnce(u64, u64)) {
    let engine = db.engine();
    let hash = engine.hash(OBJECT, key);
    let bucket = engine.index.lock(hash).expect("nobody else has it");
    change(bucket, hash);
    engine.index.unlock_changed(bucket);
}

#[track_caller]
fn finds(db: &Kiln, expected: &[&str]) -> Result<()> {
    let report = db.check()?;
    for what in expected {
        assert!(report.problems.iter().any(|problem| problem.contains(what)), "{what:?} is not in {report}");
    }
    assert_eq!(report.problems.len(), expected.len(), "{report}");
    Ok(())
}

#[test]
fn a_key_that_is_not_in_the_hash_index_is_found() -> Result<()> {
    let (_disk, db) = database()?;
    let address = entry(&db);
    change_index(&db, KEY, |bucket, hash| assert!(db.engine().index.remove(bucket, hash, address)));
    finds(
        &db,
        &[
            "is not in the index",
            "keys in its order",
            "live records and has",
            "fewer entries than there are keys",
        ],
    )
}

#[test]
fn an_entry_in_the_wrong_bucket_is_found() -> Result<()> {
    let (_disk, db) = database()?;
    let address = entry(&db);
    change_index(&db, b"other", |bucket, hash| {
        assert!(!db.engine().index.insert(bucket, hash, address), "there is room");
    });
    finds(&db, &["is in the wrong bucket", "live records and has"])
}

#[test]
fn an_entry_of_what_has_settled_is_found() -> Result<()> {
    let (_disk, db) = database()?;
    let address = entry(&db);
    assert_eq!(db.settle()?, 1);
    assert!(db.check()?.is_clean());
    change_index(&db, KEY, |bucket, hash| {
        assert!(!db.engine().index.insert(bucket, hash, address), "there is room");
    });
    finds(&db, &["has settled, and is in the index", "live records and has"])
}

#[test]
fn a_key_that_is_not_in_the_ordered_index_is_found() -> Result<()> {
    let (_disk, db) = database()?;
    let object = db.engine().objects.get(OBJECT).expect("the table");
    object.retract(&epoch::pin(), KEY);
    finds(&db, &["is not in the ordered index", "keys in its order"])
}

#[test]
fn a_wrong_count_of_keys_is_found() -> Result<()> {
    let (_disk, db) = database()?;
    db.engine().objects.get(OBJECT).expect("the table").key_count.add(1);
    finds(&db, &["counts 2 keys and has 1"])
}

#[test]
fn a_check_that_cannot_read_the_log_does_not_call_it_damaged() -> Result<()> {
    let (disk, db) = database()?;
    db.close()?;
    drop(db);
    // The first read is that of the superblock.
    disk.inject(Fault { operation: OperationKind::Read, nth: 2, kind: FaultKind::EIO, sticky: false });
    assert_eq!(check_on(Arc::new(disk.clone())).unwrap_err().kind(), ErrorKind::Io);
    assert!(check_on(Arc::new(disk)).unwrap().is_clean());
    Ok(())
}

#[test]
fn a_printed_log_tells_values_from_deletions() -> Result<()> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = options().open(&path)?;
    let table = db.table("table")?;
    db.put(&table, KEY, "value")?.safe()?;
    db.delete(&table, KEY)?.safe()?;
    db.close()?;
    drop((table, db));
    let mut log = Vec::new();
    dump_log(&path, &mut log)?;
    let log = String::from_utf8(log).unwrap();
    let of_the_key: Vec<&str> = log.lines().filter(|line| line.contains("key \"key\"")).collect();
    assert_eq!(of_the_key.len(), 2, "{log}");
    assert!(of_the_key[0].contains(" put ") && of_the_key[0].contains("\"value\""), "{log}");
    assert!(of_the_key[1].contains(" tombstone ") && of_the_key[1].contains("value 0 bytes"), "{log}");
    Ok(())
}

/// The tree was not asked whether values of its leaves may expire.
#[test]
fn c9_a_settled_row_that_expires_where_the_superblock_says_that_none_does_is_found() -> Result<()> {
    let (_disk, db) = database()?;
    let long_after = crate::Expiry::At(u64::MAX);
    db.put_expiring(&db.table("table")?, KEY, "value", long_after)?.safe()?;
    db.settle()?;
    assert!(db.check()?.is_clean());
    db.engine().superblock.lock().update(|superblock| superblock.has_expiring = false)?;
    let report = db.check()?;
    let of_tree = |problem: &&String| problem.contains("tree") && problem.contains(EXPIRY_UNEXPECTED);
    assert_eq!(report.problems.iter().filter(of_tree).count(), 1, "{report}");
    Ok(())
}

#[test]
fn c9_a_dropped_object_where_the_superblock_says_that_none_was_is_found() -> Result<()> {
    let (_disk, db) = database()?;
    db.drop_table("table")?.safe()?;
    assert!(db.check()?.is_clean());
    db.engine().superblock.lock().update(|superblock| superblock.has_dropped = false)?;
    let report = db.check()?;
    let of_log = |problem: &&String| problem.contains(DROP_UNEXPECTED);
    assert_eq!(report.problems.iter().filter(of_log).count(), 2, "{report}");
    Ok(())
}

/// A database that was closed, whose one row has settled, and whose tree was changed behind its back.
fn with_tree(change: Option<(&[u8], Option<&[u8]>)>, settled_to: Option<Address>) -> Result<SimulatedDevice> {
    let (disk, db) = database()?;
    db.settle()?;
    let tree = &db.engine().settled.tree;
    assert_eq!(tree.statistics().entries, 1);
    let change = change.map(|(key, value)| Change { key, value, expires_at: NEVER });
    tree.merge(&mut change.into_iter(), settled_to)?;
    db.close()?;
    Ok(disk)
}

#[track_caller]
fn finds_offline(disk: &SimulatedDevice, expected: &str) -> Result<()> {
    let report = check_on(Arc::new(disk.clone()))?;
    assert!(report.problems.iter().any(|problem| problem.contains(expected)), "{report}");
    Ok(())
}

#[test]
fn c9_a_row_that_the_tree_must_have_and_has_not_is_found() -> Result<()> {
    let tree_key = [&OBJECT.to_be_bytes(), KEY].concat();
    let disk = with_tree(Some((&tree_key, None)), None)?;
    finds_offline(&disk, "the tree does not have what the record at log address")
}

#[test]
fn c9_a_row_of_no_object_is_found() -> Result<()> {
    let disk = with_tree(Some((b"abc", Some(b"value"))), None)?;
    finds_offline(&disk, "the tree has a row of no object")
}

#[test]
fn c9_a_tree_that_has_more_than_the_log_is_refused() -> Result<()> {
    let disk = with_tree(None, Some(1 << 40))?;
    let error = options().open_on(Arc::new(disk.clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
    assert!(error.to_string().contains("the log ends before the place up to where the tree"), "{error}");
    assert!(!check_on(Arc::new(disk))?.is_clean());
    Ok(())
}

fn flip(disk: &SimulatedDevice, file: &str, offset: usize) {
    let mut bytes = disk.bytes(file);
    bytes[offset] ^= 1;
    disk.set_bytes(file, bytes);
}

/// It was called sound, and one more bit would have been the end of it.
#[test]
fn c9_damage_to_one_of_two_slots_is_found_and_mended() -> Result<()> {
    for file in ["superblock", "tree"] {
        for slot in [0, 4_096] {
            let disk = with_tree(None, None)?;
            assert!(check_on(Arc::new(disk.clone()))?.is_clean());
            flip(&disk, file, slot + 16);
            finds_offline(&disk, &format!("{file} is damaged at offset {slot}: one of its two slots"))?;
            let report = check_on(Arc::new(disk.clone()))?;
            assert!(report.is_mendable() && report.problems.len() == 1, "{report}");

            let db = options().open_on(Arc::new(disk.clone()))?;
            let of_superblock = (file == "superblock").then_some(slot as u64);
            assert_eq!(db.recovery_report().damaged_slot, of_superblock);
            assert_eq!(db.get(&db.table("table")?, KEY)?.as_deref(), Some(&b"value"[..]));
            db.compact(|_| ())?;
            db.close()?;
            let report = check_on(Arc::new(disk))?;
            assert!(report.is_clean(), "{report}");
        }
    }
    Ok(())
}

/// Zeros passed for a slot that was never written, which there is in no tree, and in no superblock after its first change.
#[test]
fn c9_a_slot_that_has_become_zeros_is_found() -> Result<()> {
    for file in ["superblock", "tree"] {
        for slot in [0, 4_096] {
            let disk = with_tree(None, None)?;
            disk.zero(file, slot, 4_096);
            finds_offline(&disk, &format!("{file} is damaged at offset {slot}: one of its two slots"))?;
            assert!(check_on(Arc::new(disk))?.is_mendable());
        }
    }
    Ok(())
}

/// A slot that was never written passed for a damaged one.
#[test]
fn a_copy_that_nobody_has_opened_has_no_damaged_slot() -> Result<()> {
    let (_disk, db) = database()?;
    db.settle()?;
    let copy = Arc::new(SimulatedDevice::new(2));
    db.backup_on(copy.clone(), |_| {})?;
    let report = check_on(copy.clone())?;
    assert!(report.is_clean(), "{report}");
    assert_eq!(options().open_on(copy)?.recovery_report().damaged_slot, None);
    Ok(())
}

/// Each key of the checkpoint's was blamed on it.
#[test]
fn c9_damage_to_the_tree_alone_is_not_blamed_on_the_checkpoint() -> Result<()> {
    let (disk, db) = database()?;
    db.compact(|_| ())?;
    db.close()?;
    let names = crate::device::Device::list(&disk).unwrap();
    let checkpoint = names.iter().find(|name| name.starts_with("checkpoint")).expect("there is one");
    flip(&disk, checkpoint, 16);
    let report = check_on(Arc::new(disk.clone()))?;
    assert!(report.is_mendable() && report.problems.len() == 1, "{report}");
    assert!(!report.to_string().contains("restore"), "nothing is lost: {report}");
    flip(&disk, checkpoint, 16);
    // Neither slot has a root any more.
    [16, 4_112].into_iter().for_each(|offset| flip(&disk, "tree", offset));
    let report = check_on(Arc::new(disk))?;
    assert!(!report.is_mendable() && !report.to_string().contains("checkpoint"), "{report}");
    Ok(())
}

/// What cannot be read is not damaged.
#[test]
fn c8_a_check_that_cannot_read_says_so_and_finds_nothing() -> Result<()> {
    let disk = with_tree(None, None)?;
    let mut failed = 0;
    for nth in 1.. {
        let before = disk.faults_fired();
        disk.inject(Fault { operation: OperationKind::Read, nth, kind: FaultKind::Error(5), sticky: false });
        let checked = check_on(Arc::new(disk.clone()));
        if disk.faults_fired() == before {
            break;
        }
        match checked {
            Ok(report) => assert!(report.is_clean(), "read {nth}: {report}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io, "read {nth}: {error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 3, "{failed}");
    Ok(())
}
