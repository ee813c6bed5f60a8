//! Reading a key: its newest record, or the newest one up to a version.
//!
//! No I/O happens under a pin: a record that is only on disk is read unpinned ([`cold`](super::cold)), and what led to it is
//! validated afterwards.

mod kept;
pub(crate) mod keys;

use self::kept::Kept;
use super::cold::{Question, Sighting};
use super::engine::Engine;
use super::expiry::Moment;
use super::single::SingleKey;
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::epoch;
use crate::storage::hash_index::{Bucket, Candidate, Slot, Stamp};
use crate::storage::record::{Address, NEVER, NO_ADDRESS, RECORD_BYTES_USUAL, RecordView};
use crate::storage::tree::Cached;

/// What a read found, and by what it can be validated later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// The key has a value that has not expired, which is in the caller's buffer.
    pub(crate) found: bool,
    /// It has a value, be it expired.
    pub(crate) stored: bool,
    /// When that expires, if it does.
    pub(crate) expires_at: u64,
    /// Where the record is that said so; [`NO_ADDRESS`] if there is none, or the value has settled.
    pub(crate) address: Address,
    /// Where its entry was seen, if it was.
    pub(crate) slot: Slot,
    /// Version of the record that said so; 0 if there is none, or it has settled.
    pub(crate) version: u64,
    pub(crate) bucket: Bucket,
    pub(crate) stamp: Stamp,
    /// Nobody changes the record any more: what was read is the key's as long as the index refers to it, whatever becomes of the bucket.
    pub(crate) is_for_good: bool,
}

impl Reading {
    /// The key has a value, and no record.
    pub(crate) fn is_settled(&self) -> bool {
        self.stored && self.version == 0
    }

    /// What was read was written in this version, or before: of what has settled it is not known when.
    #[inline]
    pub(crate) fn newest_version(&self, engine: &Engine) -> u64 {
        if self.is_settled() { engine.forgotten() } else { self.version }
    }

    /// What was read is so since this version, or since before: of a key that has no record it is not known when it got a value, or lost it.
    #[inline]
    pub(crate) fn since(&self, engine: &Engine) -> u64 {
        if self.version == 0 { engine.forgotten() } else { self.version }
    }

    /// Of a key that has no record.
    fn without_record(settled: Option<u64>, bucket: Bucket, stamp: Stamp) -> Reading {
        Reading {
            found: settled.is_some(),
            stored: settled.is_some(),
            expires_at: settled.unwrap_or(NEVER),
            address: NO_ADDRESS,
            slot: Slot::default(),
            version: 0,
            bucket,
            stamp,
            is_for_good: false,
        }
    }

    /// The same, of what no commit changes any more, if it is a record.
    fn for_good(self) -> Reading {
        Reading { is_for_good: self.address != NO_ADDRESS, ..self }
    }

    /// As somebody sees it who reads as of this moment.
    #[inline]
    fn as_of(mut self, moment: &Moment, engine: &Engine) -> Reading {
        if self.expires_at != NEVER && moment.is_past(self.expires_at, engine) {
            self.found = false;
        }
        self
    }
}

/// What a record says of its key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PastReading {
    /// The key had a value, which is in the caller's buffer.
    pub(crate) found: bool,
    /// It had a value, be it expired.
    stored: bool,
    /// When that expires, if it does.
    pub(crate) expires_at: u64,
    /// Version of the record that said so, be it a deletion's; 0 if there is none.
    pub(crate) version: u64,
    /// Where that record is; [`NO_ADDRESS`] if there is none.
    pub(crate) address: Address,
}

impl PastReading {
    /// Of a value that expires then, if it does, or of none.
    fn of(stored: Option<u64>, version: u64) -> PastReading {
        let (found, stored, expires_at) = (stored.is_some(), stored.is_some(), stored.unwrap_or(NEVER));
        PastReading { found, stored, expires_at, version, address: NO_ADDRESS }
    }

    fn at(self, address: Address) -> PastReading {
        PastReading { address, ..self }
    }

