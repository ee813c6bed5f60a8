//! The one that changes the tree: a merge from its beginning to the moment when its root is the newest.

use std::sync::{Arc, Weak};

use super::ahead::NodesAhead;
use super::blocks::{Blocks, FileBlocks, reserve_bytes, step_bytes};
use super::changes::Changes;
use super::map::{self, PageEntry};
use super::merge::{Merged, Merger, NewNodes};
use super::output::Output;
use super::pages::{FILE, Pages, UNFINISHED, remove_unfinished};
use super::parts::{self, Part};
use super::root::{Begun, DirectoryReference, Root, Slots};
use super::space::{Bitmap, Space};
use crate::device::{BLOCK_BYTES, Device, DeviceFile, OpenMode};
use crate::error::{Error, ErrorKind, Result};
use crate::planted::{Bug, planted};
use crate::storage::shared::{Shared, release};

/// What is written for a leaf that is replaced takes so many times its room at most: with it its neighbour, a page of the map, and its part of the path to the root.
const RESERVE_TIMES: u64 = 4;

/// A merge replaces no more than that before it makes a root, however large the tree is: what is done behind the last root before the database is closed, or dies, is done again.
const REPLACED_BYTES_MAX: u64 = 2 << 30;

/// What only merges use.
pub(super) struct Writer {
    space: Space,
    /// Where the newest root's map is.
    map: Vec<PageEntry>,
    /// `None` before the first merge.
    slots: Option<Slots>,
    /// The file has its name.
    is_named: bool,
    /// Older roots that somebody may hold.
    held: Vec<Held>,
    file_bytes: u64,
    /// A write or a sync failed.
    failed: bool,
    /// Leaves are packed where that takes a block less.
    pub(super) packs: bool,
    /// The key up to which all leaves have been written anew, from the first one on, if that is going on.
    pub(super) rewritten_to: Option<Vec<u8>>,
    ahead: NodesAhead,
}

/// So many bitmaps are kept for older roots at most, each as large as that of the newest.
const HELD_MAX: usize = 8;

/// Older roots, and what they use together.
struct Held {
    roots: Vec<Weak<Root>>,
    used: Bitmap,
}

/// What goes with a merge's root, where it is not that of the root before.
#[derive(Clone, Copy, Default)]
pub(super) struct Marks {
    pub(super) settled_to: Option<u64>,
    pub(super) loaded: Option<u32>,
    /// Once all changes are merged every leaf has been written by this writer.
    pub(super) unpacks: bool,
}

/// What room a merge takes beside the tree, before what it replaces is free.
#[derive(Clone, Copy)]
pub(super) enum Room {
    /// It may replace such a part of the tree, if that is not [too much](REPLACED_BYTES_MAX), or so many bytes if that is more; the file grows as it needs to.
    Ordinary { part: u64, bytes_min: u64 },
    /// For deletions on a full disk: it takes what is kept for them, and replaces no more than that has room for.
    Reserve,
}

/// What a merge is given.
pub(super) enum Given<'c, 'r> {
    Changes(&'c mut dyn Changes),
    /// Changes of several parts, each of which a thread of its own merges.
    Parts(&'c mut [Part<'r>]),
}

impl Given<'_, '_> {
    /// The first key of what has not been merged; `None` if everything has.
    pub(super) fn next_key(&mut self) -> Result<Option<Vec<u8>>> {
        match self {
            Given::Changes(changes) => Ok(changes.peek()?.map(|next| next.key.to_vec())),
            Given::Parts(parts) => parts::next_key(parts),
        }
    }
}

/// What a merge has made, durable and not yet published.
struct Made {
    root: Root,
    map: Vec<PageEntry>,
    merged: Merged,
}

impl Writer {
    /// For a tree without a file.
    pub(super) fn without_file() -> Writer {
        Writer {
            space: Space::new(Bitmap::default()),
            map: Vec::new(),
            slots: None,
            is_named: false,
            held: Vec::new(),
            file_bytes: 0,
            failed: false,
            packs: false,
            rewritten_to: None,
            ahead: NodesAhead::default(),
        }
    }

