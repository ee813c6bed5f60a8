//! How long a thread runs at a time: the one call for it, which no safe library has.
//!
//! Linux gives a thread that wakes up a processor at once if it asked for shorter slices than the thread that has it, and else
//! when that one's slice ends, which is milliseconds. Short slices give a thread no larger share of a processor than others have, and
//! need no privilege.
#![allow(unsafe_code)]

use std::mem;

/// The shortest that there is.
const SLICE_NS: u64 = 100_000;

/// From now on the calling thread is to wait briefly for a processor, and run briefly. Without effect before Linux 6.12, for a thread that is
/// not scheduled like most, and where it is forbidden.
pub(crate) fn take_short_slices() {
    let Some(mut wanted) = scheduling().filter(|now| now.sched_policy == libc::SCHED_OTHER as u32) else {
        return;
    };
    wanted.sched_runtime = SLICE_NS;
    let (this_thread, flags) = (0, 0);
    // SAFETY: The kernel reads as many bytes as `size` says, and `scheduling` has let it be no more than the structure has.
    unsafe { libc::syscall(libc::SYS_sched_setattr, this_thread, &raw const wanted, flags) };
}

/// How the calling thread is scheduled, if the kernel tells.
fn scheduling() -> Option<libc::sched_attr> {
    const BYTES: u32 = mem::size_of::<libc::sched_attr>() as u32;
    // SAFETY: It consists of integers, and each may be zero.
    let mut now: libc::sched_attr = unsafe { mem::zeroed() };
    let (this_thread, flags) = (0, 0);
    // SAFETY: The kernel writes no more than the given number of bytes, which is how many the structure has.
    let failed = unsafe { libc::syscall(libc::SYS_sched_getattr, this_thread, &raw mut now, BYTES, flags) };
    (failed == 0 && now.size <= BYTES).then_some(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that has no such slices says zero, or keeps what it was told; nothing else may change.
    #[test]
    fn a_thread_with_short_slices_is_scheduled_as_before_in_all_else() {
        let before = scheduling().expect("the kernel tells it since Linux 3.14");
        take_short_slices();
        let after = scheduling().expect("as before");
        assert!(after.sched_runtime <= before.sched_runtime.max(SLICE_NS));
        assert_eq!(
            (after.sched_policy, after.sched_nice, after.sched_priority, after.sched_flags),
            (before.sched_policy, before.sched_nice, before.sched_priority, before.sched_flags)
        );
    }
}
