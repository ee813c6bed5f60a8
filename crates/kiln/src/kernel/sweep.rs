//! Sweeping: forgetting deleted keys, and dropping the beginning of the log when nothing in it is needed. What little, or
//! much, is needed there, [`compaction`](super::compaction) moves away.
//!
//! A deleted key keeps its tombstone in the indexes until every snapshot, and the durable state, is newer than
//! the deletion. The hardener finds the tombstones as it copies the log out, so that deleting costs a
//! transaction nothing extra.

use std::collections::BTreeMap;

use super::change::Change;
use super::cold::Question;
use super::compaction::{Progress, Rest};
use super::engine::Engine;
use super::object::ObjectState;
use super::recovery::Tombstone;
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::ordered_index::OrderedIndex;
use crate::storage::record::{Address, NEVER};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// A durable tombstone that may still be in the indexes.
#[derive(Clone)]
pub(crate) struct Grave {
    pub(crate) address: Address,
    pub(crate) object: u32,
    /// The tombstone's; 0 as long as it is not known.
    pub(crate) version: u64,
    pub(crate) key: Box<[u8]>,
    /// The key has a value again, and its record is before this address; 0 as long as it has none.
    pub(crate) replaced_before: Address,
}

impl From<Tombstone> for Grave {
    fn from(Tombstone { object, key, address }: Tombstone) -> Grave {
        Grave { address, object, version: 0, key: key.into(), replaced_before: 0 }
    }
}

/// What becomes of a grave.
enum Fate {
    Waits,
    /// Until every snapshot is newer.
    WaitsForSnapshots,
    /// Until its row has settled.
    WaitsForSettling,
    Gone,
    /// The key has a value again.
    Replaced,
}

/// So many tombstones are looked at before who waits for the sweep's lock may go on.
pub(super) const LOOKED_AT_ONCE: usize = 4096;

/// So many are passed before who hardens may go on.
const COPIED_AT_ONCE: usize = 512;

/// Tombstones that wait until every snapshot sees them. When some may go, only these are looked at, however many wait.
#[derive(Default)]
struct ForSnapshots {
    /// Each with the version that it waits for: none of those in it is older.
    bundles: BTreeMap<u64, Vec<Grave>>,
    len: usize,
}

/// A bundle gets no tombstones of later versions than it waits for once it has so many.
const BUNDLE_LEN: usize = 512;

impl ForSnapshots {
    fn add(&mut self, grave: Grave) {
        self.len += 1;
        let version = grave.version;
        match self.bundles.range_mut(..=version).next_back() {
            Some((&waits_for, bundle)) if waits_for == version || bundle.len() < BUNDLE_LEN => {
                bundle.push(grave);
            }
            _ => _ = self.bundles.insert(version, vec![grave]),
        }
    }

    /// Takes out those for which it is worth it where every snapshot sees `oldest`.
    fn take(&mut self, oldest: u64) -> impl Iterator<Item = Vec<Grave>> {
        let later = self.bundles.split_off(&(oldest + 1));
        let mut taken = std::mem::replace(&mut self.bundles, later);
        self.len -= taken.values().map(Vec::len).sum::<usize>();
        let bundles = taken.values_mut();
        let waiting = bundles.flat_map(|bundle| bundle.extract_if(.., |grave| grave.version > oldest));
        waiting.for_each(|grave| self.add(grave));
        taken.into_values()
    }

    fn iter(&self) -> impl Iterator<Item = &Grave> {
        self.bundles.values().flatten()
    }
}

/// Tombstones to be swept. Those that wait are not looked at before it is worth it, however many.
#[derive(Default)]
struct Known {
    for_snapshots: ForSnapshots,
    /// They wait until more has settled.
    for_settling: Vec<Grave>,
    has_settled: bool,
    others: Vec<Grave>,
    /// Somebody is looking at them, some at a time.
    looked_at: Vec<Grave>,
}

impl Known {
    /// In an order that stays as it is as long as they only become more.
    fn iter(&self) -> impl Iterator<Item = &Grave> {
        self.for_snapshots.iter().chain(&self.for_settling).chain(&self.looked_at).chain(&self.others)
    }

    fn len(&self) -> usize {
        self.for_snapshots.len + self.for_settling.len() + self.looked_at.len() + self.others.len()
    }
}