    /// For a tree that was opened.
    pub(super) fn of_file(slots: Slots, used: Bitmap, map: Vec<PageEntry>, file_bytes: u64) -> Writer {
        let slots = Some(slots);
        let space = Space::new(used);
        Writer { space, map, slots, is_named: true, file_bytes, ..Writer::without_file() }
    }

    /// Bytes of the file, and of the blocks that may not be written.
    pub(super) fn sizes(&self) -> (u64, u64) {
        (self.file_bytes, self.space.busy_count() * BLOCK_BYTES as u64)
    }

    /// Merges changes up to a place where it has replaced as much of the old root as it may, and makes what comes out the newest root. What
    /// has not been merged is left in what was given; `settled_to` holds once nothing is.
    pub(super) fn merge(
        &mut self,
        pages: &Pages,
        newest: &Shared<Root>,
        given: &mut Given<'_, '_>,
        marks: Marks,
        room: Room,
    ) -> Result<Merged> {
        self.check_not_failed(pages)?;
        // What the last merge has read and not used may be written over by now.
        self.ahead.forget();
        let old = newest.get_owned().unwrap_or_default();
        self.reclaim(pages);
        let made = self.make(pages, &old, given, marks, room)?;
        self.map = made.map;
        let used_before = self.space.commit();
        let replaced = newest.replace(Some(Arc::new(made.root)));
        let before = Arc::downgrade(&old);
        drop(old);
        release(replaced);
        // From now on only who holds it can give it to others.
        if before.strong_count() > 0 && !planted(Bug::BlocksUsedUnderReaders) {
            self.hold(before, used_before);
        }
        self.reclaim(pages);
        Ok(made.merged)
    }

    /// # Errors
    /// `Io` if a write or a sync has failed.
    pub(super) fn check_not_failed(&self, pages: &Pages) -> Result<()> {
        if !self.failed {
            return Ok(());
        }
        let what = format!("writing {} failed before; open the database again", pages.name);
        // Nothing that was committed is lost: the log has it.
        Err(Error::new(ErrorKind::Io, what))
    }

    /// Ends a [merge](Self::merge), however it went: gives back what it has taken if it has made no root, and cuts off the file's end.
    pub(super) fn end(&mut self) {
        self.space.roll_back();
        // Of a root that could not be made durable it is not known whether it will be found, with all that it needs.
        if !self.failed && self.is_end_long() {
            self.cut_to(self.kept_bytes());
        }
    }

    /// Frees what only roots needed that nobody holds any more, and cuts off the file's end if that is long. Says whether it has freed anything.
    pub(super) fn reclaim_unheld(&mut self, pages: &Pages, newest: &Root) -> Result<bool> {
        if self.failed {
            return Ok(false);
        }
        let before = self.space.busy_count();
        self.reclaim(pages);
        if self.is_end_long() {
            // As in `cut_end`.
            self.make_certain(pages, newest)?;
            self.cut_to(self.kept_bytes());
        }
        Ok(self.space.busy_count() < before)
    }

    /// Makes a root durable that was found when the file was opened, and the file's name: whoever wrote it may have come no further than that
    /// they could be read.
    pub(super) fn make_certain(&mut self, pages: &Pages, newest: &Root) -> Result<()> {
        let Some(slots) = &mut self.slots else { return Ok(()) };
        let certain = match slots.are_certain() {
            true => Ok(()),
            false => slots.make_certain(newest).and_then(|()| pages.names.sync()),
        };
        certain.map_err(|error| self.fail(pages, error))
    }

    /// Notes that somebody may hold a root that was the newest one until now. Those for which there is no bitmap more share the last, and what they use is kept until nobody
    /// holds any of them.
    fn hold(&mut self, root: Weak<Root>, used: Bitmap) {
        if self.held.len() < HELD_MAX {
            self.held.push(Held { roots: vec![root], used });
        } else if let Some(last) = self.held.last_mut() {
            last.used.join(&used);
            last.roots.push(root);
        }
    }

