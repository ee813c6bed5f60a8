//! What a process has used so far, from `/proc`.

use std::fs;

/// What a process has used so far. Zero where the system does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// Processor time in seconds, user and system.
    pub(crate) cpu_s: f64,
    /// The most memory that it has held.
    pub(crate) rss_bytes: u64,
    /// Bytes that it caused to be written to devices.
    pub(crate) device_bytes: u64,
}

impl Usage {
    /// This process.
    pub(crate) fn own() -> Usage {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        // Another process's is known in ticks of 10 ms only.
        Usage { cpu_s: time.tv_sec as f64 + time.tv_nsec as f64 / 1e9, ..Usage::of(std::process::id()) }
    }

    /// Has the most memory that this process has held be what it holds now, where the system allows it.
    pub(crate) fn forget_peak() {
        // "5" is that of all that can be forgotten. Where it cannot, the peak is that since the process began.
        let _ = fs::write("/proc/self/clear_refs", "5");
    }

    /// Any process of the same user.
    pub(crate) fn of(pid: u32) -> Usage {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        Usage {
            cpu_s: cpu_seconds(&read("stat")),
            rss_bytes: number_after(&read("status"), "VmHWM:") * 1024,
            device_bytes: number_after(&read("io"), "\nwrite_bytes:"),
        }
    }

    /// What was used in this time and in a later one.
    pub(crate) fn and(self, later: Usage) -> Usage {
        Usage {
            cpu_s: self.cpu_s + later.cpu_s,
            rss_bytes: later.rss_bytes,
            device_bytes: self.device_bytes + later.device_bytes,
        }
    }

    /// What was used since `earlier`; memory is the most so far.
    pub(crate) fn since(self, earlier: Usage) -> Usage {
        Usage {
            cpu_s: (self.cpu_s - earlier.cpu_s).max(0.0),
            rss_bytes: self.rss_bytes,
            device_bytes: self.device_bytes.saturating_sub(earlier.device_bytes),
        }
    }
}

/// Clock ticks a second in `/proc`: fixed by Linux's ABI on all architectures that Kiln runs on.
pub(crate) const TICKS_PER_SECOND: f64 = 100.0;

fn cpu_seconds(stat: &str) -> f64 {
    // The second field is the program's name in parentheses, which may hold spaces: count from behind it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / TICKS_PER_SECOND
}

fn number_after(text: &str, label: &str) -> u64 {
    text.split_once(label)
        .and_then(|(_, rest)| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_a_name_with_spaces_and_parentheses() {
        let stat = "12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 250 0 0 20";
        assert_eq!(cpu_seconds(stat), 4.0);
        assert_eq!(cpu_seconds(""), 0.0);
    }

    #[test]
    fn labelled_numbers_are_found_whole() {
        let io = "rchar: 5\nwchar: 6\nwrite_bytes: 4096\ncancelled_write_bytes: 1\n";
        assert_eq!(number_after(io, "\nwrite_bytes:"), 4096);
        assert_eq!(number_after(io, "missing:"), 0);
    }

    #[test]
    fn a_peak_that_was_forgotten_is_not_told() {
        const HELD_BYTES: u64 = 256 << 20;
        if fs::write("/proc/self/clear_refs", "5").is_err() {
            return;
        }
        // Other tests may have it forgotten just then.
        let told = (0..100).find_map(|_| {
            drop(std::hint::black_box(vec![1_u8; HELD_BYTES as usize]));
            Some(Usage::own().rss_bytes).filter(|&told| told >= HELD_BYTES)
        });
        let before = told.expect("a peak is told");
        Usage::forget_peak();
        // Other tests hold some meanwhile.
        assert!(Usage::own().rss_bytes < before - HELD_BYTES / 2);
    }

    #[test]
    fn this_process_has_memory() {
        let used = Usage::own();
        assert!(used.rss_bytes > 0);
        // Reading it takes a small part of a tick.
        assert!(Usage::own().since(used).cpu_s > 0.0);
        assert_eq!(Usage::of(u32::MAX), Usage::default());
    }
}
