//! Transactions: buffered writes, validated reads.

pub(crate) mod changes;
mod dropping;
mod expiring;
mod outline;
mod refusals;
mod run;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;

use self::refusals::{has_failed, is_foreign_watch, is_nested, is_too_old, too_many_bytes, too_many_entries};
pub(crate) use self::run::{run, try_run};
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::batch::GROUP_KEYS;
use crate::kernel::commit::CommitScratch;
use crate::kernel::engine::Engine;
use crate::kernel::expiry::Moment;
use crate::kernel::handle::Object;
use crate::kernel::object::RangeRead;
use crate::kernel::read::Reading;
use crate::kernel::read_set::{ReadEntry, ReadSet};
use crate::kernel::receipt::Commit;
use crate::kernel::snapshot::Held;
use crate::kernel::write_set::{Write, WriteSet};
use crate::planted::{Bug, planted};
use crate::storage::hash_index::{Bucket, Stamp};
use crate::storage::ordered_index::{GapRead, Joined, LeafRead};
use crate::storage::record::NEVER;
use crate::sync::atomic::Ordering;
use crate::sync::{Instant, thread_local};

/// What a transaction may see of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// As if transactions ran one after the other, in an order that agrees with real time. The default.
    #[default]
    Serializable,
    /// Reads see the state when the transaction began; of two that write the same key the first to commit
    /// wins. Reads never conflict, but write skew is possible. A row that was moved since then, to make space or to
    /// stay in memory, counts as written.
    Snapshot,
}

/// A key's state at some moment, for optimistic checks across transactions; see
/// [`Kiln::watch`](crate::Kiln::watch). It is of use as long as the database stays open that gave it.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// Of the index that has the bucket.
    pub(crate) index: u64,
    pub(crate) object: u32,
    pub(crate) bucket: Bucket,
    pub(crate) stamp: Stamp,
}

/// Everything a transaction collects; kept by the thread from one transaction to the next.
#[derive(Default)]
struct Buffers {
    reads: ReadSet,
    writes: WriteSet,
    scratch: CommitScratch,
    value: Vec<u8>,
    /// What an operation's closure makes of `value`.
    new_value: Vec<u8>,
    /// Every record read so far was current together with all the others at some moment since this version.
    begin: u64,
    /// The newest version among the records read.
    read_version: u64,
    /// Reads when it was last ticked for the set.
    validated: usize,
    /// How often it was validated since it was last ticked for it.
    validations: usize,
    /// Among the reads is a watch, of which nobody knows whether it held together with those before it.
    has_watch: bool,
    /// As of which rows have expired, or not.
    moment: Moment,
    /// When the first of the rows expires that were there for it.
    first_to_expire: Option<u64>,
}

impl Buffers {
    /// One huge transaction must not keep its memory for ever.
    fn is_large(&self) -> bool {
        const ENTRIES_KEPT: usize = 1 << 12;
        const BYTES_KEPT: usize = 1 << 20;
        self.reads.len() + self.writes.len() > ENTRIES_KEPT
            || self.value.capacity() + self.new_value.capacity() > BYTES_KEPT
    }
}

thread_local! {
    // Boxed, so that beginning a transaction moves a pointer.
    #[allow(clippy::vec_box)]
    static POOL: RefCell<Vec<Box<Buffers>>> = const { RefCell::new(Vec::new()) };
}
const POOL_MAX: usize = 4;

/// A transaction. Its writes are seen by nobody else until it commits, and dropping it aborts it.
///
/// An operation that fails with [`ErrorKind::Conflict`] or [`ErrorKind::Limit`] ends the transaction: all later
/// operations fail too, with [`ErrorKind::Aborted`], and [`Self::commit`] after a conflict with that. No transaction, not even one that will fail, sees an inconsistent state.
pub struct Transaction<'db> {
    engine: &'db Arc<Engine>,
    /// There until the transaction is dropped.
    buffers: RefCell<Option<Box<Buffers>>>,
    /// The registered snapshot of a snapshot-isolation transaction.
    snapshot: Option<Held>,
    /// It is held for this transaction, which may still read.
    holds_snapshot: Cell<bool>,
    /// Begun by hand: counted, and limited in age.
    began: Option<Instant>,
    failed: Cell<bool>,
    /// An operation has failed with a conflict, whether or not whoever called it has looked.
    has_conflicted: Cell<bool>,
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Transaction").field("snapshot", &self.snapshot).finish_non_exhaustive()
    }
}

