//! Where the keys of the server live in the engine.
//!
//! ```text
//! object       kind    key             value
//! strings      map     a client's key  a client's value, as it is
//! lifetimes    map     a client's key  when it expires, if it does (see `expiry`)
//! expiries     table   when            the key that expires then
//! keyspace     table   "current"       which three of these are the current ones
//! ```
//!
//! # Lifetimes
//!
//! As long as no key has a lifetime, `GET` and `SET` look at `strings` alone. [`Space::has_lifetimes`] says
//! so. It is exact: it changes only while nobody is inside, so no write that has looked at it can meet a
//! lifetime that it does not know of.
//!
//! # Emptying
//!
//! `FLUSHDB` must be atomic, for clients and for a crash, and must not be one transaction over every key. So
//! it does not delete: one small transaction makes *other*, empty objects the current ones (`strings.1`,
//! `lifetimes.1`, ...). The old ones are emptied in the background in small transactions, also after a crash,
//! and are vacant for a later flush then. The alternative, deleting in batches under a lock, would be half
//! done after a crash and stop all clients for as long as it takes.
//!
//! # Invariant
//!
//! Every access to the current objects happens under [`Keyspace::enter`], and they change only under
//! [`Keyspace::exclusive`]. So no transaction straddles a flush, and nothing is ever written to objects that
//! are being emptied. Holders of the shared side never wait for a client while they hold it, and for the
//! device only under the engine's backpressure.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use kiln::{Kiln, Map, Object, Table};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::Notify;

use crate::clock::UnixMs;
use crate::expiry::Expiry;

/// The table that remembers which objects are current.
const META: &str = "keyspace";
/// Its only key.
const CURRENT: &[u8] = b"current";
/// How many keys a background transaction touches at most, so that it never holds up a client for long.
const BACKGROUND_BATCH_KEYS: usize = 128;

/// The objects that hold keys.
#[derive(Clone)]
pub(crate) struct Space {
    pub(crate) strings: Map,
    pub(crate) lifetimes: Map,
    pub(crate) expiries: Table,
    /// Whether any key may have a lifetime.
    pub(crate) has_lifetimes: bool,
    /// Which objects these are; also what a `WATCH` compares to see that a flush came between.
    pub(crate) index: u64,
}

impl Space {
    fn open(db: &Kiln, index: u64) -> kiln::Result<Self> {
        let name = |base: &str| if index == 0 { base.to_owned() } else { format!("{base}.{index}") };
        let strings = db.map(&name("strings"))?;
        let (lifetimes, expiries) = (db.map(&name("lifetimes"))?, db.table(&name("expiries"))?);
        let has_lifetimes = !lifetimes.is_empty();
        Ok(Self { strings, lifetimes, expiries, has_lifetimes, index })
    }

    fn is_empty(&self) -> bool {
        self.strings.is_empty() && self.lifetimes.is_empty() && self.expiries.is_empty()
    }
}

/// The keys of the server.
pub(crate) struct Keyspace {
    db: Kiln,
    meta: Table,
    current: RwLock<Space>,
    spares: Mutex<Spares>,
    /// Wakes whoever empties old objects.
    pub(crate) flushed: Notify,
    nonces: Nonces,
}

/// The objects that are not current.
struct Spares {
    /// Empty, to be used by the next flush.
    vacant: Vec<Space>,
    /// To be emptied.
    full: VecDeque<Space>,
    /// The index of the next ones to be created.
    next_index: u64,
}

impl Keyspace {
    /// Opens or creates the objects and finds those that a crash left to be emptied.
    pub(crate) fn open(db: &Kiln) -> kiln::Result<Self> {
        let meta = db.table(META)?;
        let current_index = match db.get(&meta, CURRENT)? {
            None => 0,
            Some(bytes) => String::from_utf8_lossy(&bytes).parse().unwrap_or(0),
        };
        let mut spares = Spares { vacant: Vec::new(), full: VecDeque::new(), next_index: 0 };
        let created = db.objects();
        loop {
            let name = format!("strings.{}", spares.next_index);
            let exists =
                spares.next_index <= current_index || created.iter().any(|object| object.name == name);
            if !exists {
                break;
            }
            if spares.next_index != current_index {
                spares.add(Space::open(db, spares.next_index)?);
            }
            spares.next_index += 1;
        }
        Ok(Self {
            db: db.clone(),
            meta,
            current: RwLock::new(Space::open(db, current_index)?),
            spares: Mutex::new(spares),
            flushed: Notify::new(),
            nonces: Nonces::default(),
        })
    }

