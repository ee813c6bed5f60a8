//! What a command works with: one transaction, the keyspace, and the reply.
//!
//! A command first *loads* the keys it needs and checks everything, and only then writes. So a command that
//! fails has changed nothing, which lets the others of an `EXEC` go on as they do in Redis.

use std::ops::Range;
use std::time::Instant;

use kiln::{Expiry, Transaction};

use crate::ahead::GROUP_REQUESTS;
use crate::buffers::KEPT_BYTES_MAX;
use crate::failure::Failure;
use crate::keyspace::{Keyspace, Space};
use crate::limits::{COMMAND_TIME_MAX, VALUE_BYTES_MAX};
use crate::protocol::reply::Reply;

/// Buffers that commands reuse.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The value read last.
    pub(crate) value: Vec<u8>,
    /// The bytes of the values that commands have loaded since the batch began.
    pub(crate) loaded_bytes: usize,
    /// Whether the command has looked at a key, and its reply may depend on what it saw.
    pub(crate) has_looked: bool,
}

impl Scratch {
    /// Gives back what a long value has taken: the next one may be long in coming.
    pub(crate) fn shrink(&mut self) {
        if self.value.capacity() > KEPT_BYTES_MAX {
            self.value = Vec::new();
        }
    }
}

/// Milliseconds since 1970, the unit of expiry times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnixMs(pub(crate) u64);

/// A command's view of the database.
pub(crate) struct Work<'a, 'db> {
    pub(crate) tx: &'a Transaction<'db>,
    pub(crate) keyspace: &'a Keyspace,
    /// The objects that the command sees; they change within a transaction that flushes.
    pub(crate) space: &'a Space,
    /// Empty ones for the flushes of this transaction.
    pub(crate) vacant: std::slice::Iter<'a, Space>,
    pub(crate) reply: &'a mut Reply,
    pub(crate) scratch: &'a mut Scratch,
    /// Whether anything was written.
    pub(crate) changed: bool,
}

/// A key as a command found it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'k> {
    key: &'k [u8],
    /// Whether the key is there.
    pub(crate) live: bool,
    /// When it expires, if it is there and ever does.
    pub(crate) expires_at: Option<UnixMs>,
}

impl<'k> Entry<'k> {
    fn new(key: &'k [u8], expiry: Option<Expiry>) -> Self {
        let expires_at = match expiry {
            Some(Expiry::At(at)) => Some(UnixMs(at)),
            _ => None,
        };
        Self { key, live: expiry.is_some(), expires_at }
    }

    /// When it expires from now on.
    fn expiry(&self, lifetime: Lifetime) -> Expiry {
        let until = match lifetime {
            Lifetime::Forever => None,
            Lifetime::Kept => self.expires_at,
            Lifetime::Until(at) => Some(at),
        };
        until.map_or(Expiry::Never, |at| Expiry::At(at.0))
    }
}

/// How long a key that is written is to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    Forever,
    /// As long as before.
    Kept,
    Until(UnixMs),
}

impl Work<'_, '_> {
    /// The time as of which keys have expired, or not: the same for all of a transaction, or later.
    pub(crate) fn now(&self) -> Result<UnixMs, Failure> {
        Ok(UnixMs(self.tx.time_ms()?))
    }

    /// Does something for each of a command's keys, in their order: their cache misses overlap, and their reads from disk.
    pub(crate) fn for_each_key<'k>(
        &mut self,
        mut keys: impl Iterator<Item = &'k [u8]>,
        mut each: impl FnMut(&mut Self, &'k [u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (began, mut buffer) = (Instant::now(), [&[][..]; GROUP_REQUESTS]);
        loop {
            if began.elapsed() > COMMAND_TIME_MAX {
                return Err(Failure::Limit("LIMIT the command takes longer than 10 s; give it fewer keys"));
            }
            let mut count = 0;
            for (slot, key) in buffer.iter_mut().zip(&mut keys) {
                *slot = key;
                count += 1;
            }
            let group = &buffer[..count];
            // Alone it has nothing to overlap with.
            match count {
                0 => return Ok(()),
                1 => {}
                _ => self.tx.prefetch(&self.space.strings, group),
            }
            group.iter().try_for_each(|key| each(self, key))?;
        }
    }

