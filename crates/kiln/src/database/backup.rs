//! Backups: a consistent copy of a database while everything else goes on.
//!
//! ```text
//!   1 harden     everything committed so far
//!   2 hold       the log as it is now, and its files: none of them is used again before the copy is done
//!   3 copy       extent after extent; each one's checksum, and its place in the chain of seals, are checked
//!   4 complete   what has settled, walked and built anew; the newest checkpoint, if it is whole; the superblock last
//! ```
//!
//! A checkpoint says nothing that the log does not say. So a copy of a database whose checkpoint is damaged has none, and is opened by reading the log.
//!
//! What is durable never changes where it lies, so nobody stands still for a copy. Segments that the log no longer needs may be
//! dropped meanwhile: a file that is open stays readable without a name, and while it is held it does not become a spare.
//!
//! A copy is the database as a power failure right after step 2 would leave it: opening it is an ordinary recovery, which is told that it is a
//! backup. Until its superblock is there, a directory holds no database.
//!
//! Rejected: a copy of all files as they are, for which the log would have to stand still, or its end be looked for; a copy of
//! keys and values out of a snapshot, which loses sessions and versions and takes a transaction for each.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use super::stream::StreamDevice;
use super::{Kiln, open};
use crate::device::{Device, FileDevice, OpenMode};
use crate::error::{Error, Result};
use crate::kernel::clock::Version;
use crate::kernel::engine::Engine;
use crate::storage::checkpoint::{self, Reader};
use crate::storage::record::Address;
use crate::storage::runs;
use crate::storage::scanner::{Batch, Scanner};
use crate::storage::segments::{self, Held, Segments};
use crate::storage::superblock::{self, Superblock, SuperblockFile};
use crate::storage::tree::{self, Root, Tree};

/// How far a backup, or a restore, has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupProgress {
    /// Bytes that were copied.
    pub done_bytes: u64,
    /// Bytes that there are to copy; a guess where nobody can know yet.
    pub total_bytes: u64,
}

/// A finished backup, or restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// The copy has every commit up to this version, and none behind it.
    pub horizon: Version,
    /// Its length in bytes.
    pub bytes: u64,
}

impl Kiln {
    /// Copies the database into an empty or new directory, while reads and writes go on. Everything committed before the call is
    /// in the copy; it is durable when this returns. To use it, open it, or copy its files to where they are wanted.
    ///
    /// Each extent's checksum is compared on the way, so a backup of damaged files is an error and not a damaged backup. The log's
    /// files that are dropped meanwhile keep their space until the end, and so does what has settled by the beginning: the tree's file may become twice as long.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let (path, copy) = (directory.path().join("ads.kiln"), directory.path().join("copy"));
    /// use kiln::Kiln;
    ///
    /// let db = Kiln::open(path)?;
    /// let auctions = db.table("auctions")?;
    /// db.put(&auctions, "a17", "open")?.fast();
    /// db.backup(&copy, |progress| println!("{} of {}", progress.done_bytes, progress.total_bytes))?;
    ///
    /// let copy = Kiln::open(copy)?;
    /// assert_eq!(copy.get(&copy.table("auctions")?, "a17")?.as_deref(), Some(&b"open"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Input` if there is something in the directory, `Corrupted` if the database is damaged, `Io` or `NoSpace` if either disk fails
    /// or is full, `Lost` or `Aborted` if the database has failed or is closed, `Locked` if somebody else makes a copy there. Nothing is left behind then, not even the directory if it was not there.
    pub fn backup(
        &self,
        directory: impl AsRef<Path>,
        progress: impl FnMut(BackupProgress),
    ) -> Result<Backup> {
        self.engine().check_open()?;
        let directory = directory.as_ref();
        let device = FileDevice::open(directory, true)
            .map_err(|error| Error::io(format_args!("opening {}", directory.display()), error))?;
        self.backup_on(Arc::new(device), progress)
    }

