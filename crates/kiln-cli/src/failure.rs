//! Why a command did not do what it was asked to: one line, which says what to do.

use std::error::Error as _;
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
    /// Whoever reads what the command tells has had enough of it, as `head` has. That is no failure.
    Enough,
}

impl Failure {
    /// A failure of the system while `doing` something to `path`.
    pub(crate) fn io(doing: &str, path: &Path, error: io::Error) -> Self {
        Self::Io { doing: format!("{doing} {}", path.display()), error }
    }

    /// A failure to write the result, all of which is needed.
    pub(crate) fn output(error: io::Error) -> Self {
        Self::Io { doing: "writing the output".to_owned(), error }
    }

    /// A failure to write what somebody reads, as far as he likes.
    pub(crate) fn report(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Enough,
            _ => Self::output(error),
        }
    }

    /// As [`Self::report`], of what the engine writes: an error whose cause is the output's, or its own.
    pub(crate) fn report_of_engine(error: kiln::Error) -> Self {
        match cause_of(&error) {
            Some(io::ErrorKind::BrokenPipe) => Self::Enough,
            _ => Self::Engine(error),
        }
    }

    /// A database that cannot be opened, or made.
    pub(crate) fn opening(dir: &Path, error: kiln::Error) -> Self {
        match cause_of(&error) {
            // Without this file there is none.
            Some(io::ErrorKind::ReadOnlyFilesystem) if dir.join("superblock").exists() => {
                Self::Other(format!(
                    "{}; to open it is to write to it: kiln restore makes a copy elsewhere, and kiln check and kiln dump-log only read",
                    one_line(&error.to_string())
                ))
            }
            _ => Self::Engine(error),
        }
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
                    ErrorKind::Locked => f.write_str(", or ask its server with redis-cli instead"),
                    _ => Ok(()),
                }
            }
            Self::Io { doing, error } => write!(f, "{doing}: {error}"),
            Self::Other(text) => f.write_str(text),
            Self::Enough => f.write_str("nobody reads the output any more"),
        }
    }
}

/// What the system said.
fn cause_of(error: &kiln::Error) -> Option<io::ErrorKind> {
    error.source()?.downcast_ref().map(io::Error::kind)
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}
