//! Rows of the tree as they are, to be written anew.

use std::sync::Arc;

use super::Tree;
use super::changes::{Change, Changes};
use super::renewed::{GoesOn, RenewedWalk};
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::record::NEVER;

/// The rows from a key on.
pub(super) struct Rewritten<'t> {
    walk: RenewedWalk<'t>,
    value: Vec<u8>,
    expires_at: u64,
}

impl<'t> Rewritten<'t> {
    pub(super) fn new(tree: &'t Arc<Tree>, from: &[u8], goes_on: GoesOn<'t>) -> Result<Rewritten<'t>> {
        let walk = RenewedWalk::new(tree, from, None, goes_on)?;
        let mut rows = Rewritten { walk, value: Vec::new(), expires_at: NEVER };
        rows.take_value()?;
        Ok(rows)
    }

    fn take_value(&mut self) -> Result<()> {
        let Some(cursor) = self.walk.cursor() else { return Ok(()) };
        self.expires_at = if planted(Bug::RewrittenForEver) { NEVER } else { cursor.expires_at() };
        cursor.value_into(&mut self.value)
    }
}

impl Changes for Rewritten<'_> {
    fn peek(&mut self) -> Result<Option<Change<'_>>> {
        let Rewritten { walk, value, expires_at } = self;
        Ok(walk.key().map(|key| Change { key, value: Some(value), expires_at: *expires_at }))
    }

    fn advance(&mut self) -> Result<()> {
        self.walk.step()?;
        self.take_value()
    }

    fn look_ahead(&mut self, _: &mut dyn FnMut(&[u8]) -> bool) {
        // The walk has read the leaves already.
    }
}
