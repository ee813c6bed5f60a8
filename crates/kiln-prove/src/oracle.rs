//! The oracle: is a recovered database what the history says it must be?
//!
//! Every check returns what is wrong as text, so that the oracle itself can be tested: the tests at the end tell
//! it lies, and it has to notice each.

use std::borrow::Cow;

use kiln::{Kiln, Level, Progress, Version};

use crate::workload::bank::{Objects, at_place, invariants, wrong_key_count};
use crate::workload::history::{History, Place, State, rows_at};
use crate::workload::loads::check_loads;
use crate::workload::names::check_named;
use crate::workload::{SESSIONS, compare_map, compare_tables, difference};

/// The map to which the oracle writes.
const PROBES: &str = "probes";

/// What is wrong, or nothing.
pub(crate) type Verdict = Result<(), String>;

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use ensure;

/// Compares a database that was just opened with the history, clause by clause. Writes to the database.
pub(crate) fn check_recovered(db: &Kiln, history: &History) -> Verdict {
    let horizon = db.recovery_report().horizon.number();
    let state = check_contents(db, history)?;
    invariants(&state).map_err(|what| format!("C1: {what}"))?;
    check_loads(db, history, horizon)?;
    check_named(db, history)?;
    check_report(db, history, horizon)?;
    check_sessions(db, history, horizon)?;
    check_receipts(db, history, horizon)?;
    check_new_commit(db, history)
}

/// C1, C4, C5: the contents are exactly the transactions up to the horizon, which is not before what was called durable.
pub(crate) fn check_contents<'a>(db: &Kiln, history: &'a History) -> Result<Cow<'a, State>, String> {
    let horizon = db.recovery_report().horizon.number();
    ensure!(
        horizon >= history.durable,
        "C5: version {} was called durable, but the horizon recovered is {horizon}",
        history.durable
    );
    let expected = history.state_at(horizon);
    let found = read_all(db, history).map_err(|error| format!("C1: reading what was recovered: {error}"))?;
    ensure!(
        found == *expected,
        "C4: at the horizon {horizon} of {} commits: {}",
        history.commits.len(),
        difference(&expected, &found)
    );
    Ok(expected)
}

/// Reads everything in several ways, which must agree.
pub(crate) fn read_all(db: &Kiln, history: &History) -> kiln::Result<State> {
    let objects = Objects::open(db)?;
    let mut state = State::new();
    // Key by key, or in batches, which read ahead what is on disk.
    match history.commits.len().is_multiple_of(2) {
        true => read_singly(db, &objects, history, &mut state)?,
        false => read_in_batches(db, &objects, history, &mut state)?,
    }
    let snapshot = db.snapshot()?;
    compare_tables(&snapshot, &objects, &state)?;
    if history.wants_every_way() {
        compare_map(&snapshot, &objects, &state, history.keys(), history.commits.len().is_multiple_of(8))?;
        for place in [Place::Accounts, Place::Children] {
            let mut expected = rows_at(&state, place).rev();
            for row in snapshot.range::<&[u8]>(objects.table(place), ..).reverse() {
                let key = row?.0;
                let same = expected.next().is_some_and(|((_, forwards), _)| *forwards == key);
                assert!(same, "a range backwards differs from one forwards");
            }
            assert!(expected.next().is_none(), "a range backwards ends before one forwards");
        }
    }
    assert_eq!(wrong_key_count(&objects, &state), None);
    Ok(state)
}

fn read_singly(db: &Kiln, objects: &Objects, history: &History, state: &mut State) -> kiln::Result<()> {
    for (place, key) in history.keys() {
        if let Some(value) = at_place!(objects, *place, object => db.get(object, key))? {
            state.insert((*place, key.clone()), value.into());
        }
    }
    Ok(())
}

fn read_in_batches(db: &Kiln, objects: &Objects, history: &History, state: &mut State) -> kiln::Result<()> {
    for place in [Place::Accounts, Place::Children, Place::Numbers] {
        let keys: Vec<_> = history.keys().iter().filter(|(at, _)| *at == place).map(|(_, key)| key).collect();
        let mut look = |number: usize, value: Option<&[u8]>| {
            if let Some(value) = value {
                state.insert((place, keys[number].clone()), value.into());
            }
        };
        at_place!(objects, place, object => db.get_many(object, &keys, &mut look))?;
    }
    Ok(())
}

