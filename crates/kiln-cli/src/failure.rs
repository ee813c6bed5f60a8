//! Why a command did not do what it was asked to: one line, which says what to do.

use std::fmt;
use std::io;
use std::path::Path;

use kiln::ErrorKind;

/// A failure, as the user reads it.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The engine refused.
    Engine(kiln::Error),
    /// The system refused. `doing` says what was being done.
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        error: io::Error,
    },
    /// Something that was asked for is not so.
    Other(String),
}

impl Failure {
    /// A failure of the system while `doing` something to `path`.
    pub(crate) fn io(doing: &str, path: &Path, error: io::Error) -> Self {
        Self::Io { doing: format!("{doing} {}", path.display()), error }
    }

    /// A failure to write the result.
    pub(crate) fn output(error: io::Error) -> Self {
        Self::Io { doing: "writing the output".to_owned(), error }
    }
}

impl From<kiln::Error> for Failure {
    fn from(error: kiln::Error) -> Self {
        Self::Engine(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(error) => {
                f.write_str(&one_line(&error.to_string()))?;
                match error.kind() {
                    ErrorKind::Locked => {
                        f.write_str("; stop that process, or ask its server with redis-cli instead")
                    }
                    _ => Ok(()),
                }
            }
            Self::Io { doing, error } => write!(f, "{doing}: {error}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}
