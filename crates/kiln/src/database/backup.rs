//! Backups: a consistent copy of a database while everything else goes on.
//!
//! ```text
//!   1 harden     everything committed so far
//!   2 hold       the log as it is now, and its files: none of them is used again before the copy is done
//!   3 copy       extent after extent; each one's checksum, and its place in the chain of seals, are checked
//!   4 complete   what has settled, walked and built anew; the newest checkpoint; the superblock last
//! ```
//!
//! What is durable never changes where it lies, so nobody stands still for a copy. Segments that the log no longer needs may be
//! dropped meanwhile: a file that is open stays readable without a name, and while it is held it does not become a spare.
//!
//! A copy is the database as a power failure right after step 2 would leave it: opening it is an ordinary recovery. Until its
//! superblock is there, a directory holds no database.
//!
//! Rejected: a copy of all files as they are, for which the log would have to stand still, or its end be looked for; a copy of
//! keys and values out of a snapshot, which loses sessions and versions and takes a transaction for each.

use std::path::Path;
use std::sync::Arc;

use super::{Kiln, open};
use crate::device::{AlignedBuffer, BLOCK_BYTES, Device, DeviceFile, FileDevice, OpenMode};
use crate::error::{Error, Result};
use crate::kernel::clock::Version;
use crate::kernel::engine::Engine;
use crate::storage::checkpoint;
use crate::storage::scanner::Scanner;
use crate::storage::segments::{Held, Segments};
use crate::storage::superblock::{CheckpointName, Superblock, SuperblockFile};
use crate::storage::tree::{Root, Tree};
use crate::sync::atomic::Ordering;

/// How far a backup has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupProgress {
    /// Bytes that were copied.
    pub done_bytes: u64,
    /// Bytes that there are to copy.
    pub total_bytes: u64,
}

/// A finished backup.
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
    /// files that are dropped meanwhile keep their space until the end.
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
    /// or is full, `Lost` or `Aborted` if the database has failed or is closed. The directory is left empty then.
    pub fn backup(
        &self,
        directory: impl AsRef<Path>,
        progress: impl FnMut(BackupProgress),
    ) -> Result<Backup> {
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
        let is_closed = || engine.closed.load(Ordering::SeqCst);
        if is_closed() {
            return Err(Error::closed());
        }
        let _lock = open::lock(&*device)?;
        let names = device.list().map_err(|error| Error::io("listing the directory for a backup", error))?;
        if let Some(name) = names.first() {
            let place = device.describe(name);
            return Err(Error::input(format!(
                "{place} is there already; name an empty directory for a backup"
            )));
        }
        let source = Source::of(engine)?;
        let copied = Copying { source: &source, device: &device, progress, done_bytes: 0 }.run();
        if copied.is_err() {
            // What cannot be removed either is no database without its superblock.
            for name in device.list().unwrap_or_default() {
                let _ = device.remove(&name);
            }
        }
        // Who opens the database then knows of no backup, and may use its files again.
        copied.map_err(|error| if is_closed() { Error::closed() } else { error })
    }
}

/// What a copy is made of: the durable log at some moment.
struct Source<'a> {
    segments: Held<'a>,
    /// The copy's.
    superblock: Superblock,
    checkpoint: Option<Arc<dyn DeviceFile>>,
    tree: &'a Arc<Tree>,
    root: Arc<Root>,
    /// About how many bytes the root's tree has.
    tree_bytes: u64,
    horizon: u64,
}

