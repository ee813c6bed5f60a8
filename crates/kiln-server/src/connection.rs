//! The task of one connection: read, run, harden, reply.
//!
//! ```text
//!        ┌──────────────── no whole request left ───────────────┐
//!        ▼                                                      │
//!   read what has arrived ─▶ run all of it (`batch`) ─▶ wait until its safe writes are durable ─▶ send all replies
//!                                  ▲                                                              │
//!                                  └────── replies reached their limit, or a wait is over ────────┘
//!                                              (for durability, or for a turn to wait on a thread: `turns`)
//! ```
//!
//! # Invariants
//!
//! - Replies leave in the order of the requests, and the reply of a safe write leaves only when the write is
//!   durable.
//! - A batch waits for durability once, for its highest version; writes of other connections that arrive
//!   meanwhile share the next hardening. Nobody but this task waits for this connection's socket, and while
//!   it waits it holds no lock of any kind.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use kiln::Level;
use kiln::planted::{Bug, planted};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::batch::{self, Buffers, Pause};
use crate::buffers;
use crate::client::Client;
use crate::commands::durability::Wait;
use crate::counters::Count;
use crate::dispatch::Hardening;
use crate::failure::engine_error;
use crate::limits::{READ_BYTES, REQUEST};
use crate::memory::{STALLED_AFTER, Share, unless_stalled, write_unless_stalled};
use crate::protocol::decoder::Decoder;
use crate::protocol::reply::Reply;
use crate::shared::Shared;
use crate::turns::{self, Turns, Waiting, leaving_thread};

/// The start of a request that is longer than this keeps its buffer while the rest is awaited; a shorter one
/// is copied.
const LEFTOVER_BYTES_MAX: usize = 4 * 1024;

/// How long what a client still sends is read at its end.
const LINGER_MAX: Duration = Duration::from_secs(1);

/// Serves a connection until either side ends it.
pub(crate) async fn serve(shared: Arc<Shared>, stream: TcpStream) -> io::Result<()> {
    let durability = shared.options.durability;
    let registered = shared.clients.register(stream.peer_addr()?, stream.local_addr()?, durability);
    let client = Client::new(Arc::clone(&registered.card), durability, Share::of(&shared.client_memory));
    let mut connection = Connection {
        shared: &shared,
        turns: Turns::of_runtime(),
        stream,
        client,
        decoder: Decoder::new(REQUEST),
        held: Held::default(),
        share: Share::of(&shared.client_memory),
    };
    tokio::select! {
        biased;
        served = connection.serve() => served,
        () = registered.card.cut_off.notified() => Ok(()),
    }
}

/// What a connection keeps while it waits for more to arrive.
#[derive(Debug, Default)]
enum Held {
    #[default]
    Nothing,
    /// The start of a request.
    Leftover(Vec<u8>),
    /// The start of a large request, in the buffer in which it grows.
    Input(Vec<u8>),
}

impl Held {
    /// What is left of the input, which is left empty.
    fn of(input: &mut Vec<u8>) -> Held {
        match input.len() {
            0 => Held::Nothing,
            1..=LEFTOVER_BYTES_MAX => Held::Leftover(input.as_slice().into()),
            length => {
                let mut input = std::mem::take(input);
                // It may have had a much larger request before this one.
                if input.capacity() / 4 > length.max(READ_BYTES) && !planted(Bug::InputHeld) {
                    input.shrink_to_fit();
                }
                Held::Input(input)
            }
        }
    }
}

struct Connection<'s> {
    shared: &'s Shared,
    turns: &'static Turns,
    stream: TcpStream,
    client: Client,
    decoder: Decoder,
    held: Held,
    /// What is held, and the input of the batch that is being run, as it is counted with what all clients hold.
    share: Share,
}

