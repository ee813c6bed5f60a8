//! The arithmetic of `INCRBYFLOAT`: the 80-bit numbers that Redis computes with on x86-64, printed the way it
//! prints them.
//!
//! Redis keeps such a value as text and adds with C's `long double`: 64 bits of mantissa, so that `0.1 + 0.2`
//! is `0.3` and not the `0.30000000000000004` of a 64-bit float. To give the same text for the same commands
//! Kiln computes in the same format.

use rustc_apfloat::Float as _;
use rustc_apfloat::ieee::X87DoubleExtended;

/// How many digits after the decimal point Redis prints at most (`%.17Lf`).
const FRACTION_DIGITS: u32 = 17;
/// The bits of an extended number's mantissa, the explicit leading one included.
const MANTISSA_BITS: i32 = 64;
/// What the exponent field of an extended number is offset by.
const EXPONENT_BIAS: i32 = 16_383;
/// The most bytes of a number's text, one fewer than Redis' `MAX_LONG_DOUBLE_CHARS`. Every number that is printed has room in it.
const TEXT_BYTES_MAX: usize = 5 * 1024 - 1;

/// A number as Redis reads it from a value or an argument.
pub(crate) fn parse(text: &[u8]) -> Option<X87DoubleExtended> {
    // The conversion's work grows with the square of the digits: a value of 16 MiB would take minutes.
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let signed = |value: X87DoubleExtended| if text.starts_with('-') { -value } else { value };
    if ["inf", "infinity"].iter().any(|name| unsigned.eq_ignore_ascii_case(name)) {
        return Some(signed(X87DoubleExtended::INFINITY));
    }
    let hexadecimal = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X"));
    let (number, mark) = hexadecimal.map_or((unsigned, ['e', 'E']), |number| (number, ['p', 'P']));
    let (mantissa, exponent) = number.split_once(mark).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_digit = |byte: u8| match hexadecimal {
        Some(_) => byte.is_ascii_hexdigit(),
        None => byte.is_ascii_digit(),
    };
    if !whole.bytes().chain(fraction.bytes()).all(is_digit) || whole.len() + fraction.len() == 0 {
        return None;
    }
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if !mantissa.contains(|char| char != '0' && char != '.') {
        return Some(signed(X87DoubleExtended::ZERO));
    }
    // A longer exponent is far out of range whatever it says; refusing it keeps the conversion's work small.
    if digits.trim_start_matches('0').len() > 5 {
        return None;
    }
    let value: X87DoubleExtended = match hexadecimal {
        Some(_) => format!("0x{mantissa}p{exponent}").parse().ok()?,
        None => unsigned.parse().ok()?,
    };
    // C's strtold reports a number that is too large, or so small that zero is left of it, and Redis then
    // refuses it.
    (!value.is_infinite() && !value.is_zero()).then(|| signed(value))
}

/// `left + right`, or nothing if that is no finite number.
pub(crate) fn add(left: X87DoubleExtended, right: X87DoubleExtended) -> Option<X87DoubleExtended> {
    let sum = (left + right).value;
    sum.is_finite().then_some(sum)
}

/// The number with up to 17 digits after the point and no trailing zeros.
pub(crate) fn format(value: X87DoubleExtended) -> String {
    let bits = value.to_bits();
    let mantissa = bits as u64;
    let exponent = ((bits >> 64) & 0x7fff) as i32 - EXPONENT_BIAS - (MANTISSA_BITS - 1);
    let mut text = if exponent >= 0 {
        shifted(mantissa, exponent.unsigned_abs())
    } else {
        with_fraction(mantissa, exponent.unsigned_abs())
    };
    if value.is_negative() && text != "0" {
        text.insert(0, '-');
    }
    text
}

/// `mantissa × 2^shift` in decimal digits.
fn shifted(mantissa: u64, shift: u32) -> String {
    const BASE: u64 = 1_000_000_000;
    // Little-endian digits of 10^9.
    let mut digits: Vec<u64> = vec![mantissa % BASE, mantissa / BASE % BASE, mantissa / BASE / BASE];
    for step in (0..shift).step_by(32) {
        let mut carry = 0;
        for digit in &mut digits {
            let product = (*digit << (shift - step).min(32)) + carry;
            (*digit, carry) = (product % BASE, product / BASE);
        }
        while carry > 0 {
            digits.push(carry % BASE);
            carry /= BASE;
        }
    }
    let text: String = digits.iter().rev().map(|digit| format!("{digit:09}")).collect();
    match text.trim_start_matches('0') {
        "" => "0".to_owned(),
        number => number.to_owned(),
    }
}

