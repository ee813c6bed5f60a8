//! Inline commands: a line typed into telnet or netcat, split into words the way Redis splits it.
//!
//! Words are separated by white space. `"..."` knows the escapes `\n \r \t \b \a \xHH` and `\` before any
//! other character; `'...'` knows only `\'`. A closing quote must be followed by white space or the end of
//! the line.

use super::decoder::{ProtocolError, Span};

/// Splits `line` into words: their bytes go to `bytes`, where they lie there to `spans`.
pub(super) fn split(line: &[u8], bytes: &mut Vec<u8>, spans: &mut Vec<Span>) -> Result<(), ProtocolError> {
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Ok(());
        }
        let start = bytes.len();
        rest = word(rest, bytes)?;
        spans.push(Span::new(start, bytes.len()));
    }
}

/// Appends the word at the start of `rest` to `bytes` and returns what follows it.
fn word<'a>(mut rest: &'a [u8], bytes: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    while let Some((&first, tail)) = rest.split_first() {
        match first {
            b'"' => return after_quote(double_quoted(tail, bytes)?),
            b'\'' => return after_quote(single_quoted(tail, bytes)?),
            _ if first.is_ascii_whitespace() => return Ok(rest),
            _ => bytes.push(first),
        }
        rest = tail;
    }
    Ok(rest)
}

fn after_quote(rest: &[u8]) -> Result<&[u8], ProtocolError> {
    match rest.first() {
        Some(next) if !next.is_ascii_whitespace() => Err(ProtocolError::UnbalancedQuotes),
        _ => Ok(rest),
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], bytes: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        match rest {
            [b'"', tail @ ..] => return Ok(tail),
            [b'\\', b'x', high, low, tail @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                bytes.push(hex_digit(*high) << 4 | hex_digit(*low));
                rest = tail;
            }
            [b'\\', escaped, tail @ ..] => {
                bytes.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                rest = tail;
            }
            [plain, tail @ ..] => {
                bytes.push(*plain);
                rest = tail;
            }
            [] => return Err(ProtocolError::UnbalancedQuotes),
        }
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], bytes: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        match rest {
            [b'\'', tail @ ..] => return Ok(tail),
            [b'\\', b'\'', tail @ ..] => {
                bytes.push(b'\'');
                rest = tail;
            }
            [plain, tail @ ..] => {
                bytes.push(*plain);
                rest = tail;
            }
            [] => return Err(ProtocolError::UnbalancedQuotes),
        }
    }
}

fn hex_digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit.to_ascii_uppercase() - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
        let (mut bytes, mut spans) = (Vec::new(), Vec::new());
        split(line, &mut bytes, &mut spans)?;
        Ok(spans.iter().map(|span| span.of(&bytes).to_vec()).collect())
    }

    #[test]
    fn plain_words_are_separated_by_white_space() {
        assert_eq!(words(b"  set  a\tb ").unwrap(), [b"set".to_vec(), b"a".to_vec(), b"b".to_vec()]);
        assert!(words(b"   ").unwrap().is_empty());
    }

    #[test]
    fn quotes_keep_white_space_and_escapes_are_decoded() {
        assert_eq!(
            words(br#"set "a b" "\x41\n\"" 'it\'s'"#).unwrap(),
            [b"set".to_vec(), b"a b".to_vec(), b"A\n\"".to_vec(), b"it's".to_vec()]
        );
        assert_eq!(words(br#"echo """#).unwrap(), [b"echo".to_vec(), b"".to_vec()]);
        assert_eq!(
            words(br#""\r\t\b\a\\" "\xg1\x1g\xFf""#).unwrap(),
            [b"\r\t\x08\x07\\".to_vec(), b"xg1x1g\xFF".to_vec()]
        );
    }

    #[test]
    fn open_quotes_and_text_right_after_a_quote_are_refused() {
        for line in [br#"set "a"#.as_slice(), b"set 'a", br#"set "a"b"#, br#"set "a\"#, b"set 'a\\"] {
            assert_eq!(words(line), Err(ProtocolError::UnbalancedQuotes), "{}", line.escape_ascii());
        }
    }
}
