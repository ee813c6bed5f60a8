//! Sessions: what is forgotten is forgotten for who opens it then, and for nobody before; and what is told of one is never of two.

use std::sync::{Arc, Mutex, PoisonError};

use kiln::schedules::quietly;
use kiln::{ErrorKind, Kiln};

use super::database::{Database, failed, thread, together, unless};

const CLIENT: &str = "client";
/// Its serial number before all else.
const BEFORE: u64 = 3;

/// What has become of it, each with its version.
#[derive(Clone, Copy, Default)]
struct Came {
    /// The serial number with which it was opened, and the version of the next one.
    opened: Option<(u64, u64)>,
    forgotten: Option<u64>,
}

impl Came {
    /// Its serial number once all that is not behind a version has come.
    fn serial_at(&self, horizon: u64) -> u64 {
        let opened = self.opened.map(|(serial, version)| (version, serial + 1));
        let forgotten = self.forgotten.map(|version| (version, 0));
        let began_anew = self.opened.is_some_and(|(serial, _)| serial == 0);
        let [first, second] = if began_anew { [forgotten, opened] } else { [opened, forgotten] };
        if let (Some(first), Some(second)) = (first, second) {
            assert!(
                first.0 <= second.0,
                "what came later is of version {}, and not of {}",
                second.0,
                first.0
            );
        }
        let came = [first, second].into_iter().flatten();
        came.filter(|(version, _)| *version <= horizon).last().map_or(BEFORE, |(_, serial)| serial)
    }
}

/// The serial number that the list tells, 0 if there is no such session.
fn listed(db: &Kiln) -> u64 {
    let sessions: kiln::Result<Vec<_>> = db.sessions().collect();
    let sessions = sessions.unwrap_or_else(failed);
    sessions.iter().find(|info| info.id == CLIENT.as_bytes()).map_or(0, |info| info.serial)
}

/// A session is opened, and goes on, while it is forgotten: one of both comes first, for everybody and after a crash.
pub(super) fn a_session_goes_on_or_begins_anew() {
    let (database, came) = (Database::new(), Arc::<Mutex<Came>>::default());
    quietly(|| {
        let session = database.db.session(CLIENT).unwrap_or_else(failed);
        for _ in 0..BEFORE {
            session.put(&database.map, "key", "before").unwrap_or_else(failed).forget();
        }
        drop(session);
        database.db.persist().unwrap_or_else(failed);
    });
    let is_taken = |error: &kiln::Error| error.kind() == ErrorKind::Locked;
    let client = {
        let (Database { db, map, .. }, came) = (database.clone(), came.clone());
        thread(move || {
            let Some(session) = (0..3).find_map(|_| {
                let session = unless(db.session(CLIENT), is_taken);
                if session.is_none() {
                    shuttle::thread::yield_now();
                }
                session
            }) else {
                return;
            };
            let recovered = session.recovered_serial();
            let commit = session.put(&map, "key", "after").unwrap_or_else(failed);
            let version = commit.version().number();
            commit.forget();
            assert_eq!(session.serial(), recovered + 1);
            came.lock().unwrap_or_else(PoisonError::into_inner).opened = Some((recovered, version));
        })
    };
    let forgetter = {
        let (db, came) = (database.db.clone(), came.clone());
        thread(move || {
            let Some(forgotten) = unless(db.forget_session(CLIENT), is_taken) else { return };
            let version = forgotten.version().number();
            assert!(forgotten.forget(), "there was nothing to forget");
            came.lock().unwrap_or_else(PoisonError::into_inner).forgotten = Some(version);
        })
    };
    let hardener = {
        let db = database.db.clone();
        thread(move || db.persist().unwrap_or_else(failed))
    };
    together(vec![client, forgetter, hardener]);
    let came = *came.lock().unwrap_or_else(PoisonError::into_inner);
    // Before the opening that waits for all of it.
    let left = database.left_by_crash();
    let expected = came.serial_at(u64::MAX);
    // Of a session whose first commit is not durable the list says nothing.
    let told = quietly(|| {
        let session = database.db.session(CLIENT).unwrap_or_else(failed);
        (session.recovered_serial(), listed(&database.db))
    });
    assert_eq!(told, (expected, expected), "what a session, and the list, say of its serial number");
    let expected = came.serial_at(left.db.recovery_report().horizon.number());
    assert_eq!(listed(&left.db), expected, "the serial number that a crash has left");
}

/// A session commits two operations, which become durable, and a third one; then it is forgotten, and begins anew with one operation. Whoever lists it meanwhile is
/// told two numbers of the one or of the other.
pub(super) fn a_list_tells_of_one_session() {
    let database = Database::new();
    let client = {
        let Database { db, map, .. } = database.clone();
        thread(move || {
            let work = |operations: u64| {
                let session = db.session(CLIENT).unwrap_or_else(failed);
                for _ in 0..operations {
                    session.add(&map, "x", 1).unwrap_or_else(failed).forget();
                }
            };
            work(2);
            db.persist().unwrap_or_else(failed);
            work(1);
            assert!(db.forget_session(CLIENT).unwrap_or_else(failed).forget());
            work(1);
            db.persist().unwrap_or_else(failed);
        })
    };
    let lister = {
        let db = database.db.clone();
        thread(move || {
            for _ in 0..6 {
                for info in db.sessions() {
                    let info = info.unwrap_or_else(failed);
                    let told = (info.serial, info.durable_serial);
                    let is_of_one = matches!(told, (0..=2, 0) | (2..=3, 2) | (3, 3) | (1, 1));
                    assert!(is_of_one, "{told:?} are numbers of two sessions");
                }
            }
        })
    };
    together(vec![client, lister]);
}
