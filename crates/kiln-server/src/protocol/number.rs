//! Numbers in requests, read as strictly as Redis reads them.

/// A signed 64-bit decimal integer: an optional `-`, digits without leading zeros, nothing else.
///
/// Strict because Redis is: `INCR` on `" 1"`, `"01"` or `"+1"` is an error there, and a value must not change
/// meaning when it moves here.
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.split_first()? {
        (b'-', digits) => (true, digits),
        _ => (false, text),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut magnitude: u64 = 0;
    for digit in digits {
        let value = digit.wrapping_sub(b'0');
        if value > 9 {
            return None;
        }
        // 19 digits fit: 10^19 < 2^64.
        magnitude = magnitude * 10 + u64::from(value);
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_range_is_read() {
        for value in [0, 1, -1, 9, 10, i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1] {
            assert_eq!(parse_integer(value.to_string().as_bytes()), Some(value));
        }
    }

    #[test]
    fn anything_but_the_canonical_form_is_refused() {
        for text in ["", "-", "+1", "01", "-0", "00", " 1", "1 ", "1.0", "0x1", "9223372036854775808"] {
            assert_eq!(parse_integer(text.as_bytes()), None, "{text}");
        }
        for text in ["-9223372036854775809", "99999999999999999999", "١"] {
            assert_eq!(parse_integer(text.as_bytes()), None, "{text}");
        }
    }
}
