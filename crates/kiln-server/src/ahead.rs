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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::decoder::{Limits, TooLarge};

    const LIMITS: Limits = Limits { arguments: 40, argument_bytes: 64, request_bytes: 4096 };

    fn request(words: &[&str]) -> Vec<u8> {
        let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        format!("*{}\r\n{}", words.len(), words.collect::<String>()).into_bytes()
    }

    fn seen(ahead: &Ahead, decoder: &Decoder, input: &[u8]) -> Vec<Vec<Vec<u8>>> {
        let requests = ahead.requests(decoder, input);
        requests.map(|(arguments, _)| arguments.from(0).map(<[u8]>::to_vec).collect()).collect()
    }

    fn words(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_group_is_full_or_ends_where_the_input_does() {
        let (mut decoder, mut ahead) = (Decoder::new(LIMITS), Ahead::default());
        let input = request(&["GET", "key"]).repeat(GROUP_REQUESTS + 3);
        assert_eq!(ahead.decode(&mut decoder, &input), None);
        assert_eq!(seen(&ahead, &decoder, &input), vec![words(&["GET", "key"]); GROUP_REQUESTS]);
        assert_eq!(ahead.first_arguments(&input).collect::<Vec<_>>(), [b"key"; GROUP_REQUESTS]);
        let at = ahead.requests(&decoder, &input).last().unwrap().1;
        assert_eq!(ahead.decode(&mut decoder, &input[at..]), Some(Step::Incomplete(0)));
        assert_eq!(seen(&ahead, &decoder, &input[at..]).len(), 3);
    }

    #[test]
    fn what_lies_in_the_decoder_ends_a_group() {
        let (mut decoder, mut ahead) = (Decoder::new(LIMITS), Ahead::default());
        let long = vec!["word"; ARGUMENTS_MAX + 1];
        for (last, bytes) in
            [(&["SET", "a b", "c"][..], b"SET \"a b\" c\r\n".to_vec()), (&long, request(&long))]
        {
            let input = [request(&["PING"]), bytes, request(&["GET", "next"])].concat();
            assert_eq!(ahead.decode(&mut decoder, &input), None);
            assert_eq!(seen(&ahead, &decoder, &input), [words(&["PING"]), words(last)]);
            assert_eq!(ahead.first_arguments(&input).count(), 0);
            let at = ahead.requests(&decoder, &input).last().unwrap().1;
            assert_eq!(ahead.decode(&mut decoder, &input[at..]), Some(Step::Incomplete(0)));
            assert_eq!(seen(&ahead, &decoder, &input[at..]), [words(&["GET", "next"])]);
        }
    }

    /// A pause after the first request: the others, and what follows them unfinished, are decoded again.
    #[test]
    fn after_a_pause_nothing_is_lost_and_nothing_comes_twice() {
        let too_large = [b"*2\r\n$3\r\nSET\r\n$100\r\n".to_vec(), vec![b'x'; 100], b"\r\n".to_vec()].concat();
        for (unfinished, end) in [
            (request(&["SET", "key", "value"]), Some(Step::Incomplete(0))),
            (too_large.clone(), Some(Step::TooLarge(too_large.len(), TooLarge::Argument(100)))),
        ] {
            for cut in 0..unfinished.len() {
                let (mut decoder, mut ahead) = (Decoder::new(LIMITS), Ahead::default());
                let mut input =
                    [request(&["WAITAOF"]), request(&["GET", "a"]), unfinished[..cut].to_vec()].concat();
                assert!(ahead.decode(&mut decoder, &input).is_some());
                let at = ahead.requests(&decoder, &input).next().unwrap().1;
                decoder.restart();
                input.drain(..at);
                input.extend_from_slice(&unfinished[cut..]);
                assert_eq!(ahead.decode(&mut decoder, &input), end, "cut at {cut}");
                let all = seen(&ahead, &decoder, &input);
                assert_eq!(all[0], words(&["GET", "a"]));
                assert_eq!(all.len(), if end == Some(Step::Incomplete(0)) { 2 } else { 1 }, "cut at {cut}");
            }
        }
    }
}
