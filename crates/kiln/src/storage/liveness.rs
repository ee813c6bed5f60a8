//! Liveness: how many records of each segment may still be needed, so that the log's beginning is dropped without being
//! read; and about how many bytes they are, so that compaction knows when there is too much beside them.
//!
//! A hardened record is *superseded* when its key's next record has hardened, when its deletion was forgotten, or when a
//! crash took its version. The hardener and recovery see every record once, and with it the address of the one that it
//! supersedes. So the counts cost the commits nothing, and are exact.
//!
//! Bytes are known when a record hardens, but not any more when it is superseded: to learn the length it would have to
//! be read. So live bytes are an estimate: a record is taken to have been as long as its successor, which is exact for what is
//! written anew and for values that keep their length, and what a deletion supersedes as long as the rest on average.
//! (Rejected: live records times the mean of all. Where long values live among short ones that die it is far too small, and
//! compaction had no end; the other way round the log had none.) What counts is the log that a record takes where records lie close together: of records that are a little longer
//! than a third of a segment it holds two, however they are compacted. Without that, a log of such records would seem to be worth
//! compacting for ever.

use std::collections::VecDeque;

use super::extent::Hardened;
use super::record::{ADDRESS_BITS, Address, NO_ADDRESS};
use super::seal::SEAL_BYTES;
use crate::device::BLOCK_BYTES;
use crate::planted::{Bug, planted};

/// What is known of one segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentLiveness {
    /// Hardened records.
    pub(crate) records: u64,
    /// Their bytes, those of long ones with what is lost at the end of a segment of such records.
    bytes: u64,
    /// How many of them are superseded, about how many bytes these are as far as that is known, and of how many it is not.
    superseded: u64,
    superseded_bytes: u64,
    unmeasured: u64,
    /// The newest version that supersedes one of them: who sees that version needs none of the superseded ones.
    pub(crate) newest_successor: u64,
    /// Checksum of the segment's last seal.
    pub(crate) end_checksum: u32,
}

impl SegmentLiveness {
    /// Records that are not superseded.
    pub(crate) fn live(&self) -> u64 {
        self.records.saturating_sub(self.superseded)
    }

    /// About how many bytes these are.
    fn live_bytes(&self) -> u64 {
        const RECORD_BYTES_MIN: u64 = 32;
        let live = self.live();
        if live == 0 {
            return 0;
        }
        let rest = self.bytes.saturating_sub(self.superseded_bytes).max(live * RECORD_BYTES_MIN);
        if self.unmeasured == 0 {
            // Without the divisions, since there are many segments, and each record that is superseded asks.
            return rest;
        }
        let all = live + self.unmeasured;
        match rest.checked_mul(live) {
            Some(share) => share / all,
            // Of no segment, but a checkpoint may say so.
            None => (u128::from(rest) * u128::from(live) / u128::from(all)) as u64,
        }
    }

    /// True if at most such a part of its records is dead.
    pub(crate) fn is_mostly_live(&self, part: u64) -> bool {
        self.superseded.saturating_mul(part) <= self.records
    }

    /// True if at most such a part of it is live.
    pub(crate) fn is_mostly_dead(&self, part: u64) -> bool {
        self.live_bytes() * part <= self.bytes
    }
}

/// Bytes of what is known of one segment, in a checkpoint.
const ENCODED_BYTES: usize = 52;

impl SegmentLiveness {
    fn encode(&self) -> [u8; ENCODED_BYTES] {
        let counts = [self.records, self.bytes, self.superseded, self.superseded_bytes, self.unmeasured];
        let mut encoded = [0; ENCODED_BYTES];
        for (place, count) in encoded.chunks_mut(8).zip(counts.into_iter().chain([self.newest_successor])) {
            place.copy_from_slice(&count.to_le_bytes());
        }
        encoded[48..].copy_from_slice(&self.end_checksum.to_le_bytes());
        encoded
    }

