//! What a merge brings: changes in the order of their keys, one at a time, with a look at those that follow.

use std::collections::VecDeque;

use super::merge::INLINE_BYTES_MAX;
use crate::error::{Error, Result};

/// A key's new value, or that it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) key: &'a [u8],
    /// `None`: the key goes.
    pub(crate) value: Option<&'a [u8]>,
    /// When the value expires, if it does.
    pub(crate) expires_at: u64,
}

/// Changes, in ascending order of distinct keys.
pub(super) trait Changes {
    /// The next one.
    fn peek(&mut self) -> Result<Option<Change<'_>>>;

    /// Goes on behind the next one.
    fn advance(&mut self) -> Result<()>;

    /// Shows the keys that follow, as long as `visit` returns true, and as far as they can be known.
    fn look_ahead(&mut self, visit: &mut dyn FnMut(&[u8]) -> bool);
}

/// No changes.
pub(super) struct NoChanges;

impl Changes for NoChanges {
    fn peek(&mut self) -> Result<Option<Change<'_>>> {
        Ok(None)
    }

    fn advance(&mut self) -> Result<()> {
        Ok(())
    }

    fn look_ahead(&mut self, _: &mut dyn FnMut(&[u8]) -> bool) {}
}

/// A change in memory of its own.
#[derive(Debug, Default)]
pub(crate) struct ChangedRow {
    key: Vec<u8>,
    /// Empty if it `goes`.
    value: Vec<u8>,
    goes: bool,
    expires_at: u64,
}

impl ChangedRow {
    /// Makes it another one.
    pub(crate) fn set(&mut self, key: &[u8], value: Option<&[u8]>, expires_at: u64) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.value.clear();
        self.value.extend_from_slice(value.unwrap_or_default());
        (self.goes, self.expires_at) = (value.is_none(), expires_at);
    }

    fn as_change(&self) -> Change<'_> {
        let value = (!self.goes).then_some(&self.value[..]);
        Change { key: &self.key, value, expires_at: self.expires_at }
    }
}

/// Where changes come from.
pub(crate) trait Rows {
    /// Makes `row` the next change; false at the end. Keys ascend. What `row` held before means nothing.
    fn next(&mut self, row: &mut ChangedRow) -> Result<bool>;
}

/// How far a merge looks ahead.
const AHEAD_COUNT_MAX: usize = 1 << 14;
const AHEAD_BYTES_MAX: usize = 4 << 20;

/// The changes of a source, of which those are in memory that somebody has looked ahead to.
pub(super) struct Streamed<'r, R: ?Sized> {
    rows: &'r mut R,
    ahead: VecDeque<ChangedRow>,
    ahead_bytes: usize,
    /// Memory for further ones.
    spare: Vec<ChangedRow>,
    /// What the source has ended with, for when those before are done.
    failure: Option<Error>,
    is_at_end: bool,
}

impl<'r, R: Rows + ?Sized> Streamed<'r, R> {
    pub(super) fn new(rows: &'r mut R) -> Self {
        let (ahead, spare) = (VecDeque::new(), Vec::new());
        Streamed { rows, ahead, ahead_bytes: 0, spare, failure: None, is_at_end: false }
    }

    /// Takes one more from the source, if there is one.
    fn take(&mut self) {
        if self.is_at_end {
            return;
        }
        let mut row = self.spare.pop().unwrap_or_default();
        match self.rows.next(&mut row) {
            Ok(true) => {
                let last = self.ahead.back();
                assert!(
                    last.is_none_or(|last| last.key < row.key),
                    "changes are merged in ascending order of their keys"
                );
                self.ahead_bytes += row.key.len() + row.value.len();
                self.ahead.push_back(row);
            }
            ended => (self.is_at_end, self.failure) = (true, ended.err()),
        }
    }
}

impl<R: Rows + ?Sized> Changes for Streamed<'_, R> {
    fn peek(&mut self) -> Result<Option<Change<'_>>> {
        if self.ahead.is_empty() {
            self.take();
        }
        match self.ahead.front() {
            Some(row) => Ok(Some(row.as_change())),
            None => self.failure.take().map_or(Ok(None), Err),
        }
    }

    fn advance(&mut self) -> Result<()> {
        // The next one is taken while this one is there to be compared with.
        if self.ahead.len() == 1 {
            self.take();
        }
        if let Some(row) = self.ahead.pop_front() {
            self.ahead_bytes -= row.key.len() + row.value.len();
            // The memory of what is long is not kept.
            if row.key.capacity().max(row.value.capacity()) <= 2 * INLINE_BYTES_MAX {
                self.spare.push(row);
            }
        }
        Ok(())
    }

    fn look_ahead(&mut self, visit: &mut dyn FnMut(&[u8]) -> bool) {
        for index in 0..AHEAD_COUNT_MAX {
            if index == self.ahead.len() && self.ahead_bytes < AHEAD_BYTES_MAX {
                self.take();
            }
            if !self.ahead.get(index).is_some_and(|row| visit(&row.key)) {
                return;
            }
        }
    }
}

/// What tests give a merge.
#[cfg(any(test, feature = "fuzzing"))]
impl<'a, I: Iterator<Item = Change<'a>>> Rows for I {
    fn next(&mut self, row: &mut ChangedRow) -> Result<bool> {
        let Some(change) = Iterator::next(self) else { return Ok(false) };
        row.set(change.key, change.value, change.expires_at);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::record::NEVER;

    /// Rows with long keys kept their memory, as many as had been looked ahead to.
    #[test]
    fn the_memory_of_long_keys_and_values_is_not_kept() {
        let long = vec![1; 60_000];
        let rows: Vec<(Vec<u8>, Vec<u8>)> = (0..30_u8)
            .map(|number| match number % 3 {
                0 => (vec![number], vec![2; 100]),
                1 => ([&[number], &long[..]].concat(), vec![2; 100]),
                _ => (vec![number], long.clone()),
            })
            .collect();
        let mut source =
            rows.iter().map(|(key, value)| Change { key, value: Some(value), expires_at: NEVER });
        let mut changes = Streamed::new(&mut source);
        changes.look_ahead(&mut |_| true);
        assert_eq!(changes.ahead.len(), rows.len());
        while changes.peek().unwrap().is_some() {
            changes.advance().unwrap();
        }
        let kept: usize = changes.spare.iter().map(|row| row.key.capacity() + row.value.capacity()).sum();
        assert!(changes.spare.len() == 10 && kept < 10_000, "{} rows, {kept} bytes", changes.spare.len());
    }
}
