//! What a command works with: one transaction, the keyspace, and the reply.
//!
//! A command first *loads* the keys it needs and checks everything, and only then writes. So a command that
//! fails has changed nothing, which lets the others of an `EXEC` go on as they do in Redis.

use kiln::Transaction;

use crate::clock::UnixMs;
use crate::expiry::Expiry;
use crate::failure::Failure;
use crate::keyspace::{Keyspace, Space};
use crate::limits::VALUE_BYTES_MAX;
use crate::protocol::reply::Reply;

/// Buffers that commands reuse.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The value read last.
    pub(crate) value: Vec<u8>,
    /// The lifetime read last.
    pub(crate) lifetime: Vec<u8>,
}

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
    /// The time at which the batch of commands began; the same for all of a transaction.
    pub(crate) now: UnixMs,
    /// Whether anything was written.
    pub(crate) changed: bool,
}

/// A key as a command found it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'k> {
    key: &'k [u8],
    /// Whether the engine has the key, be it expired or not.
    stored: bool,
    /// Whether the key is there for the client.
    pub(crate) live: bool,
    expiry: Option<Expiry>,
}

impl Entry<'_> {
    /// When the key expires, if it is there and ever does.
    pub(crate) fn expires_at(&self) -> Option<UnixMs> {
        self.expiry.filter(|_| self.live).map(|expiry| expiry.at)
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
    /// Finds a key and reads its string, which is in the scratch buffer until the next call.
    pub(crate) fn load<'k>(&mut self, key: &'k [u8]) -> Result<Entry<'k>, Failure> {
        let stored = self.tx.get_into(&self.space.strings, key, &mut self.scratch.value)?;
        self.entry(key, stored)
    }

    /// Finds a key whose string does not matter.
    pub(crate) fn find<'k>(&mut self, key: &'k [u8]) -> Result<Entry<'k>, Failure> {
        let stored = self.tx.contains(&self.space.strings, key)?;
        self.entry(key, stored)
    }

    fn entry<'k>(&mut self, key: &'k [u8], stored: bool) -> Result<Entry<'k>, Failure> {
        let mut expiry = None;
        if stored && self.space.has_lifetimes {
            let buffer = &mut self.scratch.lifetime;
            if self.tx.get_into(&self.space.lifetimes, key, buffer)? {
                expiry = Some(Expiry::decode(buffer).ok_or(FOREIGN)?);
            }
        }
        let live = stored && expiry.is_none_or(|expiry| !expiry.is_over(self.now));
        Ok(Entry { key, stored, live, expiry })
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
        self.tx.put(&self.space.strings, entry.key, string)?;
        self.changed = true;
        self.set_lifetime(entry, lifetime)
    }

    /// Appends to the entry loaded last and returns the new length.
    pub(crate) fn append(&mut self, entry: &Entry<'_>, suffix: &[u8]) -> Result<usize, Failure> {
        if self.string(entry).len() + suffix.len() > VALUE_BYTES_MAX {
            return Err(Failure::text("ERR string exceeds maximum allowed size (16777216 bytes)"));
        }
        if !entry.live {
            self.scratch.value.clear();
        }
        self.scratch.value.extend_from_slice(suffix);
        self.tx.put(&self.space.strings, entry.key, &self.scratch.value)?;
        self.changed = true;
        self.set_lifetime(entry, Lifetime::Kept)?;
        Ok(self.scratch.value.len())
    }

    /// Changes when a key expires.
    pub(crate) fn set_lifetime(&mut self, entry: &Entry<'_>, lifetime: Lifetime) -> Result<(), Failure> {
        let expiry = match lifetime {
            Lifetime::Forever => None,
            Lifetime::Kept => entry.expiry.filter(|_| entry.live),
            Lifetime::Until(at) => Some(Expiry { at, nonce: self.keyspace.nonce() }),
        };
        if entry.expiry == expiry {
            return Ok(());
        }
        let Space { lifetimes, expiries, has_lifetimes, .. } = self.space;
        assert!(*has_lifetimes, "whoever runs a command that sets a lifetime announces it to the keyspace");
        self.changed = true;
        if let Some(old) = entry.expiry {
            self.tx.delete(expiries, old.encode())?;
        }
        match expiry {
            None => self.tx.delete(lifetimes, entry.key).map(drop)?,
            Some(new) => {
                self.tx.put(lifetimes, entry.key, new.encode())?;
                self.tx.put(expiries, new.encode(), entry.key)?;
            }
        }
        Ok(())
    }

    /// Deletes a key, and says whether it was there for the client.
    pub(crate) fn remove(&mut self, entry: &Entry<'_>) -> Result<bool, Failure> {
        if entry.stored {
            self.set_lifetime(entry, Lifetime::Forever)?;
            self.tx.delete(&self.space.strings, entry.key)?;
            self.changed = true;
        }
        Ok(entry.live)
    }
}

/// The object `lifetimes` was written by somebody else.
pub(crate) const FOREIGN: Failure =
    Failure::text("ERR a lifetime was not written by the server; is the object 'lifetimes' used directly?");
