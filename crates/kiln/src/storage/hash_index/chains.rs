//! How long the chains of the hash index are.

use super::{Bucket, CONTROL, ENTRIES, HashIndex, LOCK, OVERFLOW_SHIFT};
use crate::sync::atomic::Ordering;

/// So many buckets are looked at, spread evenly over all: a few hundred are enough for a mean, and more would take longer than who asks for statistics
/// expects.
const SAMPLE_BUCKETS: u64 = 1 << 10;

/// What a sample of the hash index's chains says. A *chain* is a bucket and its overflow buckets, each a cache line of
/// 64 bytes with room for 7 entries; who looks for a key that is not there goes over all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct IndexChains {
    /// Chains looked at: 1,024 at the most, spread evenly over the index; fewer if it is smaller, or some were being written.
    pub sampled: u64,
    /// Entries in a chain, on average. Each key with a record has one.
    pub entries_mean: f64,
    /// Cache lines of a chain, on average: 1 if there are no overflow buckets.
    pub lines_mean: f64,
    /// Cache lines of the longest chain in the sample.
    pub lines_max: u64,
}

impl HashIndex {
    /// Looks at a sample of the chains, without stopping anybody. Takes one or two cache misses a chain.
    pub(crate) fn chains(&self) -> IndexChains {
        let buckets = self.bucket_count();
        let (mut chains, mut entries, mut lines) = (IndexChains::default(), 0, 0);
        for bucket in (0..buckets).step_by(buckets.div_ceil(SAMPLE_BUCKETS) as usize) {
            if let Some((chain_entries, chain_lines)) = self.chain(bucket) {
                chains.sampled += 1;
                chains.lines_max = chains.lines_max.max(chain_lines);
                entries += chain_entries;
                lines += chain_lines;
            }
        }
        let sampled = chains.sampled.max(1) as f64;
        chains.entries_mean = entries as f64 / sampled;
        chains.lines_mean = lines as f64 / sampled;
        chains
    }

    /// Entries and lines of a bucket's chain, unless that is written meanwhile: overflow buckets are used again, and the walk might be in another chain by now.
    fn chain(&self, bucket: Bucket) -> Option<(u64, u64)> {
        let control = self.control(bucket).load(Ordering::SeqCst);
        let lines_max = self.overflow.lines_taken();
        let (mut entries, mut lines) = (0, 0);
        let mut line = self.buckets.line(bucket);
        let mut next = control >> OVERFLOW_SHIFT;
        loop {
            entries +=
                line[..ENTRIES].iter().filter(|entry| entry.load(Ordering::Acquire) != 0).count() as u64;
            lines += 1;
            match self.overflow.line(next) {
                Some(overflow) if lines <= lines_max => line = overflow,
                _ => break,
            }
            next = line[CONTROL].load(Ordering::Acquire);
        }
        let is_whole = control & LOCK == 0 && self.control(bucket).load(Ordering::SeqCst) == control;
        is_whole.then_some((entries, lines))
    }
}
