//! What changes the tree, or its file: merges, one or several in a row, and what gives up what they have left.

use std::sync::Arc;

use super::Tree;
use super::changes::{Changes, NoChanges, Rows, Streamed};
use super::interval::Interval;
use super::merge::Merged;
use super::parts::Part;
use super::removed::Removed;
use super::renewed::GoesOn;
use super::rewrite::Rewritten;
use super::writer::{Given, Marks, Room, Writer};
use crate::error::{ErrorKind, Result};
use crate::sync::atomic::Ordering;

/// A merge replaces such a part of the tree at the most, or what it is told is not worth dividing: that is how much room it takes beside the tree.
pub(super) const REPLACED_PART: u64 = 16;
/// The same of what is written anew for the sake of the file's length, since that much of it is left free in the end.
const REWRITTEN_PART: u64 = 64;
/// What a merge may replace if nobody has said.
pub(super) const REPLACED_BYTES_MIN: u64 = 4 << 20;

/// A merge, whichever way it ends: whoever gives the changes may panic.
struct UnderWay<'t> {
    tree: &'t Tree,
    writer: &'t mut Writer,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.writer.end();
        self.tree.entries.store(self.tree.root().entries(), Ordering::Relaxed);
        self.tree.note_sizes(self.writer);
    }
}

impl Tree {
    /// Merges changes of ascending, distinct keys, and makes what comes out durable, and then the newest root. `settled_to` goes with it;
    /// `None` keeps the one before. A few nodes of them are in memory at a time. One merge at a time; others wait.
    ///
    /// So that the old and the new tree need not both have room, it is done in ranges of keys, one after the other, each with a root of its own:
    /// of what the one before last needed the next one can write over. `settled_to` goes with the last of these roots; those before it say [how far](Tree::begun) it has come.
    ///
    /// # Errors
    /// Whatever fails, and what the rows' source says: the tree is then as it was, or has all the changes up to a certain key. If a write or a sync has failed, no later merge succeeds; it is not known which
    /// root will be found when the tree is opened again, this one or the one before.
    ///
    /// # Panics
    /// If keys do not ascend, or a key or a value is too long, or the rows' source does: the tree is then as after an error.
    pub(crate) fn merge(&self, rows: &mut dyn Rows, settled_to: Option<u64>) -> Result<Merged> {
        let room = self.ordinary_room(REPLACED_PART);
        self.merge_changes(&mut Streamed::new(rows), Marks { settled_to, ..Marks::default() }, room)
    }

    /// The same on as many threads as there are rows given, each of which merges those that come in its interval of the keys: intervals end, and begin, with the separators. Each of
    /// the roots but the last has the changes of each interval up to a key.
    ///
    /// # Errors
    /// As of [`Tree::merge`], but that the tree has then, if not what it had before, the changes of each interval up to a certain key.
    ///
    /// # Panics
    /// As [`Tree::merge`], or if a row is not in its interval. The separators ascend, none is empty, and there is one less than there are rows.
    pub(crate) fn merge_in_parts<R: Rows + Send>(
        &self,
        rows: &mut [R],
        separators: &[Vec<u8>],
        settled_to: Option<u64>,
    ) -> Result<Merged> {
        let ascend = separators.is_sorted_by(|one, next| one < next);
        assert!(ascend && rows.len() == separators.len() + 1, "separators ascend, between the rows");
        assert!(separators.first().is_none_or(|first| !first.is_empty()), "no key is before the first one");
        if let [rows] = rows {
            return self.merge(rows, settled_to);
        }
        let parts = Interval::between(separators).zip(rows);
        let mut parts: Vec<_> = parts.map(|(interval, rows)| Part::new(interval, rows)).collect();
        let marks = Marks { settled_to, ..Marks::default() };
        self.merge_given(&mut Given::Parts(&mut parts), marks, self.ordinary_room(REPLACED_PART))
    }

    /// # Errors
    /// `Io` if a write or a sync has failed: then no merge succeeds any more.
    pub(crate) fn check_not_failed(&self) -> Result<()> {
        self.writer.lock().check_not_failed(&self.pages)
    }

    /// Merges deletions, and nothing else, on a full disk: from what the file keeps for them, in as small ranges as that has room for. Otherwise
    /// as [`Tree::merge`].
    ///
    /// # Errors
    /// As of [`Tree::merge`].
    pub(crate) fn merge_deletions(&self, rows: &mut dyn Rows) -> Result<Merged> {
        self.delete(&mut Streamed::new(rows), Room::Reserve)
    }

    /// Merges the rows of the object `loaded`; the root says so. Otherwise as [`Tree::merge`].
    ///
    /// # Errors
    /// As of [`Tree::merge`].
    pub(crate) fn load(&self, rows: &mut dyn Rows, loaded: u32) -> Result<Merged> {
        let marks = Marks { loaded: Some(loaded), ..Marks::default() };
        self.merge_changes(&mut Streamed::new(rows), marks, self.ordinary_room(REPLACED_PART))
    }

