//! The nodes in memory, up to a budget.
//!
//! A table of buckets, each two cache lines with four nodes; a lookup takes these, and the node. Readers are pinned, count nothing and
//! lock nothing: what is evicted stays in memory until all have gone on who might look at it ([`super::shared`]). The clock's hand goes
//! round the buckets; a node that was looked at gets another round, an inner node several. Whoever evicts, evicts a batch, because
//! waiting for readers costs the same for one node as for many.
//!
//! A node's contents are known by its block and its checksum together, so that a block's old contents never pass for its new ones.

use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::node::Node;
use super::reference::NodeReference;
use super::shared::{Retired, Shared, release};
use crate::storage::epoch::{self, Pin};
use crate::storage::memory::{self, Array};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Nodes of a bucket.
const WAYS: usize = 4;
/// Memory for which there is a bucket: with nodes of 4 to 8 KiB a third of the places are taken when the budget is.
const BYTES_PER_BUCKET: usize = 8 << 10;
/// What goes at once when there is no room: this part of the budget, and not less than that.
const BATCH_PART: u64 = 64;
const BATCH_BYTES_MIN: u64 = 64 << 10;
/// So often the hand goes round before it takes whatever comes.
const ROUNDS: usize = 8;
/// Counters, so that threads that read at the same time hardly share one.
const COUNTERS: usize = 64;

/// So much of a node is fetched as soon as it is known where it is: the header, and what is searched first.
const PREFETCH_BYTES: u64 = 512;

/// Four nodes, their blocks, and where their contents are in memory, which is only for the processor to fetch. Without any it is zeros: memory that
/// nobody has touched.
#[repr(align(128))]
pub(super) struct Bucket {
    blocks: [AtomicU64; WAYS],
    places: [AtomicU64; WAYS],
    /// Dropped with the [`Cache`].
    nodes: [ManuallyDrop<Shared<Node>>; WAYS],
}

impl Bucket {
    /// Has the processor fetch the beginning of a node's contents, without waiting for the node to tell where they are.
    #[inline]
    fn prefetch(&self, way: usize) {
        let place = self.places[way].load(Ordering::Relaxed);
        for offset in (0..PREFETCH_BYTES).step_by(64) {
            memory::prefetch_address(place.wrapping_add(offset) as usize);
        }
    }
}

#[repr(align(128))]
#[derive(Default)]
struct Counter(AtomicU64);

/// The cache.
pub(super) struct Cache {
    buckets: Array<Bucket>,
    /// Of which nodes may take what the buckets leave.
    budget: AtomicU64,
    bytes: AtomicU64,
    hits: Box<[Counter]>,
    misses: AtomicU64,
    /// Where the clock's hand is. Whoever changes anything holds it.
    hand: Mutex<usize>,
}

impl Cache {
    /// A cache for nodes of `bytes` at most; the memory is taken as it is touched.
    ///
    /// # Errors
    /// The operating system's, when there is no memory.
    pub(super) fn new(bytes: usize) -> io::Result<Cache> {
        let count = (bytes / BYTES_PER_BUCKET).max(16);
        Ok(Cache {
            buckets: Array::new(count)?,
            budget: AtomicU64::new(bytes.saturating_sub(count * size_of::<Bucket>()) as u64),
            bytes: AtomicU64::new(0),
            hits: (0..COUNTERS).map(|_| Counter::default()).collect(),
            misses: AtomicU64::new(0),
            hand: Mutex::new(0),
        })
    }

    /// The memory that nodes take.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The memory that the buckets take.
    pub(super) fn table_bytes(&self) -> u64 {
        (self.buckets.len() * size_of::<Bucket>()) as u64
    }

    /// What nodes may take.
    pub(super) fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// Has nodes and buckets together take so many bytes at most. The caller is not pinned.
    pub(super) fn set_bytes(&self, bytes: u64) {
        let budget = bytes.saturating_sub(self.table_bytes());
        let mut retired = Vec::new();
        {
            let mut hand = self.hand.lock();
            self.budget.store(budget, Ordering::Relaxed);
            if !self.has_room(0) {
                self.evict(&mut hand, 0, &mut retired);
            }
        }
        release(retired);
    }

