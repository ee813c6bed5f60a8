//! What clients make the server hold, all together.
//!
//! Each connection may hold a request that has begun, what it has queued and watches, and replies that it does not read, each up to a
//! limit ([`limits`](crate::limits)). A little of each ([`FREE_BYTES`]) is everybody's. The rest of all of them is counted here, before it is there or as it
//! grows; where there would be too much of it the request is refused, and whatever is small is served as ever. Who holds some of it and does nothing for long is
//! cut off where more than half is taken ([`unless_stalled`]).

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::limits::{BATCH_REPLY_BYTES, READ_BYTES};

/// So much of each is not counted: nobody writes what all share for requests and replies as most are. A small reply behind as many as a batch has is one of them.
const FREE_BYTES: usize = BATCH_REPLY_BYTES + READ_BYTES;
/// It is taken in pieces of so much.
const PIECE_BYTES: usize = 256 * 1024;

/// So long a client may do nothing.
pub(crate) const STALLED_AFTER: Duration = Duration::from_secs(60);

/// The memory of all clients.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    bytes_max: usize,
    bytes: AtomicUsize,
}

impl ClientMemory {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: AtomicUsize::new(0) }
    }

    /// How much of it they hold.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether so little is left that whoever holds much, and does nothing, must not go on holding it.
    pub(crate) fn is_scarce(&self) -> bool {
        self.bytes() > self.bytes_max / 2
    }

    fn take(&self, bytes: usize) -> bool {
        let taken = |before: usize| before.checked_add(bytes).filter(|after| *after <= self.bytes_max);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }
}

/// What is held somewhere, as it is counted; given back when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// Without it nothing is counted.
    memory: Option<Arc<ClientMemory>>,
    bytes: usize,
}

impl Share {
    pub(crate) fn of(memory: &Arc<ClientMemory>) -> Self {
        Self { memory: Some(Arc::clone(memory)), bytes: 0 }
    }

    /// Counts with this memory from now on, as nothing.
    pub(crate) fn move_to(&mut self, memory: &Arc<ClientMemory>) {
        if !self.memory.as_ref().is_some_and(|own| Arc::ptr_eq(own, memory)) {
            *self = Self::of(memory);
        }
    }

    /// One beside it, for something else.
    pub(crate) fn beside(&self) -> Self {
        Self { memory: self.memory.clone(), bytes: 0 }
    }

    /// So much is held now. `false`: it must not be, and counts as what it was before.
    #[must_use]
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let bytes = bytes.saturating_sub(FREE_BYTES).next_multiple_of(PIECE_BYTES);
        let Some(memory) = self.memory.as_ref().filter(|_| bytes != self.bytes) else { return true };
        if bytes > self.bytes && !memory.take(bytes - self.bytes) {
            return false;
        }
        memory.bytes.fetch_sub(self.bytes.saturating_sub(bytes), Ordering::Relaxed);
        self.bytes = bytes;
        true
    }

    /// Whether it is so much that it counts.
    pub(crate) fn counts(&self) -> bool {
        self.bytes > 0
    }

    /// Nothing is held any more.
    pub(crate) fn clear(&mut self) {
        let is_less = self.set(0);
        debug_assert!(is_less);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Waits for a client that holds what counts.
///
/// # Errors
/// `TimedOut` if it has done nothing for `after`, and there is little memory left for others.
pub(crate) async fn unless_stalled<T>(
    memory: &ClientMemory,
    after: Duration,
    acts: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let mut acts = pin!(acts);
    loop {
        match tokio::time::timeout(after, acts.as_mut()).await {
            Ok(acted) => return acted,
            Err(_) if memory.is_scarce() => {
                tracing::warn!("a connection that held much memory and did nothing was cut off");
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(_) => {}
        }
    }
}

/// Writes all of a reply that counts.
///
/// # Errors
/// As [`unless_stalled`], if none of it was taken.
pub(crate) async fn write_unless_stalled(
    memory: &ClientMemory,
    after: Duration,
    stream: &mut (impl AsyncWrite + Unpin),
    mut bytes: &[u8],
) -> io::Result<()> {
    while !bytes.is_empty() {
        match unless_stalled(memory, after, stream.write(bytes)).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn who_takes_nothing_of_a_reply_is_cut_off_where_memory_is_scarce() {
        const AFTER: Duration = Duration::from_millis(20);
        let memory = Arc::new(ClientMemory::new(10 << 20));
        let mut share = Share::of(&memory);
        let (mut server, mut client) = tokio::io::duplex(16);
        assert!(share.set(4 << 20));
        let write = async |server: &mut _| write_unless_stalled(&memory, AFTER, server, &[7; 100]).await;
        let later = async |client: &mut tokio::io::DuplexStream| {
            tokio::time::sleep(3 * AFTER).await;
            client.read_exact(&mut [0; 100]).await.unwrap();
        };
        let (written, ()) = tokio::join!(write(&mut server), later(&mut client));
        written.expect("there is room for others");
        assert!(share.set(6 << 20));
        assert_eq!(write(&mut server).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn what_is_held_is_counted_and_no_more_than_there_is() {
        const MIB: usize = 1 << 20;
        let memory = Arc::new(ClientMemory::new(10 * MIB));
        let (mut one, mut other) = (Share::of(&memory), Share::of(&memory));
        assert!(one.set(FREE_BYTES) && memory.bytes() == 0, "what everybody has is not counted");
        assert!(one.set(FREE_BYTES + 1) && memory.bytes() == PIECE_BYTES);
        assert!(one.set(8 * MIB) && !other.set(4 * MIB));
        assert!(memory.bytes() <= 8 * MIB);
        assert!(other.set(2 * MIB) && !one.set(11 * MIB) && !one.set(usize::MAX / 2));
        assert!(one.set(MIB) && other.set(4 * MIB), "one holds less now");
        drop(one);
        assert!(other.set(10 * MIB) && !other.beside().set(2 * MIB));
        other.move_to(&Arc::new(ClientMemory::new(0)));
        assert_eq!(memory.bytes(), 0);
        assert!(!other.set(2 * MIB) && other.set(100));
    }
}
