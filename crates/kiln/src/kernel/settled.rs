//! What has settled: rows of tables that have left the log, and the indexes in memory, for the tree on disk (AciKV §3.2).
//!
//! ```text
//!   hash index, ordered index     every row that was written, or deleted, since it last settled
//!   tree                          the others
//! ```
//!
//! A key's entry in memory goes before its row in the tree. A row comes into the tree before its entry goes: so whoever finds
//! no entry, and takes the tree's root *afterwards*, finds the row there if there is one. What makes the answer certain is
//! what makes a miss certain: the bucket's control word, which every write of the key changes.
//!
//! The removal of an entry whose row is in the tree changes neither the control word nor the version of the ordered index's leaf
//! (`remove_settled_row`), so nobody conflicts with it. For what an entry that is removed refers to is the key's newest record, since it is the index
//! that says so, and it lies before S; the newest record before S of every key is what the tree's newest root says of it, and only who
//! settles makes another. So who has read the record has read what they would read now, be it a value or that there is none. What changes a
//! settled row afterwards is a write, which adds an entry to the bucket, and the key to the leaf; both count. Two things do not follow
//! from an unchanged bucket, as they do not where a record is [moved](super::compaction): that an address that was read in it is still in the log, and that the index still refers to it.
//!
//! Nothing settles that some snapshot must not see yet, and nothing that is not durable. So the tree has no versions, and every
//! snapshot reads the newest root. To those who read in a transaction a settled row is of version 0, as an absent one: what
//! has vanished from the indexes is not newer than [`Engine::forgotten`].

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{Arc, Weak};

use super::change::{Change, Current, Learnt};
use super::engine::Engine;
use super::frozen::FrozenWalks;
use super::object::ObjectState;
use super::settle::failures::SettlingFailures;
use super::settling_pace::SettlingPace;
use super::single::SingleKey;
use super::sweep::Grave;
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::hash_index::Bucket;
use crate::storage::ordered_index::OrderedIndex;
use crate::storage::record::{Address, NEVER};
use crate::storage::tree::{Cached, Cursor, Root, Tree, tree_bounds, write_tree_key};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, thread_local};

/// How much settles, as the options say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettlingBounds {
    /// So much cold log makes it due, or more; 0: nothing settles by itself.
    pub(crate) due_bytes: u64,
    /// So much may not have settled, or more, before commits are slowed.
    pub(crate) unsettled_bytes: u64,
    /// For what is sorted.
    pub(crate) memory_bytes: u64,
    /// So many settle side by side.
    pub(crate) threads: usize,
}

/// How it was when nothing could settle on a full disk.
pub(super) struct InVain {
    /// So many tombstones there were.
    pub(super) graves: u64,
    pub(super) hardened: Address,
    /// Room in the tree's file.
    pub(super) room_bytes: u64,
    /// So many dropped objects settled no more.
    pub(super) objects_left: u64,
    /// A snapshot was in the way, which must not see that version.
    pub(super) waits_for_version: u64,
}

impl InVain {
    pub(super) const NOTHING: InVain =
        InVain { graves: 0, hardened: 0, room_bytes: 0, objects_left: 0, waits_for_version: u64::MAX };
}

/// The tree, and how far settling has come.
pub(crate) struct Settled {
    pub(crate) tree: Arc<Tree>,
    pub(super) bounds: SettlingBounds,
    /// Whoever settles.
    pub(super) settling: Mutex<()>,
    /// How often somebody has come to the end of that, and given back what was sorted on disk.
    pub(super) ended: AtomicU64,
    /// Whoever loads rows in bulk. Locked before `settling`.
    pub(super) loading: Mutex<()>,
    /// An object that was loaded enters the catalog, and this registry of objects, under it.
    pub(crate) entering: Mutex<()>,
    /// From now on tombstones of tables go only by settling: the tree may have what they delete.
    pub(super) is_begun: AtomicBool,
    /// Tombstones of tables before this address may have been forgotten while nothing had settled, or [without](Self::deleted_to) having
    /// settled. All before it has to settle at once: of a deleted key the log would tell only that it was once there. How that is known after an opening: `recovery::settled`.
    pub(super) forgotten_to: AtomicU64,
    /// No record of a table before this address is in the indexes.
    pub(crate) removed_to: AtomicU64,
    /// Settling was due when somebody looked last: for compaction, which cannot look, as it holds the lock that who looks may wait for.
    pub(super) is_due: AtomicBool,
    /// Of what was deleted before this address the tree has nothing, though the rest before it has not settled: the disk was full.
    pub(super) deleted_to: AtomicU64,
    /// Nothing settles by itself before every snapshot may see this version: the last time one was in the way.
    pub(super) waits_for_version: AtomicU64,
    /// Nor before the log has left memory up to here: the last time it failed.
    pub(super) waits_for_head: AtomicU64,
    pub(crate) failures: SettlingFailures,
    /// Locked by who has locked `loading`.
    pub(super) in_vain: Mutex<InVain>,
    /// Records that ranges have read from disk since something last settled.
    pub(super) range_reads: AtomicU64,
    pub(super) frozen_walks: FrozenWalks,
    /// A key is in a table's order if, and only if, it has an entry in the hash index, for who holds its bucket.
    pub(crate) orders_are_exact: bool,
    /// Bytes of log that are just being merged: so much the tree may grow.
    pub(super) moving_bytes: AtomicU64,
    /// Rows that were removed from the indexes since the database was opened.
    pub(crate) rows: AtomicU64,
    pub(crate) pace: SettlingPace,
}