    /// The same, of the newest record of a key, which is at this address.
    fn reading(self, address: Address, bucket: Bucket, stamp: Stamp) -> Reading {
        let PastReading { found, stored, expires_at, version, .. } = self;
        Reading {
            found,
            stored,
            expires_at,
            address,
            version,
            ..Reading::without_record(None, bucket, stamp)
        }
    }

    /// The key has a value, and no record that the reader may see.
    pub(crate) fn is_settled(&self) -> bool {
        self.stored && self.version == 0
    }
}

/// So many records of a key are passed under one pin: each is a cache miss, and there may be one for every version of the clock.
const RECORDS_PINNED_MAX: usize = 1024;

/// Addresses of candidates that are only on disk; a bucket rarely has one whose tag matches by chance.
type ColdCandidates = Vec<Address>;

enum Memory {
    Done(Reading),
    Cold(Bucket, Stamp, ColdCandidates),
    /// There is no record, and whether the key has settled is not to be seen in memory.
    MaybeSettled(Bucket, Stamp),
    Retry,
}

impl Engine {
    /// Where the newest record of a key with this hash probably is, if it has one; the processor fetches so many bytes of it meanwhile.
    #[inline]
    pub(crate) fn fetch_candidate(&self, bucket: Bucket, hash: u64, bytes: usize) -> Candidate {
        let candidate = self.index.first_candidate(bucket, hash).unwrap_or_default();
        self.log.prefetch(candidate.address, bytes);
        candidate
    }

    /// Reads the newest record of a key into `out`. `None` if somebody holds the key's bucket for too long.
    ///
    /// Always inline, so that what the usual case finds stays in registers: it is faster than the way through memory, where what was written as
    /// words is read back as pairs of them.
    #[inline(always)]
    pub(crate) fn read_current(
        &self,
        object: u32,
        key: &[u8],
        hash: u64,
        moment: &Moment,
        out: &mut Vec<u8>,
    ) -> Result<Option<Reading>> {
        match self.read_at_once(object, key, hash, moment, out) {
            Some(reading) => Ok(Some(reading)),
            None => self.read_as_of_now(object, key, hash, moment, out),
        }
    }

    /// As [`Self::read_patiently`], of rows as they are at a moment.
    #[cold]
    fn read_as_of_now(
        &self,
        object: u32,
        key: &[u8],
        hash: u64,
        moment: &Moment,
        out: &mut Vec<u8>,
    ) -> Result<Option<Reading>> {
        loop {
            let Some(reading) = self.read_patiently(object, key, hash, out)? else { return Ok(None) };
            let reading = reading.as_of(moment, self);
            if self.is_still(&reading) {
                return Ok(Some(reading));
            }
        }
    }

    /// False if a row was read that has expired, and the time was taken when it may have been another one: a row that is renewed in time is
    /// never absent.
    #[inline]
    fn is_still(&self, reading: &Reading) -> bool {
        reading.found == reading.stored || self.index.unchanged(reading.bucket, reading.stamp)
    }

    /// The usual case, in few instructions, so that the processor gets to the next read's cache misses during this one's:
    /// nobody writes in the key's bucket, and the first record whose tag is the key's is its put, and in memory; or there is
    /// none, and what has settled is in memory. `None` if it is not the usual case.
    #[inline(always)]
    pub(crate) fn read_at_once(
        &self,
        object: u32,
        key: &[u8],
        hash: u64,
        moment: &Moment,
        out: &mut Vec<u8>,
    ) -> Option<Reading> {
        let _pin = epoch::pin();
        let (bucket, stamp) = self.index.stamp_at_once(hash)?;
        let Candidate { address, slot } = self.fetch_candidate(bucket, hash, RECORD_BYTES_USUAL);
        let (settled, version) = if address != NO_ADDRESS {
            let view = self.log.put_of(address, object, key)?;
            view.value_into(key.len(), out);
            self.log.note_read(address, &view);
            (Some(NEVER), view.version())
        } else if stamp.has_overflow() {
            return None;
        } else if self.may_be_settled(object) {
            match self.get_settled_cached(object, key, out) {
                Cached::Found { expires_at } => (Some(expires_at), 0),
                Cached::Absent => (None, 0),
                Cached::Unknown => return None,
            }
        } else {
            (None, 0)
        };
        let reading = Reading { address, slot, version, ..Reading::without_record(settled, bucket, stamp) };
        let reading = reading.as_of(moment, self);
        // The bucket's sequence covers the record too: unchanged means that nothing was torn. And the time, see `is_still`.
        self.index.is_as_read(bucket, stamp).then_some(reading)
    }

