//! Databases whose checksums all hold and whose contents no engine writes: another program, or a mistake in this one, has
//! made them. What opening refuses, the check finds, and neither overflows, panics or believes it.

use std::sync::Arc;

use super::check::check_on;
use crate::device::{BLOCK_BYTES, Keep, OpenMode, SECTOR_BYTES, SimulatedDevice};
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::catalog::{CATALOG_OBJECT, FIRST_OBJECT};
use crate::kernel::losses::LOSSES_OBJECT;
use crate::kernel::named_snapshot::SNAPSHOTS_OBJECT;
use crate::kernel::recovery::{Division, EXPIRY_UNEXPECTED};
use crate::kernel::session::SESSIONS_OBJECT;
use crate::storage::record::{self, EXPIRY_BYTES, Kind, NEVER, OBJECTS_MAX, Shape};
use crate::storage::seal::{SEAL_BYTES, Seal, zero_sectors};
use crate::storage::segments::name_of;
use crate::storage::superblock::{FILE, SLOT_BYTES, SuperblockFile};
use crate::storage::tree;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{Kiln, Options};

const SEGMENT: &str = "segment-00000000";
const HEAD: usize = SEAL_BYTES as usize;

pub(super) fn options() -> Options {
    Options::new().background(false).segment_bytes(64 << 10).memory(128 << 10)
}

pub(super) fn open(disk: &SimulatedDevice) -> Result<Kiln> {
    options().open_on(Arc::new(disk.clone()))
}

/// As [`open`], by several threads, although the log is short.
fn open_by_several(disk: &SimulatedDevice) -> Result<Kiln> {
    let mut options = options();
    options.recovery = Division {
        workers: Some(3),
        threads_from_bytes: 0,
        piece_bytes: 100,
        read_bytes: BLOCK_BYTES,
        ..Division::default()
    };
    options.open_on(Arc::new(disk.clone()))
}

/// A database with a map and a table, stopped after its third hardening.
pub(super) fn stopped() -> SimulatedDevice {
    let disk = SimulatedDevice::new(1);
    let db = open(&disk).unwrap();
    let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
    db.persist().unwrap();
    db.put(&map, "key", "value").unwrap().safe().unwrap();
    db.put(&table, "row", "value").unwrap().safe().unwrap();
    disk.crash_after(disk.steps());
    drop((map, table, db));
    disk.after_crash_seeded(1)
}

/// The last extent of a segment: where it is, its seal, and what follows the seal.
fn last_extent(segment: &[u8]) -> (usize, Seal, Vec<u8>) {
    let (mut at, mut last) = (0, None);
    while let Ok((seal, _)) = Seal::decode(&segment[at..]) {
        let end = at + seal.length as usize;
        last = Some((at, seal, segment[at + HEAD..end].to_vec()));
        at = end;
    }
    last.expect("there is an extent")
}

/// A disk whose last extent was changed, with every checksum made to hold.
pub(super) fn forged(change: impl FnOnce(&mut Seal, &mut Vec<u8>)) -> SimulatedDevice {
    forged_on(stopped(), change)
}

fn forged_on(disk: SimulatedDevice, change: impl FnOnce(&mut Seal, &mut Vec<u8>)) -> SimulatedDevice {
    let mut segment = disk.bytes(SEGMENT);
    let (at, mut seal, mut data) = last_extent(&segment);
    change(&mut seal, &mut data);
    seal.data_checksum = crc32c::crc32c(&data);
    segment[at + HEAD..at + HEAD + data.len()].copy_from_slice(&data);
    seal.zero_sectors = zero_sectors(&segment[at + SECTOR_BYTES..at + HEAD + data.len()]);
    segment[at..at + HEAD].copy_from_slice(&seal.encode().0);
    disk.set_bytes(SEGMENT, segment);
    disk
}

pub(super) struct Forged<'a> {
    pub(super) kind: Kind,
    pub(super) object: u32,
    pub(super) version: u64,
    pub(super) previous: u64,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) expires_at: u64,
}

impl Default for Forged<'_> {
    fn default() -> Self {
        let (kind, object, expires_at) = (Kind::Put, FIRST_OBJECT, NEVER);
        Forged { kind, object, version: 1, previous: 0, key: b"key", value: b"", expires_at }
    }
}

