//! C1, C4, C5: an object is dropped as a whole, as durable as any commit; and its rows go, and with them their space.

use std::sync::Arc;

use kiln::device::{Device, Keep, SimulatedDevice};
use kiln::{Error, ErrorKind, Expiry, Level, Object, check_on};

use super::dropping::{ROWS, again, assert_all_there, assert_dropped, fill, filled, key, open, value};
use crate::crash::reopen;
use crate::support::{copy_of, manual};
use crate::testing::{PATIENCE, background, budget, eventually, seed, watched};

/// What a run came to before the power failed.
#[derive(Default)]
struct Came {
    filled: bool,
    asked: bool,
    dropped: bool,
}

/// Drops a map and a table, between checkpoints, settlings and compactions; what was told is in `came`.
fn run(disk: &SimulatedDevice, came: &mut Came) -> kiln::Result<()> {
    let db =
        manual().segment_bytes(16 << 10).checkpoint_log_bytes(12 << 10).open_on(Arc::new(disk.clone()))?;
    let (map, table, stays) = (db.map("map")?, db.table("table")?, db.table("stays")?);
    let put = |from: u32, to: u32| {
        (from..to).try_for_each(|number| {
            db.put(&map, key(number), value(number))?.forget();
            db.put(&stays, key(number), value(number))?.forget();
            db.put(&table, key(number), value(number)).map(|commit| commit.forget())
        })
    };
    put(0, ROWS / 6)?;
    db.persist()?;
    db.settle()?;
    put(ROWS / 6, ROWS / 3)?;
    db.persist()?;
    came.filled = true;
    came.asked = true;
    db.drop_map("map")?.forget();
    db.drop_table("table")?.safe()?;
    came.dropped = true;
    db.persist()?;
    db.put(&db.map("table")?, "new", "v")?.forget();
    db.checkpoint()?;
    for number in 0..60 {
        db.put(&stays, key(ROWS), vec![number; 2_000])?.forget();
        if number % 20 == 0 {
            db.persist()?;
        }
    }
    db.persist()?;
    db.compact(|_| {})?;
    db.persist()
}

