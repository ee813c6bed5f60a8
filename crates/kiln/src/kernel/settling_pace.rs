//! How far settling may fall behind: beyond a bound commits of tables are slowed (compare C5b).
//!
//! ```text
//!      settled to                                            head         tail
//!   ------|--------------|--------------------|---------------|------------|
//!         | 0        due: settling begins     | bound         | in memory
//!         `------------ cold, not settled ----+---------------' what is beyond slows commits
//! ```
//!
//! Rows that have not settled are in the indexes in memory, and their records keep the log from being dropped. So when more live log is cold than
//! [`BOUND_TIMES`] what makes settling due, or than [`unsettled_bytes`](crate::Options::unsettled_bytes) if that is more, and as long as settling
//! goes on, commits that write tables may let the log grow by three bytes for every four that settle: then the next part has a quarter less to do than this one, and so on, until they are within the bound.
//!
//! **Settling is the clock.** With each step that it takes it grants commits some bytes, and who comes when more was taken than was granted waits for the next ones. So commits go
//! as fast as settling does, whatever the disk and the processors have to do. What a commit takes is what it adds to [what counts](Engine::counted_bytes): a row that replaces one that has not
//! settled either is not one more, and takes as much as what is dead.
//!
//! **It goes in jerks, and they do not.** Where settling sorts, syncs, or waits for a checkpoint nothing is granted for a while. Meanwhile commits go on as they did on average while
//! the part before settled, ahead by a [part](FLOW_PART) of what that granted.
//!
//! **Nobody waits in vain.** A commit waits [`WAIT_MAX`] at the most, before it has locked or pinned anything, and only while rows are being
//! merged or removed, or, where one part follows another, the next one is read. Where settling cannot go on (a snapshot too old, a full disk, a tree that cannot be written, no background threads, an option)
//! nobody is slowed: it would not help. Maps do not settle, and who writes only them is not slowed.

use super::change::Change;
use super::engine::Engine;
use crate::storage::record::Address;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Instant, Mutex, thread};
use std::time::Duration;

/// So many times as much log as makes it due may be cold and not settled before commits are slowed.
const BOUND_TIMES: u64 = 2;
/// So many times as much log counts as if it were live.
const DEAD_TIMES: u64 = 4;
/// Commits may take so many quarters of what settles.
const GRANT_QUARTERS: u64 = 3;
/// Commits may be ahead of what is granted by so much, so that not each of them waits.
const AHEAD_BYTES: u64 = 128 << 10;
/// For each time that they are ahead by so much who comes next waits so long at the most: settling goes in jerks, and who commits little is not to feel them.
const WAIT_STEP: Duration = Duration::from_millis(1);
/// A commit waits so long at the most.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// What commits are ahead by more than that is not remembered: who commits a little does not wait for long behind who commits very much.
const AHEAD_BYTES_MAX: u64 = AHEAD_BYTES * WAIT_MAX.as_millis() as u64;
/// As long as nothing is granted commits may go on ahead by such a part of what the part before has granted.
const FLOW_PART: u64 = 4;

/// See the module's documentation.
pub(crate) struct SettlingPace {
    /// Rows are being merged, or their entries removed, or the part that follows is read.
    is_moving: AtomicBool,
    /// Commits of tables are slowed.
    is_pressing: AtomicBool,
    /// Bytes of log that commits were granted, and that they have taken while it was pressing.
    granted: AtomicU64,
    taken: AtomicU64,
    flow: Mutex<Flow>,
    waits: AtomicU64,
}

/// How what is granted flows on while settling stands still.
struct Flow {
    /// When the part that settles was begun.
    part_began: Instant,
    /// Since when it flows, and what had been granted, or had flowed, by then.
    since: Instant,
    due: u64,
    /// What the part before was granted, and in which time.
    before: Option<(u64, Duration)>,
    /// How far commits may have been ahead when it ended.
    ahead_then: u64,
}

impl Flow {
    fn begin(&mut self, due: u64) {
        (self.since, self.due) = (Instant::now(), due);
    }

    /// How far commits may be ahead of what is granted.
    fn ahead(&self, granted: u64) -> u64 {
        let Some((bytes, took)) = self.before else { return 0 };
        let times = self.since.elapsed().div_duration_f64(took);
        let due = self.due.saturating_add((bytes as f64 * times) as u64);
        due.saturating_sub(granted).min((bytes / FLOW_PART).max(self.ahead_then))
    }
}

