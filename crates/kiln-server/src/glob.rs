//! Redis' glob patterns over bytes, for `KEYS`, `SCAN ... MATCH` and `CONFIG GET`.
//!
//! `?` is any byte, `*` any run of bytes, `[abc]`, `[a-z]` and `[^a]` are sets, `\` takes the next byte
//! literally. Crates for globbing match *paths*: for them `/` ends a `*`, `{a,b}` and `**` mean something,
//! and names are text; none of this is so for keys.

use crate::failure::Failure;

/// The longest pattern: what matching takes grows with its length times the key's, and nobody else has the thread meanwhile.
const PATTERN_BYTES_MAX: usize = 1024;

/// The pattern, unless it is too long.
pub(crate) fn bounded(pattern: &[u8]) -> Result<&[u8], Failure> {
    match pattern.len() <= PATTERN_BYTES_MAX {
        true => Ok(pattern),
        false => Err(Failure::text("ERR the pattern is longer than 1 KiB")),
    }
}

/// Whether `text` matches `pattern`, both ASCII letters compared without case if `ignore_case`.
///
/// Only the last `*` is ever retried: if the text between two stars matched once, an earlier star that takes
/// more can only make the rest shorter. So the time is bounded by pattern × text, whatever the pattern.
pub(crate) fn matches(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    let (mut pattern_at, mut text_at) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(pattern_at) == Some(&b'*') {
            pattern_at += 1;
            retry = Some((pattern_at, text_at));
            continue;
        }
        match text.get(text_at) {
            None if pattern_at == pattern.len() => return true,
            None => return false,
            Some(&byte) => match element(&pattern[pattern_at..], byte, ignore_case) {
                Some(length) => {
                    pattern_at += length;
                    text_at += 1;
                }
                None => match &mut retry {
                    None => return false,
                    Some((after_star, from)) => {
                        *from += 1;
                        (pattern_at, text_at) = (*after_star, *from);
                    }
                },
            },
        }
    }
}

/// The length of the pattern's first element if it matches `byte`.
fn element(pattern: &[u8], byte: u8, ignore_case: bool) -> Option<usize> {
    let fold = |byte: u8| if ignore_case { byte.to_ascii_lowercase() } else { byte };
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', set @ ..] => {
            let (found, length) = set_contains(set, fold(byte), fold);
            found.then_some(1 + length)
        }
        [b'\\', literal, ..] => (fold(*literal) == fold(byte)).then_some(2),
        [literal, ..] => (fold(*literal) == fold(byte)).then_some(1),
    }
}

/// Whether the set whose text follows `[` contains `byte`, and how long that text is, the `]` included. A set
/// without an end reaches to the end of the pattern, as in Redis.
fn set_contains(set: &[u8], byte: u8, fold: impl Fn(u8) -> u8) -> (bool, usize) {
    let negated = set.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    while at < set.len() && set[at] != b']' {
        let member = match &set[at..] {
            [b'\\', literal, ..] => {
                at += 2;
                (*literal, *literal)
            }
            [low, b'-', high, ..] => {
                at += 3;
                (*low, *high)
            }
            [literal, ..] => {
                at += 1;
                (*literal, *literal)
            }
            [] => break,
        };
        let (low, high) = (fold(member.0), fold(member.1));
        found |= (low.min(high)..=low.max(high)).contains(&byte);
    }
    (found != negated, (at + 1).min(set.len()))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[track_caller]
    fn check(pattern: &str, yes: &[&str], no: &[&str]) {
        for text in yes {
            assert!(matches(pattern.as_bytes(), text.as_bytes(), false), "{pattern} must match {text}");
        }
        for text in no {
            assert!(!matches(pattern.as_bytes(), text.as_bytes(), false), "{pattern} must not match {text}");
        }
    }

    #[test]
    fn patterns_mean_what_they_mean_in_redis() {
        check("*", &["", "a", "a/b"], &[]);
        check("h?llo", &["hello", "hallo"], &["hllo", "heello"]);
        check("h*llo", &["hllo", "heeeello", "h/llo"], &["hllo1"]);
        check("h[ae]llo", &["hello", "hallo"], &["hillo"]);
        check("h[^e]llo", &["hallo"], &["hello"]);
        check("h[b-a]llo", &["hallo", "hbllo"], &["hcllo"]);
        check(r"h\*llo", &["h*llo"], &["hallo"]);
        check(r"[\]]", &["]"], &["a"]);
        check("[a", &["a"], &["b"]);
        check("[]", &[], &["", "]", "a"]);
        check("a*b*c", &["abc", "a-b-b-c"], &["acb", "ab"]);
        check("{a,b}", &["{a,b}"], &["a"]);
        check("", &[""], &["a"]);
    }

    #[test]
    fn case_is_ignored_on_request() {
        assert!(matches(b"MAX*[Y]", b"maxmemory", true));
        assert!(!matches(b"MAX*", b"maxmemory", false));
    }

    #[test]
    fn a_pattern_of_many_stars_takes_bounded_time() {
        let (pattern, text) = ("a*".repeat(200) + "b", "a".repeat(20_000));
        assert!(!matches(pattern.as_bytes(), text.as_bytes(), false));
    }
}
