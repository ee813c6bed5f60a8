//! Numbers that are used up, or that the catalog gives out wrongly: versions, objects, a session's operations, addresses of the log.

use super::forged_tests::{Forged, append, forged, open, refused, stopped};
use crate::Kiln;
use crate::device::{OpenMode, SimulatedDevice};
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::catalog::CATALOG_OBJECT;
use crate::kernel::session::SESSIONS_OBJECT;
use crate::kernel::transaction::{self, Isolation, Transaction};
use crate::storage::record::{COMMITS_END, OBJECTS_MAX};
use crate::storage::superblock::{Superblock, SuperblockFile};

/// The clock after a crash jumps; near its end it would have run into the bits of a record's checksum.
#[test]
fn a_database_without_versions_left_is_not_opened_and_not_changed() {
    let disk = forged(|seal, _| seal.version = (1 << 48) - 1);
    let steps = disk.steps();
    assert_eq!(open(&disk).unwrap_err().kind(), ErrorKind::Limit);
    assert_eq!(disk.steps(), steps);
}

/// Puts a record into the catalog of an open database.
fn set_entry(db: &Kiln, name: &[u8], value: &[u8]) -> Result<()> {
    let set = |tx: &Transaction<'_>| tx.put_key(CATALOG_OBJECT, name, value);
    transaction::run(db.engine(), Isolation::Serializable, set)?.safe()
}

/// Makes this the next number that the catalog gives out.
fn set_next_number(db: &Kiln, next: u32) -> Result<()> {
    set_entry(db, b"", &next.to_le_bytes())
}

/// An object of this name was made anew, and what had been in it was lost without a word.
#[test]
fn an_entry_that_names_no_object_is_not_replaced() -> Result<()> {
    let disk = stopped();
    let db = open(&disk)?;
    set_entry(&db, b"other", b"no object")?;
    assert_eq!(db.map("other").unwrap_err().kind(), ErrorKind::Corrupted);
    assert_eq!(db.get(&db.map("map")?, "key")?.as_deref(), Some(&b"value"[..]));
    db.close()?;
    drop(db);
    refused(&disk, "names no object");
    Ok(())
}

/// The entry was committed before its number was refused, and from then on the database could not be opened.
#[test]
fn when_all_numbers_are_given_out_no_entry_is_made() -> Result<()> {
    let disk = stopped();
    let db = open(&disk)?;
    set_next_number(&db, OBJECTS_MAX)?;
    assert_eq!(db.map("another").unwrap_err().kind(), ErrorKind::Limit);
    assert_eq!(db.get(&db.map("map")?, "key")?.as_deref(), Some(&b"value"[..]));
    db.close()?;
    drop(db);
    open(&disk)?.close()
}

/// The next serial number overflowed.
#[test]
fn a_session_that_has_used_up_its_serial_numbers_says_so() -> Result<()> {
    let last = u64::MAX.to_le_bytes();
    let record = Forged { object: SESSIONS_OBJECT, key: b"s", value: &last, ..Forged::default() };
    let db = open(&forged(|seal, data| append(seal, data, &record)))?;
    let session = db.session("s")?;
    assert_eq!(session.recovered_serial(), u64::MAX);
    let refused: Error = session.transact(|_| Ok(())).map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Limit);
    db.close()
}

/// A stray number in the catalog must not give two objects the same one.
#[test]
fn a_number_that_is_taken_is_not_given_out_again() -> Result<()> {
    let db = open(&stopped())?;
    set_next_number(&db, 0)?;
    let (map, new) = (db.map("map")?, db.map("new")?);
    db.put(&new, "key", "new")?.safe()?;
    assert_eq!(db.get(&map, "key")?.as_deref(), Some(&b"value"[..]));
    db.close()
}

/// What was committed behind the last address was not found again, and what was durable there not either.
#[test]
fn c5_who_has_used_up_all_addresses_is_told_and_keeps_what_is_durable() {
    let disk = SimulatedDevice::new(1);
    drop(open(&disk).unwrap());
    let first = SuperblockFile::open(&disk, OpenMode::Read).unwrap().current().clone();
    let begin = COMMITS_END - 8 * (64 << 10);
    let late = SimulatedDevice::new(2);
    let superblock = Superblock { generation: 1, begin, known_end: begin, clean: true, ..first };
    drop(SuperblockFile::create(&late, superblock).unwrap());
    let mut count = 0_u32;
    for opening in 0..3 {
        let db = open(&late).unwrap();
        let map = db.map("map").unwrap();
        (0..count).for_each(|key| assert!(db.get(&map, key.to_be_bytes()).unwrap().is_some(), "{key}"));
        let error = loop {
            assert!(count < 1_000, "there is no end");
            match db.put(&map, count.to_be_bytes(), [7; 1_000]).and_then(|commit| commit.safe()) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
        assert!(count > 0 && db.check().unwrap().is_clean());
        match opening {
            0 => drop((map, db)),
            _ => db.close().unwrap(),
        }
    }
}
