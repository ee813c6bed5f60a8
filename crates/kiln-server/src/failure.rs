//! How a command fails: with a reply that says why, or because the engine refused.

use std::borrow::Cow;

use kiln::ErrorKind;

/// The whole error reply where there is no memory for a request, or for its reply, beside those of all other clients.
pub(crate) const CLIENTS_HOLD_TOO_MUCH: &str =
    "LIMIT the requests and unread replies of all clients together take as much memory as they may; retry";

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The client asked for something impossible. The text is the whole error reply, its code included. A
    /// command that fails in this way has written nothing.
    Reply(Cow<'static, str>),
    /// The engine refused. Inside a transaction this ends the transaction (or makes it run again, on a
    /// conflict).
    Engine(kiln::Error),
    /// It takes too much, as the text says, which is as that of [`Failure::Reply`]. Whatever it has written, the transaction ends.
    Limit(&'static str),
    /// Others were in the way of the transaction again and again, and it was given up. No reply says so: it is run alone then.
    Crowded,
}

impl Failure {
    pub(crate) const SYNTAX: Self = Self::text("ERR syntax error");
    pub(crate) const NOT_AN_INTEGER: Self = Self::text("ERR value is not an integer or out of range");
    pub(crate) const NO_ROOM: Self = Self::Limit(CLIENTS_HOLD_TOO_MUCH);
    pub(crate) const NOT_A_FLOAT: Self = Self::text("ERR value is not a valid float");

    /// A fixed error reply.
    pub(crate) const fn text(text: &'static str) -> Self {
        Self::Reply(Cow::Borrowed(text))
    }

    /// The error reply.
    pub(crate) fn into_reply(self) -> Cow<'static, str> {
        match self {
            Self::Reply(text) => text,
            Self::Engine(error) => Cow::Owned(engine_error(&error)),
            Self::Limit(text) => Cow::Borrowed(text),
            Self::Crowded => Cow::Borrowed("CONFLICT others write what the transaction reads; retry"),
        }
    }
}

impl From<kiln::Error> for Failure {
    fn from(error: kiln::Error) -> Self {
        Self::Engine(error)
    }
}

/// The error reply for a refusal of the engine. Its code, the first word, tells a client's program what to
/// do: see `KILN HELP`.
pub(crate) fn engine_error(error: &kiln::Error) -> String {
    let code = match error.kind() {
        ErrorKind::Lost => "LOST",
        ErrorKind::NoSpace => "NOSPACE",
        ErrorKind::Limit => "LIMIT",
        ErrorKind::Conflict => "CONFLICT",
        ErrorKind::Locked => "LOCKED",
        ErrorKind::Corrupted => "CORRUPTED",
        _ => "ERR",
    };
    format!("{code} {error}")
}
