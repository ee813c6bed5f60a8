//! The commit: one short critical section over everything that a transaction wrote, whatever its objects.
//!
//! ```text
//!   1 lock      the buckets of all written keys        (bounded wait, else Conflict)
//!   2 locate    the records that will be superseded; new keys take log space and enter the ordered indexes
//!   3 clock     read the version v                     (pinned since before the locks)
//!   4 validate  every bucket and leaf that was read
//!   5 reserve   log space for the other keys           (none: undo, wait outside the pin, again)
//!   6 install   the records, tagged v                  <- the commit point is the unlock of the last bucket
//!   7 unlock, unpin
//! ```
//!
//! *Lock, then read the clock, then validate* (design: Silo's commit, with CPR's guarantee): if T2 depends on
//! T1 then version(T1) <= version(T2). For T2 read or overwrote what T1 wrote, so T2 read the clock after T1
//! had released its locks; or T2 overwrote what T1 had read, so T2 locked it after T1 had validated, and T1 had
//! read the clock before that.
//!
//! New keys enter the ordered indexes before the clock is read, too: it is their lock against the transactions that have
//! read the range without them. Their log space is taken before: undoing their entrance changes what this transaction
//! itself has read of the range, so there must be as few reasons to undo it as possible.
//!
//! Whether the objects are still there is looked at in step 4, too: behind the clock, see [`life`](super::life).
//!
//! The clock is read with sequential consistency after the locks are taken so: no transaction that began at a
//! later version can have read an old value of anything this one writes.

use std::iter::Peekable;
use std::sync::Arc;
use std::vec::IntoIter;

use super::batch::GROUP_KEYS;
use super::change::{Change, Current, Learnt, Place};
use super::engine::Engine;
use super::object::RangeRead;
use super::read_set::{ReadEntry, ReadSet};
use super::write_set::{Write, WriteSet};
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use crate::storage::epoch::{self, Pin};
use crate::storage::hash_index::{Bucket, Candidate};
use crate::storage::log::{Demand, Purpose};
use crate::storage::record::{Address, NO_ADDRESS, identity_bytes};

/// How one write will be carried out.
#[derive(Clone, Copy, Default)]
struct Step {
    bucket: Bucket,
    /// Where the key's newest record probably is.
    candidate: Candidate,
    current: Current,
    admitted: bool,
    /// Where the new record goes; the current address for an update in place; none for a write that changes
    /// nothing.
    target: Address,
    /// Bytes of a new record whose place is still to be found; 0 for others.
    wanted_bytes: u64,
}

/// So much is taken in one piece at the most.
const PIECE_BYTES_MAX: u64 = 4096;

/// What records of these lengths take of the log, the small ones in one piece or each by itself.
fn demand_of(records: impl Iterator<Item = u64>) -> Demand {
    in_pieces(records.fold(Demand::default(), Demand::with))
}

fn in_pieces(records: Demand) -> Demand {
    Demand { longest: records.longest.max(records.bytes.min(PIECE_BYTES_MAX)), ..records }
}

/// Puts the writes into the order in which their buckets are locked, which is that of the lowest bit first.
///
/// A bucket is what the hashes in it have in common, their low bits, of which a split or a merge takes one more, or one less. So in this order the keys of a bucket
/// follow one another, however often buckets are split and merged until they are locked, and the order of buckets is the same for everybody.
/// *Rejected: that of the buckets' numbers.* A split puts keys out of it, and who locks a large number of buckets meets one: it would have to begin anew,
/// and meet the next.
fn order_locks(writes: &WriteSet, scratch: &mut CommitScratch) {
    scratch.order.clear();
    let hashes = writes.writes().iter().map(|write| write.hash.reverse_bits());
    scratch.order.extend(hashes.zip(0..));
    scratch.order.sort_unstable();
}

/// The key gets its first record since it settled, or ever.
fn is_new_key(step: &Step, write: &Write) -> bool {
    !step.current.has_record() && (step.current.exists || !write.delete)
}

/// The key may get a row again, after a deletion that has a record yet.
fn is_row_again(step: &Step, write: &Write) -> bool {
    step.current.may_be_deleted() && !write.delete
}

/// What was learnt about the key of the write with this number.
type LearntOf = (usize, Learnt);

/// Scratch space of a commit, kept from one to the next so that committing allocates nothing.
#[derive(Default)]
pub(crate) struct CommitScratch {
    steps: Vec<Step>,
    locks: Vec<Bucket>,
    /// Of each write its hash, with the bits reversed, and its number.
    order: Vec<(u64, usize)>,
    /// What was learnt about keys, in ascending order of their writes' numbers.
    learnt: Vec<LearntOf>,
    grow: bool,
}

