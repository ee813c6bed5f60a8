//! Opening and closing a database.

use std::sync::Arc;

use super::backup::is_of_database;
use crate::device::{Device, DeviceLock, OpenMode, Process};
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::checkpoint::{CheckpointCounts, Checkpoints};
use crate::kernel::clock::Clock;
use crate::kernel::cold::Cold;
use crate::kernel::compaction::Compaction;
use crate::kernel::engine::{Engine, OpenTransactions};
use crate::kernel::expiry::Expiring;
use crate::kernel::hardening::Hardening;
use crate::kernel::ledger::Ledger;
use crate::kernel::notes::Notes;
use crate::kernel::pending_read::Reader;
use crate::kernel::recovery::{Base, Recovered, RecoveryReport, VERSIONS_END, VERSIONS_SKIPPED, recover};
use crate::kernel::removal::Removal;
use crate::kernel::session::Sessions;
use crate::kernel::settled::{Settled, SettlingBounds};
use crate::kernel::shares::Shares;
use crate::kernel::snapshot::Snapshots;
use crate::kernel::sweep::Graves;
use crate::kernel::warm::Warm;
use crate::kernel::warm_up::WarmUp;
use crate::kernel::write_counts::WriteCounts;
use crate::options::Options;
use crate::planted::{Bug, planted};
use crate::storage::checkpoint;
use crate::storage::epoch;
use crate::storage::extent::ExtentWriter;
use crate::storage::leaf_images::LeafImages;
use crate::storage::liveness::Liveness;
use crate::storage::log::Log;
use crate::storage::names::Names;
use crate::storage::runs;
use crate::storage::segments::{self, Segments};
use crate::storage::superblock::{self, CheckpointName, Superblock, SuperblockFile};
use crate::storage::tree::{self, Tree};
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Instant, Mutex, OnceLock};

/// Such a part of the memory for settling is what a merge may replace at once, however small the tree is.
const REPLACED_PART: u64 = 4;