impl<'db> Transaction<'db> {
    pub(crate) fn begin(
        engine: &'db Arc<Engine>,
        isolation: Isolation,
        by_hand: bool,
    ) -> Result<Transaction<'db>> {
        let began = match by_hand {
            false => None,
            true => {
                let open = engine.open_transactions.0.fetch_add(1, Ordering::Relaxed);
                if open >= engine.limits.open_transactions as u64 {
                    engine.open_transactions.0.fetch_sub(1, Ordering::Relaxed);
                    return Err(Error::new(
                        ErrorKind::Limit,
                        format!(
                            "{open} transactions are open, which is the limit; end some, or raise open_transactions"
                        ),
                    ));
                }
                Some(Instant::now())
            }
        };
        let mut buffers = POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten().unwrap_or_default();
        let snapshot = (isolation == Isolation::Snapshot).then(|| {
            let (held, moment) = engine.open_snapshot();
            buffers.moment = moment;
            held
        });
        buffers.begin = engine.clock.now();
        Ok(Transaction {
            engine,
            buffers: RefCell::new(Some(buffers)),
            holds_snapshot: Cell::new(snapshot.is_some()),
            snapshot,
            began,
            failed: Cell::new(false),
            has_conflicted: Cell::new(false),
        })
    }

    #[inline]
    fn open_buffers(&self) -> Result<RefMut<'_, Buffers>> {
        if self.failed.get() {
            return Err(has_failed());
        }
        if let Some(began) = self.began
            && began.elapsed() > self.engine.limits.transaction_age
        {
            return Err(self.fail(is_too_old()));
        }
        self.borrow_buffers()
    }

    /// As [`Self::open_buffers`], without a look at whether the transaction may go on.
    #[inline]
    fn borrow_buffers(&self) -> Result<RefMut<'_, Buffers>> {
        let buffers = self.buffers.try_borrow_mut().map_err(|_| is_nested())?;
        Ok(RefMut::map(buffers, |buffers| {
            buffers.as_deref_mut().unwrap_or_else(|| unreachable!("not dropped yet"))
        }))
    }

    /// Ends the transaction: whatever it is asked from now on it refuses, and so it needs no snapshot.
    fn fail(&self, error: Error) -> Error {
        self.failed.set(true);
        self.has_conflicted.set(error.is_conflict());
        self.release_snapshot();
        error
    }

    #[inline]
    fn release_snapshot(&self) {
        if self.holds_snapshot.replace(false)
            && let Some(snapshot) = &self.snapshot
        {
            self.engine.release_snapshot(snapshot);
        }
    }

    #[inline]
    pub(crate) fn check<O: Object>(&self, object: &O, key: &[u8]) -> Result<u32> {
        self.engine.check_key(object.handle(), key)
    }

    /// The value of a key, or `None` if there is none.
    ///
    /// # Errors
    /// `Conflict` if another transaction is in the way; `Limit`; `Corrupted` or `Io` if the record is on disk and
    /// cannot be read; `Input` if the key is too long, or the object another database's; `NotFound` if the object was dropped; `Aborted` if the transaction has failed.
    pub fn get<O: Object>(&self, object: &O, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(object, key, &mut value)?.then_some(value))
    }

    /// Reads a key's value into a buffer, which is cleared first and keeps its memory; false if there is none.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn get_into<O: Object>(
        &self,
        object: &O,
        key: impl AsRef<[u8]>,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        let id = self.check(object, key.as_ref())?;
        self.get_key(id, key.as_ref(), value)
    }

    pub(crate) fn get_key(&self, object: u32, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.get_hashed(object, self.engine.hash(object, key), key, value)
    }

    /// As [`Self::get_key`], for who knows the key's hash.
    pub(crate) fn get_hashed(&self, object: u32, hash: u64, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let mut buffers = self.open_buffers()?;
        Ok(self.read(&mut buffers, (object, hash, key), value)?.is_some())
    }

    /// When the row expires, if it is there and does.
    fn read(
        &self,
        buffers: &mut Buffers,
        (object, hash, key): (u32, u64, &[u8]),
        value: &mut Vec<u8>,
    ) -> Result<Option<u64>> {
        if let Some(written) = self.find_written(buffers, (object, hash, key)) {
            value.clear();
            value.extend_from_slice(written.map_or(&[][..], |write| buffers.writes.value(&write)));
            return Ok(written.map(|write| write.expires_at));
        }
        if let Some(snapshot) = self.snapshot_version() {
            self.check_seen(object, snapshot)?;
            let reading = self.engine.read_as_of(object, key, hash, snapshot, &buffers.moment, value)?;
            let version = match reading.is_settled() {
                true => self.newest_settled(),
                false => reading.version,
            };
            buffers.read_version = buffers.read_version.max(version);
            if !reading.found {
                value.clear();
            }
            return Ok(reading.found.then_some(reading.expires_at));
        }
        let reading = self.engine.read_current(object, key, hash, &buffers.moment, value);
        // Looked at afterwards, see `life`.
        self.note_use(buffers, object)?;
        let Some(reading) = reading? else { return Err(self.fail(Error::conflict())) };
        self.note_reading(buffers, &reading)?;
        if !reading.found {
            value.clear();
        }
        Ok(reading.found.then_some(reading.expires_at))
    }

    /// What the transaction itself has written of a key: `Some(None)` if that is a deletion, or a row that has expired.
    #[inline(always)]
    fn find_written(
        &self,
        buffers: &mut Buffers,
        (object, hash, key): (u32, u64, &[u8]),
    ) -> Option<Option<Write>> {
        let write = *buffers.writes.find(object, hash, key)?;
        let is_there = !write.delete && !buffers.moment.is_past(write.expires_at, self.engine);
        if is_there {
            buffers.note_row(write.expires_at);
        }
        Some(is_there.then_some(write))
    }

    /// The transaction depends on what was read of a key's newest record, which must have been current together with all that it has read.
    #[inline(always)]
    fn note_reading(&self, buffers: &mut Buffers, reading: &Reading) -> Result<()> {
        buffers.read_version = buffers.read_version.max(reading.newest_version(self.engine));
        buffers.reads.entries.push(ReadEntry { bucket: reading.bucket, stamp: reading.stamp });
        self.check_entries(buffers)?;
        if reading.found {
            buffers.note_row(reading.expires_at);
        }
        self.keep_consistent(buffers, reading.since(self.engine))
    }

    /// The version as of which it reads, under snapshot isolation.
    pub(crate) fn snapshot_version(&self) -> Option<u64> {
        self.snapshot.as_ref().map(|held| held.version)
    }

    /// No settled row that this transaction has found so far is of a newer version.
    fn newest_settled(&self) -> u64 {
        let forgotten = self.engine.forgotten();
        self.snapshot_version().map_or(forgotten, |snapshot| snapshot.min(forgotten))
    }

    /// Opacity: what was written in a version that began after this transaction may be newer than what was read
    /// before, so everything read so far must still hold, at a time at which that was written.
    fn keep_consistent(&self, buffers: &mut Buffers, newest: u64) -> Result<()> {
        let begin = buffers.begin + u64::from(planted(Bug::OpacityOffByOne));
        if newest < begin || planted(Bug::OpacityForgotten) {
            return Ok(());
        }
        // An object is one of them, by being there: that of the one read was looked at behind it.
        if buffers.reads.len() <= 1 && buffers.reads.objects.len() <= 1 {
            return self.move_on(buffers);
        }
        // Validating the whole set at every read would be quadratic. A tick makes what is there now old: a writer
        // of an older version had locked what it writes before the tick, so it shows in this validation. Not every read adds to
        // the set: a leaf that is read again does not.
        const TICK_EVERY: usize = 32;
        buffers.validations += 1;
        let is_due =
            buffers.reads.len() >= buffers.validated + TICK_EVERY || buffers.validations >= TICK_EVERY;
        if is_due && !self.engine.is_far_ahead() {
            buffers.begin = self.engine.clock.tick();
            buffers.validated = buffers.reads.len();
            buffers.validations = 0;
        }
        self.move_on(buffers)?;
        match self.engine.reads_hold(&buffers.reads, &[]) {
            true => Ok(()),
            false => Err(self.fail(Error::conflict())),
        }
    }

    /// To be called after each entry.
    #[inline]
    fn check_entries(&self, buffers: &Buffers) -> Result<()> {
        self.check_count(buffers.reads.len() + buffers.writes.len())
    }

    #[inline]
    fn check_count(&self, entries: usize) -> Result<()> {
        let most = self.engine.limits.transaction_entries;
        match entries <= most {
            true => Ok(()),
            false => Err(self.fail(too_many_entries(most))),
        }
    }

    /// Whether so many writes may take so much log.
    #[inline]
    fn check_bytes(&self, writes: usize, bytes: usize) -> Result<()> {
        let most = self.engine.limits.transaction_bytes;
        // One write alone always fits, whatever the limit.
        match bytes <= most || writes <= 1 {
            true => Ok(()),
            false => Err(self.fail(too_many_bytes(bytes, most))),
        }
    }

    /// Registers a leaf of an object's ordered index as read.
    pub(crate) fn note_range(&self, object: u32, leaf: LeafRead) -> Result<()> {
        let mut buffers = self.open_buffers()?;
        if self.engine.may_be_settled(object) {
            buffers.read_version = buffers.read_version.max(self.newest_settled());
        }
        if self.snapshot.is_some() {
            return Ok(());
        }
        self.note_leaf(&mut buffers, (object, leaf), None)
    }

    /// The same of a gap.
    pub(crate) fn note_gap(&self, object: u32, gap: GapRead) -> Result<()> {
        let mut buffers = self.open_buffers()?;
        buffers.read_version = buffers.read_version.max(gap.version);
        match self.snapshot.is_some() {
            true => Ok(()),
            false => self.note_leaf(&mut buffers, (object, gap.read), Some(gap.version)),
        }
    }

    /// Where it has registered a gap that is a part of another one now, goes on with that.
    pub(crate) fn note_joined(&self, object: u32, Joined { before, after }: Joined) -> Result<()> {
        let mut buffers = self.open_buffers()?;
        buffers.reads.go_on_with(RangeRead { object, leaf: before }, RangeRead { object, leaf: after });
        Ok(())
    }

    /// What was read there is of this version at the newest, or, if that is not known, of that of what has settled.
    fn note_leaf(
        &self,
        buffers: &mut Buffers,
        (object, leaf): (u32, LeafRead),
        newest: Option<u64>,
    ) -> Result<()> {
        self.note_use(buffers, object)?;
        buffers.reads.note_range(RangeRead { object, leaf });
        self.check_entries(buffers)?;
        let newest = newest.unwrap_or_else(|| self.engine.forgotten());
        self.keep_consistent(buffers, newest)
    }

    /// True as long as it has written nothing, and may go on.
    #[inline]
    pub(crate) fn has_written_nothing(&self) -> Result<bool> {
        if self.failed.get() {
            return Err(has_failed());
        }
        Ok(self.borrow_buffers()?.writes.is_empty())
    }

    /// The next key of `object` within the bounds that this transaction itself has written.
    pub(crate) fn next_written(
        &self,
        object: u32,
        bounds: (std::ops::Bound<&[u8]>, std::ops::Bound<&[u8]>),
        reverse: bool,
    ) -> Result<Option<Vec<u8>>> {
        // The age is looked at by whoever reads the row.
        if self.failed.get() {
            return Err(has_failed());
        }
        Ok(self.borrow_buffers()?.writes.next_key(object, bounds, reverse))
    }

    /// Says that these keys will be read soon, each by an operation of its own: their cache misses overlap then, and
    /// what is on disk of them is read at once, and waited for. The transaction reads nothing by it, and it has no effect but on speed; a few dozen keys at a time are enough.
    pub fn prefetch<O: Object, K: AsRef<[u8]>>(&self, object: &O, keys: &[K]) {
        self.engine.prefetch_keys(object.handle().id, keys);
    }

    /// The values of several keys, in the keys' order.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn multi_get<O: Object, K: AsRef<[u8]>>(
        &self,
        object: &O,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = Vec::with_capacity(keys.len());
        for group in keys.chunks(GROUP_KEYS) {
            self.prefetch(object, group);
            for key in group {
                values.push(self.get(object, key)?);
            }
        }
        Ok(values)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// `Input` if key or value is too long, or the object another database's; `Limit` if the transaction becomes too large, or is too old; `Conflict` if the object is just being dropped, or was since
    /// the transaction read; `NotFound` if it was dropped; `Aborted` if the transaction has failed; `Io` or `NoSpace` if the row is the database's first that expires, and the superblock, which has to say so,
    /// cannot be written, and `Aborted` then if the database is closed; under snapshot isolation, of an object that was dropped, `Io` or `Corrupted` if the catalog cannot be read.
    pub fn put<O: Object>(&self, object: &O, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        let id = self.check(object, key)?;
        let mut buffers = self.open_buffers()?;
        let expires_at = self.default_expiry(object);
        self.write(&mut buffers, (id, key), Some(value), expires_at)
    }

    pub(crate) fn put_key(&self, object: u32, key: &[u8], value: &[u8]) -> Result<()> {
        let mut buffers = self.open_buffers()?;
        self.write(&mut buffers, (object, key), Some(value), NEVER)
    }

    /// Deletes a key that has been read and has a value.
    pub(crate) fn delete_key(&self, object: u32, key: &[u8]) -> Result<()> {
        let mut buffers = self.open_buffers()?;
        self.write(&mut buffers, (object, key), None, NEVER)
    }

    fn write(
        &self,
        buffers: &mut Buffers,
        (object, key): (u32, &[u8]),
        value: Option<&[u8]>,
        expires_at: u64,
    ) -> Result<()> {
        self.engine.check_expiring(value.unwrap_or_default(), expires_at)?;
        self.note_write(buffers, object)?;
        let hash = self.engine.hash(object, key);
        self.engine.index.prefetch(hash);
        buffers.writes.set((object, hash, key), value, expires_at);
        self.check_entries(buffers)?;
        self.check_bytes(buffers.writes.len(), buffers.writes.log_bytes())
    }

    /// Whether a watched key is still as it was. If so, that becomes one of the transaction's reads: it commits
    /// only if the key stays so. A change of a key that shares the watched key's bucket counts too (it is rare).
    ///
    /// # Errors
    /// `Input` if the watch is of another database, or of an earlier opening of this one; `Limit`, or `Aborted` if the transaction has failed; `Conflict` if the object is just
    /// being dropped.
    pub fn require(&self, watch: &Watch) -> Result<bool> {
        let mut buffers = self.open_buffers()?;
        if watch.index != self.engine.index.number() {
            return Err(is_foreign_watch());
        }
        if !self.engine.index.unchanged(watch.bucket, watch.stamp) {
            return Ok(false);
        }
        if !self.note_watched(&mut buffers, watch.object)? {
            return Ok(false);
        }
        if !planted(Bug::WatchNotKept) {
            buffers.reads.entries.push(ReadEntry { bucket: watch.bucket, stamp: watch.stamp });
            buffers.has_watch = true;
        }
        self.check_entries(&buffers)?;
        Ok(true)
    }

    /// True if nothing has been written.
    pub(crate) fn is_read_only(&self) -> Result<bool> {
        Ok(self.open_buffers()?.writes.is_empty())
    }

    /// Commits: from here on everybody sees all of its writes. Waits for no device.
    ///
    /// # Errors
    /// `Conflict` if what it read has changed or somebody else is writing the same keys, or if one of its operations has failed with that, whoever looked: nothing was written.
    /// `NoSpace` if the disk is full, `Lost` if the database has failed, `Aborted` if the transaction has for another reason, or the database is closed, `Limit` if it is too old or the log has no addresses
    /// left; `Corrupted` or `Io` if a record that it replaces is on disk and cannot be read.
    pub fn commit(self) -> Result<Commit<'db, ()>> {
        // A range's items may have been passed over that were errors: run it again is what is to be done then, too.
        if self.has_conflicted.get() {
            return Err(Error::conflict());
        }
        let version = self.commit_now()?;
        Ok(Commit::new(self.engine, version, ()))
    }

    pub(crate) fn commit_now(&self) -> Result<u64> {
        let mut buffers = self.open_buffers()?;
        let Buffers { reads, writes, scratch, read_version, has_watch, .. } = &mut *buffers;
        // A transaction that only read has seen one consistent state (opacity) and needs no validation, but for what it has watched.
        let committed = match writes.is_empty() {
            true if *has_watch && !self.engine.reads_hold(reads, &[]) => Err(Error::conflict()),
            true => Ok(*read_version),
            false => self
                .engine
                .commit(writes, reads, scratch, self.snapshot_version())
                .map(|version| version.max(*read_version)),
        };
        // Committed or not, it cannot be used again.
        self.failed.set(true);
        committed
    }

    /// Gives up: nothing was written.
    pub fn abort(self) {}
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        self.release_snapshot();
        if self.began.is_some() {
            self.engine.open_transactions.0.fetch_sub(1, Ordering::Relaxed);
        }
        let Some(mut buffers) = self.buffers.get_mut().take() else { return };
        if buffers.is_large() {
            return;
        }
        buffers.reads.clear();
        buffers.writes.clear();
        buffers.read_version = 0;
        buffers.validated = 0;
        buffers.validations = 0;
        buffers.has_watch = false;
        buffers.moment.forget();
        buffers.first_to_expire = None;
        // A thread that ends has no pool any more.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < POOL_MAX {
                pool.push(buffers);
            }
        });
    }
}
