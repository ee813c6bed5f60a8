//! Reads in flight by threads that each do one after the other: where the system refuses io_uring.
//!
//! Each read wakes two threads, which io_uring need not do; but a disk that serves several reads at once gives several
//! times what it gives to one. The threads begin with the first queue, serve all queues of their device, and end with the last of
//! it and them.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;

use super::process::Process;
use super::reads::{FinishedRead, QueuedRead, ReadQueue};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex};

/// So many reads are done at once.
const THREADS: usize = 8;

/// What the threads are to do.
#[derive(Default)]
struct Jobs {
    state: Mutex<JobsState>,
    wake: Condvar,
}

#[derive(Default)]
struct JobsState {
    /// Reads to be done, and who gets each back.
    reads: VecDeque<(QueuedRead, Arc<Done>)>,
    is_over: bool,
}

/// Reads that are done.
#[derive(Default)]
struct Done {
    reads: Mutex<VecDeque<FinishedRead>>,
    told: Condvar,
}

/// See the module's documentation.
pub(super) struct ReaderThreads {
    jobs: Arc<Jobs>,
    process: Process,
    threads: Vec<JoinHandle<()>>,
}

impl ReaderThreads {
    /// # Errors
    /// The operating system's, where there can be no more threads.
    pub(super) fn start() -> io::Result<ReaderThreads> {
        let (jobs, process) = (Arc::default(), Process::this());
        let mut threads = ReaderThreads { jobs, process, threads: Vec::new() };
        for _ in 0..THREADS {
            let jobs = threads.jobs.clone();
            match thread::Builder::new().name("kiln-reads".to_owned()).spawn(move || jobs.work()) {
                Ok(thread) => threads.threads.push(thread),
                Err(error) if threads.threads.is_empty() => return Err(error),
                // Some are better than none.
                Err(_) => break,
            }
        }
        Ok(threads)
    }

    /// Whether they are threads of the process that asks, and not of one that has forked it off.
    pub(super) fn are_here(&self) -> bool {
        self.process.is_this()
    }

    /// A queue whose reads they do.
    pub(super) fn queue(self: &Arc<Self>) -> ThreadedReads {
        ThreadedReads { threads: self.clone(), done: Arc::default(), in_flight: 0 }
    }
}

impl Jobs {
    fn work(&self) {
        loop {
            let (read, done) = {
                let mut state = self.state.lock();
                loop {
                    match state.reads.pop_front() {
                        Some(job) => break job,
                        None if state.is_over => return,
                        None => self.wake.wait(&mut state),
                    }
                }
            };
            let read = read.run();
            done.reads.lock().push_back(read);
            done.told.notify_one();
        }
    }
}

impl Drop for ReaderThreads {
    fn drop(&mut self) {
        if self.process.leaves(&mut self.threads) {
            return;
        }
        self.jobs.state.lock().is_over = true;
        self.jobs.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A panic there has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for ReaderThreads {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ReaderThreads").field("count", &self.threads.len()).finish_non_exhaustive()
    }
}

/// A queue of reads that threads do.
pub(super) struct ThreadedReads {
    threads: Arc<ReaderThreads>,
    done: Arc<Done>,
    in_flight: usize,
}

impl ReadQueue for ThreadedReads {
    fn submit(&mut self, read: QueuedRead) {
        let jobs = &self.threads.jobs;
        jobs.state.lock().reads.push_back((read, self.done.clone()));
        jobs.wake.notify_one();
        self.in_flight += 1;
    }

    fn wait(&mut self) -> Option<FinishedRead> {
        if self.in_flight == 0 {
            return None;
        }
        let mut reads = self.done.reads.lock();
        let read = loop {
            match reads.pop_front() {
                Some(read) => break read,
                None => self.done.told.wait(&mut reads),
            }
        };
        self.in_flight -= 1;
        Some(read)
    }

    fn take_done(&mut self) -> Option<FinishedRead> {
        let read = self.done.reads.lock().pop_front()?;
        self.in_flight -= 1;
        Some(read)
    }

    fn is_here(&self) -> bool {
        self.threads.are_here()
    }
}

impl Drop for ThreadedReads {
    fn drop(&mut self) {
        while self.wait().is_some() {}
    }
}

impl fmt::Debug for ThreadedReads {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ThreadedReads").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}
