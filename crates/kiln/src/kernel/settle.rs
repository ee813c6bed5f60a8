//! Settling: rows of tables leave the log's old end for the tree (AciKV §3.2, figure 5).
//!
//! ```text
//!          settled to              S                     head                  tail
//!     -------|----------------------|---------------------|--------------------|
//!            | collected, sorted,   |                      | in memory: left alone
//!            | merged               |
//! ```
//!
//! 1. *Choose S*, a place where the durable log could end, such that no snapshot, open or yet to come, lacks a version before it: where
//!    one does, the beginning of the segment in which what it lacks begins.
//! 2. *Collect* for every key of a table its newest record before S, put or tombstone, in the order of the keys, but for puts that [something durable](collection) has replaced behind S; what does not fit into the memory for it
//!    in [runs](crate::storage::runs) on disk. Have the superblock say how far the log goes, so that no root ever has what the log may seem never to have had. *Merge* them into the tree, range after range, each with a new root, so that the old tree and the
//!    new one need not both have room. So the tree is, in the end, exactly what all records
//!    before S come to, but where the log has something newer that no crash can take any more.
//! 3. *Publish* S with the last merge's root, and then in the superblock, so that an older tree is never taken for this one. From now on
//!    recovery takes no record of a table before S from the log.
//! 4. *Remove* from the indexes the entries that still refer to records before S. Who finds none then finds the row in the tree.
//!
//! A crash before 3 leaves rows in the tree whose entries recovery makes again: they say the same, and so do entries, to everybody, while some ranges
//! are merged and others are not: a key's entry goes before its row. What has merged need not be merged again: each root says [how far](crate::storage::tree::Tree::begun) it is, so
//! that a part settles in the end, if each opening lasts for collecting it and merging a range. (How many rows there are is counted when it is asked, so no count goes wrong.) Between 3 and 4 it is recovery
//! that does 4. The segments are dropped, or compacted for the sake of other objects, by `sweep` as ever.
//!
//! **When.** When so much of the log is out of memory, not settled, and [live](Engine::counted_bytes), that it is worth it:
//! [`settle_log_bytes`](crate::Options::settle_log_bytes), and a [`TREE_PART`] of the tree, so that a merge that has to write all of the
//! tree anew is paid for by as much new data, but not more than [`RING_TIMES`] the log's memory. Or when ranges have read as many rows from the
//! cold part, one by one, as would have paid for settling it: so what is loaded, and then only read, settles, and whatever is read
//! and written, twice as much is done as if it had been known before what is better (rent or buy: Karlin et al., Algorithmica 1988). Who
//! reads single rows does not count: to them a row costs a read in the log as in the tree. Nobody who reads or
//! writes waits for it, unless it is [far behind](super::settling_pace), and each thread of it holds no lock of theirs but, one after the other, the buckets in step 4.
//!
//! **On several threads**, if [there are to be](crate::Options::settle_threads), are steps 2 and 4: each thread has a stretch of the log to read and to sort, an interval of the keys to
//! merge, and one to remove. Each step begins once all have ended the one before.

mod collection;
pub(crate) mod failures;
mod merging;
mod removal;
#[cfg(test)]
mod tests;

use super::checkpoint::Haste;
use super::engine::Engine;
use super::frozen::BYTES_PER_READ;
use super::settled::InVain;
use super::settling_pace::Moving;
use crate::error::{ErrorKind, Result};
use crate::planted::{Bug, planted};
use crate::storage::ordered_index::OrderedIndex;
use crate::storage::record::Address;
use crate::sync::atomic::Ordering;

/// Of threads that settle side by side.
const THREAD_NAME: &str = "kiln-settling";
/// So many times as much log as makes it due may be out of its memory as long as the read cache has all of it.
const KEPT_TIMES: u64 = 4;
/// Less cold log than such a part of the tree is not worth settling,
const TREE_PART: u64 = 3;
/// unless it is so many times as long as the log's memory: its keys are in memory, too.
const RING_TIMES: u64 = 4;