    fn decode(encoded: &[u8]) -> Option<SegmentLiveness> {
        let (counts, rest) = encoded.as_chunks::<8>();
        let counts: [u64; 6] =
            counts.iter().map(|count| u64::from_le_bytes(*count)).collect::<Vec<_>>().try_into().ok()?;
        let [records, bytes, superseded, superseded_bytes, unmeasured, newest_successor] = counts;
        // No log has more, so nothing that is counted with them overflows.
        let is_sane = counts.iter().all(|&count| count < 1 << ADDRESS_BITS);
        let end_checksum = u32::from_le_bytes(rest.try_into().ok()?);
        is_sane.then_some(SegmentLiveness {
            records,
            bytes,
            superseded,
            superseded_bytes,
            unmeasured,
            newest_successor,
            end_checksum,
        })
    }
}

/// See the module's documentation.
#[derive(Clone)]
pub(crate) struct Liveness {
    segment_bytes: u64,
    /// Number of the first one in `segments`.
    first: u64,
    segments: VecDeque<SegmentLiveness>,
    /// The sum of their live bytes.
    live_bytes: u64,
}

/// Bytes of a segment that are for records: one seal, and the padding of one extent, are always lost.
fn usable_bytes(segment_bytes: u64) -> u64 {
    segment_bytes - SEAL_BYTES - BLOCK_BYTES as u64
}

/// What a record of so many bytes counts for: a long one with what it loses at its segment's end.
pub(crate) fn counted_bytes(bytes: u64, segment_bytes: u64) -> u64 {
    /// What is lost at a segment's end counts only for records longer than such a part of it.
    const SHORT_PART: u64 = 64;
    let usable = usable_bytes(segment_bytes);
    match bytes * SHORT_PART <= segment_bytes {
        true => bytes,
        false => usable / (usable / bytes).max(1),
    }
}

/// What the records of an extent change. It is told in pieces: others want the counts, too, while a long extent is copied out.
#[derive(Default)]
pub(crate) struct Counted {
    records: u64,
    bytes: u64,
    /// As [`Liveness::supersede`] has it.
    superseded: Vec<(Address, u64, Option<u64>)>,
    /// What happens beside a long extent, wherever it is time to tell.
    #[cfg(test)]
    pub(crate) when_full: Option<Box<dyn Fn() + Send>>,
}

impl Counted {
    /// One more record, which supersedes another one at `previous`.
    pub(crate) fn note(&mut self, record: &Hardened<'_>, segment_bytes: u64) {
        self.records += 1;
        self.bytes += counted_bytes(record.bytes, segment_bytes);
        // A value mostly replaces one that is as long; how much a deletion takes away is not known.
        let bytes = record.kind.is_put().then_some(record.bytes);
        self.superseded.push((record.previous, record.version, bytes));
    }

    /// Whether it is time to [tell](Liveness::add) it.
    pub(crate) fn is_full(&self) -> bool {
        const RECORDS_MAX: usize = 256;
        let is_full = self.superseded.len() >= RECORDS_MAX;
        #[cfg(test)]
        if let Some(when_full) = self.when_full.as_ref().filter(|_| is_full) {
            when_full();
        }
        is_full
    }
}

impl Liveness {
    /// For a log that begins at `begin`.
    pub(crate) fn new(begin: Address, segment_bytes: u64) -> Liveness {
        debug_assert!(segment_bytes.is_power_of_two());
        Liveness { segment_bytes, first: begin / segment_bytes, segments: VecDeque::new(), live_bytes: 0 }
    }

    /// Place of the segment at `address` in `segments`; `None` if it was dropped.
    fn position(&self, address: Address) -> Option<usize> {
        (address >> self.segment_bytes.trailing_zeros()).checked_sub(self.first).map(|at| at as usize)
    }

    /// Changes what is known of the segment at `address`, unless that was dropped.
    fn change(&mut self, address: Address, change: impl FnOnce(&mut SegmentLiveness)) {
        let Some(at) = self.position(address) else { return };
        if at >= self.segments.len() {
            self.segments.resize(at + 1, SegmentLiveness::default());
        }
        if let Some(segment) = self.segments.get_mut(at) {
            self.live_bytes -= segment.live_bytes();
            change(segment);
            self.live_bytes += segment.live_bytes();
        }
    }