/// Whether a key without a record has settled, as far as somebody has looked.
#[derive(Default)]
pub(crate) struct Lookup {
    /// Of a root, which tells as long as it is the newest, and is not held for this: when the row expires, if it is there and does.
    known: Option<(Weak<Root>, Option<u64>)>,
}

impl Lookup {
    /// Of a row that was read while this root was the newest.
    pub(super) fn of_row(root: &Arc<Root>, expires_at: u64) -> Lookup {
        Lookup { known: Some((Arc::downgrade(root), Some(expires_at))) }
    }

    /// It is still to be looked up.
    pub(super) fn is_open(&self) -> bool {
        self.known.is_none()
    }

    /// The root that was asked still is the newest.
    fn is_newest(root: &Weak<Root>, tree: &Tree) -> bool {
        root.upgrade().is_some_and(|root| tree.is_newest(&root))
    }
}

impl Settled {
    /// Of a database in which nobody may know any more of deletions before `forgotten_to`.
    pub(crate) fn new(
        tree: Arc<Tree>,
        bounds: SettlingBounds,
        forgotten_to: Address,
        orders_are_exact: bool,
    ) -> Settled {
        Settled {
            is_begun: AtomicBool::new(tree.has_settled()),
            forgotten_to: AtomicU64::new(forgotten_to),
            removed_to: AtomicU64::new(tree.settled_to()),
            is_due: AtomicBool::new(false),
            deleted_to: AtomicU64::new(0),
            tree,
            bounds,
            settling: Mutex::new(()),
            ended: AtomicU64::new(0),
            loading: Mutex::new(()),
            entering: Mutex::new(()),
            waits_for_version: AtomicU64::new(0),
            waits_for_head: AtomicU64::new(0),
            failures: SettlingFailures::default(),
            in_vain: Mutex::new(InVain::NOTHING),
            range_reads: AtomicU64::new(0),
            frozen_walks: FrozenWalks::default(),
            orders_are_exact,
            moving_bytes: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            pace: SettlingPace::new(),
        }
    }

    /// Has nobody load rows in bulk until dropped.
    pub(crate) fn pause_loads(&self) -> impl Drop {
        self.loading.lock()
    }

    /// Before this address there may be tombstones that were forgotten, and have not settled; 0 if there are none.
    pub(super) fn forgotten_unsettled_to(&self) -> Address {
        let forgotten_to = self.forgotten_to.load(Ordering::SeqCst);
        if forgotten_to > self.removed_to.load(Ordering::SeqCst) { forgotten_to } else { 0 }
    }

    /// Does what settles, or changes the tree otherwise, with nobody else beside it.
    pub(super) fn alone<T>(&self, work: impl FnOnce() -> T) -> T {
        let _settling = self.settling.lock();
        let done = work();
        self.ended.fetch_add(1, Ordering::SeqCst);
        done
    }

    /// Has nothing settle until dropped.
    pub(crate) fn pause(&self) -> impl Drop {
        self.settling.lock()
    }
}

