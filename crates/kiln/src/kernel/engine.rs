//! The engine: what all transactions of one database share.

use std::sync::Arc;
use std::time::Duration;

use super::checkpoint::Checkpoints;
use super::clock::Clock;
use super::cold::Cold;
use super::compaction::Compaction;
use super::expiry::Expiring;
use super::handle::Handle;
use super::hardening::Hardening;
use super::notes::Notes;
use super::object::Objects;
use super::pending_read::Reader;
use super::recovery::VERSIONS_SKIPPED;
use super::removal::Removal;
use super::session::Sessions;
use super::settled::Settled;
use super::shares::Shares;
use super::snapshot::Snapshots;
use super::sweep::Graves;
use super::warm::Warm;
use super::warm_up::WarmUp;
use super::write_counts::WriteCounts;
use crate::device::{DeviceLock, Process};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::hash_index::{self, HashIndex};
use crate::storage::leaf_images::LeafImages;
use crate::storage::liveness::Liveness;
use crate::storage::log::{Demand, Log, Purpose};
use crate::storage::record::{Address, COMMITS_END, EXPIRY_BYTES, NEVER};
use crate::storage::record_reader::{Cursor, RecordReader};
use crate::storage::segments::Segments;
use crate::storage::superblock::SuperblockFile;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, OnceLock};

/// What one transaction, and all of them together, may take.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) key_bytes: usize,
    pub(crate) value_bytes: usize,
    pub(crate) unhardened_bytes: u64,
    pub(crate) transaction_entries: usize,
    pub(crate) transaction_bytes: usize,
    pub(crate) open_transactions: usize,
    pub(crate) transaction_age: Duration,
}

/// See the module's documentation. The kernel's modules add to it what they are about: reading, committing,
/// hardening, sweeping.
pub(crate) struct Engine {
    pub(crate) limits: Limits,
    /// How committers wait, if somebody has said.
    pub(crate) waiting: OnceLock<Waiting>,
    pub(crate) hash_seed: u64,
    /// What tells the database's files from another one's.
    pub(crate) database: u128,
    pub(crate) log: Log,
    pub(crate) index: HashIndex,
    pub(crate) cold: Cold,
    pub(crate) shares: Shares,
    pub(crate) leaf_images: LeafImages,
    pub(crate) notes: Notes,
    pub(crate) reader: Reader,
    pub(crate) settled: Settled,
    pub(crate) liveness: Mutex<Liveness>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) superblock: Mutex<SuperblockFile>,
    pub(crate) clock: Clock,
    pub(crate) objects: Objects,
    pub(crate) hardening: Hardening,
    pub(crate) snapshots: Snapshots,
    pub(crate) sessions: Sessions,
    pub(crate) write_counts: WriteCounts,
    pub(crate) graves: Graves,
    pub(crate) compaction: Compaction,
    pub(crate) warm: Warm,
    pub(crate) warm_up: WarmUp,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) expiring: Expiring,
    pub(crate) removal: Removal,
    /// See [`Engine::forgotten`].
    pub(crate) forgotten: AtomicU64,
    /// Where the log went on when the database was opened.
    pub(crate) opened_end: Address,
    /// Of some of what earlier crashes had taken only seals told then.
    pub(crate) had_unrecorded_losses: bool,
    pub(crate) open_transactions: OpenTransactions,
    /// Set by the watcher while hardening is behind the window, or compaction or settling far behind its bound: commits wait.
    pub(crate) behind: AtomicBool,
    pub(crate) closed: AtomicBool,
    /// The one that has opened the database. Another one that was forked has no background threads, and no right to the files.
    pub(crate) process: Process,
    /// Keeps everybody else out until the database is closed.
    pub(crate) lock: Mutex<Option<Box<dyn DeviceLock>>>,
}

/// How many transactions begun by hand are still open. On a line of its own: who begins or ends one writes it, and every operation reads what would be beside it.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct OpenTransactions(pub(crate) AtomicU64);

impl std::fmt::Debug for Engine {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Engine").field("version", &self.clock.now()).finish_non_exhaustive()
    }
}

