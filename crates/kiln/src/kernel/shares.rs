//! Shares: how the memory is divided between the log's tail, the read cache, and the pages of what has settled.
//!
//! ```text
//!  usual      |          log                |    caches     |     all that is live is in the log's memory, or little is read from disk
//!  reading    | log      |              caches              |     what is read from disk takes as long as what is written, or longer
//!
//!  caches     |               records                       |     nothing has settled
//!             |   records    |            pages             |     something has: by what each has a use for
//!             |   records    |    pages    |     images     |     ranges go over the same leaves again: what is left
//! ```
//!
//! The log's memory holds what was written last, each row as often as it was written. As long as all that is live has room there it [stays there](super::warm), and nothing is quicker. Where it has not, memory is of more use to the caches, which have each row once: what leaves the log's share is
//! [handed over](super::hand_over) to them, and they give up first what is superseded. So what decides is whether so much is read from disk that it takes as long as the appends do, each read a hundred times as long as an append; and it stays so as long as the caches are of use, by what is found there.
//! It is decided anew after each as many appends as an eighth of the memory holds, or some thousand reads. Where the caches have room for all that is on disk
//! alone as it is, more memory would not spare a read, and the log keeps its own.
//!
//! **Pages and records** share the caches in eighths. Neither has what it has no use for while the other has: pages of more than the tree is long, with
//! what is just settling, or records of more than what is live, cold, and not in the tree. If there is too little for both each has half. It is looked
//! at anew as settling begins, before its first leaf is written, and as the tree grows and the log's head moves on.
//!
//! **Who does it** is the keeper, whom a reader wakes when it is due, and who settles or loads; never who reads or commits, unless there are no
//! background threads.
//!
//! **What memory holds goes over** when shares change ([`hand_over`](super::hand_over)): what is live in the part of the log that is to leave goes to the read cache, which
//! keeps what fits as it is divided anew. It is done in steps, each of which is done soon; and who gets less goes first, so that together they never take more than there is.

use super::cold::Cold;
use super::engine::Engine;
use super::hand_over::{HandOver, HandedOver};
use crate::device::BLOCK_BYTES;
use crate::storage::log::Log;
use crate::storage::record::{Address, HEADER_BYTES};
use crate::storage::tree::Tree;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Pages and records share the caches in such parts, of which each has one at least.
const PARTS: u64 = 8;
/// It is looked at anew who has a use for how much once that may have changed by such a part of the caches, or there are pages for the first time.
const LOOK_PART: u64 = 64;

/// Bytes of the caches, as they are opened and at the most, and what pages may have of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheBytes {
    pub(crate) usual: u64,
    pub(crate) most: u64,
    pub(crate) pages_most: u64,
}

/// Bytes of the caches that there is a use for.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    records: u64,
    pages: u64,
}

impl Needs {
    /// How many parts of so many bytes are left for images, which have `parts` now, if pages have `page_parts`.
    fn image_parts(self, bytes: u64, page_parts: u64, parts: u64) -> u64 {
        let part = (bytes / PARTS).max(1);
        let left = PARTS.saturating_sub(page_parts + self.records.div_ceil(part).max(1));
        // With each change they all go.
        if left == parts + 1 && parts > 0 { parts } else { left }
    }

    /// True if not all of it has room in so many bytes.
    fn are_beyond(self, bytes: u64) -> bool {
        let part = (bytes / PARTS).max(1);
        // Records have one part at least.
        self.pages.div_ceil(part) + self.records.div_ceil(part).max(1) > PARTS
    }

    /// How many parts of so many bytes are to be pages', which have `parts` now.
    fn page_parts(self, bytes: u64, parts: u64) -> u64 {
        if self.pages == 0 {
            return 0;
        }
        let part = (bytes / PARTS).max(1);
        let wanted = self.pages.min((bytes / 2).max(bytes.saturating_sub(self.records)));
        // A little less does not count, or it would go to and fro.
        match wanted > parts * part || wanted + part / 2 <= parts.saturating_sub(1) * part {
            true => wanted.div_ceil(part).clamp(1, PARTS - 1),
            false => parts,
        }
    }
}