/// What is done with a part of the log that settles, one after the other.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    Reading,
    Merging,
    Removing,
}

impl Stage {
    /// How many quarters of the time it takes, about.
    fn quarters(self) -> u64 {
        match self {
            Stage::Merging => 2,
            Stage::Reading | Stage::Removing => 1,
        }
    }
}

/// What commits are granted for so much that settles.
fn grant_of(bytes: u64) -> u64 {
    bytes / 4 * GRANT_QUARTERS
}

/// What commits are granted while a stage goes on.
pub(super) struct Grants<'a> {
    pace: &'a SettlingPace,
    bytes: u64,
    given: u64,
}

impl Grants<'_> {
    /// So many of so many are done.
    pub(super) fn reach(&mut self, done: u64, of: u64) {
        let due = u128::from(self.bytes) * u128::from(done.min(of)) / u128::from(of.max(1));
        let more = (due as u64).saturating_sub(self.given);
        self.given += more;
        self.pace.granted.fetch_add(more, Ordering::Relaxed);
    }
}

/// Says that rows are being moved until it is dropped.
pub(super) struct Moving<'a>(&'a SettlingPace);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.is_moving.store(false, Ordering::SeqCst);
        self.0.is_pressing.store(false, Ordering::SeqCst);
    }
}

impl SettlingPace {
    pub(super) fn new() -> SettlingPace {
        SettlingPace {
            is_moving: AtomicBool::new(false),
            is_pressing: AtomicBool::new(false),
            granted: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            flow: Mutex::new(Flow {
                part_began: Instant::now(),
                since: Instant::now(),
                due: 0,
                before: None,
                ahead_then: 0,
            }),
            waits: AtomicU64::new(0),
        }
    }

    /// A part of the log begins to settle.
    pub(super) fn begin_part(&self) {
        self.flow.lock().part_began = Instant::now();
    }

    /// It has settled, and counted for so many bytes. What flows goes on from where it is, however long the next part will take.
    pub(super) fn end_part(&self, bytes: u64) {
        let mut flow = self.flow.lock();
        let granted = self.granted.load(Ordering::Relaxed);
        flow.ahead_then = flow.ahead(granted);
        let due = granted.saturating_add(flow.ahead_then);
        flow.begin(due);
        flow.before = Some((grant_of(bytes), flow.part_began.elapsed().max(WAIT_STEP)));
    }

    /// Rows are being moved from now on.
    pub(super) fn begin_moving(&self) -> Moving<'_> {
        self.is_moving.store(true, Ordering::SeqCst);
        Moving(self)
    }

    /// A stage begins of a part of the log that has so many bytes.
    pub(super) fn begin(&self, stage: Stage, part_bytes: u64) -> Grants<'_> {
        let bytes = grant_of(part_bytes / 4 * stage.quarters());
        Grants { pace: self, bytes, given: 0 }
    }

    pub(super) fn is_pressing(&self) -> bool {
        self.is_pressing.load(Ordering::Relaxed)
    }

    /// How often a commit was slowed.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Commits are slowed from now on, or no longer.
    fn press(&self, presses: bool) {
        if presses && !self.is_pressing() {
            // What was granted before slowed nobody. Settling may grant some just now: which is lost, and little.
            let taken = self.taken.load(Ordering::Relaxed);
            self.granted.store(taken, Ordering::Relaxed);
            self.flow.lock().begin(taken);
        }
        self.is_pressing.store(presses, Ordering::SeqCst);
    }

    /// How far what was taken is ahead of what is granted.
    fn bytes_ahead_of_grants(&self, taken: u64) -> u64 {
        taken.saturating_sub(self.granted.load(Ordering::Relaxed))
    }

    /// And of what flows.
    fn bytes_ahead(&self, taken: u64) -> u64 {
        let flow = self.flow.lock();
        let granted = self.granted.load(Ordering::Relaxed);
        taken.saturating_sub(granted).saturating_sub(flow.ahead(granted))
    }

    /// Takes so many bytes for a commit, if commits are slowed: those that come later wait for them.
    fn take(&self, bytes: u64) {
        if self.is_pressing() {
            let taken = self.taken.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if self.bytes_ahead_of_grants(taken) > AHEAD_BYTES_MAX {
                let too_many = self.bytes_ahead(taken).saturating_sub(AHEAD_BYTES_MAX);
                self.taken.fetch_sub(too_many.min(bytes), Ordering::Relaxed);
            }
        }
    }

    /// For a commit, if commits are slowed: waits until what was taken so far is granted, or flows, for a while.
    pub(super) fn wait(&self) {
        if !self.is_pressing() {
            return;
        }
        let taken = self.taken.load(Ordering::Relaxed);
        if self.bytes_ahead_of_grants(taken) < AHEAD_BYTES {
            return;
        }
        let steps = (self.bytes_ahead(taken) / AHEAD_BYTES) as u32;
        if steps == 0 {
            return;
        }
        self.waits.fetch_add(1, Ordering::Relaxed);
        let until = Instant::now() + WAIT_STEP.saturating_mul(steps).min(WAIT_MAX);
        while self.is_pressing() && self.bytes_ahead(taken) > 0 && Instant::now() < until {
            thread::sleep(WAIT_STEP);
        }
    }
}

