//! Gaps: stretches of keys in which there is no row. A walk need not go over the deleted keys there one by one.
//!
//! A deleted key stays in the index until the deletion is durable, no snapshot is from before, and, if its row had settled, until that has settled, too. Whoever looks for the first row of a
//! queue would come past all that were taken out of it meanwhile, each time.
//!
//! ```text
//!   keys     d d d d d d d d d d k k k          d deleted, k there
//!   gap     [------------------)                its first key, and an end that is not in it
//!   claim                 [----)                what somebody is about to look at, once more
//! ```
//!
//! Who has passed some deleted keys claims the stretch, and then looks at it once more. If each key in it is deleted, and nobody has come into the claim meanwhile, the stretch is a gap. It is joined with those that it touches.
//!
//! **Whoever puts a row into a gap** breaks it there first: with the key's bucket locked, a new key in the index already, before the clock is read ([`commit`](crate::kernel::commit)). Either he sees
//! the claim, or who has made it sees, later, what he has locked: both are sequentially consistent, the lock and the look at the claim, and the claim and the look whether bucket, or leaf, is as it was read.
//!
//! **A transaction** remembers a gap that it has used as it remembers a leaf, by the number of a place and how often gaps have been broken there, and validates it at commit. One that puts a row there itself goes on with what is left. Where that cannot be kept as a gap, or as two,
//! the whole stretch is *watched* in its place: nobody passes it any more, but who puts a row there breaks it, so that the transaction can still commit. (Without that it would find a gap there each time that it is run again, and break it each time.) **A snapshot** uses
//! one that is not of a newer version than its own: whoever has put a row into it since, which the snapshot is to see, has broken the gap before the snapshot's version was closed. So that
//! those that are open can go on, a gap remembers what it was before it grew.
//!
//! Nobody locks anything to look for a gap; whoever changes one locks the table's.

use std::ops::Range;
use std::sync::Arc;

use super::insert::Insertion;
use super::{LeafRead, OrderedIndex};
use crate::planted::{Bug, planted};
use crate::storage::epoch::{self, Pin};
use crate::storage::shared::{Retired, Shared, release, release_with_owner};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Gaps of a table.
const GAPS_MAX: usize = 1024;
/// A gap does not end at longer keys: it is kept in memory.
const KEY_BYTES_MAX: usize = 1 << 10;
/// A gap is given up when it was broken so often since it has grown: its rows come back.
const BREAKS_MAX: u32 = 16;
/// So many lists that nobody finds any more are freed at once.
const RETIRED_MAX: usize = 32;
/// A gap's place passes for a leaf of this number, or of one of the next. There are no leaves of these.
const FIRST_PLACE: u32 = u32::MAX - GAPS_MAX as u32;

/// The keys from one on, up to one that is not among them.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stretch {
    first: Arc<[u8]>,
    end: Arc<[u8]>,
}

impl Stretch {
    fn has(&self, key: &[u8]) -> bool {
        &*self.first <= key && key < &*self.end
    }

    fn is_empty(&self) -> bool {
        self.first >= self.end
    }

    fn touches(&self, other: &Stretch) -> bool {
        self.first <= other.end && other.first <= self.end
    }

    fn is_within(&self, other: &Stretch) -> bool {
        other.first <= self.first && self.end <= other.end
    }

    /// What is left on both sides of one of its keys.
    fn without(&self, key: &[u8]) -> [Stretch; 2] {
        let next = [key, &[0]].concat();
        [
            Stretch { first: self.first.clone(), end: key.into() },
            Stretch { first: next.into(), end: self.end.clone() },
        ]
    }
}

/// A stretch without rows, as of any version from one on.
#[derive(Clone, Debug)]
struct Since {
    stretch: Stretch,
    version: u64,
}

impl Since {
    /// Both, which touch each other.
    fn joined(&self, other: &Since) -> Since {
        let (one, two) = (&self.stretch, &other.stretch);
        let first = (&one.first).min(&two.first).clone();
        let stretch = Stretch { first, end: (&one.end).max(&two.end).clone() };
        Since { stretch, version: self.version.max(other.version) }
    }
}