/// Runs with the key in the tree of an object's key, in memory that the thread keeps.
#[inline]
fn with_tree_key<T>(object: u32, key: &[u8], run: impl FnOnce(&[u8]) -> T) -> T {
    thread_local! {
        static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    let mut tree_key = BUFFER.try_with(Cell::take).unwrap_or_default();
    write_tree_key(object, key, &mut tree_key);
    let result = run(&tree_key);
    // A thread that ends keeps nothing.
    let _ = BUFFER.try_with(|kept| kept.set(tree_key));
    result
}

impl Engine {
    /// True if a key of the object that has no record may have settled.
    #[inline]
    pub(crate) fn may_be_settled(&self, object: u32) -> bool {
        !self.settled.tree.is_empty() && self.is_ordered(object)
    }

    /// True if the object came with rows in a version after this one.
    pub(crate) fn is_loaded_after(&self, object: u32, version: u64) -> bool {
        self.objects.get(object).is_some_and(|object| object.loaded_at.load(Ordering::Relaxed) > version)
    }

    /// True for tables.
    #[inline]
    pub(super) fn is_ordered(&self, object: u32) -> bool {
        self.objects.ordered(object).is_some()
    }

    /// Looks for a settled value where nothing has to be read for it. To be called after a miss in the hash index.
    #[inline(never)]
    pub(super) fn get_settled_cached(&self, object: u32, key: &[u8], out: &mut Vec<u8>) -> Cached {
        with_tree_key(object, key, |tree_key| self.settled.tree.get_cached(tree_key, out))
    }

    /// Whether a key has a settled row, where nothing has to be read to see it.
    pub(crate) fn is_settled_cached(&self, object: u32, key: &[u8]) -> Option<bool> {
        match with_tree_key(object, key, |tree_key| self.settled.tree.contains_cached(tree_key)) {
            Cached::Found { .. } => Some(true),
            Cached::Absent => Some(false),
            Cached::Unknown => None,
        }
    }

    /// Looks for a settled value, and says when it expires, if it is there and does. The caller is not pinned, and has found no record before.
    ///
    /// # Errors
    /// `Io` and `Corrupted`, naming file and offset.
    pub(super) fn get_settled(&self, object: u32, key: &[u8], out: &mut Vec<u8>) -> Result<Option<u64>> {
        let found = with_tree_key(object, key, |tree_key| self.settled.tree.get(tree_key, out));
        self.watch_reads();
        found
    }

    /// Reads the leaves of those of an object's keys that have no record, many at once, and waits for them.
    #[cold]
    pub(super) fn read_leaves_ahead<'k>(&self, object: u32, keys: impl Iterator<Item = &'k [u8]>) {
        let keys: Vec<_> = keys.map(|key| (self.hash(object, key), key)).collect();
        keys.iter().for_each(|&(hash, _)| self.index.prefetch(hash));
        let mut leaves = self.settled.tree.leaves_ahead();
        for (hash, key) in keys {
            // Who has a record does not ask the tree.
            if self.index.addresses_of(hash).next().is_none() {
                with_tree_key(object, key, |tree_key| leaves.want(tree_key));
            }
        }
        leaves.read();
        self.watch_reads();
    }

    /// About how many rows an object has. Pages of the tree may be read for it.
    pub(crate) fn estimate_rows(&self, object: &ObjectState) -> u64 {
        let settled = match object.ordered().is_some() && self.settled.tree.has_settled() {
            true => self.count_settled(&self.settled.tree.root(), object.id).unwrap_or(0),
            false => 0,
        };
        settled + self.estimate_unsettled_rows(object)
    }

    /// About how many rows it has beside those in the tree.
    pub(crate) fn estimate_unsettled_rows(&self, object: &ObjectState) -> u64 {
        match object.ordered().filter(|_| self.settled.tree.has_settled()) {
            None => object.key_count.sum(),
            Some(ordered) => ordered.len() as u64,
        }
    }

    /// How many rows are stored of an object; exact while nobody writes. Of a table of which something has settled that takes a look at every key that has
    /// not; the caller has [paused](Settled::pause) who settles, who moves rows from one side to the other.
    ///
    /// # Errors
    /// `Io` and `Corrupted`, naming file and offset.
    pub(crate) fn count_rows(&self, object: &ObjectState) -> Result<u64> {
        let Some(ordered) = object.ordered() else { return Ok(object.key_count.sum()) };
        match self.settled.tree.has_settled() {
            true => self.count_with(&self.settled.tree.root(), object.id, ordered),
            false => Ok(object.key_count.sum()),
        }
    }

    fn count_with(&self, root: &Arc<Root>, object: u32, ordered: &OrderedIndex) -> Result<u64> {
        let deleted = self.deleted_keys(object);
        let life = &self.object(object).life;
        let mut cursor = Cursor::new(&self.settled.tree, root.clone());
        let mut count = self.count_settled(root, object)?;
        let (mut tree_key, mut value, mut is_past_end) = (Vec::new(), Vec::new(), false);
        ordered.each_key(|key| {
            let single = SingleKey { object, hash: self.hash(object, key), key, life };
            if self.index.addresses_of(single.hash).next().is_none() {
                return Ok(());
            }
            // What is on disk needs no reading: it is a value, or one of the tombstones.
            let is_row = match self.read_without_disk(single, &mut value) {
                Some(reading) => reading.stored,
                None => !deleted.contains(key),
            };
            write_tree_key(object, key, &mut tree_key);
            if !is_past_end {
                cursor.seek_on(&tree_key)?;
                is_past_end = cursor.key().is_none();
            }
            let was_row = cursor.key() == Some(&tree_key[..]) && !planted(Bug::SettledCountedTwice);
            count = (count + u64::from(is_row)).saturating_sub(u64::from(was_row));
            Ok(())
        })?;
        Ok(count)
    }

    /// Keys of an object whose newest records are durable tombstones.
    fn deleted_keys(&self, object: u32) -> HashSet<Box<[u8]>> {
        // Whoever sweeps takes some of them out for a while.
        let sweeping = self.graves.pause();
        let graves = self.graves.copies_of(object);
        drop(sweeping);
        let is_newest = |grave: &Grave| {
            let hash = self.hash(object, &grave.key);
            self.index.addresses_of(hash).any(|address| address == grave.address)
        };
        graves.into_iter().filter(is_newest).map(|grave| grave.key).collect()
    }

    /// How many rows of an object are in the tree.
    fn count_settled(&self, root: &Root, object: u32) -> Result<u64> {
        let (from, to) = tree_bounds(object);
        self.settled.tree.count_at(root, &from, Some(&to))
    }

    /// What a write finds of a key that has no record. A put does as well without knowing; of what is to be deleted it must be known whether it
    /// is there. The caller holds the bucket, and knows whose each of its candidates is: else the tree would be asked, and read, for rows that have a record. `None` if the tree must be read for that: `lookup` is to be [looked up](Self::look_up_settled) then, with nothing held, and
    /// given again, in each further attempt.
    pub(super) fn settled_current(
        &self,
        change: &Change<'_>,
        lookup: &mut Option<Lookup>,
    ) -> Option<Current> {
        if change.value.is_some() {
            return Some(Current::default());
        }
        let looked_up = lookup.as_ref().and_then(|lookup| lookup.known.as_ref());
        // Whatever else has become of the bucket: what the key's record would have settled as is in a newer root.
        let is_newest = |root| Lookup::is_newest(root, &self.settled.tree);
        let looked_up = looked_up.filter(|(root, _)| is_newest(root) || planted(Bug::TreeAskedEarly));
        let known = looked_up.map(|(_, settled)| *settled).or_else(|| {
            let look = |tree_key: &[u8]| self.settled.tree.contains_cached(tree_key);
            match with_tree_key(change.object, change.key, look) {
                Cached::Found { expires_at } => Some(Some(expires_at)),
                Cached::Absent => Some(None),
                Cached::Unknown => None,
            }
        });
        if known.is_none() {
            *lookup = Some(Lookup::default());
        }
        known.map(|settled| {
            let (exists, expires_at) = (settled.is_some(), settled.unwrap_or(NEVER));
            Current { exists, expires_at, ..Current::default() }
        })
    }

    /// True if a row that has settled is as it was read, whatever has become of its bucket, which the caller holds: the root that it was read from is the
    /// newest, and the key has no record. If there are some on disk that may be the key's it is to be [learnt](Self::learn_whose) whose they are.
    #[cold]
    pub(super) fn is_still_settled(&self, bucket: Bucket, change: &Change<'_>, learnt: &mut Learnt) -> bool {
        let mut is_open = false;
        let current = self.look_for(bucket, change, &mut |address| learnt.known(address, &mut is_open));
        let looked_up = learnt.settled.as_ref().and_then(|lookup| lookup.known.as_ref());
        let is_newest = |(root, _): &(Weak<Root>, _)| Lookup::is_newest(root, &self.settled.tree);
        !is_open && !current.has_record() && looked_up.is_some_and(is_newest)
    }

    /// See [`Self::settled_current`].
    #[cold]
    pub(super) fn look_up_settled(&self, object: u32, key: &[u8], lookup: &mut Lookup) -> Result<()> {
        let tree = &self.settled.tree;
        let root = tree.root();
        let settled = with_tree_key(object, key, |tree_key| tree.contains_at(&root, tree_key))?;
        lookup.known = Some((Arc::downgrade(&root), settled));
        Ok(())
    }
}

#[cfg(test)]
#[path = "settled_tests.rs"]
pub(super) mod tests;
