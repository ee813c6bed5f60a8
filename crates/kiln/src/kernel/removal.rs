//! How the rows of a dropped object go, once nobody can see them.
//!
//! ```text
//!   dropped        durable, and no snapshot       the log was       the tree's leaves
//!                  is older any more              walked through    were merged without it
//!   ---|----------------|--------------------------|------------------|-----------> time
//!      | rows stay      | leave: not written anew, | left log         | gone
//!      |                | nor settled              |                  |
//! ```
//!
//! **When.** Once every snapshot, open or yet to be opened, has the drop ([`oldest_needed`](Engine::oldest_needed), which is durable). Then nobody reads the object any more, and no crash brings
//! it back. So a row needs no tombstone: its entries leave the indexes as those of what has settled do, and its record counts as superseded in the version of the drop. That writes nothing
//! to the log, and helps on a full disk.
//!
//! **Crashes.** What was removed was removed from memory. Recovery makes the entries of those records again that are still in the log, and knows from the catalog that the object
//! was dropped: they go again. What a checkpoint has of segments that were dropped since refers to before the log's beginning, and goes as well (`recovery::settled`). While a checkpoint is
//! taken nothing is removed, so that it tells of one moment.
//!
//! **How.** First it is made certain that no record of the object is written any more: commits that have begun are waited for; whoever writes live records anew, or settles them, leaves
//! out those of objects that leave. Then the log as it is now is read in order, a little at a time, and each of the object's records to which the index refers leaves it. (Rejected: to walk over the
//! index. It does not say whose a record is, so of cold ones each would be a read. Rejected: deletions by ordinary commits, as of what has expired. They write the log full, and need its
//! space when there is none; and a snapshot that holds them back holds the rows back as well.) Segments in which nothing is live are not read. Then what the object has in the tree
//! is merged out of it, by who settles. Several objects that have been dropped share a walk.
//!
//! Whoever sweeps removes: the keeper, who waits for log space, and [`persist`](crate::Kiln::persist) where there are no background threads.

use std::ops::Bound;

use super::engine::Engine;
use super::life::{Rows, Standing};
use super::object::ObjectState;
use super::settled::tree_bounds;
use crate::error::{Error, ErrorKind, Result};
use crate::objects::FIRST_OBJECT;
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::hash_index::Bucket;
use crate::storage::record::{Address, DiskRecord};
use crate::storage::record_reader::{Batch, Cursor, RecordReader};
use crate::storage::tree::{self, Direction};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// So much of the log is read before whoever sweeps goes on with their other duties.
const ROUND_BYTES: u64 = 1 << 20;
/// So many records of it at once.
const BATCH: usize = 64;
/// So many rows leave the tree at once: whoever closes the database waits for that.
const TREE_ROWS: usize = 1 << 16;

/// What a database knows of objects that were dropped.
pub(crate) struct Removal {
    /// The superblock says that there may be some.
    has_any: AtomicBool,
    /// Not all rows of some of them are gone.
    is_pending: AtomicBool,
    is_at_work: AtomicBool,
    walk: Mutex<Option<Walk>>,
    removed: AtomicU64,
    failure: Mutex<Option<String>>,
    /// What did not leave the tree for want of room is tried again when the log has hardened so far.
    tree_waits_for: AtomicU64,
}

/// A walk over the log.
struct Walk {
    /// Whose records leave.
    objects: Vec<u32>,
    cursor: Cursor,
    /// No record of theirs is behind it.
    end: Address,
    /// What could not be read, first.
    failure: Option<Error>,
}

impl Removal {
    pub(crate) fn new(has_any: bool) -> Removal {
        Removal {
            has_any: AtomicBool::new(has_any),
            is_pending: AtomicBool::new(false),
            is_at_work: AtomicBool::new(false),
            walk: Mutex::new(None),
            removed: AtomicU64::new(0),
            failure: Mutex::new(None),
            tree_waits_for: AtomicU64::new(0),
        }
    }

    /// There is something to do, now or once no snapshot is in the way.
    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending.load(Ordering::SeqCst)
    }

    /// There is something to do now.
    pub(crate) fn is_at_work(&self) -> bool {
        self.is_at_work.load(Ordering::Relaxed)
    }

    /// How many rows have left the indexes.
    pub(crate) fn removed_rows(&self) -> u64 {
        self.removed.load(Ordering::Relaxed)
    }

    /// What kept the last walk from reading some of the log, or rows from leaving the tree.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }
}

