//! The settled tree: everything that has been settled, of all tables, in one file.
//!
//! A B+-tree that is never changed in place. A *merge* takes sorted changes, writes the nodes they touch to free blocks, with the path to the root,
//! and then the root's slot; until then the tree is the old one, on disk and in memory, and whoever holds the old root reads the old one for as
//! long as they like. There is no table from logical to physical pages: a batch that touches a leaf in ten rewrites nearly all inner
//! nodes anyway, and they are a hundredth of the leaves.
//!
//! ```text
//!  root slot 0 ┐                 ┌▶ inner node ──▶ leaves: keys, short values ──▶ long values
//!  root slot 1 ┴▶ root ──────────┤   (a reference: block, blocks, checksum, entries below)
//!                                └▶ map of free space
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `node`, `reference`, `packed` | a node in memory; how nodes and values are referred to; leaves that are compressed |
//! | `pages`, `ahead`, `cache`, `frames`, `shared` | reading nodes; many at once; those in memory; what they lie in; memory that is read without counting |
//! | `warm_up` | leaves that come into memory unasked |
//! | `cursor`, `values` | walks, both ways; values that have blocks of their own |
//! | `ranks` | which place a key has among all, and which key a place |
//! | `check`, `copy` | look at everything; copy it |
//! | `update` | what changes it, or its file |
//! | `changes`, `renewed`, `removed`, `rewrite` | where changes come from |
//! | `merge`, `pending`, `output` | makes the nodes of the next root, and writes them |
//! | `parts`, `interval`, `part_nodes` | the same on several threads |
//! | `writer`, `root` | makes it durable, and the newest |
//! | `blocks`, `space`, `map` | where blocks come from, and which are free |
//!
//! Every reference holds the checksum of what it refers to, so a node that is stale, or elsewhere, is noticed; a node's structure is checked
//! completely when it is read. Nothing that a file says can make the engine panic, or take memory without bound.

mod ahead;
mod blocks;
mod cache;
mod changes;
mod check;
mod copy;
mod cursor;
mod frames;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzed;
mod interval;
mod key;
mod map;
mod merge;
mod node;
mod output;
mod packed;
mod pages;
mod part_nodes;
mod parts;
mod pending;
mod ranks;
mod reference;
mod removed;
mod renewed;
mod rewrite;
mod root;
mod space;
#[cfg(test)]
mod tests;
mod update;
mod values;
mod warm_up;
mod writer;

use std::sync::Arc;

use crate::storage::shared::Shared;

use cache::Cache;
use node::{Node, ValueIn};
use pages::{Pages, Queue};
use reference::NodeReference;
use root::Slots;
use update::{REPLACED_BYTES_MIN, REPLACED_PART};
use writer::Writer;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use changes::Change;
pub(crate) use changes::{ChangedRow, Rows};
pub(crate) use check::TreeCheck;
pub(crate) use cursor::{Cursor, Direction};
pub(crate) use interval::interval;
pub(crate) use key::{OBJECT_BYTES, tree_bounds, tree_interval, write_tree_key};
pub(crate) use merge::Merged;
pub(crate) use pages::{FILE, is_tree, remove_unfinished};
pub(crate) use root::Root;

/// Where the fields of each structure are, by its heading in `docs/format.md`.
#[cfg(test)]
pub(crate) const OFFSETS: [(&str, &[(&str, usize)]); 6] = [
    ("Root slot", &root::OFFSETS),
    ("Node reference", &reference::NODE_OFFSETS),
    ("Node", &node::OFFSETS),
    ("Packed leaf", &packed::OFFSETS),
    ("Value reference", &reference::VALUE_OFFSETS),
    ("Map of free space", &map::OFFSETS),
];
#[cfg(test)]
pub(crate) use root::FORMAT;

use crate::device::{Device, OpenMode};
use crate::error::{Error, Result};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

use super::epoch;
use super::names::Names;

