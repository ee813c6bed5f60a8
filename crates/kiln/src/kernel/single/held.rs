//! Read-modify-writes whose decision is the engine's own: made while the bucket is held.

use std::sync::Arc;

use super::{Decision, Scratch, SingleCommit, SingleKey, with_scratch};
use crate::error::Result;
use crate::kernel::change::Current;
use crate::kernel::engine::Engine;
use crate::kernel::transaction::changes::sum_of;
use crate::storage::epoch;
use crate::storage::record::{NEVER, identity_bytes};

impl Engine {
    /// Adds to the value of one key; gives the version, and the sum.
    pub(crate) fn add_single(
        self: &Arc<Self>,
        key: SingleKey<'_>,
        time_to_live_ms: u64,
        delta: i64,
    ) -> Result<(u64, i64)> {
        let mut sum = 0;
        let committed = self.update_held(key, time_to_live_ms, |old, new| {
            sum = sum_of(old, delta)?;
            new.extend_from_slice(&sum.to_le_bytes());
            Ok(Decision::Put)
        })?;
        Ok((committed.version, sum))
    }

    /// Sets one key if its value is the one expected, and says whether it was.
    pub(crate) fn compare_and_set_single(
        self: &Arc<Self>,
        key: SingleKey<'_>,
        time_to_live_ms: u64,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(u64, bool)> {
        let mut matches = false;
        let committed = self.update_held(key, time_to_live_ms, |old, buffer| {
            matches = old == expected;
            if !matches {
                return Ok(Decision::Keep);
            }
            buffer.extend_from_slice(new.unwrap_or_default());
            Ok(Decision::of(new.is_some()))
        })?;
        Ok((committed.version, matches))
    }

    /// As [`Self::update_single`], where it is the engine that decides: quickly, without panic, and without using the database. So in the usual case, a
    /// put that is in memory, it does so while it holds the bucket: then the record is not waited for before the lock is taken, but
    /// behind it, together with the next operation's bucket.
    #[inline(always)]
    fn update_held(
        self: &Arc<Self>,
        key: SingleKey<'_>,
        time_to_live_ms: u64,
        mut decide: impl FnMut(Option<&[u8]>, &mut Vec<u8>) -> Result<Decision>,
    ) -> Result<SingleCommit> {
        self.index.prefetch(key.hash);
        match with_scratch(|scratch| self.attempt_held(key, scratch, &mut decide)) {
            Some(committed) => Ok(self.note_single(committed)),
            None => self.update_single(key, time_to_live_ms, decide),
        }
    }

    /// One attempt; `None` if it is not the usual case.
    #[inline(always)]
    fn attempt_held(
        &self,
        key: SingleKey<'_>,
        Scratch { old, new, .. }: &mut Scratch,
        mut decide: impl FnMut(Option<&[u8]>, &mut Vec<u8>) -> Result<Decision>,
    ) -> Option<SingleCommit> {
        if self.is_behind() {
            return None;
        }
        let pin = epoch::pin_for_commit();
        // Looked at under the pin; see `commit`.
        self.check_writable().ok()?;
        let bucket = self.index.lock(key.hash)?;
        let give_up = || {
            self.index.unlock_unchanged(bucket);
            None
        };
        let candidate = self.fetch_candidate(bucket, key.hash, identity_bytes(key.key));
        let space = self.log.space_ahead(key.change(Some(old), NEVER).log_bytes(), candidate.address);
        let Some(view) = self.log.put_of(candidate.address, key.object, key.key) else { return give_up() };
        view.value_into(key.key.len(), old);
        let current = Current::of_put(candidate, &view);
        new.clear();
        // Who finds an error decides again, with nothing locked.
        let Ok(decision) = decide(Some(old), new) else { return give_up() };
        let value = match decision {
            Decision::Put if self.check_value(new).is_err() => return give_up(),
            Decision::Put => Some(&new[..]),
            Decision::Delete => None,
            Decision::Keep if !key.life.lives() => return give_up(),
            Decision::Keep => {
                self.index.unlock_unchanged(bucket);
                return Some(SingleCommit { version: current.version, existed: false, grow: false });
            }
        };
        self.carry_out(&pin, bucket, (&key.change(value, NEVER), &current, key.life), space, None).ok()
    }
}
