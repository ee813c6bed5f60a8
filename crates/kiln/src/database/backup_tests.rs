//! What a backup has of the rows that move while it looks for the log's ends.

use std::sync::Arc;

use super::backup::Source;
use super::check::check_on;
use crate::device::somebody::as_somebody;
use crate::device::{
    BLOCK_BYTES, Device, Fault, FaultKind, FileDevice, OpenMode, OperationKind, SimulatedDevice,
};
use crate::error::ErrorKind;
use crate::kernel::checkpoint::Haste;
use crate::{Kiln, Level, Object as _, Options};

/// Enough for several segments.
const ROWS: u16 = 400;
/// These come first in the log, and are overwritten.
const MOVED_ROWS: u16 = 100;

fn put(db: &Kiln, rows: std::ops::Range<u16>, value: u8) {
    let map = db.map("map").unwrap();
    rows.for_each(|number| db.put(&map, number.to_le_bytes(), [value; 1_000]).unwrap().forget());
    db.persist().unwrap();
}

/// Who was told between the looks for the log's end and for its beginning could have its rows written anew behind the one, and dropped before the other:
/// the copy had neither.
#[test]
fn c4_a_backup_misses_no_row_that_is_written_anew_and_dropped_by_who_is_told_within_it() {
    let options = Options::new()
        .background(false)
        .segment_bytes(64 << 10)
        .memory(0)
        .settle_log_bytes(0)
        .checkpoint_log_bytes(0);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    put(&db, 0..ROWS, 1);
    let before = db.statistics();
    let (overwriting, within) = (db.clone(), db.clone());
    let overwrite = move || {
        let begin = overwriting.statistics().log_begin;
        put(&overwriting, 0..MOVED_ROWS, 2);
        overwriting.persist().unwrap();
        assert!(overwriting.statistics().log_begin > begin, "segments are dropped");
    };
    // Told by the backup's first hardening, which so comes to owe somebody else an answer.
    let map = db.map("map").unwrap();
    let receipt = db.put(&map, "first", "value").unwrap().fast().1;
    receipt.on_durable(Level::LOCAL, move |_| {
        let map = within.map("map").unwrap();
        let receipt = within.put(&map, "second", "value").unwrap().fast().1;
        receipt.on_durable(Level::LOCAL, move |_| overwrite());
        within.engine().harden_all().unwrap();
    });
    let target = SimulatedDevice::new(1);
    db.backup_on(Arc::new(target.clone()), |_| {}).unwrap();
    let after = db.statistics();
    assert!(after.log_begin > before.log_begin, "the second was told");

    let copy = options.open_on(Arc::new(target)).unwrap();
    let map = copy.map("map").unwrap();
    for number in 0..ROWS {
        assert!(copy.get(&map, number.to_le_bytes()).unwrap().is_some(), "row {number}");
    }
    assert_eq!(map.len(), u64::from(ROWS) + 2);
}

/// The copy would have had what was deleted in its tree, and the deletion nowhere.
#[test]
fn c4_a_backup_takes_no_tree_whose_deletions_have_left_the_log() {
    let disk = SimulatedDevice::new(1);
    let options = Options::new().background(false).segment_bytes(64 << 10).memory(0).settle_log_bytes(0);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    let engine = db.engine();
    (0..40_u8).for_each(|number| db.put(&table, [number], [1; 500]).unwrap().forget());
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 40);
    (0..20_u8).for_each(|number| assert!(db.delete(&table, [number]).unwrap().forget()));
    (40..140_u8).for_each(|number| db.put(&table, [number], [1; 8_000]).unwrap().forget());
    db.persist().unwrap();
    let root = engine.settled.tree.root();
    disk.set_capacity(Some(disk.used_bytes()));
    assert_eq!(db.settle().unwrap_err().kind(), ErrorKind::NoSpace);
    let newest = engine.settled.tree.root();
    assert!(newest.is_newer_than(&root));
    assert_eq!(newest.settled_to(), root.settled_to(), "deletions alone have settled");
    assert!(Source::unless_settled_since(engine, root).unwrap().is_none());
    assert!(Source::unless_settled_since(engine, newest).unwrap().is_some());
}