/// What is known of a key without reading from disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cached {
    /// It has the value, which expires then, if it does.
    Found { expires_at: u64 },
    /// It has none.
    Absent,
    /// [`Tree::get`] knows.
    Unknown,
}

/// What a merge has done that has not come to its end.
pub(crate) struct BegunMerge {
    to: u64,
    last_key: Vec<u8>,
}

impl BegunMerge {
    /// The tree has what the log says of a key at this address, where nothing else before the end of what was to settle says more; or that was left out, for something newer that is durable, which hides it.
    pub(crate) fn has(&self, key: &[u8], address: u64) -> bool {
        key <= &self.last_key[..] && address < self.to
    }
}

/// What there is to know about a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeStatistics {
    /// Keys.
    pub(crate) entries: u64,
    /// Length of the file.
    pub(crate) file_bytes: u64,
    /// Of that, what the newest root needs, or one that is held.
    pub(crate) used_bytes: u64,
    /// Memory of the nodes in the cache.
    pub(crate) cache_bytes: u64,
    /// About how often a leaf was in memory.
    pub(crate) cache_hits: u64,
    /// Bytes that merges have written since it was opened.
    pub(crate) written_bytes: u64,
}

/// The settled tree of a database.
pub(crate) struct Tree {
    pages: Pages,
    /// There is always one.
    newest: Shared<Root>,
    entries: AtomicU64,
    writer: Mutex<Writer>,
    /// Of those who read many leaves at once, from one of them to the next.
    queues: Mutex<Vec<Queue>>,
    written_bytes: AtomicU64,
    file_bytes: AtomicU64,
    used_bytes: AtomicU64,
    /// See [`Tree::set_replaced_bytes_min`].
    replaced_bytes_min: u64,
}

impl Tree {
    /// Opens a database's tree in its device's directory: the newer of the roots that are whole. Without a file it is empty; the first merge
    /// makes one. One that is opened to be [read](OpenMode::Read) fails to merge.
    ///
    /// # Errors
    /// What cannot be read, or is damaged, with its place.
    pub(crate) fn open(
        names: &Arc<Names>,
        database: u128,
        cache_bytes: usize,
        mode: OpenMode,
    ) -> Result<Tree> {
        let pages = Pages::new(Arc::clone(names), names.device().describe(FILE), cache_bytes)?;
        let failed = |error| Error::io(format_args!("opening {}", pages.name), error);
        if !pages.device().list().map_err(failed)?.iter().any(|name| name == FILE) {
            let root = Root { database, ..Root::default() };
            return Ok(Tree::new(pages, root, Writer::without_file()));
        }
        let file = pages.device().open(FILE, mode).map_err(failed)?;
        let file_bytes = file.size().map_err(failed)?;
        let (slots, root) = Slots::open(Arc::clone(&file), &pages.name, database)?;
        pages.set_file(file);
        let (map, used) = map::read(&pages, &root.directory, file_bytes)?;
        Ok(Tree::new(pages, root, Writer::of_file(slots, used, map, file_bytes)))
    }

    /// Has merges compress leaves, or not.
    pub(crate) fn packing(self, packs: bool) -> Tree {
        self.writer.lock().packs = packs;
        self
    }

    fn new(pages: Pages, root: Root, writer: Writer) -> Tree {
        let tree = Tree {
            pages,
            entries: AtomicU64::new(root.entries()),
            newest: Shared::new(Some(Arc::new(root))),
            written_bytes: AtomicU64::new(0),
            file_bytes: AtomicU64::new(0),
            used_bytes: AtomicU64::new(0),
            replaced_bytes_min: REPLACED_BYTES_MIN,
            writer: Mutex::new(writer),
            queues: Mutex::new(Vec::new()),
        };
        tree.note_sizes(&tree.writer.lock());
        tree
    }

    /// A merge is not divided for the sake of so few bytes that it replaces.
    pub(crate) fn set_replaced_bytes_min(&mut self, bytes: u64) {
        self.replaced_bytes_min = bytes;
    }

