//! The decoder against every way to cut a stream, and against hostile streams.

use bytes::Bytes;
use proptest::prelude::*;
use resp_rs::resp2::{Frame, frame_to_bytes};

use super::*;
use crate::fuzzing::{Seen, feed};

const LIMITS: Limits = Limits { arguments: 8, argument_bytes: 64, request_bytes: 256 };

fn whole(bytes: &[u8]) -> Vec<Seen> {
    feed(LIMITS, [bytes]).0
}

fn request(words: &[&[u8]]) -> Seen {
    Seen::Request(words.iter().map(|word| word.to_vec()).collect())
}

fn encode(words: &[Vec<u8>]) -> Bytes {
    let bulks = words.iter().map(|word| Frame::BulkString(Some(Bytes::copy_from_slice(word)))).collect();
    frame_to_bytes(&Frame::Array(Some(bulks)))
}

#[test]
fn pipelined_requests_come_out_in_order() {
    let seen = whole(b"*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n\r\n\r\nECHO hi\r\n*0\r\n\r\n*1\r\n$0\r\n\r\n");
    assert_eq!(
        seen,
        [request(&[b"PING"]), request(&[b"SET", b"k", b"\r\n"]), request(&[b"ECHO", b"hi"]), request(&[b""])]
    );
}

#[test]
fn an_inline_line_that_drips_in_is_one_request() {
    let pieces: Vec<&[u8]> = b"set  'a b' 1\r\n".chunks(1).collect();
    assert_eq!(feed(LIMITS, pieces).0, [request(&[b"set", b"a b", b"1"])]);
}

/// The places of its arguments stayed until the next request was whole, and that may never come.
#[test]
fn what_a_large_request_needed_goes_back_although_the_next_has_begun() {
    let limits = Limits { arguments: 100_000, argument_bytes: 64, request_bytes: 1 << 20 };
    let mut decoder = Decoder::new(limits);
    let large = encode(&vec![b"x".to_vec(); limits.arguments]);
    assert_eq!(decoder.decode(&large), Step::Request(large.len()));
    let next = encode(&[b"GET".to_vec(), b"key".to_vec()]);
    let (begun, _) = next.split_at(next.len() - 2);
    assert_eq!(decoder.decode(begun), Step::Incomplete(0));
    decoder.shrink();
    assert!(decoder.spans.capacity() <= 16, "{} places", decoder.spans.capacity());
    assert_eq!(decoder.decode(&next), Step::Request(next.len()));
    assert!(decoder.arguments(&next).from(0).eq([b"GET", b"key"]));
}

#[test]
fn lengths_that_announce_too_much_end_the_connection_without_reserving_memory() {
    for (bytes, error) in [
        (b"*1000000000\r\n".as_slice(), ProtocolError::MultibulkLength),
        (b"*99999999999999999999\r\n", ProtocolError::MultibulkLength),
        (b"*9\r\n", ProtocolError::MultibulkLength),
        (b"*abc\r\n", ProtocolError::MultibulkLength),
        (b"*\r\n", ProtocolError::MultibulkLength),
        (b"*1\r\n$99999999999\r\n", ProtocolError::BulkLength),
        (b"*1\r\n$-1\r\n", ProtocolError::BulkLength),
        (b"*1\r\n$1x\r\n", ProtocolError::BulkLength),
        (b"*1\r\n$1\rx", ProtocolError::BulkLength),
        (b"*1\r\n$0000000000000000000000000000", ProtocolError::BulkLength),
        (b"*1\r\n$000000000000000000000\r\n", ProtocolError::BulkLength),
        (b"*1\r\n*1\r\n*1\r\n", ProtocolError::ExpectedDollar(b'*')),
        (b"*1\r\n:1\r\n", ProtocolError::ExpectedDollar(b':')),
        (b"*1\r\n$1\r\nabc", ProtocolError::ExpectedLineEnd),
        (b"set \"a\r\n", ProtocolError::UnbalancedQuotes),
    ] {
        assert_eq!(whole(bytes), [Seen::Broken(error)], "{}", bytes.escape_ascii());
    }
}

#[test]
fn a_line_without_end_is_refused() {
    let line = vec![b'x'; INLINE_BYTES_MAX + 1];
    assert_eq!(whole(&line), [Seen::Broken(ProtocolError::InlineTooLong)]);
    let ended = [&line[..], b"\r\n"].concat();
    assert_eq!(whole(&ended), [Seen::Broken(ProtocolError::InlineTooLong)]);
}

#[test]
fn an_oversize_argument_is_skipped_without_being_held_and_the_next_request_is_read() {
    let mut bytes = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n".to_vec();
    bytes.extend(std::iter::repeat_n(b'v', 100_000));
    bytes.extend_from_slice(b"\r\n*1\r\n$4\r\nPING\r\n");
    let (seen, held_max) = feed(LIMITS, bytes.chunks(100));
    assert_eq!(seen, [Seen::TooLarge(TooLarge::Argument(100_000)), request(&[b"PING"])]);
    assert!(held_max < 256, "{held_max} bytes were held");
}

