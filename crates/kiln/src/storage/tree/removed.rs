//! All rows between two keys, to be removed.

use std::sync::Arc;

use super::Tree;
use super::changes::{Change, Changes};
use super::renewed::{GoesOn, RenewedWalk};
use crate::error::Result;
use crate::storage::record::NEVER;

/// A walk, each key of which goes.
pub(super) struct Removed<'t>(RenewedWalk<'t>);

impl<'t> Removed<'t> {
    pub(super) fn new(
        tree: &'t Arc<Tree>,
        from: &[u8],
        to: &'t [u8],
        goes_on: GoesOn<'t>,
    ) -> Result<Removed<'t>> {
        Ok(Removed(RenewedWalk::new(tree, from, Some(to), goes_on)?))
    }
}

impl Changes for Removed<'_> {
    fn peek(&mut self) -> Result<Option<Change<'_>>> {
        Ok(self.0.key().map(|key| Change { key, value: None, expires_at: NEVER }))
    }

    fn advance(&mut self) -> Result<()> {
        self.0.step()
    }

    fn look_ahead(&mut self, _: &mut dyn FnMut(&[u8]) -> bool) {
        // The walk has read the leaves already.
    }
}