    /// So many records of the segment at `address` have hardened, with the sum of their [`counted_bytes`].
    pub(crate) fn add_records(&mut self, address: Address, count: u64, bytes: u64) {
        self.change(address, |segment| {
            segment.records += count;
            segment.bytes += bytes;
        });
    }

    /// Such records of the segment at `address` have hardened.
    pub(crate) fn add(&mut self, address: Address, counted: &mut Counted) {
        let (records, bytes) = (std::mem::take(&mut counted.records), std::mem::take(&mut counted.bytes));
        // Before what they supersede, which may be others of them.
        self.add_records(address, records, bytes);
        for (superseded, version, bytes) in counted.superseded.drain(..) {
            self.supersede(superseded, version, bytes);
        }
    }

    /// Adds what another one has counted of the same log. Neither sums nor the newest version depend on who counted what.
    pub(crate) fn add_all(&mut self, other: &Liveness) {
        for (segment, counted) in (other.first..).zip(&other.segments) {
            self.change(segment * self.segment_bytes, |own| {
                own.records += counted.records;
                own.bytes += counted.bytes;
                own.superseded += counted.superseded;
                own.superseded_bytes += counted.superseded_bytes;
                own.unmeasured += counted.unmeasured;
                own.newest_successor = own.newest_successor.max(counted.newest_successor);
            });
        }
    }

    /// About how many bytes of log the live records take where they lie close together.
    pub(crate) fn live_bytes(&self) -> u64 {
        (u128::from(self.live_bytes) * u128::from(self.segment_bytes)
            / u128::from(usable_bytes(self.segment_bytes))) as u64
    }

    /// How long hardened records are on average; 0 if there are none.
    pub(crate) fn record_bytes(&self) -> u64 {
        let sum = |of: fn(&SegmentLiveness) -> u64| self.segments.iter().map(of).sum::<u64>();
        sum(|segment| segment.bytes).checked_div(sum(|segment| segment.records)).unwrap_or(0)
    }

    /// How many hardened records lie before an address, and behind it in a log that has hardened up to `hardened`; about, where that is within a segment. Those that are
    /// superseded count, too.
    pub(crate) fn records_around(&self, address: Address, hardened: Address) -> (u64, u64) {
        let whole = self.position(address).unwrap_or(0).min(self.segments.len());
        let sum = |segments: std::ops::Range<usize>| {
            self.segments.range(segments).map(|segment| segment.records).sum::<u64>()
        };
        let segment = address - address % self.segment_bytes;
        let filled = hardened.saturating_sub(segment).min(self.segment_bytes).max(1);
        let share =
            u128::from(self.of_segment(address).records) * u128::from(address - segment) / u128::from(filled);
        let before = (sum(0..whole) + share as u64).min(sum(0..self.segments.len()));
        (before, sum(0..self.segments.len()) - before)
    }

    /// About how many bytes of them lie before an address.
    pub(crate) fn live_bytes_before(&self, address: Address) -> u64 {
        self.live_bytes_between(0, address)
    }

    /// About how many bytes of them lie between two addresses.
    pub(crate) fn live_bytes_between(&self, from: Address, to: Address) -> u64 {
        let first = self.position(from).unwrap_or(0).min(self.segments.len());
        let last = self.position(to).unwrap_or(0).min(self.segments.len());
        let sum = |segments: std::ops::Range<usize>| {
            self.segments.range(segments).map(SegmentLiveness::live_bytes).sum::<u64>()
        };
        let (last, count) = (last.max(first), self.segments.len());
        let bytes = match (last - first) * 2 <= count {
            true => sum(first..last),
            // What mostly lies before them has settled, and what lies behind is in memory.
            false => self.live_bytes - sum(0..first) - sum(last..count),
        };
        (bytes + self.live_bytes_in_segment_before(to))
            .saturating_sub(self.live_bytes_in_segment_before(from))
    }

    /// Of the live bytes in the segment at an address, the part that lies before it.
    fn live_bytes_in_segment_before(&self, address: Address) -> u64 {
        let whole = u128::from(self.of_segment(address).live_bytes());
        (whole * u128::from(address % self.segment_bytes) / u128::from(self.segment_bytes)) as u64
    }