impl Engine {
    /// Takes for a commit that is slowed what a new record of a table adds to what [counts](Self::counted_bytes) as not settled: where it replaces one that has not settled
    /// either, and is about as long, no more than what is dead.
    #[cold]
    pub(super) fn take_settling_grant(&self, change: &Change<'_>, replaces_record: bool) {
        if self.is_ordered(change.object) {
            let bytes = change.log_bytes();
            let is_one_more = !replaces_record || self.graves.wait_for_settling();
            self.settled.pace.take(if is_one_more { bytes } else { bytes / DEAD_TIMES });
        }
    }

    /// Where the part of the log begins that has not settled.
    pub(super) fn unsettled_from(&self) -> Address {
        self.settled.tree.settled_to().max(self.log.begin())
    }

    /// Bytes of log that are out of memory and have not settled.
    pub(super) fn cold_log_bytes(&self) -> u64 {
        self.log.head().saturating_sub(self.unsettled_from())
    }

    /// How many of them count.
    pub(crate) fn unsettled_bytes(&self) -> u64 {
        self.counted_bytes(self.unsettled_from(), self.log.head())
    }

    /// How many bytes of a part of the log count as not settled: about as many as its live records take, since what is dead is dropped with its segment once
    /// compaction has moved what else is there; but a [part](DEAD_TIMES) at the least, since that need not be soon. All of them where deletions are to settle:
    /// these are not moved, and whoever looks for a row passes them.
    pub(super) fn counted_bytes(&self, from: Address, to: Address) -> u64 {
        let bytes = to.saturating_sub(from);
        if bytes == 0 || self.graves.wait_for_settling() {
            return bytes;
        }
        self.liveness.lock().live_bytes_between(from, to).clamp(bytes / DEAD_TIMES, bytes)
    }

    /// Up to where so many count, from the oldest on.
    pub(super) fn unsettled_end(&self, bytes: u64) -> Address {
        let from = self.unsettled_from();
        if self.graves.wait_for_settling() {
            return from.saturating_add(bytes);
        }
        let most = from.saturating_add(bytes.saturating_mul(DEAD_TIMES));
        self.liveness.lock().end_of_live(from, bytes).min(most)
    }

    /// Whether what has not settled up to there may be a part of which so many bytes count, or a segment more.
    pub(super) fn is_part_of(&self, bytes: u64, end: Address) -> bool {
        let most = bytes.saturating_mul(DEAD_TIMES).saturating_add(self.log.segment_bytes());
        end.saturating_sub(self.unsettled_from()) <= most
    }

    /// How many there may be before commits of tables are slowed; 0 if they never are.
    pub(crate) fn unsettled_bytes_max(&self) -> u64 {
        match self.settled.bounds.due_bytes > 0 && self.hardening.has_background() {
            true => self.settling_bound_bytes(),
            false => 0,
        }
    }

    /// The bound; as much settles at once.
    pub(super) fn settling_bound_bytes(&self) -> u64 {
        let least = self.settling_due_usually().saturating_mul(BOUND_TIMES);
        self.settled.bounds.unsettled_bytes.max(least)
    }

    /// A part of the log is on its way into the tree.
    pub(super) fn is_settling(&self) -> bool {
        self.settled.pace.is_moving.load(Ordering::SeqCst)
    }

