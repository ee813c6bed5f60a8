//! One write, whatever commits it, a transaction or a single operation: what it changes, where its key's newest record is,
//! where the new one goes, and how it gets there.

use super::cold::Question;
use super::engine::Engine;
use super::object::ObjectState;
use super::settled::Lookup;
use super::write_counts::Written;
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::epoch::{self, Pin};
use crate::storage::hash_index::{Bucket, Candidate, Slot};
use crate::storage::log::{Demand, Purpose};
use crate::storage::record::{self, Address, Kind, NEVER, NO_ADDRESS, Predecessor, RecordView, Shape};

/// A key's newest record when its bucket was locked.
#[derive(Clone, Copy, Default)]
pub(crate) struct Current {
    /// [`NO_ADDRESS`] if the key has no record; it may have settled.
    pub(crate) address: Address,
    /// Where the entry was seen, if it was.
    pub(crate) slot: Slot,
    /// 0 if it is not known, as what a put on disk replaces need not be.
    pub(crate) version: u64,
    /// The key has a value, be it expired; or it is not known.
    pub(crate) exists: bool,
    /// When that expires, if it does.
    pub(crate) expires_at: u64,
}

impl Current {
    /// Of a put that does not expire, which is there.
    #[inline(always)]
    pub(crate) fn of_put(Candidate { address, slot }: Candidate, view: &RecordView<'_>) -> Current {
        Current { address, slot, version: view.version(), exists: true, expires_at: NEVER }
    }

    /// The entry of a key that has one.
    #[inline]
    fn candidate(&self) -> Candidate {
        Candidate { address: self.address, slot: self.slot }
    }

    /// The key may have no value, though it has a record.
    #[inline]
    pub(crate) fn may_be_deleted(&self) -> bool {
        self.has_record() && (!self.exists || self.version == 0)
    }

    /// The index has an entry of the key.
    #[inline]
    pub(crate) fn has_record(&self) -> bool {
        self.address != NO_ADDRESS
    }
}

/// What was learnt about an address on disk: the record's state, if it is the key's that was looked for.
pub(crate) type Resolved = Option<Current>;

/// What was learnt on disk about the key of a write, between two attempts.
#[derive(Default)]
pub(crate) struct Learnt {
    /// Candidates on disk that were, or, where there is nothing yet, are to be, read to learn whose they are. What is at an address never changes.
    resolved: Vec<(Address, Option<Resolved>)>,
    /// The settled value that was, or is to be, looked for.
    pub(super) settled: Option<Lookup>,
}

impl Learnt {
    pub(crate) fn is_empty(&self) -> bool {
        self.resolved.is_empty() && self.settled.is_none()
    }

    /// Something is to be read.
    pub(crate) fn is_open(&self) -> bool {
        self.resolved.iter().any(|(_, known)| known.is_none())
            || self.settled.as_ref().is_some_and(Lookup::is_open)
    }

    /// What is known of an address on disk. What is not is to be learnt; then `is_open`.
    pub(super) fn known(&mut self, address: Address, is_open: &mut bool) -> Resolved {
        let asked = self.resolved.iter().find(|asked| asked.0 == address).map(|asked| asked.1);
        if asked.is_none() {
            self.resolved.push((address, None));
        }
        let known = asked.flatten();
        *is_open |= known.is_none();
        known.flatten()
    }
}

/// One write, taken apart.
#[derive(Clone, Copy)]
pub(crate) struct Change<'a> {
    pub(crate) object: u32,
    pub(crate) hash: u64,
    pub(crate) key: &'a [u8],
    /// `None` deletes.
    pub(crate) value: Option<&'a [u8]>,
    /// When the value expires, if it does.
    pub(crate) expires_at: u64,
}

impl Change<'_> {
    /// Bytes of its record.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.shape().bytes()
    }

    /// The log that its record may take.
    pub(crate) fn demand(&self) -> Demand {
        Demand::of_one(self.log_bytes())
    }

    /// What its log space is for.
    #[inline]
    pub(crate) fn purpose(&self) -> Purpose {
        if self.value.is_some() { Purpose::Ordinary } else { Purpose::Deletion }
    }

    #[inline]
    pub(crate) fn shape(&self) -> Shape {
        match self.value {
            Some(value) => Shape::of_put(self.object, self.key, value, self.expires_at),
            None => Shape {
                kind: Kind::Tombstone,
                object: self.object,
                key_bytes: self.key.len(),
                value_bytes: 0,
            },
        }
    }
}

/// Where a write goes.
pub(crate) enum Place {
    /// It changes nothing: the deletion of what is not there.
    Nowhere,
    /// Into the current record, which is here.
    There(Address),
    /// Into a new record of so many bytes.
    New(u64),
}

