//! Walks over the keys of objects in which rows may have expired, piece by piece: to delete these, or to count them.

use std::cell::Cell;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::kernel::catalog::FIRST_OBJECT;
use crate::kernel::engine::Engine;
use crate::kernel::object::ObjectState;
use crate::kernel::read::keys::{self, FoundKey, KeyAt, Wanted};
use crate::kernel::single::SingleKey;
use crate::storage::epoch;
use crate::storage::record::NEVER;
use crate::storage::tree::{Cursor, Direction, write_tree_key};
use crate::sync::Instant;
use crate::sync::atomic::Ordering;

/// So many keys, or those of one leaf of the tree, are looked at before the keeper may go on with its other duties: each may be a read from disk.
const PIECE_KEYS: usize = 64;
/// Or so many places of the hash index: of records that are others', whose they are may have to be read from disk, too.
const PIECE_PLACES: usize = 64;
/// It does go on with them after so long: where the keys are in memory that is many pieces.
const TURN: Duration = Duration::from_millis(1);
/// So long it leaves the log to others where it has no space, or hardening is behind.
const OBSTRUCTED: Duration = Duration::from_millis(8);
/// No turn counts as longer. One that was is that of a process that was stopped, or of a disk.
const TURN_COUNTED_MAX: Duration = Duration::from_secs(1);
/// A walk is followed by a rest so many times as long as it looked at what had not expired, and
const REST_TIMES: u32 = 8;
/// so long at least,
pub(super) const REST_MIN: Duration = Duration::from_millis(250);
/// if not one in so many rows that it has met had expired. If one had it also goes on without a pause, since more may come than it deletes with pauses.
const WORTH_ONE_IN: u64 = 4;

/// A walk over the keys of the objects in which something may have expired: first of all maps, which have one index together, then of one table after the
/// other.
#[derive(Default)]
pub(super) struct Walk {
    has_walked_maps: bool,
    /// Tables with smaller numbers have been walked over, or need not be.
    table: u32,
    /// Over whose keys it walks now.
    objects: Vec<u32>,
    /// Where it is in them; nowhere where that has ended.
    place: Option<Place>,
    worked: Duration,
    /// So many rows it has met, or empty places of the hash index,
    looked_at: u64,
    /// and so many rows it has deleted.
    deleted: u64,
    rests_until: Option<Instant>,
    /// What it is to delete next must wait for a hardening.
    is_obstructed: bool,
    /// Something could not be looked at, of which nobody knows whose it is.
    has_missed: bool,
    /// The first that could not be read, or deleted.
    failure: Option<Error>,
}

impl Walk {
    fn note_turn(&mut self, took: Duration) {
        self.worked += took.min(TURN_COUNTED_MAX);
    }

    /// Much of what it has met had expired.
    fn is_worth_it(&self) -> bool {
        self.deleted > 0 && self.deleted.saturating_mul(WORTH_ONE_IN) >= self.looked_at
    }

    /// Until it goes on.
    fn pause(&self) -> Duration {
        match self.is_obstructed {
            true => OBSTRUCTED,
            false if self.is_worth_it() => Duration::ZERO,
            false => TURN,
        }
    }

    /// Until the next one.
    fn rest(&self) -> Duration {
        let in_vain = self.looked_at.saturating_sub(self.deleted) as f64 / self.looked_at.max(1) as f64;
        let rest = (self.worked * REST_TIMES).mul_f64(in_vain);
        if self.is_worth_it() { rest } else { rest.max(REST_MIN) }
    }

    /// Of what has not been looked at: objects of which it may be stay due, and are walked over again.
    fn note(&mut self, failure: Error) {
        self.failure.get_or_insert(failure);
        self.has_missed = true;
    }

    /// Of a row, which cannot be read or deleted; its object alone stays due.
    fn note_of(&mut self, object: &ObjectState, failure: Error) {
        self.failure.get_or_insert(failure);
        object.lifetimes.note(1);
    }
}

