//! Single operations: transactions on one key, without a transaction's bookkeeping.
//!
//! The steps are those of `commit`, in the same order and made of the same parts. A put or a delete has nothing to
//! validate: what a delete looks at is under its own lock. A read-modify-write is optimistic:
//!
//! ```text
//!   1 read      the value, its record's address, and the bucket's stamp     (pinned; or from disk, not pinned)
//!   2 decide    the caller's closure: not pinned, nothing locked
//!   3 lock      the bucket; is the stamp what it was? else back to 1        (pinned from here on)
//!   4 clock, reserve, install, unlock                                       as a put
//! ```
//!
//! The stamp stands for everything in the bucket. So if it is unchanged under the lock, and the index still refers to the record, which may have
//! [moved](super::compaction), then that is not looked for again, nor read from disk again.
//!
//! Where the decision is the engine's own the usual case takes the lock first, as a put does ([`held`]).
//!
//! Rejected: the closure under the bucket's lock, which would never run twice. One that is slow would then hold up everybody
//! whose key is in the bucket, and every version's close; one that uses the database would wait for itself; one
//! that panics would leave the bucket locked.

mod held;

use std::cell::Cell;
use std::sync::Arc;

use super::backoff::Backoff;
use super::change::{Change, Current, Learnt, Place};
use super::commit::Setback;
use super::engine::Engine;
use super::expiry::{Expired, Expiry, Moment, default_expiry};
use super::handle::Object;
use super::life::Life;
use super::object::ObjectState;
use super::read::Reading;
use super::settled::Lookup;
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::epoch::{self, Pin};
use crate::storage::hash_index::Bucket;
use crate::storage::log::Space;
use crate::storage::record::{NEVER, NO_ADDRESS, identity_bytes};
use crate::sync::thread_local;

/// The key of a single operation, checked.
#[derive(Clone, Copy)]
pub(crate) struct SingleKey<'a> {
    pub(crate) object: u32,
    pub(crate) hash: u64,
    pub(crate) key: &'a [u8],
    /// The object's.
    pub(crate) life: &'a Life,
}

impl<'a> SingleKey<'a> {
    /// Its change to a value, or its deletion.
    #[inline]
    pub(crate) fn change(self, value: Option<&'a [u8]>, expires_at: u64) -> Change<'a> {
        Change { object: self.object, hash: self.hash, key: self.key, value, expires_at }
    }
}

/// A single operation that has committed.
#[derive(Clone, Copy)]
pub(crate) struct SingleCommit {
    pub(crate) version: u64,
    /// Of a deletion: the key had a value that had not expired.
    existed: bool,
    grow: bool,
}

/// What a read-modify-write makes of a key.
#[derive(Clone, Copy)]
pub(crate) enum Decision {
    /// Nothing: it was only read.
    Keep,
    /// The value in the buffer for it.
    Put,
    Delete,
}

impl Decision {
    /// That the key has a value from now on, or none.
    #[inline]
    pub(crate) fn of(exists: bool) -> Decision {
        if exists { Decision::Put } else { Decision::Delete }
    }
}

/// Buffers for values that a thread keeps from one operation to the next.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) old: Vec<u8>,
    again: Vec<u8>,
    pub(crate) new: Vec<u8>,
}

/// Runs with the thread's buffers. They are taken out meanwhile, so that `run` may use the database; what it so begins in
/// turn has buffers of its own.
#[inline(always)]
pub(crate) fn with_scratch<T>(run: impl FnOnce(&mut Scratch) -> T) -> T {
    /// One large value must not keep its memory for ever.
    const KEPT_BYTES_MAX: usize = 1 << 20;
    thread_local! {
        static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
    }
    let mut scratch = SCRATCH.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let result = run(&mut scratch);
    if [&scratch.old, &scratch.new, &scratch.again].iter().all(|kept| kept.capacity() <= KEPT_BYTES_MAX) {
        // A thread that ends keeps nothing.
        let _ = SCRATCH.try_with(|kept| kept.set(Some(scratch)));
    }
    result
}