impl Engine {
    /// To be called before the first object is dropped: to older engines the catalog would make no sense, and they must not open the database.
    pub(crate) fn begin_dropping(&self) -> Result<()> {
        if self.removal.has_any.load(Ordering::Acquire) {
            return Ok(());
        }
        self.superblock.lock().say_for_good(|said| said.has_dropped, |saying| saying.has_dropped = true)?;
        self.removal.has_any.store(true, Ordering::Release);
        Ok(())
    }

    /// An object was dropped.
    pub(crate) fn note_dropped(&self) {
        self.removal.is_pending.store(true, Ordering::SeqCst);
        // Where nothing else is committed it sleeps.
        self.hardening.wake_keeper();
    }

    /// Finds out of which dropped objects there are still rows. For a database that is being opened.
    pub(crate) fn look_for_dropped(&self) {
        for object in self.objects.iter().filter(|object| object.is_dropped()) {
            let is_in_log = match object.keys.ordered() {
                None => object.key_count.sum() > 0,
                Some(ordered) => ordered.len() > 0,
            };
            match is_in_log || self.is_in_tree(object) {
                true => self.removal.is_pending.store(true, Ordering::SeqCst),
                false => object.life.note_rows(Rows::Gone),
            }
        }
    }

    /// The tree may have rows of the object.
    fn is_in_tree(&self, object: &ObjectState) -> bool {
        let (from, to) = tree_bounds(object.id);
        object.keys.ordered().is_some()
            && self.settled.tree.count_estimate(&from, Some(&to)).map_or(true, |rows| rows > 0)
    }

    /// Dropped objects of which not all rows are gone.
    fn dropped_objects(&self) -> impl Iterator<Item = &ObjectState> {
        let users = self.objects.iter().filter(|object| object.id >= FIRST_OBJECT);
        users.filter(|object| object.is_dropped() && object.life.rows() < Rows::Gone)
    }

    /// How many there are.
    pub(crate) fn dropping_count(&self) -> u64 {
        self.dropped_objects().count() as u64
    }

    /// How many keys of an object the indexes have of which the log tells this number.
    pub(super) fn count_left(&self, object: u32, told: u64) -> Option<u64> {
        match self.objects.get(object).filter(|object| object.is_dropped()) {
            None => Some(told),
            Some(object) if object.life.rows() >= Rows::LeftLog => None,
            Some(object) => told.checked_sub(object.removed.load(Ordering::SeqCst)).filter(|&left| left > 0),
        }
    }

    /// Removes some of the rows that can go from the indexes. True if there may be more that can go now. The caller keeps others from sweeping, and is not pinned.
    pub(super) fn remove_some_dropped(&self) -> bool {
        let removal = &self.removal;
        if !removal.is_pending() {
            return false;
        }
        let goes_on = self.remove_some_in_turn();
        removal.is_at_work.store(goes_on, Ordering::Relaxed);
        goes_on
    }

    fn remove_some_in_turn(&self) -> bool {
        // Behind a close the files are somebody else's.
        if self.graves.are_held() || self.hardening.is_stopping() || self.check_writable().is_err() {
            return false;
        }
        let Some(mut walk) = self.removal.walk.try_lock() else { return false };
        if walk.is_none() {
            *walk = self.begin_walk();
        }
        let Some(walking) = &mut *walk else { return false };
        let before = self.removal.removed_rows();
        let goes_on = self.walk_log(walking);
        if self.removal.removed_rows() != before {
            // There may be segments that nobody needs any more.
            self.graves.look_again();
        }
        if walking.cursor.position < walking.end {
            return goes_on;
        }
        let finished = walk.take();
        finished.into_iter().for_each(|walk| self.end_walk(walk));
        // More may have been dropped meanwhile.
        true
    }