/// What settling has done, once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settling {
    /// Rows put and deleted in the tree.
    pub(crate) puts: u64,
    pub(crate) deletes: u64,
    /// Bytes written for it.
    pub(crate) bytes: u64,
}

impl Engine {
    /// True if so much of the log is cold that settling is worth it.
    pub(crate) fn is_settling_due(&self) -> bool {
        let is_due = self.find_settling_due();
        self.settled.is_due.store(is_due, Ordering::SeqCst);
        is_due
    }

    fn find_settling_due(&self) -> bool {
        let settled = &self.settled;
        if settled.bounds.due_bytes == 0 {
            return false;
        }
        let cold_bytes = self.cold_log_bytes();
        let is_paid_for = self.is_settling_paid_for(cold_bytes);
        // Never more than that, and whoever hardens may hold up who asks.
        let little = settled.bounds.due_bytes / 2;
        let unsettled_bytes = if cold_bytes < little { cold_bytes } else { self.unsettled_bytes() };
        if unsettled_bytes < little && !is_paid_for || self.segments.disk_is_full() {
            return false;
        }
        // Else the whole part would be read in vain, time and again.
        if self.log.head() < settled.waits_for_head.load(Ordering::SeqCst)
            || self.oldest_needed() < settled.waits_for_version.load(Ordering::SeqCst)
        {
            return false;
        }
        let has_tables =
            || self.objects.iter().any(|object| object.ordered().is_some_and(|keys| keys.len() > 0));
        if !has_tables() || !is_paid_for && self.caches_keep_unsettled() {
            return false;
        }
        self.begin_settling();
        is_paid_for || unsettled_bytes >= self.settling_due_bytes()
    }

    /// Whether the rows of the log from there on are settling, or about to.
    pub(super) fn settles_soon(&self, from: Address) -> bool {
        let settled = &self.settled;
        // Counted as live until its entries are removed, and dropped then.
        let has_settled = from < settled.removed_to.load(Ordering::SeqCst);
        !has_settled && (self.is_settling() || settled.is_due.load(Ordering::SeqCst))
    }

    /// True if ranges have read so many rows of the log one by one that settling them would have cost no more.
    fn is_settling_paid_for(&self, cold_bytes: u64) -> bool {
        /// What is less than this part of what makes settling due is not met often.
        const LOG_PART: u64 = 16;
        /// So many times as long as a record is the leaf that has to be written anew for it.
        const LEAF_TIMES: u64 = 128;
        let settled = &self.settled;
        let leaves = cold_bytes.saturating_mul(LEAF_TIMES).min(settled.tree.used_bytes());
        let paid = settled.range_reads.load(Ordering::Relaxed).saturating_mul(BYTES_PER_READ);
        cold_bytes >= settled.bounds.due_bytes / LOG_PART && paid >= cold_bytes.saturating_add(leaves)
    }

    /// How much of the log has to be cold for it to be due.
    pub(super) fn settling_due_bytes(&self) -> u64 {
        let (usual, tree) = (self.settling_due_usually(), &self.settled.tree);
        // Where all of it is in the caches, what has not settled is there as records, beside the leaves.
        let is_in_memory = self.shares.hand_over.is_going_on() && tree.used_bytes() <= tree.cache_bytes();
        if is_in_memory { usual / 2 } else { usual }
    }

    /// The same where the caches have no part in it.
    pub(super) fn settling_due_usually(&self) -> u64 {
        let tree_part = self.settled.tree.used_bytes() / TREE_PART;
        self.settled.bounds.due_bytes.max(tree_part.min(self.log.ring_bytes() * RING_TIMES))
    }