/// C8: the report tells the boundary and what is lost.
fn check_report(db: &Kiln, history: &History, horizon: u64) -> Verdict {
    let report = db.recovery_report();
    // What the superblock names was durable before.
    ensure!(report.checkpoint_damage.is_none(), "C8: a crash has damaged a checkpoint: {report}");
    if let Some((first, last)) = report.lost_versions {
        ensure!(
            first.number() == horizon + 1 && first <= last && last < db.version(),
            "C8: versions {first} to {last} are called lost, the horizon is {horizon} and the clock at {}",
            db.version()
        );
    }
    let after = history.commits.iter().map(|commit| commit.version).filter(|&version| version > horizon);
    for version in after {
        let told = report.lost_versions;
        let covered = |(first, last): (Version, Version)| (first.number()..=last.number()).contains(&version);
        ensure!(told.is_some_and(covered), "C8: version {version} is lost; the report says {told:?}");
        ensure!(
            !report.clean,
            "C8: version {version} is lost, but the report says the database was closed in order"
        );
    }
    ensure!(
        !history.wants_every_way() || report.to_string().contains(&horizon.to_string()),
        "C8: the report does not name the horizon {horizon}: {report}"
    );
    Ok(())
}

/// C7: every session's serial is exactly its last one at the horizon, and none is listed that has none.
fn check_sessions(db: &Kiln, history: &History, horizon: u64) -> Verdict {
    compare_sessions(db, history, horizon).map_err(|error| format!("C7: asking for a session: {error}"))?
}

/// The same, where sessions may not be there to be read.
pub(crate) fn compare_sessions(db: &Kiln, history: &History, horizon: u64) -> kiln::Result<Verdict> {
    let listed = db.sessions().map(|info| info.map(|info| (info.id, info.serial, info.durable_serial)));
    let listed = listed.collect::<kiln::Result<Vec<_>>>()?;
    let told = SESSIONS.map(|id| {
        let session = db.session(id)?;
        Ok((session.recovered_serial(), session.durable_serial()?, session.serial()))
    });
    let told = told.into_iter().collect::<kiln::Result<Vec<_>>>()?;
    Ok(check_serials(db, &listed, &told, |number| history.serial_at(number, horizon)))
}

/// What the list, the report and each session itself say.
fn check_serials(
    db: &Kiln,
    listed: &[(Vec<u8>, u64, u64)],
    told: &[(u64, u64, u64)],
    serial_of: impl Fn(usize) -> u64,
) -> Verdict {
    let serials = SESSIONS.iter().enumerate().map(|(number, id)| (id, serial_of(number)));
    let expected = serials.filter(|(_, serial)| *serial > 0);
    let expected: Vec<_> = expected.map(|(id, serial)| (id.as_bytes().to_vec(), serial, serial)).collect();
    ensure!(listed == expected, "C7: the sessions listed are {listed:?}, and not {expected:?}");
    for (number, (id, &told)) in SESSIONS.iter().zip(told).enumerate() {
        let expected = serial_of(number);
        let reported = db.recovery_report().sessions.iter().find(|(of, _)| of == id.as_bytes());
        ensure!(
            reported.is_some() == (expected > 0),
            "C7: session {id:?} was at {expected}; reported {reported:?}"
        );
        let reported = reported.map_or(0, |(_, serial)| *serial);
        ensure!(
            (reported, told) == (expected, (expected, expected, expected)),
            "C7: session {id:?} was at {expected}; reported {reported}, recovered, durable and now {told:?}"
        );
    }
    Ok(())
}

/// C5: receipts of earlier commits tell the truth for ever.
pub(crate) fn check_receipts(db: &Kiln, history: &History, horizon: u64) -> Verdict {
    let kept = history.commits.iter().map(|commit| commit.version);
    for version in kept.chain(history.lost.iter().copied()) {
        let is_lost = version > horizon || history.lost.contains(&version);
        let expected = if is_lost { Progress::Lost } else { Progress::Durable };
        let receipt = db.receipt(Version::new(version));
        let said = receipt.poll(Level::LOCAL);
        ensure!(
            said == expected,
            "C5: version {version} is {expected:?} (horizon {horizon}); its receipt: {said:?}"
        );
        let waited = receipt.wait(Level::LOCAL);
        ensure!(
            waited.is_ok() != is_lost,
            "C5: waiting for version {version}, which is {expected:?}: {waited:?}"
        );
    }
    Ok(())
}

