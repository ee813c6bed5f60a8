//! How a database is opened.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::database::Kiln;
use crate::device::{Device, FileDevice};
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::engine::Limits;
use crate::kernel::recovery::Division;
use crate::kernel::shares::CacheBytes;
use crate::storage::record::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::storage::superblock::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::storage::{log, segments, tree};

/// At least this part of the memory is the read cache's.
const CACHE_PART: u64 = 8;
/// At least this part of the memory is the log's.
const LOG_PART: u64 = 4;

/// Such a part of the caches is always records'.
const RECORDS_PART: u64 = 8;
/// Of a smaller memory than is divided, pages of what has settled may take such a part of the caches.
const PAGES_PART: u64 = 2;

/// What settling sorts in memory takes such a part of the log's, or so much at least.
const SETTLE_PART: u64 = 4;
const SETTLE_BYTES_MIN: u64 = 32 << 20;

/// So many settle side by side at the most.
const SETTLE_THREADS_MAX: usize = 64;

/// Between two checkpoints is log of such a part of the log's memory, within bounds: what is opened with more memory may take longer for it, but
/// what more of it would save is little then.
const CHECKPOINT_PART: u64 = 8;
const CHECKPOINT_LOG_BYTES: RangeInclusive<u64> = 128 << 20..=512 << 20;

/// So much those transactions read and write at the most that enter objects and snapshots, with names of the greatest length, and losses.
const TRANSACTION_ENTRIES_MIN: usize = 8;
const TRANSACTION_BYTES_MIN: usize = 1 << 10;

/// Compacting for less would write more than ten times what the application does.
const SPACE_AMPLIFICATION_MIN: f64 = 1.1;