/// Tombstones to be swept, and how far truncation has looked.
#[derive(Default)]
pub(crate) struct Graves {
    graves: Mutex<Known>,
    sweeping: Mutex<TruncationMark>,
    /// Where the durable log must have come before it is worth looking again what can be dropped.
    next_look: AtomicU64,
    /// While a checkpoint is taken every key that it may have must keep its entry: nothing is forgotten.
    held: AtomicBool,
    /// Some wait until their rows have settled.
    wait_for_settling: AtomicBool,
    /// Those that recovery has found are of this version, or older ones.
    recovered: u64,
}

/// Has nothing forgotten until it is dropped.
pub(super) struct HeldGraves<'a>(&'a Graves);

impl Drop for HeldGraves<'_> {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::SeqCst);
    }
}

/// What truncation knows of its last look.
#[derive(Default)]
struct TruncationMark {
    /// The oldest version that was needed.
    oldest: u64,
    compaction: Progress,
}

impl Graves {
    /// With those that recovery has found in a database whose durable state is of this version.
    pub(crate) fn recovered(tombstones: impl Iterator<Item = Tombstone>, version: u64) -> Graves {
        let graves = Graves { recovered: version, ..Graves::default() };
        graves.bury(&mut tombstones.map(Grave::from).collect());
        graves
    }

    pub(crate) fn bury(&self, graves: &mut Vec<Grave>) {
        self.graves.lock().others.append(graves);
    }

    /// True if sweeps have nothing to do before somebody commits, or more has settled.
    pub(crate) fn are_idle(&self) -> bool {
        let known = self.graves.lock();
        let may_go = known.has_settled && !known.for_settling.is_empty();
        known.others.is_empty() && known.looked_at.is_empty() && known.for_snapshots.len == 0 && !may_go
    }

    /// Keeps sweeping from going on until dropped.
    pub(crate) fn pause(&self) -> impl Drop {
        self.sweeping.lock()
    }

    /// Has nothing forgotten from now on.
    pub(super) fn hold(&self) -> HeldGraves<'_> {
        // Whoever is just forgetting holds the lock.
        let _sweeping = self.sweeping.lock();
        self.held.store(true, Ordering::SeqCst);
        HeldGraves(self)
    }

    /// Nothing is to be forgotten now.
    pub(super) fn are_held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    /// Whether some, of tables, wait until their rows have settled.
    pub(super) fn wait_for_settling(&self) -> bool {
        self.wait_for_settling.load(Ordering::SeqCst)
    }

    /// Something has settled, or was dropped, and left the indexes: the next sweep finds out which still wait.
    pub(super) fn note_settled(&self) {
        self.wait_for_settling.store(false, Ordering::SeqCst);
        self.look_at_unsettled();
    }

    /// Has the next sweep look at those that wait until more has settled.
    pub(super) fn look_at_unsettled(&self) {
        // Also where there are none: whoever sweeps may have taken them out.
        self.graves.lock().has_settled = true;
    }

    /// How many tombstones are known.
    pub(super) fn len(&self) -> usize {
        self.graves.lock().len()
    }

    /// Copies of some of them, which keep their places while they are [held](Self::hold).
    pub(super) fn copies(&self, places: std::ops::Range<usize>) -> Vec<Grave> {
        self.graves.lock().iter().skip(places.start).take(places.len()).cloned().collect()
    }

    /// Copies of those of an object, for who has [paused](Self::pause) the sweeps; some at a time, since whoever hardens buries others meanwhile.
    pub(super) fn copies_of(&self, object: u32) -> Vec<Grave> {
        let (mut copies, len) = (Vec::new(), self.len());
        for first in (0..len).step_by(COPIED_AT_ONCE) {
            let known = self.graves.lock();
            let some = known.iter().skip(first).take(COPIED_AT_ONCE.min(len - first));
            copies.extend(some.filter(|grave| grave.object == object).cloned());
        }
        copies
    }

    /// For how many there is memory.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        let known = self.graves.lock();
        let others = [&known.for_settling, &known.looked_at, &known.others];
        known.for_snapshots.bundles.values().chain(others).map(Vec::capacity).sum()
    }

    /// How many are being looked at.
    #[cfg(test)]
    pub(super) fn looked_at(&self) -> usize {
        self.graves.lock().looked_at.len()
    }

    /// Begins to look at those that are worth it where every snapshot sees `oldest`.
    pub(super) fn begin_to_look(&self, oldest: u64) {
        let mut guard = self.graves.lock();
        let known = &mut *guard;
        // Taken whole: none keeps memory for as many as there ever were.
        let mut look_at = |mut graves: Vec<Grave>| match known.looked_at.is_empty() {
            true => known.looked_at = graves,
            false => known.looked_at.append(&mut graves),
        };
        look_at(std::mem::take(&mut known.others));
        if std::mem::take(&mut known.has_settled) {
            look_at(std::mem::take(&mut known.for_settling));
        }
        known.for_snapshots.take(oldest).for_each(look_at);
    }

    /// Takes some of them out; none once all were looked at.
    fn take_some(&self) -> Vec<Grave> {
        let mut known = self.graves.lock();
        match known.looked_at.len().saturating_sub(LOOKED_AT_ONCE) {
            0 => std::mem::take(&mut known.looked_at),
            left => known.looked_at.split_off(left),
        }
    }

    /// Puts them back, for who has taken them out: those that wait for snapshots, for settling, and others.
    fn put_back(&self, [for_snapshots, mut for_settling, mut others]: [Vec<Grave>; 3]) {
        let mut known = self.graves.lock();
        for_snapshots.into_iter().for_each(|grave| known.for_snapshots.add(grave));
        known.for_settling.append(&mut for_settling);
        known.others.append(&mut others);
    }

    /// Has the next sweep look what can be dropped, whether more has hardened or not.
    pub(super) fn look_again(&self) {
        self.next_look.store(0, Ordering::SeqCst);
    }

    /// True if enough of the log has hardened to look again what can be dropped.
    pub(crate) fn is_due(&self, hardened: Address) -> bool {
        hardened >= self.next_look.load(Ordering::SeqCst)
    }

    /// True if it was, that many bytes of log ago, and nobody has looked.
    pub(super) fn is_overdue(&self, hardened: Address, bytes: u64) -> bool {
        hardened.checked_sub(bytes).is_some_and(|before| self.is_due(before))
    }
}