    /// Finds a key and reads its string, which is in the scratch buffer until the next call.
    pub(crate) fn load<'k>(&mut self, key: &'k [u8]) -> Result<Entry<'k>, Failure> {
        self.scratch.has_looked = true;
        let expiry = self.tx.get_with_expiry(&self.space.strings, key, &mut self.scratch.value)?;
        self.scratch.loaded_bytes += self.scratch.value.len();
        Ok(Entry::new(key, expiry))
    }

    /// Finds a key whose string does not matter.
    pub(crate) fn find<'k>(&mut self, key: &'k [u8]) -> Result<Entry<'k>, Failure> {
        self.scratch.has_looked = true;
        Ok(Entry::new(key, self.tx.expiry(&self.space.strings, key)?))
    }

    /// How long a key's string is; 0 if there is none.
    pub(crate) fn length(&mut self, key: &[u8]) -> Result<usize, Failure> {
        self.scratch.has_looked = true;
        let length = self.tx.value_bytes(&self.space.strings, key)?.unwrap_or(0);
        // All of it is read if it is on disk.
        self.scratch.loaded_bytes += length;
        Ok(length)
    }

    /// The string of the entry loaded last.
    pub(crate) fn string(&self, entry: &Entry<'_>) -> &[u8] {
        if entry.live { &self.scratch.value } else { b"" }
    }

    /// Replies with the string of the entry loaded last, or with null.
    pub(crate) fn reply_string(&mut self, entry: &Entry<'_>) {
        if entry.live { self.reply.bulk(&self.scratch.value) } else { self.reply.null() }
    }

    /// Writes a key.
    pub(crate) fn store(
        &mut self,
        entry: &Entry<'_>,
        lifetime: Lifetime,
        string: &[u8],
    ) -> Result<(), Failure> {
        self.tx.put_expiring(&self.space.strings, entry.key, string, entry.expiry(lifetime))?;
        self.changed = true;
        Ok(())
    }

    /// Writes the entry loaded last under another key, too, for as long as it lives.
    pub(crate) fn copy(&mut self, entry: &Entry<'_>, key: &[u8]) -> Result<(), Failure> {
        let expiry = entry.expiry(Lifetime::Kept);
        self.tx.put_expiring(&self.space.strings, key, &self.scratch.value, expiry)?;
        self.changed = true;
        Ok(())
    }

    /// Replies with a part of the string of the entry loaded last.
    pub(crate) fn reply_part(&mut self, entry: &Entry<'_>, range: Range<usize>) {
        let string: &[u8] = if entry.live { &self.scratch.value } else { b"" };
        self.reply.bulk(&string[range]);
    }

    /// Writes a part of the entry loaded last, with zeros up to it where there is nothing, and returns the new length.
    pub(crate) fn overwrite(
        &mut self,
        entry: &Entry<'_>,
        offset: usize,
        part: &[u8],
    ) -> Result<usize, Failure> {
        let end = offset.checked_add(part.len()).filter(|end| *end <= VALUE_BYTES_MAX);
        let end = end.ok_or(Failure::text("ERR string exceeds maximum allowed size (16777216 bytes)"))?;
        let string = &mut self.scratch.value;
        if !entry.live {
            string.clear();
        }
        // As much work as if it had been there.
        self.scratch.loaded_bytes += offset.saturating_sub(string.len());
        string.resize(end.max(string.len()), 0);
        string[offset..end].copy_from_slice(part);
        let expiry = entry.expiry(Lifetime::Kept);
        self.tx.put_expiring(&self.space.strings, entry.key, &string[..], expiry)?;
        self.changed = true;
        Ok(string.len())
    }

    /// Changes when a key expires that is there.
    pub(crate) fn set_lifetime(&mut self, entry: &Entry<'_>, lifetime: Lifetime) -> Result<(), Failure> {
        // The engine writes the value anew.
        self.length(entry.key)?;
        self.tx.set_expiry(&self.space.strings, entry.key, entry.expiry(lifetime))?;
        self.changed = true;
        Ok(())
    }

    /// Deletes a key, and says whether it was there.
    pub(crate) fn remove(&mut self, entry: &Entry<'_>) -> Result<bool, Failure> {
        if entry.live {
            self.tx.delete(&self.space.strings, entry.key)?;
            self.changed = true;
        }
        Ok(entry.live)
    }
}