    /// A walk for all objects that can leave now, if there are some.
    fn begin_walk(&self) -> Option<Walk> {
        // Whoever drops one while these are looked at says so afterwards.
        self.removal.is_pending.store(false, Ordering::SeqCst);
        let oldest = self.oldest_needed();
        let (mut is_pending, mut leaving) = (false, Vec::new());
        for object in self.dropped_objects() {
            is_pending = true;
            let can_leave = match object.life.standing() {
                Standing::Dropped(version) => version <= oldest || planted(Bug::DroppedRowsGoEarly),
                _ => false,
            };
            if can_leave && object.life.rows() < Rows::LeftLog {
                object.life.note_rows(Rows::Leave);
                leaving.push(object.id);
            }
        }
        if is_pending {
            self.removal.is_pending.store(true, Ordering::SeqCst);
        }
        if leaving.is_empty() {
            return None;
        }
        // Whoever had looked before whether one of them is there, or leaves, has written what they write.
        epoch::quiesce_commits();
        let (cursor, end) = (Cursor::at_seal(self.log.begin()), self.log.records_end());
        Some(Walk { objects: leaving, cursor, end, failure: None })
    }

    /// Reads a little more of the log. True if it has come further.
    fn walk_log(&self, walk: &mut Walk) -> bool {
        let (begin, segment_bytes) = (self.log.begin(), self.log.segment_bytes());
        if walk.cursor.position < begin {
            walk.cursor = Cursor::at_seal(begin);
        }
        let started = walk.cursor.position;
        let database = self.superblock.lock().current().database;
        let mut reader = RecordReader::new(&self.segments, database, walk.cursor);
        let mut read_bytes = 0;
        while walk.cursor.position < walk.end && read_bytes < ROUND_BYTES {
            let (position, hardened) = (walk.cursor.position, self.log.hardened());
            let segment_end = (position + 1).next_multiple_of(segment_bytes);
            if position >= hardened {
                break;
            }
            if segment_end <= hardened && self.liveness.lock().of_segment(position).live() == 0 {
                reader.move_to(Cursor::at_seal(segment_end));
                walk.cursor = reader.cursor();
                continue;
            }
            let outcome = reader.next_batch(hardened, BATCH).and_then(|batch| self.remove_batch(&batch));
            if let Err(error) = outcome {
                if self.check_writable().is_err() {
                    break;
                }
                // What is live in this segment stays, and it with it.
                walk.failure.get_or_insert(error);
                reader.move_to(Cursor::at_seal(segment_end));
            }
            walk.cursor = reader.cursor();
            read_bytes += walk.cursor.position - position;
        }
        walk.cursor.position > started
    }

    /// Removes what objects that leave have in a batch.
    fn remove_batch(&self, batch: &Batch<'_>) -> Result<()> {
        let leaving = batch.records.iter().filter_map(|(address, record)| {
            let object = self.objects.get(record.shape.object).filter(|object| object.is_nobodys())?;
            let Standing::Dropped(version) = object.life.standing() else { return None };
            Some((*address, record, object, version))
        });
        for (address, record, object, version) in leaving {
            if self.remove_record(address, record, object)? {
                let bytes = record.shape.bytes();
                self.liveness.lock().supersede(address, version, Some(bytes));
            }
        }
        Ok(())
    }

    /// Removes the entry of a record, if the index refers to it; true if it did.
    fn remove_record(&self, address: Address, record: &DiskRecord<'_>, object: &ObjectState) -> Result<bool> {
        let hash = self.hash(object.id, record.key);
        let (pin, bucket) = loop {
            // Closing waits for the pins, so nothing is changed behind its back.
            let pin = epoch::pin();
            self.check_writable()?;
            match self.index.lock(hash) {
                Some(bucket) => break (pin, bucket),
                None => {
                    drop(pin);
                    crate::sync::thread::yield_now();
                }
            }
        };
        if !self.index.refers_to(bucket, hash, address) {
            self.index.unlock_unchanged(bucket);
            return Ok(false);
        }
        self.note_superseded(address);
        let was_there = self.index.remove(bucket, hash, address);
        object.keys.retract(&pin, record.key);
        if record.shape.kind.is_put() {
            object.key_count.add(-1);
            object.removed.fetch_add(1, Ordering::SeqCst);
            self.removal.removed.fetch_add(1, Ordering::Relaxed);
        }
        self.index.unlock_changed(bucket);
        Ok(was_there)
    }

