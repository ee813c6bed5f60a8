//! Where the keys of the server live in the engine.
//!
//! ```text
//! object       kind    key             value
//! strings      map     a client's key  a client's value, as it is; the row expires when the key does
//! keyspace     table   "current"       which strings are the current ones
//! ```
//!
//! # Emptying
//!
//! `FLUSHDB` must be atomic, for clients and for a crash, and must not be one transaction over every key. So
//! it does not delete: one small transaction makes *another*, empty map the current one (`strings.1`, ...), for which there is room on a full disk, too. The old ones are emptied in the background in small transactions, also after a crash,
//! and are vacant for a later flush then. The alternative, deleting in batches under a lock, would be half
//! done after a crash and stop all clients for as long as it takes.
//!
//! # Invariant
//!
//! Every transaction on the current objects happens under [`Keyspace::enter`], and they change only under
//! [`Keyspace::exclusive`], by whichever of the database's servers. So no transaction straddles a flush, and nothing is ever written to objects that
//! are being emptied. (Commands over all keys read a snapshot of a moment at which they were current.) Holders of the shared side never wait for a client while they hold it, and for the
//! device only under the engine's backpressure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, Weak};

use kiln::planted::{Bug, planted};
use kiln::{ErrorKind, Kiln, Map, Object as _, ObjectInfo, ObjectKind, Snapshot, Table, Version};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::Notify;

use crate::failure::Failure;
use crate::turns::{Waiting, leaving_thread};

/// The table that remembers which objects are current.
const META: &str = "keyspace";
/// Its only key.
const CURRENT: &[u8] = b"current";
/// How many maps there may be. Whoever flushes more often than they can be emptied is told to wait.
const MAPS_MAX: u64 = 1_024;
/// How many keys a background transaction touches at most, so that it never holds up a client for long.
const BACKGROUND_BATCH_KEYS: usize = 128;

/// What holds keys.
pub(crate) struct Space {
    pub(crate) strings: Map,
    /// Which map this is; also what a `WATCH` compares to see that a flush came between.
    pub(crate) index: u64,
    /// The version of the flush that made it the current one, which may not be durable; 0 if there was none.
    /// Whatever is absent here, that depends on it, too.
    pub(crate) since: Version,
}

impl Space {
    fn open(db: &Kiln, index: u64) -> kiln::Result<Self> {
        Ok(Self { strings: db.map(&map_name(index))?, index, since: Version::default() })
    }

    /// Whether nothing is stored, not even keys that have expired.
    fn is_empty(&self) -> bool {
        self.strings.len_estimate() == 0
    }
}

/// What the map with this index is called.
fn map_name(index: u64) -> String {
    if index == 0 { "strings".to_owned() } else { format!("strings.{index}") }
}

/// The index of the map that is called so, if one is.
fn index_of_name(name: &str) -> Option<u64> {
    let index = name.strip_prefix("strings.").map_or(Some(0), |index| index.parse().ok())?;
    (map_name(index) == name).then_some(index)
}

/// Which map [`META`] names; `None` if there was no flush yet.
fn index_of(current: Option<Vec<u8>>) -> Option<u64> {
    String::from_utf8(current?).ok()?.parse().ok()
}

/// What was found; `None` if there is no such thing.
fn if_there<T>(found: kiln::Result<T>) -> kiln::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The name of the map that has what the servers of a database show; `None` if there is none yet.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// let db = kiln::Kiln::open(directory.path())?;
/// assert_eq!(kiln_server::served_map(&db)?, None);
/// db.put(&db.map("strings")?, "clay", "1")?.forget();
/// assert_eq!(kiln_server::served_map(&db)?.as_deref(), Some("strings"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The engine's; `Input` if there is an object of another kind with a name of the server's.
pub fn served_map(db: &Kiln) -> kiln::Result<Option<String>> {
    let map = Keyspace::at(&db.snapshot()?)?;
    Ok(map.map(|map| map.name().to_owned()))
}

/// If the map with this name is one of a server's that is not shown: the name of the one that the next server shows. It empties the others, as what a
/// flush has left behind, and before the first flush does not start while there is something in one of them.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// let db = kiln::Kiln::open(directory.path())?;
/// assert_eq!(kiln_server::served_instead_of(&db, "strings")?, None);
/// assert_eq!(kiln_server::served_instead_of(&db, "strings.1")?.as_deref(), Some("strings"));
/// // As after the first flush.
/// db.put(&db.table("keyspace")?, "current", "1")?.forget();
/// assert_eq!(kiln_server::served_instead_of(&db, "strings")?.as_deref(), Some("strings.1"));
/// assert_eq!(kiln_server::served_instead_of(&db, "strings.1")?, None);
/// assert_eq!(kiln_server::served_instead_of(&db, "other")?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The engine's.
pub fn served_instead_of(db: &Kiln, name: &str) -> kiln::Result<Option<String>> {
    let Some(index) = index_of_name(name) else { return Ok(None) };
    match Keyspace::current_at(&db.snapshot()?) {
        Ok(current) => {
            let current = current.unwrap_or(0);
            Ok((current != index).then(|| map_name(current)))
        }
        // Nobody can serve it.
        Err(error) if error.kind() == ErrorKind::Input => Ok(None),
        Err(error) => Err(error),
    }
}

