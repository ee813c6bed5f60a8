//! Hints: for a slot of a leaf, the address of the record that somebody has found for the key that was there.
//!
//! A range that knows where a key's record is need not ask the hash index, which would be one more cache miss. But a write must not have to
//! look after the leaf; so nobody keeps hints right: keys move to other slots, and records are superseded. Whoever takes a hint looks at
//! the record, whether it is the key's and its newest, and gives the leaf a better one if it is not. Any address that was ever one of a
//! record of the same log does no harm.
//!
//! ```text
//!   leaf 7    slots  [ a ][ c ][ d ][ f ] ...           arena of leaves
//!   hints 7          [120][  0][480][240] ...           their hints, whose memory comes when the first one is given; 0: none
//! ```

use crate::storage::memory::{self, LINE_WORDS};
use crate::storage::record::{Address, NO_ADDRESS};
use crate::sync::atomic::{AtomicU64, Ordering};

use super::OrderedIndex;
use super::batch::LeafBatch;
use super::slots::SLOT_COUNT;

/// The hints of a leaf's slots, and what is known of its [image](super::images), in whole cache lines.
#[repr(align(64))]
pub(super) struct Hints([AtomicU64; SLOT_COUNT + 1]);

const _: () = assert!(size_of::<Hints>() == 256);

impl Hints {
    fn slots(&self) -> &[AtomicU64] {
        &self.0[..SLOT_COUNT]
    }

    pub(super) fn image_word(&self) -> &AtomicU64 {
        &self.0[SLOT_COUNT]
    }
}

/// The hints of the leaf of a batch; a look at them costs no way through the index.
pub(crate) struct BatchHints<'i> {
    hints: Option<&'i Hints>,
    batch: &'i LeafBatch,
}

impl BatchHints<'_> {
    /// Where the record of the batch's key at a position may be; [`NO_ADDRESS`] if nobody knows.
    #[inline]
    pub(crate) fn get(&self, position: usize) -> Address {
        let slot = self.batch.slot_of(position);
        // Acquire: who has found the record saw it whole, and so will who finds it here.
        let hint = || Some(self.hints?.slots().get(slot?)?.load(Ordering::Acquire));
        hint().unwrap_or(NO_ADDRESS)
    }
}

impl OrderedIndex {
    /// What hints the leaf of a batch has.
    #[inline]
    pub(crate) fn hints<'i>(&'i self, batch: &'i LeafBatch) -> BatchHints<'i> {
        BatchHints { hints: self.hints.get(batch.read().leaf), batch }
    }

    /// Has the hints of a leaf fetched, if it has any.
    #[inline]
    pub(super) fn fetch_hints(&self, leaf: u32) {
        if let Some(Hints(hints)) = self.hints.get(leaf) {
            hints.iter().step_by(LINE_WORDS).for_each(memory::prefetch);
        }
    }

    /// Remembers where the record of a batch's key at a position is.
    pub(crate) fn give_hint(&self, batch: &LeafBatch, position: usize, address: Address) {
        // The key may be in another slot by now; whoever takes the hint finds out.
        if self.validate(&batch.read())
            && let Some(slot) = batch.slot_of(position)
            && let Some(hint) = self.hints.get_or_make(batch.read().leaf).slots().get(slot)
        {
            hint.store(address, Ordering::Release);
        }
    }
}