    /// What the newest record of a key says, and how long its value is, which is not copied. `None` if it is not in memory, not even in the
    /// read cache; if there is none; or if somebody writes in the key's bucket: [`Self::read_current`] knows then.
    pub(crate) fn outline_at_once(&self, key: SingleKey<'_>, moment: &Moment) -> Option<(Reading, usize)> {
        let seen = {
            let _pin = epoch::pin();
            let (bucket, stamp) = self.index.stamp_at_once(key.hash)?;
            let look = |view: &RecordView<'_>| {
                let past =
                    PastReading::of(view.shape().kind.is_put().then(|| view.expires_at()), view.version());
                view.is(key.object, key.key).then(|| (past, view.value_bytes()))
            };
            let seen = self.index.find(bucket, key.hash, |address| {
                let seen = match address < self.log.head() {
                    true => self.cold.cache.look(address, look).flatten(),
                    false => self.log.view(address).and_then(|view| look(&view)),
                };
                seen.map(|(past, value_bytes)| (past.reading(address, bucket, stamp), value_bytes))
            });
            // As for `read_at_once`.
            seen.filter(|_| self.index.is_as_read(bucket, stamp))?
        };
        let (reading, value_bytes) = (seen.0.as_of(moment, self), seen.1);
        self.is_still(&reading).then_some((reading, value_bytes))
    }

    /// Reads the newest record of a key wherever it is, and waits for who writes in its bucket.
    #[cold]
    fn read_patiently(
        &self,
        object: u32,
        key: &[u8],
        hash: u64,
        out: &mut Vec<u8>,
    ) -> Result<Option<Reading>> {
        let question = Question { object, key, version_max: u64::MAX };
        let mut kept = Kept::default();
        loop {
            let (bucket, stamp, cold) = match self.look_in_memory(&question, hash, &mut kept, out) {
                None => return Ok(None),
                Some(Memory::Done(reading)) => return Ok(Some(reading)),
                Some(Memory::Retry) => continue,
                Some(Memory::Cold(bucket, stamp, cold)) => (bucket, stamp, cold),
                Some(Memory::MaybeSettled(bucket, stamp)) => (bucket, stamp, ColdCandidates::new()),
            };
            if let Some(reading) = self.read_cold(&question, (bucket, stamp), &cold, &mut kept, out)? {
                return Ok(Some(reading));
            }
        }
    }

    /// As [`Self::read_current`], of the row as it is now, however long others hold the key's bucket.
    #[inline]
    pub(crate) fn read_newest(&self, key: SingleKey<'_>, out: &mut Vec<u8>) -> Result<Reading> {
        match self.read_at_once(key.object, key.key, key.hash, &Moment::default(), out) {
            // Looked at afterwards, see `life`.
            Some(reading) if key.life.lives() => Ok(reading),
            _ => self.read_newest_patiently(key, out),
        }
    }

    /// The same, for who knows that others are in the bucket: a long value is not copied in vain.
    #[cold]
    pub(crate) fn read_newest_patiently(&self, key: SingleKey<'_>, out: &mut Vec<u8>) -> Result<Reading> {
        loop {
            let reading = self.read_patiently(key.object, key.key, key.hash, out);
            // Looked at afterwards, see `life`.
            key.life.check()?;
            if let Some(reading) = reading? {
                // Taken again each time: as of an earlier look a row would be there that was put since, when it had expired.
                let reading = reading.as_of(&Moment::default(), self);
                if self.is_still(&reading) {
                    return Ok(reading);
                }
            }
        }
    }

    /// As [`Self::read_newest`], but `None` if the key's record must be read from disk for it.
    #[inline]
    pub(crate) fn read_without_disk(&self, key: SingleKey<'_>, out: &mut Vec<u8>) -> Option<Reading> {
        let SingleKey { object, hash, key, .. } = key;
        if let Some(reading) = self.read_at_once(object, key, hash, &Moment::default(), out) {
            return Some(reading);
        }
        let (question, mut kept) = (Question { object, key, version_max: u64::MAX }, Kept::default());
        loop {
            match self.look_in_memory(&question, hash, &mut kept, out) {
                None | Some(Memory::Retry) => {}
                Some(Memory::Done(reading)) => {
                    let reading = reading.as_of(&Moment::default(), self);
                    if self.is_still(&reading) {
                        return Some(reading);
                    }
                }
                Some(Memory::Cold(..) | Memory::MaybeSettled(..)) => return None,
            }
        }
    }

    /// Reads the newest record of a key whose version is at most `version`, which is closed and held by a
    /// registered snapshot. Waits for nobody's commit.
    pub(crate) fn read_as_of(
        &self,
        object: u32,
        key: &[u8],
        hash: u64,
        version: u64,
        moment: &Moment,
        out: &mut Vec<u8>,
    ) -> Result<PastReading> {
        let question = Question { object, key, version_max: version };
        let mut reading = self.find_as_of(&question, hash, out)?;
        if reading.expires_at != NEVER && moment.is_past(reading.expires_at, self) {
            reading.found = false;
        }
        Ok(reading)
    }

    fn find_as_of(&self, question: &Question<'_>, hash: u64, out: &mut Vec<u8>) -> Result<PastReading> {
        let mut kept = Kept::default();
        loop {
            let before = self.index.stamp(hash);
            let mut rest = Vec::new();
            let seen = {
                let _pin = epoch::pin();
                self.index.find(self.index.bucket_of(hash), hash, |newest| {
                    match self.walk_memory(question, newest, out) {
                        Walk::OtherKey => {}
                        Walk::Found(found) => return Some(Some(found)),
                        Walk::Ended => return Some(None),
                        walk @ (Walk::Cold(_) | Walk::Far(_)) => rest.push(walk),
                    }
                    None
                })
            };
            match seen {
                Some(Some(found)) => return Ok(found),
                // Not pinned any more: the tree may have to be read from disk.
                Some(None) => return self.settled_as_of(question, out),
                None => {}
            }
            for mut walk in rest {
                while let Walk::Far(address) = walk {
                    let _pin = epoch::pin();
                    // It is the key's, so there it ends.
                    let further = self.walk_memory(question, address, out);
                    walk = if let Walk::OtherKey = further { Walk::Ended } else { further };
                }
                if let Walk::Cold(address) = walk
                    && !kept.others.contains(&address)
                {
                    walk = self.walk_disk(question, address, out)?;
                    kept.others.push(address);
                }
                match walk {
                    Walk::Found(found) => return Ok(found),
                    Walk::Ended => return self.settled_as_of(question, out),
                    Walk::OtherKey | Walk::Cold(_) | Walk::Far(_) => {}
                }
            }
            let (settled, answer) = self.settled_kept(question, &mut kept, out)?;
            // No record was found. That stands if no split moved entries meanwhile; a commit in progress cannot
            // hide an entry, but it is cheap to wait for it.
            if let Some((bucket, stamp)) = before
                && self.index.unchanged(bucket, stamp)
            {
                return Ok(settled);
            }
            kept.keep(answer, out);
        }
    }

    /// The record at an address, if it alone tells what a snapshot sees of a key, wherever the address comes from: it is in memory, is
    /// the key's put, old enough, and the key's newest. The caller is pinned.
    #[inline(always)]
    pub(crate) fn newest_put_at(
        &self,
        address: Address,
        object: u32,
        key: &[u8],
        version_max: u64,
    ) -> Option<RecordView<'_>> {
        if !self.notes.are_in(address) || address == NO_ADDRESS {
            return None;
        }
        let view = self.log.put_of(address, object, key)?;
        let is_newest = !view.has_successor() || planted(Bug::HintsBelieved);
        (is_newest && view.version() <= version_max).then_some(view)
    }

    /// What a snapshot sees of a key that has no record old enough for it: whatever has settled every snapshot may see, unless it
    /// came with the object, later.
    fn settled_as_of(&self, question: &Question<'_>, out: &mut Vec<u8>) -> Result<PastReading> {
        let Question { object, key, version_max } = *question;
        let may_be_seen = self.may_be_settled(object) && !self.is_loaded_after(object, version_max);
        let settled = match may_be_seen {
            true => match self.get_settled_cached(object, key, out) {
                Cached::Found { expires_at } => Some(expires_at),
                Cached::Absent => None,
                Cached::Unknown => self.get_settled(object, key, out)?,
            },
            false => None,
        };
        Ok(PastReading::of(settled, 0))
    }

    /// Goes back along a key's records as far as they are in memory, the cache included, but not very far at once: the caller is pinned.
    fn walk_memory(&self, question: &Question<'_>, newest: Address, out: &mut Vec<u8>) -> Walk {
        let Question { object, key, version_max } = *question;
        let mut address = newest;
        for _ in 0..RECORDS_PINNED_MAX {
            if address == NO_ADDRESS || address < self.log.begin() {
                return Walk::ended(address == newest);
            }
            if address < self.log.head() {
                match self.ask_cached(address, question, out) {
                    None => return Walk::Cold(address),
                    Some(sighting) => match sighting.walk(address, question) {
                        Some(walk) => return walk,
                        None => address = sighting.previous,
                    },
                }
                continue;
            }
            let Some(view) = self.log.view(address) else {
                // It has just left.
                return if planted(Bug::LeavingMissed) { Walk::OtherKey } else { Walk::Cold(address) };
            };
            if !view.is(object, key) {
                return Walk::OtherKey;
            }
            if view.version() <= version_max || planted(Bug::SnapshotReadsNewest) {
                self.log.note_read(address, &view);
                return Walk::Found(copy_put(&view, key, out).at(address));
            }
            address = view.previous();
        }
        Walk::Far(address)
    }

    fn walk_disk(&self, question: &Question<'_>, from: Address, out: &mut Vec<u8>) -> Result<Walk> {
        let mut address = from;
        loop {
            if address == NO_ADDRESS || address < self.log.begin() {
                return Ok(Walk::ended(address == from));
            }
            let sighting = match self.ask_cold(address, question, out) {
                Ok(sighting) => sighting,
                // Truncated since we looked: then no snapshot needs it.
                Err(_) if address < self.log.begin() => return Ok(Walk::OtherKey),
                Err(error) => return Err(error),
            };
            match sighting.walk(address, question) {
                Some(walk) => return Ok(walk),
                None => address = sighting.previous,
            }
        }
    }
}