/// The first servers kept lifetimes in maps of their own, which nobody heeds any more: keys would never expire.
fn refuse_old_lifetimes(db: &Kiln) -> io::Result<()> {
    let is_old = |name: &str| name == "lifetimes" || name.starts_with("lifetimes.");
    match db.objects().into_iter().find(|object| object.keys > 0 && is_old(&object.name)) {
        None => Ok(()),
        Some(object) => Err(io::Error::other(format!(
            "the map {:?} has lifetimes of {} keys as an older server kept them, which this one cannot read; \
             start the older one, end them (PERSIST), wait a second, and stop it",
            object.name, object.keys
        ))),
    }
}

/// Without a flush there are no other maps than the first, but for those of a server that was about to flush, which are empty: who made others wants to keep what is in them.
fn refuse_maps_of_others(objects: &[ObjectInfo]) -> io::Result<()> {
    let is_other = |name: &str| index_of_name(name).is_some_and(|index| index > 0);
    let mut maps = objects.iter().filter(|object| object.kind == ObjectKind::Map && object.keys > 0);
    match maps.find(|object| is_other(&object.name)) {
        None => Ok(()),
        Some(object) => Err(io::Error::other(format!(
            "the map {:?} has {} keys, and no server made it, but one would empty it: the name is that of a map that a flush has left behind; \
             export it, import it as \"strings\" if these keys are to be served, and under another name if not, and drop it",
            object.name, object.keys
        ))),
    }
}

/// Where a database's keyspace is while it has servers. Locked while it is opened.
type Slot = Arc<Mutex<Weak<Keyspace>>>;

/// Those of all databases that have servers in this process, by [`Kiln::identity`]. Nobody waits for a disk who has locked this.
static SLOTS: Mutex<BTreeMap<usize, Slot>> = Mutex::new(BTreeMap::new());

/// The keys of the server.
pub(crate) struct Keyspace {
    db: Kiln,
    meta: Table,
    current: RwLock<Space>,
    spares: Mutex<Spares>,
    /// Wakes whoever empties old objects.
    pub(crate) flushed: Notify,
}

/// The objects that are not current.
#[derive(Default)]
struct Spares {
    /// Empty, to be used by the next flush.
    vacant: Vec<Space>,
    /// To be emptied.
    full: VecDeque<Space>,
    /// The index of the next one to be created, unless it is taken.
    next_index: u64,
    /// The indexes that objects had when this was opened.
    taken: BTreeSet<u64>,
}

