//! Compaction: what is live in the log's oldest segments moves to its tail, so that they can be dropped (FASTER's
//! compaction by lookup).
//!
//! ```text
//!    begin            cursor                    head                        tail
//!      | written anew,  | to be looked at          | in memory: left alone    |
//!      | not yet durable| oldest first             | until it is cold         |
//! ```
//!
//! The records are read from disk in order. A record is live if the index refers to its very address: then it is committed
//! once more, with the key and value that were read, in a transaction of its own (lock, clock, reserve, install, unlock, as in
//! `commit`). No key is compared and no record is read a second time. Its segment is dropped by
//! `sweep` once nothing in it counts as live, which is when what was written anew has hardened; so no crash can come between.
//!
//! **When.** The log may be [`space_amplification`](crate::Options::space_amplification) times as long as its live bytes
//! (an estimate of `liveness`, which counts records with what they lose at a segment's end). Beyond it, the oldest segments are
//! compacted whatever part of them is live. Segments of which at most a quarter is live are compacted in any case. Nothing
//! is done that [settling](super::settle) does anyway: that makes the log shorter, too, so where it goes on, or is due, the log may be longer by a [part](SETTLING_PART), and rows are not written anew just before. And
//! nothing that cannot help: a log that is all live is never beyond the bound, what lies in memory may still die there for
//! nothing, short logs are left alone, and while a snapshot holds the oldest segment nothing behind it is copied. What somebody has
//! [asked for](Engine::compact_log) is done whatever it is worth, and in memory, too.
//!
//! **Quietly.** A record that moves is the same row in another place. So it changes nothing for who has read it, as where a row [settles](super::settled): the bucket is locked quietly, and its stamp stays. Otherwise a transaction
//! that goes on for longer than the log takes to go around its memory, or its space, could never commit, though nobody writes what it has read. Why that is sound:
//!
//! - *Reads.* The record is the key's newest, since the index refers to it while the bucket is held, and has hardened, so nobody changes it. Whoever validates a stamp that was taken before the move has read the record or its
//!   copy, and both say what a read now would say. Whoever changes the row later locks the bucket loudly, and then reads the clock, moved or not.
//! - *Versions.* The copy is of the version that the move has read from the clock under the lock, and is there for others behind that: who reads it, or writes over it, has no older version. Who has read the record, and validates after the move,
//!   may have a newer version than the copy. Where a crash leaves the copy and not them, it leaves the row as they have read it; and where it leaves neither, the record is still there: it stays until the copy has hardened.
//! - *Snapshots* that are older than the copy find the record behind it, and keep its segment. Those that do not keep it were opened when the copy's version had closed, and the index had its address.
//! - *Places.* It does not follow from an unchanged stamp that the index still refers to the record, nor, for who asks for the newest one, that it is still in the log. Who wants to write over what was read asks the index, under the lock
//!   (`still_holds`). Who had the address from the index, and finds that the log begins behind it by now, looks again (`read_cold`, `keys_at`): the index had the copy's before the beginning moved.
//!
//! Under snapshot isolation the copy's version counts: whoever writes a row that was moved since their snapshot conflicts, as the record does not tell that it is a copy.
//!
//! **How fast.** A round looks at a quarter of what is too much, at least [`ROUND_BYTES_MIN`] and at most [`ROUND_BYTES_MAX`], so
//! that the keeper gets back to its other duties. At the most it takes no nap in between; and when that is not enough either, or
//! the keeper does not come to it, commits are slowed down, and help. Compaction itself waits for nobody: where there is no log space, or hardening is behind
//! the window, the round ends.

use super::change::{Change, Current};
use super::commit::Setback;
use super::engine::Engine;
use super::gauge::Gauge;
use super::object::ObjectState;
use super::write_counts::Written;
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::hash_index::{Bucket, Candidate};
use crate::storage::log::{Demand, Purpose};
use crate::storage::record::{self, Address, DiskRecord, NEVER, NO_ADDRESS};
use crate::storage::record_reader::{Batch, Cursor};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread;