enum Walk {
    OtherKey,
    Found(PastReading),
    /// The log has no record of the key that is old enough.
    Ended,
    Cold(Address),
    /// It is the key's, and goes on from there, but others wait for who is pinned.
    Far(Address),
}

impl Walk {
    /// The walk came to a place where there is no record. If it was the first, that was taken out of the index and the log meanwhile, and may
    /// have been anybody's: what has settled is in the tree now, and what has moved since the version that who asked holds would still be there.
    fn ended(is_first: bool) -> Walk {
        if is_first { Walk::OtherKey } else { Walk::Ended }
    }
}

impl Sighting {
    /// What it says of its key.
    fn past(&self) -> PastReading {
        PastReading::of(self.kind.is_put().then_some(self.expires_at), self.version)
    }

    /// Where a walk to the record that was asked for ends, at this address; `None` if it goes on to the one before.
    fn walk(&self, address: Address, question: &Question<'_>) -> Option<Walk> {
        match self.is_of_key {
            false => Some(Walk::OtherKey),
            true if self.version > question.version_max => None,
            true => Some(Walk::Found(self.past().at(address))),
        }
    }
}

/// Copies the value of the key's record, if it has one, and says what was found.
#[inline]
fn copy_put(view: &RecordView<'_>, key: &[u8], out: &mut Vec<u8>) -> PastReading {
    let is_put = view.shape().kind.is_put();
    if is_put {
        view.value_into(key.len(), out);
    }
    PastReading::of(is_put.then(|| view.expires_at()), view.version())
}
