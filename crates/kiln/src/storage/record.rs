//! Records: the unit of the log, in memory and on disk alike.
//!
//! ```text
//! word 0   | kind 4 | object 18 | key bytes 17 | value bytes 25 |   (bit 63 first)
//! word 1   | checksum, high half 16 | version 48 |
//! word 2   | checksum, low half 16  | previous address 48 |
//! word 3.. | key, padded with zeros to whole words | value, likewise |
//! ```
//!
//! Words are little-endian on disk. The checksum (CRC-32C over the record's address and all its bytes with
//! the checksum's own bits zero) is filled in by the hardener when it copies the record out; in memory it
//! is meaningless, since a record may still be updated in place there: one of its bits says until then whether the key
//! had no value before ([`note_creation`]), and another one that there is a newer record ([`note_successor`]). The address in the checksum
//! makes a stale or misplaced record as detectable as a damaged one.
//!
//! A record whose row *expires* (kind 4) begins its value with the time at which it does, in milliseconds since 1970, as one word, which
//! counts as eight bytes of the value. So one that does not costs nothing for that some do, and whoever copies records need not know.
//!
//! *Padding* fills what a record did not (the end of a segment or of an extent): word 0 holds the kind
//! and, in its low 60 bits, the padding's whole length in bytes; the bytes behind word 0 are
//! [`PADDING_BYTE`], so that a sector of all zeros in an extent means a sector that was never written.
//!
//! Invariant: a record is immutable once its version is closed. Its key never changes.

#[path = "record/notes.rs"]
mod notes;

pub(crate) use notes::{Predecessor, inherit_reference, is_creation, note_creation, note_successor};

use crate::sync::atomic::{AtomicU64, Ordering};

/// A place in the log: a byte offset from the log's beginning of time; a multiple of 8, below 2^48.
pub(crate) type Address = u64;

/// The address that no record has: "no older version".
pub(crate) const NO_ADDRESS: Address = 0;

pub(crate) const HEADER_WORDS: usize = 3;
pub(crate) const HEADER_BYTES: usize = HEADER_WORDS * 8;
pub(crate) const KEY_BYTES_MAX: usize = 1 << 16;
/// The most bytes of a value, where [`segment_bytes`](crate::Options::segment_bytes) allows no fewer.
pub const VALUE_BYTES_MAX: usize = 16 << 20;
pub(crate) const OBJECTS_MAX: u32 = 1 << 18;
pub(crate) const ADDRESS_BITS: u32 = 48;
/// Nothing is committed any more behind this address: what is left, 1 TiB, is for openings, which write a little each.
pub(crate) const COMMITS_END: Address = (1 << ADDRESS_BITS) - (1 << 40);
pub(crate) const VERSION_BITS: u32 = 48;
pub(crate) const PADDING_BYTE: u8 = 0xA5;
const LOW_48: u64 = (1 << 48) - 1;

const _: () = assert!(KEY_BYTES_MAX < 1 << 17 && VALUE_BYTES_MAX < 1 << 25);

/// What a record says about its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Put = 1,
    Tombstone = 2,
    Padding = 3,
    /// A put whose value begins with the time at which it expires.
    Expiring = 4,
}

impl Kind {
    /// That of a record that gives its key a value.
    #[inline]
    pub(crate) fn of_put(expires_at: u64) -> Kind {
        if expires_at == NEVER { Kind::Put } else { Kind::Expiring }
    }

    /// The record gives its key a value.
    #[inline]
    pub(crate) fn is_put(self) -> bool {
        matches!(self, Kind::Put | Kind::Expiring)
    }
}

/// In place of the time at which a row expires: it stays until it is deleted.
pub(crate) const NEVER: u64 = 0;
/// Bytes of the time at which a row expires.
pub(crate) const EXPIRY_BYTES: usize = 8;

/// Word 0, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    pub(crate) object: u32,
    pub(crate) key_bytes: usize,
    /// With the time at which it expires, where it does.
    pub(crate) value_bytes: usize,
}