/// Puts a record in the place of the padding at the end of an extent.
pub(super) fn append(seal: &Seal, data: &mut [u8], forged: &Forged<'_>) {
    let at = padding_at(data);
    let shape = Shape {
        kind: forged.kind,
        object: forged.object,
        key_bytes: forged.key.len(),
        value_bytes: forged.value.len() + if forged.kind == Kind::Expiring { EXPIRY_BYTES } else { 0 },
    };
    let words: Vec<AtomicU64> = (0..shape.words()).map(|_| AtomicU64::new(0)).collect();
    record::write(
        &words,
        shape,
        forged.version,
        forged.previous,
        forged.key,
        (forged.value, forged.expires_at),
    );
    let mut bytes: Vec<u8> =
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
    finish(seal.address + SEAL_BYTES + at as u64, &mut bytes);
    data[at..at + bytes.len()].copy_from_slice(&bytes);
    let (at, end) = (at + bytes.len(), data.len());
    data[at..at + 8].copy_from_slice(&record::padding_word((end - at) as u64).to_le_bytes());
}

/// Fills in the checksum of the record that begins `bytes`.
fn finish(address: u64, bytes: &mut [u8]) {
    let mut behind_room = [&[0; 8], &*bytes].concat();
    record::finish(address, &mut behind_room, 8).unwrap();
    bytes.copy_from_slice(&behind_room[8..]);
}

fn padding_at(data: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let word = u64::from_le_bytes(*data[at..].first_chunk().unwrap());
        match Shape::parse(word) {
            Some(shape) => at += shape.bytes() as usize,
            None => return at,
        }
    }
}

/// It is refused as damaged, and the check finds it.
#[track_caller]
pub(super) fn refused(disk: &SimulatedDevice, what: &str) {
    let report = check_on(Arc::new(disk.after_crash_seeded(1))).unwrap();
    assert!(report.problems.iter().any(|problem| problem.contains(what)), "{what:?} is not in {report}");
    let by_several = open_by_several(&disk.after_crash_seeded(1)).expect_err(what);
    let error = open(disk).expect_err(what);
    assert_eq!(by_several.to_string(), error.to_string());
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
    assert!(error.to_string().contains(what) && error.place().is_some(), "{error}");
}

/// It opens, but the check does not call it sound.
#[track_caller]
fn suspicious(disk: &SimulatedDevice, what: &str) {
    let report = check_on(Arc::new(disk.after_crash_seeded(1))).unwrap();
    assert!(report.problems.iter().any(|problem| problem.contains(what)), "{what:?} is not in {report}");
    open_by_several(&disk.after_crash_seeded(1)).unwrap().close().unwrap();
    open(disk).unwrap().close().unwrap();
}

#[test]
fn nothing_is_wrong_where_nothing_was_changed() {
    let disk = forged(|_, _| {});
    assert!(check_on(Arc::new(disk.after_crash_seeded(1))).unwrap().is_clean());
    open(&disk).unwrap().close().unwrap();
}

#[test]
fn a_seal_that_does_not_belong_where_it_is_is_refused() {
    refused(&forged(|seal, _| seal.database += 1), "belongs to another database");
    refused(&forged(|seal, _| seal.address += BLOCK_BYTES as u64), "belongs to another place");
    refused(&forged(|seal, _| seal.previous_checksum += 1), "does not continue");
    refused(&forged(|seal, _| seal.number += 1), "does not continue");
}

#[test]
fn an_extent_of_an_impossible_length_is_refused() {
    for length in [0, SEAL_BYTES, BLOCK_BYTES as u64 + 8, 64 << 10] {
        refused(&forged(|seal, _| seal.length = length), "impossible length");
    }
}

/// These were added to without a look: the sum overflowed.
#[test]
fn a_seal_whose_numbers_are_out_of_bounds_is_refused() {
    let cases: [fn(&mut Seal); 7] = [
        |seal| seal.address = 1 << 48,
        |seal| seal.length = 1 << 48,
        |seal| seal.number = u64::MAX,
        |seal| seal.version = 1 << 48,
        |seal| seal.first_version = 1 << 48,
        |seal| seal.first_version = seal.version,
        |seal| (seal.version, seal.first_version) = (u64::MAX, u64::MAX),
    ];
    for change in cases {
        refused(&forged(|seal, _| change(seal)), "numbers are impossible");
    }
}