impl Keyspace {
    /// That of a database, which all its servers share: what one of them has flushed none must write to any more.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn of(db: &Kiln) -> io::Result<Arc<Self>> {
        let slot = Self::slot(db);
        let mut opened = slot.lock();
        if let Some(keyspace) = opened.upgrade() {
            return Ok(keyspace);
        }
        let keyspace = Arc::new(Self::open(db)?);
        *opened = Arc::downgrade(&keyspace);
        Ok(keyspace)
    }

    fn slot(db: &Kiln) -> Slot {
        let mut slots = SLOTS.lock();
        // Those of others are not upgraded: a keyspace owned here, be it for a moment, keeps its database open. Who opens one has its slot.
        slots.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.lock().strong_count() > 0);
        Arc::clone(slots.entry(db.identity()).or_default())
    }

    /// Opens or creates the objects and finds those that a crash left to be emptied.
    ///
    /// # Errors
    /// The engine's; and if an older server has written the database, or somebody else what would be emptied.
    fn open(db: &Kiln) -> io::Result<Self> {
        refuse_old_lifetimes(db)?;
        let objects = db.objects();
        let meta = db.table(META).map_err(io::Error::other)?;
        // The version, too: a server before this one may have flushed since the database was opened.
        let named = db.transact(|tx| tx.get(&meta, CURRENT)).map_err(io::Error::other)?;
        let since = named.version();
        let named = index_of(named.forget());
        if named.is_none() {
            refuse_maps_of_others(&objects)?;
        }
        Self::open_maps(db, meta, (named.unwrap_or(0), since), &objects).map_err(io::Error::other)
    }

    fn open_maps(
        db: &Kiln,
        meta: Table,
        (current_index, since): (u64, Version),
        objects: &[ObjectInfo],
    ) -> kiln::Result<Self> {
        let mut spares = Spares::default();
        spares.taken.insert(current_index);
        for object in objects {
            let Some(index) = index_of_name(&object.name) else { continue };
            if spares.taken.insert(index) && object.kind == ObjectKind::Map {
                spares.add(Space::open(db, index)?);
            }
        }
        // A flush on a full disk has no room to make the first spare one. Whatever prevents it now, a flush is told if it needs one.
        if spares.taken.len() == 1 {
            let _ = spares.make(db);
        }
        Ok(Self {
            db: db.clone(),
            meta,
            current: RwLock::new(Space { since, ..Space::open(db, current_index)? }),
            spares: Mutex::new(spares),
            flushed: Notify::new(),
        })
    }

    /// The current objects, which stay current while the guard lives.
    pub(crate) fn enter(&self) -> RwLockReadGuard<'_, Space> {
        // Who flushes may wait for somebody whom the engine has wait for the disk.
        self.try_enter().unwrap_or_else(|| leaving_thread(Waiting::Read, || self.current.read()))
    }

    /// As [`Self::enter`], unless that would wait.
    pub(crate) fn try_enter(&self) -> Option<RwLockReadGuard<'_, Space>> {
        self.current.try_read()
    }

    /// The current objects, with nobody else inside.
    pub(crate) fn exclusive(&self) -> RwLockWriteGuard<'_, Space> {
        self.current.try_write().unwrap_or_else(|| leaving_thread(Waiting::Commit, || self.current.write()))
    }

    /// What held the keys when a snapshot was made, be it dropped since; `None` if nothing did yet.
    pub(crate) fn at(snapshot: &Snapshot<'_>) -> kiln::Result<Option<Map>> {
        if_there(snapshot.map(&map_name(Self::current_at(snapshot)?.unwrap_or(0))))
    }

    /// Which map [`META`] named when a snapshot was made; `None` if there was no flush yet.
    fn current_at(snapshot: &Snapshot<'_>) -> kiln::Result<Option<u64>> {
        match if_there(snapshot.table(META))? {
            Some(meta) => Ok(index_of(snapshot.get(&meta, CURRENT)?)),
            None => Ok(None),
        }
    }

    /// The next keys of a map, some at a time, and the cursor to go on from.
    pub(crate) fn scan(&self, space: &Space, cursor: u64, count: usize) -> kiln::Result<(u64, Vec<Vec<u8>>)> {
        match planted(Bug::ScanHoldsValues) {
            true => {
                let (next, rows) = self.db.scan_map(&space.strings, cursor, count)?;
                Ok((next, rows.into_iter().map(|(key, _)| key).collect()))
            }
            false => self.db.scan_map_keys(&space.strings, cursor, count),
        }
    }

    /// Takes empty objects for a flush. They go back with [`Self::give_back`] if the flush does not happen.
    pub(crate) fn take_vacant(&self) -> Result<Space, Failure> {
        let mut spares = self.spares.lock();
        loop {
            match spares.vacant.pop() {
                Some(space) if space.is_empty() => return Ok(space),
                // Somebody else has put something there.
                Some(space) => {
                    spares.full.push_back(space);
                    continue;
                }
                None => {}
            }
            if spares.next_index >= MAPS_MAX && !planted(Bug::MapsUnbounded) {
                return Err(Failure::text(
                    "BUSY so many flushes are being emptied in the background; retry in a moment",
                ));
            }
            spares.make(&self.db)?;
        }
    }

    /// Returns objects that are not current. Those that hold something are emptied before they are used again; the others can be at
    /// once, or whoever flushes a thousand times in one transaction would have the whole index walked over as often.
    pub(crate) fn give_back(&self, space: Space) {
        self.spares.lock().add(space);
        self.flushed.notify_one();
    }

    /// The write that makes `space` current once the transaction commits.
    pub(crate) fn make_current(&self, tx: &kiln::Transaction<'_>, space: &Space) -> kiln::Result<()> {
        tx.put(&self.meta, CURRENT, space.index.to_string())
    }

    /// Empties objects that a flush left behind, if there are any. Runs long; in a thread where that harms
    /// nobody.
    pub(crate) fn empty_one(&self, go_on: impl Fn() -> bool) -> kiln::Result<Emptied> {
        let Some(space) = self.spares.lock().full.pop_front() else { return Ok(Emptied::NothingToDo) };
        let result = self.empty(&space, &go_on);
        let emptied = if space.is_empty() { Emptied::One } else { Emptied::NotYet };
        self.spares.lock().add(space);
        if !go_on() {
            // Another server of the database does the rest.
            self.flushed.notify_one();
        }
        result.map(|()| emptied)
    }

    /// Deletes every key but those that have expired, which the engine deletes.
    fn empty(&self, space: &Space, go_on: impl Fn() -> bool) -> kiln::Result<()> {
        let (map, mut cursor) = (&space.strings, 0);
        while go_on() {
            let (next, keys) = self.db.scan_map_keys(map, cursor, BACKGROUND_BATCH_KEYS)?;
            let delete =
                |tx: &kiln::Transaction<'_>| keys.iter().try_for_each(|key| tx.delete(map, key).map(drop));
            self.db.transact(delete)?.forget();
            if next == 0 {
                break;
            }
            cursor = next;
        }
        Ok(())
    }
}

