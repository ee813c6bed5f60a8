//! The directory that a run's data lives in: made, guarded and removed by the run.
//!
//! The directory holds a marker from its first moment, and everything in it belongs to the tool. Anything else is somebody's data,
//! and is refused. The marker is locked while the run lives, so that a second run refuses too; a marker that nobody locks was
//! left by a run that was killed, and its directory is taken over.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

const MARKER: &str = ".kiln-bench-data";
/// With less room than this an engine's next file or segment does not fit.
const FULL_BYTES: u64 = 64 << 20;

/// Where a path leads, whatever links are on its way, and though its end is not there yet.
fn resolved(path: &Path) -> PathBuf {
    // As many links as the system follows.
    resolved_within(path, 40)
}

fn resolved_within(path: &Path, links: u32) -> PathBuf {
    if let Ok(found) = fs::canonicalize(path) {
        return found;
    }
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else { return absolute };
    match fs::read_link(&absolute) {
        Ok(to) if links > 0 => resolved_within(&parent.join(to), links - 1),
        _ => resolved_within(parent, links).join(name),
    }
}

/// The directory of a run. Dropping it removes the directory.
pub(crate) struct Scratch {
    path: PathBuf,
    /// Whether the directory itself was made here, and not found empty.
    made: bool,
    /// Holds the lock.
    _marker: File,
}

impl Scratch {
    /// The directory for measurements that need so much room, and whose results are to be in the file. Says what makes their figures worthless.
    pub(crate) fn for_measuring(path: &Path, results: Option<&Path>, bytes: u64) -> Result<Scratch> {
        // It is removed in the end, with all that is in it; and cleared before.
        if let Some(results) = results {
            ensure!(
                !resolved(results).starts_with(resolved(path)),
                "{} would be removed with {} at the end; name a result file elsewhere",
                results.display(),
                path.display()
            );
        }
        if cfg!(debug_assertions) {
            eprintln!("kiln-bench: this is a debug build, its figures mean nothing: use cargo run --release");
        }
        let scratch = Scratch::create(path)?;
        scratch.require_space(bytes)?;
        if scratch.in_memory() {
            let path = path.display();
            eprintln!("kiln-bench: {path} is in memory: nothing about durability can be measured there");
        }
        Ok(scratch)
    }

    /// Makes the directory, or takes an empty or abandoned one.
    pub(crate) fn create(path: &Path) -> Result<Scratch> {
        let made = match fs::create_dir(path) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make the directory {}", path.display()));
            }
        };
        let marker_path = path.join(MARKER);
        let empty =
            fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?.next().is_none();
        ensure!(
            empty || marker_path.is_file(),
            "{} holds data that is not kiln-bench's own, and is left alone; name another directory with --dir",
            path.display()
        );
        let marker =
            File::create(&marker_path).with_context(|| format!("cannot write to {}", path.display()))?;
        match marker.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "another kiln-bench is using {}; wait for it or name another directory with --dir",
                    path.display()
                )
            }
            Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the data directory"),
        }
        let scratch = Scratch { path: fs::canonicalize(path)?, made, _marker: marker };
        scratch.clear()?;
        // A run inside a repository leaves nothing for git to see even while it lasts.
        fs::write(scratch.path.join(".gitignore"), "*\n")?;
        Ok(scratch)
    }

    /// A path inside the directory.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes an empty directory inside the directory, and returns its path.
    pub(crate) fn make(&self, name: &str) -> Result<PathBuf> {
        self.remove(name)?;
        let path = self.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make the directory {}", path.display()))?;
        Ok(path)
    }

    /// Removes one entry, if it is there.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        remove(&self.join(name))
    }

    /// Fails if the disk has less room than this, before time is spent and somebody else's disk is full.
    pub(crate) fn require_space(&self, bytes: u64) -> Result<()> {
        let free = self.free_bytes()?;
        ensure!(
            free >= bytes,
            "{} has {} MiB free and {} MiB are needed; free some space, name another disk with --dir, or measure less \
             (fewer --records or --engines, shorter --seconds, fewer --rounds)",
            self.path.display(),
            free >> 20,
            bytes >> 20
        );
        Ok(())
    }

    /// What to say of the disk when something has failed that may have found it full. Some engines do not say so: what is mapped and
    /// cannot be written ends the process with SIGBUS.
    pub(crate) fn fullness(&self) -> Option<String> {
        self.fullness_below(FULL_BYTES)
    }

    fn fullness_below(&self, bytes: u64) -> Option<String> {
        let free = self.free_bytes().ok().filter(|&free| free < bytes)?;
        Some(format!("the disk is full: {} has {} MiB free", self.path.display(), free >> 20))
    }

    /// Whether the directory is on a file system in memory, where nothing is durable.
    pub(crate) fn in_memory(&self) -> bool {
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        rustix::fs::statfs(&self.path).is_ok_and(|status| status.f_type as u64 == TMPFS_MAGIC)
    }

    fn free_bytes(&self) -> Result<u64> {
        let status = rustix::fs::statvfs(&self.path).context("cannot ask for the free space of the disk")?;
        Ok(status.f_bavail.saturating_mul(status.f_frsize))
    }

    fn clear(&self) -> Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_name() != MARKER {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The marker goes last: if the removal stops half-way, the directory is still known as the tool's own.
        let removed = self.clear().and_then(|()| {
            fs::remove_file(self.path.join(MARKER))?;
            if self.made {
                fs::remove_dir(&self.path)?;
            }
            Ok(())
        });
        if let Err(error) = removed {
            eprintln!("kiln-bench: {} could not be removed: {error:#}", self.path.display());
        }
    }
}