/// It was given up when the database was opened, and came back when a later version was sealed.
#[test]
fn a_record_that_an_orderly_close_has_not_sealed_stays_lost() -> Result<()> {
    let disk = forged(|seal, data| {
        let record = Forged { key: b"unsealed", version: seal.version + 1, ..Forged::default() };
        append(seal, data, &record);
    });
    let (at, seal, _) = last_extent(&disk.bytes(SEGMENT));
    let end = at as u64 + seal.length;
    sign_slots(&disk, FILE, |slot| {
        slot[12] = 1;
        slot[64..72].copy_from_slice(&end.to_le_bytes());
        slot[80..88].copy_from_slice(&(seal.version + 1).to_le_bytes());
    });
    let db = open(&disk)?;
    assert!(!db.recovery_report().clean);
    db.put(&db.map("map")?, "key", "newer")?.safe()?;
    db.close()?;
    drop(db);
    let db = open(&disk)?;
    assert_eq!(db.get(&db.map("map")?, "unsealed")?, None);
    assert!(db.check()?.is_clean());
    db.close()
}

#[test]
fn records_of_the_system_that_say_nothing_are_refused() {
    let refuse = |object: u32, kind: Kind, key: &[u8], value: &[u8], what: &str| {
        let record = Forged { kind, object, key, value, ..Forged::default() };
        refused(&forged(|seal, data| append(seal, data, &record)), what);
    };
    let serial = 7_u64.to_le_bytes();
    let entry = |kind: u8, id: u32| [&[kind], id.to_le_bytes().as_slice()].concat();
    refuse(SESSIONS_OBJECT, Kind::Put, b"session", b"seven", "holds no serial number");
    // The superblock would be older than that.
    refuse(SESSIONS_OBJECT, Kind::Tombstone, b"session", b"", "the superblock says that none was");
    refuse(LOSSES_OBJECT, Kind::Put, b"one", &serial, "does not name versions");
    refuse(LOSSES_OBJECT, Kind::Put, &serial, b"two", "does not name versions");
    refuse(LOSSES_OBJECT, Kind::Put, &serial, &[0; 8], "does not name versions");
    for value in [&b""[..], b"\x01", &entry(3, 20), &entry(1, FIRST_OBJECT - 1), &entry(1, OBJECTS_MAX)] {
        refuse(CATALOG_OBJECT, Kind::Put, b"name", value, "names no object");
    }
    refuse(CATALOG_OBJECT, Kind::Put, b"\xff", &entry(1, 20), "names no object");
    refuse(CATALOG_OBJECT, Kind::Put, b"", b"too many", "names no object");
    refuse(CATALOG_OBJECT, Kind::Put, b"other", &entry(1, FIRST_OBJECT), "the number of another one");
    refuse(CATALOG_OBJECT, Kind::Put, b"map", &entry(2, FIRST_OBJECT), "the number of another one");
    refuse(100, Kind::Put, b"key", b"", "not in the catalog");
    refuse(FIRST_OBJECT - 1, Kind::Put, b"key", b"", "not in the catalog");
    let version = |version: u64| [version, 0].map(u64::to_le_bytes).concat();
    refuse(SNAPSHOTS_OBJECT, Kind::Put, b"", &version(0), "does not say which version");
    refuse(SNAPSHOTS_OBJECT, Kind::Put, b"monday", b"", "does not say which version");
    // The record's own version.
    refuse(SNAPSHOTS_OBJECT, Kind::Put, b"monday", &version(1), "does not say which version");
    // The superblock would be older than the name.
    refuse(SNAPSHOTS_OBJECT, Kind::Put, b"monday", &version(0), "the superblock says that none has");
}

