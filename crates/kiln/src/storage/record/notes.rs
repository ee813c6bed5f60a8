//! Notes in records in memory, in bits of the checksum that is not there yet: for who looks at the record alone, and for the hardener. They are meaningless in what was read from disk until they
//! are [made anew](RecordView::set_notes).

use super::RecordView;
use crate::sync::atomic::{AtomicU64, Ordering};

/// In the checksum's place while the record is in memory only: its key had no value before.
const CREATES: u64 = 1 << 63;

/// Notes, before the record is published, that its key had no value before it. The hardener counts keys by that.
#[inline]
pub(crate) fn note_creation(words: &[AtomicU64]) {
    words[2].store(words[2].load(Ordering::Relaxed) | CREATES, Ordering::Relaxed);
}

/// Whether that was noted in the record that begins `bytes`, a copy out of the log's memory.
pub(crate) fn is_creation(bytes: &[u8]) -> bool {
    bytes.get(16..24).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes).unwrap_or(0) & CREATES
        != 0
}

/// In the checksum's place in memory, too: the key has a newer record, or its row has settled.
const SUCCEEDED: u64 = 1 << 63;

/// What was noted in a record by when its [successor](note_successor) was.
#[derive(Clone, Copy, Default)]
pub(crate) struct Predecessor {
    /// Its leaf [may have an image](RecordView::note_image) of it.
    pub(crate) may_have_image: bool,
    /// Somebody [has read it](RecordView::note_reference).
    pub(crate) is_referenced: bool,
}

/// Notes in a record that the index does not refer to it any more: its key has got a newer one, or its row has settled. The caller holds
/// the key's bucket. Of records that have left memory it is not noted, so that one that is there and without it is its key's newest.
///
/// What it gives means nothing in what was read from disk.
#[inline]
pub(crate) fn note_successor(words: &[AtomicU64]) -> Predecessor {
    let word = words[1].load(Ordering::Relaxed);
    words[1].store(word | SUCCEEDED, Ordering::Relaxed);
    Predecessor { may_have_image: word & IMAGED != 0, is_referenced: word & REFERENCED != 0 }
}

/// Beside it: there may be a copy of the row in an image of its key's leaf.
const IMAGED: u64 = 1 << 62;

/// Beside them: somebody has read it, or what it replaces, since that has hardened (the reference bit of the clock algorithm).
const REFERENCED: u64 = 1 << 61;

/// Notes that in a record that is not published yet: who has read what it replaces will read it, too.
#[inline]
pub(crate) fn inherit_reference(words: &[AtomicU64]) {
    words[1].store(words[1].load(Ordering::Relaxed) | REFERENCED, Ordering::Relaxed);
}

impl RecordView<'_> {
    /// Whether a [successor](note_successor) was noted; means nothing in a record that was read from disk.
    pub(crate) fn has_successor(&self) -> bool {
        self.words[1].load(Ordering::Relaxed) & SUCCEEDED != 0
    }

    /// Notes that somebody has read it, unless that is noted.
    #[inline]
    pub(crate) fn note_reference(&self) {
        if !self.is_referenced() {
            self.words[1].fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    /// Whether that was noted; means nothing in a record that was read from disk.
    #[inline]
    pub(crate) fn is_referenced(&self) -> bool {
        self.words[1].load(Ordering::Relaxed) & REFERENCED != 0
    }

    /// Makes the notes of a record in memory that was read from disk, where a part of its checksum was. The caller holds the key's bucket.
    pub(crate) fn set_notes(&self, has_successor: bool) {
        let bare = self.words[1].load(Ordering::Relaxed) & !(SUCCEEDED | IMAGED | REFERENCED);
        self.words[1].store(bare | if has_successor { SUCCEEDED } else { 0 }, Ordering::Relaxed);
    }

    /// Notes in a record in memory that its row is about to be copied into an image. A successor that is noted at the same time may undo that: so whoever
    /// copies waits until nobody is pinned any more who was, and then looks for successors.
    pub(crate) fn note_image(&self) {
        self.words[1].fetch_or(IMAGED, Ordering::Relaxed);
    }
}
