//! Measured numbers as text: three significant digits, because rounds differ by more than the fourth.

/// A number with three significant digits, or all digits of its whole part. "-" if it is none.
pub(crate) fn significant(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let digits = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        size if size >= 0.0005 => 3,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// A number of operations in a second, with k for thousands and M for millions.
pub(crate) fn rate(value: f64) -> String {
    scaled(value, &[(1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, "")])
}

/// A number of bytes, in powers of 1024.
pub(crate) fn bytes(value: f64) -> String {
    let [kib, mib, gib] = [10, 20, 30].map(|bits| (1_u64 << bits) as f64);
    scaled(value, &[(gib, " GiB"), (mib, " MiB"), (kib, " KiB"), (1.0, " B")])
}

/// A time given in microseconds, in the unit that suits it.
pub(crate) fn microseconds(value: f64) -> String {
    scaled(value, &[(1e6, " s"), (1e3, " ms"), (1.0, " us")])
}

/// A duration given in milliseconds, exactly: what a window was set to.
pub(crate) fn window(milliseconds: u64) -> String {
    if milliseconds != 0 && milliseconds.is_multiple_of(1000) {
        format!("{} s", milliseconds / 1000)
    } else {
        format!("{milliseconds} ms")
    }
}

/// The text of a round value without the zeros behind its point: 1.50 M is 1.5 M.
pub(crate) fn trimmed(text: &str) -> String {
    let (number, unit) = text.split_at(text.find(' ').unwrap_or(text.len()));
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number}{unit}")
}

/// The value in the largest unit of which it is at least one when rounded; units go from large to small.
fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    // Below this, three digits still round down to less than one unit.
    const ROUNDED_TO_ONE: f64 = 0.9995;
    let unit = units.iter().find(|(size, _)| value.abs() >= size * ROUNDED_TO_ONE);
    let (size, name) = unit.or(units.last()).copied().unwrap_or((1.0, ""));
    format!("{}{name}", significant(value / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_values_have_no_zeros_behind_the_point() {
        let texts = [0.0, 0.5, 10.0, 1500.0, 2e6, 100e3, 25e6].map(|value| trimmed(&rate(value)));
        assert_eq!(texts, ["0", "0.5", "10", "1.5 k", "2 M", "100 k", "25 M"]);
        assert_eq!(trimmed("-"), "-");
    }

    #[test]
    fn three_digits_are_left_of_a_number() {
        for (value, text) in [
            (0.0, "0"),
            (0.012_34, "0.012"),
            (0.999_9, "1.00"),
            (1.234, "1.23"),
            (9.999, "10.0"),
            (12.34, "12.3"),
            (99.99, "100"),
            (12345.6, "12346"),
            (f64::NAN, "-"),
            (f64::INFINITY, "-"),
        ] {
            assert_eq!(significant(value), text, "{value}");
        }
    }

    #[test]
    fn a_unit_is_taken_when_the_rounded_value_fills_it() {
        assert_eq!(rate(999.4), "999");
        assert_eq!(rate(999.6), "1.00 k");
        assert_eq!(rate(203_700.0), "204 k");
        assert_eq!(rate(1_234_000.0), "1.23 M");
        assert_eq!(rate(120e6), "120 M");
        assert_eq!(bytes(652.0 * 1024.0 * 1024.0), "652 MiB");
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(microseconds(186.4), "186 us");
        assert_eq!(microseconds(5_012_000.0), "5.01 s");
        assert_eq!(microseconds(f64::NAN), "-");
        assert_eq!(window(100), "100 ms");
        assert_eq!(window(5000), "5 s");
        assert_eq!(window(0), "0 ms");
    }
}