/// See the module's documentation.
pub(crate) struct Shares {
    cache: CacheBytes,
    division: Mutex<Division>,
    /// How many reads from disk there were when it was looked at last whether the shares are right.
    looked_at_reads: AtomicU64,
    /// The keeper was asked to look, or has more to do.
    is_wanted: AtomicBool,
    pub(crate) hand_over: HandOver,
}

/// How the memory is divided, and where things were when that was looked at last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    reads: u64,
    hits: u64,
    tail: Address,
    is_reading: bool,
    /// Of the caches, so many are pages'.
    page_parts: u64,
    /// And so many are images', of leaves, once some range has had a use for them.
    image_parts: u64,
    has_images: bool,
    /// What tells whether needs may have changed.
    looked_at: u64,
    /// It is not yet so.
    moving: Option<Moving>,
    /// While it is reading: from where to where what was live has gone to the read cache before it left the log's memory.
    pub(super) handed_over: Option<(Address, Address)>,
}

/// Memory that is changing hands.
#[derive(Clone, Copy, Debug)]
struct Moving {
    records: u64,
    pages: u64,
    images: u64,
    /// What leaves the log for it.
    handed_over: Option<HandedOver>,
}

impl Division {
    /// Bytes of the caches.
    fn cache_bytes(&self, cache: CacheBytes) -> u64 {
        if self.is_reading { cache.most } else { cache.usual }
    }

    /// Of these, for records, for pages and for images.
    fn bytes(&self, cache: CacheBytes) -> (u64, u64, u64) {
        let bytes = self.cache_bytes(cache);
        let pages = (bytes / PARTS * self.page_parts).min(cache.pages_most);
        let images = bytes / PARTS * self.image_parts;
        (bytes - pages - images, pages, images)
    }
}

impl Shares {
    /// For a log that goes on at `tail`, and caches that are records' alone.
    pub(crate) fn new(cache: CacheBytes, tail: Address) -> Shares {
        let division = Division {
            reads: 0,
            hits: 0,
            tail,
            is_reading: false,
            page_parts: 0,
            image_parts: 0,
            has_images: false,
            looked_at: u64::MAX,
            moving: None,
            handed_over: None,
        };
        Shares {
            cache,
            division: Mutex::new(division),
            looked_at_reads: AtomicU64::new(0),
            is_wanted: AtomicBool::new(false),
            hand_over: HandOver::new(),
        }
    }

    /// How the memory is divided, unless that is about to change, or somebody else looks at it.
    pub(super) fn at_rest(&self) -> Option<MutexGuard<'_, Division>> {
        self.division.try_lock().filter(|division| division.moving.is_none())
    }

    /// The same, where the caches have the larger share, and may be divided anew among themselves.
    pub(super) fn while_reading(&self) -> Option<MutexGuard<'_, Division>> {
        let log_is_at_rest = |division: &Division| division.moving.is_none_or(|it| it.handed_over.is_none());
        self.division.try_lock().filter(|division| division.is_reading && log_is_at_rest(division))
    }

    /// Whether the caches have the larger share, and room there for records of so many bytes.
    pub(super) fn hold_all(&self, record_bytes: u64) -> bool {
        record_bytes <= self.cache.most && self.division.lock().is_reading
    }

    /// The keeper is to look whether the shares are right, or to go on with dividing.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }
}

/// So many appends are enough to go by.
fn enough_appends(cold: &Cold, log: &Log) -> u64 {
    /// A larger memory need not be written as a whole first.
    const RECORDS_MAX: u64 = 1 << 16;
    (log.ring_bytes() / record_bytes(cold) / 8).min(RECORDS_MAX)
}

/// And so many reads from disk, which take longer.
pub(super) fn enough_reads(cold: &Cold, log: &Log) -> u64 {
    const READS_MAX: u64 = 1 << 12;
    enough_appends(cold, log).min(READS_MAX)
}

fn record_bytes(cold: &Cold) -> u64 {
    cold.record_bytes().max(HEADER_BYTES as u64)
}

/// Records and nodes that were read from disk for who asked for them.
fn reads(cold: &Cold, tree: &Tree) -> u64 {
    cold.reads.load(Ordering::Relaxed) + tree.cache_misses()
}