#[derive(Clone, Debug)]
struct Gap {
    newest: Since,
    /// What it was for snapshots that were open when it grew.
    older: Option<Since>,
    place: usize,
    /// How often gaps had been broken at the place.
    serial: u64,
    breaks: u32,
    /// So many keys were passed to find it.
    keys: u64,
    /// It has rows, and is there only for a transaction that has used it, and has put a row there.
    is_watched: bool,
}

impl Gap {
    fn read(&self) -> LeafRead {
        LeafRead { leaf: FIRST_PLACE + self.place as u32, version: self.serial }
    }
}

/// All gaps of a table.
#[derive(Clone)]
struct List {
    /// In the order of their keys. None touches another one.
    gaps: Vec<Arc<Gap>>,
    claimed: Option<Arc<Stretch>>,
    /// Where there is no room for one more: what the one has cost that has cost least.
    least_keys: u64,
    serials: Arc<[AtomicU64; GAPS_MAX]>,
}

impl List {
    fn new() -> List {
        let serials = std::array::from_fn(|_| AtomicU64::new(0));
        List { gaps: Vec::new(), claimed: None, least_keys: 0, serials: Arc::new(serials) }
    }

    /// Where the gap with a key is.
    fn find(&self, key: &[u8]) -> Option<usize> {
        let at = self.gaps.partition_point(|gap| &*gap.newest.stretch.first <= key).checked_sub(1)?;
        self.gaps[at].newest.stretch.has(key).then_some(at)
    }

    fn is_claimed(&self, key: &[u8]) -> bool {
        self.claimed.as_ref().is_some_and(|claimed| claimed.has(key))
    }

    fn free_place(&self) -> Option<usize> {
        if self.gaps.len() >= GAPS_MAX {
            return None;
        }
        let mut is_used = [false; GAPS_MAX];
        self.gaps.iter().for_each(|gap| is_used[gap.place] = true);
        is_used.iter().position(|is_used| !is_used)
    }

    /// The place of a gap that is watched for somebody else, who has to begin again if he is not done.
    fn take_watched_place(&mut self, has_used: impl Fn(LeafRead) -> bool) -> Option<usize> {
        let at = self.gaps.iter().position(|gap| gap.is_watched && !has_used(gap.read()))?;
        let place = self.gaps.remove(at).place;
        self.break_place(place);
        Some(place)
    }

    /// Who has used a gap of the place finds it broken.
    fn break_place(&self, place: usize) {
        self.serials[place].fetch_add(1, Ordering::SeqCst);
    }

    fn read(&self, place: usize) -> LeafRead {
        LeafRead { leaf: FIRST_PLACE + place as u32, version: self.serials[place].load(Ordering::SeqCst) }
    }

    /// Takes a gap apart where a row comes, and tells what the transaction goes on with if it `has_used` it: with nothing, if it has not.
    fn break_at(&mut self, at: usize, key: &[u8], has_used: impl Fn(LeafRead) -> bool) -> Insertion {
        let gap = self.gaps[at].clone();
        let breaks = gap.breaks + 1;
        let has_parts = gap.newest.stretch.without(key).map(|part| !part.is_empty());
        // Both parts would end at the key.
        let is_given_up = gap.is_watched || breaks >= BREAKS_MAX || key.len() >= KEY_BYTES_MAX;
        let needs_place = !is_given_up && has_parts == [true, true];
        let other_place = match needs_place {
            true => self.free_place().or_else(|| self.take_watched_place(&has_used)),
            false => None,
        };
        // One whose place was taken may have been before it.
        let at = self.gaps.partition_point(|other| other.newest.stretch.first < gap.newest.stretch.first);
        self.gaps.remove(at);
        let before = gap.read();
        self.break_place(gap.place);
        let after = self.read(gap.place);
        if (is_given_up || needs_place && other_place.is_none()) && has_used(before) {
            self.insert(at, Gap { is_watched: true, keys: 0, ..Gap::clone(&gap) });
            return Insertion::Inserted { before, after };
        }
        if is_given_up {
            return Insertion::Present;
        }
        let part = |side: usize| {
            let part_of = |since: &Since| match since.stretch.has(key) {
                true => Since { stretch: since.stretch.without(key)[side].clone(), version: since.version },
                false => since.clone(),
            };
            let newest = part_of(&gap.newest);
            let older = gap.older.as_ref().map(part_of);
            let older = older.filter(|it| !it.stretch.is_empty() && it.stretch.is_within(&newest.stretch));
            // Of both parts together no more than of the whole.
            Gap { newest, older, breaks, keys: gap.keys / 2, ..Gap::clone(&gap) }
        };
        match has_parts {
            [false, false] => {}
            [true, false] => self.insert(at, part(0)),
            [false, true] => self.insert(at, part(1)),
            [true, true] => {
                self.insert(at, part(0));
                let Some(place) = other_place else { return Insertion::Present };
                self.insert(at + 1, Gap { place, ..part(1) });
                return Insertion::Split { before, after: [after, self.read(place)] };
            }
        }
        Insertion::Inserted { before, after }
    }

