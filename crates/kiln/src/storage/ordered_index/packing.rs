//! Packing: leaves that removals have left nearly empty are merged, and those that stay move to where memory is in use anyhow, so that the rest
//! of it can be given back.
//!
//! ```text
//!        [ d  m  r ]   parent, locked        [ d  r ]                   [ d  r ]
//!        /  |  |  \                          /  |  \                    /  |  \
//!      1   7   9   4                 =>    1    7   4          =>     1    0   4
//!     [a][e f][n][s t]                   [a][e f n][s t]            [a][e f n][s t]
//! ```
//!
//! Of two neighbours, the right one goes, like a leaf that is unlinked, and its interval and its keys to the left one, whose version
//! changes. A leaf that moves goes as well, and its successor is a node that nobody has read. So who has read a leaf that takes
//! part finds it changed, and the rules of the index's documentation hold.

use crate::storage::epoch::{self, Pin};

use super::inner::{LockedInner, NodeId, Target};
use super::key::Probe;
use super::slots::SLOT_COUNT;
use super::{OrderedIndex, Step, retry};

/// Two leaves with more keys than this together stay apart: the next insertions would split them again.
const MERGED_KEYS_MAX: usize = SLOT_COUNT * 3 / 4;

impl OrderedIndex {
    /// Merges leaves, and moves those with high numbers to low ones that are free. Who has read one of them finds it changed. The caller is not pinned.
    pub(crate) fn pack(&self) {
        self.each_parent(|parent| self.merge_children(parent));
        self.leaves.prefer_low();
        let in_use = self.leaves.in_use() as u32;
        // Not to be used again before all have moved.
        let mut left = Vec::new();
        self.each_parent(|parent| self.lower_children(parent, in_use, &mut left));
        left.into_iter().for_each(|number| self.leaves.release(number));
    }

    /// Shows each inner node above leaves, locked, to `change`, in order.
    fn each_parent(&self, mut change: impl FnMut(&mut LockedInner<'_>)) {
        let mut low = Some(Vec::new());
        while let Some(key) = low {
            let pin = epoch::pin();
            low = retry(|| self.try_parent(&pin, &Probe::new(&key), &mut change));
        }
    }

    /// Returns where the children of the next parent begin, if there is one.
    fn try_parent(
        &self,
        pin: &Pin,
        probe: &Probe<'_>,
        change: &mut impl FnMut(&mut LockedInner<'_>),
    ) -> Option<Option<Vec<u8>>> {
        let (mut parent, mut fence): (Option<Step<'_>>, _) = (None, None);
        self.descend(pin, &Target::At(*probe), |step| {
            if let Some(above) = parent.replace(step)
                && above.index < above.inner.slots.count()
            {
                fence = Some(above.inner.slots.key(pin, above.version, above.index)?.to_vec());
            }
            Some(())
        })?;
        if let Some(step) = parent {
            change(&mut LockedInner::lock(step.id, step.inner, step.version)?);
        }
        Some(fence)
    }

    fn merge_children(&self, parent: &mut LockedInner<'_>) {
        let mut index = 0;
        while index < parent.slots.count() {
            match self.merge_right(parent, index) {
                Some(()) => {}
                None => index += 1,
            }
        }
    }

    /// Merges the child to the right of the one at `index` into it; nothing if they are too full, or somebody has one of them locked.
    fn merge_right(&self, parent: &mut LockedInner<'_>, index: usize) -> Option<()> {
        let (left, right) = (parent.child(index).number(), parent.child(index + 1).number());
        let (left_slots, right_slots) = (self.leaves.get(left)?, self.leaves.get(right)?);
        if left_slots.count() + right_slots.count() > MERGED_KEYS_MAX {
            return None;
        }
        let mut left_locked = left_slots.lock(left_slots.version()?)?;
        let mut right_locked = right_slots.lock(right_slots.version()?)?;
        if left_locked.count() + right_locked.count() > MERGED_KEYS_MAX {
            return None;
        }
        right_locked.move_all_behind(&mut left_locked);
        self.retired.push(parent.remove(index + 1));
        right_locked.keep_locked();
        self.leaves.release(right);
        Some(())
    }

    /// Moves children with numbers from `limit` on to lower ones that are free, and notes those that they have left.
    fn lower_children(&self, parent: &mut LockedInner<'_>, limit: u32, left: &mut Vec<u32>) {
        for index in 0..=parent.slots.count() {
            let old = parent.child(index).number();
            let Some(slots) = self.leaves.get(old).filter(|_| old >= limit) else { continue };
            let Some(mut locked) = slots.version().and_then(|version| slots.lock(version)) else { continue };
            let (number, lower) = self.leaves.allocate();
            if number >= limit {
                left.push(number);
                return;
            }
            locked.move_all_behind(&mut lower.adopt());
            parent.replace_child(index, NodeId::leaf(number));
            locked.keep_locked();
            left.push(old);
        }
    }
}