/// And those that were found in the caches.
fn hits(cold: &Cold, tree: &Tree) -> u64 {
    cold.cache.hits() + tree.cache_hits()
}

impl Division {
    /// Looks whether the caches are to have the larger share, if there is enough to go by.
    fn look_at_reads(&mut self, engine: &Engine) {
        /// So many reads for each append make it reading, wherever memory is of use.
        const READS_TO_BEGIN: u64 = 8;
        const READS_TO_STAY: u64 = 4;
        /// A read for so many appends does where they have no room for all that is live as it is: it takes longer than they do.
        const APPENDS_TO_BEGIN: u64 = 32;
        /// And something that is found in the caches for so many.
        const APPENDS_TO_STAY: u64 = 64;
        let (cold, tree, log) = (&engine.cold, &engine.settled.tree, &engine.log);
        let (reads, tail) = (reads(cold, tree), log.tail());
        let (read, appended) = (reads - self.reads, tail.saturating_sub(self.tail) / record_bytes(cold));
        if read < enough_reads(cold, log) && appended < enough_appends(cold, log) {
            return;
        }
        let hits = hits(cold, tree);
        let found = read + hits - self.hits;
        (self.reads, self.hits, self.tail) = (reads, hits, tail);
        let lacks_room = || engine.caches_lack_room();
        // Between the bounds it stays as it is.
        self.is_reading = match self.is_reading {
            true => {
                read > appended.saturating_mul(READS_TO_STAY)
                    || found.saturating_mul(APPENDS_TO_STAY) > appended
                        && (lacks_room() || !engine.would_stay_warm())
            }
            false => {
                read > appended.saturating_mul(READS_TO_BEGIN) && lacks_room()
                    || read.saturating_mul(APPENDS_TO_BEGIN) > appended
                        && (lacks_room() || !engine.would_stay_warm() && engine.log_has_rows_twice())
            }
        };
    }
}

impl Engine {
    /// Where the log ends of which memory may have nothing; `None` while it changes hands.
    pub(super) fn cold_end(&self) -> Option<Address> {
        let division = self.shares.at_rest()?;
        let head = self.log.head();
        // Else some was evicted since that was not handed over.
        let handed_over = division.handed_over.filter(|&(_, to)| to >= head);
        Some(handed_over.map_or(head, |(from, _)| from))
    }

    /// Whether half of the records that are live before the log's head, and have not settled, has room in the read cache; and whether half of the tree has in the pages' memory.
    pub(super) fn half_of_what_is_cold_has_room(&self) -> (bool, bool) {
        let needs = self.needs(self.log.head());
        (needs.records / 2 <= self.cold.cache.bytes(), needs.pages / 2 <= self.settled.tree.cache_bytes())
    }

    /// For who has read from disk: has the memory divided anew if that is due. The caller is not pinned, and does not harden.
    #[inline]
    pub(crate) fn watch_reads(&self) {
        let shares = &self.shares;
        let looked_at = shares.looked_at_reads.load(Ordering::Relaxed);
        let read = reads(&self.cold, &self.settled.tree).saturating_sub(looked_at);
        if read >= enough_reads(&self.cold, &self.log) || shares.is_wanted() {
            self.want_shares();
        }
    }

    #[cold]
    fn want_shares(&self) {
        let shares = &self.shares;
        if !self.hardening.has_background() {
            self.share_memory();
        } else if !shares.is_wanted() && !shares.is_wanted.swap(true, Ordering::SeqCst) {
            self.hardening.wake_keeper();
        }
    }

    /// Divides the memory anew if that is due, or does a step of it, unless somebody is at it. The caller is not pinned, and does not harden.
    pub(crate) fn share_memory(&self) {
        if let Some(division) = self.shares.division.try_lock() {
            self.divide_memory(division);
        }
    }

    /// For who settles, or loads: has the pages have their share. As [`Self::share_memory`], but for good.
    pub(crate) fn share_for_good(&self) {
        while self.divide_memory(self.shares.division.lock()) {
            // The keeper does not come to it meanwhile.
            self.hand_over_what_leaves();
        }
    }

