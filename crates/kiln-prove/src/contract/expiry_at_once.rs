//! C2: rows that expire, are renewed, or are deleted just while somebody reads the clock.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use kiln::device::SimulatedDevice;
use kiln::{ErrorKind, Expiry, Isolation, Kiln, Map};

use super::hooked::{HookedDevice, Operation};
use crate::support::manual;
use crate::testing::{PATIENCE, eventually, seed, watched};

const START_MS: u64 = 1_000_000;

type Happening = Box<dyn FnOnce() + Send>;

/// What happens at the next look at the clock, before it says what time it is.
#[derive(Clone, Default)]
struct NextLook(Arc<Mutex<Option<Happening>>>);

impl NextLook {
    fn is(&self, happening: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(happening));
    }

    fn has_come(&self) -> bool {
        self.0.lock().unwrap().is_none()
    }
}

struct World {
    disk: SimulatedDevice,
    db: Arc<Kiln>,
    map: Map,
    next_look: NextLook,
}

impl World {
    fn new() -> World {
        let (disk, next_look) = (SimulatedDevice::new(seed()), NextLook::default());
        disk.set_time_ms(START_MS);
        let look = next_look.clone();
        let device = HookedDevice::on(&disk, move |operation, _| {
            let happening = look.0.lock().unwrap().take_if(|_| operation == Operation::Time);
            if let Some(happening) = happening {
                happening();
            }
        });
        let db = Arc::new(manual().open_on(device).unwrap());
        let map = db.map("map").unwrap();
        World { disk, db, map, next_look }
    }

    fn at(&self, after_start_ms: u64) {
        self.disk.set_time_ms(START_MS + after_start_ms);
    }

    fn put(&self, key: &str, until_ms: u64) {
        let until = Expiry::At(START_MS + until_ms);
        self.db.put_expiring(&self.map, key, "value", until).unwrap().forget();
    }

    /// What happens at the next look at the clock is durable when it is told.
    fn harden_at_next_look(&self) {
        let (db, happening) = (self.db.clone(), self.next_look.0.lock().unwrap().take().unwrap());
        self.next_look.is(move || {
            happening();
            db.persist().unwrap();
        });
    }

    /// At the next look at the clock it is 9, and a row that would expire at 10 gets more time; when it is told it is 11.
    fn renew_at_next_look(&self, key: &'static str) {
        self.at(9);
        let (disk, db, map) = (self.disk.clone(), self.db.clone(), self.map.clone());
        self.next_look.is(move || {
            db.put_expiring(&map, key, "renewed", Expiry::At(START_MS + 1_000)).unwrap().forget();
            disk.set_time_ms(START_MS + 11);
        });
    }
}

/// Whether two rows that expire together are there, for somebody who reads one after the other.
type Pair = Result<(bool, bool), ErrorKind>;

/// Reads one row, says so, and reads the other one when it is told to.
fn read_pair(db: &Kiln, map: &Map, between: impl FnOnce()) -> Pair {
    let tx = db.begin().unwrap();
    let one = tx.contains(map, "one").map_err(|error| error.kind())?;
    between();
    Ok((one, tx.contains(map, "other").map_err(|error| error.kind())?))
}

/// Looks whether the key "key" is there.
type Read = fn(&World) -> bool;

/// All ways to do so with one operation that only reads.
const READS: [(&str, Read); 5] = [
    ("get", |world| world.db.get(&world.map, "key").unwrap().is_some()),
    ("get_into", |world| world.db.get_into(&world.map, "key", &mut Vec::new()).unwrap()),
    ("get_async", |world| world.db.get_async(&world.map, "key").wait().unwrap().is_some()),
    ("get_many", |world| {
        let mut is_there = false;
        world.db.get_many(&world.map, &["key"], |_, value| is_there = value.is_some()).unwrap();
        is_there
    }),
    ("expiry", |world| world.db.expiry(&world.map, "key").unwrap().is_some()),
];