/// How a database is opened. Every option has a sane default.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("ads.kiln");
/// use std::time::Duration;
/// let db = kiln::Options::new().memory(64 << 20).window(Duration::from_millis(20)).open(path)?;
/// # db.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) memory: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) window: Duration,
    pub(crate) unhardened_bytes: Option<u64>,
    pub(crate) background: bool,
    pub(crate) space_amplification: f64,
    checkpoint_log_bytes: Option<u64>,
    pub(crate) settle_log_bytes: u64,
    pub(crate) unsettled_bytes: u64,
    settle_memory: Option<u64>,
    settle_threads: usize,
    pub(crate) leaf_compression: bool,
    system_page_cache: bool,
    pub(crate) create: bool,
    pub(crate) recovery: Division,
    transaction_entries: usize,
    transaction_bytes: usize,
    open_transactions: usize,
    transaction_age: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memory: 320 << 20,
            segment_bytes: 32 << 20,
            window: Duration::from_millis(100),
            unhardened_bytes: None,
            background: true,
            space_amplification: 2.0,
            checkpoint_log_bytes: None,
            settle_log_bytes: 64 << 20,
            unsettled_bytes: 0,
            settle_memory: None,
            settle_threads: 1,
            leaf_compression: false,
            system_page_cache: false,
            create: true,
            recovery: Division::default(),
            transaction_entries: 1 << 20,
            transaction_bytes: usize::MAX,
            open_transactions: 1 << 16,
            transaction_age: Duration::from_secs(60),
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// Memory for records and pages, in bytes. Default 320 MiB. The greatest power of two that leaves an eighth of it holds the
    /// tail of the record log: what was written last is read and updated there. The rest is the read cache, for older records
    /// that are on disk and are read often. So of the default the log has 256 MiB and the cache 64 MiB; of a power of two each
    /// has half. Once many more records are read from disk than written, and the cache has a use for it, it gets three quarters of the memory, and so it does once one is read for
    /// 32 that are written, if the cache has no room for all that the log's part has not, or much of what that has is superseded; until the cache is of no such use any more. What the log gives up for it goes over, and so does from then on whatever leaves it. Of less memory than that takes the log has two segments, and the cache an eighth of as much besides: below 128 MiB smaller
    /// [segments](Self::segment_bytes), an eighth or a sixteenth of it, leave the caches more, and values may be shorter at the most.
    ///
    /// Once rows of tables [settle](Self::settle_log_bytes) a part of what the read cache had is for the pages that they lie in: as many eighths, up to seven, as
    /// they have a use for, but not more than half if records that have not settled have a use for the rest.
    ///
    /// Where more is written at a time than the log's share has room for, up to [`unhardened_bytes`](Self::unhardened_bytes) of it, it
    /// takes that memory until it has hardened.
    ///
    /// As long as all live data has room there (it takes about two fifths of the log's part, or less) none of it leaves memory: what is about
    /// to is written anew at the log's end, so that no update meets it on disk. That costs up to three bytes of log for each of the
    /// application's, and mostly much less. Where it has not, that is done with what was read while it was there, so that what is read all the time
    /// stays, up to a third of a byte of log for each. [`space_amplification`](Self::space_amplification) of infinity turns both off.
    ///
    /// The indexes come on top: about 20 bytes for each key, and for each key of a table that has not [settled](Self::settle_log_bytes) about 40 more, another 12 where
    /// ranges of snapshots go, and what the key has beyond 16 bytes, which goes back to the system a second after settling; a hundredth of the memory for the table of pages; and while rows settle
    /// what [`settle_memory`](Self::settle_memory) says.
    /// [`Statistics`](crate::Statistics) tells what each of these takes. It does not tell of the buffers for what is written to the log at once, which is a
    /// [segment](Self::segment_bytes) at the most, or as much as may be [un-hardened](Self::unhardened_bytes) if that is less, rounded up to a power of two: one of them, and while a
    /// database is opened three. One of 4 MiB or more goes back once 17 times in a row no more than a quarter of it was needed for what went into one segment.
    ///
    /// More memory means fewer reads from disk; durability does not depend on it.
    pub fn memory(mut self, bytes: u64) -> Options {
        self.memory = bytes;
        self
    }

    /// Size of the log's files in bytes, a power of two from 16 KiB to 1 GiB; only when the database is created.
    /// Default 32 MiB; two of them are in [memory](Self::memory) at least. Values may have half of it at the most (and 16 MiB), keys an eighth (and 64 KiB).
    pub fn segment_bytes(mut self, bytes: u64) -> Options {
        self.segment_bytes = bytes;
        self
    }

    /// The vulnerability window: the longest time that a fast commit may stay un-hardened. Default 100 ms.
    /// A longer window lets more updates of the same key be written once, and risks that much more. When
    /// the disk cannot keep up, commits are slowed down rather than exposed for longer.
    pub fn window(mut self, window: Duration) -> Options {
        self.window = window;
        self
    }

    /// The most bytes of log that may be un-hardened; commits wait beyond it. Default a quarter of the memory;
    /// at least two segments, at most the log's part of the memory.
    pub fn unhardened_bytes(mut self, bytes: u64) -> Options {
        self.unhardened_bytes = Some(bytes);
        self
    }

    /// Whether the database runs its background threads. Default true. Without them nothing hardens until
    /// somebody waits (`safe`, `wait`, `persist`), the window is not watched, and everything happens on the
    /// calling threads: for tests that must be deterministic.
    pub fn background(mut self, background: bool) -> Options {
        self.background = background;
        self
    }

    /// How many times as long as its live data the log may be on disk. Default 2.0, at least 1.1; infinity lets only those
    /// segments go of which at most a quarter is live. When the log is longer, what is live in its oldest segments is
    /// written anew at its end, and they are dropped. A smaller bound saves disk and shortens opening, and makes the database
    /// write more: up to a/(a-1) bytes of log for each byte of the application's, which is 2 at the default and 11 at 1.1, where
    /// most data is never overwritten, and less where all of it is. Where that does not suffice, commits are slowed down once
    /// the log is a quarter and two segments beyond the bound. While rows of tables [settle](Self::settle_log_bytes), which makes the log shorter, too, it may be an eighth longer. What is
    /// written anew because it is [read all the time](Self::memory) comes on top of what the database writes.
    ///
    /// The part of the log that is in memory does not count, so that it may be as long as its part of the
    /// [`memory`](Self::memory), or four segments, whatever the bound; and nothing is dropped that an open snapshot
    /// needs. Live data is estimated from the numbers of live records and the mean length of a segment's records. Spare files and
    /// those prepared ahead, a few segments, come on top. Durability does not depend on it.
    /// Without background threads it is [`persist`](crate::Kiln::persist) that compacts, a piece with each call.
    pub fn space_amplification(mut self, times: f64) -> Options {
        self.space_amplification = times;
        self
    }

    /// After so many bytes of log the index is written to disk, in the background, so that opening the database replays only what
    /// came since. Default 128 MiB, which takes well under a second to replay on two processors, or an eighth of the log's part of [`memory`](Self::memory)
    /// if that is more, and 512 MiB at the most; 0: never, and opening replays the whole log. A checkpoint has about 9 bytes for each key, and for each key of a table two
    /// more and what it does not have in common with the key before it; there is twice as much log between two of them as the last one has bytes, so that they write half as much as the log. One also
    /// follows when rows of tables have settled. From a quarter of that on, closing in order takes one, too. Durability does not depend on it.
    /// Without background threads it is [`persist`](crate::Kiln::persist) that takes it.
    pub fn checkpoint_log_bytes(mut self, bytes: u64) -> Options {
        self.checkpoint_log_bytes = Some(bytes);
        self
    }

    /// When live records of so many bytes have left memory, and a third as much as has settled before, rows of tables
    /// settle: in the background they move from the log into a B+-tree on disk, and leave the indexes in memory. Default 64 MiB;
    /// 0: only when [`settle`](crate::Kiln::settle) is called. A smaller bound keeps the indexes smaller, and writes more: a
    /// row that settles alone takes a whole leaf of the tree with it. Other records count for a quarter of that, with what is live among them; and in full as long as
    /// there are deletions of rows that may have settled. As long as nothing has settled, and the read cache has room for all that has left the log's memory, and most of that was given to it, four times as much
    /// may be there before it is due. Where settling is so slow that twice as much is out of memory, or
    /// what [`unsettled_bytes`](Self::unsettled_bytes) says, commits
    /// that write tables are slowed, so that they add three quarters of what settles, each by a tenth of a second at the most. Durability does not depend on it.
    /// Without background threads it is [`persist`](crate::Kiln::persist) that settles.
    pub fn settle_log_bytes(mut self, bytes: u64) -> Options {
        self.settle_log_bytes = bytes;
        self
    }

    /// Live records of so many bytes may have left memory and not [settled](Self::settle_log_bytes) before commits that write tables are slowed. Default, and
    /// at the least, twice as many as make settling due. With more, tables larger than memory are written faster: as long as that goes on the more rows settle at once
    /// the fewer bytes are written for each of them. The indexes in memory grow with it (by 60 to 75 bytes for each row that has not settled, and what its key has beyond 16 bytes), and so do the log on disk
    /// and the file that is there while rows settle. Durability does not depend on it.
    pub fn unsettled_bytes(mut self, bytes: u64) -> Options {
        self.unsettled_bytes = bytes;
        self
    }

    /// Memory in bytes for what is sorted while rows settle. Default a quarter of the log's part of the [`memory`](Self::memory), and at
    /// least 32 MiB. What does not fit is written to a file that is there as long as they settle, so that the disk needs room for about as much as the part of the log
    /// that settles at once: up to [`unsettled_bytes`](Self::unsettled_bytes), or four times that where most of it is not live, or less where there is less room. For the tree it has room for a
    /// sixteenth of itself, or for a quarter of this. With less than a MiB for 64 MiB of log, or 4 MiB for a GiB, that is what it takes: what is sorted in smaller pieces takes more memory to be
    /// put together. As much again, four of them together, long walks of snapshots take beside writers, for what has not settled of what they see, once its records are on disk.
    /// Durability does not depend on it.
    pub fn settle_memory(mut self, bytes: u64) -> Options {
        self.settle_memory = Some(bytes);
        self
    }

    /// How many threads read and sort what [settles](Self::settle_log_bytes), merge it into the tree, and then take it off the indexes, at the most. Default 1; 64 at the most.
    /// With more of them rows settle in less time, as far as processors and the disk have nothing else to do; what writers and readers have of these meanwhile is less: half as many as there
    /// are processors is much. They divide [`settle_memory`](Self::settle_memory), of which each should have 16 MiB; with less than a MiB for each and 64 MiB of log, or 4 MiB for a GiB, that is what they
    /// take. Beside that each takes some 3 MiB, or as much as the longest record, and while it merges some 10 MiB, up to 20 MiB where keys are long: only as many merge as have 16 MiB each of `settle_memory`, and one where the disk
    /// is full. Each takes a segment of the log at the least. Durability does not depend on it.
    /// Without background threads it is the calling thread alone.
    pub fn settle_threads(mut self, count: usize) -> Options {
        self.settle_threads = count;
        self
    }

    /// Whether leaves of the B+-tree of [settled](Self::settle_log_bytes), or [loaded](crate::Kiln::bulk_load), rows are compressed (LZ4) when they
    /// are written, where that saves a block of 4 KiB. Default false. Leaves get twice as long then, so that more is saved; a row that is read from disk
    /// costs the time of unpacking its leaf, and one whose leaf is in memory nothing. May be changed each time the database is opened; leaves stay
    /// as they are until they are written anew. Durability does not depend on it. A Kiln that does not know of it refuses the database once a leaf is compressed.
    pub fn leaf_compression(mut self, compress: bool) -> Options {
        self.leaf_compression = compress;
        self
    }

    /// Whether the log, and the B+-tree of rows that have [settled](Self::settle_log_bytes) or were [loaded](crate::Kiln::bulk_load), are read and written through the operating
    /// system's page cache. Default false: [memory](Self::memory) is then the only cache, and nothing is copied twice. With true, what it has no room for
    /// is often found in memory that the system has left over: of use where little memory is Kiln's, and others may take the rest back at any time.
    /// May be changed each time the database is opened; without effect with [`open_on`](Self::open_on). What is durable, and when, does not depend on it.
    pub fn system_page_cache(mut self, through: bool) -> Options {
        self.system_page_cache = through;
        self
    }

    /// Whether to create the database if there is none. Default true.
    pub fn create(mut self, create: bool) -> Options {
        self.create = create;
        self
    }

    /// The most entries that one transaction may have. One is each read of a row that it has not written itself, also of one that it has read before;
    /// each leaf of a table's index of rows in memory, with up to 31 of them, of which it has read a range; each watch that it
    /// [requires](crate::Transaction::require); and each key that it writes, however often. So a row that it reads and writes is two.
    /// Under [snapshot isolation](crate::Isolation::Snapshot) reads are none. Default 1,048,576, at least 8.
    ///
    /// While a transaction that has written is being committed no version is closed: hardenings, and with them safe commits of others, and snapshots that are opened
    /// wait for it. That takes in the order of a microsecond for each entry, and the time in which its values are copied: up to a second or so at the default. Where nobody is to
    /// wait for so long, a lower limit has long transactions refused.
    pub fn transaction_entries(mut self, entries: usize) -> Options {
        self.transaction_entries = entries;
        self
    }

    /// The most bytes of log that one transaction may write: its keys, its values, and 24 to 38 bytes for each, 8 more for a row that expires. What writes one thing alone may always
    /// write it (one in a session writes two: its serial number as well). Default, and at most, three eighths
    /// of the bound on un-hardened bytes, and a little less where that is below 49 KiB; at least 1,024.
    pub fn transaction_bytes(mut self, bytes: usize) -> Options {
        self.transaction_bytes = bytes;
        self
    }

    /// The most transactions begun by `begin` that may be open at once. Default 65,536.
    pub fn open_transactions(mut self, count: usize) -> Options {
        self.open_transactions = count;
        self
    }

    /// How old a transaction begun by `begin` may become before its operations fail. Default 60 s. One under
    /// [snapshot isolation](crate::Isolation::Snapshot) keeps what its snapshot sees from being removed until the first of them fails, or it is dropped: as long
    /// as nothing is asked of it nobody looks at its age.
    pub fn transaction_age(mut self, age: Duration) -> Options {
        self.transaction_age = age;
        self
    }

    /// Opens, or creates, the database in a directory.
    ///
    /// # Errors
    /// `Locked` if it is open already, `NotFound` if there is none and it must not be created, or its parent directory is missing, `Corrupted` if
    /// something that was durable is damaged, `Version` if a newer Kiln wrote it, `Input` for bad options. `Io` if the disk fails, or the system has not the memory or the threads
    /// that are asked for; `NoSpace` if the disk is full; `Limit` if the database has used up its versions.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Kiln> {
        let path = path.as_ref();
        // Before there is a directory that nothing comes of.
        self.check()?;
        let device = FileDevice::open(path, self.create).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound if !self.create => Error::new(
                ErrorKind::NotFound,
                format!("there is no database at {}: {error}", path.display()),
            ),
            std::io::ErrorKind::NotFound => Error::new(
                ErrorKind::NotFound,
                format!("{error}; the directory that {} is to be in must be there", path.display()),
            ),
            _ => Error::io(format_args!("opening {}", path.display()), error),
        })?;
        let buffered: fn(&str) -> bool = if self.system_page_cache { has_records } else { |_| false };
        Kiln::open_with(self, Arc::new(device.through_page_cache(buffered)))
    }

    /// Opens, or creates, the database on a device, such as the simulated one.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_on(&self, device: Arc<dyn Device>) -> Result<Kiln> {
        self.check()?;
        Kiln::open_with(self, device)
    }

    fn check(&self) -> Result<()> {
        if !self.segment_bytes.is_power_of_two()
            || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes)
        {
            return Err(Error::input("segment_bytes must be a power of two from 16 KiB to 1 GiB"));
        }
        if self.memory >= 1 << 46 {
            return Err(Error::input("memory must be below 64 TiB"));
        }
        if self.space_amplification.is_nan() || self.space_amplification < SPACE_AMPLIFICATION_MIN {
            return Err(Error::input("space_amplification must be at least 1.1; 2 is usual"));
        }
        if self.transaction_entries < TRANSACTION_ENTRIES_MIN {
            return Err(Error::input(
                "transaction_entries must be at least 8: the database's own transactions keep to it, too",
            ));
        }
        if self.transaction_bytes < TRANSACTION_BYTES_MIN {
            return Err(Error::input(
                "transaction_bytes must be at least 1,024: the database's own transactions keep to it, too",
            ));
        }
        if self.window.is_zero() {
            return Err(Error::input("the window must be longer than 0; use safe commits to risk nothing"));
        }
        Ok(())
    }

    /// The part of the memory that holds the log's tail.
    pub(crate) fn ring_bytes(&self, segment_bytes: u64) -> u64 {
        let most = self.memory - self.memory / CACHE_PART;
        most.checked_ilog2().map_or(0, |power| 1 << power).max(2 * segment_bytes)
    }

    /// So much log is between two checkpoints.
    pub(crate) fn checkpoint_bytes(&self, segment_bytes: u64) -> u64 {
        let (least, most) = CHECKPOINT_LOG_BYTES.into_inner();
        let usual = || (self.ring_bytes(segment_bytes) / CHECKPOINT_PART).clamp(least, most);
        self.checkpoint_log_bytes.unwrap_or_else(usual)
    }

    /// Memory for what is sorted while rows settle.
    pub(crate) fn settle_memory_bytes(&self, segment_bytes: u64) -> u64 {
        let usual = || (self.ring_bytes(segment_bytes) / SETTLE_PART).max(SETTLE_BYTES_MIN);
        self.settle_memory.unwrap_or_else(usual)
    }

    /// How many settle side by side.
    pub(crate) fn settle_threads_count(&self) -> usize {
        // Tests and schedules have no background threads, and may want these all the same.
        match self.background || cfg!(any(test, feature = "schedules")) {
            true => self.settle_threads.clamp(1, SETTLE_THREADS_MAX),
            false => 1,
        }
    }

    /// The part of the memory that holds what was read from disk.
    pub(crate) fn cache_bytes(&self, segment_bytes: u64) -> CacheBytes {
        let ring = self.ring_bytes(segment_bytes);
        let usual = self.memory.saturating_sub(ring).max(ring / CACHE_PART);
        if self.memory < ring + usual {
            // Who gives less than that gets few pages, and whoever gives nothing none.
            return CacheBytes { usual, most: usual, pages_most: (usual / PAGES_PART).min(self.memory / 4) };
        }
        let most = usual.max(self.memory - self.memory / LOG_PART);
        CacheBytes { usual, most, pages_most: most - most / RECORDS_PART }
    }

    pub(crate) fn limits(&self, segment_bytes: u64) -> Limits {
        let ring = self.ring_bytes(segment_bytes);
        let unhardened = self.unhardened_bytes.unwrap_or(self.memory / 4).clamp(2 * segment_bytes, ring);
        Limits {
            key_bytes: KEY_BYTES_MAX.min(segment_bytes as usize / 8),
            value_bytes: VALUE_BYTES_MAX.min(segment_bytes as usize / 2),
            unhardened_bytes: unhardened,
            transaction_entries: self.transaction_entries,
            transaction_bytes: self.transaction_bytes.min(log::transaction_bytes_max(unhardened) as usize),
            open_transactions: self.open_transactions,
            transaction_age: self.transaction_age,
        }
    }
}

/// True for the name of a file whose records are read one by one; what others have is written, and read, once.
fn has_records(name: &str) -> bool {
    tree::is_tree(name) || segments::is_segment(name) || segments::is_unfinished(name)
}
