//! Database after database, each opened many times: what one opening leaves out of account shows in a later one.
//!
//! The other parts look at one workload and at what a failure leaves of it. Here a database lives on for some openings with options that change, over
//! tables and a map so small that they are emptied again and again, in part through a session: rows are put and deleted, settle, and the log goes on under them; tables are loaded in bulk,
//! checkpoints taken, snapshots given names, the files compacted, and backed up. Some rows are to expire, though not yet. An opening ends in order, or by a power loss at some step, or at once; or the disk fails, and the
//! next one finds what nobody knows to be durable. Behind each opening everything is compared with what was committed up to the version that was recovered.
//!
//! Some live on a disk that is *full* at times, as `space` says.
//!
//! Few databases are *large*: what is loaded there are long values, so that the tree of what has settled has hundreds of mebibytes, grows and shrinks by many of them,
//! and knows of its free space on several pages.

mod backups;
mod compared;
mod deeds;
mod space;
#[cfg(test)]
mod tests;
mod told;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kiln::device::{Fault, FaultKind, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Map, Result, Session, Table, Transaction};

use crate::arguments::Effort;
use crate::jobs::Progress;
use crate::oracle::{Verdict, ensure};
use crate::support::{Random, Replay, is_of_power_loss, manual};
use compared::{check, compare_serials, difference};
use deeds::{Deed, Kind};
use told::Told;
use values::Value;

/// Openings of a database.
const OPENINGS: usize = 8;
/// Rows that a table has at the most.
const ROWS: usize = 5;
/// Rows of a table that is loaded.
const LOADED_ROWS: usize = 40;
/// No more rows are loaded where there are so many, all of which one transaction can delete.
const ROWS_MAX: usize = 600;
/// Openings of a large one.
const LARGE_OPENINGS: usize = 4;
/// What is loaded into it at once, and how much is there at the most.
const LARGE_LOAD_BYTES: usize = 240 << 20;
const LARGE_BYTES_MAX: usize = 340 << 20;
const SEGMENT_BYTES: u64 = 64 << 10;
/// Values have room in half of a segment of the log, although none of these goes there.
const LARGE_SEGMENT_BYTES: u64 = 2 * values::BYTES_MAX as u64;
const TABLES: [&str; 2] = ["first", "second"];
/// The map, whose keys are as few.
const MAP: &str = "map";
/// A client that takes a part of the changes.
const SESSION: &str = "client";
/// Names for snapshots.
const NAMES: [&str; 2] = ["monday", "tuesday"];
/// Its values, which nobody keeps, let the log grow.
const BALLAST: &str = "ballast";
const BALLAST_KEYS: u8 = 3;

/// What begins to fail, and how: what a sync has not made durable later syncs may, or never will, be it shown until then or not.
const FAILURES: [(OperationKind, FaultKind); 4] = [
    (OperationKind::Write, FaultKind::EIO),
    (OperationKind::Sync, FaultKind::EIO),
    (OperationKind::Sync, FaultKind::FailedSyncThenSuccess),
    (OperationKind::Sync, FaultKind::FailedSyncReverted),
];

/// A table's number, and a key in it; loaded tables have the numbers behind the others, the map has the last there is, and what fills a disk those before.
type Row = (usize, Vec<u8>);
const MAP_NUMBER: usize = usize::MAX;
const FILLED_MAP_NUMBER: usize = usize::MAX - 1;
const FILLED_TABLE_NUMBER: usize = usize::MAX - 2;
/// Objects of which all keys are known.
const SMALL: [usize; 3] = [0, 1, MAP_NUMBER];
type State = BTreeMap<Row, Value>;

/// Calls a method with the object that has this number.
macro_rules! at_object {
    ($life:expr, $number:expr, $object:ident => $call:expr) => {
        match $number {
            MAP_NUMBER => {
                let $object = &$life.map;
                $call
            }
            FILLED_MAP_NUMBER => {
                let $object = &$life.db.map(&name_of(FILLED_MAP_NUMBER))?;
                $call
            }
            table if table < TABLES.len() => {
                let $object = &$life.tables[table];
                $call
            }
            table => {
                let $object = &$life.db.table(&name_of(table))?;
                $call
            }
        }
    };
}
use at_object;