    /// Has a gap at its place, from now on.
    fn insert(&mut self, at: usize, gap: Gap) {
        let serial = self.read(gap.place).version;
        self.gaps.insert(at, Arc::new(Gap { serial, ..gap }));
    }

    /// Makes a stretch a gap, with those that it touches. Where there are too many it takes the place of one that has cost less. Tells which gaps are a part of another one now.
    fn add(&mut self, stretch: Stretch, keys: u64, granted: Granted) -> Vec<Joined> {
        let touched = self.gaps.drain(self.touching(&stretch));
        let (watched, joined): (Vec<_>, Vec<_>) = touched.partition(|gap| gap.is_watched);
        watched.iter().for_each(|gap| self.break_place(gap.place));
        let granted_alone = Since { stretch, version: granted.version };
        let newest = joined.iter().fold(granted_alone, |all, gap| all.joined(&gap.newest));
        // The one goes on from which the walk has come, which has used it.
        let main = if granted.forward { joined.first() } else { joined.last() };
        let keys = keys + joined.iter().map(|gap| gap.keys).sum::<u64>();
        let Some(place) = main.map(|main| main.place).or_else(|| self.place_for(keys)) else {
            return Vec::new();
        };
        let others = joined.iter().filter(|gap| gap.place != place).map(|gap| {
            self.break_place(gap.place);
            Joined { before: gap.read(), after: self.read(place) }
        });
        let others = others.collect();
        let older = main.map(|main| match &main.older {
            Some(older) if main.newest.version > granted.oldest_snapshot => older.clone(),
            _ => main.newest.clone(),
        });
        let at = self.gaps.partition_point(|gap| gap.newest.stretch.first < newest.stretch.first);
        self.insert(at, Gap { newest, older, place, serial: 0, breaks: 0, keys, is_watched: false });
        others
    }

    /// The gaps that a stretch touches.
    fn touching(&self, stretch: &Stretch) -> Range<usize> {
        let first = self.gaps.partition_point(|gap| gap.newest.stretch.end < stretch.first);
        let count = self.gaps[first..].iter().take_while(|gap| gap.newest.stretch.touches(stretch)).count();
        first..first + count
    }

    fn note_least(&mut self) {
        let is_full = self.gaps.len() >= GAPS_MAX;
        self.least_keys = is_full.then(|| self.gaps.iter().map(|gap| gap.keys).min()).flatten().unwrap_or(0);
    }

    /// A place for a gap that has cost so much.
    fn place_for(&mut self, keys: u64) -> Option<usize> {
        if let Some(place) = self.free_place() {
            return Some(place);
        }
        let (at, least) = self.gaps.iter().enumerate().min_by_key(|(_, gap)| gap.keys)?;
        if least.keys >= keys {
            return None;
        }
        let place = least.place;
        self.gaps.remove(at);
        self.break_place(place);
        Some(place)
    }
}

/// A gap that a walk has come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GapRead {
    /// For a transaction to remember, and to validate as it does a leaf.
    pub(crate) read: LeafRead,
    /// All that was deleted there was deleted in this version, or before.
    pub(crate) version: u64,
}