#[test]
fn c9_a_record_that_expires_at_no_time_or_where_none_does_is_refused() {
    let refuse = |object: u32, expires_at: u64, what: &str| {
        let record = Forged { kind: Kind::Expiring, object, expires_at, ..Forged::default() };
        refused(&forged(|seal, data| append(seal, data, &record)), what);
    };
    refuse(FIRST_OBJECT, NEVER, "does not say when");
    refuse(SESSIONS_OBJECT, 5, EXPIRY_UNEXPECTED);
    // Of an object that is known before the log is read.
    let disk = SimulatedDevice::new(1);
    let db = open(&disk).unwrap();
    let map = db.map("map").unwrap();
    db.persist().unwrap();
    assert!(db.checkpoint().unwrap());
    db.put(&map, "key", "value").unwrap().safe().unwrap();
    disk.crash_after(disk.steps());
    drop((map, db));
    let record = Forged { kind: Kind::Expiring, expires_at: 5, ..Forged::default() };
    let forged = forged_on(disk.after_crash_seeded(1), |seal, data| append(seal, data, &record));
    refused(&forged, EXPIRY_UNEXPECTED);
}

#[test]
fn a_backup_of_a_newer_format_is_refused_as_such() -> Result<()> {
    let disk = stopped();
    let db = open(&disk)?;
    let stream = SimulatedDevice::new(1);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut bytes = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| db.backup_stream(writer, |_| {}).unwrap());
        std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
    });
    bytes[8] += 1;
    let checksum = crc32c::crc32c(&bytes[..12]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    let error = Kiln::restore_stream_on(&bytes[..], Arc::new(stream), |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Version, "{error}");
    Ok(())
}

/// Keys are compared by whole words in memory: such a key was listed and could not be found.
#[test]
fn a_record_that_is_not_filled_up_with_zeros_is_refused() {
    for at in [record::HEADER_BYTES + 3, record::HEADER_BYTES + 8 + 5] {
        let disk = forged(|seal, data| {
            data[at] = 1;
            let address = seal.address + SEAL_BYTES;
            finish(address, data);
        });
        refused(&disk, "not filled up with zeros");
    }
}

/// The index looked for an entry that it has no bits for.
#[test]
fn a_record_that_does_not_follow_an_earlier_one_is_refused() {
    for previous in [131, 1 << 40, (1 << 48) - 8] {
        let record = Forged { key: b"new", previous, ..Forged::default() };
        refused(&forged(|seal, data| append(seal, data, &record)), "is not before it");
    }
}

#[test]
fn records_that_do_not_fit_together_are_found_by_the_check() {
    let suspect = |record: Forged<'_>, what: &str| {
        suspicious(&forged(|seal, data| append(seal, data, &record)), what);
    };
    suspect(Forged { key: b"new", version: 0, ..Forged::default() }, "has version 0");
    suspect(Forged { key: b"new", previous: 136, ..Forged::default() }, "is not there");
    suspect(Forged { previous: 0, version: 2, ..Forged::default() }, "does not follow");
    suspect(Forged { version: 0, ..Forged::default() }, "not in the order of their versions");
    suspicious(&forged(|seal, _| seal.version = 0), "older than the one before it");
}

#[test]
fn a_record_that_is_cut_off_by_the_end_of_its_extent_is_refused() {
    let end = |data: &mut [u8], word: u64| {
        let at = data.len() - 8;
        let padding = padding_at(data);
        data[padding..padding + 8]
            .copy_from_slice(&record::padding_word((at - padding) as u64).to_le_bytes());
        data[at..].copy_from_slice(&word.to_le_bytes());
    };
    refused(&forged(|_, data| end(data, 1 << 60)), "header is cut short");
    refused(&forged(|_, data| end(data, record::padding_word(16))), "longer than its extent");
    refused(&forged(|_, data| end(data, 3 << 60)), "cut short");
    refused(&forged(|_, data| end(data, 3 << 60 | 12)), "cut short");
    let long = |data: &mut Vec<u8>| {
        let at = padding_at(data);
        data[at..at + 8].copy_from_slice(&(1_u64 << 60 | 5_000).to_le_bytes());
    };
    refused(&forged(|_, data| long(data)), "longer than the space it is in");
}