/// A database while it is open.
struct Life<'a> {
    db: &'a Kiln,
    disk: &'a SimulatedDevice,
    tables: [Table; 2],
    map: Map,
    session: Session,
    ballast: Map,
    told: &'a mut Told,
    random: &'a mut Random,
    is_large: bool,
    /// Nothing has used what is kept for deletions on a full disk: a put has found room before it, and nothing else was done since.
    has_reserve: bool,
    /// What settles is sorted on disk, where a full one has no room.
    sorts_on_disk: bool,
}

/// Lives one database after the other.
pub(crate) fn prove(effort: &Effort, replay: &Replay, progress: &mut Progress) {
    for seed in effort.seed.. {
        replay.at(&format!("lives --seed {seed} --states 1"));
        live(seed, progress).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        if !progress.goes_on() {
            return;
        }
    }
}

fn live(seed: u64, progress: &mut Progress) -> Verdict {
    let mut random = Random::new(seed);
    let kind = Kind::random(&mut random);
    let (mut disk, mut told) = (SimulatedDevice::new(seed), Told::default());
    for opening in 0..if kind == Kind::Large { LARGE_OPENINGS } else { OPENINGS } {
        let fails = random.one_in(4);
        if fails {
            let (operation, failure) = *random.pick(&FAILURES);
            let nth = 1 + random.below(40) as u64;
            disk.inject(Fault { operation, nth, kind: failure, sticky: true });
        } else if random.one_in(3) {
            disk.crash_after(disk.steps() + random.below(120) as u64);
        }
        let fired = disk.faults_fired();
        match one_opening(&disk, &mut told, &mut random, kind) {
            Ok(()) => {}
            Err(Ended::Wrong(what)) => return Err(format!("opening {opening}: {what}")),
            Err(Ended::Failed(error)) => {
                let of_fault =
                    disk.faults_fired() > fired && matches!(error.kind(), ErrorKind::Lost | ErrorKind::Io);
                let is_due = of_fault || is_of_power_loss(&error, &disk);
                ensure!(is_due, "opening {opening}: {:?}: {error}", error.kind());
            }
        }
        progress.count();
        if fails {
            // The power stays on: what was written is there, be it durable or not.
            disk.clear_faults();
            continue;
        }
        // What was not synced may be lost, if nothing has closed it in order.
        disk.crash_after(disk.steps());
        disk = disk.after_crash_seeded(random.next());
    }
    Ok(())
}

/// Why an opening came to an end before it should.
enum Ended {
    Wrong(String),
    Failed(kiln::Error),
}

impl From<kiln::Error> for Ended {
    fn from(error: kiln::Error) -> Ended {
        Ended::Failed(error)
    }
}

impl From<String> for Ended {
    fn from(what: String) -> Ended {
        Ended::Wrong(what)
    }
}