/// The bytes that the files below a directory take on the disk.
pub(crate) fn disk_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

/// Has the system write what it keeps of the files below a directory, and waits for it. Not for a process that has them open: closing
/// a file gives up the process's locks on it.
pub(crate) fn write_back(path: &Path) -> Result<()> {
    use rustix::fs::{Mode, OFlags, fdatasync, open};
    for entry in fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?.flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        if kind.as_ref().is_ok_and(fs::FileType::is_dir) {
            write_back(&path)?;
        } else if kind.is_ok_and(|kind| kind.is_file()) {
            // An engine may just have removed it.
            if let Ok(file) = open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
                fdatasync(file).with_context(|| format!("cannot write back {}", path.display()))?;
            }
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    let result = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_directory_is_removed_at_the_end() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        let scratch = Scratch::create(&path).unwrap();
        fs::create_dir(scratch.join("database")).unwrap();
        fs::write(scratch.join("database/file"), "x").unwrap();
        assert!(disk_bytes(&path) > 0);
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn an_empty_directory_is_used_and_stays() {
        let parent = tempfile::tempdir().unwrap();
        drop(Scratch::create(parent.path()).unwrap());
        assert!(fs::read_dir(parent.path()).unwrap().next().is_none());
    }

    #[test]
    fn other_data_is_refused_and_untouched() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("letter"), "dear").unwrap();
        let error = Scratch::create(parent.path()).map(drop).unwrap_err();
        assert!(error.to_string().contains("left alone"), "{error}");
        assert_eq!(fs::read_to_string(parent.path().join("letter")).unwrap(), "dear");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_in_use_is_refused_and_an_abandoned_one_taken_over() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        let scratch = Scratch::create(&path).unwrap();
        assert!(Scratch::create(&path).map(drop).unwrap_err().to_string().contains("another kiln-bench"));
        drop(scratch);
        fs::create_dir(&path).unwrap();
        fs::write(path.join(MARKER), "").unwrap();
        fs::write(path.join("left"), "x").unwrap();
        let scratch = Scratch::create(&path).unwrap();
        assert!(!scratch.join("left").exists());
    }

    #[test]
    fn a_link_is_followed_though_nothing_is_there_yet_and_one_that_goes_round_is_not_for_ever() {
        let parent = tempfile::tempdir().unwrap();
        let here = fs::canonicalize(parent.path()).unwrap();
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, here.join(name)).unwrap();
        link("data/results.json", "link");
        link("link", "link to it");
        link("round", "round");
        assert_eq!(resolved(&here.join("link to it")), here.join("data/results.json"));
        assert_eq!(resolved(&here.join("round")), here.join("round"));
        let error =
            Scratch::for_measuring(&here.join("data"), Some(&here.join("link")), 0).map(drop).unwrap_err();
        assert!(error.to_string().contains("name a result file elsewhere"), "{error}");
    }

    #[test]
    fn a_short_disk_is_said_clearly() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::create(&parent.path().join("data")).unwrap();
        scratch.require_space(1).unwrap();
        assert!(scratch.require_space(u64::MAX).unwrap_err().to_string().contains("MiB are needed"));
        assert!(scratch.fullness_below(u64::MAX).unwrap().contains("the disk is full"));
        assert_eq!(scratch.fullness_below(0), None);
    }
}