/// A gap that is a part of another one now: who has read it may go on with that in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Joined {
    pub(crate) before: LeafRead,
    pub(crate) after: LeafRead,
}

/// What is known of a claim that was looked at, and found without rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    /// The newest version of a deletion in it.
    pub(crate) version: u64,
    /// No snapshot that is open is from before.
    pub(crate) oldest_snapshot: u64,
    /// The way of who has passed it.
    pub(crate) forward: bool,
}

/// See the module's documentation.
pub(super) struct Gaps {
    /// How many claims there were. Without any nobody need look at anything else.
    claims: AtomicU64,
    list: Shared<List>,
    /// Held by whoever replaces the list. Those that may still be looked at.
    retired: Mutex<Vec<Retired<List>>>,
}

impl Default for Gaps {
    fn default() -> Gaps {
        Gaps { claims: AtomicU64::new(0), list: Shared::new(None), retired: Mutex::new(Vec::new()) }
    }
}

impl Drop for Gaps {
    fn drop(&mut self) {
        release_with_owner(std::mem::take(&mut *self.retired.lock()));
    }
}

impl Gaps {
    /// Replaces the list, unless the change says that it is none.
    fn change<T>(&self, change: impl FnOnce(&mut List) -> Option<T>) -> Option<T> {
        let mut retired = self.retired.lock();
        let mut list = {
            let pin = epoch::pin();
            self.list.get(&pin).map_or_else(List::new, List::clone)
        };
        let outcome = change(&mut list)?;
        list.note_least();
        retired.extend(self.list.replace(Some(Arc::new(list))));
        Some(outcome)
    }

    /// Frees lists that nobody looks at any more, once they are many. The caller is not pinned.
    fn release(&self) {
        let retired = {
            let mut retired = self.retired.lock();
            if retired.len() < RETIRED_MAX {
                return;
            }
            std::mem::take(&mut *retired)
        };
        release(retired);
    }

    #[cold]
    fn break_at(&self, key: &[u8], has_used: impl Fn(LeafRead) -> bool) -> Insertion {
        let broken = self.change(|list| {
            let (is_claimed, gap) = (list.is_claimed(key), list.find(key));
            if is_claimed {
                list.claimed = None;
            }
            let broken = gap.map(|gap| list.break_at(gap, key, has_used));
            (is_claimed || broken.is_some()).then_some(broken)
        });
        broken.flatten().unwrap_or(Insertion::Present)
    }
}

/// A stretch that somebody looks at once more. Given up when it is dropped, by who is not pinned.
pub(crate) struct Claim<'i> {
    gaps: &'i Gaps,
    stretch: Arc<Stretch>,
    /// So many were passed.
    keys: u64,
    is_granted: bool,
}

impl Claim<'_> {
    /// The stretch has no rows, and had none since it was claimed: it is a gap, unless somebody has come into it.
    pub(crate) fn grant(mut self, granted: Granted) -> Vec<Joined> {
        self.is_granted = true;
        let joined = self.gaps.change(|list| {
            let claimed = list.claimed.take_if(|claimed| Arc::ptr_eq(claimed, &self.stretch))?;
            Some(list.add(Stretch::clone(&claimed), self.keys, granted))
        });
        joined.unwrap_or_default()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.is_granted {
            self.gaps.change(|list| list.claimed.take_if(|claimed| Arc::ptr_eq(claimed, &self.stretch)));
        }
        self.gaps.release();
    }
}

impl OrderedIndex {
    /// How many there are.
    pub(crate) fn gaps(&self) -> u64 {
        let count = |list: &List| list.gaps.iter().filter(|gap| !gap.is_watched).count() as u64;
        self.gaps.list.get(&epoch::pin()).map_or(0, count)
    }