    /// Does a step, if there is one to do; true if there are more.
    fn divide_memory(&self, mut division: MutexGuard<'_, Division>) -> bool {
        let shares = &self.shares;
        let more = match division.moving {
            Some(moving) => self.go_on_dividing(&mut division, moving),
            None => self.begin_dividing(&mut division),
        };
        shares.looked_at_reads.store(division.reads, Ordering::Relaxed);
        shares.is_wanted.store(more, Ordering::SeqCst);
        more
    }

    /// Begins to divide the memory anew, if that is due.
    fn begin_dividing(&self, division: &mut Division) -> bool {
        let (cache, log) = (self.shares.cache, &self.log);
        let mut next = *division;
        if cache.usual < cache.most {
            next.look_at_reads(self);
        } else {
            // There is nothing to change, for so many reads more.
            next.reads = reads(&self.cold, &self.settled.tree);
        }
        let begins_reading = next.is_reading && !division.is_reading;
        let log_share = log.ring_bytes() + cache.usual - cache.most;
        let looked_at = self.needs_mark();
        // However little it is, without memory each read is one from disk.
        let lacks_pages = next.page_parts == 0 && self.needed_page_bytes() > 0;
        if next.is_reading != division.is_reading
            || lacks_pages
            || looked_at.abs_diff(next.looked_at) >= cache.usual / LOOK_PART
            || self.leaf_images.is_wanted() && !division.has_images
        {
            let head = if begins_reading { self.head_with(log_share) } else { log.head() };
            let (needs, bytes) = (self.needs(head), next.cache_bytes(cache));
            next.page_parts = needs.page_parts(bytes, next.page_parts);
            next.has_images = self.leaf_images.is_wanted();
            next.image_parts =
                if next.has_images { needs.image_parts(bytes, next.page_parts, next.image_parts) } else { 0 };
            next.looked_at = looked_at;
        }
        let before = std::mem::replace(division, next);
        let ((records, pages, images), (_, pages_before, images_before)) =
            (next.bytes(cache), before.bytes(cache));
        if next.is_reading == before.is_reading && (pages, images) == (pages_before, images_before) {
            return false;
        }
        self.leaf_images.set_bytes(images.min(images_before));
        // Who gets less goes first.
        let handed_over = if begins_reading { self.begin_hand_over(log_share) } else { None };
        let opened = handed_over.map_or(u64::MAX, |handed_over| handed_over.records_before);
        let records_now = self.cold.cache.begin_division(records, self.likely_record_bytes(), opened);
        let together = next.cache_bytes(cache).min(before.cache_bytes(cache));
        let pages_now = pages.min(pages_before).min(together.saturating_sub(records_now));
        if pages_now < pages_before {
            self.settled.tree.set_cache_bytes(pages_now);
        }
        division.moving = Some(Moving { records, pages, images, handed_over });
        true
    }

    /// Does the next step; true if there are more.
    fn go_on_dividing(&self, division: &mut Division, moving: Moving) -> bool {
        let (CacheBytes { usual, most, .. }, log) = (self.shares.cache, &self.log);
        let (records, pages) = (&self.cold.cache, &self.settled.tree);
        if records.divide_some(&self.is_newest()) {
            return true;
        }
        if let Some(mut handed_over) = moving.handed_over {
            let more = self.hand_over_some(&mut handed_over);
            let caches = usual + handed_over.part_of(most - usual);
            records.open(
                handed_over.records_before
                    + handed_over.part_of(moving.records.saturating_sub(handed_over.records_before)),
            );
            self.shares.hand_over.note_log_bytes(log.ring_bytes() + usual - caches);
            pages.set_cache_bytes(moving.pages.min(caches.saturating_sub(records.bytes())));
            if more {
                division.moving = Some(Moving { handed_over: Some(handed_over), ..moving });
                return true;
            }
        }
        division.moving = None;
        if !division.is_reading {
            log.set_share(log.ring_bytes());
        }
        let handed_over = self.end_hand_over(moving.handed_over, division.is_reading);
        // With the memory some of it may have left the cache, too.
        division.handed_over = handed_over.map(|it| division.handed_over.unwrap_or(it));
        records.open(u64::MAX);
        pages.set_cache_bytes(moving.pages);
        self.leaf_images.set_bytes(moving.images);
        self.make_room(0);
        false
    }