impl<'a> Source<'a> {
    fn of(engine: &'a Engine) -> Result<Source<'a>> {
        engine.harden_all()?;
        loop {
            // Before the end: nothing has settled that is not in the log that is copied, or was before.
            let root = engine.settled.tree.root();
            let end = engine.durable_end();
            // While it is locked no segment is dropped that it needs, and no checkpoint that it names.
            let superblock = engine.superblock.lock();
            let current = superblock.current();
            let has_settled_since = current.settled_to > root.settled_to() || current.loaded > root.loaded();
            if current.known_end > end.address || current.begin > end.address || has_settled_since {
                continue;
            }
            let segments = engine.segments.hold();
            let named = current.usable_checkpoint();
            let open = |named: CheckpointName| {
                let name = checkpoint::name_of(named.number);
                let opened = segments.device().open(&name, OpenMode::Read);
                opened.map_err(|error| {
                    Error::io(format_args!("opening {}", segments.device().describe(&name)), error)
                })
            };
            let superblock = Superblock {
                generation: 1,
                known_end: end.address,
                known_end_checksum: end.chain_checksum,
                clean: false,
                checkpoint: named.unwrap_or(CheckpointName { end: 0, ..current.checkpoint }),
                ..current.clone()
            };
            let checkpoint = named.map(open).transpose()?;
            let tree = &engine.settled.tree;
            let tree_bytes =
                if root.settled_to() > 0 || root.loaded() > 0 { tree.statistics().used_bytes } else { 0 };
            return Ok(Source {
                segments,
                superblock,
                checkpoint,
                tree,
                root,
                tree_bytes,
                horizon: end.horizon,
            });
        }
    }
}

/// A copy that is being made.
struct Copying<'a, P> {
    source: &'a Source<'a>,
    device: &'a Arc<dyn Device>,
    progress: P,
    done_bytes: u64,
}

impl<P: FnMut(BackupProgress)> Copying<'_, P> {
    fn run(mut self) -> Result<Backup> {
        let Source { superblock, horizon, .. } = self.source;
        self.advance(0);
        self.copy_log()?;
        self.copy_tree()?;
        if let Some(file) = &self.source.checkpoint {
            self.copy_checkpoint(&**file).map_err(|error| Error::io("copying a checkpoint", error))?;
        }
        SuperblockFile::create(&**self.device, superblock.clone())?;
        Ok(Backup { horizon: Version::new(*horizon), bytes: self.done_bytes })
    }

    fn copy_log(&mut self) -> Result<()> {
        let Source { segments: source, superblock, .. } = self.source;
        let target = Segments::open(self.device.clone(), superblock.segment_bytes, OpenMode::ReadWrite)?;
        target.cut_at(superblock.begin, false)?;
        let mut scanner = Scanner::new(source, superblock);
        let mut written = superblock.begin;
        while written < superblock.known_end {
            let Some(extent) = scanner.next()? else {
                return Err(source.corrupted(written, "the log ends here, and should go on"));
            };
            let (start, end) = (extent.seal.address, extent.seal.end());
            if target.prepared_end() <= start {
                target.prepare_next(false)?;
            }
            // The last extent in a segment syncs all of it.
            let is_last = end.is_multiple_of(superblock.segment_bytes) || end == superblock.known_end;
            target
                .write(start, extent.bytes)
                .and_then(|()| if is_last { target.sync(start) } else { Ok(()) })
                .map_err(|error| Error::io("writing a backup", error))?;
            written = end;
            self.advance(end - start);
        }
        Ok(())
    }

    fn copy_tree(&mut self) -> Result<()> {
        let Source { tree, root, tree_bytes, .. } = self.source;
        if root.settled_to() == 0 && root.loaded() == 0 {
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

    fn copy_checkpoint(&mut self, source: &dyn DeviceFile) -> std::io::Result<()> {
        const PIECE_BYTES: usize = 1 << 20;
        let name = checkpoint::name_of(self.source.superblock.checkpoint.number);
        let target = self.device.open(&name, OpenMode::Create)?;
        let (size, mut offset) = (source.size()?, 0);
        let mut buffer = AlignedBuffer::new(PIECE_BYTES.min(size as usize).next_multiple_of(BLOCK_BYTES));
        while offset < size {
            // A short read would be met by the checkpoint's own checksums, as damage to it is.
            let read = source.read_at(&mut buffer, offset)?.next_multiple_of(BLOCK_BYTES);
            if read == 0 {
                break;
            }
            target.write_at(&buffer[..read], offset)?;
            offset += read as u64;
            self.advance(read as u64);
        }
        target.sync()
    }

    fn advance(&mut self, bytes: u64) {
        let Source { superblock, checkpoint, tree_bytes, .. } = self.source;
        let checkpoint_bytes = checkpoint.as_ref().and_then(|file| file.size().ok()).unwrap_or(0);
        self.done_bytes += bytes;
        let total_bytes = superblock.known_end - superblock.begin + checkpoint_bytes + tree_bytes;
        (self.progress)(BackupProgress { done_bytes: self.done_bytes, total_bytes });
    }
}