impl Shape {
    #[inline]
    pub(crate) fn word(self) -> u64 {
        (self.kind as u64) << 60
            | (self.object as u64) << 42
            | (self.key_bytes as u64) << 25
            | self.value_bytes as u64
    }

    /// Takes word 0 of a key's record apart; `None` for padding and for anything that no writer makes.
    #[inline]
    pub(crate) fn parse(word: u64) -> Option<Shape> {
        let kind = match word >> 60 {
            1 => Kind::Put,
            2 => Kind::Tombstone,
            4 => Kind::Expiring,
            _ => return None,
        };
        let shape = Shape {
            kind,
            object: (word >> 42) as u32 & (OBJECTS_MAX - 1),
            key_bytes: (word >> 25) as usize & 0x1_FFFF,
            value_bytes: word as usize & 0x1FF_FFFF,
        };
        let is_possible = shape.key_bytes <= KEY_BYTES_MAX
            && shape.value_bytes <= VALUE_BYTES_MAX
            && shape.value_bytes >= shape.expiry_bytes();
        is_possible.then_some(shape)
    }

    /// That of a put.
    #[inline]
    pub(crate) fn of_put(object: u32, key: &[u8], value: &[u8], expires_at: u64) -> Shape {
        let shape = Shape { kind: Kind::of_put(expires_at), object, key_bytes: key.len(), value_bytes: 0 };
        Shape { value_bytes: value.len() + shape.expiry_bytes(), ..shape }
    }

    /// So many bytes of the value are the time at which it expires.
    #[inline]
    pub(crate) fn expiry_bytes(self) -> usize {
        if self.kind == Kind::Expiring { EXPIRY_BYTES } else { 0 }
    }

    #[inline]
    pub(crate) fn key_words(self) -> usize {
        self.key_bytes.div_ceil(8)
    }

    #[inline]
    pub(crate) fn value_words(self) -> usize {
        self.value_bytes.div_ceil(8)
    }

    /// Length of the whole record in words.
    #[inline]
    pub(crate) fn words(self) -> usize {
        HEADER_WORDS + self.key_words() + self.value_words()
    }

    #[inline]
    pub(crate) fn bytes(self) -> u64 {
        self.words() as u64 * 8
    }
}

/// Word 0 of padding that is `bytes` long in all.
pub(crate) fn padding_word(bytes: u64) -> u64 {
    debug_assert!(bytes.is_multiple_of(8) && (8..1 << 60).contains(&bytes));
    (Kind::Padding as u64) << 60 | bytes
}

/// Length in bytes of the padding whose word 0 this is.
pub(crate) fn padding_bytes(word: u64) -> Option<u64> {
    let bytes = word & ((1 << 60) - 1);
    (word >> 60 == Kind::Padding as u64 && bytes >= 8 && bytes.is_multiple_of(8)).then_some(bytes)
}

/// How many words the value has of a record whose word 0 this is.
#[inline]
pub(crate) fn value_words(word: u64) -> usize {
    (word as usize & 0x1FF_FFFF).div_ceil(8)
}

/// The version in word 1.
#[inline]
pub(crate) fn version_of(word: u64) -> u64 {
    word & LOW_48
}

/// The previous address in word 2.
#[inline]
pub(crate) fn previous_of(word: u64) -> Address {
    word & LOW_48
}

/// A record's words in the log's memory.
///
/// Reading while somebody updates the record in place gives a mixture; callers detect that by the bucket's
/// sequence (see `hash_index`) or only read records of closed versions.
#[derive(Clone, Copy)]
pub(crate) struct RecordView<'a> {
    words: &'a [AtomicU64],
    shape: Shape,
}

