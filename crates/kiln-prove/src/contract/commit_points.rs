//! C7, C8: who is called back with a session's commit points is told each one, none too early, and may do what it likes meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kiln::device::{Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Map, Session};

use crate::crash::reopen;
use crate::support::{Random, manual};
use crate::testing::{PATIENCE, at_test, background, budget, eventually, seed, watched};

fn opened(has_background: bool) -> (SimulatedDevice, Kiln, Map) {
    let disk = SimulatedDevice::new(seed());
    let options = if has_background { background() } else { manual() };
    let db = options.open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map("map").unwrap();
    (disk, db, map)
}

/// What a session is told, in order.
fn told(session: &Session) -> impl Fn() -> Vec<u64> + use<> {
    let all = Arc::new(Mutex::new(Vec::new()));
    let heard = all.clone();
    session.on_durable(move |serial| heard.lock().unwrap().push(serial));
    move || all.lock().unwrap().clone()
}

#[test]
fn c7_a_session_is_told_each_commit_point_once_and_nothing_where_none_is_new() {
    let (_disk, db, map) = opened(false);
    let (session, idle) = (db.session("client").unwrap(), db.session("idle").unwrap());
    session.put(&map, "key", "value").unwrap().safe().unwrap();
    let (told, idle_told) = (told(&session), told(&idle));
    db.put(&map, "another", "value").unwrap().safe().unwrap();
    assert!(told().is_empty(), "1 was durable already");
    session.put(&map, "key", "2").unwrap().forget();
    session.put(&map, "key", "3").unwrap().forget();
    // Into a newer version, which hardens together with the one before.
    drop(db.snapshot().unwrap());
    session.put(&map, "key", "4").unwrap().forget();
    assert!(told().is_empty());
    db.persist().unwrap();
    assert_eq!(told(), [4]);
    db.persist().unwrap();
    db.put(&map, "another", "new").unwrap().safe().unwrap();
    assert_eq!(told(), [4]);
    session.put(&map, "key", "5").unwrap().safe().unwrap();
    assert_eq!((told(), session.durable_serial().unwrap()), (vec![4, 5], 5));
    assert!(idle_told().is_empty());
}

#[test]
fn c7_what_was_committed_before_somebody_listens_is_told_when_it_is_durable() {
    for reopens in [false, true] {
        let (_disk, db, map) = opened(false);
        let mut session = db.session("client").unwrap();
        session.put(&map, "key", "value").unwrap().forget();
        if reopens {
            drop(session);
            session = db.session("client").unwrap();
        }
        let told = told(&session);
        assert!(told().is_empty());
        db.persist().unwrap();
        // An opening has waited for it.
        let expected: &[u64] = if reopens { &[] } else { &[1] };
        assert_eq!((told(), session.durable_serial().unwrap()), (expected.to_vec(), 1));
    }
}

/// Who hardens during a session's operation calls back in it.
#[test]
fn c8_a_callback_may_use_the_database_even_if_the_session_hardens_during_its_own_operation() {
    watched("c8_a_callback_may_use_the_database", PATIENCE, |_| {
        for has_background in [false, true] {
            let (_disk, db, map) = opened(has_background);
            let sessions = Arc::new(["one", "two"].map(|id| db.session(id).unwrap()));
            let acts = Arc::new(AtomicU64::new(0));
            let act = {
                let (sessions, acts, map) = (Arc::downgrade(&sessions), acts.clone(), map.clone());
                let db = db.clone();
                move || {
                    if acts.load(Ordering::SeqCst) < 2
                        && let Some(sessions) = sessions.upgrade()
                    {
                        db.put(&map, "of a callback", "value").unwrap().forget();
                        assert!(sessions[0].serial() > sessions[0].recovered_serial());
                        acts.fetch_add(1, Ordering::SeqCst);
                    }
                }
            };
            let of_database = act.clone();
            sessions[0].on_durable(move |_| act());
            db.on_durable(move |_| of_database());
            sessions[0].put(&map, "key", "value").unwrap().forget();
            let hardening = |tx: &kiln::Transaction<'_>| {
                db.persist()?;
                db.checkpoint()?;
                tx.put(&map, "key", "new")
            };
            sessions[1].transact(hardening).unwrap().forget();
            // What panics in a callback shows here.
            eventually("both have acted", || acts.load(Ordering::SeqCst) >= 2);
            db.persist().unwrap();
        }
    });
}

