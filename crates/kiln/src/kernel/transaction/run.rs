//! Transactions that are run until they do not conflict.

use std::sync::Arc;

use super::{Isolation, Transaction};
use crate::error::{Error, Result};
use crate::kernel::backoff::Backoff;
use crate::kernel::engine::Engine;
use crate::kernel::receipt::Commit;

/// Runs a transaction until it does not conflict, pausing longer and longer, and by chance, in between.
pub(crate) fn run<'db, T>(
    engine: &'db Arc<Engine>,
    isolation: Isolation,
    body: impl FnMut(&Transaction<'_>) -> Result<T>,
) -> Result<Commit<'db, T>> {
    try_run(engine, isolation, body, Error::is_conflict)
}

/// As [`run`], of a body with errors of its own: whether one of them is a conflict that no operation of the transaction has told, `is_conflict` says.
pub(crate) fn try_run<'db, T, E: From<Error>>(
    engine: &'db Arc<Engine>,
    isolation: Isolation,
    mut body: impl FnMut(&Transaction<'_>) -> Result<T, E>,
    is_conflict: impl Fn(&E) -> bool,
) -> Result<Commit<'db, T>, E> {
    let mut backoff = Backoff::default();
    loop {
        let transaction = Transaction::begin(engine, isolation, false)?;
        let failure = match body(&transaction) {
            Ok(value) => match transaction.commit_now() {
                Ok(version) => return Ok(Commit::new(engine, version, value)),
                Err(error) => Some(error).filter(|error| !error.is_conflict()).map(E::from),
            },
            Err(error) => Some(error).filter(|error| !is_conflict(error)),
        };
        match failure {
            // A body that does not look at an operation's error goes by what it has not read: what it makes of that counts for nothing.
            Some(error) if !transaction.has_conflicted.get() => return Err(error),
            _ => {
                drop(transaction);
                backoff.pause();
            }
        }
    }
}
