//! The thread that hardens the log in groups, and takes checkpoints so that it does not grow for ever.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Store;
use super::file::{GROUP_WORDS, LogFile};
use super::log::Log;
use super::redo::{Latches, record_words};

/// A checkpoint is taken when the log has so many bytes.
const LOG_BYTES_MAX: u64 = 1 << 30;

/// See the module's documentation.
pub(super) struct Writer {
    latches: Arc<Latches>,
    out: Out,
    store: Store,
    window: Duration,
}

/// The way of words to the disk.
struct Out {
    log: Arc<Log>,
    file: LogFile,
}

impl Writer {
    pub(super) fn new(
        log: Arc<Log>,
        latches: Arc<Latches>,
        file: LogFile,
        store: Store,
        window: Duration,
    ) -> Writer {
        Writer { latches, out: Out { log, file }, store, window }
    }

    pub(super) fn start(mut self) -> Result<JoinHandle<()>> {
        let log = self.out.log.clone();
        let thread = std::thread::Builder::new().name("wal".to_owned()).spawn(move || {
            if let Err(error) = self.run() {
                self.out.log.fail(format!("{error:#}"));
            }
        });
        let thread = thread.context("cannot start the log's writer")?;
        log.set_writer(thread.thread().clone());
        Ok(thread)
    }

    fn run(&mut self) -> Result<()> {
        loop {
            if self.out.log.is_calm() {
                std::thread::park_timeout(self.window);
            }
            // First: what is appended after this was asked for need not be waited for.
            let stops = self.out.log.is_to_stop();
            self.out.harden()?;
            self.store.check_untouched()?;
            if self.out.log.wants_checkpoint() || self.out.file.position() > LOG_BYTES_MAX {
                self.checkpoint()?;
            }
            if stops {
                return Ok(());
            }
        }
    }

    /// Makes everything durable that is in the store, and begins the log anew.
    fn checkpoint(&mut self) -> Result<()> {
        let Writer { latches, out, store, .. } = self;
        let (log, epoch) = (out.log.clone(), out.file.epoch() + 1);
        let wanted = log.checkpoints_wanted();
        latches.with_all(&mut || out.harden(), |harden| {
            harden()?;
            store.checkpoint(epoch)
        })?;
        out.file.begin(epoch);
        log.checkpoint_taken(wanted);
        Ok(())
    }
}

impl Out {
    /// Writes and syncs what is in the log by now.
    fn harden(&mut self) -> Result<()> {
        let end = self.log.tail();
        while self.log.copied() < end {
            let mut at = self.log.copied();
            let mut group = self.file.group();
            while at < end {
                let words = record_words(self.log.head(at));
                if group.words() > 0 && group.words() + words > GROUP_WORDS {
                    break;
                }
                (at..at + words).for_each(|at| group.push(self.log.take(at)));
                at += words;
            }
            self.log.set_copied(at);
            group.write()?;
            self.log.set_durable(at);
        }
        Ok(())
    }
}
