//! What a transaction says when it refuses an operation.

use crate::error::{Error, ErrorKind};

#[cold]
pub(super) fn has_failed() -> Error {
    let what = "this transaction has failed already and is aborted; begin a new one";
    Error::new(ErrorKind::Aborted, what)
}

#[cold]
pub(super) fn is_too_old() -> Error {
    Error::new(
        ErrorKind::Limit,
        "the transaction is older than transaction_age allows and is aborted; make it shorter, or raise the limit",
    )
}

#[cold]
pub(super) fn is_nested() -> Error {
    Error::input(
        "a transaction's operation was called from within the closure of another one of its operations; call it before or afterwards",
    )
}

#[cold]
pub(super) fn is_foreign_watch() -> Error {
    Error::input(
        "the watch is of another database, or was made before this one was opened; watch the key anew",
    )
}

#[cold]
pub(super) fn too_many_entries(most: usize) -> Error {
    Error::new(
        ErrorKind::Limit,
        format!(
            "the transaction has more than {most} entries, one for each read and each key that it writes, and is aborted; split it, or raise transaction_entries"
        ),
    )
}

#[cold]
pub(super) fn too_many_bytes(bytes: usize, most: usize) -> Error {
    Error::new(
        ErrorKind::Limit,
        format!(
            "the transaction writes {bytes} bytes, more than the {most} allowed, and is aborted; split it, or raise transaction_bytes (or the memory)"
        ),
    )
}