impl Engine {
    /// Forgets deleted keys that nobody can see any more, frees what they held, and truncates the log. True if more can be
    /// dropped after the next hardening.
    pub(crate) fn sweep(&self) -> bool {
        self.graves.sweeping.try_lock().is_some_and(|mark| self.sweep_with(mark))
    }

    /// As [`Self::sweep`], after whoever sweeps at the moment: what that one finds may be all there is.
    pub(crate) fn sweep_in_turn(&self) -> bool {
        self.sweep_with(self.graves.sweeping.lock())
    }

    fn sweep_with(&self, mark: MutexGuard<'_, TruncationMark>) -> bool {
        let mut mark = self.forget_deleted(mark);
        let removes = self.remove_some_dropped();
        OrderedIndex::reclaim_all(self.objects.orders());
        let hardened = self.log.hardened();
        let oldest = self.oldest_needed();
        // On a full disk nothing more hardens until there is room, and a snapshot that has ended may have made some.
        let released = self.segments.disk_is_full() && oldest > mark.oldest;
        if !self.graves.is_due(hardened) && !released {
            // Who hardens may have found the last look overdue just as it came.
            self.compaction.calm_down();
            return removes;
        }
        mark.oldest = oldest;
        // A segment that cannot be dropped now stays; nothing depends on it, and nobody is slowed down for it.
        let rest = self.truncate(&mut mark.compaction).unwrap_or_else(|_| {
            self.compaction.calm_down();
            Rest::Nothing
        });
        let ahead = match rest {
            Rest::AtOnce | Rest::Obstructed => 0,
            Rest::Nothing if !self.segments.disk_is_full() => self.log.segment_bytes() / 4,
            Rest::Nothing | Rest::Held | Rest::AfterHardening => 1,
        };
        self.graves.next_look.store(hardened + ahead, Ordering::SeqCst);
        matches!(rest, Rest::AtOnce | Rest::AfterHardening) || removes
    }

    /// Removes what rows of dropped objects can go from the indexes now, and leaves it to who sweeps just now if somebody does.
    pub(crate) fn remove_dropped(&self) {
        while let Some(_sweeping) = self.graves.sweeping.try_lock()
            && self.remove_some_dropped()
        {}
    }

    /// As [`Self::remove_dropped`], after whoever sweeps at the moment.
    pub(crate) fn remove_dropped_in_turn(&self) {
        loop {
            let _sweeping = self.graves.sweeping.lock();
            if !self.remove_some_dropped() {
                return;
            }
        }
    }

