//! The error of a device operation: what was tried, on which file, and what the operating system said.

use std::error::Error;
use std::fmt;
use std::io;

use rustix::io::Errno;

/// What an [`io::Error`] of a [`Device`](super::Device) carries: the operation, the file, and the cause.
///
/// An `io::Error` with a message of its own can no longer tell the operating system's error number; this
/// type keeps it within reach, through [`DeviceError::of`] and [`DeviceError::raw_os_error`].
#[derive(Debug)]
pub struct DeviceError {
    operation: &'static str,
    file: String,
    cause: io::Error,
}

impl DeviceError {
    /// Wraps `cause` so that its kind stays and its message names operation and file. `operation` is a verb
    /// that completes "cannot ...".
    pub(super) fn wrap(
        operation: &'static str,
        file: impl Into<String>,
        cause: impl Into<io::Error>,
    ) -> io::Error {
        let cause = cause.into();
        io::Error::new(cause.kind(), DeviceError { operation, file: file.into(), cause })
    }

    /// The device error inside `error`, if it came from a device.
    pub fn of(error: &io::Error) -> Option<&DeviceError> {
        error.get_ref()?.downcast_ref()
    }

    /// What was tried: a verb such as "read" or "sync".
    pub fn operation(&self) -> &str {
        self.operation
    }

    /// The file or directory on which it was tried, as [`Device::describe`](super::Device::describe) calls
    /// it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The operating system's error number, if the cause was one.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.cause.raw_os_error()
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cannot {} {}: {}", self.operation, self.file, self.cause)?;
        match self.raw_os_error().map(Errno::from_raw_os_error) {
            // A log has a file for each of its segments.
            Some(Errno::MFILE) => formatter.write_str("; raise the limit of open files (ulimit -n)"),
            _ => Ok(()),
        }
    }
}

impl Error for DeviceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.cause)
    }
}