/// The database takes new commits, under versions that were never given out before.
fn check_new_commit(db: &Kiln, history: &History) -> Verdict {
    let probe = || -> kiln::Result<u64> {
        let probes = db.map(PROBES)?;
        let commit = db.add(&probes, "probe", 1)?;
        let version = commit.version().number();
        commit.safe()?;
        Ok(version)
    };
    let version = probe().map_err(|error| format!("C8: a commit after recovery: {error}"))?;
    ensure!(version > history.newest, "C4: version {version} comes after {} was given out", history.newest);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::{play, reopen};
    use crate::support::{Random, copy_of, manual};
    use crate::workload::SMALL;
    use crate::workload::history::Committed;
    use kiln::device::{Fault, FaultKind, OperationKind, SimulatedDevice};

    /// A database that was stopped without being closed, and its history.
    fn stopped() -> (SimulatedDevice, History) {
        let disk = SimulatedDevice::new(3);
        let mut history = History::default();
        let db = manual().open_on(std::sync::Arc::new(disk.clone())).unwrap();
        let mut shift = crate::workload::Shift::begin(&disk, &db, &mut history, SMALL, 3).unwrap();
        shift.work().unwrap();
        drop(shift);
        disk.crash_after(disk.steps());
        (copy_of(&disk), history)
    }

    fn verdict(disk: &SimulatedDevice, history: &History) -> Verdict {
        check_recovered(&reopen(&copy_of(disk)).unwrap(), history)
    }

    #[test]
    fn c4_the_oracle_accepts_the_truth_and_notices_every_lie() {
        let (disk, history) = stopped();
        verdict(&disk, &history).unwrap();
        let horizon = reopen(&copy_of(&disk)).unwrap().recovery_report().horizon.number();
        let kept = history.commits.partition_point(|commit| commit.version <= horizon);
        assert!(kept > 20, "the workload hardened too little for this test: {kept} commits");

        let mut more_durable = history.clone();
        more_durable.durable = horizon + 1;
        assert!(verdict(&disk, &more_durable).unwrap_err().starts_with("C5"));

        let mut random = Random::new(5);
        for _ in 0..20 {
            let chosen = random.below(kept);
            let mut half_there = history.clone();
            let writes = &mut half_there.commits[chosen].writes;
            if let Some(key) = writes.keys().next().cloned() {
                writes.insert(key, Some(b"another value"[..].into()));
                half_there.latest = State::new();
                half_there
                    .commits
                    .iter()
                    .for_each(|c| crate::workload::history::apply(&mut half_there.latest, &c.writes));
                let unseen = half_there.state_at(horizon) == history.state_at(horizon);
                assert_eq!(verdict(&disk, &half_there).is_ok(), unseen, "commit {chosen}");
            }
        }
    }

    #[test]
    fn c7_the_oracle_notices_a_wrong_serial_and_a_reused_version() {
        let (disk, history) = stopped();
        let mut one_more = history.clone();
        let last = one_more.commits.iter().position(|commit| commit.session.is_some()).unwrap();
        let (session, _) = one_more.commits[last].session.unwrap();
        let serial = history.serial_at(session, u64::MAX) + 1;
        let version = one_more.commits[0].version;
        let forged = Committed { session: Some((session, serial)), ..Committed::at(version) };
        one_more.commits.insert(1, forged);
        one_more.commits.iter_mut().skip(2).for_each(|commit| commit.session = None);
        assert!(verdict(&disk, &one_more).unwrap_err().starts_with("C7"));

        let mut from_the_future = history.clone();
        from_the_future.newest = u64::MAX;
        assert!(verdict(&disk, &from_the_future).unwrap_err().contains("was given out"));
    }

    #[test]
    fn c1_the_invariants_notice_a_missing_or_an_extra_write() {
        let (_, history) = stopped();
        let state = history.state_at(u64::MAX);
        invariants(&state).unwrap();
        let mut noticed = 0;
        for key in state.keys() {
            let mut broken = state.clone().into_owned();
            broken.remove(key);
            noticed += usize::from(invariants(&broken).is_err());
        }
        // What operations outside of transactions write is free.
        let is_free = |(_, key): &&(Place, Vec<u8>)| matches!(key.first(), Some(b'v' | b'n'));
        let bound = state.keys().filter(|key| !is_free(key)).count();
        assert!(noticed >= bound && bound > 10, "{noticed} of {bound} missing rows were noticed");
    }

    /// A disk that reports syncs which it does not carry out loses what was acknowledged: the crash tests must
    /// find that out, or they could not fail.
    #[test]
    fn c5_the_oracle_catches_a_disk_that_lies_about_syncs() {
        let mut caught = 0;
        for seed in 0..10 {
            let disk = SimulatedDevice::new(seed);
            let lie =
                Fault { operation: OperationKind::Sync, nth: 6, kind: FaultKind::Ignored, sticky: true };
            disk.inject(lie);
            let mut history = History::default();
            let _ = play(&disk, &mut history, SMALL, seed, false);
            disk.crash_after(disk.steps());
            let left = disk.after_crash(&mut |_| kiln::device::Keep::Lost);
            caught += u32::from(match reopen(&left) {
                Ok(db) => check_recovered(&db, &history).is_err(),
                Err(_) => true,
            });
        }
        assert_eq!(caught, 10, "a lying disk went unnoticed");
    }
}
