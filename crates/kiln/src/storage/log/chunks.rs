//! Log space that threads take ahead, each for itself, so that not every commit moves the log's tail, which all of them share.
//!
//! ```text
//!      shared: one locked instruction for a chunk         own: two words, written by one thread
//!  tail ----+--------------------------+
//!           | record record            |   <- this thread's chunk; its rest is padding in the end
//!           +--------------------------+
//! ```
//!
//! *Whose order is it?* Records of different keys lie in a chunk in an order that is not that in which they committed, and nobody asks for
//! that. Those of one key do: a record lies behind the one that it replaces. So whoever takes space says behind what, and if that is not before the rest
//! of the thread's chunk then the chunk is given up.
//!
//! *Until when?* Whoever makes the log read-only, or must know from the tail that nothing is committed, [retires](Chunks::retire) all chunks below an
//! address, and waits for those who commit. Later commits find theirs retired and take a new one. What is left of a chunk becomes padding: by its
//! thread, if that takes another one before the log is hardened so far; by the [hardener](Chunks::rests_between), if the thread sleeps or has
//! ended. If both do it they write the same.
//!
//! *How much?* An eighth of what the thread has taken since chunks were last retired, up to [`CHUNK_BYTES_MAX`]. So what is not used in the end is at the most
//! an eighth of the log however few commits there are between two hardenings, and where there are many, one in dozens moves the tail.

use super::Padded;
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::record::Address;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The most that is taken ahead.
const CHUNK_BYTES_MAX: u64 = 8 << 10;

/// Such a part of a segment is what may be taken ahead, where that is less.
const SEGMENT_PART: u64 = 64;

/// Such a part of what a thread has taken is what it may take ahead.
const TAKEN_PART: u64 = 8;

/// Who needs more does not take anything ahead, and leaves its chunk as it is: what it writes costs more than the tail.
pub(crate) const RECORD_BYTES_MAX: u64 = 2 << 10;

/// Threads with a higher [index](epoch::thread_index) move the tail for every record.
const THREADS_MAX: usize = 128;

const REST_BITS: u32 = 16;
const REST_MASK: u64 = (1 << REST_BITS) - 1;

/// A thread's own, alone on its cache lines.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Chunk {
    /// Where the rest begins, and in the low bits how long it is.
    rest: AtomicU64,
    /// Bytes that the thread took of the tail since chunks were last retired.
    taken: AtomicU64,
}

impl Chunk {
    /// The rest: its address and length.
    #[inline]
    pub(crate) fn rest(&self) -> (Address, u64) {
        let rest = self.rest.load(Ordering::Acquire);
        (rest >> REST_BITS, rest & REST_MASK)
    }

    /// The rest, if it is at `from` or behind, and so long at least.
    #[inline]
    pub(crate) fn space(&self, least_bytes: u64, from: Address) -> Option<Space<'_>> {
        let (start, bytes) = self.rest();
        (start >= from && bytes >= least_bytes).then_some(Space { chunk: self, start, bytes })
    }

    #[inline]
    fn set_rest(&self, address: Address, bytes: u64) {
        debug_assert!(bytes <= REST_MASK);
        // So that the hardener, if it finds this, finds the padding of the rest that was here before, too.
        self.rest.store(address << REST_BITS | bytes, Ordering::Release);
    }
}

/// The rest of the calling thread's chunk, for who may need some of it.
#[derive(Clone, Copy)]
pub(crate) struct Space<'c> {
    chunk: &'c Chunk,
    start: Address,
    bytes: u64,
}

impl Space<'_> {
    /// Where it begins.
    #[inline]
    pub(crate) fn start(&self) -> Address {
        self.start
    }

    /// Takes so much of it, if there is enough: the caller fills it before it unpins.
    #[inline]
    pub(crate) fn take(self, bytes: u64) -> Option<Address> {
        let rest_bytes = self.bytes.checked_sub(bytes)?;
        self.chunk.set_rest(self.start + bytes, rest_bytes);
        Some(self.start)
    }
}

/// All threads' chunks of one log.
pub(crate) struct Chunks {
    chunks: Box<[Chunk]>,
    /// So many of them have ever been used.
    used: AtomicUsize,
    bytes_max: u64,
    /// What lies below is retired.
    retired: Padded,
}

impl Chunks {
    pub(crate) fn new(segment_bytes: u64) -> Chunks {
        Chunks {
            chunks: (0..THREADS_MAX).map(|_| Chunk::default()).collect(),
            used: AtomicUsize::new(0),
            bytes_max: CHUNK_BYTES_MAX.min(segment_bytes / SEGMENT_PART),
            retired: Padded(AtomicU64::new(0)),
        }
    }

    /// The calling thread's, which is pinned.
    #[inline]
    pub(crate) fn own(&self) -> Option<&Chunk> {
        self.chunks.get(epoch::thread_index())
    }

    /// Nobody takes space below. The caller has pinned itself, and if [for a commit](epoch::pin_for_commit), then it has locked what it writes.
    #[inline]
    pub(crate) fn retired(&self) -> Address {
        self.retired.0.load(Ordering::SeqCst)
    }

    /// No pin that is taken after the next quiesce takes space below `end`, where the tail is or was.
    pub(crate) fn retire(&self, end: Address) {
        if !planted(Bug::ChunksOutliveShift) {
            self.retired.0.fetch_max(end, Ordering::SeqCst);
        }
    }

    /// How much the calling thread, whose chunk this is, should take of the tail beyond the bytes that it needs: as much again, a whole number
    /// of times.
    pub(crate) fn bytes_ahead(&self, chunk: &Chunk, bytes: u64) -> u64 {
        let ahead = (self.taken(chunk) / TAKEN_PART).min(self.bytes_max);
        ahead - ahead % bytes
    }

    /// Bytes of the tail that a thread took since chunks were last retired.
    fn taken(&self, chunk: &Chunk) -> u64 {
        let is_current = chunk.rest().0 >= self.retired();
        if is_current { chunk.taken.load(Ordering::Relaxed) } else { 0 }
    }

    /// Gives the calling thread, which took `bytes` of the tail before `rest`, this rest in the place of that of its last chunk, which must be
    /// padding already.
    pub(crate) fn renew(&self, chunk: &Chunk, bytes: u64, (rest, rest_bytes): (Address, u64)) {
        chunk.taken.store(self.taken(chunk) + bytes + rest_bytes, Ordering::Relaxed);
        let used = epoch::thread_index() + 1;
        if self.used.load(Ordering::Relaxed) < used {
            self.used.fetch_max(used, Ordering::SeqCst);
        }
        chunk.set_rest(rest, rest_bytes);
    }

    /// The rests of retired chunks in a part of the log that nobody takes space of any more: a quiesce has followed.
    pub(crate) fn rests_between(
        &self,
        start: Address,
        end: Address,
    ) -> impl Iterator<Item = (Address, u64)> + '_ {
        let used = &self.chunks[..self.used.load(Ordering::SeqCst)];
        let rests = used.iter().map(Chunk::rest);
        rests.filter(move |&(address, bytes)| bytes > 0 && address >= start && address < end)
    }
}
