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
//! to the log, and helps on a full disk. (What [settles](super::settle) leaves the indexes likewise, in `settle::removal`: of rows that are seen as before.)
//!
//! **Crashes.** What was removed was removed from memory. Recovery makes the entries of those records again that are still in the log, and knows from the catalog that the object
//! was dropped: they go again. What a checkpoint has of segments that were dropped since refers to before the log's beginning, and goes as well (`recovery::settled`). While a checkpoint is
//! taken nothing is removed, so that it tells of one moment.
//!
//! **How.** First it is made certain that no record of the object is written any more: commits that have begun are waited for; whoever writes live records anew, or settles them, leaves
//! out those of objects that leave. Then the log as it is now is read in order, a little at a time, and each of the object's records to which the index refers leaves it. (Rejected: to walk over the
//! index. It does not say whose a record is, so of cold ones each would be a read. Rejected: deletions by ordinary commits, as of what has expired. They write the log full, and need its
//! space when there is none; and a snapshot that holds them back holds the rows back as well.) Segments in which nothing is live are not read, nor what is from before the object was made, as far as that is known;
//! and the walk ends once none of its objects has an entry. Then what the object has in the tree is merged out of it, by who settles. Several objects that have been dropped share a walk.
//!
//! **What cannot be read** keeps its entries, and their object its count, its order and its state: a checkpoint says of them what is so. It is read again each time that the log has
//! hardened a segment more, and after opening.
//!
//! Whoever sweeps removes: the keeper, who waits for log space, and [`persist`](crate::Kiln::persist) where there are no background threads.

use std::ops::Bound;

use super::catalog::FIRST_OBJECT;
use super::engine::Engine;
use super::life::{Rows, Standing};
use super::object::ObjectState;
use crate::error::{Error, ErrorKind, Result};
use crate::storage::epoch::{self, Pin};
use crate::storage::hash_index::Bucket;
use crate::storage::record::{Address, DiskRecord};
use crate::storage::record_reader::{Batch, Cursor};
use crate::storage::tree::{self, Direction, tree_bounds};
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
    /// Not all rows of some of them are gone.
    is_pending: AtomicBool,
    is_at_work: AtomicBool,
    walks: Mutex<Walks>,
    left: AtomicU64,
    removed: AtomicU64,
    /// So many had left when the newest checkpoint was taken.
    told: AtomicU64,
    failure: Mutex<Option<String>>,
    /// What did not leave the tree for want of room is tried again when the log has hardened so far.
    tree_waits_for: AtomicU64,
}

#[derive(Default)]
struct Walks {
    present: Option<Walk>,
    unread: Option<Unread>,
}

/// What walks could not read, and what they began for has rows left: another one does.
struct Unread {
    /// The first segment of which that is so, and the end of the last.
    from: Address,
    to: Address,
    /// It is tried again when the log has hardened so far.
    again_at: Address,
}

/// A walk over the log.
struct Walk {
    /// Whose records leave.
    objects: Vec<u32>,
    cursor: Cursor,
    /// No record of theirs is behind it.
    end: Address,
    /// Where it could not read: from the first segment on to the end of the last. And why not, at first.
    unread: Option<(Address, Address)>,
    failure: Option<Error>,
}