#[test]
fn an_oversize_argument_must_end_as_any_other() {
    let bytes = [&b"*1\r\n$65\r\n"[..], &[b'v'; 65], b"xx"].concat();
    assert_eq!(whole(&bytes), [Seen::Broken(ProtocolError::ExpectedLineEnd)]);
}

#[test]
fn a_request_that_is_given_up_is_skipped_wherever_it_was_and_the_next_one_is_read() {
    let (bytes, next) = (encode(&["SET", "key", "value"].map(Into::into)), encode(&["PING".into()]));
    // With its first byte alone, or its count, it has hardly begun.
    for length in 4..bytes.len() {
        let (mut decoder, mut input) = (Decoder::new(LIMITS), bytes[..length].to_vec());
        assert_eq!(decoder.decode(&input), Step::Incomplete(0));
        let skipped = decoder.give_up(&input);
        input.drain(..skipped);
        assert!(input.len() <= 4, "{} bytes are held", input.len());
        input.extend_from_slice(&bytes[length..]);
        input.extend_from_slice(&next);
        let Step::TooLarge(end, TooLarge::ForNow) = decoder.decode(&input) else {
            panic!("it is not skipped")
        };
        assert_eq!(decoder.decode(&input[end..]), Step::Request(next.len()));
    }
}

/// They stayed until more of the request came, 8 MiB of them, where there was no memory for what they were of.
#[test]
fn what_is_given_up_leaves_no_places_of_its_arguments() {
    let input = [b"*65\r\n", &b"$0\r\n\r\n".repeat(64)[..]].concat();
    let mut decoder = Decoder::new(Limits { arguments: 65, argument_bytes: 1_000, request_bytes: 1_000 });
    assert_eq!(decoder.decode(&input), Step::Incomplete(0));
    decoder.shrink();
    assert!(decoder.spans.capacity() >= 64);
    assert_eq!(decoder.give_up(&input), input.len());
    assert_eq!(decoder.spans.capacity(), 0);
}

#[test]
fn shrinking_in_the_middle_of_a_request_forgets_nothing() {
    let bytes = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    let mut decoder = Decoder::new(LIMITS);
    assert_eq!(decoder.decode(&bytes[..15]), Step::Incomplete(0));
    decoder.shrink();
    assert_eq!(decoder.decode(bytes), Step::Request(bytes.len()));
    assert_eq!(decoder.arguments(bytes).get(0), Some(&b"GET"[..]));
    decoder.shrink();
}

#[test]
fn a_request_of_many_small_arguments_is_limited_as_a_whole() {
    let words: Vec<Vec<u8>> = (0..6).map(|_| vec![b'x'; 60]).collect();
    let bytes = encode(&words);
    let (seen, held_max) = feed(LIMITS, bytes.chunks(7));
    assert_eq!(seen, [Seen::TooLarge(TooLarge::Request)]);
    assert!(held_max <= LIMITS.request_bytes);
}

/// Requests as clients send them, some over a limit.
fn words() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 1..8)
}

proptest! {
    #[test]
    fn however_the_stream_is_cut_the_requests_are_the_same(
        requests in prop::collection::vec(words(), 1..6),
        cuts in prop::collection::vec(1usize..40, 1..60),
    ) {
        let bytes: Vec<u8> = requests.iter().flat_map(|words| encode(words)).collect();
        let expected = whole(&bytes);
        prop_assert_eq!(expected.len(), requests.len());
        for (seen, words) in expected.iter().zip(&requests) {
            match seen {
                Seen::Request(arguments) => prop_assert_eq!(arguments, words),
                Seen::TooLarge(TooLarge::Argument(bytes)) => {
                    prop_assert!(words.iter().any(|word| word.len() as u64 == *bytes && *bytes > 64));
                }
                Seen::TooLarge(TooLarge::Request) => prop_assert!(encode(words).len() > LIMITS.request_bytes),
                Seen::TooLarge(TooLarge::ForNow) => prop_assert!(false, "nobody has given up"),
                Seen::Broken(error) => prop_assert!(false, "{}", error),
            }
        }
        let mut pieces = Vec::new();
        let mut rest = bytes.as_slice();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, tail) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece);
            rest = tail;
        }
        prop_assert_eq!(feed(LIMITS, pieces).0, expected);
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_hold_no_more_than_the_limit(
        bytes in prop::collection::vec(prop_oneof![
            any::<u8>(), Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), b'0'..=b'9', Just(b'-'), Just(b'"')
        ], 0..600),
        size in 1usize..50,
    ) {
        let (in_pieces, _) = feed(LIMITS, bytes.chunks(size));
        prop_assert_eq!(in_pieces, whole(&bytes));
    }
}
