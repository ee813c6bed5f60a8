//! Walks over what was collected, all or an interval of the keys.

use std::cmp::Ordering as Order;
use std::io;

use super::{Entry, Newest, Part, Sorted};
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use crate::storage::prefix::head_of;
use crate::storage::record::Address;
use crate::storage::runs::RunReaders;

impl Newest {
    /// Walks over the newest records of the keys in the tree from `low` on and before `high`, in the order of the keys.
    ///
    /// # Errors
    /// `Io`, if what was written cannot be read.
    pub(in crate::kernel) fn walk_between<'n>(
        &'n self,
        low: &[u8],
        high: Option<&'n [u8]>,
    ) -> Result<NewestWalk<'n>> {
        let mut readers = self.runs.readers(self.parts.iter().flat_map(|part| &part.runs), low);
        let run_count = self.parts.iter().map(|part| part.runs.len()).sum();
        let prefix_bytes = self.prefix_bytes();
        let on_disk = |run| Source::new(Entries::OnDisk { run, start: 0, end: 0 }, prefix_bytes);
        let mut sources: Vec<_> = (0..run_count).map(on_disk).collect();
        sources.extend(self.parts.iter().map(|part| Source::new(part.entries_from(low), prefix_bytes)));
        let mut order = Vec::new();
        for (index, source) in sources.iter_mut().enumerate() {
            if source.advance_to(low, &mut readers)? {
                order.push(index);
            }
        }
        let (last, is_begun, passed) = (Vec::new(), false, 0);
        let mut walk = NewestWalk { readers, high, sources, order, last, is_begun, passed };
        (0..walk.order.len()).rev().for_each(|place| walk.sift_down(place));
        Ok(walk)
    }
}

impl Part {
    /// What is in memory, from a key on.
    fn entries_from(&self, low: &[u8]) -> Entries<'_> {
        let first = self.sorted.partition_point(|sorted| self.key_of(sorted) < low);
        Entries::InMemory { arena: &self.arena, rest: self.sorted[first..].iter(), start: 0 }
    }
}

/// The entries of a run, or of what is in memory, one after the other.
struct Source<'n> {
    entries: Entries<'n>,
    /// All keys of all sources begin with so many bytes that are the same.
    prefix_bytes: usize,
    /// Of the current entry: what its key begins with behind these, and where its record is.
    head: u128,
    address: Address,
}

enum Entries<'n> {
    InMemory {
        arena: &'n [u8],
        rest: std::slice::Iter<'n, Sorted>,
        start: usize,
    },
    /// The current entry is from `start` to `end` in the chunk of its run.
    OnDisk {
        run: usize,
        start: usize,
        end: usize,
    },
}