impl CommitScratch {
    /// True if nothing is to be installed: all writes delete what is not there.
    fn changes_nothing(&self) -> bool {
        self.steps.iter().all(|step| step.target == NO_ADDRESS)
    }
}

/// What was found of written keys.
#[derive(Clone, Copy, Default)]
struct Located {
    /// Some get their first record.
    has_new_keys: bool,
    /// Some may get a row again.
    has_rows_again: bool,
}

/// Why an attempt did not commit.
pub(crate) enum Setback {
    Conflict,
    /// Records on disk must be read first, which may not happen under the pin.
    Cold,
    NoLogSpace,
    /// Closed, or failed: the next attempt says which.
    NotWritable,
}

impl Engine {
    /// Commits the writes if everything read still holds; in which version, or, where all it writes is that there is still nothing, since which
    /// that is so. `first_committer` is the snapshot under which a
    /// snapshot-isolation transaction ran: nothing it writes may have changed since.
    pub(crate) fn commit(
        self: &Arc<Self>,
        writes: &WriteSet,
        reads: &mut ReadSet,
        scratch: &mut CommitScratch,
        first_committer: Option<u64>,
    ) -> Result<u64> {
        scratch.learnt.clear();
        self.note_lifetimes(writes);
        let mut is_slowed = false;
        loop {
            self.check_writable()?;
            self.wait_while_behind(&mut is_slowed, || {
                writes.writes().iter().any(|write| self.is_ordered(write.object))
            });
            match self.attempt(writes, reads, scratch, first_committer) {
                Ok(version) => {
                    self.hardening.note_commit();
                    self.note_lifetimes(writes);
                    if std::mem::take(&mut scratch.grow) {
                        self.index.grow(writes.len());
                    }
                    return Ok(version);
                }
                Err(Setback::Conflict) => return Err(Error::conflict()),
                Err(Setback::NoLogSpace) => {
                    let demand = demand_of(writes.writes().iter().map(|it| writes.change(it).log_bytes()));
                    self.wait_for_space(demand, writes.purpose())?;
                }
                Err(Setback::NotWritable) => {}
                Err(Setback::Cold) => self.learn_all(writes, scratch)?,
            }
        }
    }

    /// Says to objects when rows of theirs expire: before these are there, and afterwards.
    #[inline]
    fn note_lifetimes(&self, writes: &WriteSet) {
        if writes.has_expiring() {
            writes
                .writes()
                .iter()
                .for_each(|write| self.object(write.object).lifetimes.note(write.expires_at));
        }
    }

    fn attempt(
        &self,
        writes: &WriteSet,
        reads: &mut ReadSet,
        scratch: &mut CommitScratch,
        first_committer: Option<u64>,
    ) -> Result<u64, Setback> {
        let pin = epoch::pin_for_commit();
        // Looked at again under the pin: closing waits for the pins, so nothing commits behind its back.
        if self.check_writable().is_err() {
            return Err(Setback::NotWritable);
        }
        if planted(Bug::ValidatesBeforeLocking) && !self.reads_hold(reads, &[]) {
            return Err(Setback::Conflict);
        }
        let early = planted(Bug::ClockBeforeLocks).then(|| self.clock.now());
        // What was read has been fetched.
        let is_blind = reads.entries.len() < writes.len();
        if !self.lock_all(writes, scratch, is_blind) {
            self.unlock_all(scratch, false);
            return Err(Setback::Conflict);
        }
        // Before the clock is read, see `life`; it lives again unless this comes to its end.
        let dropping = match writes.drops().map(|object| self.object(object).life.begin_drop()) {
            None => None,
            Some(Some(dropping)) => Some(dropping),
            Some(None) => {
                self.unlock_all(scratch, false);
                return Err(Setback::Conflict);
            }
        };
        let outcome = self.prepare(&pin, writes, reads, scratch, first_committer, early);
        match outcome {
            Ok(_) if scratch.changes_nothing() => {
                self.unlock_all(scratch, false);
                // No record will have the version that it could commit in. What it has found is durable with these.
                Ok(scratch.steps.iter().map(|step| step.current.version).max().unwrap_or(0))
            }
            Ok(version) => {
                if planted(Bug::UnlocksBeforeInstalling) {
                    self.unlock_all(scratch, true);
                }
                self.install_all(writes, scratch, version);
                if let Some(dropping) = dropping {
                    dropping.end(version);
                }
                self.unlock_all(scratch, true);
                Ok(version)
            }
            Err(setback) => {
                self.retract_all(&pin, writes, scratch);
                self.give_back_reserved(writes, scratch);
                self.unlock_all(scratch, false);
                Err(setback)
            }
        }
    }