/// A segment of which at most such a part is live is worth being written anew whatever the bound.
const FEW_PART: u64 = 4;
/// A log of fewer segments is left alone.
const SEGMENTS_MIN: u64 = 4;
/// A log whose rows are to settle may be longer by such a part.
const SETTLING_PART: u64 = 8;
const ROUND_BYTES_MIN: u64 = 256 << 10;
const ROUND_BYTES_MAX: u64 = 4 << 20;
/// A round looks at such a part of what is too much.
const ROUND_PART: u64 = 4;
/// The keeper is late where the log has become so much longer since a look was due.
const OVERDUE_SEGMENTS: u64 = 2;
/// Who has asked for compaction gives up after so many rounds that changed nothing. Those that only look at what is dead change nothing, either.
const ROUNDS_IN_VAIN_MAX: u64 = 64;
/// So many cache misses overlap.
const BATCH: usize = 32;

/// What is known of a database's compaction.
pub(crate) struct Compaction {
    space_amplification: f64,
    /// Everything before it is to be compacted: somebody asked for it.
    asked: AtomicU64,
    is_in_haste: AtomicBool,
    is_pressing: AtomicBool,
    /// Bytes of log that it has passed, of those it is to pass, since it last had nothing to do.
    pub(crate) passed_bytes: Gauge,
    /// Written anew since the database was opened.
    pub(crate) segments: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// How far compaction has come; under the sweep's lock.
#[derive(Default)]
pub(super) struct Progress {
    /// All that was live before it has been written anew.
    cursor: Cursor,
    /// Where the cursor was when there came to be something to do.
    began_at: Address,
    /// On a full disk: where the oldest segment begins, how many of its records were live, and where what is prepared ends. Nothing could be
    /// done, and until one of them changes nothing can.
    in_vain: Option<(Address, u64, Address)>,
}

/// What is left to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Nothing,
    /// Nothing was done, but the next hardening may let a segment go.
    Held,
    /// Nothing was done, and what was in the way may be gone in a moment, even without another hardening.
    Obstructed,
    /// What was done shows after the next hardening.
    AfterHardening,
    /// Something was done, and the next round can begin.
    AtOnce,
}