    /// The current objects, which stay current while the guard lives.
    pub(crate) fn enter(&self) -> RwLockReadGuard<'_, Space> {
        self.current.read()
    }

    /// The current objects, with nobody else inside.
    pub(crate) fn exclusive(&self) -> RwLockWriteGuard<'_, Space> {
        self.current.write()
    }

    /// As [`Self::enter`], for who may give a key a lifetime.
    pub(crate) fn enter_with_lifetimes(&self) -> RwLockReadGuard<'_, Space> {
        let mut space = self.exclusive();
        space.has_lifetimes = true;
        RwLockWriteGuard::downgrade(space)
    }

    /// Takes empty objects for a flush. They go back with [`Self::give_back`] if the flush does not happen.
    pub(crate) fn take_vacant(&self) -> kiln::Result<Space> {
        let mut spares = self.spares.lock();
        let mut space = match spares.vacant.pop() {
            Some(space) => space,
            None => {
                let space = Space::open(&self.db, spares.next_index)?;
                spares.next_index += 1;
                space
            }
        };
        // What follows the flush in the same transaction may give lifetimes.
        space.has_lifetimes = true;
        Ok(space)
    }

    /// Returns objects that are not current. They are looked at before they are used again, whatever they
    /// hold.
    pub(crate) fn give_back(&self, space: Space) {
        self.spares.lock().full.push_back(space);
        self.flushed.notify_one();
    }

    /// The write that makes `space` current once the transaction commits.
    pub(crate) fn make_current(&self, tx: &kiln::Transaction<'_>, space: &Space) -> kiln::Result<()> {
        tx.put(&self.meta, CURRENT, space.index.to_string())
    }

    /// A number that tells apart the keys which expire at one time.
    pub(crate) fn nonce(&self) -> u64 {
        self.nonces.next()
    }

    /// Deletes some keys whose time has come and says whether more may be due.
    pub(crate) fn sweep(&self, now: UnixMs) -> kiln::Result<Swept> {
        let space = self.enter();
        if !space.has_lifetimes {
            return Ok(Swept::default());
        }
        // Rows up to and including `now`: the first row of the next millisecond is the bound.
        let bound = Expiry { at: UnixMs(now.0.saturating_add(1)), nonce: 0 }.encode();
        let commit = self.db.transact(|tx| {
            let due = tx.range(&space.expiries, ..bound).limit(BACKGROUND_BATCH_KEYS);
            let due = due.collect::<kiln::Result<Vec<_>>>()?;
            for (row, key) in &due {
                tx.delete(&space.strings, key)?;
                tx.delete(&space.lifetimes, key)?;
                tx.delete(&space.expiries, row)?;
            }
            Ok(Swept { keys: due.len() as u64, more: due.len() == BACKGROUND_BATCH_KEYS })
        })?;
        drop(space);
        self.forget_lifetimes();
        Ok(commit.forget())
    }

    /// Notices that no key has a lifetime any more.
    fn forget_lifetimes(&self) {
        if self.enter().lifetimes.is_empty() {
            let mut space = self.exclusive();
            // Looked at again, now that nobody is inside and the count is exact.
            space.has_lifetimes = !space.lifetimes.is_empty();
        }
    }

    /// Empties objects that a flush left behind, if there are any. Runs long; in a thread where that harms
    /// nobody.
    pub(crate) fn empty_one(&self, go_on: impl Fn() -> bool) -> kiln::Result<bool> {
        let Some(space) = self.spares.lock().full.pop_front() else { return Ok(false) };
        let result = self.empty(&space, go_on);
        self.spares.lock().add(space);
        result.map(|()| true)
    }

    fn empty(&self, space: &Space, go_on: impl Fn() -> bool) -> kiln::Result<()> {
        for map in [&space.strings, &space.lifetimes] {
            let mut cursor = 0;
            while go_on() && !map.is_empty() {
                let (next, entries) = self.db.scan_map(map, cursor, BACKGROUND_BATCH_KEYS)?;
                self.delete_all(map, entries.iter().map(|(key, _)| key.as_slice()))?;
                cursor = next;
            }
        }
        while go_on() && !space.expiries.is_empty() {
            let rows = self.first_rows(&space.expiries)?;
            self.delete_all(&space.expiries, rows.iter().map(Vec::as_slice))?;
        }
        Ok(())
    }

    fn first_rows(&self, table: &Table) -> kiln::Result<Vec<Vec<u8>>> {
        let snapshot = self.db.snapshot()?;
        let rows = snapshot.range::<&[u8]>(table, ..).limit(BACKGROUND_BATCH_KEYS);
        rows.map(|row| row.map(|(key, _)| key)).collect()
    }

    fn delete_all<'k>(
        &self,
        object: &impl Object,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
    ) -> kiln::Result<()> {
        let commit =
            self.db.transact(|tx| keys.clone().try_for_each(|key| tx.delete(object, key).map(drop)))?;
        commit.forget();
        Ok(())
    }
}

impl Spares {
    fn add(&mut self, space: Space) {
        if space.is_empty() { self.vacant.push(space) } else { self.full.push_back(space) }
    }
}

/// What one call of [`Keyspace::sweep`] did.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Swept {
    /// How many keys were deleted.
    pub(crate) keys: u64,
    /// Whether more keys may be due.
    pub(crate) more: bool,
}

/// Unpredictable numbers: a keyed hash of a counter, with a key that the standard library draws for each
/// process.
#[derive(Default)]
struct Nonces {
    key: RandomState,
    count: AtomicU64,
}

impl Nonces {
    fn next(&self) -> u64 {
        self.key.hash_one(self.count.fetch_add(1, Ordering::Relaxed))
    }
}