impl Engine {
    /// Checks the key of an operation on an object.
    #[inline(always)]
    pub(crate) fn single_key<'k, O: Object>(
        self: &Arc<Self>,
        object: &'k O,
        key: &'k [u8],
    ) -> Result<SingleKey<'k>> {
        let id = self.check_key(object.handle(), key)?;
        Ok(SingleKey { object: id, hash: self.hash(id, key), key, life: &object.handle().life })
    }

    /// A key of an object that the engine itself looks at.
    #[inline]
    pub(crate) fn key_of<'k>(&self, object: &'k ObjectState, key: &'k [u8]) -> SingleKey<'k> {
        SingleKey { object: object.id, hash: self.hash(object.id, key), key, life: &object.life }
    }

    /// Reads the newest value of a key into a buffer, which is empty if there is none.
    #[inline]
    pub(crate) fn get_into<O: Object>(
        self: &Arc<Self>,
        object: &O,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        let key = self.single_key(object, key)?;
        let found = match self.read_at_once(key.object, key.key, key.hash, &Moment::default(), value) {
            Some(reading) if key.life.lives() => reading.found,
            _ => self.read_newest_patiently(key, value)?.found,
        };
        if !found {
            value.clear();
        }
        Ok(found)
    }

    /// Calls `look` with the newest value of a key, in a buffer that the thread keeps.
    pub(crate) fn get_with<O: Object, T>(
        self: &Arc<Self>,
        object: &O,
        key: &[u8],
        look: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<T> {
        let key = self.single_key(object, key)?;
        with_scratch(|scratch| {
            let reading = self.read_newest(key, &mut scratch.old)?;
            Ok(look(reading.found.then_some(&scratch.old)))
        })
    }

    /// When a row expires; `None` if there is none.
    pub(crate) fn expiry_of<O: Object>(self: &Arc<Self>, object: &O, key: &[u8]) -> Result<Option<Expiry>> {
        let key = self.single_key(object, key)?;
        let reading = match self.outline_at_once(key, &Moment::default()) {
            Some((reading, _)) if key.life.lives() => reading,
            _ => self.read_newest(key, &mut Vec::new())?,
        };
        Ok(reading.found.then(|| Expiry::of_stored(reading.expires_at)))
    }

    /// Puts one key; gives the version.
    pub(crate) fn put_single(
        self: &Arc<Self>,
        key: SingleKey<'_>,
        value: &[u8],
        expires_at: u64,
    ) -> Result<u64> {
        Ok(self.commit_single(key, Some(value), expires_at)?.version)
    }

    /// Deletes one key, and says whether it had a value that had not expired.
    pub(crate) fn delete_single(self: &Arc<Self>, key: SingleKey<'_>) -> Result<(u64, bool)> {
        let deleted = self.commit_single(key, None, NEVER)?;
        Ok((deleted.version, deleted.existed))
    }

    /// Puts one key, or deletes it (`value` is `None`). A part of each caller, as [`Self::attempt_single`] is.
    #[inline(always)]
    fn commit_single(
        self: &Arc<Self>,
        key: SingleKey<'_>,
        value: Option<&[u8]>,
        expires_at: u64,
    ) -> Result<SingleCommit> {
        self.index.prefetch(key.hash);
        let change = key.change(value, expires_at);
        let mut learnt = Learnt::default();
        let mut is_slowed = false;
        self.note_lifetime(&change);
        self.wait_while_behind(&mut is_slowed, || self.is_ordered(change.object));
        let committed = match self.attempt_single(&change, key.life, None, &mut learnt) {
            Ok(committed) => committed,
            Err(setback) => self.commit_after(setback, (change, key.life), &mut learnt, is_slowed)?,
        };
        self.note_lifetime(&change);
        Ok(self.note_single(committed))
    }

    /// Goes on after an attempt that has failed. Has the change as its own, as all that is called here and is not a part of its caller: of what
    /// others have a reference to the compiler does not know that it stays as it is.
    #[cold]
    fn commit_after(
        self: &Arc<Self>,
        mut setback: Setback,
        (change, life): (Change<'_>, &Life),
        learnt: &mut Learnt,
        mut is_slowed: bool,
    ) -> Result<SingleCommit> {
        loop {
            match setback {
                Setback::Conflict => {
                    life.check()?;
                    crate::sync::thread::yield_now();
                }
                Setback::NotWritable => self.check_writable()?,
                Setback::NoLogSpace => self.wait_for_space(change.demand(), change.purpose())?,
                Setback::Cold => self.learn(&change, learnt)?,
            }
            self.wait_while_behind(&mut is_slowed, || self.is_ordered(change.object));
            match self.attempt_single(&change, life, None, learnt) {
                Ok(committed) => return Ok(committed),
                Err(next) => setback = next,
            }
        }
    }

    /// Reads one key and writes what `decide` makes of its value; `None` stands for "no value". A value to put is left in the
    /// buffer. `decide` runs again if the key's value has changed in between, and may use the database: what it writes may be in the same bucket, and
    /// does not have it run for ever.
    pub(crate) fn update_single(
        self: &Arc<Self>,
        key: SingleKey<'_>,
        time_to_live_ms: u64,
        mut decide: impl FnMut(Option<&[u8]>, &mut Vec<u8>) -> Result<Decision>,
    ) -> Result<SingleCommit> {
        with_scratch(|scratch| {
            let mut decided = None;
            match self.update_at_once(key, scratch, &mut decide, &mut decided)? {
                Some(committed) => Ok(committed),
                None => self.update_patiently(key, time_to_live_ms, scratch, &mut decide, decided),
            }
        })
    }

    /// The usual case: the key has a value that does not expire, it is in memory, and nobody writes in its bucket meanwhile. `None` if it is another
    /// one; then `decided` is what the value, now the scratch's old one, was found to be, and what was decided then, if something was.
    #[inline(always)]
    fn update_at_once(
        self: &Arc<Self>,
        key: SingleKey<'_>,
        Scratch { old, new, .. }: &mut Scratch,
        mut decide: impl FnMut(Option<&[u8]>, &mut Vec<u8>) -> Result<Decision>,
        decided: &mut Option<(Reading, Decision)>,
    ) -> Result<Option<SingleCommit>> {
        if self.is_behind() {
            return Ok(None);
        }
        let reading = self.read_at_once(key.object, key.key, key.hash, &Moment::default(), old);
        let is_usual = |reading: &Reading| reading.found && reading.expires_at == NEVER && key.life.lives();
        let Some(reading) = reading.filter(is_usual) else { return Ok(None) };
        new.clear();
        let decision = decide(Some(old), new)?;
        let value = match decision {
            Decision::Put => Some(&new[..]),
            Decision::Delete => None,
            Decision::Keep => return Ok(Some(reading.unchanged(self))),
        };
        self.check_value(value.unwrap_or_default())?;
        let change = key.change(value, NEVER);
        match self.attempt_single(&change, key.life, Some(&reading), &mut Learnt::default()) {
            Ok(committed) => Ok(Some(self.note_single(committed))),
            Err(_) => {
                *decided = Some((reading, decision));
                Ok(None)
            }
        }
    }

    /// Any case; it goes on with what was decided. Others may change the bucket whenever a long value is copied; what nobody changes any more need only be
    /// the key's still.
    #[cold]
    fn update_patiently(
        self: &Arc<Self>,
        key: SingleKey<'_>,
        time_to_live_ms: u64,
        Scratch { old, new, again }: &mut Scratch,
        mut decide: impl FnMut(Option<&[u8]>, &mut Vec<u8>) -> Result<Decision>,
        mut decided: Option<(Reading, Decision)>,
    ) -> Result<SingleCommit> {
        /// So often a long value is tried before its version is closed for it.
        const CONFLICTS_MAX: u32 = 4;
        const LONG_BYTES: usize = 64 << 10;
        let (mut backoff, mut is_slowed) = (Backoff::default(), false);
        let (mut conflicts, mut closed, mut learnt) = (0_u32, 0, Learnt::default());
        loop {
            let mut reading = self.read_to_change(key, conflicts > 0, again, &mut learnt)?;
            // What has settled has no record, and no version.
            reading.is_for_good |= reading.version > 0 && reading.version <= closed;
            let is_decided = |(read, _): &(Reading, Decision)| {
                let is_as_long = (read.found, read.expires_at) == (reading.found, reading.expires_at);
                is_as_long && (!reading.found || old == again)
            };
            let decision = match decided.filter(is_decided) {
                Some((_, decision)) => decision,
                None => {
                    std::mem::swap(old, again);
                    new.clear();
                    decide(reading.found.then_some(&old[..]), new)?
                }
            };
            decided = Some((reading, decision));
            let value = match decision {
                Decision::Put => Some(&new[..]),
                Decision::Delete if reading.found => None,
                Decision::Delete | Decision::Keep => return Ok(reading.unchanged(self)),
            };
            // What changes a row leaves it when it expires; a new one has the object's time to live.
            let expires_at = match reading.found {
                true => reading.expires_at,
                false => default_expiry(time_to_live_ms, || self.now_ms()),
            };
            self.check_expiring(value.unwrap_or_default(), expires_at)?;
            self.check_writable()?;
            let change = key.change(value, expires_at);
            self.note_lifetime(&change);
            self.wait_while_behind(&mut is_slowed, || self.is_ordered(change.object));
            match self.attempt_single(&change, key.life, Some(&reading), &mut learnt) {
                Ok(committed) => {
                    self.note_lifetime(&change);
                    return Ok(self.note_single(committed));
                }
                Err(Setback::Conflict | Setback::NotWritable | Setback::Cold) => {
                    conflicts += 1;
                    self.learn_whose(&change, &mut learnt)?;
                    let is_long_record = reading.found && reading.version > 0 && old.len() >= LONG_BYTES;
                    if conflicts >= CONFLICTS_MAX && is_long_record {
                        closed = self.hold_newest().0;
                        self.release_version(closed);
                    }
                    backoff.pause();
                }
                Err(Setback::NoLogSpace) => self.wait_for_space(change.demand(), change.purpose())?,
            }
        }
    }

    /// Reads what is to be changed, and learns by what that stands if it has settled.
    fn read_to_change(
        &self,
        key: SingleKey<'_>,
        others_are_there: bool,
        out: &mut Vec<u8>,
        learnt: &mut Learnt,
    ) -> Result<Reading> {
        let tree = &self.settled.tree;
        // If it is the newest before and afterwards it was so throughout. Who holds it writes a count that all share: not before others turn out to be in the way.
        let root = (others_are_there && self.may_be_settled(key.object)).then(|| tree.root());
        let reading = match others_are_there {
            false => self.read_newest(key, out)?,
            true => self.read_newest_patiently(key, out)?,
        };
        let root = root.filter(|root| reading.is_settled() && tree.is_newest(root));
        learnt.settled = root.map(|root| Lookup::of_row(&root, reading.expires_at));
        Ok(reading)
    }

    /// Deletes one key if its value, which is not looked at, has expired by now, and there is log space, or it is waited for.
    pub(crate) fn expire_single(self: &Arc<Self>, key: SingleKey<'_>, waits: bool) -> Result<Expired> {
        with_scratch(|Scratch { old, .. }| {
            loop {
                let reading = match self.outline_at_once(key, &Moment::default()) {
                    Some((reading, _)) => reading,
                    None => self.read_newest(key, old)?,
                };
                if !reading.stored || !self.is_expired_now(reading.expires_at) {
                    return Ok(Expired::Stays(reading.expires_at));
                }
                self.check_writable()?;
                let change = key.change(None, NEVER);
                match self.attempt_single(&change, key.life, Some(&reading), &mut Learnt::default()) {
                    Ok(committed) => {
                        self.note_single(committed);
                        return Ok(Expired::Deleted);
                    }
                    Err(Setback::NoLogSpace) if waits => {
                        self.wait_for_space(change.demand(), change.purpose())?;
                    }
                    Err(Setback::NoLogSpace) => return Ok(Expired::NoLogSpace),
                    Err(_) => {
                        key.life.check()?;
                        crate::sync::thread::yield_now();
                    }
                }
            }
        })
    }

    /// Says to the object when a row of it expires, if it does: before it is there, and afterwards.
    #[inline]
    fn note_lifetime(&self, change: &Change<'_>) {
        if change.expires_at != NEVER {
            self.object(change.object).lifetimes.note(change.expires_at);
        }
    }

    /// What follows a commit once nothing is pinned.
    #[inline]
    fn note_single(&self, committed: SingleCommit) -> SingleCommit {
        self.hardening.note_commit();
        if committed.grow {
            self.index.grow(1);
        }
        committed
    }

    /// One attempt; `read` is what must still hold. A part of each caller, so that what is decided by having read, or not, is decided when it is compiled.
    #[inline(always)]
    fn attempt_single(
        &self,
        change: &Change<'_>,
        life: &Life,
        read: Option<&Reading>,
        learnt: &mut Learnt,
    ) -> Result<SingleCommit, Setback> {
        let pin = epoch::pin_for_commit();
        // Looked at again under the pin; see `commit`.
        if self.check_writable().is_err() {
            return Err(Setback::NotWritable);
        }
        let early = planted(Bug::ClockBeforeLocks).then(|| self.clock.now());
        let bucket = self.index.lock(change.hash).ok_or(Setback::Conflict)?;
        let mut space = None;
        let current = match read {
            Some(reading) if self.still_holds(bucket, change, reading, learnt) => reading.current(),
            Some(_) => {
                self.index.unlock_unchanged(bucket);
                return Err(Setback::Conflict);
            }
            None => {
                let candidate = self.fetch_candidate(bucket, change.hash, identity_bytes(change.key));
                // Probably it is needed, and this can be found out while the record is fetched.
                space = self.log.space_ahead(change.log_bytes(), candidate.address);
                let found = match self.put_at(candidate, change) {
                    Some(current) => Some(current),
                    None => self.locate(bucket, (*change, true), learnt),
                };
                let Some(current) = found else {
                    self.index.unlock_unchanged(bucket);
                    return Err(Setback::Cold);
                };
                current
            }
        };
        if value_is_absent(change, &current) {
            self.index.unlock_unchanged(bucket);
            let unchanged = SingleCommit { version: current.version, existed: false, grow: false };
            return if life.lives() { Ok(unchanged) } else { Err(Setback::Conflict) };
        }
        self.carry_out(&pin, bucket, (change, &current, life), space, early)
    }

    /// Writes a key, whose bucket is held until then, over what is there; perhaps into this space.
    #[inline(always)]
    fn carry_out(
        &self,
        pin: &Pin,
        bucket: Bucket,
        (change, current, life): (&Change<'_>, &Current, &Life),
        space: Option<Space<'_>>,
        early: Option<u64>,
    ) -> Result<SingleCommit, Setback> {
        // Before the version, too: for who begins in a newer one, and does not find it, it has expired as well.
        let existed = change.value.is_none() && !Moment::default().is_past(current.expires_at, self);
        let lived = planted(Bug::DropLookedForEarly) && life.lives();
        // Before the clock is read: a transaction that validates a range without this key is then not of a newer
        // version.
        let (version, target);
        if !current.has_record() {
            // Early as well: whoever goes on with a handle that leads nowhere would fill the log with padding.
            if !life.lives() {
                self.index.unlock_unchanged(bucket);
                return Err(Setback::Conflict);
            }
            target = self.log.reserve(change.log_bytes(), change.purpose(), NO_ADDRESS);
            if target.is_some() {
                let object = self.object(change.object);
                object.admit(pin, change.key);
                object.break_gap(pin, change.key, |_| false);
            }
            version = early.unwrap_or_else(|| self.clock.join());
            // Behind the clock, see `life`.
            if !lived && !life.lives() {
                self.give_up_new(pin, bucket, change, target);
                return Err(Setback::Conflict);
            }
        } else {
            if current.may_be_deleted() && change.value.is_some() {
                self.object(change.object).break_gap(pin, change.key, |_| false);
            }
            version = early.unwrap_or_else(|| self.clock.join());
            if !lived && !life.lives() {
                self.index.unlock_unchanged(bucket);
                return Err(Setback::Conflict);
            }
            target = match self.place(change, current, version) {
                Place::Nowhere => Some(NO_ADDRESS),
                Place::There(address) => Some(address),
                Place::New(bytes) => {
                    let space = space.filter(|space| space.start() > current.address);
                    match space.and_then(|space| space.take(bytes)) {
                        Some(start) => Some(start),
                        None => self.log.reserve(bytes, change.purpose(), current.address),
                    }
                }
            };
        }
        let Some(target) = target else {
            self.index.unlock_unchanged(bucket);
            return Err(Setback::NoLogSpace);
        };
        let grow = self.install(bucket, change, current, target, version);
        self.index.unlock_changed(bucket);
        Ok(SingleCommit { version, existed, grow })
    }

    /// True if a key is as it was read, and its record where it was. The caller holds its bucket.
    #[inline]
    fn still_holds(
        &self,
        bucket: Bucket,
        change: &Change<'_>,
        reading: &Reading,
        learnt: &mut Learnt,
    ) -> bool {
        let is_unchanged = bucket == reading.bucket
            && (planted(Bug::SingleNotValidated)
                || self.index.unchanged_under_own_lock(bucket, reading.stamp));
        let has_record = || self.index.refers_to(bucket, change.hash, reading.address);
        match is_unchanged {
            // What has settled meanwhile, or moved, is unchanged, but its record is not the newest any more.
            true => reading.address == NO_ADDRESS || has_record(),
            // Others' keys have changed, and perhaps time and again before a long value is copied and something made of it.
            false if reading.is_settled() => self.is_still_settled(bucket, change, learnt),
            false => reading.is_for_good && has_record(),
        }
    }
}

impl Reading {
    /// The record that was read, for who has locked its bucket and found it unchanged.
    #[inline]
    fn current(&self) -> Current {
        Current {
            address: self.address,
            slot: self.slot,
            version: self.version,
            exists: self.stored,
            expires_at: self.expires_at,
        }
    }

    /// The outcome of an operation that has only read: no older than who wrote what it has read, be it a row that has settled.
    #[inline]
    fn unchanged(&self, engine: &Engine) -> SingleCommit {
        SingleCommit { version: self.newest_version(engine), existed: false, grow: false }
    }
}

/// A delete of what is not there changes nothing.
#[inline]
fn value_is_absent(change: &Change<'_>, current: &Current) -> bool {
    change.value.is_none() && !current.exists
}

#[cfg(test)]
#[path = "single_tests.rs"]
mod tests;