impl Removal {
    pub(crate) fn new() -> Removal {
        Removal {
            is_pending: AtomicBool::new(false),
            is_at_work: AtomicBool::new(false),
            walks: Mutex::default(),
            left: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            told: AtomicU64::new(0),
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

    /// Of how many objects the rows have begun to leave: they settle no more.
    pub(super) fn objects_left(&self) -> u64 {
        self.left.load(Ordering::SeqCst)
    }

    /// How many rows have left the indexes.
    pub(crate) fn removed_rows(&self) -> u64 {
        self.removed.load(Ordering::Relaxed)
    }

    /// The newest checkpoint has some that have left since.
    pub(super) fn is_untold(&self) -> bool {
        self.told.load(Ordering::SeqCst) != self.removed.load(Ordering::SeqCst)
    }

    /// A checkpoint was taken when so many had left.
    pub(super) fn note_told(&self, removed_rows: u64) {
        self.told.store(removed_rows, Ordering::SeqCst);
    }

    /// What kept the last walk from reading some of the log, or rows from leaving the tree.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }
}

impl Engine {
    /// To be called before an object is dropped: to older engines the catalog would make no sense, and they must not open the database.
    pub(crate) fn begin_dropping(&self) -> Result<()> {
        self.superblock.lock().say_for_good(|said| said.has_dropped, |saying| saying.has_dropped = true)
    }

    /// An object was dropped.
    pub(crate) fn note_dropped(&self) {
        self.removal.is_pending.store(true, Ordering::SeqCst);
        // Where nothing else is committed it sleeps.
        self.hardening.wake_keeper();
    }

    /// Finds out of which dropped objects there are still rows. For a database that is being opened.
    pub(crate) fn look_for_dropped(&self) {
        let oldest = self.oldest_needed();
        for object in self.objects.iter().filter(|object| object.is_dropped()) {
            let is_in_log = object.has_entries();
            if is_in_log && object.can_leave(oldest) {
                // Perhaps it was only counted, and never leaves. Where a snapshot keeps it nothing would be told but what the last checkpoint has told.
                self.removal.note_told(u64::MAX);
            }
            match is_in_log || self.is_in_tree(object) {
                true => self.removal.is_pending.store(true, Ordering::SeqCst),
                false => object.life.note_rows(Rows::Gone),
            }
        }
    }

    /// The tree may have rows of the object.
    fn is_in_tree(&self, object: &ObjectState) -> bool {
        let (from, to) = tree_bounds(object.id);
        object.ordered().is_some()
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
        let Some(mut walks) = self.removal.walks.try_lock() else { return false };
        let Walks { present, unread } = &mut *walks;
        if present.is_none() {
            *present = self.begin_walk(unread);
        }
        let Some(walking) = present else { return false };
        let before = self.removal.removed_rows();
        let goes_on = self.has_rows(walking) && self.walk_log(walking);
        if self.removal.removed_rows() != before {
            // There may be segments that nobody needs any more.
            self.graves.look_again();
        }
        if walking.cursor.position < walking.end && self.has_rows(walking) {
            return goes_on;
        }
        if let Some(finished) = present.take() {
            self.end_walk(finished, unread);
        }
        // More may have been dropped meanwhile.
        true
    }

    /// The indexes have some of what a walk is for.
    fn has_rows(&self, walk: &Walk) -> bool {
        walk.objects.iter().filter_map(|&id| self.objects.get(id)).any(ObjectState::has_entries)
    }

    /// A walk for all objects that can leave now, if there are some, and for those with rows in what was not read, once it is time for that.
    fn begin_walk(&self, unread: &mut Option<Unread>) -> Option<Walk> {
        // Whoever drops one while these are looked at says so afterwards.
        self.removal.is_pending.store(false, Ordering::SeqCst);
        let oldest = self.oldest_needed();
        let hardened = self.log.hardened();
        let again = unread.take_if(|unread| hardened >= unread.again_at);
        let (mut from, mut end) = again.as_ref().map_or((Address::MAX, 0), |again| (again.from, again.to));
        let (mut is_pending, mut has_new, mut leaving) = (false, false, Vec::new());
        for object in self.dropped_objects() {
            is_pending = true;
            match object.life.rows() {
                Rows::Stay if object.can_leave(oldest) => {
                    object.life.note_rows(Rows::Leave);
                    self.removal.left.fetch_add(1, Ordering::SeqCst);
                    leaving.push(object.id);
                    from = from.min(object.rows_from);
                    has_new = true;
                }
                Rows::Leave if again.is_some() => leaving.push(object.id),
                _ => {}
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
        if has_new {
            end = self.log.records_end();
        }
        let cursor = Cursor::at_seal(from.max(self.log.begin()));
        Some(Walk { objects: leaving, cursor, end, unread: None, failure: None })
    }

    /// Reads a little more of the log. True if it has come further.
    fn walk_log(&self, walk: &mut Walk) -> bool {
        let (begin, segment_bytes) = (self.log.begin(), self.log.segment_bytes());
        if walk.cursor.position < begin {
            walk.cursor = Cursor::at_seal(begin);
        }
        let started = walk.cursor.position;
        let mut reader = self.log_reader(&self.segments, walk.cursor);
        let mut read_bytes = 0;
        while walk.cursor.position < walk.end && read_bytes < ROUND_BYTES {
            let (position, hardened) = (walk.cursor.position, self.log.hardened());
            let segment_end = (position + 1).next_multiple_of(segment_bytes);
            if position >= hardened {
                // It may be padding, for which nobody does.
                self.hardening.request_now();
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
                // What is live there stays, and the segment with it, until it can be read.
                walk.failure.get_or_insert(error);
                let end = segment_end.min(hardened);
                let from = walk.unread.map_or(position - position % segment_bytes, |(from, _)| from);
                walk.unread = Some((from, end));
                reader.move_to(Cursor::at_seal(end));
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
        let (pin, bucket) = self.pin_and_lock(hash);
        // Closing waits for the pins, so nothing is changed behind its back.
        let writable = self.check_writable();
        if writable.is_err() || !self.index.refers_to(bucket, hash, address) {
            self.index.unlock_unchanged(bucket);
            return writable.map(|()| false);
        }
        self.note_superseded(address);
        let was_there = self.index.remove(bucket, hash, address);
        object.retract(&pin, record.key);
        if record.shape.kind.is_put() {
            object.key_count.add(-1);
            object.removed.fetch_add(1, Ordering::SeqCst);
            self.removal.removed.fetch_add(1, Ordering::Relaxed);
        }
        self.index.unlock_changed(bucket);
        Ok(was_there)
    }

    /// The indexes of the log have nothing any more of the objects of a walk, unless it could not read some of it.
    fn end_walk(&self, walk: Walk, unread: &mut Option<Unread>) {
        let mut is_left = false;
        for object in walk.objects.iter().filter_map(|&id| self.objects.get(id)) {
            if walk.unread.is_some() && object.has_entries() {
                // With their counts, and their order: checkpoints tell of them.
                is_left = true;
                continue;
            }
            self.clear_order(object);
            // After recovery it may have been more than there were.
            object.key_count.add(-(object.key_count.sum() as i64));
            // What the tree has is looked at by who clears it: until then some may be on the way there.
            let rows = if object.ordered().is_some() { Rows::LeftLog } else { Rows::Gone };
            object.life.note_rows(rows);
        }
        // What was deleted of them waits for nothing any more.
        self.graves.note_settled();
        if let Some((from, to)) = walk.unread.filter(|_| is_left) {
            let again_at = self.log.hardened() + self.log.segment_bytes();
            let (from, to) =
                unread.as_ref().map_or((from, to), |unread| (from.min(unread.from), to.max(unread.to)));
            *unread = Some(Unread { from, to, again_at });
        }
        if is_left || unread.is_none() {
            *self.removal.failure.lock() =
                walk.failure.filter(|_| is_left).map(|failure| failure.to_string());
        }
        if self.is_checkpoint_outdated() {
            self.checkpoints.hasten();
        }
    }

    /// Locks a bucket under a pin, as all do who lock one: what an index gives back of its memory waits for them.
    fn pin_and_lock(&self, hash: u64) -> (Pin, Bucket) {
        loop {
            let pin = epoch::pin();
            if let Some(bucket) = self.index.lock(hash) {
                return (pin, bucket);
            }
            drop(pin);
            crate::sync::thread::yield_now();
        }
    }

    /// Takes those keys off a table's order that recovery has left there without an entry, and gives its memory back.
    fn clear_order(&self, object: &ObjectState) {
        const KEYS: usize = 256;
        let Some(ordered) = object.ordered() else { return };
        let mut keys = Vec::new();
        loop {
            keys.clear();
            ordered.keys_behind(&[], KEYS, &mut keys);
            for key in &keys {
                let hash = self.hash(object.id, key);
                let (pin, bucket) = self.pin_and_lock(hash);
                object.retract(&pin, key);
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

    /// Removes some of what dropped objects have in the tree whose rows have left the log. The caller has loads [paused](super::settled::Settled::pause_loads). True if something
    /// was removed; there may be more.
    pub(super) fn clear_some_of_tree(&self) -> bool {
        for object in self.dropped_objects().filter(|object| object.life.rows() == Rows::LeftLog) {
            match self.clear_some_of(object) {
                Ok(true) => return true,
                // It had nothing there.
                Ok(false) => {}
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
        false
    }

    /// Removes some of what an object has in the tree. True if it had something.
    fn clear_some_of(&self, object: &ObjectState) -> Result<bool> {
        let (from, to) = tree_bounds(object.id);
        // What was on its way when the object began to leave has come there.
        let end = self.settled.alone(|| {
            self.check_writable()?;
            if self.hardening.is_stopping() {
                return Err(Error::closed());
            }
            let end = self.tree_rows_end(&from, &to)?;
            if let Some(end) = &end {
                self.say_log_is_needed()?;
                self.settled.tree.remove_all(&from, end, &|| self.check_writable())?;
            }
            Ok(end)
        })?;
        if end.as_ref().is_none_or(|end| *end == to) {
            object.life.note_rows(Rows::Gone);
        }
        Ok(end.is_some())
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
