//! Memory control groups: what a contestant's process may have in all, the system's page cache for its files included. Without one an engine whose
//! cache is small has all of a small database in the page cache, and is compared with one that reads past it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// A control group of one process. Dropping it, once the process has ended, removes it.
#[derive(Debug)]
pub(super) struct MemoryGroup {
    path: PathBuf,
    limit_file: &'static str,
}

/// Where groups are made, and how a limit is set there.
#[derive(Debug, PartialEq, Eq)]
struct Controller {
    root: PathBuf,
    limit_file: &'static str,
}

impl Controller {
    /// The system's, as it tells in a list of what is mounted. `has_memory` says whether the second version's hierarchy there controls memory.
    fn find(mounts: &str, has_memory: impl Fn(&Path) -> bool) -> Option<Controller> {
        let mounted = mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((Path::new(fields.next()?), fields.next()?, fields.next()?))
        });
        mounted.into_iter().find_map(|(root, kind, options)| {
            let limit_file = match kind {
                "cgroup" if options.split(',').any(|option| option == "memory") => "memory.limit_in_bytes",
                "cgroup2" if has_memory(root) => "memory.max",
                _ => return None,
            };
            Some(Controller { root: root.to_owned(), limit_file })
        })
    }
}

impl MemoryGroup {
    /// A group without a limit as yet.
    ///
    /// # Errors
    /// Where the system has no such groups, or this user may not make one.
    pub(super) fn create() -> Result<MemoryGroup> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/self/mounts").context("cannot see what is mounted")?;
        let has_memory = |root: &Path| {
            let controllers = fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default();
            controllers.split_whitespace().any(|controller| controller == "memory")
        };
        let Some(Controller { root, limit_file }) = Controller::find(&mounts, has_memory) else {
            bail!("no control groups for memory are mounted");
        };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("kiln-bench-{}-{number}", std::process::id()));
        let cannot = || format!("cannot make the control group {}: that takes root's rights", path.display());
        fs::create_dir(&path).with_context(cannot)?;
        Ok(MemoryGroup { path, limit_file })
    }

    /// From now on it may have so much. What it has beyond that of the page cache it loses.
    ///
    /// # Errors
    /// Where it has more, and needs it.
    pub(super) fn limit(&self, bytes: u64) -> Result<()> {
        let cannot = || format!("an engine's process cannot do with {} MiB of memory", bytes >> 20);
        fs::write(self.path.join(self.limit_file), bytes.to_string()).with_context(cannot)?;
        // Where there is swap; the first version's limit is the same file's.
        if self.limit_file == "memory.max" {
            let _ = fs::write(self.path.join("memory.swap.max"), "0");
        }
        Ok(())
    }

    /// Takes a process in, which has used next to nothing yet: what it has stays where it was charged.
    pub(super) fn add(&self, process: u32) -> Result<()> {
        fs::write(self.path.join("cgroup.procs"), process.to_string()).context("cannot fill a control group")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A process that has just ended may be counted for a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        eprintln!("kiln-bench: the control group {} is left behind", self.path.display());
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_hierarchy_that_controls_memory_is_found() {
        let first = "proc /proc proc rw 0 0\ncgroup /groups/cpu cgroup rw,cpu 0 0\ncgroup /groups/memory cgroup rw,memory 0 0\n\
                     cgroup2 /groups/unified cgroup2 rw 0 0\n";
        let found = |mounts: &str, has_memory| {
            Controller::find(mounts, |_| has_memory).map(|found| (found.root, found.limit_file))
        };
        assert_eq!(found(first, false), Some((PathBuf::from("/groups/memory"), "memory.limit_in_bytes")));
        let second = "cgroup2 /groups cgroup2 rw,nosuid 0 0\n";
        assert_eq!(found(second, true), Some((PathBuf::from("/groups"), "memory.max")));
        assert_eq!(found(second, false), None);
        assert_eq!(found("", true), None);
    }

    /// Where this user may: who may not is told.
    #[test]
    fn a_process_in_a_group_cannot_have_more_than_its_limit() {
        let group = match MemoryGroup::create() {
            Ok(group) => group,
            Err(error) => return eprintln!("left out: {error:#}"),
        };
        group.limit(32 << 20).unwrap();
        // Waits for a line, so that it is in the group before it takes anything.
        let mut process = Command::new("sh")
            .args(["-c", "read line; exec head -c $line /dev/zero | tail -c $line > /dev/null"])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        group.add(process.id()).unwrap();
        use std::io::Write;
        writeln!(process.stdin.take().unwrap(), "{}", 256 << 20).unwrap();
        assert!(!process.wait().unwrap().success(), "256 MiB were kept in 32");
        let path = group.path.clone();
        drop(group);
        assert!(!path.exists());
    }
}