fn assert_run(disk: &SimulatedDevice, came: &Came, context: &str) {
    let db = reopen(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
    for _ in 0..2 {
        let report = db.check().unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(report.is_clean(), "{context}: {report}");
        let found =
            |name: &str| db.objects().into_iter().find(|info| info.name == name).map(|info| info.kind);
        let is_map = found("map").is_some();
        let is_table = found("table") == Some(kiln::ObjectKind::Table);
        assert!(is_map || !came.filled || came.asked, "{context}: a map is gone that nobody dropped");
        assert!(!came.dropped || !is_map && !is_table, "{context}: what was dropped is there");
        assert!(
            is_table || !is_map || !came.filled,
            "{context}: the later of two drops was durable before the other"
        );
        if came.filled {
            if is_map {
                let map = db.map("map").unwrap();
                assert_eq!(map.len(), u64::from(ROWS / 3), "{context}");
                (0..ROWS / 3).for_each(|number| {
                    assert_eq!(db.get(&map, key(number)).unwrap(), Some(value(number)), "{context}");
                });
            }
            if is_table {
                let table = db.table("table").unwrap();
                let rows: kiln::Result<Vec<_>> = db.snapshot().unwrap().range::<&[u8]>(&table, ..).collect();
                let expected: Vec<_> =
                    (0..ROWS / 3).map(|number| (key(number).to_vec(), value(number))).collect();
                assert_eq!(rows.unwrap(), expected, "{context}");
            }
            let stays = db.table("stays").unwrap();
            (0..ROWS / 3).for_each(|number| {
                assert_eq!(db.get(&stays, key(number)).unwrap(), Some(value(number)), "{context}");
            });
        }
        // And once more when all has gone.
        db.persist().unwrap();
        db.settle().unwrap();
        assert_eq!(db.statistics().dropping, 0, "{context}");
    }
}

#[test]
fn c4_an_object_is_there_as_a_whole_or_dropped_after_a_crash_at_every_step() {
    let disk = SimulatedDevice::new(seed());
    run(&disk, &mut Came::default()).unwrap();
    let steps = disk.steps();
    let stride = (steps / budget(120)).max(1);
    for step in (1..=steps).step_by(stride as usize) {
        for keep in [Keep::Lost, Keep::Kept] {
            let disk = SimulatedDevice::new(seed());
            disk.crash_after(step);
            let mut came = Came::default();
            let _ = run(&disk, &mut came);
            let left = disk.after_crash(&mut |_| keep);
            assert_run(&left, &came, &format!("step {step} of {steps}, {keep:?}"));
        }
    }
}

/// A drop that a crash takes has not been; nothing of the object is gone that was durable.
#[test]
fn c5_a_drop_that_was_lost_leaves_the_object_as_it_was() {
    let (disk, db) = open(seed());
    let (map, table) = filled(&db);
    db.persist().unwrap();
    db.drop_map("map").unwrap().forget();
    db.drop_table("table").unwrap().forget();
    drop((map, table));
    disk.crash_after(disk.steps());
    drop(db);
    let left = disk.after_crash(&mut |_| Keep::Lost);
    let db = reopen(&left).unwrap();
    let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
    assert_all_there(&db.snapshot().unwrap(), &map, &table, "after the crash");
    assert_eq!((map.len(), table.len()), (u64::from(ROWS), u64::from(ROWS)));
    db.put(&map, key(ROWS), "v").unwrap().forget();
}

/// The log may have records of an object whose entry it does not have any more, but for the one that says that it was dropped.
#[test]
fn c4_a_dropped_object_is_known_as_long_as_there_are_records_of_it() {
    let disk = SimulatedDevice::new(seed());
    let options = || manual().segment_bytes(16 << 10).space_amplification(1.1).checkpoint_log_bytes(0);
    let db = options().open_on(Arc::new(disk.clone())).unwrap();
    let (map, filler) = (db.map("map").unwrap(), db.map("filler").unwrap());
    fill(&db, &map);
    db.create_snapshot("holds").unwrap();
    fill(&db, &map);
    db.drop_map("map").unwrap().forget();
    db.persist().unwrap();
    drop(map);
    db.drop_snapshot("holds").unwrap();
    for round in 0..80_u8 {
        db.put(&filler, [round % 3], vec![round; 4_000]).unwrap().forget();
        db.persist().unwrap();
        let left = copy_of(&disk);
        let copy = options().open_on(Arc::new(left)).unwrap();
        assert!(copy.objects().iter().all(|info| info.name != "map"), "round {round}");
        assert_eq!(copy.get(&copy.map("filler").unwrap(), [round % 3]).unwrap(), Some(vec![round; 4_000]));
        assert!(copy.check().unwrap().is_clean(), "{:?}", copy.check().unwrap().problems);
    }
    assert!(db.statistics().log_begin > 0, "the log's beginning was dropped");
}

#[test]
fn what_is_dropped_gives_its_space_back() {
    let (disk, db) = open(seed());
    let stays = db.table("stays").unwrap();
    fill(&db, &stays);
    let before = disk.list().unwrap().len();
    let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
    for number in 0..4_000_u32 {
        db.put(&map, key(number), [7; 200]).unwrap().forget();
        db.put(&table, key(number), [7; 200]).unwrap().forget();
    }
    db.persist().unwrap();
    db.settle().unwrap();
    let full = db.statistics();
    db.drop_map("map").unwrap().safe().unwrap();
    db.drop_table("table").unwrap().safe().unwrap();
    let compacted = db.compact(|_| {}).unwrap();
    let statistics = db.statistics();
    assert_eq!((statistics.dropping, statistics.settled_rows), (0, u64::from(ROWS)));
    assert!(compacted.bytes_after * 5 < compacted.bytes_before, "{compacted:?}");
    assert!(statistics.live_bytes < full.live_bytes / 5);
    assert!(statistics.keys <= 2 * u64::from(ROWS), "{}", statistics.keys);
    assert!(db.check().unwrap().is_clean(), "{:?}", db.check().unwrap().problems);
    assert!(disk.list().unwrap().len() <= before + 4);
    assert_eq!(stays.len(), u64::from(ROWS));
}

/// Who finds the disk full can drop something, and then there is room. (Where the database was closed before the rows had gone there was none until one dropped, or deleted, something else:
/// nothing was given back before something had hardened since the opening, for which there was no room.)
#[test]
fn c5_a_full_disk_has_room_again_once_an_object_is_dropped() {
    const NAME: &str = "c5_a_full_disk_has_room_again_once_an_object_is_dropped";
    watched(NAME, PATIENCE, |_| {
        for (kind, closes) in [("map", false), ("table", false), ("map", true), ("table", true)] {
            let disk = SimulatedDevice::new(seed());
            let mut db = manual().open_on(Arc::new(disk.clone())).unwrap();
            drop(db.map("stays").unwrap());
            disk.set_capacity(Some(2 << 20));
            let put = |number: u32| match kind {
                "map" => db.put(&db.map(kind)?, key(number), [7; 1_000]).map(|commit| commit.forget()),
                _ => db.put(&db.table(kind)?, key(number), [7; 1_000]).map(|commit| commit.forget()),
            };
            let full = (0..).find_map(|number| put(number).err()).unwrap();
            assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
            let dropped = if kind == "map" { db.drop_map(kind) } else { db.drop_table(kind) };
            dropped.unwrap().safe().unwrap();
            if closes {
                db.close().unwrap();
                drop(db);
                db = reopen(&disk).unwrap();
                assert_eq!(db.statistics().dropping, 1, "{kind}");
            }
            let stays = db.map("stays").unwrap();
            for number in 0..500_u32 {
                db.put(&stays, key(number), [8; 1_000]).unwrap().forget();
            }
            db.persist().unwrap();
            assert_eq!(db.statistics().dropping, 0, "{kind}");
            assert!(db.check().unwrap().is_clean(), "{:?}", db.check().unwrap().problems);
        }
    });
}

/// Each opening walked through the log for them, and what it found to be free came back once somebody committed: so it did also where an opening before it had taken a
/// checkpoint and nothing had hardened in it, which told of the drop as if it were not durable yet.
#[test]
fn what_was_dropped_before_the_database_was_closed_gives_its_space_back_though_nobody_commits() {
    for (takes_checkpoint, compacts) in [(false, false), (true, false), (true, true)] {
        let (disk, db) = open(seed());
        drop(db.map("stays").unwrap());
        let map = db.map("map").unwrap();
        (0..2_000_u32).for_each(|number| db.put(&map, key(number), [7; 1_000]).unwrap().forget());
        db.persist().unwrap();
        assert!(!takes_checkpoint || db.checkpoint().unwrap());
        db.drop_map("map").unwrap().safe().unwrap();
        db.close().unwrap();
        drop((map, db));
        if takes_checkpoint {
            let db = reopen(&disk).unwrap();
            assert!(db.checkpoint().unwrap());
            assert_eq!(db.statistics().dropping, 1);
            db.close().unwrap();
        }
        let before = disk.used_bytes();
        let db = reopen(&disk).unwrap();
        if compacts {
            db.compact(|_| {}).unwrap();
        }
        // What is written anew of the segments that are all but dead has to harden.
        (0..3).for_each(|_| db.persist().unwrap());
        db.close().unwrap();
        let after = disk.used_bytes();
        assert!(after < before / 2, "{after} bytes, before {before}: {takes_checkpoint}, {compacts}");
    }
}

#[test]
fn a_table_that_was_loaded_in_bulk_is_dropped_and_loaded_again() {
    let disk = SimulatedDevice::new(seed());
    let mut db = manual().open_on(Arc::new(disk.clone())).unwrap();
    for round in 0..4 {
        let rows = (0..ROWS).map(|number| Ok::<_, Error>((key(number), value(number))));
        let mut is_tried = false;
        let rows = rows.inspect(|_| {
            if !std::mem::replace(&mut is_tried, true) {
                assert_eq!(db.drop_table("loaded").unwrap_err().kind(), ErrorKind::NotFound);
            }
        });
        let loaded = db.bulk_load("loaded", rows, |_| {}).unwrap();
        let before = db.snapshot().unwrap();
        db.drop_table("loaded").unwrap().safe().unwrap();
        db.persist().unwrap();
        assert_eq!(before.range::<&[u8]>(&loaded.table, ..).count(), ROWS as usize);
        drop(before);
        assert_dropped(db.get(&loaded.table, key(1)), "get");
        drop(loaded);
        db.persist().unwrap();
        assert_eq!((db.statistics().dropping, db.statistics().settled_rows), (0, 0));
        if round % 2 == 1 {
            db.close().unwrap();
            drop(db);
            db = reopen(&disk).unwrap();
        }
    }
}

/// A snapshot from before one object of a name was dropped, and another one with the same name was loaded in bulk, saw its rows after a restart.
#[test]
fn c2_a_snapshot_from_before_sees_none_of_another_table_with_the_same_name() {
    let (disk, db) = open(seed());
    fill(&db, &db.table("name").unwrap());
    db.create_snapshot("before").unwrap();
    db.drop_table("name").unwrap().safe().unwrap();
    let rows = (ROWS..2 * ROWS).map(|number| Ok::<_, Error>((key(number), value(number))));
    drop(db.bulk_load("name", rows, |_| {}).unwrap());
    let (_, db) = again(disk, db);
    let before = db.open_snapshot("before").unwrap();
    let (old, new) = (before.table("name").unwrap(), db.table("name").unwrap());
    assert_eq!(before.range::<&[u8]>(&new, ..).count(), 0);
    assert_eq!(before.get(&new, key(ROWS)).unwrap(), None);
    assert_eq!(before.range::<&[u8]>(&old, ..).count(), ROWS as usize);
    assert_eq!(db.snapshot().unwrap().range::<&[u8]>(&new, ..).count(), ROWS as usize);
    assert_dropped(db.get(&old, key(1)), "get");
}

#[test]
fn c4_a_backup_has_what_was_dropped_or_has_it_not_as_of_its_version() {
    let (_, db) = open(seed());
    let (map, table) = filled(&db);
    db.settle().unwrap();
    let before = SimulatedDevice::new(1);
    db.backup_on(Arc::new(before.clone()), |_| {}).unwrap();
    let held = db.snapshot().unwrap();
    db.drop_map("map").unwrap().forget();
    db.drop_table("table").unwrap().forget();
    let between = SimulatedDevice::new(2);
    db.backup_on(Arc::new(between.clone()), |_| {}).unwrap();
    drop(held);
    db.persist().unwrap();
    let after = SimulatedDevice::new(3);
    db.backup_on(Arc::new(after.clone()), |_| {}).unwrap();
    drop((map, table));
    for (copy, is_there) in [(before, true), (between, false), (after, false)] {
        assert!(check_on(Arc::new(copy.clone())).unwrap().is_clean());
        let copy = reopen(&copy).unwrap();
        assert_eq!(copy.objects().len(), if is_there { 2 } else { 0 });
        if is_there {
            let (map, table) = (copy.map("map").unwrap(), copy.table("table").unwrap());
            assert_all_there(&copy.snapshot().unwrap(), &map, &table, "the copy");
        }
        copy.persist().unwrap();
        assert_eq!(copy.statistics().dropping, 0);
        assert!(copy.check().unwrap().is_clean());
    }
}

#[test]
fn rows_that_expire_go_with_their_object() {
    let (disk, db) = open(seed());
    let tokens = db.map_with_time_to_live("tokens", std::time::Duration::from_secs(3600)).unwrap();
    fill(&db, &tokens);
    db.put_expiring(&tokens, "gone", "v", Expiry::At(1)).unwrap().forget();
    let held = db.snapshot().unwrap();
    db.drop_map("tokens").unwrap().forget();
    db.persist().unwrap();
    assert_eq!(held.iter(&tokens).count(), ROWS as usize);
    assert_eq!(db.statistics().expiry_failure, None);
    drop(held);
    db.persist().unwrap();
    assert_eq!(db.statistics().dropping, 0);
    drop(tokens);
    // It is said of the object with the name, and not of the one that had it.
    let tokens = db.map("tokens").unwrap();
    db.put(&tokens, "stays", "v").unwrap().forget();
    assert_eq!(db.expiry(&tokens, "stays").unwrap(), Some(Expiry::Never));
    drop(tokens);
    let (_, db) = again(disk, db);
    assert_eq!(db.objects()[0].time_to_live, None);
}

/// Whoever is called back may persist, also while rows are removed by who hardens.
#[test]
fn a_callback_may_persist_while_there_is_something_to_remove() {
    watched("a_callback_may_persist_while_there_is_something_to_remove", PATIENCE, |_| {
        let (_, db) = open(seed());
        filled(&db);
        let inner = db.clone();
        db.on_durable(move |_| inner.persist().unwrap());
        db.drop_map("map").unwrap().safe().unwrap();
        db.drop_table("table").unwrap().safe().unwrap();
        db.persist().unwrap();
        db.compact(|_| {}).unwrap();
        assert_eq!(db.statistics().dropping, 0);
        // The callback holds a handle, and would hold the database for ever.
        db.close().unwrap();
    });
}

#[test]
fn rows_go_by_themselves_where_there_are_background_threads() {
    watched("rows_go_by_themselves_where_there_are_background_threads", PATIENCE, |_| {
        let db = background().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
        filled(&db);
        db.persist().unwrap();
        db.settle().unwrap();
        db.drop_table("table").unwrap().safe().unwrap();
        let receipt = db.drop_map("map").unwrap().fast().1;
        eventually("the rows go", || db.statistics().dropping == 0);
        receipt.wait(Level::LOCAL).unwrap();
        assert_eq!(db.statistics().settled_rows, 0);
        assert_eq!(db.statistics().drop_failure, None);
        // And also when nothing is committed any more after the last snapshot ends.
        fill(&db, &db.map("again").unwrap());
        let held = db.snapshot().unwrap();
        db.drop_map("again").unwrap().safe().unwrap();
        drop(held);
        eventually("the rows go", || db.statistics().dropping == 0);
    });
}
