//! A transaction's buffered writes.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

use super::change::Change;
use super::losses::LOSSES_OBJECT;
use super::session::SESSIONS_OBJECT;
use crate::storage::log::Purpose;
use crate::storage::record::NEVER;

/// Beyond this many entries a lookup goes through a hash table instead of a walk.
const LINEAR_MAX: usize = 16;

/// What was overwritten stays in the arena until it is so much, and half of all.
const DEAD_BYTES_MAX: usize = 64 << 10;

/// One buffered write. Key and value lie in the set's arena.
#[derive(Clone, Copy)]
pub(crate) struct Write {
    pub(crate) object: u32,
    pub(crate) hash: u64,
    pub(crate) delete: bool,
    /// When the value expires, if it does.
    pub(crate) expires_at: u64,
    key: (usize, usize),
    value: (usize, usize),
}

/// The writes, one per key: a later write of a key replaces the earlier one.
#[derive(Default)]
pub(crate) struct WriteSet {
    writes: Vec<Write>,
    arena: Vec<u8>,
    /// Bytes of the arena that are no write's any more.
    dead_bytes: usize,
    /// Bytes that the writes take in the log at the most.
    log_bytes: usize,
    /// Deletions of what there was not included.
    has_deletions: bool,
    /// Besides the serial number of a session, which comes with whatever the session does.
    has_puts: bool,
    has_expiring: bool,
    /// The object that the writes drop.
    drops: Option<u32>,
    /// Whoever writes has said that this makes room, and which space is to be had for it.
    makes_room_for: Option<Purpose>,
    by_hash: HashMap<u64, Vec<usize>>,
    /// Keys in order, once a range has asked for them.
    ordered: Option<BTreeSet<(u32, Vec<u8>)>>,
}

impl WriteSet {
    pub(crate) fn clear(&mut self) {
        self.writes.clear();
        self.arena.clear();
        self.dead_bytes = 0;
        self.log_bytes = 0;
        self.has_deletions = false;
        self.has_puts = false;
        self.has_expiring = false;
        self.drops = None;
        self.makes_room_for = None;
        self.by_hash.clear();
        self.ordered = None;
        // One huge transaction must not keep its memory for ever.
        self.arena.shrink_to(1 << 20);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    /// Bytes of log that the writes take, headers included.
    pub(crate) fn log_bytes(&self) -> usize {
        self.log_bytes
    }

    /// What the log space is for.
    #[inline]
    pub(crate) fn purpose(&self) -> Purpose {
        match self.makes_room_for {
            // Until this is written nothing can be dropped.
            _ if self.writes.first().is_some_and(|first| first.object == LOSSES_OBJECT) => Purpose::Opening,
            Some(purpose) => purpose,
            // So it is on a full disk that objects can be dropped, too.
            None if self.drops.is_some() => Purpose::Deletion,
            None if self.has_deletions && !self.has_puts => Purpose::Deletion,
            None => Purpose::Ordinary,
        }
    }

    /// Says that it is a deletion, also if nothing was there: a session writes its serial number then, too.
    pub(crate) fn note_deletion(&mut self) {
        self.has_deletions = true;
    }

    /// Some of the rows expire.
    #[inline]
    pub(crate) fn has_expiring(&self) -> bool {
        self.has_expiring
    }

    /// Says that the writes make room, whatever they are, and take space that is kept for this.
    pub(crate) fn set_makes_room(&mut self, purpose: Purpose) {
        self.makes_room_for = Some(purpose);
    }

    /// Says that the writes drop this object.
    pub(crate) fn set_drops(&mut self, object: u32) {
        self.drops = Some(object);
    }

    /// The object that they drop, if they do.
    #[inline]
    pub(crate) fn drops(&self) -> Option<u32> {
        self.drops
    }

    pub(crate) fn writes(&self) -> &[Write] {
        &self.writes
    }

    #[inline]
    pub(crate) fn key(&self, write: &Write) -> &[u8] {
        &self.arena[write.key.0..write.key.1]
    }

    #[inline]
    pub(crate) fn value(&self, write: &Write) -> &[u8] {
        &self.arena[write.value.0..write.value.1]
    }

    /// A write with its key and value.
    #[inline]
    pub(crate) fn change(&self, write: &Write) -> Change<'_> {
        Change {
            object: write.object,
            hash: write.hash,
            key: self.key(write),
            value: (!write.delete).then(|| self.value(write)),
            expires_at: write.expires_at,
        }
    }

