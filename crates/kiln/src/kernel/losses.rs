//! Losses: which versions crashes have taken, for receipts that are asked for later (C8).
//!
//! The opening after a crash writes a seal that names the versions that it took. Seals go when the log's beginning is
//! dropped, so each loss is also a record like any other, which is written anew as long as the database lives.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::engine::Engine;
use super::transaction::{self, Isolation};
use crate::error::Result;
use crate::planted::{Bug, planted};

/// The object that holds the losses: first lost version → last lost version.
pub(crate) const LOSSES_OBJECT: u32 = 2;

/// The losses that recovery has found.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    ranges: BTreeMap<u64, u64>,
    /// Some that only a seal tells of.
    unrecorded: Vec<(u64, u64)>,
}

impl Losses {
    /// A seal, or the end of the log, tells that `first..=last` are lost.
    pub(crate) fn add(&mut self, first: u64, last: u64) {
        let first = first + u64::from(planted(Bug::LossOffByOne));
        self.ranges.insert(first, last);
        self.unrecorded.push((first, last));
    }

    /// A record tells that `first..=last` are lost.
    pub(crate) fn add_recorded(&mut self, first: u64, last: u64) {
        self.ranges.insert(first, last);
        self.unrecorded.retain(|known| *known != (first, last));
    }

    /// First and last version of each loss, both included, in order.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        self.ranges.iter().map(|(first, last)| (*first, *last)).collect()
    }

    /// Makes records of what only seals tell. They harden with the first commits, and nothing is dropped before that.
    pub(crate) fn record(&self, engine: &Arc<Engine>) -> Result<()> {
        if self.unrecorded.is_empty() || planted(Bug::LossesNotRecorded) {
            return Ok(());
        }
        transaction::run(engine, Isolation::Serializable, |tx| {
            let mut each = self.unrecorded.iter();
            each.try_for_each(|(first, last)| {
                tx.put_key(LOSSES_OBJECT, &first.to_le_bytes(), &last.to_le_bytes())
            })
        })?
        .forget();
        Ok(())
    }
}

/// The first and the last version in a record of [`LOSSES_OBJECT`]; `None` for what no recovery has stored.
pub(crate) fn decode_loss(key: &[u8], value: &[u8]) -> Option<(u64, u64)> {
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
    Some((number(key)?, number(value)?)).filter(|(first, last)| (1..=*last).contains(first))
}

#[cfg(test)]
mod tests {
    use super::decode_loss;

    #[test]
    fn c9_a_stored_loss_names_versions() {
        let decoded = |first: u64, last: u64| decode_loss(&first.to_le_bytes(), &last.to_le_bytes());
        assert_eq!(decoded(1, 1), Some((1, 1)));
        // Who says what came before it would otherwise count down from nothing.
        assert_eq!((decoded(0, 1), decoded(2, 1)), (None, None));
        assert_eq!(decode_loss(b"key", &[0; 8]), None);
    }
}
