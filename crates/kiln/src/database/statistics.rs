//! Numbers about a running database.

use std::time::Duration;

use crate::kernel::clock::Version;
use crate::kernel::engine::Engine;
use crate::kernel::write_counts::Written;
use crate::sync::atomic::Ordering;

/// Numbers about a running database; each is read by itself, without stopping anybody or reading from disk.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// The current version.
    pub version: Version,
    /// The highest durable version.
    pub horizon: Version,
    /// How long the oldest commit that is not durable has waited; `None` if everything is durable.
    pub oldest_unhardened: Option<Duration>,
    /// Bytes of log that are not durable: they are in memory only.
    pub unhardened_bytes: u64,
    /// Records in them. Exact while nobody commits.
    pub unhardened_records: u64,
    /// The most that may be now: as many as harden within the window, as far as the last hardenings tell, and never more than
    /// [`Options::unhardened_bytes`](crate::Options::unhardened_bytes).
    pub unhardened_bytes_max: u64,
    /// Hardenings since the database was opened.
    pub hardenings: u64,
    /// Bytes that hardenings have written.
    pub hardened_bytes: u64,
    /// Records in them.
    pub hardened_records: u64,
    /// How long a hardening takes, smoothed.
    pub hardening_duration: Duration,
    /// Where the log begins, in bytes from its beginning of time.
    pub log_begin: u64,
    /// Where its part in memory begins.
    pub log_head: u64,
    /// Where it ends.
    pub log_tail: u64,
    /// Bytes of log that are durable, and in memory as well.
    pub hardened_in_memory_bytes: u64,
    /// Records in them, about; those count, too, that newer ones of their keys have superseded.
    pub hardened_in_memory_records: u64,
    /// Bytes of log that are on disk only.
    pub on_disk_only_bytes: u64,
    /// Records in them, about; those count, too, that newer ones of their keys have superseded.
    pub on_disk_only_records: u64,
    /// Writes, deletions included, that went into their key's record where it was, since the database was opened: it was of the current version, in the log's mutable part,
    /// and its value took as many words of 8 bytes.
    pub updates_in_place: u64,
    /// Writes that appended a record instead, linked to the one before it.
    pub updates_copied: u64,
    /// Writes of keys that had no record. Rows that have settled have none.
    pub inserts: u64,
    /// The log's share of the [memory](crate::Options::memory), which holds what was written last.
    pub ring_bytes: u64,
    /// The read cache's share; it takes it as it fills.
    pub read_cache_bytes: u64,
    /// Memory of the hash index, mapped.
    pub hash_index_bytes: u64,
    /// Buckets of the hash index.
    pub hash_index_buckets: u64,
    /// Memory of the tables' ordered indexes.
    pub ordered_index_bytes: u64,
    /// Records that were read from disk by reads and commits, since the database was opened.
    pub cold_reads: u64,
    /// Bytes that were read for them, in whole blocks, and those of the log that long scans have read in one piece.
    pub cold_read_bytes: u64,
    /// Reads of disk that are in flight, ahead of batches or for pending reads.
    pub reads_in_flight: u64,
    /// How often a record that is not in the log's memory was found in the read cache instead.
    pub cache_hits: u64,
    /// Records that the database has brought into the read cache by itself, since it was opened, for reads to find them there: those do not count among the ones that
    /// were read from disk.
    pub warmed_up_records: u64,
    /// Records that came into the read cache with others that were read from disk, behind which they lie in the log: nor do these.
    pub neighbours_read: u64,
    /// Records that the database has given the read cache to keep, before they left the log's memory.
    pub handed_over_records: u64,
    /// Leaves of what has settled that it has brought into memory so.
    pub warmed_up_leaves: u64,
    /// Bytes that the log's files take on disk, those included that are kept to be used again.
    pub disk_bytes: u64,
    /// Bytes of log that what is still needed would take, about; see
    /// [`Options::space_amplification`](crate::Options::space_amplification).
    pub live_bytes: u64,
    /// Bytes of log that compaction has passed, of [`Self::compaction_total_bytes`]: what was live in them was written anew.
    pub compaction_done_bytes: u64,
    /// Bytes of log that compaction is to pass, since it last had nothing to do; 0 while it has nothing to do.
    pub compaction_total_bytes: u64,
    /// Segments from which what was live was written anew, since the database was opened.
    pub segments_compacted: u64,
    /// Records that were written anew, for it or so that they stay in memory.
    pub records_rewritten: u64,
    /// Bytes of log that they took.
    pub bytes_rewritten: u64,
    /// Rows that were deleted because they had [expired](crate::Expiry), since the database was opened.
    pub expired_rows: u64,
    /// What kept the database from deleting some of those that have, the last time that it looked; the first of it, if there was more. They are absent all
    /// the same.
    pub expiry_failure: Option<String>,
    /// Rows of tables that have settled; see [`Options::settle_log_bytes`](crate::Options::settle_log_bytes). Some may have been written,
    /// or deleted, again.
    pub settled_rows: u64,
    /// Bytes of the file that they are in.
    pub tree_bytes: u64,
    /// Of those bytes, the ones that are in use.
    pub tree_used_bytes: u64,
    /// Memory of its pages that are in memory. With the shares of log, read cache and images of leaves no more than [the option](crate::Options::memory), unless that is less than the log needs.
    pub page_cache_bytes: u64,
    /// The share of copies of tables' leaves, with their rows side by side, for [ranges of snapshots](crate::Snapshot::range) that go over the same leaves again and again. It is
    /// 0 until there is a use for it, and takes its memory as it fills.
    pub leaf_images_bytes: u64,
    /// Leaves that were copied there since the database was opened.
    pub leaves_copied: u64,
    /// Stretches of tables' keys whose rows have all been deleted, which ranges pass in one step. A table has 64 of them at the most: those whose keys were passed one by one most often.
    pub gaps: u64,
    /// Rows that have settled since the database was opened.
    pub rows_settled: u64,
    /// Bytes that were written to the tree for them.
    pub tree_written_bytes: u64,
    /// About how many bytes live records take that have left memory and not settled; what tables have there is in the indexes in memory. What other records
    /// count for is said at [`Options::settle_log_bytes`](crate::Options::settle_log_bytes).
    pub unsettled_bytes: u64,
    /// How many there may be before commits that write tables are slowed, as long as settling goes on; 0 if they never are. See
    /// [`Options::unsettled_bytes`](crate::Options::unsettled_bytes).
    pub unsettled_bytes_max: u64,
    /// Why what was due could not settle, the last time that it was tried; `None` once something has settled. No row is lost for it, but the log, and what the
    /// indexes take of memory, become longer; if writing the tree has failed, until the database is opened again.
    pub settling_failure: Option<String>,
    /// How often a commit was slowed for it since the database was opened.
    pub settling_waits: u64,
    /// Steps done of the checkpoint that is being taken, of [`Self::checkpoint_total_steps`].
    pub checkpoint_done_steps: u64,
    /// About how many steps it has: one for each bucket of the hash index, one for each key of a table that has not settled, and one to end it. 0 while none is being
    /// taken.
    pub checkpoint_total_steps: u64,
    /// Checkpoints taken since the database was opened; see
    /// [`Options::checkpoint_log_bytes`](crate::Options::checkpoint_log_bytes).
    pub checkpoints: u64,
    /// Bytes of the newest one; 0 if there is none.
    pub checkpoint_bytes: u64,
    /// How old the newest checkpoint is; `None` if there is none.
    pub checkpoint_age: Option<Duration>,
    /// Bytes of log that opening would replay now.
    pub log_since_checkpoint: u64,
    /// Objects that were [dropped](crate::Kiln::drop_map), and of which not all rows are gone yet.
    pub dropping: u64,
    /// Rows of dropped objects that were removed since the database was opened, but for those that had settled.
    pub dropped_rows: u64,
    /// What kept the database from removing some of them, the last time that it tried; the first of it, if there was more. Nobody sees them all
    /// the same, and it is tried again when the database is opened.
    pub drop_failure: Option<String>,
    /// Keys over all objects, about: of tables of which something has settled, keys that were written since may count twice, and settled rows of dropped objects count
    /// until they are gone.
    pub keys: u64,
    /// Open snapshots.
    pub snapshots: u64,
    /// Snapshots that have a name.
    pub named_snapshots: u64,
    /// Transactions begun by hand that are open.
    pub open_transactions: u64,
    /// Why nothing can become durable any more, if so.
    pub failure: Option<String>,
}

