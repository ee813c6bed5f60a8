//! C1, C4, C5: a snapshot that has a name shows exactly what it did, whatever is written, moved and dropped, and however often the
//! database ends and begins; and when it is dropped, what only it has held is free.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kiln::device::{Device, Keep, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Snapshot, check_on};

use super::settling::{Rows, key};
use super::world::{KEYS, World, assert_both_show, objects};
use crate::crash::reopen;
use crate::support::{Random, copy_of, manual};
use crate::testing::{PATIENCE, background, seed, watched};

/// Written, deleted, made since; and the names are what they were.
#[test]
fn c4_a_named_snapshot_shows_what_was_updated_deleted_and_not_yet_there() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let (table, map) = objects(&db);
    for name in ["updated", "deleted", "deleted and made again", "left alone"] {
        db.put(&table, name, "old").unwrap().forget();
        db.put(&map, name, "old").unwrap().forget();
    }
    let info = db.create_snapshot("monday").unwrap();
    assert_eq!(db.snapshots(), std::slice::from_ref(&info));
    for name in ["deleted", "deleted and made again"] {
        db.delete(&table, name).unwrap().forget();
        db.delete(&map, name).unwrap().forget();
    }
    db.persist().unwrap();
    for name in ["updated", "deleted and made again", "new"] {
        db.put(&table, name, "new").unwrap().forget();
        db.put(&map, name, "new").unwrap().forget();
    }
    db.persist().unwrap();
    drop((table, map, db));
    for _ in 0..3 {
        let db = reopen(&disk).unwrap();
        let (table, map) = objects(&db);
        let monday = db.open_snapshot("monday").unwrap();
        assert_eq!(monday.version(), info.version);
        for name in ["updated", "deleted", "deleted and made again", "left alone"] {
            assert_eq!(monday.get(&table, name).unwrap().as_deref(), Some(&b"old"[..]), "{name}");
            assert_eq!(monday.get(&map, name).unwrap().as_deref(), Some(&b"old"[..]), "{name}");
        }
        assert_eq!(monday.get(&table, "new").unwrap(), None);
        assert_eq!(monday.get(&map, "new").unwrap(), None);
        assert_eq!(monday.range::<&[u8]>(&table, ..).count(), 4);
        assert_eq!(db.get(&table, "deleted").unwrap(), None);
        let listed = db.snapshots();
        assert_eq!((listed.len(), &listed[0].name), (1, &info.name));
        assert_eq!((listed[0].version, listed[0].created), (info.version, info.created));
        assert!(listed[0].held_bytes > 0, "what was overwritten is held");
        assert_eq!(db.statistics().named_snapshots, 1);
        db.put(&table, "updated", "newer").unwrap().forget();
        db.persist().unwrap();
    }
}

/// How far a run came before the power failed.
#[derive(Default)]
struct Came {
    made: [bool; 2],
    asked_to_drop: bool,
    dropped: bool,
}

/// What every snapshot of [`run`] shows, by its name.
const SHOWN: [(&str, [Option<&str>; 4]); 2] =
    [("one", [Some("a"), Some("a"), None, Some("a")]), ("two", [Some("b"), None, Some("b"), Some("a")])];
const RUN_KEYS: [&str; 4] = ["updated", "deleted", "made", "left"];