impl Spares {
    /// Makes another one. It may be there already, if somebody else has made it since, with something in it.
    fn make(&mut self, db: &Kiln) -> kiln::Result<()> {
        while self.taken.contains(&self.next_index) {
            self.next_index += 1;
        }
        self.add(Space::open(db, self.next_index)?);
        self.next_index += 1;
        Ok(())
    }

    fn add(&mut self, space: Space) {
        if space.is_empty() { self.vacant.push(space) } else { self.full.push_back(space) }
    }
}

/// What one call of [`Keyspace::empty_one`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Emptied {
    /// There was nothing to be emptied.
    NothingToDo,
    /// A map is vacant now.
    One,
    /// There are keys yet that have expired, or it was to end.
    NotYet,
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use kiln::device::SimulatedDevice;

    use super::*;

    /// Its map stayed full until somebody flushed, or for as long as the database was open.
    #[test]
    fn who_is_to_end_leaves_what_he_was_emptying_to_another() {
        let directory = tempfile::tempdir().unwrap();
        let db = Kiln::open(directory.path()).unwrap();
        db.put(&db.table(META).unwrap(), CURRENT, "0").unwrap().forget();
        db.put(&db.map("strings.1").unwrap(), "key", "value").unwrap().forget();
        let keyspace = Keyspace::of(&db).unwrap();
        let mut woken = pin!(keyspace.flushed.notified());
        let mut context = Context::from_waker(Waker::noop());
        assert!(woken.as_mut().poll(&mut context).is_pending());
        assert_eq!(keyspace.empty_one(|| false).unwrap(), Emptied::NotYet);
        assert!(woken.as_mut().poll(&mut context).is_ready());
        assert_eq!(keyspace.empty_one(|| true).unwrap(), Emptied::One);
    }

    /// No server of any database could begin until the disk of the first was back.
    #[test]
    fn a_keyspace_is_opened_while_that_of_another_database_waits_for_its_disk() {
        const WINDOW: Duration = Duration::from_millis(20);
        let (disk, directory) = (SimulatedDevice::new(1), tempfile::tempdir().unwrap());
        let late = kiln::Options::new().window(WINDOW).open_on(Arc::new(disk.clone())).unwrap();
        let other = Kiln::open(directory.path()).unwrap();
        let map = late.map("map").unwrap();
        late.persist().unwrap();
        let (disk_is_late, is_back) = std::sync::mpsc::channel::<()>();
        disk.watch_steps(move |_, _| assert!(is_back.recv().is_err()));
        late.put(&map, "key", "value").unwrap().forget();
        // Commits are held back then.
        while late.pressure().oldest_unhardened.is_none_or(|oldest| oldest <= 10 * WINDOW) {
            std::thread::yield_now();
        }
        let (slot, opened) = (Keyspace::slot(&late), late.clone());
        let opening = std::thread::spawn(move || Keyspace::of(&opened).map(drop));
        while slot.try_lock().is_some() && !opening.is_finished() {
            std::thread::yield_now();
        }
        assert!(Keyspace::of(&other).is_ok());
        assert!(!opening.is_finished(), "it did not wait");
        drop(disk_is_late);
        opening.join().unwrap().unwrap();
    }

    #[test]
    fn only_what_holds_something_is_emptied_before_it_is_used_again() {
        let directory = tempfile::tempdir().unwrap();
        let db = Kiln::open(directory.path()).unwrap();
        let keyspace = Keyspace::of(&db).unwrap();
        let take = || keyspace.take_vacant().unwrap_or_else(|_| panic!("there are maps yet"));
        let (first, second) = (take(), take());
        db.put(&second.strings, "key", "value").unwrap().forget();
        let first_index = first.index;
        keyspace.give_back(first);
        assert_eq!(take().index, first_index);
        let second_index = second.index;
        keyspace.give_back(second);
        assert_ne!(take().index, second_index);
        assert_eq!(keyspace.empty_one(|| true).unwrap(), Emptied::One);
        assert_eq!(take().index, second_index);
    }
}