impl Connection<'_> {
    async fn serve(&mut self) -> io::Result<()> {
        let mut stopped = pin!(self.shared.stopped());
        let mut may_have_sent_more = false;
        while let Some(mut buffers) = self.fill_unless_stalled(stopped.as_mut()).await? {
            may_have_sent_more = !self.answer(&mut buffers).await?;
            // A client that never stops sending must not keep the server from ending.
            if may_have_sent_more || self.shared.is_stopping() {
                break;
            }
            self.hold(buffers);
        }
        self.end(may_have_sent_more).await
    }

    /// An orderly end also towards a client that is still sending: a socket that is closed with something unread in it, or to which more comes, takes the replies with it that the
    /// client has not read yet. So what comes is read until the client ends, too, for a moment.
    async fn end(&mut self, mut may_have_sent_more: bool) -> io::Result<()> {
        self.stream.shutdown().await?;
        // Who comes back meanwhile finds it free.
        self.client.session = None;
        let rest = async {
            let mut rest = Vec::with_capacity(READ_BYTES);
            if !may_have_sent_more {
                may_have_sent_more = self.stream.try_read_buf(&mut rest).is_ok_and(|bytes| bytes > 0);
            }
            while may_have_sent_more {
                rest.clear();
                may_have_sent_more = self.stream.read_buf(&mut rest).await.is_ok_and(|bytes| bytes > 0);
            }
        };
        // Who goes on sending after that does not want the replies.
        let _ = tokio::time::timeout(LINGER_MAX, rest).await;
        Ok(())
    }

    /// As [`Self::fill`]; fails if the client holds much, and does not go on.
    async fn fill_unless_stalled(
        &mut self,
        stopped: Pin<&mut impl Future<Output = ()>>,
    ) -> io::Result<Option<Box<Buffers>>> {
        if !self.share.counts() && !self.client.holds_much() {
            return self.fill(stopped).await;
        }
        let memory = &self.shared.client_memory;
        unless_stalled(memory, STALLED_AFTER, self.fill(stopped)).await
    }

    /// Waits for bytes. `None`: the client is gone or the server is to end. While nothing arrives no buffer
    /// is held, except for the start of a request.
    async fn fill(
        &mut self,
        mut stopped: Pin<&mut impl Future<Output = ()>>,
    ) -> io::Result<Option<Box<Buffers>>> {
        poll_fn(|context| {
            if let Poll::Ready(read) = self.poll_read(context) {
                return Poll::Ready(read);
            }
            stopped.as_mut().poll(context).map(|()| Ok(None))
        })
        .await
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Box<Buffers>>>> {
        let mut buffers = self.take_held();
        buffers.input.reserve(READ_BYTES);
        // Reading is cancel safe: a future that is dropped while pending has read nothing.
        let read = pin!(self.stream.read_buf(&mut buffers.input)).poll(context);
        match read {
            Poll::Pending => {
                self.hold(buffers);
                Poll::Pending
            }
            Poll::Ready(Ok(0)) => Poll::Ready(Ok(None)),
            Poll::Ready(Ok(bytes)) => {
                self.shared.counters.add(Count::ReceivedBytes, bytes as u64);
                Poll::Ready(Ok(Some(buffers)))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }

    fn take_held(&mut self) -> Box<Buffers> {
        match std::mem::take(&mut self.held) {
            Held::Nothing => buffers::take(),
            Held::Leftover(bytes) => {
                let mut buffers = buffers::take();
                buffers.input.extend_from_slice(&bytes);
                buffers
            }
            Held::Input(input) => {
                let mut buffers = buffers::take();
                buffers.input = input;
                buffers
            }
        }
    }

    /// Keeps what is left of the input, as small as it can be. Where all clients together would hold too much it is the rest of the request that has begun that goes.
    fn hold(&mut self, mut buffers: Box<Buffers>) {
        if !self.share.set(buffers.input.len()) {
            let skipped = self.decoder.give_up(&buffers.input);
            buffers.input.drain(..skipped);
            self.share.clear();
        }
        self.held = Held::of(&mut buffers.input);
        if planted(Bug::RepliesHeld) && matches!(self.held, Held::Input(_)) {
            return std::mem::forget(buffers);
        }
        buffers::put(buffers);
    }

    /// Runs and answers all whole requests that have arrived. `false`: the connection is to end.
    async fn answer(&mut self, buffers: &mut Buffers) -> io::Result<bool> {
        let mut turn = None;
        loop {
            let shared = self.shared;
            let (client, decoder) = (&mut self.client, &mut self.decoder);
            let mut run = || batch::run(shared, client, decoder, buffers);
            // Where no turn is left it ends before the first command that may read from disk.
            let pause = turns::serving(self.turns, turn.take(), || {
                match shared.disk_is_late.load(Ordering::Relaxed) && turns::may_wait(Waiting::Read) {
                    true => leaving_thread(Waiting::Read, run),
                    false => run(),
                }
            });
            self.harden(buffers).await;
            self.send(&mut buffers.reply).await?;
            match pause {
                Pause::NeedInput => {
                    self.decoder.shrink();
                    return Ok(true);
                }
                Pause::Flush => {}
                Pause::Wait(wait) => self.wait(wait, &mut buffers.reply).await,
                Pause::Turn(waiting) => turn = Some(self.turns.wait(waiting).await),
                Pause::Close => return Ok(false),
            }
        }
    }

    /// Waits until the batch's safe writes are durable. If they are lost instead, their replies say so.
    async fn harden(&self, buffers: &mut Buffers) {
        let Some(version) = buffers.hardening.version.take() else { return };
        let receipt = self.shared.db.receipt(version);
        let durable = match self.shared.tasks_harden.load(Ordering::Relaxed) {
            true => {
                // The other connections whose requests are here commit first, and share the hardening.
                tokio::task::yield_now().await;
                receipt.durable_leading(Level::LOCAL).await
            }
            false => receipt.durable(Level::LOCAL).await,
        };
        if let Err(error) = durable {
            self.fail_lost_writes(&mut buffers.reply, &buffers.hardening, &engine_error(&error));
        }
        buffers.hardening.replies.clear();
    }

    /// Turns the replies of writes that are lost into errors. Those before them may have become durable.
    fn fail_lost_writes(&self, reply: &mut Reply, hardening: &Hardening, error: &str) {
        let horizon = self.shared.db.horizon(Level::LOCAL);
        let lost = hardening
            .replies
            .iter()
            .filter(|(_, version)| *version > horizon || planted(Bug::LostWithOthers));
        reply.replace_by_error(lost.map(|(range, _)| range.clone()), error);
    }

    async fn send(&mut self, reply: &mut Reply) -> io::Result<()> {
        if reply.len() > 0 {
            match reply.counts() {
                false => self.stream.write_all(reply.bytes()).await?,
                true => {
                    let memory = &self.shared.client_memory;
                    write_unless_stalled(memory, STALLED_AFTER, &mut self.stream, reply.bytes()).await?;
                }
            }
            self.shared.counters.add(Count::SentBytes, reply.len() as u64);
            reply.clear();
        }
        Ok(())
    }

    /// `WAITAOF` and `KILN WAIT`.
    async fn wait(&self, wait: Wait, reply: &mut Reply) {
        let Some(version) = wait.version else { return wait.answer(true, reply) };
        if wait.timeout == Some(Duration::ZERO) {
            return wait.answer_now(self.shared, reply);
        }
        let durable = self.shared.db.receipt(version).durable(Level::LOCAL);
        let ended = match wait.timeout {
            None => Some(durable.await),
            Some(timeout) => tokio::time::timeout(timeout, durable).await.ok(),
        };
        match ended {
            Some(Err(error)) => reply.error(engine_error(&error)),
            Some(Ok(())) => wait.answer(true, reply),
            None => wait.answer(false, reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The buffer stayed as large as the request before had been, for as long as the rest did not come.
    #[test]
    fn the_start_of_a_request_is_held_in_no_more_memory_than_it_takes() {
        let mut input = vec![b'x'; 16 * 1024 * 1024];
        input.drain(LEFTOVER_BYTES_MAX + 1..);
        let Held::Input(held) = Held::of(&mut input) else { panic!("it is copied or forgotten") };
        assert_eq!(held, [b'x'; LEFTOVER_BYTES_MAX + 1]);
        assert!(held.capacity() <= 4 * READ_BYTES, "{} bytes", held.capacity());
        // Where it grows, it is not moved each time that more arrives.
        let (mut input, mut moves) = (held, 0);
        for _ in 0..1_000 {
            input.reserve(READ_BYTES);
            input.extend_from_slice(&[b'x'; 16 * 1024]);
            let before = input.capacity();
            let Held::Input(held) = Held::of(&mut input) else { panic!("it is copied or forgotten") };
            moves += usize::from(held.capacity() != before);
            input = held;
        }
        assert_eq!(moves, 0);
    }
}
