//! One line of `import` and `export`.
//!
//! ```text
//! {"key":"a","value":"text"}
//! {"key":{"base64":"/w=="},"value":{"base64":"AP8="}}        bytes that are not UTF-8
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// A key and its value.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) key: Text,
    pub(crate) value: Text,
}

/// Bytes: as a string where they are one.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a string or {\"base64\": \"...\"}")]
pub(crate) enum Text {
    Utf8(String),
    Binary(Binary),
}

/// Bytes that are not UTF-8.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Binary {
    base64: String,
}

impl Text {
    /// The bytes, in the form that fits them.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Utf8(text),
            Err(error) => Self::Binary(Binary { base64: STANDARD.encode(error.as_bytes()) }),
        }
    }

    /// The bytes.
    pub(crate) fn into_bytes(self) -> Result<Vec<u8>, String> {
        match self {
            Self::Utf8(text) => Ok(text.into_bytes()),
            Self::Binary(Binary { base64 }) => {
                STANDARD.decode(base64).map_err(|error| format!("not valid base64: {error}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_round_trip() {
        for bytes in [b"".as_slice(), b"text", b"\0", b"\xff\xfe", "ü".as_bytes()] {
            let entry = Entry { key: Text::new(bytes.to_vec()), value: Text::new(bytes.to_vec()) };
            let line = serde_json::to_string(&entry).unwrap();
            let read: Entry = serde_json::from_str(&line).unwrap();
            assert_eq!(read.value.into_bytes().unwrap(), bytes);
            assert_eq!(read.key.into_bytes().unwrap(), bytes);
        }
    }

    #[test]
    fn text_is_written_as_a_string_and_bytes_as_base64() {
        let entry = Entry { key: Text::new(b"a".to_vec()), value: Text::new(vec![0, 255]) };
        assert_eq!(serde_json::to_string(&entry).unwrap(), r#"{"key":"a","value":{"base64":"AP8="}}"#);
    }

    #[test]
    fn unknown_fields_and_other_types_are_refused() {
        for line in [r#"{"key":"a"}"#, r#"{"key":"a","value":1}"#, r#"{"key":"a","value":"b","ttl":1}"#, "[]"]
        {
            assert!(serde_json::from_str::<Entry>(line).is_err(), "{line}");
        }
    }
}
