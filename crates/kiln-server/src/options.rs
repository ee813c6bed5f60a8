//! What a server can be told when it starts.

use std::path::PathBuf;

use crate::client::Durability;

/// Options of a [`Server`](crate::Server).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// When a new connection's writes are acknowledged. Default: [`Durability::Safe`], the choice that never
    /// loses an acknowledged write. A connection changes its own with `KILN DURABILITY`.
    pub durability: Durability,
    /// How many connections may be open at once. Default: 10,000. One more is told so and closed. An idle
    /// connection costs about 2 KiB, so the operating system's limit of open files is usually lower.
    pub connections_max: usize,
    /// How many bytes of memory requests that have begun, queued commands, watched keys and unread replies of all connections may take together, beside up to 320 KiB of
    /// each that every connection may have. Buffers can be a few times as large as what is in them, which is what counts. Default: 1 GiB. A request that would take more, itself or by its reply, gets a `LIMIT` error, and the connection lives on. While more
    /// than half is taken a connection that holds some of it, and neither reads nor sends anything for a minute, is cut off.
    pub client_memory_max: usize,
    /// Where `KILN BACKUP name` makes directories with backups. Default: nowhere, and it is refused: clients must not choose
    /// where the server writes.
    pub backups: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            connections_max: 10_000,
            client_memory_max: 1 << 30,
            backups: None,
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`Self::durability`].
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets [`Self::connections_max`].
    #[must_use]
    pub fn connections_max(mut self, count: usize) -> Self {
        self.connections_max = count;
        self
    }

    /// Sets [`Self::client_memory_max`].
    #[must_use]
    pub fn client_memory_max(mut self, bytes: usize) -> Self {
        self.client_memory_max = bytes;
        self
    }

    /// Sets [`Self::backups`].
    #[must_use]
    pub fn backups(mut self, directory: impl Into<PathBuf>) -> Self {
        self.backups = Some(directory.into());
        self
    }
}
