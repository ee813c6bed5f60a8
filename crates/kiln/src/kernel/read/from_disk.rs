//! What is read from disk of one key, while others may change the key's bucket.
//!
//! A bucket may change more often than the disk answers. So what was read is kept when it has, and stands as soon as the index is seen to lead to it; it
//! is not read again.

use std::sync::Arc;

use super::{PastReading, Reading};
use crate::error::Result;
use crate::kernel::cold::Question;
use crate::kernel::engine::Engine;
use crate::storage::hash_index::{Bucket, Stamp};
use crate::storage::record::{Address, NO_ADDRESS};
use crate::storage::tree::Root;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct FromDisk {
    /// Records of other keys. No record on disk changes, and its address is never used again.
    pub(super) others: Vec<Address>,
    answer: Answer,
    value: Vec<u8>,
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

impl FromDisk {
    /// Keeps an answer, whose value is in the caller's buffer.
    pub(super) fn keep(&mut self, answer: Answer, out: &mut Vec<u8>) {
        self.answer = answer;
        std::mem::swap(out, &mut self.value);
    }

    /// The record among these candidates that was found to be the key's, if it was, with its value in the buffer.
    fn take_record(&mut self, candidates: &[Address], out: &mut Vec<u8>) -> Option<(Address, PastReading)> {
        let Answer::Record(address, past) = self.answer else { return None };
        candidates.contains(&address).then(|| {
            std::mem::swap(out, &mut self.value);
            (address, past)
        })
    }
}

impl Engine {
    /// Looks through candidates on disk, and then at what has settled; `None` if the bucket changed meanwhile. What was read is kept in `from_disk`.
    #[cold]
    pub(super) fn read_cold(
        &self,
        question: &Question<'_>,
        (bucket, stamp): (Bucket, Stamp),
        cold: &[Address],
        from_disk: &mut FromDisk,
        out: &mut Vec<u8>,
    ) -> Result<Option<Reading>> {
        let mut record = from_disk.take_record(cold, out);
        let mut candidates = cold.iter().copied();
        while let (None, Some(address)) = (record, candidates.next()) {
            if from_disk.others.contains(&address) {
                continue;
            }
            match self.ask_cold(address, question, out) {
                Ok(sighting) if sighting.is_of_key => record = Some((address, sighting.past())),
                Ok(_) => from_disk.others.push(address),
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
                let (past, answer) = self.settled_from_disk(question, from_disk, out)?;
                (NO_ADDRESS, past, answer)
            }
        };
        if self.index.unchanged(bucket, stamp) {
            return Ok(Some(past.reading(address, bucket, stamp)));
        }
        from_disk.keep(answer, out);
        Ok(None)
    }

    /// What has settled, of a key without a record that may be seen: as it was read before if that still holds.
    pub(super) fn settled_from_disk(
        &self,
        question: &Question<'_>,
        from_disk: &mut FromDisk,
        out: &mut Vec<u8>,
    ) -> Result<(PastReading, Answer)> {
        let tree = &self.settled.tree;
        if let Answer::Settled(root, past) = std::mem::take(&mut from_disk.answer)
            && tree.is_newest(&root)
        {
            std::mem::swap(out, &mut from_disk.value);
            return Ok((past, Answer::Settled(root, past)));
        }
        let root = tree.root();
        let past = self.settled_as_of(question, out)?;
        // Of the root that was the newest, and that is this one if it still is.
        let answer = if tree.is_newest(&root) { Answer::Settled(root, past) } else { Answer::Unknown };
        Ok((past, answer))
    }
}
