//! Sessions that are listed and forgotten: a forgotten one begins anew, as a commit like others says, and in no crash two of one name are mixed up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use kiln::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Level, Progress, check_on};

use crate::crash::reopen;
use crate::support::copy_of;
use crate::testing::{background, budget, seed};

/// Lets a session commit so many operations, each of which is counted, and makes them durable.
fn work(db: &Kiln, id: &str, operations: u64) {
    let (map, session) = (db.map("map").unwrap(), db.session(id).unwrap());
    (0..operations).for_each(|_| _ = session.add(&map, id, 1).unwrap().forget());
    db.persist().unwrap();
}

fn counted(db: &Kiln, id: &str) -> u64 {
    let value = db.get(&db.map("map").unwrap(), id).unwrap();
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

/// Id, serial number, durable serial number, and whether it is open, of each session.
fn listed(db: &Kiln) -> Vec<(String, u64, u64, bool)> {
    let told = |info: kiln::Result<kiln::SessionInfo>| {
        let info = info.unwrap();
        (String::from_utf8(info.id).unwrap(), info.serial, info.durable_serial, info.is_open)
    };
    db.sessions().map(told).collect()
}

#[test]
fn c7_a_forgotten_session_begins_anew_and_what_it_wrote_stays() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    work(&db, "client", 3);
    work(&db, "other", 2);
    let session = db.session("client").unwrap();
    assert_eq!(db.forget_session("client").unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(db.forget_session_at("client", 3).unwrap_err().kind(), ErrorKind::Locked);
    drop(session);
    for id in [Vec::new(), vec![b'x'; 2_000]] {
        assert_eq!(db.forget_session(id).unwrap_err().kind(), ErrorKind::Input);
    }
    assert!(!db.forget_session("nobody").unwrap().forget());
    assert!(!db.forget_session_at("client", 2).unwrap().forget());
    assert!(db.forget_session_at("client", 3).unwrap().safe().unwrap());
    assert!(!db.forget_session("client").unwrap().forget());
    assert_eq!(listed(&db), [("other".to_owned(), 2, 2, false)]);
    for round in 0..2 {
        assert_eq!(counted(&db, "client"), 3 + round);
        let session = db.session("client").unwrap();
        let told = (session.recovered_serial(), session.serial(), session.durable_serial().unwrap());
        assert_eq!(told, (0, 0, 0));
        session.add(&db.map("map").unwrap(), "client", 1).unwrap().safe().unwrap();
        assert_eq!((session.serial(), session.durable_serial().unwrap()), (1, 1));
        drop(session);
        assert!(db.forget_session("client").unwrap().safe().unwrap());
    }
    db.close().unwrap();
    assert_eq!(db.forget_session("other").unwrap_err().kind(), ErrorKind::Aborted);
    drop(db);
    let db = reopen(&disk).unwrap();
    assert_eq!(db.recovery_report().sessions, [(b"other".to_vec(), 2)]);
    assert_eq!((db.session("client").unwrap().recovered_serial(), counted(&db, "client")), (0, 5));
    assert!(db.check().unwrap().is_clean());
}

/// A power loss at each step of the disk, with nothing that was not synced, all of it, or some.
#[test]
fn c4_forgetting_is_a_commit_like_others_for_a_crash_at_any_step() {
    for takes_checkpoint in [false, true] {
        let (mut step, mut outcomes) = (0, [0, 0]);
        loop {
            let disk = SimulatedDevice::new(seed());
            let db = reopen(&disk).unwrap();
            work(&db, "client", 3);
            disk.crash_after(disk.steps() + step);
            let map = db.map("map").unwrap();
            let forget = || -> kiln::Result<bool> {
                db.put(&map, "before", "value")?.forget();
                db.forget_session("client")?.safe()?;
                db.put(&map, "after", "value")?.safe()?;
                if takes_checkpoint {
                    db.checkpoint()?;
                }
                db.session("client").map(|session| session.serial() == 0)
            };
            let done = forget();
            let horizon = db.horizon(Level::LOCAL);
            drop((map, db));
            for left in [disk.after_crash(&mut |_| Keep::Lost), copy_of(&disk), disk.after_crash_seeded(step)]
            {
                assert!(check_on(Arc::new(left.clone())).unwrap().is_clean());
                let db = reopen(&left).unwrap();
                assert!(db.recovery_report().horizon >= horizon);
                let map = db.map("map").unwrap();
                let is_there = |key| db.get(&map, key).unwrap().is_some();
                let serial = db.session("client").unwrap().recovered_serial();
                let reported = db.recovery_report().sessions.first().map_or(0, |(_, serial)| *serial);
                // C1, C4: all of what was before it is there, and nothing of what came later without it.
                assert!(
                    serial == 3 && !is_there("after") || serial == 0 && is_there("before"),
                    "step {step}"
                );
                assert!(done.is_err() || serial == 0, "it was called durable that it was forgotten");
                assert_eq!((reported, counted(&db, "client")), (serial, 3));
                outcomes[usize::from(serial == 0)] += 1;
            }
            match done {
                Ok(begins_anew) => {
                    assert!(begins_anew);
                    break;
                }
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Lost | ErrorKind::Io), "{error}"),
            }
            step += 1;
        }
        assert!(outcomes.iter().all(|&count| count > 0), "{outcomes:?}");
    }
}

