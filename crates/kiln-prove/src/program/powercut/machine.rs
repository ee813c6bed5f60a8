//! A machine of which nothing but its disk outlives a power cut.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, MountOption};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};

use super::layer::Layer;
use super::power::Power;
use super::volume::{DATABASE, Volume};

/// How long a file system may be busy before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(10);

/// From here on, what this thread and its children mount is seen by nobody else, and goes when they are gone.
pub(super) fn leave_common_mounts() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let nothing = None::<&str>;
    Ok(mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?)
}

/// A running machine.
pub(super) struct Machine {
    volume: Volume,
    power: Arc<Power>,
    session: BackgroundSession,
    point: PathBuf,
}

impl Machine {
    /// Mounts a disk at an empty directory.
    pub(super) fn boot(volume: Volume, point: &Path) -> io::Result<Machine> {
        let power = Arc::new(Power::new(volume.disk.clone()));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("kiln-prove".to_owned())];
        let session = fuser::spawn_mount(Layer::new(volume.clone(), power.clone()), point, &config)?;
        Ok(Machine { volume, power, session, point: point.to_owned() })
    }

    /// The database's directory.
    pub(super) fn database(&self) -> PathBuf {
        self.point.join(DATABASE)
    }

    pub(super) fn power(&self) -> &Arc<Power> {
        &self.power
    }

    /// Cuts the power, if it is still on, and returns the disk with all that was held back. Nobody may use the machine any more.
    pub(super) fn cut(self) -> Volume {
        let Machine { volume, power, session, point } = self;
        power.cut();
        power.answer_the_dead();
        // Whoever is just being started from another thread of this process has all files open for a moment.
        let end = Instant::now() + PATIENCE;
        while let Err(error) = umount(&point) {
            let may_be_over = error == Errno::EBUSY && Instant::now() < end;
            assert!(may_be_over, "{} cannot be unmounted: {error}", point.display());
            std::thread::sleep(Duration::from_millis(1));
        }
        match session.join() {
            // A thread of it that was just about to wait for the next request is told so.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            ended => ended.expect("the file system ends without an error"),
        }
        volume
    }
}
