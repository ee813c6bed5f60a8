//! What the server knows about one connection: the part that only its task touches, and the card that others
//! may read.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

use kiln::planted::{Bug, planted};
use kiln::{Session, Version, Watch};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::commands::{Access, Command};
use crate::limits::REQUEST_BYTES_MAX;
use crate::memory::Share;
use crate::protocol::decoder::{Arguments, Span};
use crate::protocol::reply::Protocol;

/// When a connection's writes are acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// At the commit point: visible, isolated and atomic, and durable within the vulnerability window.
    Fast,
    /// When durable: a write that was acknowledged survives power loss.
    #[default]
    Safe,
}

impl Durability {
    /// The word for it in commands, options and `INFO`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Safe => "safe",
        }
    }

    /// The mode of that name, whatever its case.
    pub(crate) fn parse(name: &[u8]) -> Option<Self> {
        [Self::Fast, Self::Safe].into_iter().find(|mode| name.eq_ignore_ascii_case(mode.name().as_bytes()))
    }
}

/// The state of one connection.
pub(crate) struct Client {
    pub(crate) card: Arc<Card>,
    pub(crate) protocol: Protocol,
    pub(crate) durability: Durability,
    /// The version into which this connection's last write committed.
    pub(crate) last_version: Option<Version>,
    /// The session of `KILN SESSION`.
    pub(crate) session: Option<Session>,
    /// Set between `MULTI` and `EXEC`.
    pub(crate) queue: Option<Queue>,
    pub(crate) watches: Watches,
    /// The connections that `CLIENT KILL` is to end, by id: each is there once, however many such commands a transaction has.
    pub(crate) kills: BTreeMap<u64, Arc<Card>>,
    /// Set when the connection is to end once its replies are sent.
    pub(crate) ends: bool,
    /// What is queued and watched, as it is counted with what all clients hold.
    share: Share,
}

impl Client {
    pub(crate) fn new(card: Arc<Card>, durability: Durability, share: Share) -> Self {
        Self {
            card,
            protocol: Protocol::default(),
            durability,
            last_version: None,
            session: None,
            queue: None,
            watches: Watches::default(),
            kills: BTreeMap::new(),
            ends: false,
            share,
        }
    }

    /// Whether what is queued and watched is so much that it counts.
    pub(crate) fn holds_much(&self) -> bool {
        self.share.counts()
    }

    /// Whether all clients together may hold what is queued and watched here.
    pub(crate) fn has_room(&mut self) -> bool {
        self.share.set(self.queue.as_ref().map_or(0, Queue::held_bytes) + self.watches.held_bytes())
    }

    /// Ends the connections that `CLIENT KILL` is to end.
    pub(crate) fn kill(&mut self) {
        while let Some((id, card)) = self.kills.pop_first() {
            match id == self.card.id {
                true => self.ends = true,
                false => card.cut_off.notify_one(),
            }
        }
    }

    /// Puts everything but the identity back to the start, for `RESET`.
    pub(crate) fn reset(&mut self, durability: Durability) {
        // What it has written is no less at risk, and `WAITAOF` is asked about it.
        let last_version = self.last_version.filter(|_| !planted(Bug::ResetForgetsWrites));
        let share = std::mem::take(&mut self.share);
        *self = Self { last_version, ..Self::new(Arc::clone(&self.card), durability, share) };
        *self.card.names.lock() = Names::default();
    }
}

/// A key that must not change before `EXEC`.
pub(crate) struct Watched {
    pub(crate) watch: Watch,
    /// The objects in which the key was watched: a flush in between counts as a change.
    pub(crate) space_index: u64,
    /// The key, if it was there and expires: it then changes without a write.
    pub(crate) expiring: Option<Box<[u8]>>,
}

/// The keys that must not change before `EXEC`. One that is watched twice is there twice.
#[derive(Default)]
pub(crate) struct Watches {
    watched: Vec<Watched>,
    /// The bytes of the keys that expire.
    key_bytes: usize,
}

