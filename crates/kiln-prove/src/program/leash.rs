//! Processes that end with this one, however it ends; and what has forked off this one, with its memory.
//!
//! Whoever is killed, as a watchdog or a time limit does it, cannot stop its children; the kernel can.

#![allow(unsafe_code, reason = "what runs between fork and exec is unsafe to give")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

/// Has the kernel kill the command's process when the thread that starts it ends.
pub(super) fn leash(command: &mut Command) {
    // SAFETY: between fork and exec only calls are allowed that are safe in a signal handler. This one is a single system
    // call, which takes no lock and allocates nothing.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
}

/// The engine's own.
#[cfg(test)]
#[path = "../../../kiln/src/device/forked.rs"]
mod forked;

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use kiln::device::SimulatedDevice;
    use kiln::{ErrorKind, Kiln, Level, Map, Object, Options, Progress, Receipt, Table};

    use super::forked::{in_fork, is_alone};
    use crate::contract::gate::{OpenAtEnd, gated_device};

    fn segment(directory: &tempfile::TempDir) -> Vec<u8> {
        std::fs::read(directory.path().join("segment-00000000")).unwrap()
    }

    /// The lock and the files are both processes' at once: the child gave up the lock, and wrote over the log.
    #[test]
    fn c4_a_process_that_was_forked_leaves_the_database_to_the_one_that_has_opened_it() {
        if !is_alone() {
            return;
        }
        for has_background in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let options = Options::new().segment_bytes(64 << 10).memory(0).background(has_background);
            let options = options.window(Duration::from_secs(3600));
            let db = options.open(directory.path()).unwrap();
            let map = db.map("map").unwrap();
            db.put(&map, "key", "durable").unwrap().safe().unwrap();
            db.put(&map, "key", "not yet durable").unwrap().forget();
            let before = segment(&directory);
            // In the child these are the last.
            let handles = Arc::new(Mutex::new(Some((db, map))));
            let dropping = handles.clone();
            in_fork(move || drop(dropping.lock().unwrap().take()));
            if !has_background {
                let using = handles.clone();
                in_fork(move || {
                    let (db, map) = using.lock().unwrap().take().unwrap();
                    let receipt = db.put(&map, "key", "the child's").unwrap().fast().1;
                    let error = receipt.wait(Level::LOCAL).unwrap_err();
                    assert!(error.kind() == ErrorKind::Lost && error.to_string().contains("fork"));
                    assert_eq!(db.persist().unwrap_err().kind(), ErrorKind::Lost);
                    assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Lost);
                });
            }
            assert!(segment(&directory) == before, "the child has written");
            let refused = options.open(directory.path()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Locked);
            assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
            let (db, map) = handles.lock().unwrap().take().unwrap();
            assert_eq!(db.get(&map, "key").unwrap().unwrap(), b"not yet durable");
            db.put(&map, "other", "durable").unwrap().safe().unwrap();
            db.close().unwrap();
            let db = options.open(directory.path()).unwrap();
            assert!(db.recovery_report().clean);
            let map = db.map("map").unwrap();
            assert_eq!(db.get(&map, "key").unwrap().unwrap(), b"not yet durable");
        }
    }

    fn durable(receipt: &Receipt) -> kiln::Result<()> {
        match pin!(receipt.durable(Level::LOCAL)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => Ok(()),
        }
    }

    /// It was waited for without end: the hardener is not there, and who had the lead at the fork never lets go of it.
    #[test]
    fn c4_what_is_waited_for_in_a_process_that_was_forked_is_lost_there_also_beside_a_hardening() {
        type Wait = fn(&Kiln, &Receipt) -> kiln::Result<()>;
        if !is_alone() {
            return;
        }
        let waits: [Wait; 4] = [
            |_, receipt| durable(receipt),
            |_, receipt| receipt.wait_timeout(Level::LOCAL, Duration::ZERO).map(drop),
            |_, receipt| receipt.wait(Level::LOCAL),
            |db, _| db.persist(),
        ];
        for (has_background, is_beside) in [(true, false), (true, true), (false, true)] {
            let (device, gate) = gated_device(&SimulatedDevice::new(1));
            let options = Options::new().segment_bytes(64 << 10).memory(0).background(has_background);
            let db = options.window(Duration::from_secs(3600)).open_on(device).unwrap();
            let map = db.map("map").unwrap();
            db.put(&map, "key", "durable").unwrap().safe().unwrap();
            let receipt = db.put(&map, "key", "not yet durable").unwrap().fast().1;
            std::thread::scope(|scope| {
                let _open = OpenAtEnd(gate.clone());
                if is_beside {
                    gate.shut();
                    scope.spawn(|| db.persist().unwrap());
                    gate.wait_until_stuck();
                }
                for wait in waits {
                    let (db, receipt) = (db.clone(), receipt.clone());
                    in_fork(move || {
                        let error = wait(&db, &receipt).unwrap_err();
                        assert!(error.kind() == ErrorKind::Lost && error.to_string().contains("fork"));
                        assert_eq!(receipt.poll(Level::LOCAL), Progress::Lost);
                    });
                }
            });
            receipt.wait(Level::LOCAL).unwrap();
            db.close().unwrap();
        }
    }

    /// More than the memory that such a database is given.
    const KEYS: u32 = 3_000;
    /// So many are read in a batch.
    const READS: usize = 32;

    fn value_of(key: u32) -> [u8; 1_000] {
        [key as u8; 1_000]
    }

    fn read_batch<O: Object>(db: &Kiln, object: &O, from: u32) {
        let keys: Vec<_> = (from..KEYS).take(READS).map(u32::to_be_bytes).collect();
        let mut count = 0;
        let look = |number: usize, found: Option<&[u8]>| {
            assert_eq!(found, Some(&value_of(from + number as u32)[..]));
            count += 1;
        };
        db.get_many(object, &keys, look).unwrap();
        assert_eq!(count, keys.len());
    }

    /// It took its parent's queue, and what that had asked for, or waited for threads that are not there; both might wait without end.
    #[test]
    fn c4_a_process_that_was_forked_and_its_parent_read_from_the_disk_beside_each_other() {
        if !is_alone() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let options = Options::new().segment_bytes(64 << 10).memory(0).window(Duration::from_secs(3600));
        let db = options.open(directory.path().join("database")).unwrap();
        let map = db.map("map").unwrap();
        for key in 0..KEYS {
            db.put(&map, key.to_be_bytes(), value_of(key)).unwrap().forget();
        }
        db.persist().unwrap();
        let read = move |db: &Kiln, map: &Map| {
            for from in (0..KEYS).step_by(READS) {
                read_batch(db, map, from);
                let found = db.get_async(map, (KEYS - 1 - from).to_be_bytes()).wait().unwrap();
                assert_eq!(found.as_deref(), Some(&value_of(KEYS - 1 - from)[..]));
            }
        };
        // So that there is a queue, and a reader.
        read(&db, &map);
        let forked = directory.path().join("forked");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !forked.exists() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                read(&db, &map);
            });
            let (db, map, forked) = (db.clone(), map.clone(), forked.clone());
            in_fork(move || {
                std::fs::write(&forked, "").unwrap();
                read(&db, &map);
            });
        });
        db.close().unwrap();
    }

    /// It read the leaves of settled rows by its parent's queue, whose memory is not there, or whose threads are not.
    #[test]
    fn c4_a_process_that_was_forked_reads_settled_rows_beside_its_parent() {
        if !is_alone() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let options = Options::new().segment_bytes(64 << 10).memory(2 << 20).background(false);
        let options = options.settle_log_bytes(0);
        let db = options.open(directory.path()).unwrap();
        let table = db.table("table").unwrap();
        for key in 0..KEYS {
            db.put(&table, key.to_be_bytes(), value_of(key)).unwrap().forget();
            if key % 256 == 0 {
                db.persist().unwrap();
            }
        }
        db.persist().unwrap();
        db.settle().unwrap();
        db.close().unwrap();
        // No leaf is in memory now.
        let db = options.open(directory.path()).unwrap();
        let table = db.table("table").unwrap();
        let read = move |db: &Kiln, table: &Table| {
            (0..KEYS).step_by(READS).for_each(|from| read_batch(db, table, from));
            let snapshot = db.snapshot().unwrap();
            let rows = snapshot.range::<&[u8]>(table, ..).map(Result::unwrap);
            let expected = (0..KEYS).map(|key| (key.to_be_bytes().to_vec(), value_of(key).to_vec()));
            assert!(rows.eq(expected));
        };
        // So that there are queues.
        read(&db, &table);
        let (forked_db, forked_table) = (db.clone(), table.clone());
        in_fork(move || {
            read(&forked_db, &forked_table);
            // By the queues that it has made itself.
            read(&forked_db, &forked_table);
        });
        read(&db, &table);
        db.close().unwrap();
    }
}