/// Has a thread of the caller's wait: calls what waits, once.
pub(crate) type Waiting = fn(&mut dyn FnMut());

impl Engine {
    #[inline]
    pub(crate) fn hash(&self, object: u32, key: &[u8]) -> u64 {
        hash_index::hash_of(self.hash_seed, object, key)
    }

    /// A reader of what is durable of the log, from `cursor` on.
    pub(crate) fn log_reader<'a>(&self, segments: &'a Segments, cursor: Cursor) -> RecordReader<'a> {
        RecordReader::new(segments, self.database, cursor)
    }

    /// No record of a newer version has vanished from the indexes, be it a tombstone that was forgotten or a row that has settled. A
    /// transaction that began later may take what it finds of a key without a record as having been so ever since it began.
    #[inline]
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::SeqCst)
    }

    /// Durable records tell all that earlier crashes took: where an opening wrote some of them, what hardens first has them. Until then only seals may tell
    /// it: nothing settles, nothing is dropped, and there is no checkpoint.
    #[inline]
    pub(crate) fn losses_are_recorded(&self) -> bool {
        !self.had_unrecorded_losses || self.log.hardened() != self.opened_end
    }

    /// So many versions were given out since the last seal that the clock is not to go much further without one: what it jumps by after a crash
    /// must be more.
    #[inline]
    pub(crate) fn is_far_ahead(&self) -> bool {
        self.clock.versions_since(self.hardening.horizon.local()) > VERSIONS_SKIPPED / 2
    }

    /// Fails if the database was closed.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(Error::closed()) } else { Ok(()) }
    }

    /// Fails if the database was closed or has lost commits.
    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        match self.hardening.horizon.failure() {
            None => Ok(()),
            Some(lost) => Err(lost.error()),
        }
    }

    /// Checks that a handle is this database's and that a key is not too long; gives the object's number.
    #[inline(always)]
    pub(crate) fn check_key(self: &Arc<Self>, handle: &Handle, key: &[u8]) -> Result<u32> {
        if !Arc::ptr_eq(&handle.engine, self) {
            return Err(foreign(handle.life.name()));
        }
        self.check_key_bytes(key)?;
        Ok(handle.id)
    }

    #[inline(always)]
    pub(crate) fn check_key_bytes(&self, key: &[u8]) -> Result<()> {
        match key.len() <= self.limits.key_bytes {
            true => Ok(()),
            false => Err(too_long("key", key.len(), self.limits.key_bytes)),
        }
    }

    #[inline(always)]
    pub(crate) fn check_value(&self, value: &[u8]) -> Result<()> {
        match value.len() <= self.limits.value_bytes {
            true => Ok(()),
            false => Err(too_long("value", value.len(), self.limits.value_bytes)),
        }
    }

    /// As [`Self::check_value`], of a row that expires then, if it does; says so to the superblock, the first time.
    #[inline(always)]
    pub(crate) fn check_expiring(&self, value: &[u8], expires_at: u64) -> Result<()> {
        self.check_value(value)?;
        if expires_at == NEVER { Ok(()) } else { self.check_that_expires(value) }
    }

    #[cold]
    fn check_that_expires(&self, value: &[u8]) -> Result<()> {
        let most = self.limits.value_bytes - EXPIRY_BYTES;
        if value.len() > most {
            return Err(too_long("value that expires", value.len(), most));
        }
        self.begin_expiring()
    }

    /// Recomputes how far reservations may go.
    pub(crate) fn update_limit(&self) {
        self.log.set_limit(self.segments.prepared_end(), self.hardening.unhardened_bytes_max());
    }

    /// Prepares segments until records of `bytes` together, wherever the tail is, and another whole segment fit before the log's reserve.
    ///
    /// # Errors
    /// `NoSpace` if the disk is full; `Limit` once 280 TB of log were written since the database was created.
    pub(crate) fn prepare_ahead(&self, bytes: u64) -> Result<()> {
        let ahead = self.log.span_max(bytes) + self.log.segment_bytes() + self.log.reserve_bytes();
        if self.log.tail() + ahead > COMMITS_END {
            return Err(addresses_are_used_up());
        }
        while self.segments.prepared_end() < self.log.tail() + ahead {
            self.segments.prepare_next(self.hardening.writes_are_small())?;
            self.update_limit();
        }
        Ok(())
    }

    /// As [`Self::prepare_ahead`] for nothing, also to find out whether a disk that was full has space by now: as long as enough is prepared nobody else
    /// tries.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn look_for_space(&self) -> Result<()> {
        self.prepare_ahead(0)?;
        if self.segments.disk_is_full() {
            self.segments.prepare_next(self.hardening.writes_are_small())?;
            self.update_limit();
        }
        Ok(())
    }

    /// Called by a committer for which the log had no space: makes some, or waits for it.
    ///
    /// # Errors
    /// `NoSpace` if the disk is full, and nothing can be dropped either.
    pub(crate) fn wait_for_space(self: &Arc<Self>, demand: Demand, purpose: Purpose) -> Result<()> {
        self.wait(|| self.find_space(demand, purpose))
    }

    /// Has a committer do what may take as long as the disk does: the caller may have other work for the thread meanwhile.
    pub(crate) fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        let (mut wait, mut result) = (Some(wait), None);
        if let Some(waiting) = self.waiting.get() {
            waiting(&mut || result = wait.take().map(|wait| wait()));
        }
        match wait {
            Some(wait) => wait(),
            None => result.unwrap_or_else(|| unreachable!("what was waited for has a result")),
        }
    }

    fn find_space(self: &Arc<Self>, demand: Demand, purpose: Purpose) -> Result<()> {
        /// So often it is looked anew what can be dropped; then only as more has hardened.
        const LOOKS: usize = 3;
        self.check_writable()?;
        if self.keep_warm_in_turn(demand, purpose) || self.make_room_beside_hardening(demand, purpose) {
            return Ok(());
        }
        self.hardening.want_space(demand.bytes);
        let mut settlings = self.settlings();
        let mut prepared = self.prepare_ahead(demand.bytes);
        self.harden_or_wait();
        // What somebody else's sweep wrote anew makes room, too, once it has hardened.
        let mut once_more = true;
        let mut looks = 0..LOOKS;
        loop {
            self.check_writable()?;
            // Where memory is all that is missing there will be some: that is no full disk.
            if prepared.is_ok() || self.log.has_disk_space(demand, purpose) {
                return Ok(());
            }
            if looks.next().is_some() {
                // The last look may have been while the disk was not full, or beside a hardening; nothing more may ever harden.
                self.graves.look_again();
            }
            let more = self.sweep_in_turn();
            prepared = self.prepare_ahead(demand.bytes);
            match prepared {
                Err(_) if more || std::mem::take(&mut once_more) => self.harden_or_wait(),
                // What has settled can be dropped.
                Err(_) if self.settle_for_room() || self.wait_for_settling(&mut settlings) => {
                    looks = 0..LOOKS
                }
                Err(_) if !self.log.has_disk_space(demand, purpose) => {
                    // Who waited may have waited for the database to be closed.
                    self.check_writable()?;
                    return prepared;
                }
                _ => {}
            }
        }
    }

    /// While somebody hardens, which takes as long as the disk does, what is durable can leave memory all the same. True if there is space now. Where
    /// nobody does it is time to harden: who only evicted then would have the log get ahead of the sweep.
    fn make_room_beside_hardening(&self, demand: Demand, purpose: Purpose) -> bool {
        if !self.is_hardening() {
            return false;
        }
        self.make_room(0);
        self.prepare_ahead(demand.bytes).is_ok() && self.log.has_space(demand, purpose)
    }
}

#[cold]
fn addresses_are_used_up() -> Error {
    let what = "the database has written as much log as it has addresses for; export its data, and import them into a new one";
    Error::new(ErrorKind::Limit, what)
}

#[cold]
fn foreign(name: &str) -> Error {
    Error::input(format!("{name:?} belongs to another database"))
}

#[cold]
fn too_long(what: &str, bytes: usize, most: usize) -> Error {
    Error::input(format!("a {what} of {bytes} bytes is too long; at most {most} are allowed"))
}
