//! Losses: which versions crashes have taken, for receipts that are asked for later (C8).
//!
//! The opening after a crash writes a seal that names the versions that it took. Seals go when the log's beginning is
//! dropped, so each loss is also a record like any other, which is written anew as long as the database lives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::engine::Engine;
use super::transaction::{self, Isolation};
use crate::error::Result;
use crate::planted::{Bug, planted};

/// The object that holds the losses: first lost version → last lost version.
pub(crate) const LOSSES_OBJECT: u32 = 2;

/// The losses that recovery has found.
///
/// Crashes with nothing hardened between them take up what the first of them took: each names the same first version,
/// and a later last one. So of losses that begin alike the longest is the whole, in whatever order they are heard.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    ranges: BTreeMap<u64, u64>,
    /// The first versions of those whose newest record does not tell all, or that have none.
    unrecorded: BTreeSet<u64>,
}

impl Losses {
    /// A seal, or the end of the log, tells that `first..=last` are lost.
    pub(crate) fn add(&mut self, first: u64, last: u64) {
        let first = first + u64::from(planted(Bug::LossOffByOne));
        if self.widen(first, last) < last {
            self.unrecorded.insert(first);
        }
    }

    /// A record tells that `first..=last` are lost.
    pub(crate) fn add_recorded(&mut self, first: u64, last: u64) {
        if self.widen(first, last) <= last {
            self.unrecorded.remove(&first);
        } else {
            self.unrecorded.insert(first);
        }
    }

    /// Returns up to where the loss was known before; 0 if it was not.
    fn widen(&mut self, first: u64, last: u64) -> u64 {
        let range = self.ranges.entry(first).or_default();
        let before = *range;
        *range = before.max(last);
        before
    }

    /// First and last version of each loss, both included, in order.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        self.ranges.iter().map(|(first, last)| (*first, *last)).collect()
    }

    /// The first versions of the losses that are still to be recorded.
    pub(crate) fn unrecorded(&self) -> impl Iterator<Item = u64> {
        self.unrecorded.iter().copied()
    }

    /// Makes records of what only seals tell. They harden with the first commits, and nothing is dropped before that.
    pub(crate) fn record(&self, engine: &Arc<Engine>) -> Result<()> {
        if self.unrecorded.is_empty() || planted(Bug::LossesNotRecorded) {
            return Ok(());
        }
        transaction::run(engine, Isolation::Serializable, |tx| {
            let mut each = self.ranges.iter().filter(|(first, _)| self.unrecorded.contains(first));
            each.try_for_each(|(first, last)| {
                tx.put_key(LOSSES_OBJECT, &loss_key(*first), &last.to_le_bytes())
            })
        })?
        .forget();
        Ok(())
    }
}

/// The key of the loss that begins with a version.
pub(crate) fn loss_key(first: u64) -> [u8; 8] {
    first.to_le_bytes()
}

/// The first and the last version in a record of [`LOSSES_OBJECT`]; `None` for what no recovery has stored.
pub(crate) fn decode_loss(key: &[u8], value: &[u8]) -> Option<(u64, u64)> {
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
    Some((number(key)?, number(value)?)).filter(|(first, last)| (1..=*last).contains(first))
}

#[cfg(test)]
mod tests {
    use super::{Losses, decode_loss};

    #[test]
    fn c9_a_stored_loss_names_versions() {
        let decoded = |first: u64, last: u64| decode_loss(&first.to_le_bytes(), &last.to_le_bytes());
        assert_eq!(decoded(1, 1), Some((1, 1)));
        // Who says what came before it would otherwise count down from nothing.
        assert_eq!((decoded(0, 1), decoded(2, 1)), (None, None));
        assert_eq!(decode_loss(b"key", &[0; 8]), None);
    }

    /// What is heard of one loss, in the order of `told` (recorded or not, and the last version), comes to `expected`: the last version, and whether
    /// a record is still to be written.
    #[track_caller]
    fn assert_comes_to(told: &[(bool, u64)], expected: (u64, bool)) {
        let mut losses = Losses::default();
        for &(is_record, last) in told {
            if is_record { losses.add_recorded(7, last) } else { losses.add(7, last) }
        }
        assert_eq!(losses.ranges(), [(7, expected.0)], "{told:?}");
        assert_eq!(losses.unrecorded.contains(&7), expected.1, "{told:?}");
    }

    #[test]
    fn c8_of_losses_that_begin_alike_the_longest_is_told_and_recorded() {
        let (seal, record) = (|last| (false, last), |last| (true, last));
        assert_comes_to(&[seal(10)], (10, true));
        assert_comes_to(&[seal(10), record(10)], (10, false));
        assert_comes_to(&[seal(10), seal(20), record(20)], (20, false));
        assert_comes_to(&[seal(20), seal(10), record(20)], (20, false));
        assert_comes_to(&[record(20), seal(10), seal(20)], (20, false));
        assert_comes_to(&[record(10), seal(20)], (20, true));
        // The record that was heard last is the one that stays.
        assert_comes_to(&[record(20), record(10)], (20, true));
        assert_comes_to(&[record(10), record(20)], (20, false));
    }
}
