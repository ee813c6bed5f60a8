//! Databases and servers of many kinds, as a seed wants them.

use std::path::PathBuf;

use kiln::{Kiln, Options};
use tempfile::TempDir;

use crate::arguments::Rounds;
use crate::support::Random;

/// Options of a server: mostly so little memory that the log goes round often, and at times little space, so that it is compacted, or files that go
/// through the system's page cache.
pub(super) fn server_arguments(rounds: &Rounds, random: &mut Random) -> Vec<String> {
    let memory = random.pick(&["4MiB", "16MiB", "64MiB"]);
    let window = random.pick(&["2ms", "20ms", "100ms"]);
    let space = random.pick(&["1.1", "2"]);
    let mut arguments = vec!["--memory", memory, "--window", window, "--space-amplification", space];
    if random.one_in(3) {
        arguments.push("--system-page-cache");
    }
    arguments.extend(rounds.server_arguments());
    arguments.into_iter().map(str::to_owned).collect()
}

/// Most databases have small segments, of which a short load fills many, and are made beforehand: servers make large ones.
pub(super) fn prepare(random: &mut Random, open: impl FnOnce(&Options) -> kiln::Result<Kiln>) {
    if random.one_in(4) {
        return;
    }
    let options =
        Options::new().background(false).memory(1 << 20).segment_bytes(256 << 10 << random.below(3));
    open(&options).and_then(|db| db.close()).expect("an empty database can be made");
}

/// Where a database is. It stays there if something is wrong with it.
pub(super) struct Directory(TempDir);

impl Directory {
    pub(super) fn new() -> Directory {
        Directory(tempfile::tempdir().expect("a temporary directory can be made"))
    }

    /// The database, which is yet to be made.
    pub(super) fn database(&self) -> PathBuf {
        self.0.path().join("database")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.disable_cleanup(true);
            eprintln!("the database is in {}", self.0.path().display());
        }
    }
}