#[test]
fn a_superblock_that_makes_no_sense_is_damaged() {
    let cases: [(usize, u64); 7] = [
        (40, 3 << 16),
        (40, 1 << 13),
        (40, 1 << 31),
        (56, 4_096),
        (64, 100),
        (64, 1 << 48),
        // It was added to, and the sum overflowed.
        (80, u64::MAX),
    ];
    for (at, value) in cases {
        let disk = stopped();
        sign_slots(&disk, FILE, |slot| slot[at..at + 8].copy_from_slice(&value.to_le_bytes()));
        refused(&disk, "neither of its slots is valid");
    }
    let disk = stopped();
    sign_slots(&disk, FILE, |slot| slot[56..64].copy_from_slice(&(1_u64 << 20).to_le_bytes()));
    refused(&disk, "neither of its slots is valid");
    let disk = stopped();
    disk.set_bytes(FILE, &disk.bytes(FILE)[..100]);
    refused(&disk, "neither of its slots is valid");
}

fn sign_slots(disk: &SimulatedDevice, name: &str, change: impl Fn(&mut [u8])) {
    let mut file = disk.bytes(name);
    for slot in file.chunks_mut(BLOCK_BYTES).take(2) {
        change(&mut slot[..SLOT_BYTES]);
        let checksum = crc32c::crc32c(&slot[..SLOT_BYTES - 4]);
        slot[SLOT_BYTES - 4..SLOT_BYTES].copy_from_slice(&checksum.to_le_bytes());
    }
    disk.set_bytes(name, file);
}

/// The number after it overflowed.
#[test]
fn a_load_of_an_object_that_no_database_has_is_damage() -> Result<()> {
    for number in [OBJECTS_MAX, u32::MAX] {
        let disk = SimulatedDevice::new(1);
        let db = open(&disk)?;
        db.bulk_load("table", [Ok::<_, Error>(("key", "value"))], |_| {})?;
        db.close()?;
        let superblock = disk.after_crash_seeded(1);
        sign_slots(&superblock, FILE, |slot| slot[120..124].copy_from_slice(&number.to_le_bytes()));
        refused(&superblock, "neither of its slots is valid");
        sign_slots(&disk, tree::FILE, |slot| slot[104..108].copy_from_slice(&number.to_le_bytes()));
        refused(&disk, "neither of its root slots is valid");
    }
    Ok(())
}

/// One slot alone said that something was loaded. Without it the database went on as if nothing had been, and without the tree the table was there, and empty.
#[test]
fn c9_a_tree_is_missed_that_has_what_only_a_damaged_slot_has_said_was_loaded() -> Result<()> {
    let loaded = || -> Result<SimulatedDevice> {
        let disk = SimulatedDevice::new(1);
        let db = open(&disk)?;
        db.bulk_load("table", [Ok::<_, Error>(("key", "value"))], |_| {})?;
        Ok(disk.after_crash(&mut |_| Keep::Kept))
    };
    for slot in 0..2 {
        let disk = loaded()?;
        disk.flip_bit(FILE, 8 * (slot * BLOCK_BYTES as u64 + 16));
        disk.remove_file(tree::FILE);
        refused(&disk, "it is missing, or older than the superblock says");
    }
    // What both slots have lost the opening finds in the tree, and says in both.
    for slot in 0..2 {
        let disk = loaded()?;
        sign_slots(&disk, FILE, |slot| slot[120..124].fill(0));
        let _db = open(&disk)?;
        let disk = disk.after_crash(&mut |_| Keep::Kept);
        disk.flip_bit(FILE, 8 * (slot * BLOCK_BYTES as u64 + 16));
        disk.remove_file(tree::FILE);
        refused(&disk, "it is missing, or older than the superblock says");
    }
    Ok(())
}

/// The number after it overflowed, and the slot that had it was the newer one for ever.
#[test]
fn a_generation_behind_which_there_is_no_other_is_damage() -> Result<()> {
    let disk = SimulatedDevice::new(1);
    let db = open(&disk)?;
    db.put(&db.table("table")?, "key", "value")?.safe()?;
    db.settle()?;
    db.close()?;
    /// Where it is, in both files.
    const GENERATION: usize = 16;
    for (name, what) in
        [(FILE, "neither of its slots is valid"), (tree::FILE, "neither of its root slots is valid")]
    {
        let forged = disk.after_crash_seeded(1);
        sign_slots(&forged, name, |slot| {
            slot[GENERATION..GENERATION + 8].copy_from_slice(&u64::MAX.to_le_bytes())
        });
        refused(&forged, what);
    }
    Ok(())
}