/// Opens the database on a device, creating it if there is none and the options allow.
pub(super) fn open(options: &Options, device: Arc<dyn Device>) -> Result<(Arc<Engine>, RecoveryReport)> {
    let began = Instant::now();
    // Looked at before the lock, so that where there is no database not even the lock's file is left behind; and again
    // under it.
    is_new(&*device, options.create)?;
    let lock = lock(&*device)?;
    let is_new = is_new(&*device, options.create)?;
    if is_new && let Err(error) = check_names_free(&*device) {
        lock.give_up();
        return Err(error);
    }
    let superblock = match is_new {
        true => SuperblockFile::create(&*device, first_superblock(options, &*device)?)?,
        false => SuperblockFile::open(&*device, OpenMode::ReadWrite)?,
    };
    let current = superblock.current().clone();
    let segments = Segments::open(device.clone(), current.segment_bytes, OpenMode::ReadWrite)?;
    let memory = |error| Error::io("allocating the database's memory", error);
    let log = Log::new(options.ring_bytes(current.segment_bytes), current.segment_bytes, current.begin)
        .map_err(memory)?;
    let cache_bytes = options.cache_bytes(current.segment_bytes);
    let mut tree =
        open_tree(segments.names(), cache_bytes.pages_most as usize, &current, OpenMode::ReadWrite)?;
    let settle_memory = options.settle_memory_bytes(current.segment_bytes);
    tree.set_replaced_bytes_min(settle_memory / REPLACED_PART);
    let tree = Arc::new(tree.packing(options.leaf_compression));
    // While the log is read, records need no memory; and pages need none before there are any.
    tree.set_cache_bytes(if tree.is_empty() { 0 } else { cache_bytes.usual.min(cache_bytes.pages_most) });
    let cold = Cold::new(cache_bytes).map_err(memory)?;
    let (base, mut recovered) = recover((&segments, &current), &log, &tree, &options.recovery)?;
    recovered.report.clean |= is_new;
    let found = CheckpointCounts {
        count: 0,
        end: recovered.report.checkpoint.unwrap_or(0),
        bytes: base.checkpoint_bytes,
        time_us: base.checkpoint_time_us,
        settled_to: base.settled_to,
        steps: (0, 0),
    };
    let Base { index, objects, liveness, forgotten_to, .. } = base;
    if current.has_expiring {
        objects.iter().for_each(|object| object.lifetimes.expect_some());
    }
    let mut opening = Opening { segments, superblock, log, liveness };
    let (clock, writer) = opening.make_writable(&mut recovered)?;
    // What the catalog does not have was not loaded to its end.
    let loaded = if objects.get(tree.loaded()).is_some() { tree.loaded() } else { 0 };
    let is_newer = tree.settled_to() > current.settled_to || loaded > current.loaded;
    if is_newer && !planted(Bug::FoundRootBelieved) {
        if planted(Bug::SettledToBeforeRoot) {
            opening.superblock.update(|superblock| superblock.settled_to = tree.settled_to())?;
        }
        // Else the next checkpoint would leave out, and the log drop, what only this root has, and the power could fail.
        tree.make_certain()?;
        // Nor must an older one, or none, be taken for it then, whichever slot is damaged.
        opening.superblock.say_for_good(
            |said| said.settled_to >= tree.settled_to() && said.loaded >= loaded,
            |superblock| {
                superblock.settled_to = tree.settled_to();
                superblock.loaded = superblock.loaded.max(loaded);
            },
        )?;
    }
    let Opening { segments, superblock, log, liveness } = opening;
    // Closed in order, the log has no record that is newer than the horizon, whatever was given out besides: a checkpoint before anything has hardened
    // would have what it tells of drops pass for newer than what is durable.
    let horizon = recovered.report.horizon.number();
    let versions = (horizon, if recovered.report.clean { horizon } else { clock - 1 });
    let (sessions, losses) = (&recovered.report.sessions, recovered.losses.ranges());
    let ledger = Ledger::new(&objects, sessions, &losses, &recovered.snapshots, versions);
    let limits = options.limits(current.segment_bytes);
    let bounds = (options.window, limits.unhardened_bytes);
    let hardening = Hardening::new(writer, ledger, bounds, options.background);
    hardening.horizon.set_lost_before(losses);
    if recovered.report.clean {
        // Nothing had been committed that was not durable: versions with nothing in them count as it, as they did.
        drop(hardening.horizon.cover(clock - 1));
    }
    let opened_end = log.hardened();
    let had_unrecorded_losses = recovered.losses.unrecorded().next().is_some();
    let engine = Arc::new(Engine {
        limits,
        waiting: OnceLock::new(),
        hash_seed: current.hash_seed,
        database: current.database,
        log,
        index,
        cold,
        shares: Shares::new(cache_bytes, opened_end),
        leaf_images: LeafImages::new(cache_bytes.most),
        notes: Notes::new(opened_end),
        reader: Reader::default(),
        settled: Settled::new(
            tree,
            SettlingBounds {
                due_bytes: options.settle_log_bytes,
                unsettled_bytes: options.unsettled_bytes,
                memory_bytes: settle_memory,
                threads: options.settle_threads_count(),
            },
            forgotten_to,
            recovered.orders_are_exact,
        ),
        liveness: Mutex::new(liveness),
        segments: Arc::new(segments),
        superblock: Mutex::new(superblock),
        clock: Clock::new(clock),
        objects,
        hardening,
        snapshots: Snapshots::new(std::mem::take(&mut recovered.snapshots)),
        sessions: Sessions::default(),
        write_counts: WriteCounts::new(),
        graves: Graves::recovered(recovered.tombstones.drain(..), recovered.report.horizon.number()),
        compaction: Compaction::new(options.space_amplification),
        warm: Warm::new(),
        warm_up: WarmUp::new(),
        checkpoints: Checkpoints::new(options.checkpoint_bytes(current.segment_bytes), found),
        expiring: Expiring::new(current.has_expiring),
        removal: Removal::new(),
        forgotten: AtomicU64::new(recovered.report.horizon.number()),
        opened_end,
        had_unrecorded_losses,
        open_transactions: OpenTransactions::default(),
        behind: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        process: Process::this(),
        lock: Mutex::new(Some(lock)),
    });
    engine.update_limit();
    engine.share_for_good();
    engine.keep_warm();
    recovered.losses.record(&engine)?;
    // What cannot be removed now is nobody's, and is removed the next time.
    let _ = engine.remove_unfinished_load();
    if !planted(Bug::DroppedForgotten) {
        engine.look_for_dropped();
    }
    recovered.report.duration = began.elapsed();
    Ok((engine, recovered.report))
}

/// Opens the tree, which must have all that has left the log.
pub(super) fn open_tree(
    names: &Arc<Names>,
    cache_bytes: usize,
    superblock: &Superblock,
    mode: OpenMode,
) -> Result<Tree> {
    let name = names.device().describe(tree::FILE);
    let tree = Tree::open(names, superblock.database, cache_bytes, mode)?;
    let is_newest = tree.settled_to() >= superblock.settled_to && tree.loaded() >= superblock.loaded;
    match is_newest || planted(Bug::StaleTreeAccepted) {
        true => Ok(tree),
        false => Err(Error::corrupted(&name, 0, "it is missing, or older than the superblock says")),
    }
}

/// Takes ownership of a database's directory.
pub(super) fn lock(device: &dyn Device) -> Result<Box<dyn DeviceLock>> {
    device.lock().map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            Error::new(ErrorKind::Locked, format!("{error}; close it there first"))
        }
        _ => Error::io("locking the database", error),
    })
}

