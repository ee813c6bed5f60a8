//! C1, C2, C4, C9: snapshots that have names, bulk loads, settling, backups and restarts, and what they do to each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln::device::{Keep, SimulatedDevice};
use kiln::{Error, ErrorKind, Kiln, Object as _, Options, Snapshot, Table, check_on};

use super::restore::{restore, restore_stream, stream_of};
use super::settling::{Rows, key, some_rows, value};
use crate::support::{Random, manual};
use crate::testing::{PATIENCE, at_test, budget, seed, watched};

/// What the tables have that there are, by name.
type Tables = BTreeMap<String, Rows>;

const KEYS: u32 = 60;

fn load(db: &Kiln, name: &str, rows: &Rows) -> kiln::Result<Table> {
    Ok(db.bulk_load(name, rows.iter().map(Ok::<_, Error>), |_| {})?.table)
}

/// The snapshot shows these rows, in every way in which it can be asked.
#[track_caller]
fn assert_shows(snapshot: &Snapshot<'_>, table: &Table, rows: &Rows, what: &str) {
    let what = format!("{what} of {:?}", table.name());
    let forwards: Rows = snapshot.range::<&[u8]>(table, ..).map(Result::unwrap).collect();
    assert!(forwards == *rows, "{what}: {} rows, and should be {}", forwards.len(), rows.len());
    let mut backwards: Vec<_> = snapshot.range::<&[u8]>(table, ..).reverse().map(Result::unwrap).collect();
    backwards.reverse();
    assert!(backwards.into_iter().eq(forwards), "{what}: backwards");
    for number in 0..KEYS {
        assert_eq!(snapshot.get(table, key(number)).unwrap().as_ref(), rows.get(&key(number)), "{what}");
    }
}

/// A database, and what must be in it.
struct World {
    disk: SimulatedDevice,
    options: Options,
    random: Random,
    tables: Tables,
    named: BTreeMap<String, Tables>,
    loads: u32,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let amplification = *random.pick(&[1.1, 2.0, f64::INFINITY]);
        let checkpoints = *random.pick(&[0, 24 << 10, 200 << 10]);
        let options = manual()
            .segment_bytes(16 << 10)
            .space_amplification(amplification)
            .checkpoint_log_bytes(checkpoints);
        let tables = Tables::from([("first".to_owned(), Rows::new())]);
        World { disk: SimulatedDevice::new(seed), options, random, tables, named: BTreeMap::new(), loads: 0 }
    }

    fn open(&self) -> Kiln {
        self.options.open_on(Arc::new(self.disk.clone())).unwrap()
    }

    fn write(&mut self, db: &Kiln, count: usize) {
        for _ in 0..count {
            let names: Vec<String> = self.tables.keys().cloned().collect();
            let name = self.random.pick(&names).clone();
            let (table, rows) = (db.table(&name).unwrap(), self.tables.get_mut(&name).unwrap());
            let key = key(self.random.below(KEYS as usize) as u32);
            if self.random.one_in(3) {
                let was_there = db.delete(&table, &key).unwrap().forget();
                assert_eq!(was_there, rows.remove(&key).is_some());
            } else {
                let length = self.random.below(500);
                let value = self.random.bytes(length);
                db.put(&table, &key, &value).unwrap().forget();
                rows.insert(key, value);
            }
        }
    }

    /// Loads a table, or begins to.
    fn load(&mut self, db: &Kiln) {
        self.loads += 1;
        let name = format!("loaded {}", self.loads);
        let rows: Rows = (0..KEYS)
            .filter(|_| self.random.one_in(2))
            .map(|number| (key(number), value(number, self.loads)))
            .collect();
        if self.random.one_in(4) {
            let failing = rows.iter().map(Ok).chain([Err(Error::caller("enough"))]);
            assert_eq!(db.bulk_load(&name, failing, |_| {}).unwrap_err().kind(), ErrorKind::Caller);
        } else {
            load(db, &name, &rows).unwrap();
            self.tables.insert(name, rows);
        }
    }

    fn name(&mut self, db: &Kiln) {
        let name = format!("snapshot {}", self.random.below(4));
        if self.named.remove(&name).is_some() {
            db.drop_snapshot(&name).unwrap();
        } else {
            db.create_snapshot(&name).unwrap();
            self.named.insert(name, self.tables.clone());
        }
    }

    #[track_caller]
    fn assert_all(&self, db: &Kiln) {
        assert!(db.snapshots().iter().map(|info| &info.name).eq(self.named.keys()));
        assert_eq!(db.objects().len(), self.tables.len());
        let nothing = Rows::new();
        let newest = db.snapshot().unwrap();
        for (name, rows) in &self.tables {
            let table = db.table(name).unwrap();
            assert_eq!(table.len(), rows.len() as u64, "{name}");
            assert_shows(&newest, &table, rows, "the newest state");
            for (snapshot, tables) in &self.named {
                let opened = db.open_snapshot(snapshot).unwrap();
                assert_shows(&opened, &table, tables.get(name).unwrap_or(&nothing), snapshot);
            }
        }
    }

    /// The database ends, in order or not, or is restored elsewhere, and begins again.
    fn begin_again(&mut self, db: Kiln) -> Kiln {
        db.persist().unwrap();
        match self.random.below(5) {
            0 | 1 => db.close().unwrap(),
            2 => self.disk.crash_after(self.disk.steps()),
            3 => {
                let stream = stream_of(&db);
                self.disk = SimulatedDevice::new(self.random.next());
                restore_stream(&stream, &self.disk).unwrap();
            }
            _ => {
                self.disk.crash_after(self.disk.steps());
                let crashed = self.disk.after_crash(&mut |_| Keep::Lost);
                self.disk = SimulatedDevice::new(self.random.next());
                restore(&crashed, &self.disk).unwrap();
            }
        }
        drop(db);
        self.disk = self.disk.after_crash(&mut |_| Keep::Lost);
        let report = check_on(Arc::new(self.disk.clone())).unwrap();
        assert!(report.is_clean(), "{report}");
        let db = self.open();
        self.assert_all(&db);
        let report = db.check().unwrap();
        assert!(report.is_clean(), "{report}");
        db
    }
}

#[test]
fn c4_named_snapshots_loads_and_settling_leave_each_other_what_they_are() {
    const NAME: &str = "c4_named_snapshots_loads_and_settling_leave_each_other_what_they_are";
    watched(NAME, PATIENCE, |replay| {
        for seed in seed()..seed() + budget(16) {
            at_test(replay, NAME, seed);
            let mut world = World::new(seed);
            let mut db = world.open();
            db.table("first").unwrap();
            for _ in 0..50 {
                match world.random.below(16) {
                    0..=4 => {
                        let count = world.random.below(40);
                        world.write(&db, count);
                    }
                    5 | 6 => world.load(&db),
                    7..=9 => world.name(&db),
                    10 => db.persist().unwrap(),
                    11 => drop(db.checkpoint().unwrap()),
                    12 | 13 => drop(db.settle().unwrap()),
                    14 => world.assert_all(&db),
                    _ => db = world.begin_again(db),
                }
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