    /// The write of this key, if there is one.
    #[inline]
    pub(crate) fn find(&self, object: u32, hash: u64, key: &[u8]) -> Option<&Write> {
        self.position(object, hash, key).map(|index| &self.writes[index])
    }

    #[inline]
    fn position(&self, object: u32, hash: u64, key: &[u8]) -> Option<usize> {
        let same = |write: &Write| write.hash == hash && write.object == object && self.key(write) == key;
        if self.writes.len() <= LINEAR_MAX {
            return self.writes.iter().position(same);
        }
        self.by_hash.get(&hash)?.iter().copied().find(|&index| same(&self.writes[index]))
    }

    /// Buffers a write; `None` deletes.
    pub(crate) fn set(
        &mut self,
        (object, hash, key): (u32, u64, &[u8]),
        value: Option<&[u8]>,
        expires_at: u64,
    ) {
        let position = self.position(object, hash, key);
        let bytes = value.unwrap_or_default();
        let (key_range, value_range) = match position {
            Some(index) => {
                let before = self.writes[index];
                self.log_bytes -= self.change(&before).log_bytes() as usize;
                (before.key, self.replace(before.value, bytes))
            }
            None => (self.append(key), self.append(bytes)),
        };
        let delete = value.is_none();
        let write = Write { object, hash, delete, expires_at, key: key_range, value: value_range };
        self.has_deletions |= delete;
        self.has_puts |= !delete && object != SESSIONS_OBJECT;
        self.has_expiring |= expires_at != NEVER;
        self.log_bytes += self.change(&write).log_bytes() as usize;
        match position {
            Some(index) => {
                self.writes[index] = write;
                self.drop_dead();
            }
            None => {
                self.writes.push(write);
                self.index_last();
                if let Some(ordered) = &mut self.ordered {
                    ordered.insert((object, key.to_vec()));
                }
            }
        }
    }

    /// Puts a value in the place of one that is overwritten: where that was, if it fits there, or behind the others.
    fn replace(&mut self, (start, end): (usize, usize), bytes: &[u8]) -> (usize, usize) {
        if end == self.arena.len() {
            self.arena.truncate(start);
            return self.append(bytes);
        }
        match self.arena[start..end].get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.dead_bytes += end - start - bytes.len();
                (start, start + bytes.len())
            }
            None => {
                self.dead_bytes += end - start;
                self.append(bytes)
            }
        }
    }

    /// Copies the writes into a new arena once they are the smaller part of this one.
    fn drop_dead(&mut self) {
        if self.dead_bytes < DEAD_BYTES_MAX.max(self.arena.len() / 2) {
            return;
        }
        let mut arena = Vec::with_capacity(self.arena.len() - self.dead_bytes);
        for write in &mut self.writes {
            for range in [&mut write.key, &mut write.value] {
                *range = append_to(&mut arena, &self.arena[range.0..range.1]);
            }
        }
        (self.arena, self.dead_bytes) = (arena, 0);
    }

    fn append(&mut self, bytes: &[u8]) -> (usize, usize) {
        append_to(&mut self.arena, bytes)
    }

    fn index_last(&mut self) {
        let count = self.writes.len();
        let first = match count {
            0..=LINEAR_MAX => return,
            _ if count == LINEAR_MAX + 1 => 0,
            _ => count - 1,
        };
        for index in first..count {
            self.by_hash.entry(self.writes[index].hash).or_default().push(index);
        }
    }

    /// The written key of `object` that is next within the bounds, from below or from above.
    pub(crate) fn next_key(
        &mut self,
        object: u32,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
    ) -> Option<Vec<u8>> {
        if self.writes.is_empty() || is_empty_range(lower, upper) {
            return None;
        }
        let (writes, arena) = (&self.writes, &self.arena);
        let ordered = self.ordered.get_or_insert_with(|| {
            writes.iter().map(|write| (write.object, arena[write.key.0..write.key.1].to_vec())).collect()
        });
        let lower = match lower {
            Bound::Included(key) => Bound::Included((object, key.to_vec())),
            Bound::Excluded(key) => Bound::Excluded((object, key.to_vec())),
            Bound::Unbounded => Bound::Included((object, Vec::new())),
        };
        let upper = match upper {
            Bound::Included(key) => Bound::Included((object, key.to_vec())),
            Bound::Excluded(key) => Bound::Excluded((object, key.to_vec())),
            Bound::Unbounded => Bound::Excluded((object + 1, Vec::new())),
        };
        let mut range = ordered.range((lower, upper));
        let next = if reverse { range.next_back() } else { range.next() };
        next.map(|(_, key)| key.clone())
    }
}