#[test]
fn c8_a_callback_of_a_session_that_panics_takes_nothing_from_others() {
    watched("c8_a_callback_of_a_session_that_panics", PATIENCE, |_| {
        for has_background in [false, true] {
            let (_disk, db, map) = opened(has_background);
            let (one, two) = (db.session("one").unwrap(), db.session("two").unwrap());
            let calls = Arc::new(AtomicU64::new(0));
            let count = calls.clone();
            one.on_durable(move |_| {
                count.fetch_add(1, Ordering::SeqCst);
                panic!("on purpose: a callback of a session")
            });
            let (of_one, of_two) = (told(&one), told(&two));
            for round in 1..=3 {
                one.put(&map, "key", [1]).unwrap().forget();
                two.put(&map, "key", [2]).unwrap().safe().unwrap();
                eventually("all are told", || {
                    of_one().last() == Some(&round) && of_two().last() == Some(&round)
                });
            }
            assert!(calls.load(Ordering::SeqCst) >= 3);
        }
    });
}

#[test]
fn c8_a_session_that_was_dropped_is_told_nothing_and_keeps_nothing() {
    let (_disk, db, map) = opened(false);
    let session = db.session("client").unwrap();
    let (told, kept) = (told(&session), Arc::new(()));
    let held = kept.clone();
    session.on_durable(move |_| drop(held.clone()));
    session.put(&map, "key", "value").unwrap().forget();
    drop(session);
    assert_eq!(Arc::strong_count(&kept), 1);
    db.persist().unwrap();
    assert!(told().is_empty());
    assert_eq!(db.session("client").unwrap().durable_serial().unwrap(), 1);
}

#[test]
fn c8_what_is_lost_is_never_told_to_be_durable() {
    for has_background in [false, true] {
        let (disk, db, map) = opened(has_background);
        let session = db.session("client").unwrap();
        let told = told(&session);
        session.put(&map, "key", "value").unwrap().safe().unwrap();
        eventually("the first is told", || told() == [1]);
        // Sticky, since the first may be that of a segment that is prepared.
        disk.inject(Fault { operation: OperationKind::Sync, nth: 1, kind: FaultKind::EIO, sticky: true });
        // It may be that another one has failed already.
        let put = session.put(&map, "key", "new").and_then(kiln::Commit::safe);
        assert_eq!(put.unwrap_err().kind(), ErrorKind::Lost);
        drop(db);
        assert_eq!(told(), [1]);
    }
}

/// Threads work, each in a session, until the power goes: whatever was told is there afterwards, and what was not told is what was not known
/// to be durable, at the most.
#[test]
fn c7_commit_points_that_were_told_survive_a_crash_under_concurrent_load() {
    let name = "c7_commit_points_that_were_told_survive_a_crash";
    watched(name, 5 * PATIENCE, |replay| {
        for round in 0..budget(60) {
            let seed = seed() + round;
            at_test(replay, name, seed);
            let mut random = Random::new(seed);
            let disk = SimulatedDevice::new(seed);
            let options =
                if random.one_in(3) { manual() } else { background().window(Duration::from_millis(1)) };
            let db = options.open_on(Arc::new(disk.clone())).unwrap();
            let map = db.map("map").unwrap();
            let crashes = !random.one_in(3);
            if crashes {
                disk.crash_after(disk.steps() + 8 + random.below(120) as u64);
            }
            let told: Vec<Arc<AtomicU64>> = (0..3).map(|_| Arc::default()).collect();
            thread::scope(|scope| {
                for (id, told) in (0..3_u8).zip(&told) {
                    let (db, map, mut random) = (&db, &map, Random::new(seed + u64::from(id)));
                    scope.spawn(move || {
                        let session = db.session([id]).unwrap();
                        let heard = told.clone();
                        session.on_durable(move |serial| {
                            let before = heard.swap(serial, Ordering::SeqCst);
                            assert!(serial > before, "{serial} after {before}");
                        });
                        for _ in 0..500 {
                            let Ok(commit) = session.put(map, [id], [0; 100]) else { return };
                            let is_known = match random.one_in(20) {
                                true => commit.safe().is_ok(),
                                false => commit.fast().1.poll(kiln::Level::LOCAL) != kiln::Progress::Lost,
                            };
                            if !is_known {
                                return;
                            }
                            assert!(told.load(Ordering::SeqCst) <= session.serial());
                        }
                        if !crashes {
                            db.persist().unwrap();
                            eventually("all is told", || told.load(Ordering::SeqCst) == session.serial());
                        }
                    });
                }
            });
            disk.crash_after(disk.steps());
            drop(db);
            let db = reopen(&disk.after_crash(&mut |_| Keep::Lost)).unwrap();
            for (id, told) in (0..3_u8).zip(&told) {
                let (told, there) =
                    (told.load(Ordering::SeqCst), db.session([id]).unwrap().recovered_serial());
                assert!(told <= there, "session {id}: {told} was told, {there} is there");
            }
        }
    });
}