/// Gives two snapshots names, one of which it drops, and writes, settles and sweeps around it.
fn run(disk: &SimulatedDevice, came: &mut Came) -> kiln::Result<()> {
    let db =
        manual().segment_bytes(16 << 10).checkpoint_log_bytes(8 << 10).open_on(Arc::new(disk.clone()))?;
    let (table, map) = (db.table("table")?, db.map("map")?);
    let put = |key: &str, value: &str| {
        db.transact(|tx| tx.put(&table, key, value).and_then(|()| tx.put(&map, key, value)))
            .map(|commit| commit.forget())
    };
    let delete = |key: &str| {
        db.transact(|tx| tx.delete(&table, key).and_then(|_| tx.delete(&map, key))).map(|commit| {
            commit.forget();
        })
    };
    ["updated", "deleted", "left"].iter().try_for_each(|key| put(key, "a"))?;
    db.create_snapshot("one")?;
    came.made[0] = true;
    put("updated", "b")?;
    delete("deleted")?;
    put("made", "b")?;
    db.create_snapshot("two")?;
    came.made[1] = true;
    put("updated", "c")?;
    put("deleted", "c")?;
    delete("made")?;
    db.persist()?;
    came.asked_to_drop = true;
    db.drop_snapshot("one")?;
    came.dropped = true;
    // If the name came back, what settles now would be too new for it.
    db.settle()?;
    db.put(&map, "filler", vec![7; 8_000])?.forget();
    db.persist()?;
    db.persist()
}

fn assert_run(disk: &SimulatedDevice, came: &Came, context: &str) {
    let db = reopen(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
    let (table, map) = objects(&db);
    let is_there = |name| db.snapshots().iter().any(|info| info.name == name);
    let [one, two] = [is_there("one"), is_there("two")];
    assert!(one || !came.made[0] || came.asked_to_drop, "{context}: a snapshot is gone that was made");
    assert!(two || !came.made[1], "{context}: a snapshot is gone that was made");
    assert!(!one || !came.dropped, "{context}: a snapshot is there that was dropped");
    for (name, shown) in SHOWN {
        let Ok(snapshot) = db.open_snapshot(name) else { continue };
        for (key, value) in RUN_KEYS.into_iter().zip(shown) {
            let expected = value.map(|value| value.as_bytes().to_vec());
            assert_eq!(snapshot.get(&table, key).unwrap(), expected, "{context}: {name}: {key}");
            assert_eq!(snapshot.get(&map, key).unwrap(), expected, "{context}: {name}: {key}");
        }
        let rows = shown.iter().filter(|value| value.is_some()).count();
        assert_eq!(snapshot.range::<&[u8]>(&table, ..).count(), rows, "{context}: {name}");
    }
}

#[test]
fn c5_a_named_snapshot_is_whole_or_not_there_after_a_crash_at_every_step_of_making_and_dropping_it() {
    let disk = SimulatedDevice::new(seed());
    run(&disk, &mut Came::default()).unwrap();
    let steps = disk.steps();
    assert!(steps > 60, "{steps} steps");
    for step in 0..steps {
        let (disk, mut came) = (SimulatedDevice::new(seed()), Came::default());
        disk.crash_after(step);
        // What comes last is closing, of which it is not told.
        let _ = run(&disk, &mut came);
        let lost = disk.after_crash(&mut |_| Keep::Lost);
        let kept = disk.after_crash(&mut |_| Keep::Kept);
        let some = disk.after_crash_seeded(step);
        for (way, left) in [("lost", lost), ("kept", kept), ("some", some)] {
            // Before there is a superblock there is no database.
            if left.list().unwrap().iter().any(|name| name == "superblock") {
                assert_run(&left, &came, &format!("step {step}, {way}"));
            } else {
                assert!(!came.made[0], "step {step}, {way}");
            }
        }
    }
}

#[test]
fn c9_names_are_refused_that_are_taken_unknown_empty_too_long_or_too_many() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let kind = |outcome: kiln::Result<()>| outcome.unwrap_err().kind();
    assert_eq!(kind(db.create_snapshot("").map(drop)), ErrorKind::Input);
    assert_eq!(kind(db.create_snapshot(&"a".repeat(256)).map(drop)), ErrorKind::Input);
    db.create_snapshot(&"a".repeat(255)).unwrap();
    assert_eq!(kind(db.create_snapshot(&"a".repeat(255)).map(drop)), ErrorKind::Input);
    assert_eq!(kind(db.open_snapshot("b").map(drop)), ErrorKind::NotFound);
    assert_eq!(kind(db.drop_snapshot("b")), ErrorKind::NotFound);
    (1..256).for_each(|number| drop(db.create_snapshot(&number.to_string()).unwrap()));
    assert_eq!(kind(db.create_snapshot("b").map(drop)), ErrorKind::Limit);
    db.drop_snapshot("77").unwrap();
    assert_eq!(kind(db.drop_snapshot("77")), ErrorKind::NotFound);
    db.create_snapshot("b").unwrap();
    let names = |db: &Kiln| db.snapshots().into_iter().map(|info| info.name).collect::<Vec<_>>();
    let before = names(&db);
    db.close().unwrap();
    assert_eq!(kind(db.create_snapshot("c").map(drop)), ErrorKind::Aborted);
    assert_eq!(kind(db.drop_snapshot("b")), ErrorKind::Aborted);
    drop(db);
    assert_eq!(names(&reopen(&disk).unwrap()), before);
}

