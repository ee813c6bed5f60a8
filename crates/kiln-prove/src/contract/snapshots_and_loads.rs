//! C1, C2, C4, C9: snapshots that have names, bulk loads, settling, backups and restarts, and what they do to each other.

use std::sync::Arc;

use kiln::device::{Keep, SimulatedDevice};
use kiln::{Error, ErrorKind};

use super::settling::{Rows, key, some_rows, value};
use super::world::{World, assert_shows, load, objects};
use crate::support::manual;
use crate::testing::{PATIENCE, at_test, budget, seed, watched};

#[test]
fn c4_named_snapshots_loads_and_settling_leave_each_other_what_they_are() {
    const NAME: &str = "c4_named_snapshots_loads_and_settling_leave_each_other_what_they_are";
    watched(NAME, PATIENCE, |replay| {
        for seed in seed()..seed() + budget(30) {
            at_test(replay, NAME, seed);
            let mut world = World::new(seed);
            let mut db = world.open();
            drop(objects(&db));
            for _ in 0..60 {
                db = world.step(db);
            }
            drop(world.begin_again(db));
        }
    });
}

/// After a restart nothing said any more from which version on a loaded table had its rows, and snapshots from before saw them.
#[test]
fn c2_a_named_snapshot_from_before_a_bulk_load_sees_none_of_it_after_a_restart() {
    for with_checkpoint in [false, true] {
        let disk = SimulatedDevice::new(seed());
        let open = |disk: &SimulatedDevice| manual().open_on(Arc::new(disk.clone())).unwrap();
        let (db, none, rows) = (open(&disk), Rows::new(), some_rows(30));
        db.create_snapshot("older").unwrap();
        let one = load(&db, "one", &rows).unwrap();
        db.create_snapshot("between").unwrap();
        let two = load(&db, "two", &rows).unwrap();
        db.create_snapshot("newer").unwrap();
        for table in [&one, &two] {
            db.put(table, key(3), b"newer").unwrap().forget();
            db.delete(table, key(4)).unwrap().forget();
        }
        db.persist().unwrap();
        if with_checkpoint {
            assert!(db.checkpoint().unwrap());
        }
        db.close().unwrap();
        drop((db, one, two));
        let db = open(&disk);
        let (one, two) = (db.table("one").unwrap(), db.table("two").unwrap());
        for (name, of_one, of_two) in
            [("older", &none, &none), ("between", &rows, &none), ("newer", &rows, &rows)]
        {
            let snapshot = db.open_snapshot(name).unwrap();
            assert_shows(&snapshot, &one, of_one, name);
            assert_shows(&snapshot, &two, of_two, name);
        }
    }
}

/// Closing kept those from naming for whom it waited.
#[test]
fn c8_the_rows_of_a_load_may_name_snapshots_while_the_database_is_closed() {
    const NAME: &str = "c8_the_rows_of_a_load_may_name_snapshots_while_the_database_is_closed";
    watched(NAME, PATIENCE, |_| {
        let disk = SimulatedDevice::new(seed());
        let db = manual().open_on(Arc::new(disk)).unwrap();
        std::thread::scope(|scope| {
            let mut closing = None;
            // The load asks for the next row only once more: so this one makes and drops for as long as closing takes to wait for it.
            let rows = [0].into_iter().map(|number| {
                closing = Some(scope.spawn(|| db.close()));
                for _ in 0..20_000 {
                    if let Err(error) = db.create_snapshot("name").and_then(|_| db.drop_snapshot("name")) {
                        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
                    }
                    std::thread::yield_now();
                }
                Ok::<_, Error>((key(number), value(number, 0)))
            });
            let loaded = db.bulk_load("table", rows, |_| {});
            assert!(loaded.is_ok() || loaded.is_err_and(|error| error.kind() == ErrorKind::Aborted));
            closing.expect("there were rows").join().unwrap().unwrap();
        });
    });
}

/// What is written and deleted in one version leaves a tombstone behind the one before, which recovery counted as live for ever: its segment stayed.
#[test]
fn c9_a_tombstone_behind_a_tombstone_is_recovered_as_the_only_one() {
    for with_checkpoint in [false, true] {
        let disk = SimulatedDevice::new(seed());
        let open = |disk: &SimulatedDevice| manual().open_on(Arc::new(disk.clone())).unwrap();
        let db = open(&disk);
        let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
        let put = |value: &[u8]| {
            let put =
                db.transact(|tx| tx.put(&table, "key", value).and_then(|()| tx.put(&map, "key", value)));
            put.unwrap().forget();
        };
        let delete = || {
            let delete = db.transact(|tx| tx.delete(&table, "key").and_then(|_| tx.delete(&map, "key")));
            delete.unwrap().forget();
        };
        put(b"value");
        db.create_snapshot("name").unwrap();
        delete();
        db.persist().unwrap();
        if with_checkpoint {
            assert!(db.checkpoint().unwrap());
        }
        // No longer than a tombstone: the one that follows takes its place.
        put(b"");
        delete();
        db.persist().unwrap();
        let crashed = disk.after_crash(&mut |_| Keep::Lost);
        let db = open(&crashed);
        let report = db.check().unwrap();
        assert!(report.is_clean(), "{report}");
        let (table, map, named) =
            (db.table("table").unwrap(), db.map("map").unwrap(), db.open_snapshot("name").unwrap());
        assert_eq!(named.get(&table, "key").unwrap().as_deref(), Some(&b"value"[..]));
        assert_eq!(named.get(&map, "key").unwrap().as_deref(), Some(&b"value"[..]));
    }
}
