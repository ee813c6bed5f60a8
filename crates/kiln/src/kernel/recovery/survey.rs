//! A look at a long log before it is walked: how far it goes, and how many keys it has.
//!
//! Every segment begins with an extent, so the log can be looked at there without being read. What is found is believed in
//! nothing but how much memory is taken beforehand, and from where on the log is left in memory.

use crate::device::AlignedBuffer;
use crate::storage::extent::Extent;
use crate::storage::record::{Address, NO_ADDRESS};
use crate::storage::seal::Seal;
use crate::storage::segments::Segments;
use crate::storage::superblock::Superblock;

/// How many segments are looked at, and how much of each.
const SEGMENTS_MAX: usize = 32;
const LOOK_BYTES: u64 = 64 << 10;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The log goes on at least up to here, unless it is damaged.
    pub(super) reaches: Address,
    /// About how many keys the index will hold, if the log is long.
    pub(super) keys: u64,
}

/// What was found at the beginnings of segments.
#[derive(Default)]
struct Found {
    bytes: u64,
    /// Keys that came to be there, less those that ceased to be.
    keys: i64,
}

impl Survey {
    /// Looks at a log that may have `long_bytes`. Of a shorter one it is enough to know what the superblock knows.
    pub(super) fn of(segments: &Segments, superblock: &Superblock, long_bytes: u64) -> Survey {
        let segment_bytes = superblock.segment_bytes;
        let first = superblock.begin / segment_bytes;
        let numbers: Vec<u64> = segments.numbers().into_iter().filter(|&number| number >= first).collect();
        let mut survey = Survey { reaches: superblock.known_end.max(superblock.begin), keys: 0 };
        if (numbers.len() as u64) * segment_bytes < long_bytes {
            return survey;
        }
        let mut found = Found::default();
        let mut block = AlignedBuffer::new(LOOK_BYTES.min(segment_bytes) as usize);
        let mut look_at = |number: &u64| {
            let start = number * segment_bytes;
            // Who walks the log will meet the error, if it matters.
            let is_there =
                segments.read(start, &mut block).is_ok() && found.look_at(superblock, start, &block);
            if is_there {
                survey.reaches = survey.reaches.max(start);
            }
            is_there
        };
        for number in numbers.iter().step_by(numbers.len().div_ceil(SEGMENTS_MAX).max(1)) {
            look_at(number);
        }
        // The last ones may have been made in advance.
        let _ = numbers.iter().rev().take(SEGMENTS_MAX).any(look_at);
        let log_bytes = u128::from(survey.reaches - superblock.begin);
        let keys = u128::from(found.keys.max(0).unsigned_abs()) * log_bytes / u128::from(found.bytes.max(1));
        survey.keys = u64::try_from(keys).unwrap_or(0);
        survey
    }
}

impl Found {
    /// Whether the log reaches the segment that begins with these bytes.
    fn look_at(&mut self, superblock: &Superblock, start: Address, bytes: &[u8]) -> bool {
        let mut offset = 0;
        while let Some(rest) = bytes.get(offset..)
            && let Ok((seal, checksum)) = Seal::decode(rest)
            && seal.database == superblock.database
            && seal.address == start + offset as u64
        {
            let length = usize::try_from(seal.length).unwrap_or(usize::MAX);
            let extent = Extent { seal, checksum, bytes: &rest[..length.min(rest.len())] };
            for (_, head) in extent.bounds() {
                // A record before the log's beginning has no entry that this one could replace.
                let is_first = |previous: Address| previous == NO_ADDRESS || previous < superblock.begin;
                match head {
                    Some(head) if head.kind.is_put() => self.keys += i64::from(is_first(head.previous)),
                    Some(head) => self.keys -= i64::from(!is_first(head.previous)),
                    None => {}
                }
            }
            offset = offset.saturating_add(length.max(1));
        }
        self.bytes += offset.min(bytes.len()) as u64;
        offset > 0
    }
}