/// Where in an object, or in all maps.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A cursor over the hash index.
    Map(u64),
    /// In the ordered index behind this key.
    Unsettled(Vec<u8>),
    /// In the tree, from this key of it on.
    Settled(Vec<u8>),
}

/// A row that expires, if it is the key's newest, or may do so: then not before this time.
pub(crate) struct MayExpire {
    pub(crate) object: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) from: u64,
}

/// What became of a row that was to be deleted if it has expired.
pub(crate) enum Expired {
    Deleted,
    /// It is another one, or none, and expires then, if it does.
    Stays(u64),
    /// It has expired, and its deletion finds no log space.
    NoLogSpace,
}

/// What a walk meets at once.
pub(crate) struct Piece {
    pub(crate) rows: Vec<MayExpire>,
    /// What is behind it, if that is not the end.
    pub(crate) next: Option<Place>,
    /// So many rows it has, whether they may expire or not, or places of the hash index.
    looked_at: usize,
}

pub(super) fn first_place(object: &ObjectState) -> Place {
    match object.ordered() {
        None => Place::Map(0),
        Some(_) => Place::Unsettled(Vec::new()),
    }
}

impl Engine {
    /// Deletes some of the rows that have expired, if it is time to. If there may be more it says after which pause to go on. Who does not wait for log space
    /// goes on where there was none; nor does it fill the log while others wait until hardening has caught up.
    pub(crate) fn delete_some_expired(self: &Arc<Self>, waits: bool) -> Option<Duration> {
        if !self.is_expiry_due() {
            return None;
        }
        let mut walk = self.expiring.walk.try_lock()?;
        // Who waits has asked for it, and does the same whatever the time.
        if !waits && walk.rests_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let began = Instant::now();
        let goes_on = loop {
            walk.is_obstructed = !waits && self.hardening.is_behind_window();
            let goes_on = walk.is_obstructed || (self.walk_on(&mut walk, waits) && self.is_expiry_due());
            if !goes_on || waits || walk.is_obstructed || began.elapsed() >= TURN {
                break goes_on;
            }
        };
        walk.note_turn(began.elapsed());
        if goes_on {
            return Some(walk.pause());
        }
        *self.expiring.failure.lock() = walk.failure.take().map(|failure| failure.to_string());
        *walk = Walk { rests_until: Some(Instant::now() + walk.rest()), ..Walk::default() };
        None
    }

    /// One piece of a walk over all objects; false once it has come to its end.
    fn walk_on(self: &Arc<Self>, walk: &mut Walk, waits: bool) -> bool {
        let place = match walk.place.take() {
            Some(place) => place,
            None => match self.begin_walk_over(walk) {
                Some(place) => place,
                None => return false,
            },
        };
        walk.place = self.walk_piece(walk, &place, waits).unwrap_or_else(|failure| {
            // What is behind it is not known, but other objects are not to wait for that.
            walk.note(failure);
            None
        });
        if walk.place.is_none() && !walk.has_missed {
            walk.objects.iter().for_each(|&id| self.object(id).lifetimes.end_walk());
        }
        true
    }

    /// Goes on to the next objects in which something may have expired, if there are some: says where they begin.
    fn begin_walk_over(&self, walk: &mut Walk) -> Option<Place> {
        let is_due = |object: &&ObjectState| object.id >= FIRST_OBJECT && self.may_have_expired(object);
        let is_map = |object: &ObjectState| object.ordered().is_none();
        walk.objects.clear();
        if !std::mem::replace(&mut walk.has_walked_maps, true) {
            let maps = self.objects.iter().filter(|object| is_map(object)).filter(is_due);
            walk.objects.extend(maps.map(|map| map.id));
        }
        if walk.objects.is_empty() {
            let mut tables = self.objects.iter().filter(|object| object.id >= walk.table && !is_map(object));
            let table = tables.find(is_due)?;
            walk.table = table.id + 1;
            walk.objects.push(table.id);
        }
        walk.has_missed = false;
        walk.objects.iter().for_each(|&id| self.object(id).lifetimes.begin_walk());
        walk.objects.first().map(|&id| first_place(self.object(id)))
    }