impl Engine {
    /// The current record of a key whose bucket is locked, and which is not [where it probably was](Self::put_at). `None` if the disk has to be asked
    /// first, and for what is then left in `learnt`. Who `takes_any_version` may be told where the record is, and not of which version.
    #[inline(never)]
    pub(crate) fn locate(
        &self,
        bucket: Bucket,
        (change, takes_any_version): (Change<'_>, bool),
        learnt: &mut Learnt,
    ) -> Option<Current> {
        let mut is_open = false;
        let known = &mut |address| learnt.known(address, &mut is_open);
        let by_order = takes_any_version.then(|| self.look_for_by_order(bucket, &change)).flatten();
        let current = by_order.unwrap_or_else(|| self.look_for(bucket, &change, known));
        let is_asked = !is_open || planted(Bug::TreeAskedEarly);
        let current = match is_asked && !current.has_record() && self.may_be_settled(change.object) {
            true => self.settled_current(&change, &mut learnt.settled)?,
            false => current,
        };
        (!is_open).then_some(current)
    }

    /// Reads from disk what [`Self::locate`] has asked for. The caller is not pinned.
    #[cold]
    pub(crate) fn learn(&self, change: &Change<'_>, learnt: &mut Learnt) -> Result<()> {
        self.learn_whose(change, learnt)?;
        match learnt.settled.as_mut().filter(|lookup| lookup.is_open()) {
            Some(lookup) => self.look_up_settled(change.object, change.key, lookup),
            None => Ok(()),
        }
    }

    /// The same of records alone.
    #[cold]
    pub(super) fn learn_whose(&self, change: &Change<'_>, learnt: &mut Learnt) -> Result<()> {
        for (address, known) in learnt.resolved.iter_mut().filter(|(_, known)| known.is_none()) {
            *known = Some(self.resolve(*address, change)?);
        }
        Ok(())
    }

    /// The record in memory at an address, if it is a put of the key's, and one that does not expire.
    #[inline(always)]
    pub(crate) fn put_at(&self, candidate: Candidate, change: &Change<'_>) -> Option<Current> {
        let view = self.log.put_of(candidate.address, change.object, change.key)?;
        Some(Current::of_put(candidate, &view))
    }

    /// The record in memory at an address, if it is the key's.
    #[inline]
    fn current_at(&self, address: Address, change: &Change<'_>) -> Option<Current> {
        self.log.view(address).filter(|view| view.is(change.object, change.key)).map(|view| Current {
            address,
            slot: Slot::default(),
            version: view.version(),
            exists: view.shape().kind.is_put(),
            expires_at: view.expires_at(),
        })
    }

    /// As [`Self::locate`]; `known` says what is known of an address on disk, and nothing that has settled is looked for.
    #[inline(never)]
    pub(crate) fn look_for(
        &self,
        bucket: Bucket,
        change: &Change<'_>,
        known: &mut dyn FnMut(Address) -> Resolved,
    ) -> Current {
        let found = self.index.find(bucket, change.hash, |address| {
            // Looked at afterwards: what leaves memory meanwhile is not somebody else's.
            match self.current_at(address, change) {
                None if address < self.log.head() => known(address),
                current => current,
            }
        });
        found.unwrap_or_default()
    }

    /// Whether puts of an object need not know what they replace: of tables, as soon as it is not counted any more how many rows they have.
    pub(crate) fn puts_blindly(&self, object: u32) -> bool {
        self.settled.orders_are_exact && self.settled.tree.has_settled() && self.is_ordered(object)
    }

    /// As [`Self::look_for`], where the disk need not be asked for it: what a put replaces need not be known, only whose it is. A key of a table is
    /// in the table's order as long as it has an entry. So one that is not has none, and if it is, and none of its candidates
    /// in memory is the key's, then the only one on disk is.
    #[inline(never)]
    fn look_for_by_order(&self, bucket: Bucket, change: &Change<'_>) -> Option<Current> {
        if change.value.is_none() || !self.puts_blindly(change.object) {
            return None;
        }
        let ordered = self.object(change.object).ordered()?;
        let (mut on_disk, mut count) = (NO_ADDRESS, 0);
        let in_memory = self.index.find(bucket, change.hash, |address| {
            let current = self.current_at(address, change);
            // Looked at afterwards: what leaves memory meanwhile is one candidate too many, and no more.
            if current.is_none() && address < self.log.head() {
                (on_disk, count) = (address, count + 1);
            }
            current
        });
        if in_memory.is_some() || count == 0 {
            return in_memory.or(Some(Current::default()));
        }
        let has_entry = ordered.contains(&epoch::pin(), change.key) && !planted(Bug::OrderNotAsked);
        match has_entry {
            true if count == 1 => Some(Current { address: on_disk, exists: true, ..Current::default() }),
            true => None,
            false => Some(Current::default()),
        }
    }

    /// Reads a record from disk to learn whether it is the key's. The caller is not pinned.
    #[cold]
    pub(crate) fn resolve(&self, address: Address, change: &Change<'_>) -> Result<Resolved> {
        let question = Question { object: change.object, key: change.key, version_max: 0 };
        let sighting = match self.ask_cold(address, &question, &mut Vec::new()) {
            Ok(sighting) => sighting,
            // The segment was dropped since; the next attempt will not meet this address.
            Err(_) if address < self.log.begin() => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(sighting.is_of_key.then_some(Current {
            address,
            slot: Slot::default(),
            version: sighting.version,
            exists: sighting.kind.is_put(),
            expires_at: sighting.expires_at,
        }))
    }

    /// Decides between update in place and a new record.
    #[inline(always)]
    pub(crate) fn place(&self, change: &Change<'_>, current: &Current, version: u64) -> Place {
        if change.value.is_none() && !current.exists {
            return Place::Nowhere;
        }
        let shape = change.shape();
        if (current.version == version || planted(Bug::UpdatesClosedVersions))
            && self.is_mutable(current.address)
            && current.has_record()
            && self.log.value_words_at(current.address) == shape.value_words()
        {
            return Place::There(current.address);
        }
        Place::New(shape.bytes())
    }

    /// Whether a record there may be updated in place if its version is still open. What may not may never again.
    #[inline]
    fn is_mutable(&self, address: Address) -> bool {
        address >= self.log.read_only() || planted(Bug::ReadOnlyIgnored)
    }

    /// Carries one write out. True if the index should grow once nothing is locked.
    #[inline(always)]
    pub(crate) fn install(
        &self,
        bucket: Bucket,
        change: &Change<'_>,
        current: &Current,
        target: Address,
        version: u64,
    ) -> bool {
        if target == NO_ADDRESS {
            return false;
        }
        if current.exists != change.value.is_some() {
            self.note_existence(change.object, change.value.is_some());
        }
        let (shape, value) = (change.shape(), change.value.unwrap_or_default());
        let words = self.log.memory(target, shape.bytes());
        if target == current.address {
            self.write_counts.note(Written::InPlace);
            record::replace(words, shape, value, change.expires_at);
            return false;
        }
        let previous = if planted(Bug::PreviousAddressLost) { NO_ADDRESS } else { current.address };
        record::write(words, shape, version, previous, change.key, (value, change.expires_at));
        if !current.exists {
            record::note_creation(words);
        }
        if self.is_behind() {
            self.take_settling_grant(change, current.has_record());
        }
        if !current.has_record() {
            self.write_counts.note(Written::Inserted);
            return self.index.insert(bucket, change.hash, target);
        }
        self.write_counts.note(Written::Copied);
        if self.note_superseded(current.address).is_referenced {
            record::inherit_reference(words);
        }
        let target = if planted(Bug::StaleIndexEntry) { current.address } else { target };
        let replaced = self.index.replace(bucket, change.hash, current.candidate(), target);
        assert!(replaced, "the entry of a located record is gone though its bucket is locked");
        false
    }

    /// A new key, whose bucket is held, stays away: its object is not there any more.
    #[cold]
    pub(crate) fn give_up_new(
        &self,
        pin: &Pin,
        bucket: Bucket,
        change: &Change<'_>,
        target: Option<Address>,
    ) {
        if let Some(target) = target {
            self.object(change.object).retract(pin, change.key);
            self.log.pad(target, change.log_bytes());
        }
        self.index.unlock_unchanged(bucket);
    }

    /// The key has a value from now on, or none, which it had.
    #[inline(never)]
    fn note_existence(&self, object: u32, exists: bool) {
        let key_count = &self.object(object).key_count;
        match exists {
            true => key_count.add(1),
            false if planted(Bug::KeyCountForgotten) => {}
            false => key_count.add(-1),
        }
    }

    /// Notes in a record, if it is in memory, that the index will not refer to it any more, so that nobody has to ask it whether the record is
    /// live. Gives what else was noted there. The caller holds the key's bucket, and is pinned.
    #[inline(always)]
    pub(crate) fn note_superseded(&self, address: Address) -> Predecessor {
        if address < self.log.head() {
            return Predecessor::default();
        }
        let predecessor = record::note_successor(self.log.memory(address, 16));
        if !self.notes.are_in(address) {
            return Predecessor::default();
        }
        if predecessor.may_have_image {
            self.forget_image(address);
        }
        predecessor
    }

    #[inline]
    pub(crate) fn object(&self, id: u32) -> &ObjectState {
        self.objects.get(id).unwrap_or_else(|| unreachable!("handles and writes are of open objects"))
    }
}
