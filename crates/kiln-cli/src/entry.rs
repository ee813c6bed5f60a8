//! One line of `import` and `export`.
//!
//! ```text
//! {"key":"a","value":"text"}
//! {"key":{"base64":"/w=="},"value":{"base64":"AP8="}}        bytes that are not UTF-8
//! {"key":"b","value":"text","expires_at_ms":1767225600000}    a row that expires: when, since 1970
//! {"key":"c","value":"text","expires_at_ms":"never"}          a row that stays, though others of its object expire
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln::Expiry;
use serde::{Deserialize, Deserializer, Serialize};

/// A key and its value, and when it expires.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) key: Text,
    pub(crate) value: Text,
    /// What is absent is left to the object.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "when")]
    pub(crate) expires_at_ms: Option<When>,
}

impl Entry {
    /// The entry in a line.
    pub(crate) fn from_line(line: &[u8]) -> serde_json::Result<Self> {
        // An array of its fields would do, too.
        match line.trim_ascii_start().starts_with(b"{") {
            true => serde_json::from_slice(line),
            false => Err(serde::de::Error::custom("it does not begin with '{'")),
        }
    }
}

/// A time if the field is there: `null` is none, and might mean never as well as the object's time to live.
fn when<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<When>, D::Error> {
    When::deserialize(deserializer).map(Some)
}

/// When a row expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "milliseconds since 1970, or \"never\"")]
pub(crate) enum When {
    /// In milliseconds since 1970.
    At(u64),
    Never(Never),
}

/// The word for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Never {
    Never,
}

impl From<When> for Expiry {
    fn from(when: When) -> Expiry {
        match when {
            When::At(at_ms) => Expiry::At(at_ms),
            When::Never(Never::Never) => Expiry::Never,
        }
    }
}

impl TryFrom<Expiry> for When {
    type Error = String;

    fn try_from(expiry: Expiry) -> Result<Self, String> {
        match expiry {
            Expiry::At(at_ms) => Ok(Self::At(at_ms)),
            Expiry::Never => Ok(Self::Never(Never::Never)),
            Expiry::In(_) => Err(format!("this is no time at which a key expires: {expiry:?}")),
        }
    }
}

/// Bytes: as a string where they are one.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a string or {\"base64\": \"...\"}")]
pub(crate) enum Text {
    Utf8(String),
    Binary(Binary),
}

/// Bytes that are not UTF-8. No struct, for which an array would do, too.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Binary {
    Base64(String),
}

impl Text {
    /// The bytes, in the form that fits them.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Utf8(text),
            Err(error) => Self::Binary(Binary::Base64(STANDARD.encode(error.as_bytes()))),
        }
    }

    /// The bytes.
    pub(crate) fn into_bytes(self) -> Result<Vec<u8>, String> {
        match self {
            Self::Utf8(text) => Ok(text.into_bytes()),
            Self::Binary(Binary::Base64(base64)) => {
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
            let read = Entry::from_line(line.as_bytes()).unwrap();
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
    fn a_time_is_a_whole_number_or_never_or_not_there() {
        for (field, time) in [
            ("", None),
            ("0", Some(When::At(0))),
            ("7", Some(When::At(7))),
            ("\"never\"", Some(When::Never(Never::Never))),
        ] {
            let field = if field.is_empty() { String::new() } else { format!(",\"expires_at_ms\":{field}") };
            let line = format!("{{\"key\":\"a\",\"value\":\"b\"{field}}}");
            let entry = Entry::from_line(line.as_bytes()).unwrap();
            assert_eq!(entry.expires_at_ms, time, "{line}");
            assert_eq!(serde_json::to_string(&entry).unwrap(), line);
        }
        for time in
            ["null", "\"Never\"", "{}", "-1", "1.5", "\"1\"", "18446744073709551616", "1,\"expires_at_ms\":2"]
        {
            let line = format!("{{\"key\":\"a\",\"value\":\"b\",\"expires_at_ms\":{time}}}");
            assert!(Entry::from_line(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn unknown_fields_and_other_types_are_refused() {
        for line in [
            r#"{"key":"a"}"#,
            r#"{"key":"a","value":1}"#,
            r#"{"key":"a","value":"b","ttl":1}"#,
            "[]",
            r#"["a","b",7]"#,
            r#"{"key":"a","value":["AP8="]}"#,
            r#"{"key":"a","value":{"base64":"AP8=","more":1}}"#,
            r#"{"key":"a","value":{}}"#,
        ] {
            assert!(Entry::from_line(line.as_bytes()).is_err(), "{line}");
        }
    }
}