/// Its entry in the catalog was lost with it, and dropped with its segment.
#[test]
fn a_record_of_an_object_that_was_lost_is_not_found_fault_with() {
    let disk = forged(|seal, data| {
        append(seal, data, &Forged { object: 100, version: seal.version + 1, ..Forged::default() });
    });
    assert!(check_on(Arc::new(disk.clone())).unwrap().is_clean());
    assert!(open(&disk).unwrap().check().unwrap().is_clean());
}

/// A newer superblock, which said so, must have been damaged: it opens like after a crash.
#[test]
fn a_log_that_goes_on_behind_an_orderly_close_is_found_by_the_check() {
    let disk = stopped();
    let (at, ..) = last_extent(&disk.bytes(SEGMENT));
    sign_slots(&disk, FILE, |slot| {
        slot[12] = 1;
        slot[64..72].copy_from_slice(&(at as u64).to_le_bytes());
    });
    suspicious(&disk, "does not end where the orderly close left it");
}

/// It was told to restore a backup, though all commits were there: the damaged slot had said that the database was opened again.
#[test]
fn a_log_that_goes_on_behind_an_orderly_close_is_no_wonder_where_a_newer_slot_is_damaged() -> Result<()> {
    let disk = SimulatedDevice::new(1);
    open(&disk)?.close()?;
    let db = open(&disk)?;
    db.put(&db.table("table")?, "key", "value")?.safe()?;
    let disk = disk.after_crash(&mut |_| Keep::Kept);
    let newer = SuperblockFile::open(&disk, OpenMode::Read)?.current().generation % 2;
    disk.flip_bit(FILE, 8 * (newer * BLOCK_BYTES as u64 + 16));
    let report = check_on(Arc::new(disk.clone()))?;
    assert!(report.is_mendable() && report.problems.len() == 1, "{report}");
    let db = open(&disk)?;
    assert_eq!(db.get(&db.table("table")?, "key")?, Some(b"value".to_vec()));
    Ok(())
}

/// Its number, times the size of a segment, is no address: the multiplication overflowed.
#[test]
fn a_file_with_the_name_of_an_impossible_segment_is_passed_over() {
    let disk = stopped();
    disk.set_bytes(&name_of(u64::MAX), vec![0; 64 << 10]);
    disk.set_bytes(&name_of(1 << 32), vec![1; 64 << 10]);
    assert!(check_on(Arc::new(disk.after_crash_seeded(1))).unwrap().is_clean());
    open(&disk).unwrap().close().unwrap();
}

/// Behind the end of the log only what is a seal of this database, in its place, proves that durable extents follow.
#[test]
fn seals_of_others_behind_the_end_do_not_prove_damage() {
    let behind = |change: fn(&mut Seal)| {
        let disk = stopped();
        let mut segment = disk.bytes(SEGMENT);
        let (at, mut seal, _) = last_extent(&segment);
        let place = at + seal.length as usize + BLOCK_BYTES;
        (seal.address, seal.number) = (place as u64, seal.number + 2);
        change(&mut seal);
        segment[place..place + HEAD].copy_from_slice(&seal.encode().0);
        disk.set_bytes(SEGMENT, segment);
        disk
    };
    let others: [fn(&mut Seal); 3] =
        [|seal| seal.database += 1, |seal| seal.address = 0, |seal| seal.number = 1];
    for change in others {
        assert!(open(&behind(change)).unwrap().recovery_report().cut_bytes > 0);
    }
    refused(&behind(|_| {}), "durable extents follow");
}

#[test]
fn files_that_are_being_made_are_no_database() {
    let disk = SimulatedDevice::new(1);
    for name in ["segment.new", "spare-00000000", "superblock.new"] {
        disk.set_bytes(name, [1; 100]);
    }
    assert_eq!(
        options().create(false).open_on(Arc::new(disk.clone())).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(check_on(Arc::new(disk.clone())).unwrap_err().kind(), ErrorKind::NotFound);
    open(&disk).unwrap().close().unwrap();
}
