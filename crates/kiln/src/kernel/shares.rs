//! Shares: how the memory for records is divided between the log's tail and the read cache.
//!
//! ```text
//!  usual      |          log                        | cache |     what is written is read, or nothing is read from disk
//!  reading    | log      |              cache               |     more is read from disk than written
//! ```
//!
//! The log's memory holds what was written last. Where records are written anew again and again these are the ones that are asked
//! for, and a copy in the cache is out of date before it is asked for. Where they are mostly read they are no better than any others, and
//! the cache finds out which ones are. So what decides is whether more records are read from disk than appended to the log,
//! and it is decided anew after each as many of either as an eighth of the memory holds.
//!
//! When the shares change the cache begins anew, and is filled by the reads that follow. (Rejected: a share that follows the load step by
//! step. Each step would cost the cache all that it holds.)

use super::cold::Cold;
use super::engine::Engine;
use crate::storage::log::Log;
use crate::storage::record::{Address, HEADER_BYTES};
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;

/// Bytes of the read cache, as it is opened and at the most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheBytes {
    pub(crate) usual: u64,
    pub(crate) most: u64,
}

/// See the module's documentation.
pub(crate) struct Shares {
    cache: CacheBytes,
    decided: Mutex<Decided>,
}

/// Where things were when the shares were looked at last.
#[derive(Clone, Copy, Default)]
struct Decided {
    reads: u64,
    tail: Address,
    is_reading: bool,
}

impl Shares {
    pub(crate) fn new(cache: CacheBytes) -> Shares {
        Shares { cache, decided: Mutex::new(Decided::default()) }
    }
}

impl Decided {
    /// Whether the cache is to have the larger share, if there is enough to go by.
    fn decide(self, cold: &Cold, log: &Log) -> Option<Decided> {
        /// A larger memory need not be read from disk as a whole first.
        const RECORDS_MAX: u64 = 1 << 16;
        let record_bytes = cold.record_bytes().max(HEADER_BYTES as u64);
        let (reads, tail) = (cold.reads.load(Ordering::Relaxed), log.tail());
        let (read, appended) = (reads - self.reads, tail.saturating_sub(self.tail) / record_bytes);
        if read.max(appended) < (log.ring_bytes() / record_bytes / 8).min(RECORDS_MAX) {
            return None;
        }
        // Between the two it stays as it is.
        let is_reading = read > appended && (self.is_reading || read > appended + appended / 2);
        Some(Decided { reads, tail, is_reading })
    }
}

impl Engine {
    /// Divides the memory anew if that is due. The caller is not pinned, and does not harden.
    pub(crate) fn share_memory(&self) {
        let (shares, log) = (&self.shares, &self.log);
        let Some(mut decided) = shares.decided.try_lock() else { return };
        let CacheBytes { usual, most } = shares.cache;
        let Some(next) = decided.decide(&self.cold, log).filter(|_| usual < most) else { return };
        let before = std::mem::replace(&mut *decided, next);
        match (before.is_reading, next.is_reading) {
            (false, true) => {
                log.set_share(log.ring_bytes() + usual - most);
                if !self.evict_beyond_share() {
                    // Whoever hardens at the moment may have done so before.
                    self.hardening.request_now();
                }
                self.cold.cache.divide(most, self.cold.record_bytes());
            }
            (true, false) => {
                self.cold.cache.divide(usual, self.cold.record_bytes());
                log.set_share(log.ring_bytes());
            }
            _ => {}
        }
    }
}
