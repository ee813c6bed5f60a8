//! Requests of one connection that were decoded and are not yet run.
//!
//! ```text
//!  input:   run | request | request | request | an unfinished one ...
//!                └──────── ahead ──────────┘
//! ```
//!
//! Decoding ahead has no effect but on speed: what is not run, because the connection must pause, stays in the input and is
//! decoded again.

use std::ops::Range;

use crate::limits::KEY_BYTES_MAX;
use crate::protocol::decoder::{Arguments, Decoder, Span, Step};

/// So many requests are decoded before the first of them is run: their cache misses overlap.
pub(crate) const GROUP_REQUESTS: usize = 32;
/// A request with more arguments ends a group: copying them would cost more than it gains.
const ARGUMENTS_MAX: usize = 16;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    requests: Vec<Decoded>,
    spans: Vec<Span>,
}

#[derive(Debug)]
struct Decoded {
    /// Where it lies in the input.
    bytes: Range<usize>,
    /// Its arguments among the spans; none if they are still the decoder's.
    spans: Option<Range<usize>>,
}

impl Ahead {
    /// Decodes a group of requests at the beginning of `input`, in place of the one before; gives the step that ended it, if
    /// that was no request.
    pub(crate) fn decode(&mut self, decoder: &mut Decoder, input: &[u8]) -> Option<Step> {
        self.requests.clear();
        self.spans.clear();
        let mut at = 0;
        while self.requests.len() < GROUP_REQUESTS {
            let length = match decoder.decode(&input[at..]) {
                Step::Request(length) => length,
                last => return Some(last),
            };
            let bytes = at..at + length;
            at = bytes.end;
            let arguments = decoder.arguments(&input[bytes.clone()]);
            if decoder.is_inline() || arguments.len() > ARGUMENTS_MAX {
                self.requests.push(Decoded { bytes, spans: None });
                return None;
            }
            let first = self.spans.len();
            self.spans.extend_from_slice(arguments.spans());
            self.requests.push(Decoded { bytes, spans: Some(first..self.spans.len()) });
        }
        None
    }

    /// The requests' arguments, and where in the input each ends.
    pub(crate) fn requests<'a>(
        &'a self,
        decoder: &'a Decoder,
        input: &'a [u8],
    ) -> impl Iterator<Item = (Arguments<'a>, usize)> {
        self.requests.iter().map(move |request| {
            let bytes = &input[request.bytes.clone()];
            let arguments = match &request.spans {
                Some(spans) => Arguments::new(bytes, &self.spans[spans.clone()]),
                None => decoder.arguments(bytes),
            };
            (arguments, request.bytes.end)
        })
    }

    /// The first argument of each request that has one: its key, or its first key, if it is a command on keys.
    pub(crate) fn first_arguments<'a>(&'a self, input: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let requests = self.requests.iter().filter_map(move |request| {
            let spans = &self.spans[request.spans.clone()?];
            Some(spans.get(1)?.of(&input[request.bytes.clone()]))
        });
        requests.filter(|argument| argument.len() <= KEY_BYTES_MAX)
    }
}