    /// As [`Self::backup`], onto a device.
    ///
    /// # Errors
    /// As [`Self::backup`].
    pub fn backup_on(&self, device: Arc<dyn Device>, progress: impl FnMut(BackupProgress)) -> Result<Backup> {
        let engine = self.engine();
        engine.check_open()?;
        let copied = into_empty(&device, || Copying::new(&Source::of(engine)?, &device, progress).run());
        // Who opens the database then knows of no backup, and may use its files again.
        copied.map_err(|error| engine.check_open().err().unwrap_or(error))
    }

    /// As [`Self::backup`], but as one stream of bytes, from which [`Kiln::restore_stream`] makes the copy elsewhere. It takes no space on
    /// any disk. The stream says itself where it ends, and each part of it is under a checksum.
    ///
    /// ```no_run
    /// # let db = kiln::Kiln::open("ads.kiln")?;
    /// db.backup_stream(std::io::stdout(), |_| {})?;
    /// # Ok::<(), kiln::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::backup`]; `Io` if writing to `out` fails. The stream is not whole then, and is refused by whoever restores it.
    pub fn backup_stream(
        &self,
        out: impl Write + Send + 'static,
        progress: impl FnMut(BackupProgress),
    ) -> Result<Backup> {
        let failed = |error| Error::io("writing a backup's stream", error);
        let stream = StreamDevice::begin(Box::new(out)).map_err(failed)?;
        let backup = self.backup_on(Arc::new(stream.clone()), progress)?;
        stream.end(&backup).map_err(failed)?;
        Ok(backup)
    }
}

/// Has a copy made on a device with nothing on it, on which there is nothing afterwards if that fails.
pub(super) fn into_empty(device: &Arc<dyn Device>, copy: impl FnOnce() -> Result<Backup>) -> Result<Backup> {
    // Before the lock, too, so that where there is something not even the lock's file is left behind.
    check_empty(&**device)?;
    let lock = open::lock(&**device)?;
    check_empty(&**device)?;
    let copied = copy();
    if copied.is_err() {
        // First of all, because without it there is no database; what cannot be removed either then is worthless.
        let _ = device.remove(superblock::FILE).and_then(|()| device.sync_directory());
        // What else is there by now is somebody else's.
        for name in device.list().unwrap_or_default().iter().filter(|name| is_of_database(name)) {
            let _ = device.remove(name);
        }
        lock.give_up();
    }
    copied
}

/// True for the name of a file that a database may have.
pub(super) fn is_of_database(name: &str) -> bool {
    segments::is_segment(name)
        || segments::is_unfinished(name)
        || checkpoint::is_checkpoint(name)
        || tree::is_tree(name)
        || [superblock::FILE, superblock::UNFINISHED, runs::FILE].contains(&name)
}

fn check_empty(device: &dyn Device) -> Result<()> {
    let found = device.everything().map_err(|error| Error::io("listing the directory for a copy", error))?;
    match found.first() {
        None => Ok(()),
        Some(name) => {
            let place = device.describe(name);
            Err(Error::input(format!(
                "{place} is there already, perhaps of a copy that was not finished; name an empty directory for a copy"
            )))
        }
    }
}

/// What a copy is made of: the durable log at some moment.
pub(super) struct Source<'a> {
    segments: Held<'a>,
    /// By which the log is read.
    scanned: Superblock,
    /// The copy's.
    superblock: Superblock,
    checkpoint: Option<Reader>,
    checkpoint_bytes: u64,
    tree: &'a Arc<Tree>,
    root: Arc<Root>,
    /// About how many bytes the root's tree has.
    tree_bytes: u64,
    horizon: u64,
    /// Nobody has the database open: its log tells where it ends.
    is_at_rest: bool,
}