/// Otherwise a crash could bring the old one back, whose serial number says that operations of the new one are durable which are lost.
#[test]
fn c7_who_opens_a_forgotten_session_waits_until_that_is_durable() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    work(&db, "client", 3);
    let (was_there, receipt) = db.forget_session("client").unwrap().fast();
    assert_eq!((was_there, receipt.poll(Level::LOCAL)), (true, Progress::Pending));
    let session = db.session("client").unwrap();
    assert_eq!(receipt.poll(Level::LOCAL), Progress::Durable);
    assert_eq!((session.serial(), session.durable_serial().unwrap()), (0, 0));
    session.transact(|_| Ok(())).unwrap().forget();
    disk.crash_after(disk.steps());
    drop((session, db));
    let db = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
    assert_eq!(db.session("client").unwrap().recovered_serial(), 0);
}

#[test]
fn c8_a_session_does_not_begin_anew_if_it_is_lost_that_it_was_forgotten() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    work(&db, "client", 3);
    db.forget_session("client").unwrap().forget();
    let kind = FaultKind::Error(5);
    disk.inject(Fault { operation: OperationKind::Sync, nth: 1, kind, sticky: true });
    for _ in 0..2 {
        assert_eq!(db.session("client").unwrap_err().kind(), ErrorKind::Lost);
    }
    disk.clear_faults();
    assert_eq!(db.forget_session("client").unwrap_err().kind(), ErrorKind::Lost);
    drop(db);
    assert_eq!(
        reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap().session("client").unwrap().serial(),
        3
    );
}

#[test]
fn c6_a_list_tells_the_newest_serials_and_the_durable_ones() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    work(&db, "b", 2);
    work(&db, "c", 1);
    let open = ["a", "b"].map(|id| db.session(id).unwrap());
    let map = db.map("map").unwrap();
    for session in &open {
        session.put(&map, "key", "value").unwrap().forget();
    }
    let of = |id: &str, serial, durable, is_open| (id.to_owned(), serial, durable, is_open);
    let now = [of("a", 1, 0, true), of("b", 3, 2, true), of("c", 1, 1, false)];
    assert_eq!(listed(&db), now);
    // It cannot be told what a crash will leave of these; whoever lists sees what is there now.
    db.forget_session("c").unwrap().forget();
    assert_eq!(listed(&db), now[..2]);
    db.persist().unwrap();
    assert_eq!(listed(&db), [of("a", 1, 1, true), of("b", 3, 3, true)]);
    // One that is open and has committed nothing is there until it is closed.
    let idle = db.session("d").unwrap();
    assert_eq!(listed(&db)[2..], [of("d", 0, 0, true)]);
    drop((idle, open));
    assert_eq!(listed(&db), [of("a", 1, 1, false), of("b", 3, 3, false)]);
}