    /// Deletes what has expired of one piece of the objects that are walked over, and gives the place behind it, if that is not the end. Where there is no
    /// log space it is the same place.
    fn walk_piece(self: &Arc<Self>, walk: &mut Walk, place: &Place, waits: bool) -> Result<Option<Place>> {
        // Of what was dropped all goes.
        if walk.objects.iter().all(|&id| self.object(id).is_dropped()) {
            return Ok(None);
        }
        let mut unreadable = Vec::new();
        let piece = self.next_piece(&walk.objects, place, &mut |error| unreadable.push(error));
        unreadable.into_iter().for_each(|error| walk.note(error));
        let Piece { rows, next, looked_at } = piece?;
        let before = (walk.looked_at, walk.deleted);
        walk.looked_at += looked_at as u64;
        for MayExpire { object, key, from } in &rows {
            let object = self.object(*object);
            if !self.is_expired_now(*from) {
                object.lifetimes.note(*from);
                continue;
            }
            match self.delete_expired(self.key_of(object, key), waits) {
                Ok(Expired::Deleted) => walk.deleted += 1,
                Ok(Expired::Stays(expires_at)) => object.lifetimes.note(expires_at),
                Ok(Expired::NoLogSpace) => {
                    walk.is_obstructed = true;
                    // The others are looked at again.
                    walk.looked_at = before.0 + (walk.deleted - before.1);
                    return Ok(Some(place.clone()));
                }
                // It stays absent.
                Err(error) if matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::Io) => {
                    walk.note_of(object, error)
                }
                Err(_) if object.is_dropped() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(next)
    }

    /// Some rows that may expire, of all maps with these numbers in order, or of the one table, from a place on. `unreadable` is told of records that cannot be read, of which nobody knows whose they are.
    pub(crate) fn next_piece(
        &self,
        objects: &[u32],
        place: &Place,
        unreadable: &mut dyn FnMut(Error),
    ) -> Result<Piece> {
        let mut rows = Vec::new();
        match place {
            Place::Map(cursor) => {
                let (mut places, records) = (0, Cell::new(0));
                let expires = |object: u32, at: u64| {
                    records.set(records.get() + 1);
                    at != NEVER && objects.binary_search(&object).is_ok()
                };
                // Nobody is going to ask for them.
                let wanted = Wanted { is: &expires, keeps: false, passes: &|_| false };
                let mut cursor = Some(*cursor);
                while places < PIECE_PLACES
                    && let Some(at) = cursor.filter(|_| rows.len() < PIECE_KEYS)
                {
                    places += 1;
                    cursor = keys::keys_at(self, at, &wanted, |found| match found {
                        Ok(FoundKey { object, key, expires_at }) => {
                            rows.push(MayExpire { object, key, from: expires_at })
                        }
                        Err(error) => unreadable(error),
                    });
                }
                Ok(Piece { rows, next: cursor.map(Place::Map), looked_at: records.get().max(places) })
            }
            Place::Unsettled(after) => {
                let (object, mut keys) = (self.object(objects[0]), Vec::new());
                if let Some(ordered) = object.ordered() {
                    ordered.keys_behind(after, PIECE_KEYS, &mut keys);
                }
                let next = match keys.last() {
                    Some(last) if keys.len() >= PIECE_KEYS => Place::Unsettled(last.clone()),
                    _ => {
                        let mut from = Vec::new();
                        write_tree_key(object.id, b"", &mut from);
                        Place::Settled(from)
                    }
                };
                let looked_at = keys.len();
                for key in keys {
                    // Somebody is changing it, or it cannot be read: whoever is to delete it finds out.
                    let from = self.logged_expiry(object, &key).unwrap_or(1);
                    if from != NEVER {
                        rows.push(MayExpire { object: object.id, key, from });
                    }
                }
                Ok(Piece { rows, next: Some(next), looked_at })
            }
            Place::Settled(from) => self.settled_piece(self.object(objects[0]), from, rows),
        }
    }

    /// When a key's row expires that is in the log, if it does. Nobody is going to ask for what is read for it. `None` if that does not say.
    fn logged_expiry(&self, object: &ObjectState, key: &[u8]) -> Option<u64> {
        let hash = self.hash(object.id, key);
        let addresses: Vec<_> = {
            let _pin = epoch::pin();
            let (bucket, stamp) = self.index.stamp_at_once(hash)?;
            let addresses = self.index.addresses_of(hash).collect();
            self.index.unchanged(bucket, stamp).then_some(addresses)?
        };
        let expires = |found: u32, at: u64| found == object.id && at != NEVER;
        let wanted = Wanted { is: &expires, keeps: false, passes: &|_| false };
        let mut expires_at = NEVER;
        for address in addresses {
            match self.key_at(address, &wanted).ok()? {
                KeyAt::Key(found) if found.key == key => expires_at = found.expires_at,
                KeyAt::Key(_) | KeyAt::Other => {}
                KeyAt::Gone => return None,
            }
        }
        Some(expires_at)
    }

    /// Of the settled rows of one leaf those that expire. Whole leaves: so each is read once, though it does not stay in memory.
    fn settled_piece(&self, object: &ObjectState, from: &[u8], mut rows: Vec<MayExpire>) -> Result<Piece> {
        let mut cursor = Cursor::unasked(&self.settled.tree, self.settled.tree.root());
        cursor.seek(Bound::Included(from), Direction::Forwards)?;
        let prefix = object.id.to_be_bytes();
        let of_leaf = cursor.count_within(Bound::Unbounded);
        for looked_at in 0..of_leaf {
            let expires_at = cursor.expires_at();
            let Some(key) = cursor.key().and_then(|key| key.strip_prefix(&prefix)) else {
                return Ok(Piece { rows, next: None, looked_at });
            };
            if expires_at != NEVER {
                rows.push(MayExpire { object: object.id, key: key.to_vec(), from: expires_at });
            }
            cursor.step_in_leaf();
        }
        let mut next = Vec::new();
        let goes_on = cursor.next_leaf_into(&mut next) && next.starts_with(&prefix);
        Ok(Piece { rows, next: goes_on.then_some(Place::Settled(next)), looked_at: of_leaf })
    }

    /// Deletes a row if it has expired.
    fn delete_expired(self: &Arc<Self>, key: SingleKey<'_>, waits: bool) -> Result<Expired> {
        let expired = self.expire_single(key, waits)?;
        if matches!(expired, Expired::Deleted) {
            self.expiring.deleted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(expired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_rests_for_what_it_has_looked_at_in_vain() {
        let walk = |worked_ms, looked_at, deleted| Walk {
            worked: Duration::from_millis(worked_ms),
            looked_at,
            deleted,
            ..Walk::default()
        };
        let (ms, nothing) = (Duration::from_millis, Duration::ZERO);
        for (worked, looked_at, deleted, pause, rest) in [
            (1, 0, 0, TURN, REST_MIN),
            (100, 1_000, 0, TURN, ms(800)),
            (100, 1_000, 200, TURN, ms(640)),
            (100, 1_000, 250, nothing, ms(600)),
            (100, 1_000, 1_000, nothing, nothing),
            (1, 1_000, 200, TURN, REST_MIN),
            (1, 1_000, 500, nothing, ms(4)),
        ] {
            let walk = walk(worked, looked_at, deleted);
            assert_eq!((walk.pause(), walk.rest()), (pause, rest), "{deleted} of {looked_at}");
        }
    }

    /// What had expired while a container had been stopped for an hour stayed for another eight.
    #[test]
    fn a_walk_in_which_the_process_was_stopped_rests_no_longer_than_any_other() {
        let mut walk = Walk { looked_at: 1_000, ..Walk::default() };
        walk.note_turn(Duration::from_secs(3_600));
        assert!(walk.rest() <= REST_TIMES * TURN_COUNTED_MAX, "{:?}", walk.rest());
    }
}