/// Its superblock named a file that it has not, which was damage for who opened it.
#[test]
fn c9_a_copy_names_no_checkpoint_where_the_one_that_was_to_be_copied_is_damaged() {
    let disk = SimulatedDevice::new(1);
    let options = Options::new().background(false).segment_bytes(64 << 10);
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    put(&db, 0..ROWS, 1);
    assert!(db.engine().take_checkpoint(Haste::Waited).unwrap());
    let names = disk.list().unwrap();
    let checkpoint = names.iter().find(|name| name.starts_with("checkpoint-")).unwrap();
    disk.flip_bit(checkpoint, 0);
    let target = SimulatedDevice::new(2);
    db.backup_on(Arc::new(target.clone()), |_| {}).unwrap();
    let copy = options.open_on(Arc::new(target)).unwrap();
    assert_eq!(copy.recovery_report().checkpoint_damage, None);
    assert_eq!(copy.map("map").unwrap().len(), u64::from(ROWS));
}

/// Who had put something there meanwhile lost it.
#[test]
fn c8_a_copy_that_fails_takes_nothing_away_that_is_not_its_own() {
    let db =
        Options::new().background(false).segment_bytes(64 << 10).open_on(Arc::new(SimulatedDevice::new(1)));
    let db = db.unwrap();
    put(&db, 0..ROWS, 1);
    let target = SimulatedDevice::new(2);
    let mut is_first = true;
    let failed = db.backup_on(Arc::new(target.clone()), |_| {
        if std::mem::take(&mut is_first) {
            target.open("notes", OpenMode::Create).unwrap();
            target.inject(Fault {
                operation: OperationKind::Sync,
                nth: 2,
                kind: FaultKind::EIO,
                sticky: false,
            });
        }
    });
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(target.list().unwrap(), ["notes"]);
}

/// Directories, links, and names that are no text counted as nothing.
#[test]
fn a_directory_with_anything_in_it_is_not_empty() {
    use std::os::unix::ffi::OsStrExt;
    let db = Options::new().background(false).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    type Fill = fn(&std::path::Path);
    let fills: [Fill; 3] = [
        |inside| std::fs::create_dir(inside.join("directory")).unwrap(),
        |inside| std::os::unix::fs::symlink("elsewhere", inside.join("link")).unwrap(),
        |inside| std::fs::write(inside.join(std::ffi::OsStr::from_bytes(b"\xff")), "").unwrap(),
    ];
    for fill in fills {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path());
        let error = db.backup(directory.path(), |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input, "{error}");
        assert_eq!(directory.path().read_dir().unwrap().count(), 1);
    }
    // A file system's own is nobody's.
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("lost+found")).unwrap();
    db.backup(directory.path(), |_| {}).unwrap();
}

/// Their names were renamed over: an empty database was served where one had been whose files were links.
#[test]
fn no_database_is_made_over_names_of_one_that_are_no_files() {
    for name in ["superblock", "segment-00000000", "tree"] {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join(name);
        std::fs::create_dir(directory.path().join("backups")).unwrap();
        std::os::unix::fs::symlink("elsewhere", &link).unwrap();
        let opened = Options::new().background(false).open(directory.path());
        let error = opened.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input, "{error}");
        assert!(error.to_string().contains("is no regular file"), "{error}");
        assert_eq!(directory.path().read_dir().unwrap().count(), 2);
        assert!(link.is_symlink());
    }
}