/// Whether there is no database yet. Refuses a directory that holds other files.
fn is_new(device: &dyn Device, create: bool) -> Result<bool> {
    let names = device.list().map_err(|error| Error::io("listing the database's files", error))?;
    if names.iter().any(|name| name == superblock::FILE) {
        return Ok(false);
    }
    let directory = device.describe("");
    let directory = directory.trim_end_matches('/');
    if let Some(segment) = names.iter().find(|name| segments::is_segment(name)) {
        return Err(Error::corrupted(
            &device.describe(superblock::FILE),
            0,
            format_args!("it is missing, although there is {segment}, as of a copy that was not finished"),
        ));
    }
    if let Some(stranger) =
        names.iter().find(|name| !segments::is_unfinished(name) && *name != superblock::UNFINISHED)
    {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "{directory} is not a database of Kiln's, and not empty: it holds {stranger:?}. Name another directory"
            ),
        ));
    }
    if !create {
        return Err(Error::new(ErrorKind::NotFound, format!("there is no database in {directory}")));
    }
    Ok(true)
}

/// Refuses a directory in which something has the name of a database's file and is none, such as a link: the new file would take its place.
fn check_names_free(device: &dyn Device) -> Result<()> {
    let failed = |error| Error::io("listing the database's files", error);
    let (files, everything) = (device.list().map_err(failed)?, device.everything().map_err(failed)?);
    match everything.iter().find(|name| is_of_database(name) && !files.contains(name)) {
        None => Ok(()),
        Some(name) => Err(Error::input(format!(
            "{} is no regular file, as each file of a database must be: put the file itself there",
            device.describe(name)
        ))),
    }
}

fn first_superblock(options: &Options, device: &dyn Device) -> Result<Superblock> {
    let random = device.random().map_err(|error| Error::io("drawing random bytes", error))?;
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| random[at + index]));
    Ok(Superblock {
        generation: 1,
        database: u128::from_le_bytes(std::array::from_fn(|index| random[index])),
        segment_bytes: options.segment_bytes,
        hash_seed: word(16),
        begin: 0,
        begin_checksum: word(24) as u32,
        known_end: 0,
        known_end_checksum: 0,
        clean: false,
        clock: 0,
        checkpoint: CheckpointName::default(),
        settled_to: 0,
        has_snapshots: false,
        has_expiring: false,
        has_forgotten: false,
        has_dropped: false,
        is_backup: false,
        loaded: 0,
        damaged_slot: None,
    })
}

struct Opening {
    segments: Segments,
    superblock: SuperblockFile,
    log: Log,
    liveness: Liveness,
}

impl Opening {
    /// Removes what a crash, or a failed write, has left of checkpoints that are not the superblock's.
    fn remove_stray_checkpoints(&self) -> Result<()> {
        let device = self.segments.device();
        let named = self.superblock.current().checkpoint;
        let kept = (named.end != 0).then(|| checkpoint::name_of(named.number));
        let remove = || {
            let is_stray = |name: &String| checkpoint::is_checkpoint(name) && Some(name) != kept.as_ref();
            device.list()?.iter().filter(|name| is_stray(name)).try_for_each(|name| device.remove(name))
        };
        remove().map_err(|error: std::io::Error| Error::io("removing an old checkpoint", error))
    }