    /// Sees to it, now and then, that commits are slowed as long as settling is too far behind.
    pub(super) fn watch_settling(&self) {
        let pace = &self.settled.pace;
        let bound = self.unsettled_bytes_max();
        let presses = self.is_settling()
            && bound > 0
            && self.cold_log_bytes() > bound
            && self.unsettled_bytes() > bound
            && !self.segments.disk_is_full();
        pace.press(presses);
        if presses {
            self.behind.store(true, Ordering::SeqCst);
            // It may have come to its end just now.
            if !self.is_settling() {
                pace.press(false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::device::SimulatedDevice;

    /// A pace that presses.
    fn pressing(pace: &SettlingPace) -> Moving<'_> {
        let moving = pace.begin_moving();
        pace.press(true);
        moving
    }

    /// A commit of so many bytes, and how long it waits.
    fn commit(pace: &SettlingPace, bytes: u64) -> Duration {
        let began = Instant::now();
        pace.wait();
        let waited = began.elapsed();
        pace.take(bytes);
        waited
    }

    #[test]
    fn c5b_commits_take_three_bytes_for_four_that_settle_and_none_waits_for_long() {
        let pace = SettlingPace::new();
        let grant = |stage, part| pace.begin(stage, part).reach(1, 1);
        // What was granted before counts no more.
        grant(Stage::Merging, 1 << 30);
        let _moving = pressing(&pace);
        let take = |commits: u64| (0..commits).for_each(|_| _ = commit(&pace, 1 << 10));
        take(AHEAD_BYTES >> 10);
        assert_eq!(pace.waits(), 0);
        // A part of 4 MiB: its stages grant 3 MiB.
        for stage in [Stage::Reading, Stage::Merging, Stage::Removing] {
            grant(stage, 4 << 20);
        }
        take(3 << 10);
        assert_eq!(pace.waits(), 0);
        assert!(commit(&pace, 1 << 20) >= WAIT_STEP, "nothing settles");
        assert!(commit(&pace, 0) >= WAIT_STEP * 9, "the longer the more it is ahead");
        assert_eq!(pace.waits(), 2);
        grant(Stage::Merging, 4 << 20);
        commit(&pace, 0);
        assert_eq!(pace.waits(), 2);
        // However much that was: a part of some MiB, and it is over for the others.
        commit(&pace, u64::MAX / 2);
        let long = commit(&pace, 0);
        assert!(long >= WAIT_MAX, "{long:?}");
        grant(Stage::Merging, AHEAD_BYTES_MAX * 3);
        commit(&pace, 0);
        assert_eq!(pace.waits(), 3);
    }

    /// While settling waited for a checkpoint commits stood still, for as long as that took.
    #[test]
    fn c5b_as_long_as_nothing_is_granted_commits_go_on_as_they_did_and_not_for_ever() {
        const PART: u64 = 64 << 20;
        let pace = SettlingPace::new();
        pace.begin_part();
        thread::sleep(WAIT_STEP * 20);
        pace.end_part(PART);
        let _moving = pressing(&pace);
        let (most, took) = (grant_of(PART) / FLOW_PART, pace.flow.lock().before.unwrap().1);
        thread::sleep(took);
        (0..=most / AHEAD_BYTES).for_each(|_| _ = commit(&pace, AHEAD_BYTES));
        assert_eq!(pace.waits(), 0);
        assert!(commit(&pace, AHEAD_BYTES_MAX) >= WAIT_STEP, "it is a part ahead");
        assert!(commit(&pace, 0) >= WAIT_MAX);
        pace.begin(Stage::Merging, PART).reach(1, 1);
        commit(&pace, 0);
        assert_eq!(pace.waits(), 2);
    }

    /// The next part took back what commits were ahead by: where it was slower than the one before they stood still until it had granted as much.
    #[test]
    fn c5b_what_has_flowed_is_not_taken_back_where_a_part_ends() {
        const PART: u64 = 64 << 20;
        let pace = SettlingPace::new();
        pace.begin_part();
        pace.end_part(PART);
        let _moving = pressing(&pace);
        let (most, took) = (grant_of(PART) / FLOW_PART, pace.flow.lock().before.unwrap().1);
        pace.begin_part();
        thread::sleep(took * FLOW_PART as u32);
        pace.take(most);
        assert_eq!(pace.bytes_ahead(most), 0);
        // Of whatever length it was.
        pace.end_part(PART / 64);
        pace.begin_part();
        assert_eq!(pace.bytes_ahead(most), 0);
        assert!(pace.bytes_ahead(most + AHEAD_BYTES_MAX) > 0, "and it is no more");
    }

    /// Who waited went on waiting although what was left flowed, where that was little.
    #[test]
    fn c5b_the_last_bytes_flow_like_all_others() {
        const PART: u64 = 64 << 20;
        let pace = SettlingPace::new();
        pace.begin_part();
        pace.end_part(PART);
        let _moving = pressing(&pace);
        thread::sleep(WAIT_STEP);
        assert_eq!(pace.bytes_ahead(AHEAD_BYTES - 1), 0);
    }

    #[test]
    fn stages_grant_as_far_as_they_are_and_no_more_than_is_theirs() {
        let pace = SettlingPace::new();
        let granted = || pace.granted.load(Ordering::Relaxed);
        let mut grants = pace.begin(Stage::Merging, 1_600);
        let reached = [(0, 0), (0, 10), (5, 10), (4, 10), (10, 10), (12, 10), (u64::MAX, 10)];
        let after = reached.map(|(done, of)| {
            grants.reach(done, of);
            granted()
        });
        assert_eq!(after, [0, 0, 300, 300, 600, 600, 600]);
        pace.begin(Stage::Reading, u64::MAX).reach(u64::MAX, u64::MAX);
        assert_eq!(granted(), 600 + u64::MAX / 16 * 3);
    }

    /// Somebody who committed to a map had a hardening of his own to wait for, once settling had caught up.
    #[test]
    fn c3_nobody_waits_for_the_disk_because_settling_was_behind() {
        let device = std::sync::Arc::new(SimulatedDevice::new(1));
        let options = Options::new().background(false).segment_bytes(64 << 10).memory(0);
        let db = options.window(Duration::from_secs(60)).open_on(device).unwrap();
        let map = db.map("map").unwrap();
        db.put(&map, "key", "value").unwrap().forget();
        let hardenings = db.statistics().hardenings;
        db.engine().behind.store(true, Ordering::SeqCst);
        db.put(&map, "key", "newer").unwrap().forget();
        db.transact(|tx| tx.put(&map, "other", "value")).unwrap().forget();
        assert_eq!(db.statistics().hardenings, hardenings);
    }

    /// Each attempt waited anew, behind all others. An update waits between its read and its attempt, so those of one key held each other up.
    #[test]
    fn c5b_a_commit_that_is_tried_again_is_slowed_once() {
        let device = std::sync::Arc::new(SimulatedDevice::new(1));
        let options = Options::new().background(false).window(Duration::from_secs(600));
        let db = options.open_on(device).unwrap();
        let table = db.table("table").unwrap();
        let mut long = vec![7; AHEAD_BYTES as usize + 1];
        let (engine, pace) = (db.engine(), &db.engine().settled.pace);
        let _moving = pressing(pace);
        engine.behind.store(true, Ordering::SeqCst);
        let mut runs = 0;
        let updated = db.update(&table, "row", |_| {
            runs += 1;
            if runs < 5 {
                // It runs again for another value only.
                long[0] = runs;
                db.put(&table, "row", &long).unwrap().forget();
            }
            Some(long.clone())
        });
        updated.unwrap().forget();
        assert_eq!((runs, pace.waits()), (5, 4), "the update, and the puts but for the first");
    }

    /// Merging and removing granted nothing for the last rows of a part, and where there were few, or all of them were left out, nothing at all.
    #[test]
    fn c5b_all_of_a_part_is_granted_however_few_rows_it_has() {
        let device = std::sync::Arc::new(SimulatedDevice::new(1));
        let db = Options::new().background(false).settle_log_bytes(0).open_on(device).unwrap();
        let table = db.table("table").unwrap();
        (0..100_u8).for_each(|row| db.put(&table, [row], [row; 1_000]).unwrap().forget());
        db.persist().unwrap();
        let engine = db.engine();
        let counted = engine.counted_bytes(engine.unsettled_from(), engine.log.hardened());
        assert!(counted > 20_000);
        assert_eq!(db.settle().unwrap(), 100);
        let granted = engine.settled.pace.granted.load(Ordering::Relaxed);
        assert!((grant_of(counted) - 100..=grant_of(counted)).contains(&granted), "{granted} for {counted}");
    }

    #[test]
    fn nobody_waits_once_nothing_moves() {
        let pace = SettlingPace::new();
        let moving = pressing(&pace);
        pace.take(1 << 20);
        pace.wait();
        assert_eq!(pace.waits(), 1);
        drop(moving);
        pace.wait();
        assert_eq!(pace.waits(), 1);
    }
}