/// The tree was opened to be written, too.
#[test]
fn what_may_only_be_read_is_checked_and_restored_from_once_rows_have_settled() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let db = Options::new().background(false).open(directory.path()).unwrap();
    let table = db.table("table").unwrap();
    db.put(&table, "settled", "value").unwrap().safe().unwrap();
    assert_eq!(db.settle().unwrap(), 1);
    db.close().unwrap();
    for entry in directory.path().read_dir().unwrap() {
        set_permissions(entry.unwrap().path(), Permissions::from_mode(0o444)).unwrap();
    }
    set_permissions(directory.path(), Permissions::from_mode(0o555)).unwrap();
    let from = Arc::new(FileDevice::open(directory.path(), false).unwrap());
    let to = Arc::new(SimulatedDevice::new(1));
    as_somebody(|| {
        let problems = check_on(from.clone()).unwrap().problems;
        assert!(problems.is_empty(), "{problems:?}");
        Kiln::restore_on(from.clone(), to.clone(), |_| {}).unwrap();
        let restored = Options::new().background(false).open_on(to.clone()).unwrap();
        let table = restored.table("table").unwrap();
        assert_eq!(restored.get(&table, "settled").unwrap().as_deref(), Some(&b"value"[..]));
    });
}

/// The directory was made before anybody looked at what was to be restored.
#[test]
fn what_cannot_be_restored_leaves_no_directory() {
    let directory = tempfile::tempdir().unwrap();
    let (nothing, source, to) =
        (directory.path().join("nothing"), directory.path().join("source"), directory.path().join("to"));
    std::fs::create_dir(&nothing).unwrap();
    let db = Options::new().background(false).open(&source).unwrap();
    for (from, kind) in [(&nothing, ErrorKind::NotFound), (&source, ErrorKind::Locked)] {
        let error = Kiln::restore(from, &to, |_| {}).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(!to.exists(), "{error}");
    }
    let map = db.map("map").unwrap();
    db.put(&map, "key", "value").unwrap().safe().unwrap();
    assert!(db.checkpoint().unwrap());
    drop(db);
    // Nothing needs a checkpoint, so one that is missing hinders nobody.
    let names = source.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let checkpoint = names.into_iter().find(|name| name.starts_with("checkpoint-")).unwrap();
    std::fs::remove_file(source.join(checkpoint)).unwrap();
    Kiln::restore(&source, &to, |_| {}).unwrap();
    let restored = Options::new().background(false).open(&to).unwrap();
    let map = restored.map("map").unwrap();
    assert_eq!(restored.get(&map, "key").unwrap().as_deref(), Some(&b"value"[..]));
}

/// An opening says in one slot that it is a backup no longer: damage to that one brought the other back, and what was committed and lost since was no loss, but what
/// the backup does not have.
#[test]
fn c8_a_backup_that_was_opened_is_none_again_when_the_slot_that_says_so_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let options = Options::new().background(false);
    let db = options.open(path("db")).unwrap();
    put(&db, 0..1, 1);
    db.backup(path("backup"), |_| {}).unwrap();
    let backup = options.open(path("backup")).unwrap();
    assert!(backup.recovery_report().is_backup);
    put(&backup, 0..1, 2);
    // What a crash leaves.
    std::fs::create_dir(path("crashed")).unwrap();
    for file in std::fs::read_dir(path("backup")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), path("crashed").join(file.file_name())).unwrap();
    }
    let mut slots = std::fs::read(path("crashed").join("superblock")).unwrap();
    let generation = |slots: &[u8], slot: usize| slots[slot * BLOCK_BYTES + 16];
    let newest = (0..2).max_by_key(|&slot| generation(&slots, slot)).unwrap();
    slots[newest * BLOCK_BYTES] ^= 1;
    std::fs::write(path("crashed").join("superblock"), slots).unwrap();

    Kiln::restore(path("crashed"), path("restored"), |_| {}).unwrap();
    for name in ["restored", "crashed"] {
        let opened = options.open(path(name)).unwrap();
        let report = opened.recovery_report();
        assert!(!report.is_backup && report.to_string().contains(" is lost ("), "{name}: {report}");
    }
}
