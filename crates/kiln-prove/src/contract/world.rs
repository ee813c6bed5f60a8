//! A database that is changed at random, and what must be in it: tables, a map that is written with the first of them, loads,
//! snapshots that have names.

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln::device::{Device as _, Keep, SimulatedDevice};
use kiln::{Error, ErrorKind, Kiln, Map, Object as _, Options, Snapshot, Table, check_on};

use super::restore::{restore, restore_stream, stream_of};
use super::settling::{Rows, key, value};
use crate::support::{Random, manual};

/// What the tables have that there are, by name.
pub(super) type Tables = BTreeMap<String, Rows>;

/// Keys that the tables may have.
pub(super) const KEYS: u32 = 60;
/// The table that is always there; [`map`](objects) has the same keys and values in every consistent state.
pub(super) const FIRST: &str = "table";

/// The first table, and the map.
pub(super) fn objects(db: &Kiln) -> (Table, Map) {
    (db.table(FIRST).unwrap(), db.map("map").unwrap())
}

pub(super) fn load(db: &Kiln, name: &str, rows: &Rows) -> kiln::Result<Table> {
    Ok(db.bulk_load(name, rows.iter().map(Ok::<_, Error>), |_| {})?.table)
}

/// The snapshot shows these rows of a table, in every way in which it can be asked.
#[track_caller]
pub(super) fn assert_shows(snapshot: &Snapshot<'_>, table: &Table, rows: &Rows, what: &str) {
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

/// The same of the first table and the map.
#[track_caller]
pub(super) fn assert_both_show(
    snapshot: &Snapshot<'_>,
    (table, map): &(Table, Map),
    rows: &Rows,
    what: &str,
) {
    assert_shows(snapshot, table, rows, what);
    let pairs: Rows = snapshot.iter(map).map(Result::unwrap).collect();
    assert!(pairs == *rows, "{what}: the map has {} pairs, and should have {}", pairs.len(), rows.len());
    for number in 0..KEYS {
        assert_eq!(snapshot.get(map, key(number)).unwrap().as_ref(), rows.get(&key(number)), "{what}");
    }
}

/// See the module's documentation.
pub(super) struct World {
    pub(super) disk: SimulatedDevice,
    options: Options,
    random: Random,
    pub(super) tables: Tables,
    pub(super) named: BTreeMap<String, Tables>,
    loads: u32,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let amplification = *random.pick(&[1.1, 2.0, f64::INFINITY]);
        let checkpoints = *random.pick(&[0, 24 << 10, 200 << 10]);
        let options = manual()
            .segment_bytes(16 << 10)
            .space_amplification(amplification)
            .checkpoint_log_bytes(checkpoints);
        let tables = Tables::from([(FIRST.to_owned(), Rows::new())]);
        World { disk: SimulatedDevice::new(seed), options, random, tables, named: BTreeMap::new(), loads: 0 }
    }

    pub(super) fn open(&self) -> Kiln {
        self.options.open_on(Arc::new(self.disk.clone())).unwrap()
    }

    /// Something happens.
    pub(super) fn step(&mut self, db: Kiln) -> Kiln {
        match self.random.below(16) {
            0..=4 => {
                let count = self.random.below(40);
                self.write(&db, count);
            }
            5 | 6 => self.load(&db),
            7..=9 => self.name(&db),
            10 => db.persist().unwrap(),
            11 => drop(db.checkpoint().unwrap()),
            12 | 13 => drop(db.settle().unwrap()),
            14 => self.assert_all(&db),
            _ => return self.begin_again(db),
        }
        db
    }

    pub(super) fn write(&mut self, db: &Kiln, count: usize) {
        let (first, map) = objects(db);
        for _ in 0..count {
            let names: Vec<String> = self.tables.keys().cloned().collect();
            let name = self.random.pick(&names).clone();
            let rows = self.tables.get_mut(&name).unwrap();
            let key = key(self.random.below(KEYS as usize) as u32);
            let length = self.random.below(600);
            let value = (!self.random.one_in(3)).then(|| self.random.bytes(length));
            if name == FIRST {
                let both = db.transact(|tx| match &value {
                    Some(value) => tx.put(&first, &key, value).and_then(|()| tx.put(&map, &key, value)),
                    None => tx.delete(&first, &key).and_then(|_| tx.delete(&map, &key)).map(drop),
                });
                both.unwrap().forget();
            } else {
                let table = db.table(&name).unwrap();
                match &value {
                    Some(value) => db.put(&table, &key, value).unwrap().forget(),
                    None => {
                        let was_there = db.delete(&table, &key).unwrap().forget();
                        assert_eq!(was_there, rows.contains_key(&key), "{name}");
                    }
                }
            }
            match value {
                Some(value) => drop(rows.insert(key, value)),
                None => drop(rows.remove(&key)),
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

    /// Gives a snapshot a name, or drops one, or tries to give a name twice.
    fn name(&mut self, db: &Kiln) {
        let name = format!("snapshot {}", self.random.below(5));
        match (self.named.contains_key(&name), self.random.one_in(4)) {
            (false, _) => {
                assert_eq!(db.create_snapshot(&name).unwrap().name, name);
                self.named.insert(name, self.tables.clone());
            }
            (true, false) => {
                db.drop_snapshot(&name).unwrap();
                self.named.remove(&name);
            }
            (true, true) => assert_eq!(db.create_snapshot(&name).unwrap_err().kind(), ErrorKind::Input),
        }
    }

    #[track_caller]
    pub(super) fn assert_all(&self, db: &Kiln) {
        assert!(db.snapshots().iter().map(|info| &info.name).eq(self.named.keys()));
        let (nothing, both) = (Rows::new(), objects(db));
        assert_eq!(db.objects().len(), self.tables.len() + 1);
        let newest = db.snapshot().unwrap();
        assert_both_show(&newest, &both, &self.tables[FIRST], "the newest state");
        for (name, rows) in &self.tables {
            let table = db.table(name).unwrap();
            assert_eq!(table.len(), rows.len() as u64, "{name}");
            assert_shows(&newest, &table, rows, "the newest state");
        }
        for (snapshot, tables) in &self.named {
            let opened = db.open_snapshot(snapshot).unwrap();
            assert_both_show(&opened, &both, &tables[FIRST], snapshot);
            for name in self.tables.keys() {
                let rows = tables.get(name).unwrap_or(&nothing);
                assert_shows(&opened, &db.table(name).unwrap(), rows, snapshot);
            }
        }
    }

    /// The database ends, in order or not, or is restored elsewhere, and begins again; at times without its checkpoint.
    pub(super) fn begin_again(&mut self, db: Kiln) -> Kiln {
        db.persist().unwrap();
        match self.random.below(6) {
            0 | 1 => db.close().unwrap(),
            2 | 3 => self.disk.crash_after(self.disk.steps()),
            4 => {
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
        if self.random.one_in(3) {
            damage_checkpoints(&self.disk);
        }
        let db = self.open();
        self.assert_all(&db);
        let report = db.check().unwrap();
        assert!(report.is_clean() || db.recovery_report().checkpoint_damage.is_some(), "{report}");
        db
    }
}

fn damage_checkpoints(disk: &SimulatedDevice) {
    for name in disk.list().unwrap().iter().filter(|name| name.starts_with("checkpoint-")) {
        let mut bytes = disk.bytes(name);
        bytes[16] ^= 1;
        disk.set_bytes(name, bytes);
    }
}