    /// About how long records are that the read cache is going to have.
    fn likely_record_bytes(&self) -> u64 {
        let mean = self.liveness.lock().record_bytes();
        match self.cold.record_bytes() {
            0 => mean,
            read => read.min(mean.max(HEADER_BYTES as u64)),
        }
    }

    /// Whether much of the log's memory is superseded: the caches would have each row once.
    fn log_has_rows_twice(&self) -> bool {
        let (head, hardened) = (self.log.head(), self.log.hardened());
        let live_bytes = self.liveness.lock().live_bytes_between(head, hardened);
        live_bytes < hardened.saturating_sub(head) / 8 * 7
    }

    /// Whether there is more that is on disk alone than the caches usually have room for.
    fn caches_lack_room(&self) -> bool {
        self.needs(self.log.head()).are_beyond(self.shares.cache.usual)
    }

    /// How much of the caches there is a use for, if the log's head is there.
    fn needs(&self, head: Address) -> Needs {
        Needs { records: self.needed_record_bytes(head), pages: self.needed_page_bytes() }
    }

    /// Memory for the records that are live, and have left the log's if its head is there.
    pub(super) fn needed_record_bytes(&self, head: Address) -> u64 {
        let cold_bytes = self.liveness.lock().live_bytes_before(head);
        // With their directory.
        cold_bytes + cold_bytes / 8
    }

    fn needed_page_bytes(&self) -> u64 {
        let settled = &self.settled;
        settled.tree.memory_bytes_max(settled.moving_bytes.load(Ordering::SeqCst))
    }

    /// What changes as they do.
    fn needs_mark(&self) -> u64 {
        let settled = &self.settled;
        let moving_bytes = settled.moving_bytes.load(Ordering::SeqCst);
        let removed_to = settled.removed_to.load(Ordering::SeqCst);
        self.log.head() + settled.tree.used_bytes() + moving_bytes + removed_to
    }

    /// Memory that the log may take at the moment.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.shares.hand_over.log_bytes().unwrap_or_else(|| self.log.share())
    }

    /// Where the log's head is to be with a share that is less than its ring.
    pub(super) fn head_with(&self, share: u64) -> Address {
        // Half of the share is for what was written last, and half for what will be next.
        self.log.tail().saturating_sub(share / 2)
    }

    /// How much of the ring's memory is to be free, if a committer wants so much.
    pub(super) fn free_bytes(&self, wanted: u64) -> u64 {
        let (ring, segment) = (self.log.ring_bytes(), self.log.segment_bytes());
        // The longest record always fits into a segment; a large transaction may want more, and so may others meanwhile.
        let wanted = if wanted > 0 { self.log.span_max(wanted) + 2 * segment } else { 0 };
        (ring / 8).max(segment).max(wanted).min(ring)
    }

    /// Frees ring memory before commits have to wait for it, and what is beyond the log's share, but no more than that: what was
    /// evicted must be read from disk by whoever updates it next. Only what is durable can go, but that also while somebody hardens. The
    /// caller is not pinned.
    pub(super) fn make_room(&self, wanted: u64) {
        let (tail, ring) = (self.log.tail(), self.log.ring_bytes());
        let free = self.free_bytes(wanted);
        let mut target = (tail + free).saturating_sub(ring);
        // A quiesce costs something, so not for every few records.
        let mut worth_it = if wanted > 0 { 0 } else { free / 4 };
        let share = self.log.share();
        if share < ring {
            // At once what is more memory than it may have.
            target = target.max(tail.saturating_sub(self.log_bytes()));
            target = target.max(self.head_with(share).min(self.shares.hand_over.cursor()));
            worth_it = worth_it.min(share / 16);
        }
        let target = self.without_warm(target, wanted);
        // Whole blocks, so that their memory can be given back.
        let target = target.min(self.log.hardened()) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if target > self.log.head() + worth_it {
            self.log.evict(target);
        }
        self.update_limit();
    }

    /// Frees ring memory up to `target`, which is durable and of which nothing is needed there. The caller is not pinned.
    pub(super) fn evict_to(&self, target: Address) {
        self.log.evict(target);
        self.update_limit();
    }
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