impl<'n> Source<'n> {
    fn new(entries: Entries<'n>, prefix_bytes: usize) -> Source<'n> {
        Source { entries, prefix_bytes, head: 0, address: 0 }
    }

    /// Goes on to the next entry, the first one at first; false at the end.
    fn advance(&mut self, readers: &mut RunReaders<'n>) -> Result<bool> {
        match &mut self.entries {
            Entries::InMemory { rest, start, .. } => match rest.next() {
                Some(next) => *start = next.start,
                None => return Ok(false),
            },
            Entries::OnDisk { run, start, end } => {
                *start = *end;
                if *start == readers.chunk(*run).len() {
                    if !readers.next(*run)? {
                        return Ok(false);
                    }
                    (*start, *end) = (0, 0);
                }
            }
        }
        let (entry, bytes) = Entry::decode(self.bytes(readers)).ok_or_else(damaged)?;
        let rest = entry.tree_key.get(self.prefix_bytes..).ok_or_else(damaged)?;
        (self.head, self.address) = (head_of(rest), entry.address);
        if let Entries::OnDisk { start, end, .. } = &mut self.entries {
            *end = *start + bytes;
        }
        Ok(true)
    }

    /// Goes on to the first entry from `low` on; false if there is none.
    fn advance_to(&mut self, low: &[u8], readers: &mut RunReaders<'n>) -> Result<bool> {
        while self.advance(readers)? {
            if self.tree_key(readers) >= low {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What begins with the current entry.
    fn bytes<'s>(&self, readers: &'s RunReaders<'n>) -> &'s [u8] {
        match &self.entries {
            Entries::InMemory { arena, start, .. } => &arena[*start..],
            Entries::OnDisk { run, start, .. } => &readers.chunk(*run)[*start..],
        }
    }

    fn entry<'s>(&self, readers: &'s RunReaders<'n>) -> Option<Entry<'s>> {
        Entry::decode(self.bytes(readers)).map(|(entry, _)| entry)
    }

    fn tree_key<'s>(&self, readers: &'s RunReaders<'n>) -> &'s [u8] {
        self.entry(readers).map_or(&[], |entry| entry.tree_key)
    }
}

#[cold]
fn damaged() -> Error {
    let what = "what was read is not in order; the disk, or memory, is faulty";
    Error::io("reading sorted runs of what is to settle", io::Error::new(io::ErrorKind::InvalidData, what))
}

/// See [`Newest::walk`].
pub(in crate::kernel) struct NewestWalk<'n> {
    readers: RunReaders<'n>,
    /// Where it ends.
    high: Option<&'n [u8]>,
    sources: Vec<Source<'n>>,
    /// A heap of those that are not at their end: the one whose entry comes first is the first.
    order: Vec<usize>,
    /// The key of the entry that was given last.
    last: Vec<u8>,
    is_begun: bool,
    passed: u64,
}

impl NewestWalk<'_> {
    /// The next key's newest record; `None` at the end.
    ///
    /// # Errors
    /// `Io`, if what was written cannot be read.
    pub(in crate::kernel) fn next(&mut self) -> Result<Option<Entry<'_>>> {
        if std::mem::replace(&mut self.is_begun, true) {
            loop {
                self.advance_first()?;
                let Some(&first) = self.order.first() else { break };
                match self.sources[first].tree_key(&self.readers).cmp(&self.last) {
                    Order::Greater => break,
                    // An older record of the same key.
                    Order::Equal => {}
                    Order::Less => return Err(damaged()),
                }
            }
        }
        let Some(&first) = self.order.first() else { return Ok(None) };
        if self.high.is_some_and(|high| self.sources[first].tree_key(&self.readers) >= high) {
            self.order.clear();
            return Ok(None);
        }
        let NewestWalk { readers, sources, last, .. } = self;
        let entry = sources[first].entry(readers).ok_or_else(damaged)?;
        last.clear();
        last.extend_from_slice(entry.tree_key);
        Ok(Some(entry))
    }

    /// Behind how many of [all](Newest::count) it is, of those in its interval.
    pub(in crate::kernel) fn passed(&self) -> u64 {
        self.passed
    }

    fn advance_first(&mut self) -> Result<()> {
        let Some(&first) = self.order.first() else { return Ok(()) };
        self.passed += 1;
        if !self.sources[first].advance(&mut self.readers)? {
            self.order.swap_remove(0);
        }
        self.sift_down(0);
        Ok(())
    }

    /// True if one source's entry comes before another's: that of the lesser key, and of one key's the newest.
    fn comes_before(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.sources[one], &self.sources[other]);
        let newest_first = || match planted(Bug::SettlesOldest) {
            true => one.address.cmp(&other.address),
            false => other.address.cmp(&one.address),
        };
        let by_key = || one.tree_key(&self.readers).cmp(other.tree_key(&self.readers));
        one.head.cmp(&other.head).then_with(by_key).then_with(newest_first) == Order::Less
    }

    /// Makes a heap of what is from `place` on, where all but `place` is one.
    fn sift_down(&mut self, mut place: usize) {
        loop {
            let mut least = place;
            for child in [2 * place + 1, 2 * place + 2] {
                let is_less = |&child: &usize| self.comes_before(child, self.order[least]);
                if self.order.get(child).is_some_and(is_less) {
                    least = child;
                }
            }
            if least == place {
                return;
            }
            self.order.swap(place, least);
            place = least;
        }
    }
}
