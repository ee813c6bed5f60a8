//! Requests as they arrive: what a connection understands does not depend on how the network cuts them.

use crate::measure::bounded;

/// For 16 bytes of a span, a copy of each argument here, and vectors that double.
const TIMES: usize = 64;

/// The first byte says where the rest is cut.
pub(crate) fn resp(input: &[u8]) {
    let Some((&cut, stream)) = input.split_first() else { return };
    let (whole, _) = bounded(stream, TIMES, || kiln_server::fuzzing::decode([stream]));
    let (in_pieces, held_bytes_max) = kiln_server::fuzzing::decode(pieces(stream, cut));
    assert_eq!(whole, in_pieces, "it depends on how it is cut");
    assert!(held_bytes_max <= kiln_server::fuzzing::HELD_BYTES_MAX, "{held_bytes_max} bytes are held");
    for words in whole.into_iter().filter_map(Result::ok) {
        let encoded = request(&words);
        // An inline line may be longer than a request of bulk strings.
        let (again, _) = kiln_server::fuzzing::decode([encoded.as_slice()]);
        assert!(again == [Ok(words)] || matches!(again.as_slice(), [Err(_)]), "{again:?}");
    }
}

/// Pieces of a stream; 0 for single bytes, otherwise of lengths that vary around it.
pub(crate) fn pieces(stream: &[u8], cut: u8) -> Vec<&[u8]> {
    let (mut rest, mut pieces, mut length) = (stream, Vec::new(), usize::from(cut));
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(length.clamp(1, rest.len()));
        pieces.push(piece);
        rest = tail;
        if cut != 0 {
            length = length * 7 % 61;
        }
    }
    pieces
}

/// A request of these words.
pub(crate) fn request(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
