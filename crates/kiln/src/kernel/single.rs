//! Single writes: a transaction of one put or one delete, without a transaction's bookkeeping.
//!
//! The steps are those of `commit`, in the same order and made of the same parts. There is nothing to validate: what
//! a delete looks at is under its own lock.

use std::sync::Arc;

use super::commit::{Change, Current, Resolved, Setback};
use super::engine::Engine;
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::record::{Address, NO_ADDRESS};

/// A single write that has committed.
#[derive(Clone, Copy)]
pub(crate) struct SingleCommit {
    pub(crate) version: u64,
    /// The key had a value before.
    pub(crate) existed: bool,
    grow: bool,
}

impl Engine {
    /// Puts one key, or deletes it (`value` is `None`).
    pub(crate) fn commit_single(
        self: &Arc<Self>,
        object: u32,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<SingleCommit> {
        let change = Change { object, hash: self.hash(object, key), key, value };
        let mut resolved: Vec<(Address, Resolved)> = Vec::new();
        loop {
            self.check_writable()?;
            self.wait_while_behind();
            match self.attempt_single(&change, &mut resolved) {
                Ok(committed) => {
                    self.hardening.note_commit();
                    if committed.grow {
                        self.index.grow();
                    }
                    return Ok(committed);
                }
                Err(Setback::Conflict | Setback::NotWritable) => crate::sync::thread::yield_now(),
                Err(Setback::NoLogSpace) => self.wait_for_space(change.log_bytes(), change.purpose())?,
                Err(Setback::Cold) => {
                    for (address, known) in &mut resolved {
                        *known = self.resolve(*address, &change)?;
                    }
                }
            }
        }
    }

    #[inline]
    fn attempt_single(
        &self,
        change: &Change<'_>,
        resolved: &mut Vec<(Address, Resolved)>,
    ) -> Result<SingleCommit, Setback> {
        let pin = epoch::pin();
        // Looked at again under the pin; see `commit`.
        if self.check_writable().is_err() {
            return Err(Setback::NotWritable);
        }
        let early = planted(Bug::ClockBeforeLocks).then(|| self.clock.now());
        let bucket = self.index.lock(change.hash).ok_or(Setback::Conflict)?;
        let mut cold = false;
        let current = self.locate(bucket, change, &mut |address| {
            let known = resolved.iter().find(|known| known.0 == address).map(|known| known.1);
            if known.is_none() {
                resolved.push((address, None));
                cold = true;
            }
            known.flatten()
        });
        if cold {
            self.index.unlock_unchanged(bucket);
            return Err(Setback::Cold);
        }
        if value_is_absent(change, &current) {
            self.index.unlock_unchanged(bucket);
            return Ok(SingleCommit { version: current.version, existed: false, grow: false });
        }
        // Before the clock is read: a transaction that validates a range without this key is then not of a newer
        // version.
        let (version, target);
        if current.address == NO_ADDRESS {
            target = self.log.reserve(change.log_bytes(), change.purpose());
            if target.is_some() {
                self.object(change.object).keys.admit(&pin, change.key);
            }
            version = early.unwrap_or_else(|| self.clock.now());
        } else {
            version = early.unwrap_or_else(|| self.clock.now());
            target = self.reserve(change, &current, version, change.purpose());
        }
        let Some(target) = target else {
            self.index.unlock_unchanged(bucket);
            return Err(Setback::NoLogSpace);
        };
        let grow = self.install(bucket, change, &current, target, version);
        self.index.unlock_changed(bucket);
        Ok(SingleCommit { version, existed: current.exists, grow })
    }
}

/// A delete of what is not there changes nothing.
#[inline]
fn value_is_absent(change: &Change<'_>, current: &Current) -> bool {
    change.value.is_none() && !current.exists
}