    /// The indexes of the log have nothing any more of the objects of a walk.
    fn end_walk(&self, walk: Walk) {
        *self.removal.failure.lock() = walk.failure.map(|failure| failure.to_string());
        for object in walk.objects.iter().filter_map(|&id| self.objects.get(id)) {
            self.clear_order(object);
            // After recovery it may have been more than there were.
            object.key_count.add(-(object.key_count.sum() as i64));
            let rows = if self.is_in_tree(object) { Rows::LeftLog } else { Rows::Gone };
            object.life.note_rows(rows);
        }
    }

    /// Takes those keys off a table's order that recovery has left there without an entry, and gives its memory back.
    fn clear_order(&self, object: &ObjectState) {
        const KEYS: usize = 256;
        let Some(ordered) = object.keys.ordered() else { return };
        let mut keys = Vec::new();
        loop {
            keys.clear();
            ordered.keys_behind(&[], KEYS, &mut keys);
            for key in &keys {
                let hash = self.hash(object.id, key);
                let bucket: Bucket = loop {
                    match self.index.lock(hash) {
                        Some(bucket) => break bucket,
                        None => crate::sync::thread::yield_now(),
                    }
                };
                object.keys.retract(&epoch::pin(), key);
                self.index.unlock_changed(bucket);
            }
            if keys.len() < KEYS {
                // Nobody has a use for it any more.
                return ordered.give_back_memory();
            }
        }
    }

    /// The tree has rows of dropped objects that can go now.
    pub(crate) fn is_tree_to_be_cleared(&self) -> bool {
        self.removal.is_pending()
            && self.log.hardened() >= self.removal.tree_waits_for.load(Ordering::SeqCst)
            && self.dropped_objects().any(|object| object.life.rows() == Rows::LeftLog)
    }

    /// Does, unless somebody loads just now.
    pub(super) fn clear_tree_if_due(&self) {
        if self.is_tree_to_be_cleared()
            && let Some(_no_load) = self.settled.loading.try_lock()
        {
            self.clear_tree();
        }
    }

    /// Removes from the tree what dropped objects have there whose rows have left the log. The caller has loads [paused](super::settled::Settled::pause_loads). True if something
    /// was removed.
    pub(super) fn clear_tree(&self) -> bool {
        let mut has_removed = false;
        for object in self.dropped_objects().filter(|object| object.life.rows() == Rows::LeftLog) {
            match self.clear_tree_of(object) {
                Ok(()) => {
                    object.life.note_rows(Rows::Gone);
                    has_removed = true;
                }
                // Closed, or lost.
                Err(_) if self.check_writable().is_err() || self.hardening.is_stopping() => break,
                Err(error) => {
                    let is_full = error.kind() == ErrorKind::NoSpace;
                    *self.removal.failure.lock() = Some(error.to_string());
                    match is_full {
                        true => {
                            let later = self.log.hardened() + self.log.segment_bytes();
                            self.removal.tree_waits_for.store(later, Ordering::SeqCst);
                        }
                        // It stays until the database is opened the next time, and others do not wait for it.
                        false => object.life.note_rows(Rows::Gone),
                    }
                }
            }
        }
        has_removed
    }

    fn clear_tree_of(&self, object: &ObjectState) -> Result<()> {
        let (from, to) = tree_bounds(object.id);
        loop {
            // What was on its way when the object began to leave has come there.
            let _settling = self.settled.settling.lock();
            self.check_writable()?;
            if self.hardening.is_stopping() {
                return Err(Error::closed());
            }
            let Some(end) = self.tree_rows_end(&from, &to)? else {
                return Ok(());
            };
            self.settled.tree.remove_all(&from, &end)?;
        }
    }

    /// Where some of the rows end that the tree has between two keys; none if there are none.
    fn tree_rows_end(&self, from: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>> {
        let tree = &self.settled.tree;
        let mut cursor = tree::Cursor::new(tree, tree.root());
        cursor.seek(Bound::Included(from), Direction::Forwards)?;
        if cursor.key().is_none_or(|key| key >= to) {
            return Ok(None);
        }
        for _ in 0..TREE_ROWS {
            match cursor.key().filter(|key| *key < to) {
                Some(_) => cursor.step()?,
                None => return Ok(Some(to.to_vec())),
            }
        }
        Ok(Some(cursor.key().filter(|key| *key < to).unwrap_or(to).to_vec()))
    }
}

#[cfg(test)]
#[path = "removal_tests.rs"]
mod tests;
