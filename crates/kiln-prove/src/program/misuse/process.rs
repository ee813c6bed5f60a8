//! What the system says about a running server.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

/// How long the server may take to clean up.
const SOON: Duration = Duration::from_secs(10);
/// Between two looks.
const EVERY: Duration = Duration::from_millis(20);

/// A server's process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) port: u16,
}

impl Process {
    fn file(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.pid)
    }

    /// A line of what the system says about its memory, in MiB.
    fn status(&self, name: &str) -> u64 {
        let status = fs::read_to_string(self.file("status")).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("Linux counts pages");
        let kibibytes = line.trim_start_matches(':').trim().trim_end_matches(" kB");
        kibibytes.parse::<u64>().expect("a number of kB") / 1024
    }

    /// Its resident memory in MiB.
    pub(super) fn resident(&self) -> u64 {
        self.status("VmRSS")
    }

    /// The most that was resident since [`Self::forget_peak`].
    pub(super) fn peak(&self) -> u64 {
        self.status("VmHWM")
    }

    pub(super) fn forget_peak(&self) {
        fs::write(self.file("clear_refs"), "5").expect("the server is a child of this program");
    }

    /// Fails unless there is no more resident, in MiB, soon.
    pub(super) fn assert_returns_to(&self, bound: u64) {
        let end = Instant::now() + SOON;
        while self.resident() > bound {
            assert!(Instant::now() < end, "{} MiB are still resident, {bound} may be", self.resident());
            std::thread::sleep(EVERY);
        }
    }

    /// Fails unless the system asks from time to time whether the clients with these ports are still there.
    pub(super) fn assert_probes(&self, clients: &BTreeSet<u16>) {
        let end = Instant::now() + SOON;
        while !clients.is_subset(&self.probed()) {
            assert!(Instant::now() < end, "nobody will notice that a client has vanished");
            std::thread::sleep(EVERY);
        }
    }

    /// The ports of the clients whose connections have a timer for keepalive, and nothing else to wait for.
    fn probed(&self) -> BTreeSet<u16> {
        const ESTABLISHED: &str = "01";
        const KEEPALIVE: &str = "02:";
        let port = |address: &str| u16::from_str_radix(address.split_once(':')?.1, 16).ok();
        let probed = |line: &str| {
            // Number, local address, remote address, state, bytes in queues, timer and when, ...
            let fields: Vec<_> = line.split_whitespace().collect();
            match fields[..] {
                [_, local, remote, ESTABLISHED, _, timer, ..] => {
                    (port(local)? == self.port && timer.starts_with(KEEPALIVE)).then(|| port(remote))?
                }
                _ => None,
            }
        };
        let table = fs::read_to_string(self.file("net/tcp")).expect("the server has a network");
        table.lines().filter_map(probed).collect()
    }
}