/// More than what is taken at once, and beside sessions that come and go, and checkpoints, which share what is listed.
#[test]
fn c7_a_list_meets_each_session_that_stays_once_and_in_order() {
    const SESSIONS: u32 = 1_500;
    let db = background().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let stays = |number: u32| format!("{number:08} stays");
    let commit = |id: &str| db.session(id).unwrap().transact(|_| Ok(())).unwrap().forget();
    (0..SESSIONS).for_each(|number| commit(&stays(number)));
    db.persist().unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in (0..SESSIONS).cycle().take_while(|_| !stop.load(Ordering::SeqCst)) {
                let id = format!("{number:08} goes");
                commit(&id);
                if number % 97 == 0 {
                    db.checkpoint().unwrap();
                }
                assert!(db.forget_session(&id).unwrap().forget());
            }
        });
        for round in 0..budget(20) {
            let ids: Vec<Vec<u8>> = db.sessions().map(|info| info.unwrap().id).collect();
            assert!(ids.is_sorted_by(|one, next| one < next));
            let staying = ids.iter().filter(|id| id.ends_with(b"stays"));
            assert!(
                staying.eq((0..SESSIONS).map(|number| stays(number).into_bytes()).collect::<Vec<_>>().iter())
            );
            // From the middle on, whether there is such a session or not.
            let from = SESSIONS / 2;
            for after in [stays(from), format!("{from:08} t")] {
                let mut next = db.sessions_after(&after).map(|info| info.unwrap().id);
                let next = next.find(|id| id.ends_with(b"stays"));
                assert_eq!(next, Some(stays(from + 1).into_bytes()), "round {round}");
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(db.sessions_after(stays(SESSIONS)).count(), 0);
}

/// Whoever has the id has it alone: of all operations each is in the present session, or in one that was forgotten.
#[test]
fn c7_opening_and_forgetting_at_the_same_time_never_mixes_two_sessions() {
    let db = background().open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let map = db.map("map").unwrap();
    let (forgotten, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let only_locked = |error: kiln::Error| {
        assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
        refused.fetch_add(1, Ordering::SeqCst);
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..budget(300) {
                    match db.session("client") {
                        Err(error) => only_locked(error),
                        Ok(session) => {
                            let recovered = session.recovered_serial();
                            (0..3).for_each(|_| _ = session.add(&map, "client", 1).unwrap().forget());
                            assert_eq!(session.serial(), recovered + 3);
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..budget(300) {
                let serials = db.sessions().map(|info| info.unwrap().serial);
                let Some(serial) = serials.last().filter(|&serial| serial > 0) else { continue };
                match db.forget_session_at("client", serial).map(kiln::Commit::forget) {
                    Err(error) => only_locked(error),
                    Ok(true) => drop(forgotten.fetch_add(serial, Ordering::SeqCst)),
                    Ok(false) => {}
                }
            }
        });
    });
    let serial = db.session("client").unwrap().serial();
    assert_eq!(serial + forgotten.load(Ordering::SeqCst), counted(&db, "client"));
    assert!(db.check().unwrap().is_clean());
}

/// A checkpoint tells of sessions; and what an older one tells of one that was forgotten since counts no more.
#[test]
fn c7_a_forgotten_session_stays_so_with_checkpoints_before_and_after() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    work(&db, "one", 1);
    work(&db, "two", 2);
    assert!(db.checkpoint().unwrap());
    assert!(db.forget_session("one").unwrap().safe().unwrap());
    let two = [(b"two".to_vec(), 2)];
    let opens = || {
        let db = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
        let report = db.recovery_report();
        assert!(report.checkpoint.is_some() && report.checkpoint_damage.is_none(), "{report}");
        assert_eq!(report.sessions, two);
        assert_eq!(db.session("one").unwrap().recovered_serial(), 0);
        assert!(db.check().unwrap().is_clean());
    };
    opens();
    assert!(db.checkpoint().unwrap());
    opens();
    // And one that was forgotten and has begun anew since.
    work(&db, "one", 3);
    let db = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
    assert_eq!(db.recovery_report().sessions, [&[(b"one".to_vec(), 3)], &two[..]].concat());
}
