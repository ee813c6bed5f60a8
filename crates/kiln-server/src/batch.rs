//! Runs everything that has arrived on a connection, without waiting for anything in between.
//!
//! A client that sends many requests at once has them decoded some ahead of being run ([`ahead`](crate::ahead)), so that the cache
//! misses of their keys overlap. They are run one after the other all the same, each as if it stood alone.

use std::time::{Duration, Instant};

use crate::ahead::Ahead;
use crate::client::Client;
use crate::commands::durability::Wait;
use crate::counters::Count;
use crate::dispatch::{Dispatch, Hardening, Next};
use crate::failure::CLIENTS_HOLD_TOO_MUCH;
use crate::limits::VALUE_BYTES_MAX;
use crate::protocol::decoder::{Decoder, Step, TooLarge};
use crate::protocol::reply::Reply;
use crate::shared::Shared;
use crate::turns::Waiting;
use crate::work::Scratch;

/// The buffers of a connection that is doing something. An idle one has none: see `buffers`.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// What has arrived, from the first request on that was not run before the last time that input was needed.
    pub(crate) input: Vec<u8>,
    /// So many bytes of it have been run since. To take them out at each pause would move all behind them as often.
    pub(crate) ran: usize,
    /// What has been run and is not yet sent.
    pub(crate) reply: Reply,
    /// What has been decoded and is not yet run; empty between batches.
    pub(crate) ahead: Ahead,
    pub(crate) scratch: Scratch,
    pub(crate) hardening: Hardening,
}

/// A batch that has taken so long is to end: whoever waits to flush, and all behind him, wait for it.
const BATCH_TIME: Duration = Duration::from_millis(50);
/// After so many commands it is looked how long that is.
const LOOKS_AT_CLOCK: u64 = 16;

/// Why a batch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// There is no whole request left.
    NeedInput,
    /// There are so many replies that they must leave first, or so much was done for them.
    Flush,
    /// A command waits for durability.
    Wait(Wait),
    /// The next command may have to wait on a thread, and so many do that it needs a turn first.
    Turn(Waiting),
    /// The connection is to end.
    Close,
}

/// Runs requests until one of the reasons to pause. The replies of safe writes must not leave before
/// `buffers.hardening` is satisfied.
pub(crate) fn run(
    shared: &Shared,
    client: &mut Client,
    decoder: &mut Decoder,
    buffers: &mut Buffers,
) -> Pause {
    let Buffers { input, ran, reply, ahead, scratch, hardening } = buffers;
    reply.set_protocol(client.protocol);
    reply.count_in(&shared.client_memory);
    scratch.loaded_bytes = 0;
    let mut dispatch = Dispatch::new(shared, client, reply, scratch, hardening);
    let (mut at, mut commands, began) = (*ran, 0, Instant::now());
    let pause = loop {
        if dispatch.is_full() {
            break Pause::Flush;
        }
        let last = ahead.decode(decoder, &input[at..]);
        dispatch.prefetch(ahead.first_arguments(&input[at..]));
        let (bytes, pause) = run_ahead(&mut dispatch, decoder, ahead, &input[at..], (began, &mut commands));
        at += bytes;
        if let Some(pause) = pause {
            // What was not run is decoded again.
            decoder.restart();
            break pause;
        }
        match last {
            None => {}
            Some(Step::Request(_)) => unreachable!("requests are run"),
            Some(Step::Empty(length)) => at += length,
            Some(Step::TooLarge(length, reason)) => {
                at += length;
                dispatch.refuse(too_large(reason));
            }
            Some(Step::Incomplete(length)) => {
                at += length;
                break Pause::NeedInput;
            }
            Some(Step::Broken(error)) => {
                shared.counters.add(Count::ProtocolErrors, 1);
                dispatch.reply.error(format!("ERR Protocol error: {error}"));
                break Pause::Close;
            }
        }
    };
    drop(dispatch);
    *ran = at;
    if pause == Pause::NeedInput {
        input.drain(..std::mem::take(ran));
    }
    // It cannot be more than when that was last asked.
    let _ = client.has_room();
    scratch.shrink();
    client.card.touch(client.protocol, client.durability);
    shared.counters.add(Count::Commands, commands);
    pause
}

/// Runs what was decoded, until one of the reasons to pause, and says how many bytes of the input that was.
fn run_ahead(
    dispatch: &mut Dispatch<'_>,
    decoder: &Decoder,
    ahead: &Ahead,
    input: &[u8],
    (began, commands): (Instant, &mut u64),
) -> (usize, Option<Pause>) {
    let mut ran = 0;
    for (arguments, end) in ahead.requests(decoder, input) {
        if dispatch.is_full() {
            return (ran, Some(Pause::Flush));
        }
        // What commands have read from disk shows nowhere else. The first runs in any case, however long it took to fetch what these need.
        let looks = *commands > 0 && commands.is_multiple_of(LOOKS_AT_CLOCK);
        if looks && began.elapsed() > BATCH_TIME {
            return (ran, Some(Pause::Flush));
        }
        let next = dispatch.run(arguments);
        if let Next::Turn(waiting) = next {
            return (ran, Some(Pause::Turn(waiting)));
        }
        *commands += 1;
        ran = end;
        match next {
            Next::Continue | Next::Turn(_) => {}
            Next::Wait(wait) => return (ran, Some(Pause::Wait(wait))),
            Next::Close => return (ran, Some(Pause::Close)),
        }
    }
    (ran, None)
}

fn too_large(reason: TooLarge) -> String {
    match reason {
        TooLarge::Argument(bytes) => {
            format!("ERR an argument of {bytes} bytes is longer than the limit of {VALUE_BYTES_MAX} bytes")
        }
        TooLarge::Request => "ERR a request must not be longer than 64 MiB".to_owned(),
        TooLarge::ForNow => CLIENTS_HOLD_TOO_MUCH.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    use super::*;
    use crate::client::Durability;
    use crate::limits::REQUEST;
    use crate::memory::Share;
    use crate::options::Options;

    /// All that had arrived moved each time, so that many commands that pause, sent at once, took a time that grows with their square.
    #[test]
    fn a_pause_moves_nothing_of_what_has_arrived_behind_it() {
        let directory = tempfile::tempdir().unwrap();
        let db = kiln::Kiln::open(directory.path()).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let shared = Shared::new(db, Options::new(), address).unwrap();
        let registered = shared.clients.register(address, address, Durability::Fast);
        let mut client = Client::new(Arc::clone(&registered.card), Durability::Fast, Share::default());
        let (mut decoder, mut buffers) = (Decoder::new(REQUEST), Buffers::default());
        let (waits, unfinished) = (b"WAITAOF 1 0 0\r\n".repeat(40), b"*2\r\n$4\r\nECHO");
        buffers.input = [&waits[..], unfinished].concat();
        for _ in 0..40 {
            let pause = run(&shared, &mut client, &mut decoder, &mut buffers);
            assert!(matches!(pause, Pause::Wait(_)), "{pause:?}");
            assert_eq!(buffers.input.len(), waits.len() + unfinished.len());
        }
        assert_eq!(run(&shared, &mut client, &mut decoder, &mut buffers), Pause::NeedInput);
        assert_eq!(buffers.input, unfinished);
        buffers.input.extend_from_slice(b"\r\n$2\r\nhi\r\n");
        assert_eq!(run(&shared, &mut client, &mut decoder, &mut buffers), Pause::NeedInput);
        assert_eq!((buffers.input.len(), buffers.reply.bytes()), (0, &b"$2\r\nhi\r\n"[..]));
    }
}