    /// The end of the segment, from `from` on, with which so many of them are reached; if there are not as many, of the last one.
    pub(crate) fn end_of_live(&self, from: Address, bytes: u64) -> Address {
        let mut end = from;
        let mut reached = 0;
        for segment in self.segments.iter().skip(self.position(from).unwrap_or(0)) {
            end = (end + 1).next_multiple_of(self.segment_bytes);
            reached += segment.live_bytes();
            if reached >= bytes {
                break;
            }
        }
        end
    }

    /// About how many bytes are superseded from the first segment on that must stay for who sees `version` and nothing newer.
    pub(crate) fn dead_bytes_after(&self, version: u64) -> u64 {
        let held = self.segments.iter().skip_while(|segment| segment.newest_successor <= version);
        held.map(|segment| segment.bytes.saturating_sub(segment.live_bytes())).sum()
    }

    /// The record at `address`, if there is one, is not needed by who sees `version`. `bytes` is about how long it is, if that
    /// is known: as long as its successor.
    pub(crate) fn supersede(&mut self, address: Address, version: u64, bytes: Option<u64>) {
        let counted = bytes.map(|bytes| counted_bytes(bytes, self.segment_bytes));
        if address != NO_ADDRESS {
            self.change(address, |segment| {
                segment.superseded += 1 + u64::from(planted(Bug::SupersededTwice));
                segment.superseded_bytes += counted.unwrap_or(0);
                segment.unmeasured += u64::from(counted.is_none());
                segment.newest_successor = segment.newest_successor.max(version);
            });
        }
    }

    /// The newest extent of its segment is the one at `address`, and this its seal's checksum.
    pub(crate) fn set_end_checksum(&mut self, address: Address, checksum: u32) {
        self.change(address, |segment| segment.end_checksum = checksum);
    }

    /// What is known of the segment at `address`.
    pub(crate) fn of_segment(&self, address: Address) -> SegmentLiveness {
        self.position(address).and_then(|at| self.segments.get(at)).copied().unwrap_or_default()
    }

    /// What is known of each segment, by the segment's number, for a checkpoint.
    pub(crate) fn encoded(&self) -> impl Iterator<Item = (u64, [u8; ENCODED_BYTES])> {
        (self.first..).zip(self.segments.iter().map(SegmentLiveness::encode))
    }

    /// Takes over what a checkpoint knows of a segment, unless that was dropped; they come in order. False if it makes no sense.
    pub(crate) fn restore(&mut self, segment: u64, encoded: &[u8]) -> bool {
        let Some(known) = SegmentLiveness::decode(encoded) else { return false };
        let Some(at) = segment.checked_sub(self.first) else { return true };
        // No segment has room for more, so no sum overflows.
        let is_possible = known.records.max(known.bytes) <= 4 * self.segment_bytes;
        if !is_possible || at > self.segments.len() as u64 {
            return false;
        }
        self.change(segment * self.segment_bytes, |own| *own = known);
        true
    }