    /// Makes the root durable that was found when the tree was opened. To be called before anything else relies on what it says that has
    /// settled, if nothing durable says the same.
    ///
    /// # Errors
    /// A failed write or sync, as of [`Tree::merge`].
    pub(crate) fn make_certain(&self) -> Result<()> {
        self.writer.lock().make_certain(&self.pages, &self.root())
    }

    fn note_sizes(&self, writer: &Writer) {
        let (file_bytes, used_bytes) = writer.sizes();
        self.file_bytes.store(file_bytes, Ordering::Relaxed);
        self.used_bytes.store(used_bytes, Ordering::Relaxed);
    }

    /// True if there are no keys; of a root that has just become the newest it is known only once the merge is at its end. So it is for who
    /// finds in memory what is not in the tree. Who relies on what a root says asks that one.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.load(Ordering::Relaxed) == 0
    }

    /// As between a merge's root and its end: the keys are there, and not counted yet.
    #[cfg(test)]
    pub(crate) fn forget_count(&self) {
        self.entries.store(0, Ordering::Relaxed);
    }

    /// The log address that came with the newest root; 0 at first.
    pub(crate) fn settled_to(&self) -> u64 {
        self.root().settled_to
    }

    /// True if something has settled, or was loaded, though nothing may be left of it: a load that fails at its end takes its rows back, and
    /// meanwhile others have relied on it that rows are not counted any more.
    pub(crate) fn has_settled(&self) -> bool {
        !self.is_empty() || self.root().is_written()
    }

    /// The last object that was loaded in bulk; 0: none.
    pub(crate) fn loaded(&self) -> u32 {
        self.root().loaded()
    }

    /// The newest root. As long as it is held none of its blocks is used for something else.
    pub(crate) fn root(&self) -> Arc<Root> {
        self.newest.get_owned().unwrap_or_default()
    }

    /// True if this root, which the caller holds, is the newest one.
    #[inline]
    pub(crate) fn is_newest(&self, root: &Arc<Root>) -> bool {
        self.newest.is(root)
    }

    /// Looks a key up among what is in memory: without reading from disk, without a lock, and, in general, without writing to shared
    /// memory. Pins the calling thread, which may be pinned. `value` is replaced if the key has one.
    pub(crate) fn get_cached(&self, key: &[u8], value: &mut Vec<u8>) -> Cached {
        self.look_cached(key, |leaf, index| match leaf.value(index) {
            ValueIn::Here(bytes) => {
                value.clear();
                value.extend_from_slice(bytes);
                Cached::Found { expires_at: leaf.expires_at(index) }
            }
            ValueIn::There(reference) => match self.pages.value_in_memory(&reference, value) {
                true => Cached::Found { expires_at: leaf.expires_at(index) },
                false => Cached::Unknown,
            },
        })
    }

    /// Whether a key has a value, as [`Tree::get_cached`] finds it; the value itself may be elsewhere.
    pub(crate) fn contains_cached(&self, key: &[u8]) -> Cached {
        self.look_cached(key, |leaf, index| Cached::Found { expires_at: leaf.expires_at(index) })
    }

    /// Finds a key's entry among what is in memory, and says what `look` makes of it.
    #[inline]
    fn look_cached(&self, key: &[u8], look: impl FnOnce(&Node, usize) -> Cached) -> Cached {
        let pin = epoch::pin();
        let Some((reference, mut level)) = self.newest.get(&pin).and_then(Root::top) else {
            return Cached::Absent;
        };
        let mut found = self.pages.cache.find(&pin, &reference);
        loop {
            let Some(node) = found.filter(|node| node.level() == level) else { return Cached::Unknown };
            node.prefetch_search();
            if level > 0 {
                found = self.pages.cache.find_child(&pin, node, node.child_index(key));
                level -= 1;
                continue;
            }
            let (index, is_there) = node.search(key);
            let found = if is_there { look(node, index) } else { Cached::Absent };
            if found != Cached::Unknown {
                self.pages.cache.note_hit();
            }
            return found;
        }
    }

    /// Looks a key up, and reads what is not in memory; the time at which it expires if it has a value, which then replaces `value`. The caller is not pinned.
    ///
    /// # Errors
    /// What cannot be read, or is damaged, with its place.
    pub(crate) fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<u64>> {
        self.get_at(&self.root(), key, value)
    }

    /// The same, as of a root.
    ///
    /// # Errors
    /// As of [`Tree::get`].
    pub(crate) fn get_at(&self, root: &Root, key: &[u8], value: &mut Vec<u8>) -> Result<Option<u64>> {
        let found = self.find_at(root, key)?;
        if let Some((leaf, index)) = &found {
            self.pages.value_into(leaf, *index, value)?;
        }
        Ok(found.map(|(leaf, index)| leaf.expires_at(index)))
    }

    /// Whether a key has a value as of a root, which is not read if it has blocks of its own, and when it expires. The caller is not pinned.
    ///
    /// # Errors
    /// As of [`Tree::get`].
    pub(crate) fn contains_at(&self, root: &Root, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.find_at(root, key)?.map(|(leaf, index)| leaf.expires_at(index)))
    }

    /// The leaf with a key, and the place of its entry there, if it has one.
    fn find_at(&self, root: &Root, key: &[u8]) -> Result<Option<(Arc<Node>, usize)>> {
        let Some(reference) = self.leaf_of(root, key)? else { return Ok(None) };
        let leaf = self.pages.node(&reference, 0)?;
        let (index, is_there) = leaf.search(key);
        Ok(is_there.then_some((leaf, index)))
    }

    /// The leaf in which a key's entry is, if it has one. Inner nodes are read where they are not in memory, and not counted where they are. The caller is not pinned.
    fn leaf_of(&self, root: &Root, key: &[u8]) -> Result<Option<NodeReference>> {
        let Some((mut reference, mut level)) = root.top() else { return Ok(None) };
        while level > 0 {
            let child_in = |node: &Node| node.child(node.child_index(key));
            let in_memory = {
                let pin = epoch::pin();
                self.pages.cache.find(&pin, &reference).filter(|node| node.level() == level).map(child_in)
            };
            reference = match in_memory {
                Some(child) => child,
                None => child_in(&*self.pages.node(&reference, level)?),
            };
            level -= 1;
        }
        Ok(Some(reference))
    }

    /// How many keys there are from `from` on, and before `to` if that is given. Reads two paths at most.
    ///
    /// # Errors
    /// As of [`Tree::get`].
    pub(crate) fn count_estimate(&self, from: &[u8], to: Option<&[u8]>) -> Result<u64> {
        self.count_at(&self.root(), from, to)
    }

    /// The same, as of a root.
    ///
    /// # Errors
    /// As of [`Tree::get`].
    pub(crate) fn count_at(&self, root: &Root, from: &[u8], to: Option<&[u8]>) -> Result<u64> {
        let Some((mut reference, mut level)) = root.top() else { return Ok(0) };
        let Some(to) = to else {
            return Ok(root.entries().saturating_sub(self.pages.rank(reference, level, from)?));
        };
        // What is above both is read once.
        while level > 0 {
            let node = self.pages.node(&reference, level)?;
            let (first, last) = (node.child_index(from), node.child_index(to));
            level -= 1;
            if first != last {
                let (below, above) = (
                    self.pages.rank(node.child(first), level, from)?,
                    self.pages.rank(node.child(last), level, to)?,
                );
                let between = node.children(first).take(last.saturating_sub(first));
                let between = between.fold(0u64, |sum, child| sum.saturating_add(child.entries));
                return Ok(between.saturating_add(above).saturating_sub(below));
            }
            reference = node.child(first);
        }
        let leaf = self.pages.node(&reference, 0)?;
        Ok(leaf.search(to).0.saturating_sub(leaf.search(from).0) as u64)
    }

    /// How far a merge has come that was to settle something, and has not come to its end, if the last one has not: as far as it goes it need not be done again.
    ///
    /// # Errors
    /// As of [`Tree::get`].
    pub(crate) fn begun(&self) -> Result<Option<BegunMerge>> {
        let root = self.root();
        let (Some((node, level)), Some(last)) = (root.top(), root.begun.entries.checked_sub(1)) else {
            return Ok(None);
        };
        Ok(Some(BegunMerge { to: root.begun.to, last_key: self.pages.key_at(node, level, last)? }))
    }

    /// Reads the newest root's whole tree from disk, and accounts for every block.
    ///
    /// # Errors
    /// What cannot be read, or is wrong, with its place.
    pub(crate) fn check(&self) -> Result<TreeCheck> {
        let found = check::check(&self.pages, &self.root())?;
        // Whoever writes has written it anew first.
        let damaged_slot = self.writer.try_lock().and_then(|writer| writer.damaged_slot());
        Ok(TreeCheck { damaged_slot, ..found })
    }

    /// The error that says what is wrong with a block, and where it is.
    pub(crate) fn damage(&self, block: u64, what: &str) -> Error {
        self.pages.corrupted(block, what)
    }

    /// Makes a tree of `target` that is this root's: a file `tree`, which does not exist, written once, and durable but for its name.
    /// `progress` is told now and then how many bytes of keys and values have been copied.
    ///
    /// # Errors
    /// What cannot be read, or is damaged, or cannot be written; then there may be a part of the file.
    pub(crate) fn copy_to(
        self: &Arc<Self>,
        root: &Arc<Root>,
        target: &dyn Device,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        copy::copy(self, root, target, progress)
    }

    /// Bytes that the newest root needs, or one that is held.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// At most so much memory can be of use to its pages, of which there are going to be so many bytes more. What is packed takes more in memory.
    pub(crate) fn memory_bytes_max(&self, more_bytes: u64) -> u64 {
        if self.is_empty() && more_bytes == 0 {
            return 0;
        }
        let bytes = self.used_bytes() + more_bytes;
        bytes.saturating_mul(self.memory_times()).saturating_add(bytes / 16 + self.pages.cache.table_bytes())
    }

    /// At most so many times as long as on disk nodes are in memory.
    fn memory_times(&self) -> u64 {
        if self.root().has_packed { merge::PACKED_TIMES_MAX } else { 1 }
    }

    /// Length of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes.load(Ordering::Relaxed)
    }

    /// True if the file is much longer than what is used of it.
    pub(crate) fn has_room_to_cut(&self) -> bool {
        self.room_bytes() > 0
    }

    /// How much longer the file is than what is used of it, what a merge writes anew, and what is kept for deletions.
    pub(crate) fn room_bytes(&self) -> u64 {
        let (used_bytes, file_bytes) = (self.used_bytes(), self.file_bytes());
        file_bytes.saturating_sub(used_bytes + used_bytes / REPLACED_PART + blocks::reserve_bytes(file_bytes))
    }

    /// How often a node had to be read for who asked for it.
    pub(crate) fn cache_misses(&self) -> u64 {
        self.pages.cache.misses()
    }

    /// Nodes that were found in memory.
    pub(crate) fn cache_hits(&self) -> u64 {
        let cache: &Cache = &self.pages.cache;
        cache.hits()
    }

    /// The memory that nodes may take, with what tells where they are.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.pages.cache.budget() + self.pages.cache.table_bytes()
    }

    /// Has the nodes in memory take so many bytes at most, up to those that it was opened with. The caller is not pinned.
    pub(crate) fn set_cache_bytes(&self, bytes: u64) {
        self.pages.cache.set_bytes(bytes);
    }

    /// What there is to know.
    pub(crate) fn statistics(&self) -> TreeStatistics {
        let root = self.root();
        let cache: &Cache = &self.pages.cache;
        TreeStatistics {
            entries: root.entries(),
            file_bytes: self.file_bytes(),
            used_bytes: self.used_bytes(),
            cache_bytes: cache.bytes(),
            cache_hits: self.cache_hits(),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        }
    }
}
