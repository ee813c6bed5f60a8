//! The outbound half of RESP: replies are written one after the other into one buffer.

use std::sync::Arc;

use crate::limits::BATCH_REPLY_BYTES;
use crate::memory::{ClientMemory, Share};

/// Which version of the protocol a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Protocol {
    /// The default until `HELLO 3`.
    #[default]
    Resp2,
    /// Maps, nulls and doubles as types of their own.
    Resp3,
}

impl Protocol {
    /// The number that `HELLO` takes and returns.
    pub(crate) fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// The replies of a batch of commands, ready for the socket.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    buffer: Vec<u8>,
    protocol: Protocol,
    share: Share,
}

impl Reply {
    /// Counts what it holds from now on with what all clients do.
    pub(crate) fn count_in(&mut self, memory: &Arc<ClientMemory>) {
        self.share.move_to(memory);
    }

    /// Whether all clients together may hold what is written here. Asked after each command, and during long ones; if they may not it is taken back.
    pub(crate) fn has_room(&mut self) -> bool {
        self.share.set(self.buffer.len())
    }

    /// Whether it holds so much that it counts.
    pub(crate) fn counts(&self) -> bool {
        self.share.counts()
    }

    /// Another one, in the same protocol.
    pub(crate) fn beside(&self) -> Self {
        Self { buffer: Vec::new(), protocol: self.protocol, share: self.share.beside() }
    }

    pub(crate) fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    pub(crate) fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    pub(crate) fn clear(&mut self) {
        self.buffer.clear();
        self.fit();
        self.share.clear();
    }

    /// Writes replies that were written elsewhere, in the same protocol.
    pub(crate) fn append(&mut self, replies: &Reply) {
        self.buffer.extend_from_slice(&replies.buffer);
    }

    /// Takes back everything written after the buffer had `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.buffer.truncate(len);
        self.fit();
    }

    /// Gives back what a long reply has taken, as it is counted no longer. What batches usually need is kept.
    fn fit(&mut self) {
        if self.buffer.capacity() / 2 > self.buffer.len().max(BATCH_REPLY_BYTES) {
            self.buffer.shrink_to_fit();
        }
    }

    /// Replaces what was written in each of some ranges, which are in order, by an error.
    pub(crate) fn replace_by_error(
        &mut self,
        ranges: impl Iterator<Item = std::ops::Range<usize>>,
        text: &str,
    ) {
        let old = std::mem::take(&mut self.buffer);
        let mut kept_from = 0;
        for range in ranges {
            self.buffer.extend_from_slice(&old[kept_from..range.start]);
            self.error(text);
            kept_from = range.end;
        }
        self.buffer.extend_from_slice(&old[kept_from..]);
    }

    pub(crate) fn ok(&mut self) {
        self.buffer.extend_from_slice(b"+OK\r\n");
    }

    /// A status that the server chose; it must hold no line end.
    pub(crate) fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']));
        self.buffer.push(b'+');
        self.buffer.extend_from_slice(text.as_bytes());
        self.line_end();
    }

    /// An error. Line ends in it, which may come from what the client sent, become spaces.
    pub(crate) fn error(&mut self, text: impl AsRef<[u8]>) {
        self.buffer.extend(error_line(text.as_ref()));
    }

    pub(crate) fn integer(&mut self, value: i64) {
        self.header(b':', value);
    }

    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.buffer.reserve(bytes.len() + 32);
        self.header(b'$', bytes.len() as i64);
        self.buffer.extend_from_slice(bytes);
        self.line_end();
    }

    /// Text for a person: in RESP3 a verbatim string, which clients show as it is.
    pub(crate) fn text(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.header(b'=', text.len() as i64 + 4);
                self.buffer.extend_from_slice(b"txt:");
                self.buffer.extend_from_slice(text.as_bytes());
                self.line_end();
            }
        }
    }

    pub(crate) fn null(&mut self) {
        self.buffer.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// The null that stands for an array, as an `EXEC` that did not run returns.
    pub(crate) fn null_array(&mut self) {
        self.buffer.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// The start of an array; its `count` elements follow.
    pub(crate) fn array(&mut self, count: usize) {
        self.header(b'*', count as i64);
    }

    /// The start of a set; its `count` elements follow.
    pub(crate) fn set(&mut self, count: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(count),
            Protocol::Resp3 => self.header(b'~', count as i64),
        }
    }

    /// The start of a map; `count` keys, each followed by its value, follow.
    pub(crate) fn map(&mut self, count: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', 2 * count as i64),
            Protocol::Resp3 => self.header(b'%', count as i64),
        }
    }

    fn header(&mut self, kind: u8, number: i64) {
        self.buffer.push(kind);
        self.buffer.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self.line_end();
    }

    fn line_end(&mut self) {
        self.buffer.extend_from_slice(b"\r\n");
    }
}

fn error_line(text: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let safe = text.iter().map(|byte| if matches!(*byte, b'\r' | b'\n') { b' ' } else { *byte });
    std::iter::once(b'-').chain(safe).chain(*b"\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that waited for durability behind a reply of 256 MiB kept its buffer, and nobody counted that.
    #[test]
    fn what_was_sent_or_taken_back_leaves_no_large_buffer() {
        let mut reply = Reply::default();
        reply.bulk(&vec![b'v'; 16 << 20]);
        reply.clear();
        assert!(reply.capacity() <= 2 * BATCH_REPLY_BYTES, "{} bytes", reply.capacity());
        reply.ok();
        reply.bulk(&vec![b'v'; 16 << 20]);
        reply.truncate(5);
        assert!(reply.capacity() <= 2 * BATCH_REPLY_BYTES, "{} bytes", reply.capacity());
        assert_eq!(reply.bytes(), b"+OK\r\n");
        // What batches usually need is not asked for anew each time.
        reply.bulk(&[b'v'; BATCH_REPLY_BYTES]);
        let before = reply.capacity();
        reply.clear();
        assert_eq!(reply.capacity(), before);
    }
}