/// A read took the row, then the time, by which the row had expired, though somebody had given it more time before it did.
#[test]
fn c2_a_row_that_is_renewed_in_time_is_never_absent() {
    let reads: [(&str, Read); 6] = [
        ("compare_and_set", |world| {
            !world.db.compare_and_set(&world.map, "key", None, Some(b"new")).unwrap().forget()
        }),
        ("get in a snapshot", |world| world.db.snapshot().unwrap().contains(&world.map, "key").unwrap()),
        ("get under snapshot isolation", |world| {
            world.db.begin_with(Isolation::Snapshot).unwrap().contains(&world.map, "key").unwrap()
        }),
        ("get in a snapshot that has a name", |world| {
            world.db.create_snapshot("name").unwrap();
            world.db.open_snapshot("name").unwrap().contains(&world.map, "key").unwrap()
        }),
        ("get in a durable snapshot", |world| {
            world.db.durable_snapshot().unwrap().contains(&world.map, "key").unwrap()
        }),
        ("get in a transaction", |world| world.db.begin().unwrap().contains(&world.map, "key").unwrap()),
    ];
    for (name, read) in READS.into_iter().chain(reads) {
        // Who holds a version looks once more afterwards, and who gives it a name two more times.
        let looks = if name.contains("name") { 4 } else { 1 + usize::from(name.contains("snapshot")) };
        for looks_before in 0..looks {
            let world = Arc::new(World::new());
            world.put("key", 10);
            world.db.persist().unwrap();
            world.renew_at_next_look("key");
            if name.contains("durable") {
                world.harden_at_next_look();
            }
            for _ in 0..looks_before {
                let (later, look) = (world.next_look.0.lock().unwrap().take(), world.next_look.clone());
                world.next_look.is(move || *look.0.lock().unwrap() = later);
            }
            assert!(read(&world), "{name}, look {looks_before}");
            assert!(world.next_look.has_come(), "{name}, look {looks_before}");
        }
    }
}

/// A range took the time when it came to the row, which it had found when it read the leaf; who only reads is not validated at the end.
#[test]
fn c2_a_range_leaves_no_row_out_that_was_renewed_in_time() {
    for reverse in [false, true] {
        let world = World::new();
        let table = world.db.table("table").unwrap();
        for key in ["a", "b", "d", "e"] {
            world.db.put(&table, key, "stays").unwrap().forget();
        }
        world.db.put_expiring(&table, "c", "value", Expiry::At(START_MS + 10)).unwrap().safe().unwrap();
        assert_eq!(world.db.settle().unwrap(), 5);
        let walk = || {
            let tx = world.db.begin().unwrap();
            let range = tx.range::<&[u8]>(&table, ..);
            let mut range = if reverse { range.reverse() } else { range };
            let mut seen = vec![range.next().unwrap()?];
            world.at(9);
            world.db.put_expiring(&table, "c", "renewed", Expiry::At(START_MS + 1_000)).unwrap().forget();
            world.at(11);
            for row in range {
                seen.push(row?);
            }
            tx.commit()?.forget();
            Ok(seen.len())
        };
        let seen: Result<usize, kiln::Error> = walk();
        match seen {
            Ok(rows) => assert_eq!(rows, 5),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict),
        }
    }
}

/// A snapshot took the time when it met the first row that expires, and showed a state that never was: the row as it was when the snapshot
/// was opened, and expired since, though it had been renewed.
#[test]
fn c2_a_snapshot_shows_rows_as_they_were_when_it_was_opened() {
    let world = World::new();
    world.put("key", 10);
    let snapshot = world.db.snapshot().unwrap();
    let tx = world.db.begin_with(kiln::Isolation::Snapshot).unwrap();
    world.at(9);
    world.put("key", 1_000);
    world.at(11);
    assert!(snapshot.contains(&world.map, "key").unwrap());
    assert!(tx.contains(&world.map, "key").unwrap());
}