/// Overwrites and deletes so much that the log goes around its bound many times, were it not for a snapshot.
fn churn(db: &Kiln, rounds: u32) {
    let (table, map) = objects(db);
    for round in 0..rounds {
        for number in 0..KEYS {
            if (number + round) % 5 == 0 {
                db.delete(&table, key(number)).unwrap().forget();
                db.delete(&map, key(number)).unwrap().forget();
            } else {
                db.put(&table, key(number), vec![round as u8; 500]).unwrap().forget();
                db.put(&map, key(number), vec![round as u8; 500]).unwrap().forget();
            }
        }
        db.persist().unwrap();
    }
}

fn log_bytes(db: &Kiln) -> u64 {
    let statistics = db.statistics();
    statistics.log_tail - statistics.log_begin
}

#[test]
fn c5_what_a_snapshot_held_is_free_once_it_is_dropped_also_after_a_restart() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    churn(&db, 4);
    let usual = log_bytes(&db);
    db.create_snapshot("held").unwrap();
    churn(&db, 20);
    let held = log_bytes(&db);
    assert!(held > 3 * usual, "{held} bytes of log, {usual} before");
    drop(db);
    let db = reopen(&disk).unwrap();
    churn(&db, 4);
    assert!(log_bytes(&db) >= held, "a restart must not let go of it");
    let told = db.snapshots()[0].held_bytes;
    assert!((held / 2..2 * held).contains(&told), "{told} bytes are said to be held, of {held}");
    db.drop_snapshot("held").unwrap();
    churn(&db, 4);
    assert!(log_bytes(&db) <= 2 * usual, "{} bytes of log, {usual} before", log_bytes(&db));
    assert!(db.settle().unwrap() > 0);
    let check = db.check().unwrap();
    assert!(check.is_clean(), "{check}");
}

/// What a snapshot shows settles beside it; what was written since does not.
#[test]
fn c4_rows_from_before_a_snapshot_settle_while_it_is_there() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let (table, map) = objects(&db);
    let mut rows = Rows::new();
    for number in 0..400_u32 {
        db.put(&table, number.to_be_bytes(), vec![1; 500]).unwrap().forget();
        rows.insert(number.to_be_bytes().to_vec(), vec![1; 500]);
    }
    db.create_snapshot("held").unwrap();
    for number in 0..400_u32 {
        match number % 3 {
            0 => drop(db.delete(&table, number.to_be_bytes()).unwrap().forget()),
            _ => db.put(&table, (number + 1).to_be_bytes(), vec![2; 500]).unwrap().forget(),
        }
    }
    db.persist().unwrap();
    let settled = db.settle().unwrap();
    assert!((100..400).contains(&settled), "{settled} rows have settled");
    assert_eq!(db.settle().unwrap(), 0, "the rest is newer");
    let newest: Rows = db.snapshot().unwrap().range::<&[u8]>(&table, ..).map(Result::unwrap).collect();
    drop((table, map, db));
    for is_held in [true, true, false] {
        let db = reopen(&disk).unwrap();
        let (table, _) = objects(&db);
        let shown = |snapshot: &Snapshot<'_>| -> Rows {
            snapshot.range::<&[u8]>(&table, ..).map(Result::unwrap).collect()
        };
        if is_held {
            assert_eq!(db.settle().unwrap(), 0);
            assert!(shown(&db.open_snapshot("held").unwrap()) == rows);
        } else {
            db.drop_snapshot("held").unwrap();
            assert!(db.settle().unwrap() > 0);
        }
        assert!(shown(&db.snapshot().unwrap()) == newest);
        let check = db.check().unwrap();
        assert!(check.is_clean(), "{check}");
    }
}