    /// Cuts an unfinished tail off, notes on disk how far the log is known to be whole, and, after a crash, seals
    /// that what was not durable is lost. Returns the first version to be given out, and who writes on from there.
    fn make_writable(&mut self, recovered: &mut Recovered) -> Result<(u64, ExtentWriter)> {
        let end = recovered.end;
        let skipped =
            if recovered.report.clean || planted(Bug::VersionsReused) { 1 } else { VERSIONS_SKIPPED };
        let first_version = recovered.newest_version + skipped;
        if first_version >= VERSIONS_END {
            return Err(Error::new(
                ErrorKind::Limit,
                "the database has used up its versions; restore it from a copy",
            ));
        }
        let head = end.saturating_sub(self.log.ring_bytes() / 2).max(recovered.loaded_from);
        // What a superblock knows was durable before it was written, and however the process has ended.
        let is_known = end <= self.superblock.current().known_end;
        if let (false, Some(start)) = (recovered.report.clean || is_known, recovered.last_extent) {
            self.segments.rewrite(start, end, recovered.chain.checksum)?;
        }
        let is_written = recovered.report.cut_bytes > 0;
        // After a crash what is prepared behind the end may have a name that could not be made durable.
        self.segments.cut_at(match recovered.report.clean && !is_written {
            true => self.segments.prepared_behind(end),
            false => end,
        })?;
        if is_written || !recovered.report.clean {
            self.segments.clear_behind(end, is_written)?;
        }
        self.superblock.rewrite()?;
        self.superblock.update(|superblock| {
            superblock.known_end = end;
            superblock.known_end_checksum = recovered.chain.checksum;
            superblock.clean &= planted(Bug::CleanNotCleared);
            superblock.is_backup = false;
            if recovered.report.checkpoint.is_none() {
                // Numbers are not used again.
                superblock.checkpoint = CheckpointName { end: 0, ..superblock.checkpoint };
            }
        })?;
        self.remove_stray_checkpoints()?;
        let device = self.segments.device();
        runs::remove_left(device)
            .and_then(|()| tree::remove_unfinished(device))
            .map_err(|error| Error::io("removing what a settling has left", error))?;
        self.log.resume(head, end);
        // The last process may have ended between noting where the log begins and dropping what lies before; on a full disk
        // nothing else might ever be dropped.
        self.segments.drop_before(self.superblock.current().begin)?;
        self.segments.prepare_next_after(end)?;
        // Else somebody else may take the space of what is kept for deletions. Short ones are filled with zeros, for which long ones would have everybody wait; and that
        // the disk is full is told to whoever needs it.
        const ZEROED_BYTES_MAX: u64 = 64 << 20;
        let zero = self.log.segment_bytes() <= ZEROED_BYTES_MAX;
        while self.segments.prepared_end() < self.log.reserve_end(end)
            && self.segments.prepare_next(zero).is_ok()
        {}
        self.segments.check_names().map_err(|error| Error::io("preparing the log's next segment", error))?;
        let mut writer = ExtentWriter::new(self.superblock.current().database, recovered.chain);
        if recovered.report.clean {
            return Ok((first_version, writer));
        }
        let horizon = recovered.report.horizon.number();
        let sealed_end = self.log.finish_tail();
        writer.copy_out(&self.log, end, sealed_end, &mut |_| {});
        writer
            .write(&self.segments, (end, sealed_end), (horizon, first_version))
            .map_err(|error| Error::io("sealing what a crash has taken", error))?;
        self.liveness.set_end_checksum(end, writer.chain.checksum);
        self.log.set_hardened(sealed_end);
        recovered.losses.add(horizon + 1, first_version - 1);
        let version = crate::Version::new;
        recovered.report.lost_versions = Some((version(horizon + 1), version(first_version - 1)));
        Ok((first_version, writer))
    }
}

/// Hardens everything, marks the database as closed in order, and lets go of its directory. Who comes while somebody else does waits for that, and
/// is told whether everything is durable. It is said already that the database is [closed](Engine::closed).
pub(super) fn close(engine: &Engine) -> Result<()> {
    let closed = engine.telling(|| close_in_turn(engine));
    // They may own handles, and with them what keeps them.
    engine.hardening.horizon.end_callbacks();
    closed
}

fn close_in_turn(engine: &Engine) -> Result<()> {
    let is_done = || engine.lock.lock().is_none();
    if is_done() {
        return engine.check_not_lost();
    }
    // A commit that has begun may still get the version after the one that is hardened now. Wait for it; later ones see
    // that the database is closed.
    if !planted(Bug::CloseOvertakesCommits) {
        epoch::quiesce();
    }
    let early = match planted(Bug::CleanTooEarly) {
        true => mark_closed(engine),
        false => Ok(()),
    };
    // Nothing is locked: a callback may close, too. And a load that goes on may be waiting to be told.
    let hardened = early.and_then(|()| engine.persist());
    // From here on nobody else writes in the directory, which is soon somebody else's, nor closes.
    // Loads before names: the rows of a load may come from who makes or drops a snapshot.
    let _no_load = engine.settled.pause_loads();
    if is_done() {
        return engine.check_not_lost();
    }
    let _no_naming = engine.snapshots.change_names();
    let _no_settling = engine.settled.pause();
    let _no_checkpoint = engine.take_last_checkpoint();
    let _no_sweep = engine.graves.pause();
    // Who waits for log space prepares segments, and may be long about it.
    engine.segments.close();
    let closed = hardened.and_then(|()| mark_closed(engine));
    if closed.is_ok() {
        // More was prepared ahead than the next opening needs at once: what is kept for deletions.
        let _ = engine.segments.cut_at(engine.log.reserve_end(engine.durable_end().address));
    }
    engine.superblock.lock().close();
    drop(engine.lock.lock().take());
    closed
}

fn mark_closed(engine: &Engine) -> Result<()> {
    // The next opening relies on them.
    engine.segments.check_names().map_err(|error| Error::io("closing the database", error))?;
    let end = engine.durable_end();
    engine.superblock.lock().update(|superblock| {
        superblock.known_end = end.address;
        superblock.known_end_checksum = end.chain_checksum;
        superblock.clean = true;
        superblock.clock = engine.clock.now();
    })
}
