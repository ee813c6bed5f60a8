//! Merging on several threads: each merges what changes in an interval of the keys, and one puts together what comes of it.
//!
//! ```text
//!  keys         |        part 0         |        part 1         |        part 2         |
//!  each thread   changes + old leaves ──▶ new leaves, and the nodes above them
//!  then one      all of these, and what is untouched between them, in order ──▶ the levels above, the map, one sync, one root
//! ```
//!
//! What lies across the boundary of two parts, a leaf perhaps, and the nodes on the way to it, both open, and each merges what is on its side; the one that has its beginning
//! frees it. So no leaf has keys of two parts, and the one on the left of a boundary may be small, as it may be once a parent anyway. What a part has not enough of for a node above
//! the leaves is left to the one that puts all together.
//!
//! A part ends, for this root, once it has replaced its share of what the merge may replace. So a root between the first one of a merge and the last has the
//! changes of each part up to a key of its own.
//!
//! Where one fails the others stop with the next leaf that they would write. Nothing is the root's before all of them are done.

use std::sync::Arc;

use super::ahead::NodesAhead;
use super::blocks::{Blocks, FileBlocks, Stretches};
use super::changes::{Changes, Rows, Streamed};
use super::interval::Interval;
use super::merge::{Merger, NewNodes};
use super::output::Output;
use super::pages::Pages;
use super::part_nodes::MadePart;
use super::root::Root;
use crate::error::Result;
use crate::storage::together::{Fails, side_by_side};
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;

/// Of threads that merge side by side.
const THREAD_NAME: &str = "kiln-merging";

/// An interval of the keys, and what changes there.
pub(super) struct Part<'r> {
    interval: Interval,
    pub(super) changes: Streamed<'r, dyn Rows + Send + 'r>,
    ahead: NodesAhead,
}

impl<'r> Part<'r> {
    pub(super) fn new(interval: Interval, rows: &'r mut (dyn Rows + Send + 'r)) -> Part<'r> {
        Part { interval, changes: Streamed::new(rows), ahead: NodesAhead::default() }
    }
}

/// Merges what changes in each part, and puts it together. Changes are left of parts that have replaced their share of what may be.
///
/// # Errors
/// What has failed: a write, if one has, or else what has in the first part in which something has.
pub(super) fn merge(
    pages: &Pages,
    (output, blocks): (&mut Output<'_>, &mut FileBlocks<'_>),
    root: &Root,
    parts: &mut [Part<'_>],
    replaced_blocks_max: u64,
    packs: bool,
) -> Result<NewNodes> {
    let mut going_on = 0;
    for part in &mut *parts {
        going_on += u64::from(part.changes.peek()?.is_some());
    }
    if going_on == 0 {
        return Ok(NewNodes::of(root));
    }
    let share = (replaced_blocks_max / going_on).max(1);
    let made = merge_side_by_side(pages, (output, blocks), root, parts, share, packs)?;
    let mut ahead = NodesAhead::default();
    let mut merger = Merger::new(pages, (output, blocks, &mut ahead), root, None, u64::MAX, packs);
    made.into_iter().try_for_each(|part| merger.join(part))?;
    merger.finish()
}

/// The first key of what is left; `None` if nothing is left of any.
pub(super) fn next_key(parts: &mut [Part<'_>]) -> Result<Option<Vec<u8>>> {
    for part in parts {
        if let Some(next) = part.changes.peek()? {
            return Ok(Some(next.key.to_vec()));
        }
    }
    Ok(None)
}

/// How a thread has ended.
struct Ended {
    made: Result<MadePart>,
    bytes: u64,
    /// A write has failed.
    failed: bool,
    /// There was an error of another one's.
    was_stopped: bool,
}

fn merge_side_by_side(
    pages: &Pages,
    (output, blocks): (&mut Output<'_>, &mut FileBlocks<'_>),
    root: &Root,
    parts: &mut [Part<'_>],
    share: u64,
    packs: bool,
) -> Result<Vec<MadePart>> {
    let (is_over, failed) = (AtomicBool::new(false), Mutex::new(&mut *output.failed));
    let (blocks, file) = (Mutex::new(blocks), &output.file);
    let parts: Vec<_> = parts.iter_mut().map(Mutex::new).collect();
    let ended = side_by_side(parts.len(), THREAD_NAME, |number| {
        let fails = Fails::new(&is_over);
        let mut has_failed = false;
        let mut output = Output::new(Arc::clone(file), &pages.name, &mut has_failed);
        let mut blocks = Stretches::new(&blocks, &is_over);
        let Part { interval, changes, ahead } = &mut **parts[number].lock();
        // What the last merge has read and not used may be written over by now.
        ahead.forget();
        let write_to = (&mut output, &mut blocks as &mut dyn Blocks, ahead);
        let made = Merger::new(pages, write_to, root, Some(interval), share, packs).run_part(changes);
        let bytes = output.bytes;
        if made.is_ok() {
            blocks.give_back();
            std::mem::forget(fails);
        }
        // Also where another one panics.
        **failed.lock() |= has_failed;
        Ended { made, bytes, failed: has_failed, was_stopped: blocks.was_stopped }
    });
    output.bytes += ended.iter().map(|part| part.bytes).sum::<u64>();
    let mut made = Vec::with_capacity(parts.len());
    let mut error = None;
    for part in ended {
        match part.made {
            Ok(part) => made.push(part),
            // None was stopped but for an error that is told here.
            Err(_) if part.was_stopped => {}
            Err(one) if error.is_none() || part.failed => error = Some(one),
            Err(_) => {}
        }
    }
    error.map_or(Ok(made), Err)
}