/// A deletion looked at the clock when it was done: it said that the row had expired, and who had found it deleted before it had saw half a pair.
#[test]
fn c2_a_deletion_that_finds_a_row_expired_is_none_for_who_reads_before_it_has() {
    let world = World::new();
    world.put("one", 10);
    world.put("other", 10);
    world.at(9);
    let seen = Arc::new(Mutex::new(None));
    let (disk, db, map, out) = (world.disk.clone(), world.db.clone(), world.map.clone(), seen.clone());
    world.next_look.is(move || {
        let reader = thread::spawn(move || read_pair(&db, &map, || ()));
        *out.lock().unwrap() = Some(reader.join().unwrap());
        disk.set_time_ms(START_MS + 10);
    });
    let was_there = world.db.delete(&world.map, "other").unwrap().forget();
    assert!(world.next_look.has_come());
    let seen = seen.lock().unwrap().take();
    let is_whole = matches!(seen, Some(Ok((true, true)) | Err(ErrorKind::Conflict)));
    assert!(was_there || is_whole, "the row had expired, and {seen:?}");
}

/// Compaction read the version first, and then the clock: it deleted a row that had expired meanwhile in a version from before a transaction
/// that had begun since, which had seen the row that expired together with it.
#[test]
fn c2_compaction_deletes_no_row_before_a_transaction_for_which_it_has_not_expired() {
    watched("c2_compaction_deletes_no_row_before", PATIENCE, |_| {
        let world = World::new();
        world.put("other", 10);
        world.put("one", 10);
        for key in 0..200_u32 {
            world.db.put(&world.map, key.to_be_bytes(), [0; 1_000]).unwrap().forget();
        }
        world.db.persist().unwrap();
        world.at(9);
        let (ticker, seen) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
        let (disk, db, map, look) =
            (world.disk.clone(), world.db.clone(), world.map.clone(), world.next_look.clone());
        let (ticking, out) = (ticker.clone(), seen.clone());
        // The first row's time is looked at.
        world.next_look.is(move || {
            let (before, waiting) = (db.version(), db.clone());
            // It waits for who is compacting, once the clock has ticked.
            ticking.set(thread::spawn(move || drop(waiting.snapshot().unwrap()))).unwrap();
            eventually("a tick", || db.version() > before);
            let ((said, has_read), (go, wait)) = (channel(), channel());
            let reader = thread::spawn(move || {
                read_pair(&db, &map, || {
                    said.send(()).unwrap();
                    wait.recv().unwrap();
                })
            });
            has_read.recv().unwrap();
            disk.set_time_ms(START_MS + 10);
            // And the next row's.
            look.is(move || {
                go.send(()).unwrap();
                out.set(reader.join().unwrap()).unwrap();
            });
        });
        world.db.compact(|_| {}).unwrap();
        assert_eq!(world.db.statistics().expired_rows, 2);
        assert_eq!(seen.get(), Some(&Err(ErrorKind::Conflict)));
        Arc::into_inner(ticker).unwrap().into_inner().unwrap().join().unwrap();
    });
}

/// A read that met a row that had expired, and had to look again, as the row had been put anew, did so as of the moment of its first look: so it gave what was put
/// when that had expired, too.
#[test]
fn c2_a_read_that_looks_again_takes_the_time_again() {
    for (name, read) in READS {
        let world = World::new();
        world.put("key", 10);
        world.at(20);
        let (disk, db, map) = (world.disk.clone(), world.db.clone(), world.map.clone());
        let look = world.next_look.clone();
        world.next_look.is(move || {
            // It is put when it is 30, which the clock says from the next look on.
            db.put_expiring(&map, "key", "late", Expiry::At(START_MS + 25)).unwrap().forget();
            look.is(move || disk.set_time_ms(START_MS + 30));
        });
        assert!(!read(&world), "{name}");
        assert!(world.next_look.has_come(), "{name} looked at the clock once");
    }
}