impl Watches {
    /// Watches a key; `expiring` is the key itself, if it is there and expires. `false`: all of them together have become too large.
    pub(crate) fn push(&mut self, watch: Watch, space_index: u64, expiring: Option<&[u8]>) -> bool {
        let key_bytes = expiring.map_or(0, <[u8]>::len);
        if self.held_bytes() + size_of::<Watched>() + key_bytes > REQUEST_BYTES_MAX {
            return false;
        }
        self.key_bytes += key_bytes;
        self.watched.push(Watched { watch, space_index, expiring: expiring.map(Box::from) });
        true
    }

    fn held_bytes(&self) -> usize {
        self.watched.len() * size_of::<Watched>() + self.key_bytes
    }

    /// Forgets all but the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.watched.truncate(len);
        let expiring = self.watched.iter().filter_map(|watched| watched.expiring.as_deref());
        self.key_bytes = expiring.map(<[u8]>::len).sum();
    }

    pub(crate) fn len(&self) -> usize {
        self.watched.len()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Watched> {
        self.watched.iter()
    }
}

/// The commands between `MULTI` and `EXEC`.
#[derive(Default)]
pub(crate) struct Queue {
    commands: Vec<Queued>,
    /// The arguments of all commands.
    bytes: Vec<u8>,
    /// The bytes that it takes to tell them apart.
    places: usize,
    /// Set when a command could not be queued, which dooms the `EXEC`.
    pub(crate) failed: bool,
}

struct Queued {
    command: &'static Command,
    bytes: std::ops::Range<usize>,
    spans: Vec<Span>,
}

impl Queue {
    /// Queues a command. `false`: all commands together have become too large.
    pub(crate) fn push(&mut self, command: &'static Command, args: Arguments<'_>) -> bool {
        let start = self.bytes.len();
        let taken = match planted(Bug::QueueHalfCounted) {
            true => 0,
            false => size_of::<Queued>() + args.len() * size_of::<Span>(),
        };
        let argument_bytes: usize = args.from(0).map(<[u8]>::len).sum();
        if self.held_bytes() + taken + argument_bytes > REQUEST_BYTES_MAX {
            return false;
        }
        self.places += taken;
        let mut spans = Vec::with_capacity(args.len());
        for argument in args.from(0) {
            let from = self.bytes.len() - start;
            self.bytes.extend_from_slice(argument);
            spans.push(Span::new(from, from + argument.len()));
        }
        self.commands.push(Queued { command, bytes: start..self.bytes.len(), spans });
        true
    }

    /// Forgets all commands: there is to be no `EXEC` of them.
    pub(crate) fn fail(&mut self) {
        *self = Self { failed: true, ..Self::default() };
    }

    fn held_bytes(&self) -> usize {
        self.bytes.len() + self.places
    }

    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    /// Whether any of the commands may write.
    pub(crate) fn writes(&self) -> bool {
        self.commands.iter().any(|queued| queued.command.access == Access::Write)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static Command, Arguments<'_>)> {
        self.commands
            .iter()
            .map(|queued| (queued.command, Arguments::new(&self.bytes[queued.bytes.clone()], &queued.spans)))
    }
}

/// What other connections can learn about one, with `CLIENT LIST`.
pub(crate) struct Card {
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) since: Instant,
    /// Milliseconds from `since` to the last batch of commands.
    active_ms: AtomicU64,
    protocol: AtomicU8,
    safe: AtomicBool,
    pub(crate) names: Mutex<Names>,
    /// Told when another connection ends this one: whatever its task waits for, be it the client, the disk or a turn. What it runs comes to its end first, though
    /// that may wait on its thread.
    pub(crate) cut_off: Notify,
}

/// What a client says about itself.
#[derive(Debug, Default, Clone)]
pub(crate) struct Names {
    pub(crate) name: String,
    pub(crate) library: String,
    pub(crate) library_version: String,
}

impl Card {
    fn new(id: u64, peer: SocketAddr, local: SocketAddr, durability: Durability) -> Self {
        Self {
            id,
            peer,
            local,
            since: Instant::now(),
            active_ms: AtomicU64::new(0),
            protocol: AtomicU8::new(2),
            safe: AtomicBool::new(durability == Durability::Safe),
            names: Mutex::new(Names::default()),
            cut_off: Notify::new(),
        }
    }

