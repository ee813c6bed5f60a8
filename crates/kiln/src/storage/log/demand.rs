//! How much of the log a commit may take: its records, what they leave free at the ends of segments, and the room of seals.
//!
//! ```text
//!  tail                     | segment                | segment
//!   | record |  rest        |seal| record |   rest   |seal| record | record |
//!            \_ less than the record behind it _/
//! ```
//!
//! No record crosses a segment's end. So what stays free there is less than the record that begins the next segment, and all of it together less
//! than the records together. That is much only where records are long: a rest is also less than the longest of them.

use super::super::record::Address;
use super::super::seal::SEAL_BYTES;

/// Log for records that one commit appends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    /// Of all records.
    pub(crate) bytes: u64,
    /// Of the longest, or of the longest that are taken in one piece.
    pub(crate) longest: u64,
}

impl Demand {
    /// One record.
    pub(crate) fn of_one(bytes: u64) -> Demand {
        Demand { bytes, longest: bytes }
    }

    /// With another record.
    pub(crate) fn with(self, bytes: u64) -> Demand {
        Demand { bytes: self.bytes + bytes, longest: self.longest.max(bytes) }
    }

    /// Where the records end at the latest if they are appended from `tail` on. For one record that is where it ends.
    pub(super) fn end_from(self, tail: Address, segment_bytes: u64) -> Address {
        let Demand { bytes, longest } = self;
        let boundary = tail.next_multiple_of(segment_bytes);
        let rest = boundary - tail;
        if bytes <= rest {
            return tail + bytes;
        }
        // A segment, the first one included, is left once less than the longest record has room.
        let room = segment_bytes - SEAL_BYTES;
        let behind = bytes - (rest + 8).saturating_sub(longest);
        let segments = behind.saturating_sub(room).div_ceil(room + 8 - longest);
        let end = boundary + segments * segment_bytes + SEAL_BYTES + behind - segments * (room + 8 - longest);
        end.min(tail + span_max(bytes, segment_bytes))
    }
}

/// The most log that records of so many bytes together take, wherever the tail is.
pub(super) fn span_max(bytes: u64, segment_bytes: u64) -> u64 {
    // What a segment has of them, and the first one of the next segment, are together more than one has room for.
    let segments = (2 * bytes).div_ceil(segment_bytes - SEAL_BYTES);
    2 * bytes + segments * SEAL_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT_BYTES: u64 = 16 << 10;

    /// Where records end that are appended one by one, as the log does it.
    fn end_of(records: &[u64], tail: Address) -> Address {
        records.iter().fold(tail, |tail, bytes| match tail % SEGMENT_BYTES {
            offset if offset != 0 && offset + bytes <= SEGMENT_BYTES => tail + bytes,
            _ => tail.next_multiple_of(SEGMENT_BYTES) + SEAL_BYTES + bytes,
        })
    }

    #[test]
    fn records_never_end_behind_what_was_foreseen_wherever_the_tail_is() {
        let mut random = 1_u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        let (mut tight, mut padded) = (0, 0);
        for _ in 0..20_000 {
            let tail = (1 << 20) + 8 * below(SEGMENT_BYTES / 8);
            // All about as long, or all kinds.
            let (least, most) = (below(1_250), 1 + below(1_250));
            let records: Vec<u64> = (0..1 + below(40)).map(|_| 8 * (2 + least.max(below(most)))).collect();
            let demand = records.iter().fold(Demand::default(), |demand, &bytes| demand.with(bytes));
            let (end, foreseen) = (end_of(&records, tail), demand.end_from(tail, SEGMENT_BYTES));
            assert!(end <= foreseen, "{records:?} from {tail}: {end}, not {foreseen}");
            assert!(foreseen - tail <= span_max(demand.bytes, SEGMENT_BYTES));
            tight += u32::from(end == foreseen);
            padded += u32::from(end - tail > demand.bytes / 4 * 7);
            if let [bytes] = records[..] {
                assert_eq!(Demand::of_one(bytes).end_from(tail, SEGMENT_BYTES), end);
            }
        }
        assert!(tight > 1_000 && padded > 100, "{tight} {padded}");
    }
}
