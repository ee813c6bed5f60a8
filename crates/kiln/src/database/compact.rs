//! Compaction on request: everything that is not needed leaves the disk at once.

use super::{Kiln, statistics};
use crate::error::Result;

/// How far a compaction has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactProgress {
    /// Bytes of log and tree that it has passed; never fewer than before.
    pub done_bytes: u64,
    /// Bytes that there are to pass.
    pub total_bytes: u64,
}

/// A finished compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compacted {
    /// Bytes of the database's files before.
    pub bytes_before: u64,
    /// And after.
    pub bytes_after: u64,
}

impl Kiln {
    /// Makes the database's files as short as they can be, while reads and writes go on: settles what can settle, writes anew what is live in
    /// the log, drops all of it that was there, and writes the tree of settled rows anew, leaves full, into the beginning of its file. There is
    /// seldom a need for it: space that is free is used again, and what is too much of it given back, as
    /// [`Options::space_amplification`](crate::Options::space_amplification) says. It is for when most of the data was deleted, or
    /// [`Options::leaf_compression`](crate::Options::leaf_compression) has changed. Memory of the indexes that nothing needs any more goes back to the system.
    ///
    /// What is left has no room to spare but in the log, which has a segment that is begun, and one to go on in.
    /// It reads and writes everything that is live, once. Meanwhile the log takes as much more as is live in it, the tree up to a 16th more. What open
    /// snapshots and named ones need stays, and with it the log behind it, so that the files may even become longer. Nothing is committed or lost by it; if it fails, or the
    /// process ends, what it has done so far holds.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let events = db.table("events")?;
    /// db.transact(|tx| (0..=255_u8).try_for_each(|hour| tx.put(&events, [hour], [0; 1000])))?.safe()?;
    /// db.transact(|tx| tx.delete_range(&events, [1_u8]..))?.safe()?;
    /// let compacted = db.compact(|progress| println!("{} of {}", progress.done_bytes, progress.total_bytes))?;
    /// println!("{} bytes, before {}", compacted.bytes_after, compacted.bytes_before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Io` or `NoSpace` if the disk fails or is full, `Corrupted` if log or tree are damaged, `Lost` if the database has lost something,
    /// `Aborted` if it is closed.
    pub fn compact(&self, mut progress: impl FnMut(CompactProgress)) -> Result<Compacted> {
        let engine = self.engine();
        let bytes_before = statistics::file_bytes(engine);
        engine.persist()?;
        {
            // While one is taken nothing is removed, and what is not would be written anew.
            let _no_checkpoint = engine.checkpoints.pause();
            engine.remove_dropped_in_turn();
        }
        engine.settle_durable()?;
        let (begin, tree_bytes) = (engine.log.begin(), engine.settled.tree.used_bytes());
        let log_bytes = engine.log.hardened() - begin;
        let total_bytes = log_bytes + tree_bytes;
        let mut done_bytes = 0;
        let mut tell = |passed_bytes: u64| {
            // What settles meanwhile, and is still to be passed, makes what has been passed a smaller part of the whole.
            done_bytes = passed_bytes.clamp(done_bytes, total_bytes);
            progress(CompactProgress { done_bytes, total_bytes });
        };
        engine.compact_log(|begin_now| tell((begin_now - begin).min(log_bytes)))?;
        engine.compact_tree(|part| tell(log_bytes + (tree_bytes as f64 * part) as u64))?;
        // The last one may say of half the log where it was.
        if engine.takes_checkpoints() {
            self.checkpoint()?;
        }
        tell(total_bytes);
        engine.share_for_good();
        engine.give_index_memory_back();
        Ok(Compacted { bytes_before, bytes_after: statistics::file_bytes(engine) })
    }
}