/// `mantissa / 2^shift`, rounded half to even at [`FRACTION_DIGITS`].
fn with_fraction(mantissa: u64, shift: u32) -> String {
    // Beyond this the number is below 2^64 / 2^124 < 10^-18 and prints as zero.
    if shift > 124 {
        return "0".to_owned();
    }
    let scale = 1u128 << shift;
    let mut whole = u128::from(mantissa) / scale;
    let mut rest = u128::from(mantissa) % scale;
    let mut fraction: u64 = 0;
    for _ in 0..FRACTION_DIGITS {
        // `rest` is below 2^124, so ten times it fits.
        rest *= 10;
        fraction = fraction * 10 + (rest / scale) as u64;
        rest %= scale;
    }
    if rest * 2 > scale || (rest * 2 == scale && fraction % 2 == 1) {
        fraction += 1;
        if fraction == 10u64.pow(FRACTION_DIGITS) {
            (fraction, whole) = (0, whole + 1);
        }
    }
    let digits = format!("{fraction:017}");
    match digits.trim_end_matches('0') {
        "" => whole.to_string(),
        digits => format!("{whole}.{digits}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(left: &str, right: &str) -> String {
        format(add(parse(left.as_bytes()).unwrap(), parse(right.as_bytes()).unwrap()).unwrap())
    }

    /// The right-hand sides were printed by redis-server 7.0.15 on x86-64.
    #[test]
    fn sums_print_as_redis_prints_them() {
        assert_eq!(sum("0.1", "0.2"), "0.3");
        assert_eq!(sum("10.50", "0.1"), "10.6");
        assert_eq!(sum("5.0e3", "2.0e2"), "5200");
        assert_eq!(sum("1", "-1"), "0");
        assert_eq!(sum("0", "-0.5"), "-0.5");
        assert_eq!(sum("0", "1e30"), "1000000000000000000024696061952");
        assert_eq!(sum("1000.1", "0"), "1000.09999999999999998");
        assert_eq!(sum("1000.1", "0.2"), "1000.29999999999999999");
        assert_eq!(sum("123456789.123456789", "0"), "123456789.12345678899873747");
        assert_eq!(sum("99999999999999999999.5", "0"), "100000000000000000000");
        assert_eq!(sum("0", "1e-17"), "0.00000000000000001");
        assert_eq!(sum("0", "1e-30"), "0");
        assert_eq!(sum("+3.", ".5"), "3.5");
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", " 1", "1 ", "abc", "1e", "1e+", ".", "e5", "1..2", "nan", "--1", "1e999999", "1_0"] {
            assert!(parse(text.as_bytes()).is_none(), "{text}");
        }
    }

    /// As redis-server 7.0.15 does: what is so small that zero is left of it is refused.
    #[test]
    fn exponents_are_read_as_redis_reads_them() {
        assert_eq!(sum("1", "1e000001"), "11");
        assert_eq!(sum("1", "1e-0000000003"), "1.001");
        assert_eq!(sum("1", "0.0e-5000"), "1");
        assert_eq!(sum("1", "1e-4950"), "1");
        assert_eq!(sum("1", "-0e18446744073709551616"), "1");
        for text in ["1e-5000", "-0.1e-4999", "1e-999999"] {
            assert!(parse(text.as_bytes()).is_none(), "{text}");
        }
    }

    /// The right-hand sides were printed by redis-server 7.0.15; hexadecimal numbers were refused.
    #[test]
    fn hexadecimal_numbers_are_read_as_redis_reads_them() {
        assert_eq!(sum("0", "0x10"), "16");
        assert_eq!(sum("16", "0x1p4"), "32");
        assert_eq!(sum("32", "0X.8p-1"), "32.25");
        assert_eq!(sum("32.25", "-0x1.8"), "30.75");
        assert_eq!(sum("30.75", "0x1p-16445"), "30.75");
        assert_eq!(sum("30.75", "0x1.fffffffffffffffffffp0"), "32.75");
        assert_eq!(sum("0", "0x10000000000000000000000000000001"), "21267647932558653966460912964485513216");
        assert_eq!(sum("1", "0x0.P+0099999999999999999999"), "1");
        for text in
            ["0x", "0xg", "0x.", "0x1p", "0x1p+", "0x1pf", "0x1p99999", "0x1p-99999", "x1", "0x-1", "0x0x1"]
        {
            assert!(parse(text.as_bytes()).is_none(), "{text}");
        }
    }

    /// As many digits as a value may have occupied a thread for minutes.
    #[test]
    fn a_number_is_at_most_as_long_as_in_redis() {
        let digits = |count: usize| parse("0".repeat(count).as_bytes());
        assert!(digits(TEXT_BYTES_MAX).is_some());
        assert!(digits(TEXT_BYTES_MAX + 1).is_none());
        let printed = format(parse(b"-1.1e4932").unwrap());
        assert!(parse(printed.as_bytes()).is_some(), "{} bytes", printed.len());
    }

    #[test]
    fn a_sum_out_of_range_is_refused() {
        let infinite = parse(b"-inf").unwrap();
        assert!(add(parse(b"1").unwrap(), infinite).is_none());
        let largest = parse(b"1e4932").unwrap();
        assert!(add(largest, largest).is_none());
    }
}
