//! Sessions: what is told of one is never of two.

use super::database::{Database, failed, thread, together};

/// A session commits two operations, which become durable, and a third one; then it is forgotten, and begins anew with one operation. Whoever lists it meanwhile is
/// told two numbers of the one or of the other.
pub(super) fn a_list_tells_of_one_session() {
    let database = Database::new();
    let client = {
        let Database { db, map, .. } = database.clone();
        thread(move || {
            let work = |operations: u64| {
                let session = db.session("client").unwrap_or_else(failed);
                for _ in 0..operations {
                    session.add(&map, "x", 1).unwrap_or_else(failed).forget();
                }
            };
            work(2);
            db.persist().unwrap_or_else(failed);
            work(1);
            assert!(db.forget_session("client").unwrap_or_else(failed).forget());
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