    /// The gap with a key, if there is one as of this version. `far` becomes its end for who goes forwards, or else its first key.
    pub(crate) fn find_gap(
        &self,
        key: &[u8],
        version_max: u64,
        forward: bool,
        far: &mut Vec<u8>,
    ) -> Option<GapRead> {
        let pin = epoch::pin();
        let list = self.gaps.list.get(&pin)?;
        let gap = list.gaps.get(list.find(key)?).filter(|gap| !gap.is_watched)?;
        let is_seen = |since: &&Since| since.version <= version_max && since.stretch.has(key);
        let since = Some(&gap.newest).filter(is_seen).or_else(|| gap.older.as_ref().filter(is_seen))?;
        let read = list.read(gap.place);
        // Somebody is breaking it.
        if read.version != gap.serial {
            return None;
        }
        let bound = if forward { &since.stretch.end } else { &since.stretch.first };
        far.clear();
        far.extend_from_slice(bound);
        Some(GapRead { read, version: since.version })
    }

    /// Where the gap before a key ends, if there is no other key between.
    pub(crate) fn end_of_gap_before(&self, key: &[u8]) -> Option<Vec<u8>> {
        let end = {
            let pin = epoch::pin();
            let list = self.gaps.list.get(&pin)?;
            let at = list.gaps.partition_point(|gap| &*gap.newest.stretch.end < key).checked_sub(1)?;
            list.gaps[at].newest.stretch.end.to_vec()
        };
        let mut next = Vec::new();
        self.keys_behind(&end, 1, &mut next);
        next.first().is_none_or(|next| &next[..] >= key).then_some(end)
    }

    /// Claims a stretch, of which so many keys were passed, for who is going to look whether there are rows; nothing if somebody else does so at this moment, or there are too many gaps.
    pub(crate) fn claim_gap(&self, Range { start, end }: Range<&[u8]>, keys: u64) -> Option<Claim<'_>> {
        if start.len().max(end.len()) > KEY_BYTES_MAX {
            return None;
        }
        let stretch = Stretch { first: start.into(), end: end.into() };
        let has_no_room = |list: &List| keys <= list.least_keys && list.touching(&stretch).is_empty();
        if self.gaps.list.get(&epoch::pin()).is_some_and(has_no_room) {
            return None;
        }
        let stretch = Arc::new(stretch);
        self.gaps.change(|list| {
            let is_free = list.claimed.is_none() && !stretch.is_empty();
            is_free.then(|| list.claimed = Some(stretch.clone()))
        })?;
        // Whoever comes later sees that there is a list, and that one.
        self.gaps.claims.fetch_add(1, Ordering::SeqCst);
        Some(Claim { gaps: &self.gaps, stretch, keys, is_granted: false })
    }

    /// A row is about to be put where there was none: no gap has its key any more. The caller has locked the key's bucket, has inserted it, and has not read the clock. Tells
    /// what a transaction goes on with that `has_used` the gap itself.
    #[inline]
    pub(crate) fn break_gap(&self, pin: &Pin, key: &[u8], has_used: impl Fn(LeafRead) -> bool) -> Insertion {
        if self.gaps.claims.load(Ordering::SeqCst) == 0 || planted(Bug::GapKept) {
            return Insertion::Present;
        }
        let is_in_none = |list: &List| {
            // Who has used one that is watched goes on with it as it is: nobody else can have.
            let is_own = |gap: &Gap| gap.is_watched && has_used(gap.read());
            !list.is_claimed(key) && list.find(key).is_none_or(|at| is_own(&list.gaps[at]))
        };
        if self.gaps.list.get(pin).is_none_or(is_in_none) {
            return Insertion::Present;
        }
        self.gaps.break_at(key, has_used)
    }

    /// Whether a place's gaps were not broken since they were read; nothing if it is a leaf that was read.
    #[inline]
    pub(super) fn validate_gap(&self, read: &LeafRead) -> Option<bool> {
        let place = read.leaf.checked_sub(FIRST_PLACE)?;
        let pin = epoch::pin();
        Some(self.gaps.list.get(&pin).is_some_and(|list| {
            list.serials
                .get(place as usize)
                .is_some_and(|serial| serial.load(Ordering::SeqCst) == read.version)
        }))
    }
}

#[cfg(test)]
#[path = "gaps_tests.rs"]
mod tests;