    /// Removes all keys from `from` on that are before `to`; on a full disk, too. The file is cut as far as its end falls free.
    ///
    /// # Errors
    /// As of [`Tree::merge`], and what `goes_on` says.
    pub(crate) fn remove_all(self: &Arc<Self>, from: &[u8], to: &[u8], goes_on: GoesOn<'_>) -> Result<()> {
        let remove = |room| self.delete(&mut Removed::new(self, from, to, goes_on)?, room);
        let removed = match remove(self.ordinary_room(REPLACED_PART)) {
            Err(error) if error.kind() == ErrorKind::NoSpace => remove(Room::Reserve),
            removed => removed,
        };
        removed.map(|_| ())
    }

    /// Frees what only roots needed that nobody holds any more, and cuts the file if its end is long. (Each merge does that as well; but who has held a root
    /// meanwhile may give it up long before the next one.) Returns the bytes by which the file has become shorter.
    ///
    /// # Errors
    /// As of [`Tree::merge`]. There is nothing to be freed of a tree that has failed.
    pub(crate) fn reclaim(&self) -> Result<u64> {
        let mut writer = self.writer.lock();
        let (before, _) = writer.sizes();
        let has_freed = writer.reclaim_unheld(&self.pages, &self.root())?;
        self.note_sizes(&writer);
        if has_freed && self.has_room_to_cut() {
            self.move_map(&mut writer, Room::Reserve)?;
        }
        Ok(before.saturating_sub(writer.sizes().0))
    }

    /// The room of merges each of which may replace such a part of the tree.
    fn ordinary_room(&self, part: u64) -> Room {
        Room::Ordinary { part, bytes_min: self.replaced_bytes_min }
    }

    fn delete(&self, changes: &mut dyn Changes, room: Room) -> Result<Merged> {
        let merged = self.merge_changes(changes, Marks::default(), room)?;
        if self.has_room_to_cut() {
            self.move_map(&mut self.writer.lock(), room)?;
        }
        Ok(merged)
    }

    /// Makes a root that is the same as the newest one. That one's map may be all that is at the file's end; its own finds room before that.
    fn move_map(&self, writer: &mut Writer, room: Room) -> Result<Merged> {
        self.merge_range(writer, &mut Given::Changes(&mut NoChanges), Marks::default(), room)
    }

    fn merge_changes(&self, changes: &mut dyn Changes, marks: Marks, room: Room) -> Result<Merged> {
        self.merge_given(&mut Given::Changes(changes), marks, room)
    }

    fn merge_given(&self, given: &mut Given<'_, '_>, marks: Marks, room: Room) -> Result<Merged> {
        let mut writer = self.writer.lock();
        let mut all = Merged::default();
        loop {
            all.add(self.merge_range(&mut writer, given, marks, room)?);
            if given.next_key()?.is_none() {
                return Ok(all);
            }
        }
    }

    /// Merges as many changes as there is room for at once.
    fn merge_range(
        &self,
        writer: &mut Writer,
        given: &mut Given<'_, '_>,
        marks: Marks,
        room: Room,
    ) -> Result<Merged> {
        let under_way = UnderWay { tree: self, writer };
        let merged = under_way.writer.merge(&self.pages, &self.newest, given, marks, room)?;
        drop(under_way);
        self.written_bytes.fetch_add(merged.bytes, Ordering::Relaxed);
        Ok(merged)
    }

    /// Writes rows anew as they are, from the key `from` on, so that their leaves are full and as near to the file's beginning as can be; and
    /// cuts off the file's end. Some of them: returns the key to go on with, or `None` at the end.
    ///
    /// # Errors
    /// As of [`Tree::merge`], and what `goes_on` says.
    pub(crate) fn rewrite(self: &Arc<Self>, from: &[u8], goes_on: GoesOn<'_>) -> Result<Option<Vec<u8>>> {
        let mut writer = self.writer.lock();
        let mut changes = Rewritten::new(self, from, goes_on)?;
        let follows = from.is_empty() || writer.rewritten_to.as_deref() == Some(from);
        if changes.peek()?.is_some() {
            let room = self.ordinary_room(REWRITTEN_PART);
            let marks = Marks { unpacks: follows, ..Marks::default() };
            self.merge_range(&mut writer, &mut Given::Changes(&mut changes), marks, room)?;
        }
        let next = changes.peek()?.map(|next| next.key.to_vec());
        if follows {
            writer.rewritten_to.clone_from(&next);
        }
        if next.is_none() {
            writer.cut_end(&self.pages, &self.root())?;
            self.note_sizes(&writer);
        }
        Ok(next)
    }
}