/// On a full disk it is a snapshot that has to go, and it can.
#[test]
fn c5_a_snapshot_can_be_dropped_on_a_full_disk_and_makes_room() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let map = db.map("map").unwrap();
    db.create_snapshot("held").unwrap();
    disk.fail_after_bytes(1 << 20);
    let full = (0..10_000_u32).find_map(|number| {
        let put = db.put(&map, key(number % 10), vec![number as u8; 8_000]);
        put.and_then(|commit| commit.safe()).err()
    });
    assert_eq!(full.unwrap().kind(), ErrorKind::NoSpace);
    assert_eq!(db.create_snapshot("another").unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(db.snapshots().len(), 1);
    // Deletions make no room meanwhile, and in the end there is none for them either.
    let full = (0..10).find_map(|number| db.delete(&map, key(number)).and_then(|commit| commit.safe()).err());
    assert_eq!(full.unwrap().kind(), ErrorKind::NoSpace);
    db.drop_snapshot("held").unwrap();
    for number in 0..300_u32 {
        db.put(&map, key(number % 10), vec![number as u8; 8_000]).unwrap().safe().unwrap();
    }
}

/// Each drop took one of the blocks that are kept, whether it could make room or not: none was left for that of the oldest, nor for the opening after a crash.
#[test]
fn c5_drops_of_snapshots_that_make_no_room_leave_it_to_others_on_a_full_disk() {
    for (is_churned, is_newest_first) in [(true, true), (true, false), (false, true), (false, false)] {
        let disk = SimulatedDevice::new(seed());
        let db = reopen(&disk).unwrap();
        let map = db.map("map").unwrap();
        let churn = |number: u32| db.put(&map, key(number % 10), vec![number as u8; 8_000])?.safe();
        let mut names: Vec<_> = (0..6).map(|number| format!("snapshot {number}")).collect();
        for name in &names {
            db.create_snapshot(name).unwrap();
            (0..if is_churned { 30 } else { 1 }).for_each(|number| churn(number).unwrap());
        }
        disk.set_capacity(Some(disk.used_bytes() + (1 << 19)));
        assert_eq!((0..1_000).find_map(|number| churn(number).err()).unwrap().kind(), ErrorKind::NoSpace);
        let put = |number: u32| db.put(&map, key(number % 10), "").and_then(|commit| commit.safe());
        assert_eq!((0..1_000).find_map(|number| put(number).err()).unwrap().kind(), ErrorKind::NoSpace);
        let delete = |number| db.delete(&map, key(number)).and_then(|commit| commit.safe());
        assert_eq!((0..10).find_map(|number| delete(number).err()).unwrap().kind(), ErrorKind::NoSpace);
        if is_newest_first {
            names.reverse();
        }
        let what = format!("churned: {is_churned}, newest first: {is_newest_first}");
        let refused = names.iter().position(|name| db.drop_snapshot(name).is_err());
        let left = disk.after_crash(&mut |_| Keep::Lost);
        let opened = reopen(&left).unwrap_or_else(|error| panic!("{what}, refused {refused:?}: {error}"));
        assert_eq!(opened.snapshots().len(), refused.map_or(0, |dropped| names.len() - dropped));
        drop(opened);
        if is_newest_first {
            let oldest = &names[names.len() - 1];
            db.drop_snapshot(oldest).unwrap_or_else(|error| panic!("{what}, {oldest}: {error}"));
        } else {
            assert!(refused.is_none_or(|dropped| dropped >= 2), "{what}: only {refused:?} were dropped");
        }
    }
}

