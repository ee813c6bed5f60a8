//! What byte strings begin with.

/// So many bytes both begin with.
#[inline]
pub(crate) fn common_bytes(one: &[u8], other: &[u8]) -> usize {
    const WORD_BYTES: usize = size_of::<u64>();
    let (words, others) = (one.as_chunks::<WORD_BYTES>().0, other.as_chunks::<WORD_BYTES>().0);
    for (index, (word, other)) in words.iter().zip(others).enumerate() {
        let different = u64::from_le_bytes(*word) ^ u64::from_le_bytes(*other);
        if different != 0 {
            return index * WORD_BYTES + different.trailing_zeros() as usize / 8;
        }
    }
    let whole = words.len().min(others.len()) * WORD_BYTES;
    whole + one[whole..].iter().zip(&other[whole..]).take_while(|(one, other)| one == other).count()
}

/// A key's first bytes, and zeros behind its end, as a number: what is less has the lesser key. Few keys agree in them, so that hardly any has to be
/// looked at for its order.
pub(crate) fn head_of(key: &[u8]) -> u128 {
    let mut head = [0; size_of::<u128>()];
    let bytes = key.len().min(head.len());
    head[..bytes].copy_from_slice(&key[..bytes]);
    u128::from_be_bytes(head)
}

/// The shortest string that is greater than `before` and not greater than `after`, which is greater than `before`.
pub(crate) fn shortest_separator<'a>(before: &[u8], after: &'a [u8]) -> &'a [u8] {
    &after[..(common_bytes(before, after) + 1).min(after.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_strings_have_in_common_ends_with_the_first_difference_or_the_shorter_one() {
        for length in 0..40 {
            let one = vec![7; length];
            assert_eq!(common_bytes(&one, &one), length);
            for at in 0..length {
                let mut other = one.clone();
                other[at] ^= 1 << (at % 8);
                assert_eq!(common_bytes(&one, &other), at);
                assert_eq!(common_bytes(&one[..at], &one), at);
                assert_eq!(common_bytes(&one, &other[..=at]), at);
                let (before, after) = if one < other { (&one, &other) } else { (&other, &one) };
                assert_eq!(shortest_separator(before, after), &after[..=at]);
            }
        }
        assert_eq!(shortest_separator(b"", b"abc"), b"a");
        assert_eq!(shortest_separator(b"ab", b"abc"), b"abc");
    }
}
