//! Bytes as text that a terminal can show and a line can hold.

/// `bytes` with everything escaped that is not printable text: `\n`, `\r`, `\t`, `\\`, and `\xHH` for other
/// control characters and for bytes that are not UTF-8.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                control if control.is_control() => {
                    let mut utf8 = [0; 4];
                    control.encode_utf8(&mut utf8).bytes().for_each(|byte| hex(byte, &mut text));
                }
                printable => text.push(printable),
            }
        }
        chunk.invalid().iter().for_each(|byte| hex(*byte, &mut text));
    }
    text
}

fn hex(byte: u8, text: &mut String) {
    text.push_str(&format!("\\x{byte:02x}"));
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn text_stays_readable_and_everything_else_is_escaped() {
        assert_eq!(escape("größe 1".as_bytes()), "größe 1");
        assert_eq!(escape(b"a\tb\\\n\0\x1b[1m\xff"), r"a\tb\\\n\x00\x1b[1m\xff");
        assert_eq!(escape("\u{85}".as_bytes()), r"\xc2\x85");
    }
}
