//! The machine that a run was made on, and whether it had anything else to do.

use std::fs;
use std::time::Instant;

use crate::usage::{TICKS_PER_SECOND, Usage};

/// What describes the machine, for the head of a report.
pub(crate) fn description() -> String {
    let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu_info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .and_then(|rest| rest.split_once(':'))
        .map_or("unknown processor", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory_kib = memory_kib("MemTotal:");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{model}, {cores} cores, {} GiB, Linux {}", (memory_kib + (1 << 19)) >> 20, kernel.trim())
}

/// Memory that can be had without swapping.
pub(crate) fn available_memory_bytes() -> u64 {
    memory_kib("MemAvailable:") << 10
}

fn memory_kib(label: &str) -> u64 {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    memory
        .lines()
        .find_map(|line| line.strip_prefix(label))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Watches for some time what else the machine did.
pub(crate) struct Watch {
    child: Option<u32>,
    started: Instant,
    load_before: f64,
    system: SystemTicks,
    own: f64,
    kernel: f64,
}

impl Watch {
    /// Begins to watch. What this process does and the child process with this number is not "else".
    pub(crate) fn start(child: Option<u32>) -> Watch {
        Watch {
            child,
            started: Instant::now(),
            load_before: load_average(),
            system: SystemTicks::read(),
            own: own_seconds(child),
            kernel: kernel_seconds(),
        }
    }

    /// What was seen. All other child processes must have been waited for, or their time counts as somebody else's.
    pub(crate) fn finish(&self) -> Idleness {
        let system = SystemTicks::read();
        let seconds = self.started.elapsed().as_secs_f64().max(0.001);
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let busy_s = (system.busy - self.system.busy) / TICKS_PER_SECOND;
        let own_s = own_seconds(self.child) - self.own;
        // What the kernel's own threads do, they do for who writes: for an engine as a rule.
        let kernel_s = kernel_seconds() - self.kernel;
        Idleness {
            load_before: self.load_before,
            // Ticks are coarse, so that a short measurement may find a little less than nothing: cutting that off would make the
            // mean of many too high.
            others: ((busy_s - own_s - kernel_s) / (seconds * cores)).clamp(-1.0, 1.0),
            steal: ((system.steal - self.system.steal) / TICKS_PER_SECOND / (seconds * cores))
                .clamp(0.0, 1.0),
        }
    }
}

/// How idle the machine was, apart from the run itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idleness {
    /// The load average over the minute before the run.
    pub(crate) load_before: f64,
    /// The part of all processor time that other processes took.
    pub(crate) others: f64,
    /// The part of all processor time that the host gave to other machines.
    pub(crate) steal: f64,
}

/// With more of the processors' time taken by other processes, figures are off by more than their noise.
pub(crate) const OTHERS_MAX: f64 = 0.10;
/// With more of it taken by other machines on the same hardware, too. Nobody here can do anything about less.
pub(crate) const STEAL_MAX: f64 = 0.05;

impl Idleness {
    /// What a reader of the figures must know about it.
    pub(crate) fn verdict(&self) -> String {
        let idle = self.others <= OTHERS_MAX && self.steal <= STEAL_MAX;
        // The load before is told, but what matters is what others took meanwhile: whoever has just built the tool leaves a load.
        format!(
            "{} (load {:.2} before the run; other processes took {:.1}% of the processors, other machines {:.1}%).",
            if idle {
                "The machine was idle otherwise"
            } else {
                "THE MACHINE WAS NOT IDLE: stop what else runs and measure again, or read the figures as ratios"
            },
            self.load_before,
            self.others.max(0.0) * 100.0,
            self.steal * 100.0
        )
    }
}

fn load_average() -> f64 {
    fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(0.0)
}

/// Processor time of the whole machine since it started, in ticks.
struct SystemTicks {
    busy: f64,
    steal: f64,
}

impl SystemTicks {
    fn read() -> SystemTicks {
        SystemTicks::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(stat: &str) -> SystemTicks {
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<f64> =
            line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0.0);
        // user, nice, system, idle, iowait, irq, softirq, steal. Interrupts are mostly those of what is measured.
        SystemTicks { busy: at(0) + at(1) + at(2), steal: at(7) }
    }
}

/// Processor time of this process, of the child processes that it has waited for, and of one that runs.
fn own_seconds(child: Option<u32>) -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // utime, stime, cutime and cstime follow each other.
    let ticks: f64 = fields.iter().skip(11).take(4).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / TICKS_PER_SECOND + child.map_or(0.0, |child| Usage::of(child).cpu_s)
}

/// Processor time of the kernel's threads: writing back, journalling, completing what was asked of the device.
fn kernel_seconds() -> f64 {
    let Ok(entries) = fs::read_dir("/proc") else { return 0.0 };
    let processes = entries
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit));
    let stats = processes.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats.map(|stat| kernel_thread_ticks(&stat)).sum::<f64>() / TICKS_PER_SECOND
}

/// Ticks of a process that is a thread of the kernel, from its `stat`; none of any other.
fn kernel_thread_ticks(stat: &str) -> f64 {
    const PF_KTHREAD: u64 = 0x0020_0000;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let flags = fields.get(6).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    if flags & PF_KTHREAD == 0 {
        return 0.0;
    }
    // utime and stime.
    fields.iter().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_leaves_out_idle_waiting_interrupts_and_steal() {
        let ticks = SystemTicks::parse("cpu  10 1 5 1000 200 2 3 7 0 0\ncpu0 1 1 1 1\n");
        assert_eq!((ticks.busy, ticks.steal), (16.0, 7.0));
    }

    #[test]
    fn only_threads_of_the_kernel_count_as_the_kernel() {
        let stat =
            |flags: u64| format!("7 (kworker/0:1 x) S 2 0 0 0 -1 {flags} 0 0 0 0 30 12 99 99 20 0 1 0 5 0 0");
        assert_eq!(kernel_thread_ticks(&stat(0x0420_8060)), 42.0);
        assert_eq!(kernel_thread_ticks(&stat(0x0040_0100)), 0.0);
        assert_eq!(kernel_thread_ticks(""), 0.0);
    }

    #[test]
    fn a_busy_machine_is_called_so() {
        let idle = Idleness { load_before: 0.1, others: 0.01, steal: 0.0 };
        assert!(idle.verdict().starts_with("The machine was idle"));
        let busy = Idleness { steal: 0.2, ..idle };
        assert!(busy.verdict().contains("NOT IDLE") && busy.verdict().contains("20.0%"));
    }
}
