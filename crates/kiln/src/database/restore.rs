//! Restoring: a backup, or any database that nobody has open, becomes a database elsewhere.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::backup::{Backup, BackupProgress, Copying, Source, into_empty};
use super::check::{file_device, open_offline};
use super::{Kiln, open, stream};
use crate::device::{Device, DeviceLock, FileDevice, OpenMode};
use crate::error::{Error, Result};
use crate::storage::segments::Segments;
use crate::storage::superblock::Superblock;
use crate::storage::tree::Tree;

/// Memory for the tree's nodes.
const CACHE_BYTES: usize = 4 << 20;

impl Kiln {
    /// Copies a backup, or a database that nobody has open, from one directory into another, which is empty or not there. Every checksum is compared on
    /// the way: the log's extents and their order, the tree's nodes and values, the index checkpoint's blocks. A checkpoint that is damaged or missing is left out: all that
    /// it says is in the log, which takes longer to open. What has come out is durable when this returns, and a database of the same identity.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let (path, backup, restored) =
    /// #     (directory.path().join("ads.kiln"), directory.path().join("backup"), directory.path().join("restored"));
    /// use kiln::Kiln;
    ///
    /// # let db = Kiln::open(path)?;
    /// db.backup(&backup, |_| {})?;
    /// Kiln::restore(&backup, &restored, |progress| println!("{} bytes", progress.done_bytes))?;
    /// let restored = Kiln::open(restored)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` if there is no database, `Version` if it is a newer Kiln's, `Locked` if somebody has it open, or makes another copy in the same directory, `Input` if there is something in the directory that is to be made,
    /// `Corrupted` if the backup is damaged, naming file and offset, `Io` or `NoSpace` if either disk fails or is full. Nothing is left behind then, not even the directory if it was not there.
    pub fn restore(
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        progress: impl FnMut(BackupProgress),
    ) -> Result<Backup> {
        // Looked at first: if there is nothing to be restored no directory is made for it.
        let origin = Origin::open(file_device(from.as_ref())?)?;
        origin.restore(directory(to.as_ref())?, progress)
    }

    /// As [`Self::restore`], from one device onto another.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn restore_on(
        from: Arc<dyn Device>,
        to: Arc<dyn Device>,
        progress: impl FnMut(BackupProgress),
    ) -> Result<Backup> {
        Origin::open(from)?.restore(to, progress)
    }

    /// Makes a database of a stream that [`Kiln::backup_stream`] has written, in a directory that is empty or not there. Nothing behind the stream's end is
    /// read. `progress` does not know how much there is to come: the total is what has come.
    ///
    /// # Errors
    /// `Input` if there is something in the directory; `Corrupted` if the stream ends early, or is not what was written, with the offset of the frame; `Version` if it has
    /// a newer format than this Kiln knows (whether the database in it has, opening tells); `Io` or `NoSpace` if reading fails, or the disk. Nothing is left behind then, not even the directory if it was not there.
    pub fn restore_stream(
        from: impl Read,
        to: impl AsRef<Path>,
        progress: impl FnMut(BackupProgress),
    ) -> Result<Backup> {
        Kiln::restore_stream_on(from, directory(to.as_ref())?, progress)
    }

    /// As [`Self::restore_stream`], onto a device.
    ///
    /// # Errors
    /// As [`Self::restore_stream`].
    pub fn restore_stream_on(
        from: impl Read,
        to: Arc<dyn Device>,
        progress: impl FnMut(BackupProgress),
    ) -> Result<Backup> {
        into_empty(&to, || stream::replay(&*to, from, progress))
    }
}

/// A database that nobody has open, to be restored from.
struct Origin {
    segments: Segments,
    superblock: Superblock,
    tree: Arc<Tree>,
    _lock: Box<dyn DeviceLock>,
}

impl Origin {
    fn open(device: Arc<dyn Device>) -> Result<Origin> {
        let (segments, superblock, _lock) = open_offline(device)?;
        let tree = open::open_tree(segments.names(), CACHE_BYTES, &superblock, OpenMode::Read)?;
        Ok(Origin { segments, superblock, tree: Arc::new(tree), _lock })
    }

    fn restore(&self, to: Arc<dyn Device>, progress: impl FnMut(BackupProgress)) -> Result<Backup> {
        let source = Source::at_rest(&self.superblock, &self.segments, &self.tree);
        into_empty(&to, || Copying::new(&source, &to, progress).run())
    }
}

fn directory(path: &Path) -> Result<Arc<dyn Device>> {
    let opened = FileDevice::open(path, true);
    let device = opened.map_err(|error| Error::io(format_args!("opening {}", path.display()), error))?;
    Ok(Arc::new(device))
}
