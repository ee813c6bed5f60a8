//! Reads in flight through io_uring: the one place where the kernel writes into memory while nobody waits for it.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{IoUring, Probe, opcode, types};
use rustix::io::Errno;

use super::process::Process;
use super::reads::{FinishedRead, QueuedRead, ReadQueue};
use super::{READS_IN_FLIGHT_MAX, check_aligned};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread;

/// See the module's documentation.
pub(super) struct UringReads {
    ring: ManuallyDrop<IoUring>,
    /// Has the ring's memory.
    process: Process,
    /// Reads that the kernel has, or is about to get, by their number; they stay where they are until it gives them back.
    reads: Vec<Option<QueuedRead>>,
    /// Reads that need not go to the kernel, or not again.
    direct: Vec<QueuedRead>,
    in_flight: usize,
    /// The kernel takes no more orders. What it has is left to it for ever.
    is_broken: bool,
    /// Told to those who would make another such queue.
    refused: Arc<AtomicBool>,
}

impl UringReads {
    /// # Errors
    /// The operating system's, where it has no io_uring, or does not let this process use it.
    pub(super) fn new(refused: Arc<AtomicBool>) -> io::Result<UringReads> {
        // A process that is forked off would share it, and take what is to be given back here.
        let ring = IoUring::builder().dontfork().build(READS_IN_FLIGHT_MAX as u32)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        check_reads(&probe)?;
        Ok(UringReads {
            ring: ManuallyDrop::new(ring),
            process: Process::this(),
            reads: Vec::with_capacity(READS_IN_FLIGHT_MAX),
            direct: Vec::new(),
            in_flight: 0,
            is_broken: false,
            refused,
        })
    }

    /// Keeps a read until the kernel gives it back, and gives its number.
    fn keep(&mut self, read: QueuedRead) -> usize {
        let free = self.reads.iter().position(Option::is_none);
        let number = free.unwrap_or(self.reads.len());
        if number == self.reads.len() {
            self.reads.push(None);
        }
        self.reads[number] = Some(read);
        number
    }

    /// Has the kernel begin what was submitted, and waits until it has given a read back.
    fn enter(&mut self) {
        while let Err(error) = self.ring.submit_and_wait(1) {
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                // The kernel has no memory for it just now, and others make some.
                io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy => thread::yield_now(),
                _ => {
                    self.is_broken = true;
                    self.refused.store(true, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    /// The next read that the kernel has given back.
    fn take_finished(&mut self) -> Option<(QueuedRead, i32)> {
        let entry = self.ring.completion().next()?;
        let read = self.reads.get_mut(entry.user_data() as usize)?.take()?;
        self.in_flight -= 1;
        Some((read, entry.result()))
    }
}

impl ReadQueue for UringReads {
    fn submit(&mut self, read: QueuedRead) {
        let fits = u32::try_from(read.buffer.len()).is_ok() && self.in_flight < READS_IN_FLIGHT_MAX;
        let (true, Some(descriptor)) = (fits && !self.is_broken, read.file.descriptor()) else {
            self.direct.push(read);
            return;
        };
        if check_aligned(&read.buffer, read.offset).is_err() {
            self.direct.push(read);
            return;
        }
        let descriptor = types::Fd(descriptor.as_raw_fd());
        let (offset, number) = (read.offset, self.keep(read));
        let Some(read) = self.reads[number].as_mut() else { return };
        let (start, length) = (read.buffer.as_mut_slice().as_mut_ptr(), read.buffer.len() as u32);
        let entry =
            opcode::Read::new(descriptor, start, length).offset(offset).build().user_data(number as u64);
        // SAFETY: the buffer's memory is on the heap and belongs to `reads[number]`, as does the open file. Nothing touches that
        // entry until `take_finished` takes it, when the kernel has given the read back; `drop` waits for that, or leaks it.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        match pushed {
            Ok(()) => self.in_flight += 1,
            // No room: the kernel has not seen it.
            Err(_) => self.direct.extend(self.reads[number].take()),
        }
    }

    fn wait(&mut self) -> Option<FinishedRead> {
        if let Some(read) = self.direct.pop() {
            return Some(read.run());
        }
        while self.in_flight > 0 && !self.is_broken {
            match self.take_finished() {
                Some((read, result)) => return Some(finish(read, result)),
                None => self.enter(),
            }
        }
        None
    }

    fn take_done(&mut self) -> Option<FinishedRead> {
        if self.in_flight == 0 || self.is_broken {
            return None;
        }
        if !self.ring.submission().is_empty() {
            // What goes wrong here shows to who waits.
            let _ = self.ring.submit();
        }
        self.take_finished().map(|(read, result)| finish(read, result))
    }

    fn is_here(&self) -> bool {
        self.process.is_this()
    }
}

/// Kernels before 5.6 have queues, and not this order: they refuse each read, which is then done alone.
///
/// # Errors
/// As of a system without queues.
fn check_reads(probe: &Probe) -> io::Result<()> {
    if probe.is_supported(opcode::Read::CODE) { Ok(()) } else { Err(Errno::NOSYS.into()) }
}

/// Whatever is not simply right, such as a file system without direct I/O, is up to the ordinary read.
fn finish(read: QueuedRead, result: i32) -> FinishedRead {
    match usize::try_from(result) {
        Ok(bytes) if bytes == read.buffer.len() => {
            FinishedRead { token: read.token, buffer: read.buffer, outcome: Ok(bytes) }
        }
        _ => read.run(),
    }
}

impl Drop for UringReads {
    fn drop(&mut self) {
        if !self.is_here() {
            // The ring's memory was not forked along: what is there now is something else's. The descriptor was.
            // SAFETY: it is the ring's, which is neither used any more nor dropped.
            drop(unsafe { OwnedFd::from_raw_fd(self.ring.as_raw_fd()) });
            return;
        }
        while self.in_flight > 0 && !self.is_broken {
            if self.take_finished().is_none() {
                self.enter();
            }
        }
        if self.in_flight > 0 {
            // The kernel may still write there.
            std::mem::forget(std::mem::take(&mut self.reads));
        }
        // SAFETY: it is not used after this, and dropped nowhere else.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
    }
}

impl fmt::Debug for UringReads {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("UringReads").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::ptr;

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    use super::*;
    use crate::device::forked::{in_fork, is_alone};
    use crate::device::{AlignedBuffer, Device, FileDevice, OpenMode};
    use crate::sync::Mutex;

    /// A filter of system calls may let a process set a queue up, and not use it.
    #[test]
    fn a_queue_that_the_kernel_does_not_serve_gives_nothing_back_and_is_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let device = FileDevice::open(directory.path(), false).unwrap();
        let file = device.open("a", OpenMode::Create).unwrap();
        let refused = Arc::new(AtomicBool::new(false));
        // There is nothing to be tested where there is no io_uring.
        let Ok(mut queue) = UringReads::new(refused.clone()) else { return };
        // SAFETY: the descriptor stays the queue's, which closes it; this one is never dropped.
        let descriptor = unsafe { OwnedFd::from_raw_fd(queue.ring.as_raw_fd()) };
        let mut descriptor = ManuallyDrop::new(descriptor);
        rustix::io::dup2(std::fs::File::open("/dev/null").unwrap(), &mut descriptor).unwrap();
        queue.submit(QueuedRead { file, offset: 0, buffer: AlignedBuffer::new(4096), token: 1 });
        assert!(queue.wait().is_none());
        assert!(refused.load(Ordering::Relaxed));
    }

    /// Each read ahead was refused, and done alone, though threads could have done many at once.
    #[test]
    fn a_queue_that_knows_no_reads_is_none() {
        let error = check_reads(&Probe::new()).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSYS));
    }