fn one_opening(
    disk: &SimulatedDevice,
    told: &mut Told,
    random: &mut Random,
    kind: Kind,
) -> std::result::Result<(), Ended> {
    let is_large = kind == Kind::Large;
    let segment_bytes = if is_large { LARGE_SEGMENT_BYTES } else { SEGMENT_BYTES };
    let options = manual()
        .segment_bytes(segment_bytes)
        .settle_log_bytes(*random.pick(&[0, 16 << 10, 64 << 10]))
        .checkpoint_log_bytes(*random.pick(&[0, 0, 96 << 10]))
        .space_amplification(*random.pick(&[1.1, 2.0]));
    let sorts_on_disk = !is_large && random.one_in(2);
    let options = if sorts_on_disk { options.settle_memory(0) } else { options };
    told.room.begin_opening();
    let db = match options.open_on(Arc::new(disk.clone())) {
        Err(error) if told.room.may_refuse_opening(&error) => {
            told.room.lift(disk);
            return Ok(());
        }
        db => db?,
    };
    let horizon = db.recovery_report().horizon.number();
    if told.durable > horizon {
        return Err(format!("C5: {} was called durable, and {horizon} is recovered", told.durable).into());
    }
    told.cut_at(horizon);
    if told.room.is_limited && told.states.is_empty() {
        // What was there may be lost, for which there is no room then.
        told.room.lift(disk);
    }
    let tables = [db.table(TABLES[0])?, db.table(TABLES[1])?];
    let (map, ballast, session) = (db.map(MAP)?, db.map(BALLAST)?, db.session(SESSION)?);
    compare_serials(&session, told.serial())?;
    let mut life = Life {
        db: &db,
        disk,
        tables,
        map,
        session,
        ballast,
        told,
        random,
        is_large,
        has_reserve: false,
        sorts_on_disk,
    };
    life.take_in_what_was_loading();
    life.take_in_what_was_named();
    life.compare()?;
    life.find_room()?;
    // No two lives are alike: of most things much is done in some, and nothing in others.
    let (deeds, count) = kind.deeds();
    let deeds: Vec<_> = deeds
        .iter()
        .flat_map(|&(deed, often)| vec![deed; often * *life.random.pick(&[0, 1, 1, 5])])
        .collect();
    for _ in 0..life.random.below(count).min(10 * deeds.len()) {
        let deed = *life.random.pick(&deeds);
        life.try_step(deed)?;
        if life.told.room.is_cleared {
            if life.random.one_in(2) {
                break;
            }
            life.find_room()?;
        }
    }
    if life.random.one_in(3) {
        life.check_dropped()?;
    }
    // Where there is much, that is left to the next opening.
    match is_large {
        true => check(life.db)?,
        false => life.compare()?,
    }
    if life.random.one_in(2) {
        drop(life);
        db.close()?;
        told.everything_is_durable();
        told.room.was_closed = true;
    }
    Ok(())
}

fn key(number: usize) -> Vec<u8> {
    format!("row {number}").into_bytes()
}

fn loaded_name(number: usize) -> String {
    format!("loaded {number}")
}

fn name_of(object: usize) -> String {
    match object {
        MAP_NUMBER => MAP.to_owned(),
        FILLED_MAP_NUMBER => "filled map".to_owned(),
        FILLED_TABLE_NUMBER => "filled table".to_owned(),
        table if table < TABLES.len() => TABLES[table].to_owned(),
        table => loaded_name(table - TABLES.len()),
    }
}

