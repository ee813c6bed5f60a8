//! Loading rows in bulk: straight into the settled tree, past the log, as one commit.
//!
//! ```text
//!   1 reserve    a number that no object has, nor ever will but this one              durable
//!   2 merge      the rows, as they come, into the next root, which names the number   durable
//!   3 superblock it says that the tree must have been loaded so far                   durable
//!   4 enter      the catalog's entry: name and number                                 <- the commit point
//!   5 harden     that commit
//! ```
//!
//! Up to 4 the rows are an object's that nobody can have a handle of, so no reader has to be told of the new root, and no lock is
//! held that others want but the tree's, for which settling waits. What makes them visible is an ordinary commit: it has a version, is ordered among all
//! others, and is durable when these are. A crash before 2 leaves nothing, since a root is all or nothing; one before 4 is durable leaves rows of a
//! number that the catalog does not have. These are removed when the database is opened; the root's number says which.
//!
//! The tree has no versions, so the object has one: [`ObjectState::loaded_at`](super::object::ObjectState::loaded_at). Who reads as of an older version sees none of its
//! settled rows, and a transaction that began earlier looks again at what it has read when it finds one ([`Engine::forgotten`]). It is not stored: of
//! the older snapshots only those that have names are there when the database is opened again, and recovery finds it in the catalog's records (`recovery/lookups.rs`).
//!
//! *Rejected: loading into a table that is there and empty.* Every bucket in which one of the keys may have been missed, and the table's order,
//! would have to be locked together while the root is switched, for a reader who found nothing is validated by these.

use super::engine::Engine;
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::storage::tree::{Merged, Rows, tree_bounds};

impl Engine {
    /// Steps 2 and 3: the rows of the object with this number, whose [tree keys](crate::storage::tree::write_tree_key) they have. The caller has loads [paused](super::settled::Settled::pause_loads).
    ///
    /// # Errors
    /// What the rows' source says, and as of [`Tree::merge`](crate::storage::tree::Tree::merge); then there is nothing of them. An error of the superblock leaves them to
    /// [`Self::remove_unfinished_load`].
    pub(crate) fn load_rows(&self, object: u32, rows: &mut dyn Rows) -> Result<Merged> {
        // Those that the table is going to have need the tree to be told of them.
        self.begin_settling();
        let merged = self.settled.tree.load(rows, object)?;
        self.share_for_good();
        self.superblock
            .lock()
            .say_for_good(|said| said.loaded >= object, |superblock| superblock.loaded = object)?;
        Ok(merged)
    }

    /// Removes the rows of a load that has not come to its end, if the last one has not. Nobody else loads.
    ///
    /// # Errors
    /// As of [`Tree::merge`](crate::storage::tree::Tree::merge); the rows stay then, and are nobody's.
    pub(crate) fn remove_unfinished_load(&self) -> Result<()> {
        let tree = &self.settled.tree;
        let loaded = tree.loaded();
        if loaded == 0 || self.objects.get(loaded).is_some() || planted(Bug::LoadNotRemoved) {
            return Ok(());
        }
        let (from, to) = tree_bounds(loaded);
        if tree.count_estimate(&from, Some(&to))? > 0 {
            // Whoever closes the database waits.
            tree.remove_all(&from, &to, &|| self.check_writable())?;
        }
        Ok(())
    }
}