    /// Forgets the segments before `begin`.
    pub(crate) fn drop_before(&mut self, begin: Address) {
        let first = begin / self.segment_bytes;
        let dropped = (first - self.first).min(self.segments.len() as u64);
        let dropped: u64 = self.segments.drain(..dropped as usize).map(|segment| segment.live_bytes()).sum();
        self.live_bytes -= dropped;
        self.first = first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT_BYTES: u64 = 64 << 10;

    /// A record of so many bytes has hardened.
    fn add(liveness: &mut Liveness, address: Address, bytes: u64) {
        liveness.add_records(address, 1, counted_bytes(bytes, SEGMENT_BYTES));
    }

    #[test]
    fn live_bytes_are_those_of_records_that_nothing_has_superseded() {
        let mut liveness = Liveness::new(0, SEGMENT_BYTES);
        (1..=300).for_each(|number| add(&mut liveness, number * 8, 96));
        add(&mut liveness, SEGMENT_BYTES + 128, 512);
        (1..=100).for_each(|number| liveness.supersede(number * 8, 1, Some(96)));
        let (bytes, live) = (liveness.live_bytes(), 200 * 96 + 512);
        assert!((live..live * 9 / 8).contains(&bytes), "{bytes} for {live}");
        liveness.drop_before(SEGMENT_BYTES);
        assert!((512..600).contains(&liveness.live_bytes()));
    }

    #[test]
    fn short_records_that_die_among_long_ones_and_the_other_way_round_are_told_apart() {
        for (dead_bytes, live_bytes) in [(96, 5_000), (5_000, 96)] {
            let mut liveness = Liveness::new(0, SEGMENT_BYTES);
            (1..=10).for_each(|number| add(&mut liveness, number * 8, live_bytes));
            (11..=40).for_each(|number| add(&mut liveness, number * 8, dead_bytes));
            (11..=40).for_each(|number| liveness.supersede(number * 8, 1, Some(dead_bytes)));
            let (bytes, live) = (liveness.live_bytes(), 10 * live_bytes);
            assert!((live..live * 6 / 5).contains(&bytes), "{bytes} for {live}");
            assert_eq!(liveness.of_segment(0).is_mostly_dead(4), dead_bytes > live_bytes);
        }
    }

    #[test]
    fn what_deletions_supersede_is_as_long_as_the_rest_on_average() {
        let mut liveness = Liveness::new(0, SEGMENT_BYTES);
        (1..=100).for_each(|number| add(&mut liveness, number * 8, 96));
        (1..=25).for_each(|number| liveness.supersede(number * 8, 1, None));
        let (bytes, live) = (liveness.live_bytes(), 75 * 96);
        assert!((live - 96..live * 9 / 8).contains(&bytes), "{bytes} for {live}");
        (26..=100).for_each(|number| liveness.supersede(number * 8, 1, Some(1_000)));
        assert_eq!(liveness.live_bytes(), 0, "nothing is live");
    }

    #[test]
    fn so_many_live_bytes_are_reached_with_a_segment_and_no_more_than_there_are() {
        let mut liveness = Liveness::new(SEGMENT_BYTES, SEGMENT_BYTES);
        // Of the second of three segments nothing is live.
        for segment in 1..=3 {
            (1..=10).for_each(|number| add(&mut liveness, segment * SEGMENT_BYTES + number * 8, 1_000));
        }
        (1..=10).for_each(|number| liveness.supersede(2 * SEGMENT_BYTES + number * 8, 1, Some(1_000)));
        let end = |from, bytes| liveness.end_of_live(from, bytes) / SEGMENT_BYTES;
        assert_eq!(
            [1, 10_000, 10_001, 20_000, u64::MAX].map(|bytes| end(SEGMENT_BYTES, bytes)),
            [2, 2, 4, 4, 4]
        );
        assert_eq!((end(SEGMENT_BYTES * 3 / 2, 1), end(2 * SEGMENT_BYTES, 1)), (2, 4));
        let between =
            |from: u64, to: u64| liveness.live_bytes_between(from * SEGMENT_BYTES, to * SEGMENT_BYTES);
        assert_eq!(
            [between(1, 2), between(1, 3), between(2, 3), between(1, 4), between(3, 1)],
            [10_000, 10_000, 0, 20_000, 0]
        );
    }

    /// It is added up no more than for each change; it must be what adding up gives, whatever has changed.
    #[test]
    fn the_sum_of_live_bytes_is_that_of_all_segments() {
        const SEGMENTS: u64 = 20;
        let mut liveness = Liveness::new(0, SEGMENT_BYTES);
        let mut state = 1_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for step in 0..20_000 {
            let (address, bytes) = (random(SEGMENTS * SEGMENT_BYTES), 32 + random(400));
            match random(100) {
                0..50 => add(&mut liveness, address, bytes),
                50..70 => liveness.supersede(address, step, Some(100 * bytes)),
                70..97 => liveness.supersede(address, step, (step % 8 > 0).then_some(bytes)),
                97 => {
                    let mut others = Liveness::new(0, SEGMENT_BYTES);
                    add(&mut others, address, bytes);
                    others.supersede(random(SEGMENTS * SEGMENT_BYTES), step, None);
                    liveness.add_all(&others);
                }
                98 => {
                    let mut restored = Liveness::new(liveness.first * SEGMENT_BYTES, SEGMENT_BYTES);
                    assert!(liveness.encoded().all(|(segment, known)| restored.restore(segment, &known)));
                    assert!(liveness.encoded().all(|(segment, known)| restored.restore(segment, &known)));
                    liveness = restored;
                }
                _ if random(20) == 0 => liveness.drop_before(address.max(liveness.first * SEGMENT_BYTES)),
                _ => {}
            }
            let sum = |from: u64, to: u64| {
                let numbers = from.max(liveness.first)..to;
                numbers.map(|number| liveness.of_segment(number * SEGMENT_BYTES).live_bytes()).sum::<u64>()
            };
            assert_eq!(liveness.live_bytes, sum(0, SEGMENTS));
            let (from, to) = (random(SEGMENTS + 1), random(SEGMENTS + 1));
            let between = liveness.live_bytes_between(from * SEGMENT_BYTES, to * SEGMENT_BYTES);
            assert_eq!(between, sum(from, to), "segments {from} to {to}");
            if step % 5_000 == 4_999 {
                liveness = Liveness::new(0, SEGMENT_BYTES);
            }
        }
    }

    #[test]
    fn records_before_an_address_and_behind_it_are_all_there_are() {
        let mut liveness = Liveness::new(SEGMENT_BYTES, SEGMENT_BYTES);
        liveness.add_records(SEGMENT_BYTES, 100, 6_400);
        liveness.add_records(2 * SEGMENT_BYTES, 60, 3_840);
        let around = |address: u64, hardened: u64| liveness.records_around(address, hardened);
        let (begin, end) = (SEGMENT_BYTES, 2 * SEGMENT_BYTES + 30_000);
        assert_eq!(around(begin, end), (0, 160));
        assert_eq!(around(begin + SEGMENT_BYTES / 2, end), (50, 110));
        assert_eq!(around(2 * SEGMENT_BYTES, end), (100, 60));
        assert_eq!(around(2 * SEGMENT_BYTES + 10_000, end), (120, 40));
        assert_eq!(around(end, end), (160, 0));
        assert_eq!(Liveness::new(0, SEGMENT_BYTES).records_around(0, 0), (0, 0));
    }

    /// Otherwise a log in which all is live would be compacted for ever.
    #[test]
    fn long_records_count_with_what_is_lost_behind_them() {
        for bytes in [33 << 10, 24 << 10, 20 << 10, 11 << 10, 5 << 10] {
            let mut liveness = Liveness::new(0, SEGMENT_BYTES);
            let in_a_segment = (SEGMENT_BYTES - SEAL_BYTES) / bytes;
            for number in 0..10 * in_a_segment {
                let (segment, place) = (number / in_a_segment, number % in_a_segment);
                add(&mut liveness, segment * SEGMENT_BYTES + SEAL_BYTES + place * bytes, bytes);
            }
            let live = liveness.live_bytes();
            // Divisions round down by a few bytes.
            assert!(
                live > 10 * SEGMENT_BYTES * 99 / 100,
                "{live} for 10 segments of records of {bytes} bytes"
            );
        }
    }

    /// What an older snapshot sees in a segment must stay, whatever is superseded there later, or is counted by others.
    #[test]
    fn c2_the_newest_version_that_supersedes_something_in_a_segment_is_known_in_whatever_order_it_was_told() {
        let newest_of = |versions: &[u64]| {
            let mut liveness = Liveness::new(0, SEGMENT_BYTES);
            versions.iter().for_each(|&version| liveness.supersede(8, version, Some(96)));
            liveness
        };
        let newest = |liveness: &Liveness| liveness.of_segment(0).newest_successor;
        assert_eq!((newest(&newest_of(&[3, 7])), newest(&newest_of(&[7, 3]))), (7, 7));
        for (own, others) in [(3, 7), (7, 3)] {
            let mut all = newest_of(&[own]);
            all.add_all(&newest_of(&[others]));
            assert_eq!(newest(&all), 7);
        }
    }
}