    /// Whether all that has left the log's memory is in the caches, and they are of use, as long as nothing has settled: what settles comes there once more, as leaves. No
    /// more than [`KEPT_TIMES`] what makes settling due; and where deletions wait for it nothing is kept, since the log is not dropped before.
    fn caches_keep_unsettled(&self) -> bool {
        let kept_bytes = self.settled.bounds.due_bytes.saturating_mul(KEPT_TIMES);
        self.settled.tree.is_empty()
            && !self.graves.wait_for_settling()
            && self.unsettled_bytes() <= kept_bytes
            && self.shares.hold_all(self.needed_record_bytes(self.log.head()))
    }

    /// Whether settling was tried while a snapshot was in its way that still is.
    pub(super) fn settling_waits_for_snapshot(&self) -> bool {
        self.settled.waits_for_version.load(Ordering::SeqCst) > self.oldest_needed()
    }

    /// Has no more tombstones of tables forgotten but by settling.
    pub(super) fn begin_settling(&self) {
        if !self.settled.is_begun.load(Ordering::SeqCst) {
            // Whoever is just forgetting holds the lock.
            let _sweeping = self.graves.pause();
            self.settled.is_begun.store(true, Ordering::SeqCst);
        }
    }

    /// Settles what is out of memory, as long as it is worth it. That it cannot be done now harms nobody: it is tried again later.
    /// Says whether anything has settled.
    pub(crate) fn settle_if_due(&self) -> bool {
        if !self.losses_are_recorded() && self.hardening.has_background() && self.is_settling_due() {
            // Who only reads commits nothing, and ranges would go on reading the log row by row. Before anything is locked: it tells who waits.
            let _ = self.persist();
        }
        // Whoever is slowed meanwhile stays so: what is committed between two parts would be the more the faster it goes.
        let (mut moving, mut has_settled) = (None, false);
        // A load keeps the tree to itself, and who waits for that would keep others waiting.
        while let Some(_no_load) = self.settled.loading.try_lock() {
            // A step of each in turn: neither waits for all of the other.
            let clears = self.is_tree_to_be_cleared() && self.clear_some_of_tree();
            let settles = self.is_settling_due() && self.settle_due_part(&mut moving);
            has_settled |= settles;
            // Without background threads somebody waits for it.
            if !clears && !settles || !self.hardening.has_background() {
                break;
            }
        }
        drop(moving);
        // The last checkpoint has what has just settled, and opening would have to find that out by the log.
        if has_settled && self.takes_checkpoints() {
            let _ = self.take_checkpoint(Haste::Background);
        }
        has_settled
    }