    /// Forgets, drops and compacts as [`Self::sweep`] does, whether it is due or not; what is left.
    pub(super) fn compact_round(&self) -> Result<Rest> {
        let mut mark = self.forget_deleted(self.graves.sweeping.lock());
        self.truncate(&mut mark.compaction)
    }

    /// Forgets what can be forgotten. However much that is, who waits for the lock gets it soon: commits may stand behind them.
    fn forget_deleted<'a>(
        &'a self,
        mut mark: MutexGuard<'a, TruncationMark>,
    ) -> MutexGuard<'a, TruncationMark> {
        if self.graves.are_held() {
            // They keep their places.
            return mark;
        }
        self.graves.begin_to_look(self.oldest_needed());
        while self.forget_some() {
            drop(mark);
            crate::sync::thread::yield_now();
            mark = self.graves.sweeping.lock();
        }
        mark
    }

    /// As [`Self::sweep`], but nothing is dropped.
    #[cfg(test)]
    pub(super) fn forget_all_deleted(&self) {
        drop(self.forget_deleted(self.graves.sweeping.lock()));
    }

    /// Looks at some; true if there are more. The caller sweeps.
    pub(super) fn forget_some(&self) -> bool {
        if self.graves.are_held() {
            return false;
        }
        let (oldest, hardened) = (self.oldest_needed(), self.log.hardened());
        let graves = self.graves.take_some();
        if graves.is_empty() {
            return false;
        }
        let (mut for_snapshots, mut for_settling, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for mut grave in graves {
            // Until the new value is durable a checkpoint may meet the tombstone behind it, and has to know what it is.
            let fate = match grave.replaced_before {
                0 => self.forget(&mut grave, oldest),
                replaced_before if replaced_before > hardened => Fate::Waits,
                _ => Fate::Gone,
            };
            match fate {
                Fate::Gone => {}
                Fate::WaitsForSnapshots => for_snapshots.push(grave),
                Fate::WaitsForSettling => for_settling.push(grave),
                Fate::Waits => others.push(grave),
                Fate::Replaced => {
                    grave.replaced_before = self.log.records_end();
                    others.push(grave);
                }
            }
        }
        if !for_settling.is_empty() {
            self.graves.wait_for_settling.store(true, Ordering::SeqCst);
        }
        self.graves.put_back([for_snapshots, for_settling, others]);
        true
    }

    /// Removes one deleted key, if it is still deleted and nobody can see it any more.
    fn forget(&self, grave: &mut Grave, oldest: u64) -> Fate {
        if self.settled.is_begun.load(Ordering::SeqCst) && self.must_settle(grave) {
            return Fate::WaitsForSettling;
        }
        // One that has left memory must be read from disk to know more; and what the index has no more is not worth that.
        let version = match grave.version {
            0 if self.graves.recovered <= oldest => self.graves.recovered,
            0 => {
                match self.is_in_index(grave) {
                    None => return Fate::Waits,
                    Some(false) => return Fate::Replaced,
                    Some(true) => {}
                }
                let Ok(version) = self.tombstone_version(grave) else { return Fate::Waits };
                let Some(version) = version else { return Fate::Gone };
                grave.version = version;
                version
            }
            known => known,
        };
        if version > oldest && !planted(Bug::ForgetsUnderSnapshots) {
            return Fate::WaitsForSnapshots;
        }
        if self.must_settle(grave) {
            return Fate::WaitsForSettling;
        }
        let hash = self.hash(grave.object, &grave.key);
        let pin = epoch::pin();
        let Some(bucket) = self.index.lock(hash) else { return Fate::Waits };
        // Raised before the key vanishes: whoever misses it sees the new value.
        if !planted(Bug::ForgottenTooQuietly) {
            self.forgotten.fetch_max(version, Ordering::SeqCst);
        }
        if !self.index.remove(bucket, hash, grave.address) {
            self.index.unlock_unchanged(bucket);
            return Fate::Replaced;
        }
        if let Some(object) = self.objects.get(grave.object) {
            object.retract(&pin, &grave.key);
        }
        self.index.unlock_changed(bucket);
        // No lock is waited for under a pin.
        drop(pin);
        let bytes = Change { object: grave.object, hash, key: &grave.key, value: None, expires_at: NEVER }
            .log_bytes();
        self.liveness.lock().supersede(grave.address, version, Some(bytes));
        Fate::Gone
    }

    /// True if the tree may have what was deleted, and somebody see it: then the tombstone has to stay until it has settled.
    fn must_settle(&self, grave: &Grave) -> bool {
        let settled = &self.settled;
        if !self.is_ordered(grave.object) || planted(Bug::TombstonesForgottenEarly) {
            return false;
        }
        if settled.is_begun.load(Ordering::SeqCst) {
            // Only what the superblock knows of, or the tree itself: the log may begin behind the tombstone as soon as it is forgotten.
            let gone_to =
                settled.removed_to.load(Ordering::SeqCst).max(settled.deleted_to.load(Ordering::SeqCst));
            // Rows of a dropped table settle no more.
            let settles = self.objects.get(grave.object).is_some_and(ObjectState::settles);
            return settles && grave.address >= gone_to;
        }
        settled.forgotten_to.fetch_max(grave.address + 1, Ordering::SeqCst);
        false
    }

    /// Whether the index still refers to a tombstone. `None` if somebody holds its bucket for too long.
    fn is_in_index(&self, grave: &Grave) -> Option<bool> {
        let hash = self.hash(grave.object, &grave.key);
        let _pin = epoch::pin();
        let bucket = self.index.lock_quietly(hash)?;
        let is_there = self.index.refers_to(bucket, hash, grave.address);
        self.index.unlock_unchanged(bucket);
        Some(is_there)
    }

    /// The version of a tombstone; `None` if its segment is gone.
    fn tombstone_version(&self, grave: &Grave) -> Result<Option<u64>> {
        {
            let _pin = epoch::pin();
            if let Some(view) = self.log.view(grave.address) {
                return Ok(Some(view.version()));
            }
        }
        let question = Question { object: grave.object, key: &grave.key, version_max: 0 };
        match self.ask_cold(grave.address, &question, &mut Vec::new()) {
            Ok(sighting) => Ok(Some(sighting.version)),
            Err(_) if grave.address < self.log.begin() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Drops the oldest segments as far as nothing in them is needed, and then compacts, as far as that is worth it, what is
    /// the oldest now.
    fn truncate(&self, compaction: &mut Progress) -> Result<Rest> {
        if self.hardening.is_stopping() || !self.losses_are_recorded() {
            return Ok(Rest::Nothing);
        }
        // The directory may be somebody else's by now. Closing lets go of it while nobody sweeps.
        if self.lock.lock().is_none() {
            return Ok(Rest::Nothing);
        }
        self.drop_dead()?;
        self.compact(compaction)
    }

    /// Drops the oldest segments while nothing in them is needed.
    fn drop_dead(&self) -> Result<()> {
        let (begin, oldest) = (self.log.begin(), self.oldest_needed());
        // What is still in memory may yet die there, which costs nothing; but a full disk cannot wait for that, nor does who has asked.
        let cold = match self.segments.disk_is_full() {
            true => self.log.hardened(),
            false => self.log.head().max(self.compaction.asked()),
        };
        let (mut end, mut end_checksum) = (begin, 0);
        while end + self.log.segment_bytes() <= cold {
            let segment = self.liveness.lock().of_segment(end);
            if segment.newest_successor > oldest && !planted(Bug::TruncatesUnderSnapshots)
                || segment.live() > 0 && !planted(Bug::TruncatesLiveRecords)
            {
                break;
            }
            (end, end_checksum) = (end + self.log.segment_bytes(), segment.end_checksum);
        }
        if end == begin {
            return Ok(());
        }
        self.evict_to(end);
        // In both slots: of a beginning that only one says nothing is left once that one is damaged. It costs another sync for each beginning, by who
        // sweeps. (Rejected: to drop only what lies before the older slot's beginning, one beginning later, which costs none: who asks for the space, or
        // waits for it on a full disk, wants it now.)
        // What has superseded it, or was written anew, has hardened, and must not pass for an unfinished write.
        let hardened = self.log.hardened();
        self.superblock.lock().say_for_good(
            |said| said.begin >= end,
            |saying| {
                saying.begin = end;
                saying.begin_checksum = end_checksum;
                saying.known_end = saying.known_end.max(hardened);
            },
        )?;
        self.log.set_begin(end);
        self.liveness.lock().drop_before(end);
        self.segments.drop_before(end)?;
        Ok(())
    }
}
