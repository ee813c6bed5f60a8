//! Transactions: run until they do not conflict, or begun, to be committed by hand.

use super::Kiln;
use crate::error::{Error, Result};
use crate::kernel::receipt::Commit;
use crate::kernel::transaction::{self, Isolation, Transaction};
use crate::planted::{Bug, planted};

impl Kiln {
    /// Runs a strictly serializable transaction and commits it; if it conflicts with others, it is run again, whatever the
    /// closure made of that. The closure must therefore have no effects besides those on the transaction.
    ///
    /// # Errors
    /// The closure's own, and those of [`Transaction::commit`] other than `Conflict`.
    pub fn transact<T>(&self, body: impl FnMut(&Transaction<'_>) -> Result<T>) -> Result<Commit<'_, T>> {
        self.transact_with(Isolation::Serializable, body)
    }

    /// As [`Self::transact`], with the isolation given.
    ///
    /// # Errors
    /// As [`Self::transact`].
    pub fn transact_with<T>(
        &self,
        isolation: Isolation,
        body: impl FnMut(&Transaction<'_>) -> Result<T>,
    ) -> Result<Commit<'_, T>> {
        transaction::run(self.engine(), isolation, body)
    }

    /// As [`Self::transact`], of a closure with errors of its own. These end it, and nothing was written, unless one of its operations has failed with a conflict: then it is run again, as
    /// by [`Self::transact`], whatever the closure made of that.
    ///
    /// The closure's result says of which type they are, which [`Self::transact`] need not be told.
    ///
    /// ```
    /// #[derive(Debug)]
    /// enum Refused {
    ///     Missing(i64),
    ///     Failed(kiln::Error),
    /// }
    /// impl From<kiln::Error> for Refused {
    ///     fn from(error: kiln::Error) -> Refused {
    ///         Refused::Failed(error)
    ///     }
    /// }
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let db = kiln::Kiln::open(directory.path())?;
    /// let accounts = db.map("accounts")?;
    /// db.add(&accounts, "alice", 5)?.safe()?;
    /// let taken = db.try_transact(|tx| match tx.add(&accounts, "alice", -8)? {
    ///     left if left < 0 => Err(Refused::Missing(-left)),
    ///     left => Ok(left),
    /// });
    /// assert!(matches!(taken, Err(Refused::Missing(3))));
    /// assert_eq!(db.add(&accounts, "alice", 0)?.forget(), 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The closure's own, and those of [`Transaction::commit`] other than `Conflict`, as such.
    pub fn try_transact<T, E: From<Error>>(
        &self,
        body: impl FnMut(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<Commit<'_, T>, E> {
        self.try_transact_with(Isolation::Serializable, body)
    }

    /// As [`Self::try_transact`], with the isolation given.
    ///
    /// # Errors
    /// As [`Self::try_transact`].
    pub fn try_transact_with<T, E: From<Error>>(
        &self,
        isolation: Isolation,
        body: impl FnMut(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<Commit<'_, T>, E> {
        transaction::try_run(self.engine(), isolation, body, |_| false)
    }

    /// Begins a strictly serializable transaction, to be committed by hand.
    ///
    /// # Errors
    /// `Limit` if too many are open.
    pub fn begin(&self) -> Result<Transaction<'_>> {
        self.begin_with(Isolation::Serializable)
    }

    /// Begins a transaction with the isolation given, to be committed by hand.
    ///
    /// # Errors
    /// `Limit` if too many are open.
    pub fn begin_with(&self, isolation: Isolation) -> Result<Transaction<'_>> {
        Transaction::begin(self.engine(), isolation, true)
    }

    /// Reads the latest state, and returns once all that was read is durable (a *safe* read). Writes made by the
    /// closure are an error.
    ///
    /// # Errors
    /// The closure's own; `Lost` if what was read does not become durable.
    pub fn read_safe<T>(&self, mut body: impl FnMut(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let commit = self.transact(|tx| {
            let value = body(tx)?;
            match tx.is_read_only()? {
                true => Ok(value),
                false => Err(Error::input("read_safe is for reading; use transact to write")),
            }
        })?;
        if planted(Bug::SafeReadDoesNotWait) { Ok(commit.forget()) } else { commit.safe() }
    }
}