impl Compaction {
    pub(crate) fn new(space_amplification: f64) -> Compaction {
        Compaction {
            space_amplification,
            asked: AtomicU64::new(0),
            is_in_haste: AtomicBool::new(false),
            is_pressing: AtomicBool::new(false),
            passed_bytes: Gauge::default(),
            segments: AtomicU64::new(0),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// The bound is passed by more than the keeper makes up for between its naps.
    pub(crate) fn is_in_haste(&self) -> bool {
        self.is_in_haste.load(Ordering::Relaxed)
    }

    /// The bound is passed by so much that commits must be slowed down.
    pub(crate) fn is_pressing(&self) -> bool {
        self.is_pressing.load(Ordering::Relaxed)
    }

    /// Whether records are ever written anew for the sake of space.
    pub(super) fn is_wanted(&self) -> bool {
        self.space_amplification.is_finite()
    }

    /// Such a part of the log may be dead.
    pub(super) fn dead_part(&self) -> f64 {
        1.0 - 1.0 / self.space_amplification
    }

    /// There is nothing to do now, and nobody is slowed down any more.
    pub(super) fn calm_down(&self) {
        self.passed_bytes.clear();
        self.is_in_haste.store(false, Ordering::Relaxed);
        self.is_pressing.store(false, Ordering::Relaxed);
    }

    /// Up to here compaction is wanted whatever it is worth.
    pub(super) fn asked(&self) -> Address {
        self.asked.load(Ordering::SeqCst)
    }

    /// How long the log may be.
    fn log_bytes_max(&self, live_bytes: u64, segment_bytes: u64) -> u64 {
        ((live_bytes as f64 * self.space_amplification) as u64).max(SEGMENTS_MIN * segment_bytes)
    }
}

/// A log of so many bytes, of which so many are allowed, is so long that commits must be slowed down.
fn is_far_beyond(bytes: u64, allowed: u64, segment_bytes: u64) -> bool {
    bytes.saturating_sub(allowed) > allowed / 4 + 2 * segment_bytes
}

impl Engine {
    /// Writes everything anew that is live and durable in the log, and drops what was there, as far as no snapshot needs it. `progress` is told where the log
    /// begins, time and again.
    ///
    /// # Errors
    /// `Io` or `NoSpace` if the disk fails or is full, `Corrupted` if the log is damaged; `Lost` or `Aborted` if the database has failed
    /// or is closed. What was live stays so.
    pub(crate) fn compact_log(&self, mut progress: impl FnMut(Address)) -> Result<()> {
        self.persist()?;
        let end = self.log.hardened() - self.log.hardened() % self.log.segment_bytes();
        self.compaction.asked.fetch_max(end, Ordering::SeqCst);
        // What is in the way may be gone after a hardening, or be a hardening itself; or it stays: a snapshot, or a full disk.
        let mut rounds_in_vain = 0;
        while self.log.begin() < end && rounds_in_vain < ROUNDS_IN_VAIN_MAX {
            self.check_writable()?;
            progress(self.log.begin());
            if self.segments.disk_is_full() {
                // There may be space by now.
                let _ = self.look_for_space();
            }
            let before = (self.log.begin(), self.compaction.records.load(Ordering::Relaxed));
            if self.compact_round()? != Rest::AtOnce {
                self.persist()?;
            }
            let is_in_vain = before == (self.log.begin(), self.compaction.records.load(Ordering::Relaxed));
            rounds_in_vain = if is_in_vain { rounds_in_vain + 1 } else { 0 };
        }
        if self.log.begin() < end && self.segments.disk_is_full() {
            self.look_for_space()?;
        }
        self.segments.remove_spares()
    }

    /// For who hardens, up to `end`: where the keeper has not looked for long, for want of a processor, and the log has become far too long meanwhile, commits are slowed
    /// down, and the first of them looks.
    pub(super) fn watch_length(&self, end: Address) {
        let (begin, segment_bytes) = (self.log.begin(), self.log.segment_bytes());
        let is_overdue = self.graves.is_overdue(end, OVERDUE_SEGMENTS * segment_bytes);
        let has_cold_segment = begin + segment_bytes <= self.log.head();
        if is_overdue
            && has_cold_segment
            && self.compaction.is_wanted()
            && self.hardening.has_background()
            && !self.segments.disk_is_full()
        {
            let allowed = self.log_bytes_allowed(begin);
            if is_far_beyond(end - begin, allowed, segment_bytes) {
                self.compaction.is_pressing.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Compacts as much as one round may.
    pub(super) fn compact(&self, progress: &mut Progress) -> Result<Rest> {
        let rest = self.check_writable().and_then(|()| self.compact_oldest(progress));
        // What cannot be read, or has to wait for a snapshot, is nothing to slow commits down for.
        if !matches!(rest, Ok(Rest::AtOnce | Rest::Obstructed)) {
            self.compaction.calm_down();
        }
        rest
    }

    fn compact_oldest(&self, progress: &mut Progress) -> Result<Rest> {
        let begin = self.log.begin();
        let newest_successor = self.liveness.lock().of_segment(begin).newest_successor;
        let (horizon, oldest) = (self.hardening.horizon.local(), self.oldest_needed());
        // While a snapshot needs what is dead there, the segment cannot go, and copying the rest of it helps nobody.
        if newest_successor > oldest && oldest < horizon {
            return Ok(Rest::Held);
        }
        // A hardening has counted its records and is yet to publish its horizon: the segment may go in a moment.
        let is_in_flux = newest_successor > horizon;
        if self.segments.disk_is_full() {
            return match is_in_flux {
                true => Ok(Rest::Obstructed),
                // It would find what moves in its old place, and keep that: the space that is kept would be used up for nothing.
                false if oldest < horizon => Ok(Rest::Held),
                false => self.compact_on_full_disk(begin, progress),
            };
        }
        if progress.cursor.position < begin {
            progress.cursor = Cursor::at_seal(begin);
        }
        if self.hardening.is_behind_window() {
            return Ok(Rest::Obstructed);
        }
        match self.compact_cold(progress)? {
            Rest::Held | Rest::Nothing if is_in_flux => Ok(Rest::Obstructed),
            rest => Ok(rest),
        }
    }

    fn compact_cold(&self, progress: &mut Progress) -> Result<Rest> {
        let segment_bytes = self.log.segment_bytes();
        let asked = self.compaction.asked();
        let allowed = self.log_bytes_allowed(progress.cursor.position);
        let excess = |position: Address| (self.log.hardened() - position).saturating_sub(allowed);
        let round_bytes =
            (excess(progress.cursor.position) / ROUND_PART).clamp(ROUND_BYTES_MIN, ROUND_BYTES_MAX);
        let is_too_much =
            is_far_beyond(self.log.hardened() - progress.cursor.position, allowed, segment_bytes);
        self.compaction.is_in_haste.store(round_bytes == ROUND_BYTES_MAX, Ordering::Relaxed);
        let started = progress.cursor.position;
        let wanted_end = self.wanted_end(allowed);
        if self.compaction.passed_bytes.read().1 == 0 {
            progress.began_at = started;
        }
        let began_at = progress.began_at;
        let note_passed = |position: Address, segment_end: Address| {
            self.compaction.passed_bytes.set(position - began_at, wanted_end.max(segment_end) - began_at);
        };
        let mut reader = self.log_reader(&self.segments, progress.cursor);
        loop {
            let position = reader.cursor().position;
            let end = (position + 1).next_multiple_of(segment_bytes);
            let segment = self.liveness.lock().of_segment(position);
            let few = segment.is_mostly_dead(FEW_PART);
            let is_worth_it = end <= self.log.head() && (excess(position) > 0 || few);
            if !is_worth_it && end > asked {
                break;
            }
            self.compaction.is_pressing.store(is_too_much, Ordering::Relaxed);
            note_passed(position, end);
            if segment.live() == 0 {
                progress.cursor = Cursor::at_seal(end);
                reader.move_to(progress.cursor);
                continue;
            }
            while reader.cursor().position < end {
                if reader.cursor().position - started >= round_bytes {
                    return Ok(Rest::AtOnce);
                }
                let batch = reader.next_batch(end, BATCH)?;
                if let Some(stopped_at) = self.write_batch_anew(&batch, Purpose::Ordinary)? {
                    progress.cursor = batch.start.moved_to(stopped_at);
                    return Ok(if stopped_at > started { Rest::AtOnce } else { Rest::Obstructed });
                }
                progress.cursor = reader.cursor();
                note_passed(progress.cursor.position, end);
            }
            self.compaction.segments.fetch_add(1, Ordering::Relaxed);
        }
        self.compaction.calm_down();
        Ok(match progress.cursor.position {
            position if position > started => Rest::AfterHardening,
            // Some of it may be deletions that are yet to be forgotten, and records whose successors are yet to harden.
            position if position > self.log.begin() => Rest::Held,
            _ => Rest::Nothing,
        })
    }

    /// How long the log may be if it begins there.
    fn log_bytes_allowed(&self, begin: Address) -> u64 {
        let live_bytes = self.liveness.lock().live_bytes();
        let allowed = self.compaction.log_bytes_max(live_bytes, self.log.segment_bytes());
        if self.settles_soon(begin) { allowed.saturating_add(allowed / SETTLING_PART) } else { allowed }
    }

    /// Up to where segments are worth being compacted whatever part of them is live, or somebody has asked for it.
    fn wanted_end(&self, allowed: u64) -> Address {
        let segment_bytes = self.log.segment_bytes();
        let head = self.log.head();
        let excess_end = self.log.hardened().saturating_sub(allowed).next_multiple_of(segment_bytes);
        excess_end.min(head - head % segment_bytes).max(self.compaction.asked())
    }

    /// Writes what is live in the oldest segment anew into the space that is kept for that, if all of it has room there. What is
    /// in memory cannot be waited for.
    fn compact_on_full_disk(&self, begin: Address, progress: &mut Progress) -> Result<Rest> {
        let end = begin + self.log.segment_bytes();
        let live = self.liveness.lock().of_segment(begin).live();
        let now = Some((begin, live, self.segments.prepared_end()));
        if end > self.log.hardened() || progress.in_vain == now {
            return Ok(Rest::Nothing);
        }
        let mut reader = self.log_reader(&self.segments, Cursor::at_seal(begin));
        let (mut count, mut demand, bytes_max) = (0, Demand::default(), self.log.reserve_for_sweep());
        while reader.cursor().position < end && demand.bytes <= bytes_max {
            let batch = reader.next_batch(end, BATCH)?;
            for (_, _, record) in self.live_of(&batch) {
                (count, demand) = (count + 1, demand.with(record.shape.bytes()));
            }
        }
        let has_room = demand.bytes <= bytes_max && self.log.has_disk_space(demand, Purpose::Sweep);
        // Where there are deletions, too, that are yet to be forgotten, the segment stays.
        if demand.bytes == 0 || !has_room || count < live {
            progress.in_vain = now;
            return Ok(Rest::Nothing);
        }
        reader.move_to(Cursor::at_seal(begin));
        while reader.cursor().position < end {
            self.compaction.passed_bytes.set(reader.cursor().position - begin, end - begin);
            let batch = reader.next_batch(end, BATCH)?;
            if self.write_batch_anew(&batch, Purpose::Sweep)?.is_some() {
                return Ok(Rest::AfterHardening);
            }
        }
        self.compaction.segments.fetch_add(1, Ordering::Relaxed);
        Ok(Rest::AfterHardening)
    }

    /// The batch's records that may hold their keys' newest values, each with its place and its key's hash.
    pub(super) fn live_of<'b>(
        &self,
        batch: &Batch<'b>,
    ) -> impl Iterator<Item = (Address, u64, DiskRecord<'b>)> {
        let is_nobodys = |object| self.objects.get(object).is_some_and(ObjectState::is_nobodys);
        let puts = batch.records.iter().filter(|(_, record)| record.shape.kind.is_put());
        self.newest_of(puts.filter(move |(_, record)| !is_nobodys(record.shape.object)).copied())
    }

    /// Those records that may be their keys' newest ones, each with its place and its key's hash.
    pub(super) fn newest_of<'b>(
        &self,
        records: impl Iterator<Item = (Address, DiskRecord<'b>)>,
    ) -> impl Iterator<Item = (Address, u64, DiskRecord<'b>)> {
        let hashed: Vec<_> = records
            .map(|(address, record)| {
                let hash = self.hash(record.shape.object, record.key);
                self.index.prefetch(hash);
                (address, hash, record)
            })
            .collect();
        hashed.into_iter().filter(|(address, hash, _)| self.may_be_newest(*address, *hash))
    }

    /// True if the index refers to the record at `address`, or is just being changed there.
    pub(super) fn may_be_newest(&self, address: Address, hash: u64) -> bool {
        if planted(Bug::CompactsSuperseded) {
            return true;
        }
        let Some((bucket, stamp)) = self.index.stamp(hash) else { return true };
        self.index.addresses_of(hash).any(|newest| newest == address) || !self.index.unchanged(bucket, stamp)
    }

    /// Writes the batch's live records anew. Returns the address of one for which there was no space now.
    fn write_batch_anew(&self, batch: &Batch<'_>, purpose: Purpose) -> Result<Option<Address>> {
        for (address, hash, record) in self.live_of(batch) {
            if !self.write_anew(address, hash, &record, purpose)? {
                return Ok(Some(address));
            }
        }
        Ok(None)
    }

    /// Commits the record that was read at `address` once more, if it still is its key's newest. False if that cannot be done now.
    pub(super) fn write_anew(
        &self,
        address: Address,
        hash: u64,
        record: &DiskRecord<'_>,
        purpose: Purpose,
    ) -> Result<bool> {
        /// Whoever holds a bucket for longer is not waited for.
        const ATTEMPTS: usize = 3;
        let bytes = record.shape.bytes();
        for _ in 0..ATTEMPTS {
            self.check_writable()?;
            match self.attempt_anew(address, hash, record, purpose) {
                Ok(false) => return Ok(true),
                Ok(true) => {
                    self.hardening.note_commit();
                    self.compaction.records.fetch_add(1, Ordering::Relaxed);
                    self.compaction.bytes.fetch_add(bytes, Ordering::Relaxed);
                    return Ok(true);
                }
                Err(Setback::NoLogSpace) => {
                    // On a full disk there may be space by now; if not, that is no news.
                    let _ = self.prepare_ahead(bytes);
                    if !self.log.has_space(Demand::of_one(bytes), purpose) {
                        // What is to stay in memory is not to make room for itself there by the eviction of what nobody has looked at.
                        if purpose != Purpose::Warmth {
                            self.hardening.want_space(bytes);
                        }
                        self.hardening.request_now();
                        return Ok(false);
                    }
                }
                Err(_) => thread::yield_now(),
            }
        }
        Ok(false)
    }

    /// The commit's steps for the one record. False if it has been superseded since it was read.
    fn attempt_anew(
        &self,
        address: Address,
        hash: u64,
        record: &DiskRecord<'_>,
        purpose: Purpose,
    ) -> Result<bool, Setback> {
        let _pin = epoch::pin_for_commit();
        // Looked at under the pin; see `commit`.
        if self.check_writable().is_err() {
            return Err(Setback::NotWritable);
        }
        // Before the version: for who begins in a newer one, and does not find the row, it has expired as well.
        let has_expired = self.is_expired_now(record.expires_at);
        // What is perhaps deleted instead of being moved changes.
        let bucket = match has_expired {
            true => self.index.lock(hash),
            false => self.index.lock_quietly(hash),
        };
        let bucket = bucket.ok_or(Setback::Conflict)?;
        let newest = match self.index.refers_to(bucket, hash, address) {
            true => address,
            false if planted(Bug::CompactsSuperseded) => self.newest_in_memory(bucket, hash, record),
            false => NO_ADDRESS,
        };
        if newest == NO_ADDRESS {
            self.index.unlock_unchanged(bucket);
            return Ok(false);
        }
        let version = self.clock.join();
        // Behind the lock and the clock, see `life`.
        if self.objects.get(record.shape.object).is_some_and(ObjectState::is_nobodys) {
            self.index.unlock_unchanged(bucket);
            return Ok(false);
        }
        if has_expired && let Some(_deleting) = self.expiring.deleting() {
            return self.delete_instead(bucket, (newest, hash), record, (version, purpose));
        }
        let Some(target) = self.log.reserve(record.shape.bytes(), purpose, newest) else {
            self.index.unlock_unchanged(bucket);
            return Err(Setback::NoLogSpace);
        };
        let words = self.log.memory(target, record.shape.bytes());
        let previous = if planted(Bug::CompactionLosesPrevious) { NO_ADDRESS } else { newest };
        record::write(words, record.shape, version, previous, record.key, (record.value, record.expires_at));
        self.write_counts.note(Written::Moved);
        if !planted(Bug::MovedNotNoted) {
            self.note_superseded(newest);
        }
        let replaced = self.index.replace(bucket, hash, Candidate::at(newest), target);
        assert!(replaced, "the entry of a live record is gone though its bucket is locked");
        self.index.unlock_unchanged(bucket);
        Ok(true)
    }

    /// Deletes a row that has expired, whose bucket is held, and which need not be copied then.
    #[cold]
    fn delete_instead(
        &self,
        bucket: Bucket,
        (newest, hash): (Address, u64),
        record: &DiskRecord<'_>,
        (version, purpose): (u64, Purpose),
    ) -> Result<bool, Setback> {
        let (object, key, expires_at) = (record.shape.object, record.key, record.expires_at);
        let change = Change { object, hash, key, value: None, expires_at: NEVER };
        let Some(target) = self.log.reserve(change.log_bytes(), purpose, newest) else {
            self.index.unlock_unchanged(bucket);
            return Err(Setback::NoLogSpace);
        };
        let current = Current {
            address: newest,
            version: record.version,
            exists: true,
            expires_at,
            ..Current::default()
        };
        self.install(bucket, &change, &current, target, version);
        self.index.unlock_changed(bucket);
        self.expiring.deleted.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Where the key's newest record is, if it is in memory.
    #[cold]
    fn newest_in_memory(&self, bucket: Bucket, hash: u64, record: &DiskRecord<'_>) -> Address {
        let (object, key, value) = (record.shape.object, record.key, Some(record.value));
        let change = Change { object, hash, key, value, expires_at: record.expires_at };
        let newest = self.look_for(bucket, &change, &mut |_| None);
        if newest.exists { newest.address } else { NO_ADDRESS }
    }
}

#[cfg(test)]
#[path = "compaction_tests.rs"]
mod tests;
