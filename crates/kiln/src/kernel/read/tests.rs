//! Reading beside those who change other keys of the same bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::{Kept, LOOKS_MAX};
use crate::device::SimulatedDevice;
use crate::kernel::cold::Question;
use crate::kernel::handle::HasHandle as _;
use crate::kernel::read::{Memory, RECORDS_PINNED_MAX, Walk};
use crate::storage::epoch;
use crate::{Expiry, Kiln, Map, Options};

/// Long enough that somebody else changes the bucket each time before it is copied.
const LONG_BYTES: usize = 8 << 20;
const WRITERS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(120);

/// A database with a long value, and a map's key that shares its bucket.
struct Beside {
    db: Kiln,
    map: Map,
    value: Arc<Vec<u8>>,
    hot: Vec<u8>,
}

impl Beside {
    fn new(hardens: bool) -> Beside {
        let options = Options::new().background(false).memory(64 << 20);
        let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
        let map = db.map("map").unwrap();
        let value = Arc::new(vec![7; LONG_BYTES]);
        db.put(&map, "long", &value[..]).unwrap().forget();
        if hardens {
            db.persist().unwrap();
        }
        let (engine, object) = (db.engine(), map.handle().id);
        let bucket_of = |key: &[u8]| engine.index.bucket_of(engine.hash(object, key));
        let mut keys = (0_u32..).map(|number| number.to_be_bytes().to_vec());
        let hot = keys.find(|key| bucket_of(key) == bucket_of(b"long")).unwrap();
        Beside { map, value, hot, db: db.clone() }
    }

    /// Runs with somebody who puts the other key all the time.
    fn run(&self, run: impl FnOnce(&Kiln, &Map) + Send + 'static) {
        let ends = Arc::new(AtomicBool::new(false));
        let (db, map, hot, is_over) = (self.db.clone(), self.map.clone(), self.hot.clone(), ends.clone());
        db.put(&map, &hot, "hot").unwrap().forget();
        let write = move || {
            while !is_over.load(Ordering::Relaxed) {
                db.put(&map, &hot, "hot").unwrap().forget();
            }
        };
        let writers: Vec<_> = (0..WRITERS).map(|_| thread::spawn(write.clone())).collect();
        let (tell, told) = mpsc::channel();
        let (db, map) = (self.db.clone(), self.map.clone());
        let runner = thread::spawn(move || {
            run(&db, &map);
            let _ = tell.send(());
        });
        let has_ended = told.recv_timeout(PATIENCE) != Err(mpsc::RecvTimeoutError::Timeout);
        // Only now, or nobody would be in its way; but then it comes to an end in any case.
        ends.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        runner.join().unwrap();
        assert!(has_ended, "it goes on for ever");
    }
}

/// What was copied of a record that has hardened is not copied again; of one that has not it is not known whether it was changed meanwhile.
#[test]
fn what_has_hardened_is_copied_once_though_the_bucket_changes() {
    for hardens in [true, false] {
        let Beside { db, map, value, hot } = Beside::new(hardens);
        let (engine, object) = (db.engine(), map.handle().id);
        let hash = engine.hash(object, b"long");
        let question = Question { object, key: b"long", version_max: u64::MAX };
        let (mut kept, mut out) = (Kept::default(), Vec::new());
        let stamped = engine.index.stamp(hash).unwrap();
        db.put(&map, &hot, "hot").unwrap().forget();
        let looked = {
            let _pin = epoch::pin();
            engine.read_memory(&question, hash, stamped, &mut kept, &mut out)
        };
        assert!(matches!(looked, Memory::Retry));
        // To be known again.
        kept.value.first_mut().into_iter().for_each(|first| *first = 9);
        let looked = engine.look_in_memory(&question, hash, &mut kept, &mut out).unwrap();
        let Memory::Done(reading) = looked else { panic!("nobody is in its way") };
        assert!((reading.found, reading.is_for_good) == (true, hardens) && out[1..] == value[1..]);
        assert_eq!(out[0], if hardens { 9 } else { 7 });
    }
}