impl<'a> RecordView<'a> {
    /// The record at the start of `words`, which reach to the end of its segment.
    #[inline]
    pub(crate) fn at(words: &'a [AtomicU64]) -> Option<RecordView<'a>> {
        let shape = Shape::parse(words.first()?.load(Ordering::Acquire))?;
        (shape.words() <= words.len()).then(|| RecordView { words: &words[..shape.words()], shape })
    }

    /// The put of this key at the start of `words`, if that is what is there: as [`Self::at`] and [`Self::is`], in fewer
    /// instructions. All that is known of its header is compared at once.
    #[inline(always)]
    pub(crate) fn put_of(words: &'a [AtomicU64], object: u32, key: &[u8]) -> Option<RecordView<'a>> {
        let expected = Shape { kind: Kind::Put, object, key_bytes: key.len(), value_bytes: 0 };
        let value_bytes = words.first()?.load(Ordering::Acquire) ^ expected.word();
        if value_bytes > VALUE_BYTES_MAX as u64 {
            return None;
        }
        let shape = Shape { value_bytes: value_bytes as usize, ..expected };
        let view = RecordView { words: words.get(..shape.words())?, shape };
        view.key_equals(key).then_some(view)
    }

    #[inline]
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    #[inline]
    pub(crate) fn version(&self) -> u64 {
        version_of(self.words[1].load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn previous(&self) -> Address {
        previous_of(self.words[2].load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn is(&self, object: u32, key: &[u8]) -> bool {
        (self.shape.object, self.shape.key_bytes) == (object, key.len()) && self.key_equals(key)
    }

    #[inline(always)]
    fn key_equals(&self, key: &[u8]) -> bool {
        let (chunks, rest) = key.as_chunks::<8>();
        if let ([chunk], []) = (chunks, rest) {
            return self.words[HEADER_WORDS].load(Ordering::Relaxed) == u64::from_le_bytes(*chunk);
        }
        let (whole, last) = self.words[HEADER_WORDS..][..self.shape.key_words()].split_at(chunks.len());
        // No branch on what is compared: it would be on what has just been fetched.
        let mut difference = 0;
        for (word, chunk) in whole.iter().zip(chunks) {
            difference |= word.load(Ordering::Relaxed) ^ u64::from_le_bytes(*chunk);
        }
        if let [word] = last {
            difference |= word.load(Ordering::Relaxed) ^ partial_word(rest);
        }
        difference == 0
    }

    /// Makes `out` the value's bytes. The key's length, which the caller knows, tells where they are: so the processor
    /// can fetch them while it still waits for the record's header.
    #[inline(always)]
    pub(crate) fn value_into(&self, key_bytes: usize, out: &mut Vec<u8>) {
        debug_assert_eq!(key_bytes, self.shape.key_bytes);
        let expiry_bytes = self.shape.expiry_bytes();
        let start = HEADER_WORDS + key_bytes.div_ceil(8) + expiry_bytes / 8;
        read_bytes(&self.words[start..], self.shape.value_bytes - expiry_bytes, out);
    }

    /// How long the value is.
    #[inline]
    pub(crate) fn value_bytes(&self) -> usize {
        self.shape.value_bytes - self.shape.expiry_bytes()
    }

    /// When the row expires, if it does.
    #[inline]
    pub(crate) fn expires_at(&self) -> u64 {
        match self.shape.kind {
            Kind::Expiring => self.words[HEADER_WORDS + self.shape.key_words()].load(Ordering::Relaxed),
            _ => NEVER,
        }
    }

    /// Copies the value into `out`, which is as long as it. As for [`Self::value_into`].
    #[inline(always)]
    pub(crate) fn copy_value(&self, key_bytes: usize, out: &mut [u8]) {
        debug_assert_eq!((key_bytes, out.len()), (self.shape.key_bytes, self.shape.value_bytes));
        copy_bytes(&self.words[HEADER_WORDS + key_bytes.div_ceil(8)..], out);
    }

    /// Makes `out` the key's bytes.
    pub(crate) fn key_into(&self, out: &mut Vec<u8>) {
        read_bytes(&self.words[HEADER_WORDS..], self.shape.key_bytes, out);
    }
}

/// Writes a whole record into fresh log memory. Nobody can see it until its address is published.
#[inline(always)]
pub(crate) fn write(
    words: &[AtomicU64],
    shape: Shape,
    version: u64,
    previous: Address,
    key: &[u8],
    (value, expires_at): (&[u8], u64),
) {
    debug_assert!(version <= LOW_48 && previous <= LOW_48);
    words[1].store(version, Ordering::Relaxed);
    words[2].store(previous, Ordering::Relaxed);
    write_bytes(&words[HEADER_WORDS..], key);
    write_value(words, shape, value, expires_at);
    words[0].store(shape.word(), Ordering::Release);
}

/// Overwrites a record's kind and value in place. The new value fills as many words as the old one, and the caller holds the
/// key's bucket lock.
#[inline(always)]
pub(crate) fn replace(words: &[AtomicU64], shape: Shape, value: &[u8], expires_at: u64) {
    debug_assert!(
        RecordView::at(words).is_some_and(|old| {
            (old.shape.words(), old.shape.key_bytes) == (shape.words(), shape.key_bytes)
        })
    );
    words[0].store(shape.word(), Ordering::Relaxed);
    write_value(words, shape, value, expires_at);
}

#[inline(always)]
fn write_value(words: &[AtomicU64], shape: Shape, value: &[u8], expires_at: u64) {
    let mut start = HEADER_WORDS + shape.key_words();
    if shape.kind == Kind::Expiring {
        words[start].store(expires_at, Ordering::Relaxed);
        start += 1;
    }
    write_bytes(&words[start..], value);
}

#[inline(always)]
fn write_bytes(words: &[AtomicU64], bytes: &[u8]) {
    let (chunks, rest) = bytes.as_chunks::<8>();
    // One word, as many keys and values have, without the loop: of that the compiler makes what is good for long ones.
    if let ([chunk], []) = (chunks, rest) {
        words[0].store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
        return;
    }
    let (whole, last) = words.split_at(chunks.len());
    for (word, chunk) in whole.iter().zip(chunks) {
        word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        last[0].store(partial_word(rest), Ordering::Relaxed);
    }
}

/// Makes `out` the first `count` bytes of the words. What it held before is overwritten and not cleared, which costs nothing if
/// it was as long.
#[inline(always)]
fn read_bytes(words: &[AtomicU64], count: usize, out: &mut Vec<u8>) {
    if out.len() != count {
        out.resize(count, 0);
    }
    copy_bytes(words, out);
}

/// Copies the first bytes of the words.
#[inline(always)]
fn copy_bytes(words: &[AtomicU64], out: &mut [u8]) {
    let (chunks, rest) = out.as_chunks_mut::<8>();
    let (whole, last) = words.split_at(chunks.len());
    for (chunk, word) in chunks.iter_mut().zip(whole) {
        *chunk = word.load(Ordering::Relaxed).to_le_bytes();
    }
    if !rest.is_empty() {
        copy_partial_word(last[0].load(Ordering::Relaxed), rest);
    }
}

/// The first bytes of a word; the opposite of [`partial_word`].
#[inline]
fn copy_partial_word(word: u64, out: &mut [u8]) {
    debug_assert!(out.len() < 8);
    if out.len() < 4 {
        out.iter_mut().zip(word.to_le_bytes()).for_each(|(out, byte)| *out = byte);
        return;
    }
    let last_at = out.len() - 4;
    out[..4].copy_from_slice(&(word as u32).to_le_bytes());
    out[last_at..].copy_from_slice(&((word >> (8 * last_at)) as u32).to_le_bytes());
}

/// The word that begins with fewer bytes than it has, and ends with zeros.
///
/// Never put together in memory: to read back as a word what was just written as bytes, the processor waits until all that was written
/// before has reached the cache. In a record at the log's tail that is the record, whose lines have to be fetched first.
#[inline]
fn partial_word(rest: &[u8]) -> u64 {
    debug_assert!(rest.len() < 8);
    if let (Some(first), Some(last)) = (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
        // They say the same where they overlap.
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        return u64::from(first) | u64::from(last) << (8 * (rest.len() - 4));
    }
    rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// A record copied out of the log: what a read from disk returns and a scan yields.
#[derive(Clone, Debug)]
pub(crate) struct OwnedRecord {
    pub(crate) shape: Shape,
    pub(crate) version: u64,
    pub(crate) previous: Address,
    bytes: Vec<u8>,
}

impl OwnedRecord {
    /// Checks and takes over the record at `address` whose bytes begin `bytes`; `Err` says what is wrong.
    pub(crate) fn parse(address: Address, bytes: &[u8]) -> Result<OwnedRecord, &'static str> {
        DiskRecord::parse(address, bytes).map(|record| OwnedRecord::from_disk(&record))
    }

    /// A copy of a record that was checked.
    pub(crate) fn from_disk(record: &DiskRecord<'_>) -> OwnedRecord {
        let mut bytes = vec![0; record.shape.bytes() as usize];
        let mut value_start = HEADER_BYTES + record.shape.key_words() * 8;
        bytes[HEADER_BYTES..HEADER_BYTES + record.key.len()].copy_from_slice(record.key);
        if record.shape.kind == Kind::Expiring {
            bytes[value_start..][..EXPIRY_BYTES].copy_from_slice(&record.expires_at.to_le_bytes());
            value_start += EXPIRY_BYTES;
        }
        bytes[value_start..value_start + record.value.len()].copy_from_slice(record.value);
        OwnedRecord { shape: record.shape, version: record.version, previous: record.previous, bytes }
    }

    pub(crate) fn as_disk_record(&self) -> DiskRecord<'_> {
        DiskRecord {
            shape: self.shape,
            version: self.version,
            previous: self.previous,
            key: self.key(),
            value: self.value(),
            expires_at: self.expires_at(),
        }
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..HEADER_BYTES + self.shape.key_bytes]
    }

    pub(crate) fn value(&self) -> &[u8] {
        split_expiry(self.shape, self.stored_value()).1
    }

    /// When the row expires, if it does.
    pub(crate) fn expires_at(&self) -> u64 {
        split_expiry(self.shape, self.stored_value()).0
    }

    fn stored_value(&self) -> &[u8] {
        let start = HEADER_BYTES + self.shape.key_words() * 8;
        &self.bytes[start..start + self.shape.value_bytes]
    }
}

/// A checked record in bytes read from disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskRecord<'a> {
    pub(crate) shape: Shape,
    pub(crate) version: u64,
    pub(crate) previous: Address,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    /// When the row expires, if it does.
    pub(crate) expires_at: u64,
}

/// Takes what is stored as a record's value apart: when it expires, and the value.
pub(crate) fn split_expiry(shape: Shape, stored: &[u8]) -> (u64, &[u8]) {
    match stored.split_first_chunk().filter(|_| shape.kind == Kind::Expiring) {
        Some((expires_at, value)) => (u64::from_le_bytes(*expires_at), value),
        None => (NEVER, stored),
    }
}

impl<'a> DiskRecord<'a> {
    /// Checks the record at `address` that begins `bytes`; `Err` says what is wrong with it.
    pub(crate) fn parse(address: Address, bytes: &'a [u8]) -> Result<DiskRecord<'a>, &'static str> {
        let word = |index: usize| -> Option<u64> {
            Some(u64::from_le_bytes(*bytes.get(index * 8..)?.first_chunk::<8>()?))
        };
        let (Some(word0), Some(word1), Some(word2)) = (word(0), word(1), word(2)) else {
            return Err("a record's header is cut short");
        };
        let shape = Shape::parse(word0).ok_or("this is not the beginning of a record")?;
        let record =
            bytes.get(..shape.bytes() as usize).ok_or("a record is longer than the space it is in")?;
        let stored = (word1 >> 48 << 16 | word2 >> 48) as u32;
        // The checksum's bits are zero in what was summed; so it is summed in one piece up to the key.
        let mut header = [0u8; 8 + HEADER_BYTES];
        header[..8].copy_from_slice(&address.to_le_bytes());
        header[8..16].copy_from_slice(&word0.to_le_bytes());
        header[16..24].copy_from_slice(&(word1 & LOW_48).to_le_bytes());
        header[24..].copy_from_slice(&(word2 & LOW_48).to_le_bytes());
        if crc32c::crc32c_append(crc32c::crc32c(&header), &record[HEADER_BYTES..]) != stored {
            return Err("a record's checksum does not match its bytes");
        }
        let (key, value) = record[HEADER_BYTES..].split_at(shape.key_words() * 8);
        let ((key, key_rest), (value, value_rest)) =
            (key.split_at(shape.key_bytes), value.split_at(shape.value_bytes));
        // In memory keys are compared by whole words.
        if key_rest.iter().chain(value_rest).any(|&byte| byte != 0) {
            return Err("a record is not filled up with zeros");
        }
        // So every walk along previous addresses ends.
        let previous = previous_of(word2);
        if previous >= address || !previous.is_multiple_of(8) {
            return Err("a record's previous address is not before it");
        }
        let (expires_at, value) = split_expiry(shape, value);
        if shape.kind == Kind::Expiring && expires_at == NEVER {
            return Err("a record that expires does not say when");
        }
        Ok(DiskRecord { shape, version: version_of(word1), previous, key, value, expires_at })
    }
}

/// As many bytes as a small record has: what is fetched of one that is to be read.
pub(crate) const RECORD_BYTES_USUAL: usize = 136;

/// How many bytes of a record tell whether it is this key's, and its version: what is fetched of one that is to be replaced. Of a long key its beginning.
#[inline]
pub(crate) fn identity_bytes(key: &[u8]) -> usize {
    (HEADER_BYTES + key.len()).min(RECORD_BYTES_USUAL)
}

/// Fills in the checksum of the record at `address` that begins at `start` in `bytes` (a copy out of the log's memory).
/// Returns its shape; `None` if no record begins there, or what is before it has no room for an address.
///
/// The address is summed with the record in one call, since calls are most of what it takes to sum a short one: it is put before
/// the record meanwhile.
#[inline]
pub(crate) fn finish(address: Address, bytes: &mut [u8], start: usize) -> Option<Shape> {
    const ADDRESS_BYTES: usize = size_of::<Address>();
    let shape = Shape::parse(u64::from_le_bytes(*bytes.get(start..)?.first_chunk::<8>()?))?;
    let end = start.checked_add(shape.bytes() as usize)?;
    let summed = bytes.get_mut(start.checked_sub(ADDRESS_BYTES)?..end)?;
    let (before, record) = summed.split_first_chunk_mut::<ADDRESS_BYTES>()?;
    let kept = std::mem::replace(before, address.to_le_bytes());
    // Written as whole words, as which they are read back at once.
    let [_, word1, word2] = record.as_chunks_mut::<8>().0.first_chunk_mut::<3>()?;
    let (version, previous) = (u64::from_le_bytes(*word1) & LOW_48, u64::from_le_bytes(*word2) & LOW_48);
    (*word1, *word2) = (version.to_le_bytes(), previous.to_le_bytes());
    let checksum = u64::from(crc32c::crc32c(summed));
    let (before, record) = summed.split_first_chunk_mut::<ADDRESS_BYTES>()?;
    *before = kept;
    let [_, word1, word2] = record.as_chunks_mut::<8>().0.first_chunk_mut::<3>()?;
    *word1 = (version | checksum >> 16 << 48).to_le_bytes();
    *word2 = (previous | checksum << 48).to_le_bytes();
    Some(shape)
}