/// How far behind the disk is; see [`Kiln::pressure`](crate::Kiln::pressure).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pressure {
    /// How long the oldest commit that is not durable has waited; `None` if everything is durable.
    pub oldest_unhardened: Option<Duration>,
    /// How long a hardening takes, smoothed.
    pub hardening_duration: Duration,
}

pub(super) fn pressure(engine: &Engine) -> Pressure {
    Pressure {
        oldest_unhardened: engine.hardening.oldest_unhardened(),
        hardening_duration: engine.hardening.counts().duration,
    }
}

/// Bytes of the files of the log, of the tree and of the newest checkpoint.
pub(super) fn file_bytes(engine: &Engine) -> u64 {
    engine.segments.disk_bytes() + engine.settled.tree.file_bytes() + engine.checkpoints.counts().bytes
}

pub(super) fn collect(engine: &Engine) -> Statistics {
    let counts = engine.hardening.counts();
    // Behind what has hardened, which is never more then.
    let written = engine.write_counts.sums();
    let (compaction, compaction_bytes) = (&engine.compaction, engine.compaction.passed_bytes.read());
    let checkpoint = engine.checkpoints.counts();
    let tree = engine.settled.tree.statistics();
    let ordered = engine.objects.orders();
    let live = engine.objects.iter().filter(|object| !object.is_dropped());
    let (begin, head) = (engine.log.begin(), engine.log.head());
    let hardened = engine.log.hardened().max(head);
    // Before the others: its lock must not be held while they wait for theirs.
    let liveness = engine.liveness.lock();
    let live_bytes = liveness.live_bytes();
    let (on_disk_only_records, hardened_in_memory_records) = liveness.records_around(head, hardened);
    drop(liveness);
    let (snapshots, named_snapshots) = engine.snapshot_counts();
    Statistics {
        version: Version::new(engine.clock.now()),
        horizon: Version::new(engine.hardening.horizon.local()),
        oldest_unhardened: engine.hardening.oldest_unhardened(),
        unhardened_bytes: engine.log.unhardened_bytes(),
        unhardened_records: written.appended().saturating_sub(counts.records),
        unhardened_bytes_max: engine.hardening.unhardened_bytes_max(),
        hardenings: counts.count,
        hardened_bytes: counts.bytes,
        hardened_records: counts.records,
        hardening_duration: counts.duration,
        log_begin: begin,
        log_head: head,
        log_tail: engine.log.tail(),
        hardened_in_memory_bytes: hardened - head,
        hardened_in_memory_records,
        on_disk_only_bytes: head.saturating_sub(begin),
        on_disk_only_records,
        updates_in_place: written.of(Written::InPlace),
        updates_copied: written.of(Written::Copied),
        inserts: written.of(Written::Inserted),
        ring_bytes: engine.log_bytes(),
        read_cache_bytes: engine.cold.cache.bytes(),
        hash_index_bytes: engine.index.memory_bytes(),
        hash_index_buckets: engine.index.bucket_count(),
        ordered_index_bytes: ordered.map(|ordered| ordered.memory_bytes() as u64).sum(),
        cold_reads: engine.cold.reads.load(Ordering::Relaxed),
        warmed_up_records: engine.warm_up.records.load(Ordering::Relaxed),
        neighbours_read: engine.cold.neighbours.records.load(Ordering::Relaxed),
        handed_over_records: engine.shares.hand_over.records.load(Ordering::Relaxed),
        warmed_up_leaves: engine.warm_up.leaves.load(Ordering::Relaxed),
        cold_read_bytes: engine.cold.read_bytes.load(Ordering::Relaxed),
        reads_in_flight: engine.cold.in_flight.load(Ordering::Relaxed),
        cache_hits: engine.cold.cache.hits(),
        disk_bytes: engine.segments.disk_bytes(),
        live_bytes,
        compaction_done_bytes: compaction_bytes.0,
        compaction_total_bytes: compaction_bytes.1,
        segments_compacted: compaction.segments.load(Ordering::Relaxed),
        records_rewritten: compaction.records.load(Ordering::Relaxed),
        bytes_rewritten: compaction.bytes.load(Ordering::Relaxed),
        expired_rows: engine.expiring.deleted.load(Ordering::Relaxed),
        expiry_failure: engine.expiring.failure(),
        settled_rows: tree.entries,
        tree_bytes: tree.file_bytes,
        tree_used_bytes: tree.used_bytes,
        page_cache_bytes: tree.cache_bytes,
        leaf_images_bytes: engine.leaf_images.bytes(),
        leaves_copied: engine.leaf_images.stored(),
        gaps: engine.objects.iter().filter_map(|object| object.ordered()).map(|ordered| ordered.gaps()).sum(),
        rows_settled: engine.settled.rows.load(Ordering::Relaxed),
        tree_written_bytes: tree.written_bytes,
        unsettled_bytes: engine.unsettled_bytes(),
        unsettled_bytes_max: engine.unsettled_bytes_max(),
        settling_failure: engine.settled.failures.last(),
        settling_waits: engine.settled.pace.waits(),
        checkpoint_done_steps: checkpoint.steps.0,
        checkpoint_total_steps: checkpoint.steps.1,
        checkpoints: checkpoint.count,
        checkpoint_bytes: checkpoint.bytes,
        checkpoint_age: (checkpoint.time_us != 0)
            .then(|| Duration::from_micros(engine.segments.time_us().saturating_sub(checkpoint.time_us))),
        log_since_checkpoint: engine.log_since_checkpoint(),
        dropping: engine.dropping_count(),
        dropped_rows: engine.removal.removed_rows(),
        drop_failure: engine.removal.failure(),
        keys: live.map(|object| engine.estimate_unsettled_rows(object)).sum::<u64>() + tree.entries,
        snapshots: snapshots as u64,
        named_snapshots: named_snapshots as u64,
        open_transactions: engine.open_transactions.0.load(Ordering::Relaxed),
        failure: engine.hardening.horizon.failure().map(ToString::to_string),
    }
}