fn append_to(arena: &mut Vec<u8>, bytes: &[u8]) -> (usize, usize) {
    if bytes.is_empty() {
        // What was last may go, and the place behind it with it.
        return (0, 0);
    }
    let start = arena.len();
    arena.extend_from_slice(bytes);
    (start, arena.len())
}

/// True for bounds that `BTreeSet::range` would refuse, or that hold nothing.
pub(crate) fn is_empty_range(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Excluded(high))
        | (Bound::Excluded(low), Bound::Included(high)) => low >= high,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It had its place at the end, which went away when the value before it became shorter.
    #[test]
    fn an_empty_key_with_an_empty_value_stays_when_what_was_overwritten_is_dropped() {
        let mut writes = WriteSet::default();
        let changes: [(u64, &[u8], &[u8]); 5] = [
            (1, b"long", &[0; 70_000]),
            (2, b"a", &[1; 100]),
            (3, b"", b""),
            (1, b"long", b""),
            (2, b"a", b"x"),
        ];
        changes.iter().for_each(|&(hash, key, value)| writes.set((20, hash, key), Some(value), NEVER));
        let written: Vec<_> =
            writes.writes().iter().map(|write| (writes.key(write), writes.value(write))).collect();
        let expected: [(&[u8], &[u8]); 3] = [(b"long", b""), (b"a", b"x"), (b"", b"")];
        assert_eq!(written, expected);
    }

    /// One transaction could take any amount of memory for one key, and was refused for log that it did not need.
    #[test]
    fn what_is_overwritten_takes_neither_memory_nor_log() {
        const KEYS: u64 = 40;
        const VALUE_BYTES_MAX: usize = 3_000;
        let mut writes = WriteSet::default();
        let mut expected = vec![None; KEYS as usize];
        // One of the keys is empty.
        let name = |key: u64| if key == 0 { Vec::new() } else { key.to_be_bytes().to_vec() };
        let mut random = 1_u64;
        for round in 0..20_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
            let (key, bytes) = ((random >> 33) % KEYS, (random >> 40) as usize % VALUE_BYTES_MAX);
            let value = (!bytes.is_multiple_of(3)).then(|| vec![round as u8; bytes]);
            writes.set((20, key, &name(key)), value.as_deref(), NEVER);
            expected[key as usize] = value;
            // A look at one of them each time: it may be the last, or empty.
            let looked_at = (random >> 20) % KEYS;
            if let Some(write) = writes.find(20, looked_at, &name(looked_at)) {
                assert_eq!(writes.change(write).value, expected[looked_at as usize].as_deref());
            }
        }
        assert_eq!(writes.len() as u64, KEYS, "each has one place");
        for (key, value) in (0..KEYS).zip(&expected) {
            let write = writes.find(20, key, &name(key)).expect("it was written");
            assert_eq!(writes.change(write).value, value.as_deref(), "key {key}");
            assert_eq!(writes.key(write), name(key));
        }
        let log_bytes: u64 = writes.writes().iter().map(|write| writes.change(write).log_bytes()).sum();
        assert_eq!(writes.log_bytes() as u64, log_bytes);
        let most = 2 * (KEYS as usize * (8 + VALUE_BYTES_MAX) + DEAD_BYTES_MAX);
        assert!(writes.arena.len() <= most, "{} bytes", writes.arena.len());
    }
}