    /// Notes what commands have run with, at the end of each batch and before others look.
    pub(crate) fn touch(&self, protocol: Protocol, durability: Durability) {
        let elapsed_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.active_ms.store(elapsed_ms, Ordering::Relaxed);
        self.protocol.store(protocol.number() as u8, Ordering::Relaxed);
        self.safe.store(durability == Durability::Safe, Ordering::Relaxed);
    }

    /// One line of `CLIENT LIST`, in Redis' format.
    pub(crate) fn line(&self) -> String {
        let Names { name, library, library_version } = self.names.lock().clone();
        let age_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let idle_ms = age_ms.saturating_sub(self.active_ms.load(Ordering::Relaxed));
        let durability = if self.safe.load(Ordering::Relaxed) { Durability::Safe } else { Durability::Fast };
        format!(
            "id={} addr={} laddr={} name={name} age={} idle={} flags=N db=0 resp={} lib-name={library} \
             lib-ver={library_version} durability={}",
            self.id,
            self.peer,
            self.local,
            age_ms / 1000,
            idle_ms / 1000,
            self.protocol.load(Ordering::Relaxed),
            durability.name(),
        )
    }
}

/// The cards of all connections.
#[derive(Default)]
pub(crate) struct Registry {
    cards: Mutex<BTreeMap<u64, Arc<Card>>>,
    last_id: AtomicU64,
}

impl Registry {
    /// Registers a new connection. The entry goes when the guard does.
    pub(crate) fn register(
        &self,
        peer: SocketAddr,
        local: SocketAddr,
        durability: Durability,
    ) -> Registered<'_> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let card = Arc::new(Card::new(id, peer, local, durability));
        self.cards.lock().insert(id, Arc::clone(&card));
        Registered { registry: self, card }
    }

    pub(crate) fn len(&self) -> usize {
        self.cards.lock().len()
    }

    /// How many connections there have been.
    pub(crate) fn total(&self) -> u64 {
        self.last_id.load(Ordering::Relaxed)
    }

    /// The cards, by id.
    pub(crate) fn all(&self) -> Vec<Arc<Card>> {
        self.cards.lock().values().cloned().collect()
    }
}

/// Keeps a connection listed.
pub(crate) struct Registered<'r> {
    registry: &'r Registry,
    pub(crate) card: Arc<Card>,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.registry.cards.lock().remove(&self.card.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::KEY_BYTES_MAX;

    /// Only arguments counted, of which a million `PING`s have hardly any.
    #[test]
    fn what_is_queued_is_bounded_however_short_it_is() {
        let ping = crate::commands::find(b"PING").unwrap();
        let mut queue = Queue::default();
        while queue.push(ping, Arguments::new(b"PING", &[Span::new(0, 4)])) {}
        let bytes = queue.len() * (size_of::<Queued>() + size_of::<Span>() + 4);
        assert!((REQUEST_BYTES_MAX - 128..=REQUEST_BYTES_MAX).contains(&bytes), "{bytes} bytes");
        let spans = vec![Span::new(0, 0); REQUEST_BYTES_MAX / size_of::<Span>()];
        assert!(!Queue::default().push(ping, Arguments::new(b"", &spans)));
    }

    /// Only their number was bounded, and a copy of each key that expires is kept: 4 GiB of the longest ones.
    #[test]
    fn what_is_watched_is_bounded_however_long_the_keys_are() {
        let directory = tempfile::tempdir().unwrap();
        let db = kiln::Kiln::open(directory.path()).unwrap();
        let watch = db.watch(&db.map("strings").unwrap(), "key").unwrap();
        let key = vec![b'k'; KEY_BYTES_MAX];
        let mut watches = Watches::default();
        while watches.push(watch, 0, Some(&key)) {}
        let (count, one) = (watches.len(), size_of::<Watched>() + KEY_BYTES_MAX);
        assert!((REQUEST_BYTES_MAX - one..=REQUEST_BYTES_MAX).contains(&(count * one)), "{count} keys");
        watches.truncate(count - 1);
        assert!(watches.push(watch, 0, Some(&key)), "what is forgotten takes nothing");
    }
}
