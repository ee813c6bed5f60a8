//! Values as they are remembered: a long one by what it is made of, since what is there is noted with each commit, and compared again and again.

use kiln::Expiry;

use crate::support::Random;

/// The longest there are.
pub(super) const BYTES_MAX: usize = 4 << 20;
/// From so many bytes on a value is long.
pub(super) const LONG_BYTES: usize = 512;
/// In so many bytes of a long value one word tells which they are; the others are zeros, which the simulated disk need not store.
const PIECE_BYTES: usize = 16 << 10;
const WORD_BYTES: usize = 8;
static ZEROS: [u8; PIECE_BYTES] = [0; PIECE_BYTES];

/// In milliseconds since 1970: some time in the 31st century.
const FAR_AWAY: u64 = 1 << 45;

/// When a small object's row with this value expires: so nobody need remember it, and what is there depends on no clock.
pub(super) fn expiry_of(value: &[u8]) -> Expiry {
    match value.first() {
        Some(&first) if first.is_multiple_of(4) => Expiry::At(FAR_AWAY + u64::from(first)),
        _ => Expiry::Never,
    }
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Short(Vec<u8>),
    /// Its number is in the first word, and the pieces behind it go on counting.
    Long {
        number: u64,
        length: usize,
    },
}

impl Value {
    /// A value that no other equals, most often one of the longest: what goes to the tree after such values, shorter ones and nodes, goes before them,
    /// wherever a block is free.
    pub(super) fn random(random: &mut Random) -> Value {
        let shift = random.below(10);
        let length = match random.one_in(8) {
            true => random.below(BYTES_MAX >> shift),
            false => BYTES_MAX - random.below(BYTES_MAX / 2),
        };
        match length < LONG_BYTES {
            true => Value::Short(random.bytes(length)),
            false => Value::Long { number: random.next(), length },
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Value::Short(bytes) => bytes.len(),
            Value::Long { length, .. } => *length,
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (number, length) = match self {
            Value::Short(bytes) => return bytes.clone(),
            Value::Long { number, length } => (*number, *length),
        };
        let mut bytes = vec![0; length];
        for (index, piece) in (0..).zip(bytes.chunks_mut(PIECE_BYTES)) {
            let word = u64::wrapping_add(number, index).to_le_bytes();
            let begin = piece.len().min(WORD_BYTES);
            piece[..begin].copy_from_slice(&word[..begin]);
        }
        bytes
    }
}

impl From<Vec<u8>> for Value {
    /// Long bytes that are not those of a number stay what they are, and so equal nothing that was put.
    fn from(bytes: Vec<u8>) -> Value {
        let Some(word) = bytes.first_chunk().filter(|_| bytes.len() >= LONG_BYTES) else {
            return Value::Short(bytes);
        };
        let (number, length) = (u64::from_le_bytes(*word), bytes.len());
        let is_made = (0..).zip(bytes.chunks(PIECE_BYTES)).all(|(index, piece)| {
            let word = u64::wrapping_add(number, index).to_le_bytes();
            let (begin, rest) = piece.split_at(piece.len().min(WORD_BYTES));
            *begin == word[..begin.len()] && *rest == ZEROS[..rest.len()]
        });
        if is_made { Value::Long { number, length } } else { Value::Short(bytes) }
    }
}
