//! Wake-ups: whoever waits for durability, for space or for the window's end goes on, and is told the truth. In most of these
//! time stands still, so that no deadline covers up for a wake-up that was lost.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use kiln::device::{Fault, FaultKind, OperationKind};
use kiln::schedules::{Time, begin, quietly};
use kiln::{ErrorKind, Level, Progress};
use shuttle::sync::{Condvar, Mutex};

use super::database::{Database, Ledger, choose, failed, thread, together};
use crate::support::manual;

/// Something that happens once, and that others wait for.
#[derive(Clone, Default)]
struct Event(Arc<(Mutex<bool>, Condvar)>);

impl Event {
    fn happens(&self) {
        *self.0.0.lock().unwrap_or_else(|_| panic!("poisoned")) = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let mut happened = self.0.0.lock().unwrap_or_else(|_| panic!("poisoned"));
        while !*happened {
            happened = self.0.1.wait(happened).unwrap_or_else(|_| panic!("poisoned"));
        }
    }
}

/// Wakes a thread that runs a future.
struct Unpark(shuttle::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(shuttle::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => shuttle::thread::park(),
        }
    }
}

/// Without background threads, waiters lead and wake each other, be they threads or tasks.
pub(super) fn safe_commits_end() {
    begin(Time::StandsStill);
    let (database, ledger) = (Database::new(), Ledger::default());
    let committers = (0..3).map(|who| {
        let (Database { disk, db, map, .. }, ledger) = (database.clone(), ledger.clone());
        let ways = [choose(2), choose(2)];
        thread(move || {
            for (round, way) in ways.into_iter().enumerate() {
                let key = format!("{who}-{round}");
                let (_, receipt) = db.put(&map, &key, "value").unwrap_or_else(failed).fast();
                ledger.committed(key.as_bytes(), receipt.version(), b"value");
                match way {
                    0 => ledger.wait(&disk, &receipt),
                    _ => {
                        block_on(receipt.durable_leading(Level::LOCAL)).unwrap_or_else(failed);
                        ledger.durable(receipt.version());
                    }
                }
                assert_eq!(receipt.poll(Level::LOCAL), Progress::Durable);
            }
        })
    });
    let other = {
        let Database { db, .. } = database.clone();
        let way = choose(2);
        thread(move || match way {
            0 => db.persist().unwrap_or_else(failed),
            // Hardens, too, and then looks at what is there.
            _ => drop(db.check().unwrap_or_else(failed)),
        })
    };
    together(committers.chain([other]).collect());
    let left = database.after_crash();
    ledger.check(&left);
}

/// With background threads, each way to learn of durability comes to its end.
pub(super) fn receipts_end() {
    begin(Time::StandsStill);
    let database = Database::with(manual().background(true));
    let waiters = (0..3).map(|who| {
        let Database { db, map, .. } = database.clone();
        let way = choose(6);
        thread(move || {
            let (_, receipt) = db.put(&map, format!("{who}"), "value").unwrap_or_else(failed).fast();
            match way {
                0 => receipt.wait(Level::LOCAL).unwrap_or_else(failed),
                1 => {
                    let ended = receipt.wait_timeout(Level::LOCAL, Duration::from_secs(3600));
                    assert!(ended.unwrap_or_else(failed), "a wait timed out though no time has passed");
                }
                2 => block_on(receipt.durable(Level::LOCAL)).unwrap_or_else(failed),
                3 => block_on(receipt.durable_leading(Level::LOCAL)).unwrap_or_else(failed),
                4 => {
                    let event = Event::default();
                    let told = event.clone();
                    receipt.on_durable(Level::LOCAL, move |outcome| {
                        assert!(outcome.is_ok(), "a commit was lost: {outcome:?}");
                        told.happens();
                    });
                    db.harden_soon();
                    event.wait();
                }
                _ => db.persist().unwrap_or_else(failed),
            }
            assert_eq!(receipt.poll(Level::LOCAL), Progress::Durable);
        })
    });
    together(waiters.collect());
    database.db.close().unwrap_or_else(failed);
}