/// Nobody changes the bucket meanwhile, and who validates does not notice.
#[test]
fn who_has_looked_in_vain_a_few_times_holds_the_bucket() {
    let Beside { db, map, value, .. } = Beside::new(false);
    let (engine, object) = (db.engine(), map.handle().id);
    let hash = engine.hash(object, b"long");
    let question = Question { object, key: b"long", version_max: u64::MAX };
    let (mut kept, mut out) = (Kept { looks: LOOKS_MAX, ..Kept::default() }, Vec::new());
    let before = engine.index.stamp(hash).unwrap();
    let looked = engine.look_in_memory(&question, hash, &mut kept, &mut out).unwrap();
    let Memory::Done(reading) = looked else { panic!("nobody is in its way") };
    assert!(reading.found && out == *value);
    assert_eq!((reading.bucket, reading.stamp), before);
    assert_eq!(engine.index.stamp_at_once(hash), Some(before));
}

/// The whole value was copied, in vain, as long as anybody changed the bucket.
#[test]
fn c3_a_long_value_in_memory_is_read_though_others_change_the_bucket_of_its_key_all_the_time() {
    for hardens in [true, false] {
        let beside = Beside::new(hardens);
        let value = beside.value.clone();
        beside.run(move |db, map| {
            assert!(db.get(map, "long").unwrap().unwrap() == *value);
            let pending = db.get_async(map, "long");
            assert!(pending.wait().unwrap().unwrap() == *value);
        });
    }
}

#[test]
fn c3_a_long_value_in_memory_is_updated_though_others_change_the_bucket_of_its_key_all_the_time() {
    for hardens in [true, false] {
        let beside = Beside::new(hardens);
        beside.run(move |db, map| {
            let updated = db.update(map, "long", |old| {
                let mut new = old.unwrap().to_vec();
                new[0] += 1;
                Some(new)
            });
            updated.unwrap().forget();
        });
        let value = beside.db.get(&beside.map, "long").unwrap().unwrap();
        assert!(value[0] == 8 && value[1..] == beside.value[1..]);
    }
}

/// Of each row of an object in which some expire its value was copied, only to learn that it has not expired.
#[test]
fn c3_a_walk_for_rows_that_expire_passes_a_long_value_though_others_change_its_bucket_all_the_time() {
    let beside = Beside::new(true);
    let disk_time = beside.db.engine().now_ms();
    beside.db.put_expiring(&beside.map, "expires", "value", Expiry::At(disk_time)).unwrap().forget();
    beside.run(|db, _| while db.engine().delete_some_expired(true).is_some() {});
    assert_eq!(beside.db.statistics().expired_rows, 1);
}

/// All of them were passed under one pin, which whoever hardens, or evicts, waits for.
#[test]
fn a_snapshot_passes_many_newer_versions_of_a_key_under_more_than_one_pin() {
    const VERSIONS: usize = 5 * RECORDS_PINNED_MAX / 2;
    let options = Options::new().background(false).memory(64 << 20);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let map = db.map("map").unwrap();
    let put = |number: usize| db.put(&map, "key", number.to_le_bytes()).unwrap().forget();
    let before = db.snapshot().unwrap();
    let mut snapshots = Vec::new();
    for number in 0..VERSIONS {
        put(number);
        match number % 256 {
            0 => snapshots.push((number, db.snapshot().unwrap())),
            _ => drop(db.engine().clock.close()),
        }
    }
    let (engine, object) = (db.engine(), map.handle().id);
    let hash = engine.hash(object, b"key");
    let question = Question { object, key: b"key", version_max: before.version().number() };
    let walk = {
        let _pin = epoch::pin();
        let newest = engine.index.first_candidate(engine.index.bucket_of(hash), hash).unwrap();
        engine.walk_memory(&question, newest.address, &mut Vec::new())
    };
    assert!(matches!(walk, Walk::Far(_)));
    assert_eq!(before.get(&map, "key").unwrap(), None);
    for (number, snapshot) in snapshots {
        assert_eq!(snapshot.get(&map, "key").unwrap().unwrap(), number.to_le_bytes());
    }
}