impl<'a> Source<'a> {
    /// A database that nobody has open, and its superblock, segments and tree.
    pub(super) fn at_rest(current: &Superblock, segments: &'a Segments, tree: &'a Arc<Tree>) -> Source<'a> {
        let (segments, root) = (segments.hold(), tree.root());
        let (checkpoint, checkpoint_bytes) = open_checkpoint(&segments, current);
        let segments_end = segments.numbers().last().map_or(0, |last| (last + 1) * current.segment_bytes);
        Source {
            scanned: current.clone(),
            // The end until it is known.
            superblock: Superblock { known_end: segments_end.max(current.begin), ..copied(current) },
            checkpoint,
            checkpoint_bytes,
            tree_bytes: tree_bytes(tree, &root),
            segments,
            tree,
            root,
            horizon: 0,
            is_at_rest: true,
        }
    }

    fn of(engine: &'a Engine) -> Result<Source<'a>> {
        engine.persist()?;
        loop {
            // Before the end: nothing has settled that is not in the log that is copied, or was before.
            let root = engine.settled.tree.root();
            if let Some(source) = engine.telling(|| Source::unless_settled_since(engine, root))? {
                return Ok(source);
            }
        }
    }

    /// The durable log as it is now, with this root; none if the tree has another one by now: deletions that have settled alone, for which a full disk is enough, may have
    /// left the log, though nothing else has settled.
    pub(super) fn unless_settled_since(engine: &'a Engine, root: Arc<Root>) -> Result<Option<Source<'a>>> {
        // While it is locked no segment is dropped that it needs, and no checkpoint that it names. The end is looked for under
        // the lock, and never the other way round: who hardens asks for no superblock. Rows whose segments were dropped since an earlier look
        // would be in the log behind that end only.
        let superblock = engine.superblock.lock();
        let end = engine.durable_end();
        let current = superblock.current();
        if engine.settled.tree.root().is_newer_than(&root) {
            return Ok(None);
        }
        let segments = engine.segments.hold();
        let (checkpoint, checkpoint_bytes) = open_checkpoint(&segments, current);
        let superblock = Superblock {
            known_end: end.address,
            known_end_checksum: end.chain_checksum,
            is_backup: true,
            ..copied(current)
        };
        let tree = &engine.settled.tree;
        Ok(Some(Source {
            checkpoint,
            checkpoint_bytes,
            segments,
            scanned: superblock.clone(),
            superblock,
            tree,
            tree_bytes: tree_bytes(tree, &root),
            root,
            horizon: end.horizon,
            is_at_rest: false,
        }))
    }
}

/// The superblock of a copy, but for where its log ends.
fn copied(current: &Superblock) -> Superblock {
    Superblock { generation: 1, clean: false, ..current.clone() }
}

/// The checkpoint, and how long it is; none if it cannot be opened, as for who opens the database.
fn open_checkpoint(segments: &Segments, current: &Superblock) -> (Option<Reader>, u64) {
    let open = |named| Reader::open(segments.device(), current.database, named).ok().flatten();
    let reader = current.usable_checkpoint().and_then(open);
    let bytes = reader.as_ref().and_then(|reader| reader.size().ok());
    (reader, bytes.unwrap_or(0))
}

fn tree_bytes(tree: &Tree, root: &Root) -> u64 {
    if root.is_written() { tree.used_bytes() } else { 0 }
}

/// The end of the log that was copied.
struct CopiedEnd {
    address: Address,
    chain_checksum: u32,
    horizon: u64,
    /// The database had been closed in order, and nothing contradicts it.
    is_clean: bool,
}

/// A copy that is being made.
pub(super) struct Copying<'a, P> {
    source: &'a Source<'a>,
    device: &'a Arc<dyn Device>,
    progress: P,
    done_bytes: u64,
}

