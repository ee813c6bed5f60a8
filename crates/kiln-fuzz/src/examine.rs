//! What must hold of any database, however its files came to be.
//!
//! Opening, reading, writing and checking end in a result or in a typed error. If the check finds nothing wrong, the database
//! opens and holds what the second reading of the format says; if opening calls it damaged, the check finds that too.

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln::device::{Keep, SimulatedDevice};
use kiln::{Error, ErrorKind, Kiln, ObjectKind, Options, Snapshot};

use crate::format::{self, Files, Told};

/// Larger segments are as well decoded, but every opening would write one.
const SEGMENT_BYTES_MAX: u64 = 64 << 10;
/// The first number of an object that users make.
const FIRST_OBJECT: u32 = 16;
const SESSIONS: u32 = 1;
/// The map that is written to.
const PROBES: &str = "probes";

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// Opens, reads, writes and checks the database in these files.
pub(crate) fn examine(files: &Files) {
    let large = |block: &[u8]| {
        block
            .get(40..48)
            .is_some_and(|size| size.try_into().map_or(0, u64::from_le_bytes) > SEGMENT_BYTES_MAX)
    };
    if files["superblock"].chunks(format::BLOCK).any(large) {
        return;
    }
    let disk = SimulatedDevice::new(1);
    files.iter().for_each(|(name, bytes)| disk.set_bytes(name, bytes));
    let checked = kiln::check_on(Arc::new(copy_of(&disk)));
    let sound = checked.as_ref().is_ok_and(kiln::CheckReport::is_clean);
    let told = format::read(files).filter(|_| sound);
    assert_eq!(told.is_some(), sound, "the check finds nothing wrong, and there is");
    let db = match open(&disk) {
        Ok(db) => db,
        Err(error) => {
            // All versions may be used up, which is no damage.
            let full = error.kind() == ErrorKind::Limit;
            assert!(!sound || full, "the check finds nothing wrong, and opening refuses: {error}");
            assert_refusal(&error);
            return;
        }
    };
    if let Some(told) = &told {
        compare(&db, told);
    } else {
        // Whatever it says, it says it in order.
        let _ = read(&db);
    }
    let before = told.is_some().then(|| read(&db));
    if let Err(error) = write(&db) {
        assert!(!sound, "it cannot be written to: {error}");
        return;
    }
    drop(db);
    if let Some(before) = before {
        reopen(&disk, &before.unwrap_or_else(|error| panic!("it cannot be read: {error}")));
    }
}

fn open(disk: &SimulatedDevice) -> kiln::Result<Kiln> {
    Options::new().background(false).segment_bytes(64 << 10).memory(128 << 10).open_on(Arc::new(disk.clone()))
}

fn copy_of(disk: &SimulatedDevice) -> SimulatedDevice {
    disk.after_crash(&mut |_| Keep::Kept)
}

/// Damage is an error that names its place; nothing in the files of a database is anybody else's fault.
fn assert_refusal(error: &Error) {
    match error.kind() {
        ErrorKind::Corrupted => assert!(error.place().is_some(), "no place: {error}"),
        kind => {
            assert!(matches!(kind, ErrorKind::Version | ErrorKind::Limit), "refused as {kind:?}: {error}")
        }
    }
}

/// Everything in the objects, by name.
fn read(db: &Kiln) -> kiln::Result<BTreeMap<String, Contents>> {
    let snapshot = db.snapshot()?;
    let mut all = BTreeMap::new();
    for object in db.objects() {
        // A second object of a kind and a name that the catalog does not give it.
        let Ok(contents) = read_object(db, &snapshot, &object.name, object.kind) else { continue };
        all.insert(object.name, contents);
    }
    Ok(all)
}

fn read_object(db: &Kiln, snapshot: &Snapshot<'_>, name: &str, kind: ObjectKind) -> kiln::Result<Contents> {
    if kind == ObjectKind::Table {
        let table = db.table(name)?;
        let forwards = snapshot.range::<&[u8]>(&table, ..).collect::<kiln::Result<Vec<_>>>()?;
        let mut backwards =
            snapshot.range::<&[u8]>(&table, ..).reverse().collect::<kiln::Result<Vec<_>>>()?;
        backwards.reverse();
        assert_eq!(forwards, backwards, "{name}: a range backwards differs from one forwards");
        return Ok(forwards.into_iter().collect());
    }
    let map = db.map(name)?;
    snapshot.iter(&map).collect()
}

/// What is read is what the log tells.
fn compare(db: &Kiln, told: &Told) {
    let report = db.recovery_report();
    assert_eq!(report.horizon.number(), told.horizon, "the horizon");
    let of = |object: u32| -> Contents {
        let keys = told.state.range((object, Vec::new())..(object + 1, Vec::new()));
        keys.map(|((_, key), value)| (key.clone(), value.clone())).collect()
    };
    let sessions: Vec<_> = of(SESSIONS).into_iter().collect();
    let found: Vec<_> =
        report.sessions.iter().map(|(id, serial)| (id.clone(), serial.to_le_bytes().to_vec())).collect();
    assert_eq!(found, sessions, "the sessions");
    let catalog = format::catalog(&told.state);
    let all = read(db).unwrap_or_else(|error| panic!("it cannot be read: {error}"));
    let snapshot = db.snapshot().unwrap_or_else(|error| panic!("it cannot be read: {error}"));
    for (name, (kind, number)) in &catalog {
        let expected = of(*number);
        assert_eq!(all.get(name), Some(&expected), "object {name:?}");
        for (key, value) in &expected {
            let got = match kind {
                1 => db.map(name).and_then(|map| Ok((db.get(&map, key)?, snapshot.get(&map, key)?))),
                _ => db.table(name).and_then(|table| Ok((db.get(&table, key)?, snapshot.get(&table, key)?))),
            };
            let (now, then) = got.unwrap_or_else(|error| panic!("{name:?}, {key:?}: {error}"));
            assert_eq!((now.as_ref(), then.as_ref()), (Some(value), Some(value)), "{name:?}, {key:?}");
        }
    }
    assert!(catalog.values().all(|(_, number)| *number >= FIRST_OBJECT), "a system object has a second name");
    let report = db.check().unwrap_or_else(|error| panic!("it cannot be checked: {error}"));
    assert!(report.is_clean(), "once it is open: {report}");
}

/// A commit on top of what was recovered, by a session, and an orderly end.
fn write(db: &Kiln) -> kiln::Result<()> {
    let map = db.map(PROBES)?;
    let session = db.session("probe")?;
    session.transact(|tx| tx.put(&map, "key", "value"))?.safe()?;
    db.put(&map, "key", "newer")?.safe()?;
    db.delete(&map, "key")?.safe()?;
    db.close()
}

fn reopen(disk: &SimulatedDevice, before: &BTreeMap<String, Contents>) {
    let report = kiln::check_on(Arc::new(copy_of(disk)));
    let report = report.unwrap_or_else(|error| panic!("after writing to it: {error}"));
    assert!(report.is_clean(), "after writing to it: {report}");
    let db = open(disk).unwrap_or_else(|error| panic!("it does not open a second time: {error}"));
    let mut after = read(&db).unwrap_or_else(|error| panic!("it cannot be read a second time: {error}"));
    if !before.contains_key(PROBES) {
        after.remove(PROBES);
    }
    if let Some(probes) = after.get_mut(PROBES) {
        probes.extend(
            before[PROBES].get_key_value(b"key".as_slice()).map(|(key, value)| (key.clone(), value.clone())),
        );
    }
    assert_eq!(&after, before, "a second opening shows something else");
}