#[test]
fn c4_a_backup_keeps_the_snapshots_that_have_names() {
    let mut world = World::new(seed());
    let db = world.open();
    world.write(&db, 200);
    assert!(db.persist().is_ok() && db.settle().unwrap() > 0);
    for name in ["one", "two"] {
        db.create_snapshot(name).unwrap();
        world.named.insert(name.to_owned(), world.tables.clone());
        world.write(&db, 200);
    }
    let target = SimulatedDevice::new(seed());
    db.backup_on(Arc::new(target.clone()), |_| {}).unwrap();
    let (tables, named) = (world.tables.clone(), world.named.clone());
    // What becomes of them afterwards is no matter of the copy.
    named.keys().for_each(|name| db.drop_snapshot(name).unwrap());
    assert!(db.settle().unwrap() > 0);
    let report = check_on(Arc::new(copy_of(&target))).unwrap();
    assert!(report.is_clean(), "{report}");
    let mut copy = World::new(seed());
    (copy.disk, copy.tables, copy.named) = (target, tables, named);
    copy.assert_all(&copy.open());
}

/// The superblock says in both slots that there may be names, before there is one.
#[test]
fn c9_damage_to_a_slot_of_the_superblock_does_not_make_a_snapshot_forget() {
    for slot in 0..2 {
        let disk = SimulatedDevice::new(seed());
        let db = reopen(&disk).unwrap();
        let (table, _) = objects(&db);
        db.put(&table, "key", "old").unwrap().forget();
        db.create_snapshot("held").unwrap();
        db.delete(&table, "key").unwrap().safe().unwrap();
        disk.crash_after(disk.steps());
        drop((table, db));
        let left = disk.after_crash(&mut |_| Keep::Lost);
        left.zero("superblock", slot * 4096, 512);
        let db = reopen(&left).unwrap();
        let held = db.open_snapshot("held").unwrap();
        let (table, _) = objects(&db);
        assert_eq!(held.get(&table, "key").unwrap().as_deref(), Some(&b"old"[..]));
    }
}

/// Several threads make, look at and drop snapshots while others write and the keeper sweeps, settles and compacts.
#[test]
fn c2_named_snapshots_are_cuts_while_others_write() {
    watched("c2_named_snapshots_are_cuts", PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let options = background().segment_bytes(16 << 10).settle_log_bytes(64 << 10);
        let db = options.open_on(Arc::new(disk.clone())).unwrap();
        let (table, map) = objects(&db);
        let stop = AtomicBool::new(false);
        let mut held = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                // A snapshot is read by going back through what was written since: with no end to that there would be none to this.
                const WRITES: usize = 8_000;
                let mut random = Random::new(seed());
                for _ in 0..WRITES {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let key = key(random.below(KEYS as usize) as u32);
                    let (value, delete) = (random.bytes(200), random.one_in(3));
                    let both = db.transact(|tx| match delete {
                        true => tx.delete(&table, &key).and_then(|_| tx.delete(&map, &key)).map(drop),
                        false => tx.put(&table, &key, &value).and_then(|()| tx.put(&map, &key, &value)),
                    });
                    both.unwrap().forget();
                }
            });
            for round in 0..30_usize {
                let name = format!("{}", round % 3);
                if round >= 3 {
                    db.drop_snapshot(&name).unwrap();
                    held.remove(0);
                }
                db.create_snapshot(&name).unwrap();
                let snapshot = db.open_snapshot(&name).unwrap();
                let rows: Rows = snapshot.range::<&[u8]>(&table, ..).map(Result::unwrap).collect();
                held.push((name, rows));
                for (name, rows) in &held {
                    assert_both_show(
                        &db.open_snapshot(name).unwrap(),
                        &(table.clone(), map.clone()),
                        rows,
                        name,
                    );
                }
            }
            stop.store(true, Ordering::SeqCst);
        });
        drop((table, map, db));
        let db = options.open_on(Arc::new(disk)).unwrap();
        for (name, rows) in &held {
            assert_both_show(&db.open_snapshot(name).unwrap(), &objects(&db), rows, name);
        }
    });
}