    /// Frees what only roots needed that nobody holds any more.
    fn reclaim(&mut self, pages: &Pages) {
        self.held.retain_mut(|held| {
            held.roots.retain(|root| root.strong_count() > 0);
            !held.roots.is_empty()
        });
        let mut forgotten = Vec::new();
        let held = self.held.iter().map(|held| &held.used);
        self.space.begin(held, |block| forgotten.extend(pages.cache.remove(block)));
        release(forgotten);
    }

    /// The block of a root slot that is damaged, if one of the two is.
    pub(super) fn damaged_slot(&self) -> Option<u64> {
        self.slots.as_ref().and_then(Slots::damaged)
    }

    /// Writes everything, and syncs it, root slots included.
    fn make(
        &mut self,
        pages: &Pages,
        old: &Root,
        given: &mut Given<'_, '_>,
        marks: Marks,
        room: Room,
    ) -> Result<Made> {
        if !pages.has_file() {
            // Nothing was written: it may succeed the next time.
            let creating = |error| Error::io(format_args!("creating {}", pages.name), error);
            let file = create(pages.device()).map_err(creating)?;
            self.slots = Some(Slots::new(Arc::clone(&file)));
            pages.set_file(file);
        }
        let file = pages.file().map_err(|error| self.fail(pages, error))?;
        self.make_certain(pages, old)?;
        let (replaced_blocks_max, reserve_bytes) = match room {
            Room::Ordinary { part, bytes_min } => {
                let part_bytes = self.space.used_count() / part * BLOCK_BYTES as u64;
                let bytes = part_bytes.min(REPLACED_BYTES_MAX).max(bytes_min);
                (bytes / BLOCK_BYTES as u64, reserve_bytes(self.file_bytes))
            }
            Room::Reserve => (self.free_blocks() / RESERVE_TIMES, 0),
        };
        let end = self.space.end() * BLOCK_BYTES as u64;
        let sizes = (&mut self.file_bytes, reserve_bytes);
        let mut blocks = FileBlocks::new(Arc::clone(file), &pages.name, &mut self.space, sizes);
        // Deletions may have taken what is kept for them. It is needed again, but not now.
        let _ = blocks.grow_to(end);
        let mut output = Output::new(Arc::clone(file), &pages.name, &mut self.failed);
        let write_to = (&mut output, &mut blocks, &mut self.ahead);
        let written = write(pages, write_to, (old, &self.map), given, replaced_blocks_max.max(1), self.packs);
        let Written { nodes, directory, map } = written?;
        let NewNodes { node, height, mut merged, has_packed } = nodes;
        let next_key = given.next_key()?;
        let is_at_end = next_key.is_none();
        let is_last = is_at_end || planted(Bug::SettledBeforeTheLastRange);
        let settled_to = marks.settled_to.filter(|_| is_last).unwrap_or(old.settled_to);
        let begun = match (marks.settled_to, next_key.zip(height.checked_sub(1))) {
            (Some(to), Some((key, level))) => {
                Begun { to, entries: pages.rank(node, level, &key)?.min(node.entries) }
            }
            _ => Begun::default(),
        };
        // With the first of it already: a crash must not leave rows that nobody knows of.
        let loaded = marks.loaded.unwrap_or(old.loaded);
        let (database, generation) = (old.database, old.generation + 1);
        let is_unpacked = marks.unpacks && is_at_end && !self.packs;
        let has_packed = has_packed || old.has_packed && !is_unpacked;
        let root =
            Root { database, generation, settled_to, begun, loaded, has_packed, height, node, directory };
        if let Some(slots) = &mut self.slots {
            slots.publish(&root).map_err(|error| fail(&mut self.failed, pages, error))?;
        }
        merged.bytes += 2 * BLOCK_BYTES as u64;
        if !self.is_named {
            let sync = || if planted(Bug::TreeNameNotSynced) { Ok(()) } else { pages.names.sync() };
            let named = pages.device().rename(UNFINISHED, FILE).and_then(|()| sync());
            named.map_err(|error| self.fail(pages, error))?;
            self.is_named = true;
        }
        Ok(Made { root, map, merged })
    }

