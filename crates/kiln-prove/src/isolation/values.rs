//! Numbers as bytes, in such a way that a torn value is seen.

use super::history::{GARBAGE, Key, Number};

/// A list: its numbers, one after the other.
pub(crate) fn encode_list(numbers: &[Number]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

pub(crate) fn decode_list(bytes: Option<&[u8]>) -> Vec<Number> {
    let (numbers, rest) = bytes.unwrap_or_default().as_chunks::<4>();
    let numbers = numbers.iter().map(|bytes| Number::from_be_bytes(*bytes));
    numbers.chain((!rest.is_empty()).then_some(GARBAGE)).collect()
}

/// The value of a key: its number again and again, so that it takes long to read and to write. All values of a key have one
/// length, so that they are updated in place.
pub(crate) fn encode(key: Key, number: Number) -> Vec<u8> {
    const COPIES: [usize; 4] = [500, 2, 40, 1];
    number.to_be_bytes().repeat(COPIES[key as usize % COPIES.len()])
}

pub(crate) fn decode(key: Key, bytes: Option<&[u8]>) -> Option<Number> {
    let bytes = bytes?;
    let number = bytes.first_chunk().map_or(GARBAGE, |bytes| Number::from_be_bytes(*bytes));
    Some(if encode(key, number) == bytes { number } else { GARBAGE })
}

/// What a tally is.
pub(crate) fn decode_tally(bytes: Option<&[u8]>) -> u64 {
    bytes.map_or(0, |bytes| bytes.try_into().map_or(u64::from(GARBAGE), u64::from_le_bytes))
}

/// A key of the engine, in the order of its number.
pub(crate) fn encode_key(key: Key) -> [u8; 4] {
    key.to_be_bytes()
}

pub(crate) fn decode_key(bytes: &[u8]) -> Key {
    bytes.try_into().map_or(Key::MAX, Key::from_be_bytes)
}
