//! A copy of a root, as a file of its own: for backups, and to see it written as densely as a tree can be.
//!
//! Its keys and values are walked, and built anew, so that all that is copied has been checked. *Rejected: copying the used blocks to where
//! they are.* It would save the building of nodes, and copy the holes.

use std::ops::Bound;
use std::sync::Arc;

use super::ahead::NodesAhead;
use super::blocks::FileBlocks;
use super::changes::{Change, Changes};
use super::cursor::{Cursor, Direction};
use super::output::Output;
use super::pages::{FILE, Pages};
use super::root::{Begun, Root, Slots};
use super::space::{Bitmap, Space};
use super::writer::Given;
use super::{Tree, writer};
use crate::device::{Device, OpenMode};
use crate::error::{Error, Result};

/// Bytes after which progress is reported.
const PROGRESS_BYTES: u64 = 1 << 20;

/// A walk, as the changes that a merge into an empty tree takes.
struct Walked<'p> {
    tree: &'p Tree,
    root: &'p Root,
    cursor: Cursor,
    last_key: Vec<u8>,
    value: Vec<u8>,
    bytes: u64,
    reported: u64,
    progress: &'p mut dyn FnMut(u64),
}

impl Walked<'_> {
    fn load(&mut self) -> Result<()> {
        self.cursor.value_into(&mut self.value)
    }
}

impl Changes for Walked<'_> {
    fn peek(&mut self) -> Result<Option<Change<'_>>> {
        let expires_at = self.cursor.expires_at();
        Ok(self.cursor.key().map(|key| Change { key, value: Some(&self.value), expires_at }))
    }

    fn advance(&mut self) -> Result<()> {
        self.bytes += (self.cursor.key().map_or(0, <[u8]>::len) + self.value.len()) as u64;
        if self.bytes - self.reported >= PROGRESS_BYTES {
            self.reported = self.bytes;
            (self.progress)(self.bytes);
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(self.cursor.key().unwrap_or_default());
        self.cursor.step()?;
        // Parents' keys, which say where leaves belong, are not copied.
        if self.cursor.key().is_some_and(|key| *key <= *self.last_key) {
            let what = "a tree with leaves that are not in order";
            return Err(self.tree.pages.corrupted(self.root.node.block, what));
        }
        self.load()
    }

    fn look_ahead(&mut self, _: &mut dyn FnMut(&[u8]) -> bool) {
        // A tree that is built from nothing reads nothing.
    }
}

/// Makes `target` have a tree that is this root's, durable but for its name.
pub(super) fn copy(
    tree: &Arc<Tree>,
    root: &Arc<Root>,
    target: &dyn Device,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let name = target.describe(FILE);
    let failed = |error| Error::io(format_args!("writing {name}"), error);
    let file = target.open(FILE, OpenMode::Create).map_err(failed)?;
    let mut cursor = Cursor::new(tree, Arc::clone(root));
    cursor.seek(Bound::Unbounded, Direction::Forwards)?;
    let (last_key, value) = (Vec::new(), Vec::new());
    let mut walked = Walked { tree, root, cursor, last_key, value, bytes: 0, reported: 0, progress };
    walked.load()?;
    let pages = Pages::of_copy(Arc::clone(&tree.pages.names), name.clone(), Arc::clone(&file))?;
    // It is written once, so nothing needs room before it is: the file is as long as what is written.
    let (mut space, mut file_bytes, mut has_failed) = (Space::new(Bitmap::default()), u64::MAX, false);
    let mut blocks = FileBlocks::new(Arc::clone(&file), &name, &mut space, (&mut file_bytes, 0));
    let mut output = Output::new(Arc::clone(&file), &name, &mut has_failed);
    let written = writer::write(
        &pages,
        (&mut output, &mut blocks, &mut NodesAhead::default()),
        (&Root::default(), &[]),
        &mut Given::Changes(&mut walked),
        u64::MAX,
        root.has_packed,
    )?;
    if written.nodes.node.entries != root.entries() {
        return Err(tree.pages.corrupted(root.node.block, "a tree has not as many entries as its root says"));
    }
    let copied = Root {
        database: root.database,
        generation: 1,
        settled_to: root.settled_to,
        begun: Begun::default(),
        loaded: root.loaded,
        has_packed: written.nodes.has_packed,
        height: written.nodes.height,
        node: written.nodes.node,
        directory: written.directory,
    };
    Slots::new(file).publish(&copied).map_err(failed)?;
    (walked.progress)(walked.bytes);
    Ok(())
}