/// What somebody hardens beside a close, and cannot tell of, is told at the end of it.
pub(super) fn who_closes_tells() {
    begin(Time::StandsStill);
    let database = Database::with(manual().background(choose(2) == 0));
    let Database { db, map, .. } = database.clone();
    let events = ["callback", "future"].map(|key| {
        let (_, receipt) = db.put(&map, key, "value").unwrap_or_else(failed).fast();
        (receipt, Event::default())
    });
    let [(called, callback), (awaited, future)] = events;
    let told = callback.clone();
    called.on_durable(Level::LOCAL, move |_| told.happens());
    let told = future.clone();
    let waiting = thread(move || {
        block_on(awaited.durable(Level::LOCAL)).unwrap_or_else(failed);
        told.happens();
    });
    let hardening = {
        let db = db.clone();
        // As a snapshot is named it hardens with a lock.
        thread(move || _ = db.create_snapshot("name"))
    };
    let closing = thread(move || db.close().unwrap_or_else(failed));
    together(vec![waiting, hardening, closing]);
    callback.wait();
    future.wait();
}

/// Fast commits of which nobody asks harden within their window, by the background threads alone; while these are behind,
/// commits wait, and go on.
pub(super) fn the_window_ends() {
    let database = Database::with(manual().background(true).window(Duration::from_millis(10)));
    let committers = (0..2).map(|who| {
        let Database { db, map, .. } = database.clone();
        thread(move || {
            for round in 0..2 {
                let (_, receipt) =
                    db.put(&map, format!("{who}-{round}"), "value").unwrap_or_else(failed).fast();
                let event = Event::default();
                let told = event.clone();
                receipt.on_durable(Level::LOCAL, move |_| told.happens());
                event.wait();
                assert_eq!(receipt.poll(Level::LOCAL), Progress::Durable);
            }
        })
    });
    together(committers.collect());
    database.db.close().unwrap_or_else(failed);
}

/// Whoever finds the log full waits for a hardening, and does not keep others from being woken.
pub(super) fn waits_for_space_end() {
    const LARGE: usize = 30 << 10;
    begin(Time::StandsStill);
    let database = Database::new();
    quietly(|| {
        // The next large one has no space before a hardening.
        for number in 0..3 {
            let large = vec![number; LARGE];
            database.db.put(&database.map, [number], large).unwrap_or_else(failed).forget();
        }
    });
    let large = {
        let Database { db, map, .. } = database.clone();
        thread(move || {
            let commit = db.put(&map, "large", vec![7; LARGE]).unwrap_or_else(failed);
            commit.safe().unwrap_or_else(failed);
        })
    };
    let small = (0..2).map(|who| {
        let Database { db, map, .. } = database.clone();
        thread(move || {
            let commit = db.put(&map, format!("small {who}"), "value").unwrap_or_else(failed);
            commit.safe().unwrap_or_else(failed);
        })
    });
    together(small.chain([large]).collect());
}

/// A sync fails: every wait ends, as lost or as durable, and what is said is so.
pub(super) fn losses_are_told() {
    begin(Time::StandsStill);
    let background = choose(2) == 0;
    let (database, ledger) = (Database::with(manual().background(background)), Ledger::default());
    let told = Event::default();
    let happens = told.clone();
    database.db.on_lost(move |_| happens.happens());
    database.disk.inject(Fault {
        operation: OperationKind::Sync,
        nth: 1 + choose(2),
        kind: FaultKind::EIO,
        // For ever: the first one may only be that of a segment that is made ready.
        sticky: true,
    });
    let committers = (0..2).map(|who| {
        let (Database { db, map, .. }, ledger) = (database.clone(), ledger.clone());
        thread(move || {
            for round in 0..2 {
                let key = format!("{who}-{round}");
                let receipt = match db.put(&map, &key, "value") {
                    Ok(commit) => commit.fast().1,
                    Err(error) => return assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
                };
                ledger.committed(key.as_bytes(), receipt.version(), b"value");
                match receipt.wait(Level::LOCAL) {
                    Ok(()) => {
                        ledger.durable(receipt.version());
                        assert_eq!(receipt.poll(Level::LOCAL), Progress::Durable);
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                        assert_eq!(receipt.poll(Level::LOCAL), Progress::Lost);
                    }
                }
            }
        })
    });
    let persister = {
        let db = database.db.clone();
        thread(move || {
            let _ = db.persist();
            let _ = db.persist();
        })
    };
    let listener = thread(move || told.wait());
    together(committers.chain([persister, listener]).collect());
    database.disk.clear_faults();
    ledger.check(&database.after_crash());
}
