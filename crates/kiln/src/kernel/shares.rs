//! Shares: how the memory is divided between the log's tail, the read cache, and the pages of what has settled.
//!
//! ```text
//!  usual      |          log                |    caches     |     much is written, or nothing is read from disk
//!  reading    | log      |              caches              |     much more is read from disk than written
//!
//!  caches     |               records                       |     nothing has settled
//!             |      records         |         pages        |     something has
//! ```
//!
//! The log's memory holds what was written last. Where records are written anew again and again these are the ones that are asked
//! for, and a copy in the cache is out of date before it is asked for. Where they are mostly read they are no better than any others, and
//! the cache finds out which ones are. So what decides is whether many more records are read from disk than appended to the log,
//! and it is decided anew after each as many of either as an eighth of the memory holds.
//!
//! When the shares change the cache begins anew, and is filled by the reads that follow. (Rejected: a share that follows the load step by
//! step. Each step would cost the cache all that it holds.)

use super::cold::Cold;
use super::engine::Engine;
use crate::device::BLOCK_BYTES;
use crate::storage::log::Log;
use crate::storage::record::{Address, HEADER_BYTES};
use crate::storage::tree::Tree;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;

/// Bytes of the caches, as they are opened and at the most, and what pages may have of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheBytes {
    pub(crate) usual: u64,
    pub(crate) most: u64,
    pub(crate) pages_most: u64,
}

impl CacheBytes {
    /// Divides the memory of the caches: for records, and for pages of what has settled, if anything has.
    pub(crate) fn divide(self, bytes: u64, has_settled: bool) -> (u64, u64) {
        let pages = if has_settled { (bytes / 2).min(self.pages_most) } else { 0 };
        (bytes - pages, pages)
    }
}

/// See the module's documentation.
pub(crate) struct Shares {
    cache: CacheBytes,
    decided: Mutex<Decided>,
}

/// Where things were when the shares were looked at last.
#[derive(Clone, Copy)]
struct Decided {
    reads: u64,
    tail: Address,
    is_reading: bool,
    has_settled: bool,
}

impl Shares {
    /// For a log that goes on at `tail`.
    pub(crate) fn new(cache: CacheBytes, tail: Address, has_settled: bool) -> Shares {
        Shares { cache, decided: Mutex::new(Decided { reads: 0, tail, is_reading: false, has_settled }) }
    }
}

impl Decided {
    /// Whether the cache is to have the larger share, if there is enough to go by.
    fn decide(self, cold: &Cold, tree: &Tree, log: &Log) -> Option<Decided> {
        /// So many reads for each append make it reading. An update of what is on disk reads about two records itself, to find out
        /// whose they are: were that enough, a log that does not hold all that is updated would lose memory for it, hold less,
        /// and read more.
        const READS_TO_BEGIN: u64 = 8;
        const READS_TO_STAY: u64 = 4;
        /// A larger memory need not be read from disk as a whole first.
        const RECORDS_MAX: u64 = 1 << 16;
        let record_bytes = cold.record_bytes().max(HEADER_BYTES as u64);
        let (reads, tail) = (cold.reads.load(Ordering::Relaxed) + tree.cache_misses(), log.tail());
        let (read, appended) = (reads - self.reads, tail.saturating_sub(self.tail) / record_bytes);
        if read.max(appended) < (log.ring_bytes() / record_bytes / 8).min(RECORDS_MAX) {
            return None;
        }
        // Between the two it stays as it is.
        let reads_per_append = if self.is_reading { READS_TO_STAY } else { READS_TO_BEGIN };
        let is_reading = read > appended.saturating_mul(reads_per_append);
        Some(Decided { reads, tail, is_reading, ..self })
    }
}

impl Engine {
    /// Divides the memory anew if that is due. The caller is not pinned, and does not harden.
    pub(crate) fn share_memory(&self) {
        let (shares, log, tree) = (&self.shares, &self.log, &self.settled.tree);
        let Some(mut decided) = shares.decided.try_lock() else { return };
        let CacheBytes { usual, most, .. } = shares.cache;
        let mut next = decided.decide(&self.cold, tree, log).filter(|_| usual < most).unwrap_or(*decided);
        next.has_settled |= !tree.is_empty();
        let before = std::mem::replace(&mut *decided, next);
        let of = |decided: Decided| {
            shares.cache.divide(if decided.is_reading { most } else { usual }, decided.has_settled)
        };
        let (records, pages) = of(next);
        if (records, pages) == of(before) {
            return;
        }
        // Who gets less goes first.
        if next.is_reading && !before.is_reading {
            log.set_share(log.ring_bytes() + usual - most);
            self.make_room(0);
        }
        if pages < of(before).1 {
            tree.set_cache_bytes(pages);
        }
        self.cold.cache.divide(records, self.cold.record_bytes());
        tree.set_cache_bytes(pages);
        if before.is_reading && !next.is_reading {
            log.set_share(log.ring_bytes());
        }
    }

    /// How much of the ring's memory is to be free, if a committer wants so much.
    pub(super) fn free_bytes(&self, wanted: u64) -> u64 {
        let (ring, segment) = (self.log.ring_bytes(), self.log.segment_bytes());
        // The longest record always fits into a segment; a large transaction may want more, and besides its records it may
        // leave the rest of two segments behind.
        let wanted = if wanted > 0 { wanted + 2 * segment } else { 0 };
        (ring / 8).max(segment).max(wanted).min(ring)
    }

    /// Frees ring memory before commits have to wait for it, and what is beyond the log's share, but no more than that: what was
    /// evicted must be read from disk by whoever updates it next. Only what is durable can go, but that also while somebody hardens. The
    /// caller is not pinned.
    pub(super) fn make_room(&self, wanted: u64) {
        let (tail, ring) = (self.log.tail(), self.log.ring_bytes());
        let free = self.free_bytes(wanted);
        let mut target = (tail + free).saturating_sub(ring);
        // A quiesce costs something, so not for every few records.
        let mut worth_it = if wanted > 0 { 0 } else { free / 4 };
        let share = self.log.share();
        if share < ring {
            // Half of the share is for what was written last, and half for what will be next.
            target = target.max(tail.saturating_sub(share / 2));
            worth_it = worth_it.min(share / 16);
        }
        let target = self.without_warm(target, wanted);
        // Whole blocks, so that their memory can be given back.
        let target = target.min(self.log.hardened()) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if target > self.log.head() + worth_it {
            self.log.evict(target);
        }
        self.update_limit();
    }

    /// Frees ring memory up to `target`, which is durable and of which nothing is needed there. The caller is not pinned.
    pub(super) fn evict_to(&self, target: Address) {
        self.log.evict(target);
        self.update_limit();
    }
}
