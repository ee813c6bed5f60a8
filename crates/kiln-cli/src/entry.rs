//! One line of `import` and `export`.
//!
//! ```text
//! {"key":"a","value":"text"}
//! {"key":{"base64":"/w=="},"value":{"base64":"AP8="}}        bytes that are not UTF-8
//! {"key":"b","value":"text","expires_at_ms":1767225600000}    a row that expires: when, since 1970
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize};

/// A key and its value, and when it expires.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) key: Text,
    pub(crate) value: Text,
    /// In milliseconds since 1970; what is absent is left to the object.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "time_ms")]
    pub(crate) expires_at_ms: Option<u64>,
}

/// A time if the field is there: `null` is none, and might mean never as well as the object's time to live.
fn time_ms<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    u64::deserialize(deserializer).map(Some)
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
            let (key, value) = (Text::new(bytes.to_vec()), Text::new(bytes.to_vec()));
            let entry = Entry { key, value, expires_at_ms: None };
            let line = serde_json::to_string(&entry).unwrap();
            let read: Entry = serde_json::from_str(&line).unwrap();
            assert_eq!(read.value.into_bytes().unwrap(), bytes);
            assert_eq!(read.key.into_bytes().unwrap(), bytes);
        }
    }

    #[test]
    fn text_is_written_as_a_string_and_bytes_as_base64() {
        let (key, value) = (Text::new(b"a".to_vec()), Text::new(vec![0, 255]));
        let entry = Entry { key, value, expires_at_ms: None };
        assert_eq!(serde_json::to_string(&entry).unwrap(), r#"{"key":"a","value":{"base64":"AP8="}}"#);
    }

    #[test]
    fn a_time_is_a_whole_number_or_not_there() {
        for (field, time) in
            [("", None), (",\"expires_at_ms\":0", Some(0)), (",\"expires_at_ms\":7", Some(7))]
        {
            let line = format!("{{\"key\":\"a\",\"value\":\"b\"{field}}}");
            let entry: Entry = serde_json::from_str(&line).unwrap();
            assert_eq!(entry.expires_at_ms, time, "{line}");
            assert_eq!(serde_json::to_string(&entry).unwrap(), line);
        }
        for time in ["null", "-1", "1.5", "\"1\"", "18446744073709551616", "1,\"expires_at_ms\":2"] {
            let line = format!("{{\"key\":\"a\",\"value\":\"b\",\"expires_at_ms\":{time}}}");
            assert!(serde_json::from_str::<Entry>(&line).is_err(), "{line}");
        }
    }

    #[test]
    fn unknown_fields_and_other_types_are_refused() {
        for line in [r#"{"key":"a"}"#, r#"{"key":"a","value":1}"#, r#"{"key":"a","value":"b","ttl":1}"#, "[]"]
        {
            assert!(serde_json::from_str::<Entry>(line).is_err(), "{line}");
        }
    }
}