    /// Whether so much fits without evicting anything.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.bytes() + bytes <= self.budget()
    }

    /// About how often a leaf was found.
    pub(super) fn hits(&self) -> u64 {
        self.hits.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum()
    }

    /// How often a node was not found.
    pub(super) fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    /// Counts a leaf that was found. Two threads with one counter may count one of two.
    #[inline]
    pub(super) fn note_hit(&self) {
        let counter = &self.hits[epoch::thread_index() % COUNTERS].0;
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(super) fn note_miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn bucket(&self, block: u64) -> &Bucket {
        let hash = block.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let index = ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize;
        &self.buckets[index]
    }

    /// A node, if it is here.
    #[inline]
    pub(super) fn find<'a>(&'a self, pin: &'a Pin, reference: &NodeReference) -> Option<&'a Node> {
        let bucket = self.bucket(reference.block);
        for way in 0..WAYS {
            if bucket.blocks[way].load(Ordering::Relaxed) != reference.block {
                continue;
            }
            bucket.prefetch(way);
            if let Some(node) = bucket.nodes[way].get(pin)
                && (node.block, node.checksum) == (reference.block, reference.checksum)
            {
                node.note_use();
                return Some(node);
            }
        }
        None
    }

    /// Has the processor fetch a node, if it is here.
    pub(super) fn prefetch(&self, reference: &NodeReference) {
        let (bucket, pin) = (self.bucket(reference.block), epoch::pin());
        for way in 0..WAYS {
            if bucket.blocks[way].load(Ordering::Relaxed) == reference.block {
                bucket.prefetch(way);
                if let Some(node) = bucket.nodes[way].get(&pin) {
                    memory::prefetch(node);
                }
            }
        }
    }

    /// A node, if it is here, to be kept.
    pub(super) fn get(&self, reference: &NodeReference) -> Option<Arc<Node>> {
        let bucket = self.bucket(reference.block);
        (0..WAYS).find_map(|way| {
            let is_here = bucket.blocks[way].load(Ordering::Relaxed) == reference.block;
            let node = is_here.then(|| {
                bucket.prefetch(way);
                bucket.nodes[way].get_owned()
            })??;
            let is_it = (node.block, node.checksum) == (reference.block, reference.checksum);
            is_it.then(|| {
                node.note_use();
                node
            })
        })
    }

    /// Keeps a node, in the place of others if there is no room. The caller is not pinned.
    pub(super) fn insert(&self, node: Arc<Node>) {
        let bytes = node.memory_bytes();
        if bytes > self.budget() {
            return;
        }
        let mut retired = Vec::new();
        {
            let mut hand = self.hand.lock();
            if !self.has_room(bytes) {
                self.evict(&mut hand, bytes, &mut retired);
            }
            let bucket = self.bucket(node.block);
            let way = self.way_for(bucket, node.block);
            bucket.blocks[way].store(node.block, Ordering::Relaxed);
            bucket.places[way].store(node.address(), Ordering::Relaxed);
            self.put(bucket, way, Some(node), &mut retired);
        }
        release(retired);
    }

    /// Forgets what a block held. The caller gives what was there to [`release`].
    pub(super) fn remove(&self, block: u64) -> Option<Retired<Node>> {
        let _hand = self.hand.lock();
        let bucket = self.bucket(block);
        let way = (0..WAYS).find(|&way| bucket.blocks[way].load(Ordering::Relaxed) == block)?;
        let mut retired = Vec::new();
        self.put(bucket, way, None, &mut retired);
        retired.pop()
    }

    /// The place of the same block, or an empty one, or that of a node that has not been looked at.
    fn way_for(&self, bucket: &Bucket, block: u64) -> usize {
        let pin = epoch::pin();
        let same = (0..WAYS).find(|&way| bucket.blocks[way].load(Ordering::Relaxed) == block);
        let empty = || (0..WAYS).find(|&way| bucket.nodes[way].get(&pin).is_none());
        let unused = || {
            (0..WAYS).find(|&way| {
                bucket.nodes[way].get(&pin).is_none_or(|node| node.level() == 0 && !node.take_chance())
            })
        };
        same.or_else(empty).or_else(unused).unwrap_or(block as usize % WAYS)
    }

    /// Has nodes go until `bytes` have room, and a batch more. The caller has the hand.
    fn evict(&self, hand: &mut usize, bytes: u64, retired: &mut Vec<Retired<Node>>) {
        let budget = self.budget();
        let aim = budget.saturating_sub(bytes);
        let aim = aim.saturating_sub((budget / BATCH_PART).max(BATCH_BYTES_MIN));
        let mut steps = 0;
        while self.bytes() > aim {
            let bucket = &self.buckets[*hand];
            *hand = (*hand + 1) % self.buckets.len();
            steps += 1;
            // Readers can give chances as fast as the hand takes them.
            let is_patient = steps <= ROUNDS * self.buckets.len();
            for way in 0..WAYS {
                let pin = epoch::pin();
                let stays = |node: &Node| node.take_chance() && is_patient;
                let goes = bucket.nodes[way].get(&pin).is_some_and(|node| !stays(node));
                if goes {
                    self.put(bucket, way, None, retired);
                }
            }
        }
    }

    /// Puts something in a place, or nothing. The caller has the hand.
    fn put(&self, bucket: &Bucket, way: usize, node: Option<Arc<Node>>, retired: &mut Vec<Retired<Node>>) {
        let pin = epoch::pin();
        let old = bucket.nodes[way].get(&pin).map_or(0, Node::memory_bytes);
        let new = node.as_ref().map_or(0, |node| node.memory_bytes());
        self.bytes.fetch_add(new.wrapping_sub(old), Ordering::Relaxed);
        retired.extend(bucket.nodes[way].replace(node));
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // Of a large one most was never touched, and is only read.
        for node in self.buckets.iter_mut().flat_map(|bucket| &mut bucket.nodes) {
            drop(node.take());
        }
    }
}