    /// Steps 2 to 5: everything that can still fail.
    fn prepare(
        &self,
        pin: &Pin,
        writes: &WriteSet,
        reads: &mut ReadSet,
        scratch: &mut CommitScratch,
        first_committer: Option<u64>,
        early: Option<u64>,
    ) -> Result<u64, Setback> {
        // Of what a snapshot must have seen the version has to be known.
        let located = self.locate_all(writes, scratch, first_committer.is_none())?;
        if let Some(snapshot) = first_committer
            && !planted(Bug::FirstCommitterIgnored)
            && (scratch.steps.iter().any(|step| step.current.version > snapshot)
                || writes.writes().iter().any(|write| self.is_loaded_after(write.object, snapshot)))
        {
            return Err(Setback::Conflict);
        }
        if located.has_new_keys {
            self.reserve_for_new_keys(writes, scratch)?;
        }
        let has_new_rows = located.has_new_keys || located.has_rows_again;
        if has_new_rows && !planted(Bug::AdmitsAfterValidation) {
            self.admit_all(pin, writes, reads, scratch);
        }
        let version = early.unwrap_or_else(|| self.clock.join());
        if !planted(Bug::ValidatesBeforeLocking) && !self.reads_hold(reads, &scratch.locks) {
            return Err(Setback::Conflict);
        }
        if planted(Bug::AdmitsAfterValidation) {
            self.admit_all(pin, writes, reads, scratch);
        }
        self.reserve_for_the_rest(writes, scratch, version)?;
        Ok(version)
    }

    /// Step 1. False if somebody holds one of the buckets for too long.
    fn lock_all(&self, writes: &WriteSet, scratch: &mut CommitScratch, fetches_records: bool) -> bool {
        scratch.steps.clear();
        scratch.steps.resize(writes.len(), Step::default());
        scratch.locks.clear();
        if let [write] = writes.writes() {
            let Some(bucket) = self.index.lock(write.hash) else { return false };
            scratch.steps[0].bucket = bucket;
            scratch.locks.push(bucket);
            return true;
        }
        if fetches_records {
            // Before the first lock is taken: locked instructions wait for one another, and for all loads before them, and so what is behind them would
            // not be asked for before.
            for write in writes.writes().iter().take(GROUP_KEYS) {
                let bucket = self.index.bucket_of(write.hash);
                self.fetch_candidate(bucket, write.hash, identity_bytes(writes.key(write)));
            }
        }
        order_locks(writes, scratch);
        self.lock_in_order(scratch)
    }

    /// Locks the buckets of what [`order_locks`] has put in order, each once.
    fn lock_in_order(&self, scratch: &mut CommitScratch) -> bool {
        let CommitScratch { steps, locks, order, .. } = scratch;
        for &(reversed, at) in order.iter() {
            let hash = reversed.reverse_bits();
            let mut bucket = self.index.bucket_of(hash);
            // A bucket that is held is neither split nor merged: this key stays in it, and one that is not in it does not come.
            if locks.last() != Some(&bucket) {
                let Some(locked) = self.index.lock(hash) else { return false };
                locks.push(locked);
                bucket = locked;
            }
            steps[at].bucket = bucket;
        }
        true
    }

    fn unlock_all(&self, scratch: &mut CommitScratch, changed: bool) {
        for bucket in scratch.locks.drain(..) {
            match changed && !planted(Bug::StampNotChanged) {
                true => self.index.unlock_changed(bucket),
                false => self.index.unlock_unchanged(bucket),
            }
        }
    }

    /// Step 2, first half: the current record of every written key.
    fn locate_all(
        &self,
        writes: &WriteSet,
        scratch: &mut CommitScratch,
        takes_any_version: bool,
    ) -> Result<Located, Setback> {
        // All are fetched before one is looked at, so that their cache misses overlap.
        for (step, write) in scratch.steps.iter_mut().zip(writes.writes()) {
            let bytes = identity_bytes(writes.key(write));
            step.candidate = self.fetch_candidate(step.bucket, write.hash, bytes);
        }
        let (mut cold, mut located) = (false, Located::default());
        let CommitScratch { steps, learnt, .. } = scratch;
        let mut known = std::mem::take(learnt).into_iter().peekable();
        for (at, (step, write)) in steps.iter_mut().zip(writes.writes()).enumerate() {
            let change = writes.change(write);
            match self.put_at(step.candidate, &change) {
                Some(current) => step.current = current,
                None => {
                    let learning = (&mut known, &mut *learnt);
                    let found = self.locate_patiently(step.bucket, (change, at), takes_any_version, learning);
                    cold |= found.is_none();
                    step.current = found.unwrap_or_default();
                    located.has_new_keys |= is_new_key(step, write);
                    located.has_rows_again |= is_row_again(step, write);
                }
            }
        }
        if cold { Err(Setback::Cold) } else { Ok(located) }
    }

