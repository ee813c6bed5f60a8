//! What was read of one key, while others change the key's bucket.
//!
//! A bucket may change more often than the disk answers, or than a long value is copied. No record that has hardened changes, and no address is used
//! again. So what was read of such a record is kept, and stands as soon as the index is seen to lead to it; it is not read again. Of a record that has not
//! hardened nothing can be kept: who has copied it in vain [a few times](LOOKS_MAX) holds the bucket for it.

use std::sync::Arc;

use super::{ColdCandidates, Memory, PastReading, Reading, copy_put};
use crate::error::Result;
use crate::kernel::cold::Question;
use crate::kernel::engine::Engine;
use crate::storage::epoch;
use crate::storage::hash_index::{Bucket, Stamp};
use crate::storage::record::{Address, NO_ADDRESS, RECORD_BYTES_USUAL};
use crate::storage::tree::{Cached, Root};

/// After so many looks at memory in vain the bucket is held for the next.
const LOOKS_MAX: u32 = 8;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Kept {
    /// Records of other keys.
    pub(super) others: Vec<Address>,
    answer: Answer,
    value: Vec<u8>,
    looks: u32,
}

#[derive(Default)]
pub(super) enum Answer {
    #[default]
    Unknown,
    /// The key's record is there: true as long as the index refers to it.
    Record(Address, PastReading),
    /// What has settled: true as long as the key has no record, and the root is the newest.
    Settled(Arc<Root>, PastReading),
}

impl Kept {
    /// Keeps an answer, whose value is in the caller's buffer.
    pub(super) fn keep(&mut self, answer: Answer, out: &mut Vec<u8>) {
        self.answer = answer;
        std::mem::swap(out, &mut self.value);
    }

    /// The record among these candidates that was found to be the key's, if it was, with its value in the buffer.
    pub(super) fn take_record(
        &mut self,
        candidates: &[Address],
        out: &mut Vec<u8>,
    ) -> Option<(Address, PastReading)> {
        let Answer::Record(address, past) = self.answer else { return None };
        candidates.contains(&address).then(|| {
            std::mem::swap(out, &mut self.value);
            (address, past)
        })
    }
}

impl Engine {
    /// Looks for the newest record of a key in memory. The bucket is held for it if others have changed it each time before.
    pub(super) fn look_in_memory(
        &self,
        question: &Question<'_>,
        hash: u64,
        kept: &mut Kept,
        out: &mut Vec<u8>,
    ) -> Option<Memory> {
        let _pin = epoch::pin();
        if kept.looks < LOOKS_MAX {
            let stamped = self.index.stamp(hash)?;
            let memory = self.read_memory(question, hash, stamped, kept, out);
            kept.looks += u32::from(matches!(memory, Memory::Retry));
            return Some(memory);
        }
        // Quietly: nothing is changed, and who validates looks past it.
        let bucket = self.index.lock_quietly(hash)?;
        let stamp = self.index.stamp_under_own_lock(bucket);
        let memory = self.read_memory(question, hash, (bucket, stamp), kept, out);
        self.index.unlock_unchanged(bucket);
        Some(memory)
    }

    /// One look at memory. What was copied of a record that has hardened is kept if it must be repeated. The caller is pinned.
    fn read_memory(
        &self,
        question: &Question<'_>,
        hash: u64,
        (bucket, stamp): (Bucket, Stamp),
        kept: &mut Kept,
        out: &mut Vec<u8>,
    ) -> Memory {
        let Question { object, key, .. } = *question;
        // Asked before anything is copied: what was written in place has been by then.
        let hardened = self.log.hardened();
        let mut cold = ColdCandidates::new();
        let seen = self.index.find(bucket, hash, |address| {
            if let Some(record) = kept.take_record(&[address], out) {
                return Some(Some(record));
            }
            if address < self.log.head() {
                let Some(sighting) = self.ask_cached(address, question, out) else {
                    cold.push(address);
                    return None;
                };
                return sighting.is_of_key.then(|| Some((address, sighting.past())));
            }
            self.log.prefetch(address, RECORD_BYTES_USUAL);
            let Some(view) = self.log.view(address) else { return Some(None) };
            if !view.is(object, key) {
                return None;
            }
            self.log.note_read(address, &view);
            Some(Some((address, copy_put(&view, key, out))))
        });
        // The bucket's sequence covers the record too: unchanged means that nothing was torn.
        if let Some(seen) = seen {
            let Some((address, seen)) = seen else { return Memory::Retry };
            let (is_for_good, reading) = (address < hardened, seen.reading(address, bucket, stamp));
            if self.index.is_as_read(bucket, stamp) {
                return Memory::Done(if is_for_good { reading.for_good() } else { reading });
            }
            if is_for_good {
                kept.keep(Answer::Record(address, seen), out);
            }
            return Memory::Retry;
        }
        if !cold.is_empty() {
            return Memory::Cold(bucket, stamp, cold);
        }
        let settled = match self.may_be_settled(object) {
            true => match self.get_settled_cached(object, key, out) {
                Cached::Found { expires_at } => Some(expires_at),
                Cached::Absent => None,
                Cached::Unknown => return Memory::MaybeSettled(bucket, stamp),
            },
            false => None,
        };
        match self.index.is_as_read(bucket, stamp) {
            true => Memory::Done(Reading::without_record(settled, bucket, stamp)),
            false => Memory::Retry,
        }
    }

    /// Looks through candidates on disk, and then at what has settled; `None` if the bucket changed meanwhile. What was read is kept in `kept`.
    #[cold]
    pub(super) fn read_cold(
        &self,
        question: &Question<'_>,
        (bucket, stamp): (Bucket, Stamp),
        cold: &[Address],
        kept: &mut Kept,
        out: &mut Vec<u8>,
    ) -> Result<Option<Reading>> {
        let mut record = kept.take_record(cold, out);
        let mut candidates = cold.iter().copied();
        while let (None, Some(address)) = (record, candidates.next()) {
            if kept.others.contains(&address) {
                continue;
            }
            match self.ask_cold(address, question, out) {
                Ok(sighting) if sighting.is_of_key => record = Some((address, sighting.past())),
                Ok(_) => kept.others.push(address),
                // The record may have been superseded, or have settled, and its segment reused since we looked.
                Err(_) if address < self.log.begin() || !self.index.unchanged(bucket, stamp) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        let (address, past, answer) = match record {
            Some((address, past)) => (address, past, Answer::Record(address, past)),
            None => {
                let (past, answer) = self.settled_kept(question, kept, out)?;
                (NO_ADDRESS, past, answer)
            }
        };
        if self.index.unchanged(bucket, stamp) {
            return Ok(Some(past.reading(address, bucket, stamp).for_good()));
        }
        kept.keep(answer, out);
        Ok(None)
    }

    /// What has settled, of a key without a record that may be seen: as it was read before if that still holds.
    pub(super) fn settled_kept(
        &self,
        question: &Question<'_>,
        kept: &mut Kept,
        out: &mut Vec<u8>,
    ) -> Result<(PastReading, Answer)> {
        let tree = &self.settled.tree;
        if let Answer::Settled(root, past) = std::mem::take(&mut kept.answer)
            && tree.is_newest(&root)
        {
            std::mem::swap(out, &mut kept.value);
            return Ok((past, Answer::Settled(root, past)));
        }
        let root = tree.root();
        let past = self.settled_as_of(question, out)?;
        // Of the root that was the newest, and that is this one if it still is.
        let answer = if tree.is_newest(&root) { Answer::Settled(root, past) } else { Answer::Unknown };
        Ok((past, answer))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