impl<'a, P: FnMut(BackupProgress)> Copying<'a, P> {
    pub(super) fn new(source: &'a Source<'a>, device: &'a Arc<dyn Device>, progress: P) -> Copying<'a, P> {
        Copying { source, device, progress, done_bytes: 0 }
    }

    pub(super) fn run(mut self) -> Result<Backup> {
        let (mut superblock, mut horizon) = (self.source.superblock.clone(), self.source.horizon);
        self.advance(0);
        let end = self.copy_log()?;
        if self.source.is_at_rest {
            (superblock.known_end, superblock.known_end_checksum) = (end.address, end.chain_checksum);
            superblock.clean = end.is_clean;
            horizon = end.horizon;
        }
        self.copy_tree()?;
        if !self.copy_checkpoint().map_err(|error| Error::io("writing a checkpoint's copy", error))? {
            // Its number is not used again.
            superblock.checkpoint.end = 0;
        }
        // All names are durable before there is a superblock that relies on the files.
        self.device.sync_directory().map_err(|error| Error::io("writing a copy", error))?;
        SuperblockFile::create(&**self.device, superblock)?;
        let bytes = self.done_bytes;
        (self.progress)(BackupProgress { done_bytes: bytes, total_bytes: bytes });
        Ok(Backup { horizon: Version::new(horizon), bytes })
    }

    fn copy_log(&mut self) -> Result<CopiedEnd> {
        let Source { segments: source, scanned, superblock, is_at_rest, .. } = self.source;
        let target = Segments::open(self.device.clone(), superblock.segment_bytes, OpenMode::ReadWrite)?;
        target.cut_at(superblock.begin)?;
        let mut scanner = Scanner::new(source, scanned);
        if !is_at_rest {
            scanner.set_end(superblock.known_end);
        }
        let (mut batch, mut written, mut horizon) = (Batch::default(), superblock.begin, 0);
        let failed = |error| Error::io("writing a copy", error);
        while *is_at_rest || written < superblock.known_end {
            let found = scanner.next_batch(&mut batch)?;
            let Some(last) = batch.last_seal().filter(|_| found) else {
                if *is_at_rest {
                    break;
                }
                return Err(source.corrupted(written, "the log ends here, and should go on"));
            };
            // No batch goes beyond its segment.
            let (start, end) = (written, last.end());
            if target.prepared_end() <= start {
                target.prepare_next(false)?;
            }
            // Extents that lie one behind the other are one write: a disk may be long about each.
            target.write(start, batch.bytes(start, (end - start) as usize)).map_err(failed)?;
            // The last extent in a segment syncs all of it.
            if end.is_multiple_of(superblock.segment_bytes) {
                target.sync(start).map_err(failed)?;
                target.let_go(start);
            }
            (written, horizon) = (end, last.version);
            self.advance(end - start);
        }
        if !written.is_multiple_of(superblock.segment_bytes) {
            target.sync(written).map_err(failed)?;
        }
        // Closed in order, and so it is found: who opens the copy is to be told of no loss.
        let is_clean = scanned.clean
            && scanned.damaged_slot.is_none()
            && scanner.cut_bytes() == 0
            && written == scanned.known_end;
        Ok(CopiedEnd { address: written, chain_checksum: scanner.chain().checksum, horizon, is_clean })
    }

    fn copy_tree(&mut self) -> Result<()> {
        let Source { tree, root, tree_bytes, .. } = self.source;
        if !root.is_written() {
            return Ok(());
        }
        let mut done = 0;
        let device = self.device.clone();
        tree.copy_to(root, &*device, &mut |bytes| {
            // What is copied is not all that a tree is made of.
            let now = bytes.min(*tree_bytes);
            self.advance(now - done);
            done = now;
        })?;
        self.advance(tree_bytes - done);
        Ok(())
    }

    /// False if there is no checkpoint, or none that is whole.
    fn copy_checkpoint(&mut self) -> std::io::Result<bool> {
        let device = self.device.clone();
        let Some(reader) = self.source.checkpoint.clone() else { return Ok(false) };
        reader.copy_to(&*device, &mut |bytes| self.advance(bytes))
    }

    fn advance(&mut self, bytes: u64) {
        let Source { superblock, checkpoint_bytes, tree_bytes, .. } = self.source;
        self.done_bytes += bytes;
        let log_bytes = superblock.known_end - superblock.begin;
        let total_bytes = (log_bytes + checkpoint_bytes + tree_bytes).max(self.done_bytes);
        (self.progress)(BackupProgress { done_bytes: self.done_bytes, total_bytes });
    }
}
