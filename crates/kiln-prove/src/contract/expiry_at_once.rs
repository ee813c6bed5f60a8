//! C2: rows that expire, are renewed, or are deleted just while somebody reads the clock.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use kiln::device::SimulatedDevice;
use kiln::{ErrorKind, Expiry, Kiln, Map};

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
