//! What a merge brings: changes in the order of their keys, one at a time, with a look at those that follow.

use std::collections::VecDeque;

use crate::error::Result;

/// A key's new value, or that it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) key: &'a [u8],
    /// `None`: the key goes.
    pub(crate) value: Option<&'a [u8]>,
    /// When the value expires, if it does.
    pub(crate) expires_at: u64,
}

/// How far a merge looks ahead.
const AHEAD_COUNT_MAX: usize = 1 << 14;

/// Changes, in ascending order of distinct keys.
pub(super) trait Changes {
    /// The next one.
    fn peek(&mut self) -> Result<Option<Change<'_>>>;

    /// Goes on behind the next one.
    fn advance(&mut self) -> Result<()>;

    /// Shows the keys that follow, as long as `visit` returns true, and as far as they can be known.
    fn look_ahead(&mut self, visit: &mut dyn FnMut(&[u8]) -> bool);
}

/// The changes that an iterator gives.
pub(super) struct Given<'a, I: Iterator<Item = Change<'a>>> {
    ahead: VecDeque<Change<'a>>,
    rest: I,
}

impl<'a, I: Iterator<Item = Change<'a>>> Given<'a, I> {
    pub(super) fn new(rest: I) -> Self {
        Given { ahead: VecDeque::new(), rest }
    }
}

impl<'a, I: Iterator<Item = Change<'a>>> Changes for Given<'a, I> {
    fn peek(&mut self) -> Result<Option<Change<'_>>> {
        if self.ahead.is_empty() {
            self.ahead.extend(self.rest.next());
        }
        Ok(self.ahead.front().copied())
    }

    fn advance(&mut self) -> Result<()> {
        let last = self.ahead.pop_front();
        if self.ahead.is_empty() {
            self.ahead.extend(self.rest.next());
        }
        if let (Some(last), Some(next)) = (last, self.ahead.front()) {
            assert!(last.key < next.key, "changes are merged in ascending order of their keys");
        }
        Ok(())
    }

    fn look_ahead(&mut self, visit: &mut dyn FnMut(&[u8]) -> bool) {
        let mut index = 0;
        while index < AHEAD_COUNT_MAX {
            if index == self.ahead.len() {
                match self.rest.next() {
                    Some(change) => self.ahead.push_back(change),
                    None => return,
                }
            }
            if !visit(self.ahead[index].key) {
                return;
            }
            index += 1;
        }
    }
}