    /// As [`Self::locate`], of the key of the write with this number: with what is `known` of it since the last attempt, and what is learnt for the next.
    /// Writes come here in ascending order.
    #[inline(never)]
    fn locate_patiently(
        &self,
        bucket: Bucket,
        (change, number): (Change<'_>, usize),
        takes_any_version: bool,
        (known, learnt): (&mut Peekable<IntoIter<LearntOf>>, &mut Vec<LearntOf>),
    ) -> Option<Current> {
        while known.next_if(|(of, _)| *of < number).is_some() {}
        let (_, mut its) = known.next_if(|(of, _)| *of == number).unwrap_or_default();
        let current = self.locate(bucket, (change, takes_any_version), &mut its);
        if !its.is_empty() {
            learnt.push((number, its));
        }
        current
    }

    /// Reads from disk what `locate_all` has asked for, many records at once.
    #[cold]
    fn learn_all(&self, writes: &WriteSet, scratch: &mut CommitScratch) -> Result<()> {
        let open = scratch.learnt.iter_mut().filter(|(_, learnt)| learnt.is_open());
        let mut open: Vec<_> = open.map(|(number, learnt)| (&writes.writes()[*number], learnt)).collect();
        let hashes: Vec<_> = open.iter().map(|(write, _)| write.hash).collect();
        let mut ahead = self.read_ahead();
        for (group, first) in open.chunks_mut(GROUP_KEYS).zip((0..).step_by(GROUP_KEYS)) {
            let next = (first, &hashes[first..first + group.len()]);
            self.read_group_ahead(&mut ahead, next, hashes.len(), |item| hashes[item]);
            for (write, learnt) in group {
                self.learn(&writes.change(write), learnt)?;
            }
        }
        Ok(())
    }

    /// Step 2, second half: keys that get their first record enter their object's ordered index *before*
    /// validation, so that of two transactions that each scan where the other inserts at least one fails; and where there are new rows no gap is kept, likewise.
    fn admit_all(&self, pin: &Pin, writes: &WriteSet, reads: &mut ReadSet, scratch: &mut CommitScratch) {
        for (step, write) in scratch.steps.iter_mut().zip(writes.writes()) {
            let (object, key) = (self.object(write.object), writes.key(write));
            let is_new_key = is_new_key(step, write);
            if is_new_key {
                step.admitted = true;
                reads.note_own_insertion(write.object, object.admit(pin, key));
            }
            let break_gap = || object.break_gap(pin, key, |gap| reads.has_range(write.object, gap));
            let broken = (is_new_key || is_row_again(step, write)).then(break_gap);
            if broken.is_some_and(|broken| reads.note_own_insertion(write.object, broken)) {
                // What is left of the gap has the key no more: should this attempt fail, the key's bucket says to the next one whether it has got a row.
                let (bucket, stamp) = (step.bucket, self.index.stamp_under_own_lock(step.bucket));
                reads.entries.push(ReadEntry { bucket, stamp });
            }
        }
    }

    fn retract_all(&self, pin: &Pin, writes: &WriteSet, scratch: &mut CommitScratch) {
        for (step, write) in scratch.steps.iter_mut().zip(writes.writes()) {
            if std::mem::take(&mut step.admitted) {
                self.object(write.object).retract(pin, writes.key(write));
            }
        }
    }

    /// Step 4. `locks` are the buckets that the caller holds itself, in [the order of their locks](order_locks).
    #[inline]
    pub(crate) fn reads_hold(&self, reads: &ReadSet, locks: &[Bucket]) -> bool {
        reads.entries.iter().all(|read| {
            planted(Bug::ReadsNotValidated)
                || self.index.unchanged(read.bucket, read.stamp)
                || locks.binary_search_by_key(&read.bucket.reverse_bits(), |lock| lock.reverse_bits()).is_ok()
                    && self.index.unchanged_under_own_lock(read.bucket, read.stamp)
        }) && reads.ranges().iter().all(|read| planted(Bug::RangesNotValidated) || self.range_holds(read))
            && reads.objects.iter().all(|&object| self.object(object).life.lives())
    }

    /// True if a leaf is as it was read.
    pub(crate) fn range_holds(&self, read: &RangeRead) -> bool {
        self.objects.ordered(read.object).is_some_and(|ordered| ordered.validate(&read.leaf))
    }

    /// Step 2: places for the keys that need a new record whatever the version is. If the others then find no space, the
    /// new keys must be retracted; so that this is rare, there must be space for all.
    fn reserve_for_new_keys(&self, writes: &WriteSet, scratch: &mut CommitScratch) -> Result<(), Setback> {
        let (mut all, mut has_others) = (Demand::default(), false);
        for (step, write) in scratch.steps.iter_mut().zip(writes.writes()) {
            let bytes = writes.change(write).log_bytes();
            all = all.with(bytes);
            match is_new_key(step, write) {
                true => step.wanted_bytes = bytes,
                false => has_others = true,
            }
        }
        if has_others {
            self.check_space(in_pieces(all), writes.purpose())?;
        }
        self.reserve_wanted(writes.purpose(), scratch, NO_ADDRESS)
    }

    /// Step 5: places for the other writes.
    fn reserve_for_the_rest(
        &self,
        writes: &WriteSet,
        scratch: &mut CommitScratch,
        version: u64,
    ) -> Result<(), Setback> {
        let mut newest = NO_ADDRESS;
        for (step, write) in scratch.steps.iter_mut().zip(writes.writes()) {
            if step.target == NO_ADDRESS {
                match self.place(&writes.change(write), &step.current, version) {
                    Place::Nowhere => {}
                    Place::There(address) => step.target = address,
                    Place::New(wanted) => {
                        step.wanted_bytes = wanted;
                        newest = newest.max(step.current.address);
                    }
                }
            }
        }
        self.reserve_wanted(writes.purpose(), scratch, newest)
    }

    /// Finds places for the steps that want some, behind `newest`. A small transaction takes its space in one piece: all threads share the log's tail. A
    /// large one takes nothing if there is not enough for all: what it gave back would be padding, of which a full disk has no room.
    fn reserve_wanted(
        &self,
        purpose: Purpose,
        scratch: &mut CommitScratch,
        newest: Address,
    ) -> Result<(), Setback> {
        let wanted = scratch.steps.iter_mut().filter(|step| step.wanted_bytes > 0);
        let demand = demand_of(wanted.map(|step| step.wanted_bytes));
        let is_small = demand.bytes <= PIECE_BYTES_MAX;
        let mut piece = NO_ADDRESS;
        if !is_small {
            self.check_space(demand, purpose)?;
        } else if demand.bytes > 0 {
            piece = self.log.reserve(demand.bytes, purpose, newest).ok_or(Setback::NoLogSpace)?;
        }
        for step in scratch.steps.iter_mut().filter(|step| step.wanted_bytes > 0) {
            let bytes = std::mem::take(&mut step.wanted_bytes);
            step.target = match is_small {
                true => piece,
                false => {
                    let behind = step.current.address;
                    self.log.reserve(bytes, purpose, behind).ok_or(Setback::NoLogSpace)?
                }
            };
            piece += bytes;
        }
        Ok(())
    }

    fn check_space(&self, demand: Demand, purpose: Purpose) -> Result<(), Setback> {
        match self.log.has_space(demand, purpose) {
            true => Ok(()),
            false => Err(Setback::NoLogSpace),
        }
    }

    #[cold]
    fn give_back_reserved(&self, writes: &WriteSet, scratch: &CommitScratch) {
        for (step, write) in scratch.steps.iter().zip(writes.writes()) {
            if step.target != NO_ADDRESS && step.target != step.current.address {
                self.log.pad(step.target, writes.change(write).shape().bytes());
            }
        }
    }

    /// Step 6. Nothing here can fail.
    fn install_all(&self, writes: &WriteSet, scratch: &mut CommitScratch, version: u64) {
        for (at, (step, write)) in scratch.steps.iter().zip(writes.writes()).enumerate() {
            let last_of_several = at > 0 && at + 1 == writes.len();
            if last_of_several && planted(Bug::PartOfCommit) && step.target != NO_ADDRESS {
                self.log.pad(step.target, writes.change(write).log_bytes());
                continue;
            }
            let version = version + u64::from(last_of_several && planted(Bug::CommitInTwoVersions));
            scratch.grow |=
                self.install(step.bucket, &writes.change(write), &step.current, step.target, version);
        }
    }
}

#[cfg(test)]
#[path = "commit_tests.rs"]
mod tests;