    /// Settles a part of what is out of memory. True if something has settled.
    fn settle_due_part<'a>(&'a self, moving: &mut Option<Moving<'a>>) -> bool {
        self.settled.range_reads.store(0, Ordering::Relaxed);
        let (from, head) = (self.unsettled_from(), self.log.head());
        let end = self.due_settling_end(head);
        let settled = self.settle_to(end, moving);
        if let Err(error) = &settled {
            let part_bytes = end.saturating_sub(from).max(self.settled.bounds.due_bytes);
            let pause = self.settled.failures.note(error, part_bytes);
            self.settled.waits_for_head.store(head.saturating_add(pause), Ordering::SeqCst);
        }
        settled.is_ok_and(|settling| settling != Settling::default())
    }

    /// Gives memory of the indexes that rows which have settled have left free back to the system. Who has read from a leaf without keys, and is not done,
    /// has to begin again, as after a later settling; so it is for when that is long ago.
    pub(crate) fn give_index_memory_back(&self) {
        self.objects.orders().for_each(OrderedIndex::give_back_memory);
        self.index.shrink();
    }

    /// Up to where to settle what is out of memory: where that is much more than what makes it due, a part of it, so that those who wait for it to go on
    /// need not wait for all of it, nor the disk have room for all that is sorted.
    fn due_settling_end(&self, head: Address) -> Address {
        let segment_bytes = self.log.segment_bytes();
        let cold_end = head - head % segment_bytes;
        // Who asks for all to settle begins longer parts than what is due is divided into.
        let bound_bytes = self.settling_bound_bytes();
        if let Some(begun_to) = self.begun_end(cold_end).filter(|&end| self.is_part_of(bound_bytes, end)) {
            return begun_to;
        }
        let forgotten_to = self.settled.forgotten_to.load(Ordering::SeqCst);
        if forgotten_to > cold_end {
            // What is in memory, too: where each opening writes less than there is room for, it would never come so far.
            return forgotten_to.next_multiple_of(segment_bytes).min(self.log.hardened());
        }
        let part = self.unsettled_end(bound_bytes);
        // The bound may be as large as a number can be.
        part.max(forgotten_to).min(cold_end).next_multiple_of(segment_bytes)
    }

    /// Settles everything that is durable and that every snapshot may see.
    ///
    /// # Errors
    /// `Io` or `NoSpace` if the disk fails or is full, `Corrupted` if the log or the tree is damaged; `Lost` or `Aborted` if the
    /// database has failed or is closed. What was committed stays as it is.
    pub(crate) fn settle_durable(&self) -> Result<Settling> {
        self.lose_after_fork()?;
        if !self.losses_are_recorded() {
            self.persist()?;
        }
        self.begin_settling();
        let _no_load = self.settled.loading.lock();
        while self.clear_some_of_tree() {}
        self.settle_parts_to(self.log.hardened())
    }

    /// The end of the part whose merge has begun, and was cut short, if that can settle, and does not lie behind `end`: of another part less would be done already.
    fn begun_end(&self, end: Address) -> Option<Address> {
        let begun_to = self.settled.tree.root().begun_to();
        (begun_to <= end && self.can_settle_to(begun_to, self.unsettled_from())).then_some(begun_to)
    }

    fn settle_parts_to(&self, end: Address) -> Result<Settling> {
        let mut all = Settling::default();
        loop {
            let begun_end = self.begun_end(end).filter(|&begun_end| begun_end < end);
            let part = match self.settle_to(begun_end.unwrap_or(end), &mut None) {
                // The deletions that make room may lie behind it. What is merged of it is left out all the same.
                Err(error) if error.kind() == ErrorKind::NoSpace && begun_end.is_some() => {
                    self.settle_to(end, &mut None)?
                }
                part => part?,
            };
            all.puts += part.puts;
            all.deletes += part.deletes;
            all.bytes += part.bytes;
            // It may be a shorter part than was asked for.
            if part == Settling::default() || self.settled.tree.settled_to() >= end {
                return Ok(all);
            }
        }
    }

    /// Settles for who needs space on a full disk: as much as has room in the tree's file, if it has some. Else what is durable, or what of it is deletions,
    /// if there are some: what they delete leaves the tree, and their tombstones can be forgotten. True if that has made room, or may have: what is not
    /// needed any more is for the next sweep to drop.
    pub(super) fn settle_for_room(&self) -> bool {
        let settled = &self.settled;
        if !self.segments.disk_is_full() || !settled.is_begun.load(Ordering::SeqCst) {
            return false;
        }
        // Who loads waits for space with it. Who settles just now makes what room there is: see `wait_for_settling`.
        let Some(_no_load) = settled.loading.try_lock() else { return false };
        // Behind a close, which waits for it, the file is somebody else's.
        if self.check_writable().is_err() {
            return false;
        }
        if self.clear_some_of_tree() {
            return true;
        }
        // Whoever has read an older root may have given it up since the last merge.
        if settled.tree.reclaim().is_ok_and(|cut_bytes| cut_bytes > 0) {
            return true;
        }
        if !self.losses_are_recorded() {
            return false;
        }
        let mut in_vain = settled.in_vain.lock();
        let (graves, hardened) = (self.graves.len() as u64, self.log.hardened());
        let objects_left = self.removal.objects_left();
        // All of it is read anew each time, so until it is tried again it takes a few more deletions, a segment more, of the log or of room in the tree's file,
        // that no snapshot is in the way any more, or that some dropped object settles no more.
        let is_free =
            self.oldest_needed() >= in_vain.waits_for_version || objects_left != in_vain.objects_left;
        let has_deletions = graves > 0 && (is_free || graves > in_vain.graves + in_vain.graves / 4);
        let is_longer = hardened >= in_vain.hardened.saturating_add(self.log.segment_bytes());
        let room_bytes = settled.tree.room_bytes();
        let is_wider = room_bytes >= in_vain.room_bytes.saturating_add(self.log.segment_bytes());
        let end_with_room =
            self.end_with_room(room_bytes, hardened).filter(|_| is_free || is_longer || is_wider);
        let Some(end) = end_with_room.or(has_deletions.then_some(hardened)) else { return false };
        let progress = || (settled.tree.settled_to(), settled.deleted_to.load(Ordering::SeqCst));
        let before = progress();
        // It may have come to some of it before it failed.
        let _ = self.settle_parts_to(end);
        let has_helped = progress() != before;
        *in_vain = InVain::NOTHING;
        if !has_helped {
            (in_vain.graves, in_vain.hardened, in_vain.room_bytes) = (graves, hardened, room_bytes);
            in_vain.objects_left = objects_left;
            let version = settled.waits_for_version.load(Ordering::SeqCst);
            if version > self.oldest_needed() {
                in_vain.waits_for_version = version;
            }
        }
        has_helped
    }

    /// How often somebody has settled, or has changed the tree otherwise.
    pub(super) fn settlings(&self) -> u64 {
        self.settled.ended.load(Ordering::SeqCst)
    }

    /// For who needs space on a full disk: what somebody is just sorting may fill it, and goes when that has settled. Waits for them, and says whether somebody has
    /// settled since there were `seen`. (Who settles waits for nobody who commits. Who loads settles nothing, and may wait for space with what it has locked.)
    pub(super) fn wait_for_settling(&self, seen: &mut u64) -> bool {
        if !self.segments.disk_is_full() {
            return false;
        }
        drop(self.settled.settling.lock());
        let before = std::mem::replace(seen, self.settlings());
        *seen != before
    }

    /// Up to where what has hardened has room in the tree's file, which has so much.
    fn end_with_room(&self, room_bytes: u64, hardened: Address) -> Option<Address> {
        /// A record may take so many times as many bytes there: a long value has blocks of its own.
        const ROOM_TIMES: u64 = 2;
        let begin = self.unsettled_from();
        let end = begin.saturating_add(room_bytes / ROOM_TIMES).min(hardened);
        let end = end - end % self.log.segment_bytes();
        self.can_settle_to(end, begin).then_some(end)
    }

    /// Writes the tree anew, so that its file is as short as it can be, in parts between which others may settle. `progress` is told after each
    /// how much of it is done.
    ///
    /// # Errors
    /// `Io` or `NoSpace` if the disk fails or is full, `Corrupted` if the tree is damaged; `Lost` or `Aborted` if the database has failed or is
    /// closed. No row is changed.
    pub(crate) fn compact_tree(&self, mut progress: impl FnMut(f64)) -> Result<()> {
        let tree = &self.settled.tree;
        self.rewrite_tree(&mut progress)?;
        // A small tree has found no room before its end: now there is some.
        if tree.has_room_to_cut() { self.rewrite_tree(|_| ()) } else { Ok(()) }
    }

    fn rewrite_tree(&self, mut progress: impl FnMut(f64)) -> Result<()> {
        let tree = &self.settled.tree;
        let mut from = Vec::new();
        loop {
            {
                let _no_load = self.settled.loading.lock();
                let rewrite = || {
                    self.check_writable()?;
                    tree.rewrite(&from, &|| self.check_writable())
                };
                match self.settled.alone(rewrite)? {
                    Some(next) => from = next,
                    None => return Ok(()),
                }
            }
            // Nothing is locked: who is told may use the database.
            let root = tree.root();
            progress(tree.count_at(&root, &[], Some(&from))? as f64 / root.entries() as f64);
        }
    }

    /// Settles up to a place where the durable log could end. `moving` says from the merge on that settling goes on.
    fn settle_to<'a>(&'a self, end: Address, moving: &mut Option<Moving<'a>>) -> Result<Settling> {
        self.settled.alone(|| self.settle_alone(end, moving))
    }

    /// The same, for who has settling locked.
    fn settle_alone<'a>(&'a self, end: Address, moving: &mut Option<Moving<'a>>) -> Result<Settling> {
        self.check_writable()?;
        // Dropped segments stay readable meanwhile.
        let segments = self.segments.hold();
        let log_begin = self.log.begin();
        let settled_to = self.settled.tree.settled_to().max(log_begin);
        if !self.can_settle_to(end, settled_to) || !self.losses_are_recorded() {
            return Ok(Settling::default());
        }
        // Else the whole part would be read first.
        self.settled.tree.check_not_failed()?;
        // What an earlier removal has left, where it came to no end, settles once more.
        let begin = self.settled.removed_to.load(Ordering::SeqCst).max(log_begin).min(settled_to);
        self.settled.pace.begin_part();
        let collected = self.collect_most(&segments, (begin, end), settled_to)?;
        let Some((newest, newest_version, end)) = collected else { return Ok(Settling::default()) };
        self.check_writable()?;
        self.say_log_is_needed()?;
        // Before the first leaf is written: those for which there is room stay in memory.
        let part_bytes = self.counted_bytes(begin, end);
        self.settled.moving_bytes.store(part_bytes, Ordering::SeqCst);
        self.share_for_good();
        moving.get_or_insert_with(|| self.settled.pace.begin_moving());
        if !planted(Bug::SettlesQuietly) {
            // Raised before the first row vanishes: whoever misses one, and then finds what is newer, looks again.
            self.forgotten.fetch_max(newest_version, Ordering::SeqCst);
        }
        if planted(Bug::RemovedBeforeRoot) {
            self.remove_settled(&newest, part_bytes)?;
        }
        let merged = self.merge_newest(&segments, &newest, end, part_bytes);
        self.settled.moving_bytes.store(0, Ordering::SeqCst);
        let merged = merged?;
        // Before any of it leaves the log: a tree without it must not be taken for this one.
        if !planted(Bug::RemovedBeforeSuperblock) {
            self.superblock.lock().update(|superblock| superblock.settled_to = end)?;
        }
        // What checkpoints say of the index and of the counts of live records is of one moment.
        let _no_checkpoint = self.checkpoints.pause();
        // What removals before this one have left empty, once it is much: whoever has read it, and is not done, has to begin again.
        self.objects.orders().for_each(OrderedIndex::unlink_empty);
        self.remove_settled(&newest, part_bytes)?;
        self.settled.removed_to.store(end, Ordering::SeqCst);
        self.settled.pace.end_part(part_bytes);
        self.settled.failures.end();
        self.settled.waits_for_head.store(0, Ordering::SeqCst);
        self.graves.note_settled();
        // There may be tombstones to be forgotten, for which it does not stay awake.
        self.hardening.wake_keeper();
        self.objects.orders().for_each(OrderedIndex::note_vacancy);
        Ok(Settling { puts: merged.put, deletes: merged.deleted, bytes: merged.bytes + newest.disk_bytes() })
    }

    /// Said before the tree is changed by what the log says: from then on the log's end must not pass for an unfinished write. A root cannot say so: it is read once the log is.
    pub(super) fn say_log_is_needed(&self) -> Result<()> {
        // The seals that make durable what is taken may lie behind it.
        let hardened = self.log.hardened();
        let mut superblock = self.superblock.lock();
        match superblock.current().known_end < hardened {
            true => superblock.update(|superblock| superblock.known_end = hardened),
            false => Ok(()),
        }
    }

    fn can_settle_to(&self, end: Address, settled_to: Address) -> bool {
        end > settled_to && end >= self.settled.forgotten_to.load(Ordering::SeqCst)
    }
}
