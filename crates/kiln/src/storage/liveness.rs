//! Liveness: how many records of each segment may still be needed, so that the log's beginning is dropped without being
//! read.
//!
//! A hardened record is *superseded* when its key's next record has hardened, when its deletion was forgotten, or when a
//! crash took its version. The hardener and recovery see every record once, and with it the address of the one that it
//! supersedes. So the counts cost the commits nothing, and are exact.

use std::collections::VecDeque;

use super::record::{Address, NO_ADDRESS};
use crate::planted::{Bug, planted};

/// What is known of one segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentLiveness {
    /// Hardened records.
    pub(crate) records: u64,
    /// Those of them that are superseded.
    superseded: u64,
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
}

/// See the module's documentation.
pub(crate) struct Liveness {
    segment_bytes: u64,
    /// Number of the first one in `segments`.
    first: u64,
    segments: VecDeque<SegmentLiveness>,
}

impl Liveness {
    /// For a log that begins at `begin`.
    pub(crate) fn new(begin: Address, segment_bytes: u64) -> Liveness {
        Liveness { segment_bytes, first: begin / segment_bytes, segments: VecDeque::new() }
    }

    /// Place of the segment at `address` in `segments`; `None` if it was dropped.
    fn position(&self, address: Address) -> Option<usize> {
        (address / self.segment_bytes).checked_sub(self.first).map(|at| at as usize)
    }

    /// The segment at `address`; `None` if it was dropped.
    fn segment(&mut self, address: Address) -> Option<&mut SegmentLiveness> {
        let at = self.position(address)?;
        if at >= self.segments.len() {
            self.segments.resize(at + 1, SegmentLiveness::default());
        }
        self.segments.get_mut(at)
    }

    /// A record has hardened.
    pub(crate) fn add(&mut self, address: Address) {
        self.add_records(address, 1);
    }

    /// So many records of the segment at `address` have hardened.
    pub(crate) fn add_records(&mut self, address: Address, count: u64) {
        if let Some(segment) = self.segment(address) {
            segment.records += count;
        }
    }

    /// Adds what another one has counted of the same log. Neither sums nor the newest version depend on who counted what.
    pub(crate) fn add_all(&mut self, other: &Liveness) {
        for (segment, counted) in (other.first..).zip(&other.segments) {
            if let Some(own) = self.segment(segment * self.segment_bytes) {
                own.records += counted.records;
                own.superseded += counted.superseded;
                own.newest_successor = own.newest_successor.max(counted.newest_successor);
            }
        }
    }

    /// The record at `address`, if there is one, is not needed by who sees `version`.
    pub(crate) fn supersede(&mut self, address: Address, version: u64) {
        if address != NO_ADDRESS
            && let Some(segment) = self.segment(address)
        {
            segment.superseded += 1 + u64::from(planted(Bug::SupersededTwice));
            segment.newest_successor = segment.newest_successor.max(version);
        }
    }

    /// The newest extent of its segment is the one at `address`, and this its seal's checksum.
    pub(crate) fn set_end_checksum(&mut self, address: Address, checksum: u32) {
        if let Some(segment) = self.segment(address) {
            segment.end_checksum = checksum;
        }
    }

    /// What is known of the segment at `address`.
    pub(crate) fn of_segment(&self, address: Address) -> SegmentLiveness {
        self.position(address).and_then(|at| self.segments.get(at)).copied().unwrap_or_default()
    }

    /// Forgets the segments before `begin`.
    pub(crate) fn drop_before(&mut self, begin: Address) {
        let first = begin / self.segment_bytes;
        let dropped = (first - self.first).min(self.segments.len() as u64);
        self.segments.drain(..dropped as usize);
        self.first = first;
    }
}