    /// What lies behind it in the buffer is whatever was there before.
    #[test]
    fn what_was_read_in_part_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let device = FileDevice::open(directory.path(), false).unwrap();
        let file = device.open("a", OpenMode::Create).unwrap();
        let written = AlignedBuffer::from(&[7; 8192][..]);
        file.write_at(&written, 0).unwrap();
        let read = QueuedRead { file, offset: 0, buffer: AlignedBuffer::new(8192), token: 1 };
        let FinishedRead { buffer, outcome, .. } = finish(read, 4096);
        assert_eq!(outcome.unwrap(), 8192);
        assert_eq!(*buffer, *written);
    }

    /// Where all such queues of the process have their memory.
    fn memory_of_queues() -> Vec<[usize; 2]> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let range_of = |line: &str| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            [start, end].map(|address| usize::from_str_radix(address, 16).unwrap())
        };
        maps.lines().filter(|line| line.contains("[io_uring]")).map(range_of).collect()
    }

    /// It took away whatever the process had there by then.
    #[test]
    fn a_queue_that_ends_in_a_process_that_was_forked_leaves_what_is_where_its_memory_was() {
        if !is_alone() {
            return;
        }
        let Ok(queue) = UringReads::new(Arc::default()) else { return };
        let descriptor = queue.ring.as_raw_fd();
        let memory = memory_of_queues();
        let queue = Mutex::new(Some(queue));
        in_fork(move || {
            let map = |&[start, end]: &[usize; 2]| {
                let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
                let start = ptr::without_provenance_mut(start);
                // SAFETY: nothing else is replaced: it fails where there is something.
                unsafe {
                    mmap_anonymous(start, end - start.addr(), ProtFlags::READ | ProtFlags::WRITE, flags)
                }
            };
            let mapped: Vec<_> = memory.iter().filter_map(|range| map(range).ok()).collect();
            assert!(!mapped.is_empty());
            drop(queue.lock().take());
            // SAFETY: it has just been mapped, and is nobody else's.
            mapped.iter().for_each(|start| unsafe { start.cast::<u8>().write_volatile(1) });
            let open = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
            assert!(!open.is_ok_and(|open| open.to_string_lossy().contains("[io_uring]")));
        });
    }
}
