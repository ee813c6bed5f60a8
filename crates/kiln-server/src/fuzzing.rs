//! The decoder of requests, and a connection without a socket, for fuzzers and for the decoder's own tests.
//!
//! Outside of tests only a build with the feature `fuzzing` has them.

use crate::protocol::decoder::{Decoder, Limits, ProtocolError, Step, TooLarge};

/// What a client sees of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    Request(Vec<Vec<u8>>),
    TooLarge(TooLarge),
    Broken(ProtocolError),
}

/// Feeds `pieces` one after the other, as a connection does; also returns the most bytes that were held at
/// once.
pub(crate) fn feed<'a>(limits: Limits, pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Seen>, usize) {
    let mut decoder = Decoder::new(limits);
    let (mut buffer, mut seen, mut held_max) = (Vec::new(), Vec::new(), 0);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let consumed = match decoder.decode(&buffer) {
                Step::Request(consumed) => {
                    seen.push(Seen::Request(
                        decoder.arguments(&buffer).from(0).map(<[u8]>::to_vec).collect(),
                    ));
                    consumed
                }
                Step::Empty(consumed) => consumed,
                Step::TooLarge(consumed, reason) => {
                    seen.push(Seen::TooLarge(reason));
                    consumed
                }
                Step::Incomplete(consumed) => {
                    buffer.drain(..consumed);
                    break;
                }
                Step::Broken(error) => {
                    seen.push(Seen::Broken(error));
                    return (seen, held_max);
                }
            };
            buffer.drain(..consumed);
        }
        held_max = held_max.max(buffer.len());
    }
    (seen, held_max)
}

#[cfg(feature = "fuzzing")]
pub use for_fuzzers::{HELD_BYTES_MAX, Outcome, Served, decode, serve};

#[cfg(feature = "fuzzing")]
mod for_fuzzers {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    use kiln::Kiln;

    use super::{Seen, feed};
    use crate::batch::{self, Buffers, Pause};
    use crate::client::Client;
    use crate::limits::REQUEST;
    use crate::memory::Share;
    use crate::options::Options;
    use crate::protocol::decoder::{Decoder, INLINE_BYTES_MAX, Limits};
    use crate::shared::Shared;

    /// Small, so that short streams reach them.
    const LIMITS: Limits = Limits { arguments: 8, argument_bytes: 64, request_bytes: 256 };

    /// The words of a request, or why it is refused.
    pub type Outcome = Result<Vec<Vec<u8>>, String>;

    /// The most bytes that [`decode`] may hold: the longest line, and a piece that arrives on top.
    pub const HELD_BYTES_MAX: usize = INLINE_BYTES_MAX + 256;

    /// The requests in a stream that arrives in `pieces`, or why they are refused, and the most bytes that were held at once.
    pub fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Outcome>, usize) {
        let (seen, held_max) = feed(LIMITS, pieces);
        (seen.into_iter().map(outcome).collect(), held_max)
    }

    fn outcome(seen: Seen) -> Outcome {
        match seen {
            Seen::Request(words) => Ok(words),
            Seen::TooLarge(reason) => Err(format!("{reason:?}")),
            Seen::Broken(error) => Err(error.to_string()),
        }
    }

    /// What a connection has answered.
    #[derive(Debug)]
    pub struct Served {
        /// All replies, one after the other.
        pub replies: Vec<u8>,
        /// The requests that it got.
        pub requests: usize,
        /// It was closed by the server.
        pub closed: bool,
    }

    /// Serves one connection, on which these pieces of a stream arrive.
    ///
    /// # Errors
    /// If the engine refuses to open the server's objects.
    pub fn serve(db: &Kiln, pieces: &[&[u8]]) -> std::io::Result<Served> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let _entered = runtime.enter();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let options = Options::new();
        let shared = Shared::new(db.clone(), options.clone(), address)?;
        let registered = shared.clients.register(address, address, options.durability);
        let share = Share::of(&shared.client_memory);
        let mut client = Client::new(Arc::clone(&registered.card), options.durability, share);
        let (mut decoder, mut buffers) = (Decoder::new(REQUEST), Buffers::default());
        let (seen, _) = feed(REQUEST, pieces.iter().copied());
        let mut served = Served { replies: Vec::new(), requests: seen.len(), closed: false };
        for piece in pieces {
            buffers.input.extend_from_slice(piece);
            let mut pause = Pause::Flush;
            while pause != Pause::NeedInput {
                pause = batch::run(&shared, &mut client, &mut decoder, &mut buffers);
                if buffers.hardening.version.take().is_some() {
                    db.persist().map_err(std::io::Error::other)?;
                    buffers.hardening.replies.clear();
                }
                if let Pause::Wait(wait) = pause {
                    wait.answer_now(&shared, &mut buffers.reply);
                }
                served.replies.extend_from_slice(buffers.reply.bytes());
                buffers.reply.clear();
                if pause == Pause::Close {
                    served.closed = true;
                    return Ok(served);
                }
            }
        }
        Ok(served)
    }
}