impl Life<'_> {
    /// Of a load that nobody was told of all is there, or nothing.
    fn take_in_what_was_loading(&mut self) {
        let Some(state) = self.told.loading.take() else { return };
        if self.is_there(TABLES.len() + self.told.loads - 1) {
            let version = self.db.recovery_report().horizon.number();
            self.told.commit(version, state);
            self.told.everything_is_durable();
        }
    }

    /// A name that was being given, or taken, was or was not.
    fn take_in_what_was_named(&mut self) {
        let Some((name, state)) = self.told.naming.take() else { return };
        match self.db.snapshots().iter().any(|info| info.name == name) {
            true => self.told.named.insert(name, state),
            false => self.told.named.remove(name),
        };
    }

    fn step(&mut self, deed: Deed) -> Result<()> {
        match deed {
            Deed::Put => self.put(),
            Deed::Delete => self.delete(),
            Deed::DeleteAll => self.delete_all(),
            Deed::Append => self.append(),
            Deed::Harden => self.harden(),
            Deed::Settle => {
                self.harden()?;
                self.db.settle().map(drop)
            }
            Deed::Load => self.load(),
            Deed::Drop => self.drop_loaded(),
            Deed::Thin => {
                self.thin()?;
                self.step(Deed::Settle)
            }
            Deed::Compact => self.db.compact(|_| {}).map(drop),
            Deed::Checkpoint => self.db.checkpoint().map(drop),
            Deed::Name => self.name(),
            Deed::BackUp => self.back_up(),
            Deed::Limit => self.limit(),
            Deed::Lift => self.lift(),
            Deed::Fill => self.fill(),
            Deed::Clear => self.clear(),
        }
    }

    fn harden(&mut self) -> Result<()> {
        let hardened = self.db.persist();
        assert!(!is_full(&hardened), "C5: what was committed does not harden on a full disk");
        hardened?;
        self.told.everything_is_durable();
        Ok(())
    }

    fn put(&mut self) -> Result<()> {
        let (object, number) = (*self.random.pick(&SMALL), self.random.below(ROWS));
        let length = if self.random.one_in(8) { 3_000 } else { 20 };
        let (length, mut state) = (self.random.below(length), self.told.now());
        let (value, by_session) = (self.random.bytes(length), self.random.one_in(2));
        let commit = at_object!(self, object, object => match by_session {
            true => self.session.put_expiring(object, key(number), &value, values::expiry_of(&value)),
            false => self.db.put_expiring(object, key(number), &value, values::expiry_of(&value)),
        })?;
        state.insert((object, key(number)), value.into());
        let version = commit.version().number();
        commit.forget();
        self.told.commit(version, state);
        self.take_serial(by_session, version);
        self.note_room();
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        let (object, number) = (*self.random.pick(&SMALL), self.random.below(ROWS));
        self.delete_row(&(object, key(number)))
    }

    fn delete_row(&mut self, row: &Row) -> Result<()> {
        let (mut state, by_session) = (self.told.now(), self.random.one_in(2));
        let commit = at_object!(self, row.0, object => match by_session {
            true => self.session.delete(object, &row.1),
            false => self.db.delete(object, &row.1),
        })?;
        let was_there = state.remove(row).is_some();
        let (version, found) = (commit.version().number(), commit.forget());
        assert_eq!(found, was_there, "C1: a deletion of {row:?}");
        if was_there {
            self.told.commit(version, state);
        }
        self.take_serial(by_session, version);
        Ok(())
    }

    /// C7: each of the session's operations has the next number, be it one that changes something or not.
    fn take_serial(&mut self, by_session: bool, version: u64) {
        let (before, now) = (self.told.serial(), self.session.serial());
        assert_eq!(
            now,
            before + u64::from(by_session),
            "C7: the serial number of an operation behind {before}"
        );
        if by_session {
            self.told.serials.push((version, now));
        }
    }

    /// Empties the tables, the loaded ones included, in one transaction.
    fn delete_all(&mut self) -> Result<()> {
        let changes = self.told.now().into_keys().map(|row| (row, None)).collect();
        self.change(changes)
    }

    /// Takes long values away, from all loaded tables or from one of them: some rows are deleted, some are short then.
    fn thin(&mut self) -> Result<()> {
        let number = TABLES.len() + self.random.below(self.told.loads);
        let (of_all, one_in) = (self.random.one_in(2), *self.random.pick(&[1, 1, 2, 8]));
        let state = self.told.now();
        let is_chosen = |table: usize| table == number || of_all && table > number && table != MAP_NUMBER;
        let rows = state.into_keys().filter(|(table, _)| is_chosen(*table));
        let rows: Vec<_> = rows.filter(|_| self.random.one_in(one_in)).collect();
        let is_short = self.random.one_in(3);
        let change = |row: Row| (row, is_short.then(|| self.random.bytes(20)));
        let changes = rows.into_iter().map(change).collect();
        self.change(changes)
    }

    /// Puts and deletes rows that are there in one transaction.
    fn change(&mut self, changes: BTreeMap<Row, Option<Vec<u8>>>) -> Result<()> {
        let mut state = self.told.now();
        for number in changes.keys().map(|(object, _)| *object).collect::<BTreeSet<_>>() {
            assert!(self.is_there(number), "C4: {:?} is gone, and had rows", name_of(number));
        }
        let body = |tx: &Transaction<'_>| {
            changes.iter().try_for_each(|((object, key), value)| {
                at_object!(self, *object, object => match value {
                    Some(value) => tx.put(object, key, value),
                    None => tx.delete(object, key).map(drop),
                })
            })
        };
        let by_session = self.random.one_in(2);
        let commit = if by_session { self.session.transact(body) } else { self.db.transact(body) }?;
        let version = commit.version().number();
        commit.forget();
        if !changes.is_empty() {
            for (row, value) in changes {
                match value {
                    Some(value) => state.insert(row, value.into()),
                    None => state.remove(&row),
                };
            }
            self.told.commit(version, state);
        }
        self.take_serial(by_session, version);
        Ok(())
    }

    /// Lets the log grow.
    fn append(&mut self) -> Result<()> {
        for _ in 0..self.random.below(12) {
            let length = 500 + self.random.below(4_000);
            let value = self.random.bytes(length);
            self.db.put(&self.ballast, [self.random.below(BALLAST_KEYS.into()) as u8], value)?.forget();
        }
        Ok(())
    }

    fn load(&mut self) -> Result<()> {
        let (number, mut state) = (self.told.loads, self.told.now());
        if state.len() > ROWS_MAX {
            return Ok(());
        }
        let values = match self.is_large {
            true => self.long_values(&state),
            false => vec![Value::Short(vec![number as u8; 9]); LOADED_ROWS],
        };
        let rows: Vec<_> = (0_u32..).map(|row| row.to_be_bytes().to_vec()).zip(values).collect();
        state.extend(rows.iter().map(|(key, value)| ((TABLES.len() + number, key.clone()), value.clone())));
        self.told.loads += 1;
        self.told.loading = Some(state);
        let rows = rows.into_iter().map(|(key, value)| Ok::<_, kiln::Error>((key, value.to_bytes())));
        let loaded = self.db.bulk_load(&loaded_name(number), rows, |_| {});
        if is_full(&loaded) {
            self.told.loading = None;
        }
        let version = loaded?.version.number();
        let state = self.told.loading.take().unwrap_or_default();
        self.told.commit(version, state);
        self.told.everything_is_durable();
        Ok(())
    }

    /// Drops one of the loaded tables, if there are any.
    fn drop_loaded(&mut self) -> Result<()> {
        match self.loaded_tables()[..] {
            [] => Ok(()),
            ref there => {
                let number = *self.random.pick(there);
                self.drop_object(number)
            }
        }
    }

    fn loaded_tables(&self) -> Vec<usize> {
        (TABLES.len()..TABLES.len() + self.told.loads).filter(|&number| self.is_there(number)).collect()
    }

    fn is_there(&self, object: usize) -> bool {
        let name = name_of(object);
        self.db.objects().iter().any(|object| object.name == name)
    }

    fn drop_object(&mut self, number: usize) -> Result<()> {
        let mut state = self.told.now();
        state.retain(|(object, _), _| *object != number);
        let commit = match number {
            FILLED_MAP_NUMBER => self.db.drop_map(&name_of(number)),
            _ => self.db.drop_table(&name_of(number)),
        }?;
        self.told.commit(commit.version().number(), state);
        commit.forget();
        Ok(())
    }

    /// What was dropped, in this life or another, goes, unless there is a snapshot to see it.
    fn check_dropped(&mut self) -> std::result::Result<(), Ended> {
        if !self.told.named.is_empty() {
            return Ok(());
        }
        self.try_step(Deed::Settle)?;
        self.harden()?;
        match self.db.statistics().dropping {
            0 => Ok(()),
            count => Err(format!("C5: {count} of the objects that were dropped do not go").into()),
        }
    }

    /// Values to load where so much is there already.
    fn long_values(&mut self, state: &State) -> Vec<Value> {
        let present: usize = state.values().map(Value::len).sum();
        let mut left = self.random.below(LARGE_LOAD_BYTES).min(LARGE_BYTES_MAX.saturating_sub(present));
        let mut values = Vec::new();
        while left > 0 {
            let value = Value::random(self.random);
            left = left.saturating_sub(value.len());
            values.push(value);
        }
        values
    }

    /// Gives a name to a snapshot, or takes it.
    fn name(&mut self) -> Result<()> {
        let name = *self.random.pick(&NAMES);
        let old = self.told.named.get(name).cloned();
        self.told.naming = Some((name, old.clone().unwrap_or_else(|| self.told.now())));
        let done = match old {
            Some(_) => self.db.drop_snapshot(name),
            None => self.db.create_snapshot(name).map(drop),
        };
        if is_full(&done) {
            self.told.naming = None;
        }
        done?;
        self.told.naming = None;
        if old.is_some() {
            self.told.named.remove(name);
        } else {
            // What it shows is durable.
            self.told.everything_is_durable();
            self.told.named.insert(name, self.told.now());
        }
        Ok(())
    }
}

fn is_full<T>(done: &Result<T>) -> bool {
    done.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace)
}