    fn fail(&mut self, pages: &Pages, error: std::io::Error) -> Error {
        fail(&mut self.failed, pages, error)
    }

    /// How many blocks of the file can be written.
    fn free_blocks(&self) -> u64 {
        (self.file_bytes / BLOCK_BYTES as u64).saturating_sub(self.space.busy_count())
    }

    /// How much of the file is needed, with what is kept for deletions.
    fn needed_bytes(&self) -> u64 {
        self.space.end() * BLOCK_BYTES as u64 + reserve_bytes(self.file_bytes)
    }

    /// The same, so that it need not grow again for a while.
    fn kept_bytes(&self) -> u64 {
        let needed = self.needed_bytes();
        needed.next_multiple_of(step_bytes(needed))
    }

    /// True if there is much of the file's end that nothing needs.
    fn is_end_long(&self) -> bool {
        self.kept_bytes() + step_bytes(self.needed_bytes()) < self.file_bytes
    }

    /// Frees what only roots needed that nobody holds any more, and cuts off the file's end behind all that somebody needs.
    pub(super) fn cut_end(&mut self, pages: &Pages, newest: &Root) -> Result<()> {
        if self.failed {
            return Ok(());
        }
        self.reclaim(pages);
        // Where nothing was merged, the root that was found when the file was opened may not be durable, and the one before it may need the end.
        self.make_certain(pages, newest)?;
        let end = self.needed_bytes();
        if end < self.file_bytes {
            self.cut_to(end);
        }
        Ok(())
    }

    fn cut_to(&mut self, kept: u64) {
        if let Some(slots) = &self.slots {
            // It is of no consequence whether that succeeds: the file is as long as it was, or as it shall be.
            if slots.file().truncate(kept).is_ok() {
                self.file_bytes = kept;
            }
        }
    }
}

/// Notes a failure, which is final.
fn fail(failed: &mut bool, pages: &Pages, error: std::io::Error) -> Error {
    *failed = true;
    Error::io(format_args!("writing {}", pages.name), error)
}

/// A new, empty file, under the name that files have that are not finished.
fn create(device: &dyn Device) -> std::io::Result<Arc<dyn DeviceFile>> {
    remove_unfinished(device)?;
    device.open(UNFINISHED, OpenMode::Create)
}

/// What a root refers to, written and synced.
pub(super) struct Written {
    pub(super) nodes: NewNodes,
    pub(super) directory: DirectoryReference,
    map: Vec<PageEntry>,
}

/// Writes the nodes, values and map of the next root, and syncs them.
pub(super) fn write(
    pages: &Pages,
    (output, blocks, ahead): (&mut Output<'_>, &mut FileBlocks<'_>, &mut NodesAhead),
    (old, map): (&Root, &[PageEntry]),
    given: &mut Given<'_, '_>,
    replaced_blocks_max: u64,
    packs: bool,
) -> Result<Written> {
    let mut nodes = match given {
        Given::Changes(changes) => {
            let write_to = (&mut *output, &mut *blocks as &mut dyn Blocks, ahead);
            Merger::new(pages, write_to, old, None, replaced_blocks_max, packs).run(*changes)?
        }
        Given::Parts(parts) => parts::merge(pages, (output, blocks), old, parts, replaced_blocks_max, packs)?,
    };
    let (directory, map) = map::write(output, blocks, (&old.directory, map))?;
    if planted(Bug::TreeNotSynced) {
        output.flush()?
    } else {
        output.sync()?
    }
    nodes.merged.bytes = output.bytes;
    Ok(Written { nodes, directory, map })
}
