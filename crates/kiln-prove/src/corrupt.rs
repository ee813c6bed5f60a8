//! C9: damage is detected, never served.
//!
//! A small database is damaged in every way that a disk has: single bits, lost sectors, files cut short or missing,
//! blocks that have changed places. Whatever the damage, opening it and reading everything gives either exactly what
//! was there, or an error that says so and names the place. A torn tail is the one exception: where the database was
//! not closed, the loss of the very last write cannot be told from a power loss during it.

mod streams;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::sync::Arc;

use kiln::device::{BLOCK_BYTES, Device, Fault, FaultKind, OperationKind, SECTOR_BYTES, SimulatedDevice};
use kiln::{Error, ErrorKind, Kiln};

use crate::arguments::Effort;
use crate::crash::{play, reopen, reopen_in_turn};
use crate::jobs::Progress;
use crate::oracle::{Verdict, check_receipts, check_recovered, compare_sessions, ensure, read_all};
use crate::support::{Random, Replay, copy_of, is_of_power_loss};
use crate::workload::history::{History, Place, State};
use crate::workload::names::compare_named;
use crate::workload::{Name, Profile, Shift};

/// A database to damage.
struct Specimen {
    profile: Profile,
    disk: SimulatedDevice,
    history: History,
    /// What is there, and what would be there without the last write.
    contents: Vec<State>,
    /// The file and the place of the last write, if its loss cannot be noticed.
    tail: Option<(String, usize)>,
    /// The files as they were at some moments before, the oldest first.
    older: Vec<Files>,
}

/// Names and contents.
type Files = Vec<(String, Vec<u8>)>;

/// At so many moments a specimen's files are kept, so that they can come back.
const MOMENTS: u64 = 6;

/// One that was closed in order.
fn closed(profile: Profile, seed: u64) -> Specimen {
    let disk = SimulatedDevice::new(seed);
    let mut history = History::default();
    play(&disk, &mut history, profile, seed, true).unwrap();
    let contents = vec![history.latest.clone()];
    let moments = (1..=MOMENTS).map(|moment| disk.steps() * moment / (MOMENTS + 1));
    let older = moments.map(|step| files_after(profile, seed, step)).collect();
    Specimen { profile, disk: copy_of(&disk), history, contents, tail: None, older }
}

/// What was there after so many steps of the same run.
fn files_after(profile: Profile, seed: u64, step: u64) -> Files {
    let disk = SimulatedDevice::new(seed);
    disk.crash_after(step);
    // It comes to an end when the power fails.
    if let Err(error) = play(&disk, &mut History::default(), profile, seed, true) {
        assert!(is_of_power_loss(&error, &disk), "a power loss showed as {:?}: {error}", error.kind());
    }
    files(&copy_of(&disk))
}

/// One that was stopped after a hardening, without being closed.
fn stopped(profile: Profile, seed: u64) -> Specimen {
    let Specimen { disk, mut history, older, .. } = closed(profile, seed);
    let db = reopen(&disk).unwrap();
    let map = db.map("numbers").unwrap();
    let mut contents = Vec::new();
    let mut before = Vec::new();
    for number in 0..3_i64 {
        before = files(&disk);
        contents.insert(0, history.latest.clone());
        let value = [number.to_le_bytes().as_slice(), &[7; 2_000]].concat();
        let commit = db.put(&map, "visitors", &value).unwrap();
        let key = (Place::Numbers, b"visitors".to_vec());
        history.commit(commit.version().number(), [(key, Some(value.into()))].into(), None);
        commit.safe().unwrap();
    }
    contents.insert(0, history.latest.clone());
    contents.truncate(2);
    disk.crash_after(disk.steps());
    drop((map, db));
    let disk = copy_of(&disk);
    // The last write is where the segments have changed since.
    let changed = |(name, bytes): &(String, Vec<u8>)| {
        let old = before.iter().find(|(old, _)| old == name).map(|(_, bytes)| bytes)?;
        let place = bytes.iter().zip(old).position(|(new, old)| new != old)?;
        name.starts_with("segment").then(|| (name.clone(), place / BLOCK_BYTES * BLOCK_BYTES))
    };
    let tail = files(&disk).iter().find_map(changed);
    assert!(tail.is_some());
    Specimen { profile, disk, history, contents, tail, older }
}

fn files(disk: &SimulatedDevice) -> Files {
    disk.list().unwrap().into_iter().map(|name| (name.clone(), disk.bytes(&name))).collect()
}

/// Of what opens although it is damaged one in so many goes on.
const GOING_ON_ONE_IN: u128 = 32;

/// What a damage may take from the end of the log without anybody noticing, as a power loss might have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    Nothing,
    LastWrite,
    LastSegment,
}

impl Specimen {
    /// Opens and reads a damaged copy. True if the damage was noticed.
    fn examine(&self, disk: &SimulatedDevice, tail: Tail) -> Result<bool, String> {
        let steps = disk.steps();
        let as_damaged = copy_of(disk);
        let error = match reopen_in_turn(disk, self.profile, disk.fingerprint() as u64) {
            Ok(db) => match self.read(&db, tail) {
                Ok(verdict) => {
                    verdict?;
                    // A damaged checkpoint is put aside, and told; what lies before its end is not looked at in opening.
                    let told = db.recovery_report().checkpoint_damage.is_some();
                    let finds =
                        || kiln::check_on(Arc::new(as_damaged)).is_ok_and(|report| !report.is_clean());
                    let is_noticed = told || finds();
                    // What only the check finds somebody may need yet, be it who writes, and be told of it.
                    let goes_on = tail == Tail::Nothing
                        && (told || !is_noticed)
                        && disk.fingerprint().is_multiple_of(GOING_ON_ONE_IN);
                    if goes_on {
                        self.go_on(disk, db)
                            .map_err(|error| format!("it opens, and cannot go on: {error}"))??;
                    }
                    return Ok(is_noticed);
                }
                Err(error) => error,
            },
            Err(error) => {
                let untouched = disk.steps() == steps;
                ensure!(
                    untouched || error.kind() != ErrorKind::Corrupted,
                    "refused, but written to: {error}"
                );
                error
            }
        };
        self.check_error(disk, &error)?;
        Ok(true)
    }

    /// Works on with what has opened, and opens it again: what was passed over must not be in the way of what is written, over it or behind it.
    fn go_on(&self, disk: &SimulatedDevice, db: Kiln) -> kiln::Result<Verdict> {
        let mut history = self.history.clone();
        history.cut_at(db.recovery_report().horizon.number(), &db);
        let profile = Profile { operations: 12, ..self.profile };
        Shift::begin(disk, &db, &mut history, profile, disk.fingerprint() as u64)?.work()?;
        db.close()?;
        drop(db);
        history.told_durable(history.commits.last().map_or(0, |commit| commit.version));
        let db = reopen(disk)?;
        Ok(check_recovered(&db, &history).map_err(|what| format!("after it has gone on: {what}")))
    }

    /// Reads everything, and is told of sessions and receipts where nothing may be lost.
    fn read(&self, db: &Kiln, tail: Tail) -> kiln::Result<Verdict> {
        let found = read_all(db, &self.history)?;
        // The last write is about nothing of this; in the last segment there may be names.
        if tail != Tail::LastSegment {
            compare_named(db, &self.history)?;
        }
        let horizon = db.recovery_report().horizon.number();
        let is_allowed = match tail {
            Tail::Nothing => found == self.contents[0],
            Tail::LastWrite => self.contents.contains(&found),
            Tail::LastSegment => horizon >= self.history.durable && found == *self.history.state_at(horizon),
        };
        if !is_allowed || tail != Tail::Nothing {
            return Ok(is_allowed.then_some(()).ok_or("it opens and shows something else".to_owned()));
        }
        let sessions = compare_sessions(db, &self.history, horizon)?;
        Ok(sessions.and_then(|()| check_receipts(db, &self.history, horizon)))
    }

    fn check_error(&self, disk: &SimulatedDevice, error: &Error) -> Verdict {
        let kind = error.kind();
        // A newer version has a checksum, too, and that there is no database is no word for one whose superblock is gone.
        ensure!(kind == ErrorKind::Corrupted, "refused as {kind:?}: {error}");
        let Some((file, offset)) = error.place() else { return Err(format!("no place: {error}")) };
        let name = file.strip_prefix("simulated:").unwrap_or(file);
        ensure!(error.to_string().contains(file), "the message does not name the file: {error}");
        // As it was, or as the damage has made it.
        let size_on = |disk: &SimulatedDevice| {
            let is_there = disk.list().is_ok_and(|names| names.iter().any(|known| known == name));
            if is_there { disk.bytes(name).len() as u64 } else { 0 }
        };
        let size = size_on(&self.disk).max(size_on(disk));
        ensure!(offset <= size, "offset {offset} is not in {file}: {error}");
        let report = kiln::check_on(Arc::new(copy_of(disk)));
        let finds = report.is_ok_and(|report| !report.problems.is_empty());
        ensure!(finds, "opening refuses it, the check finds nothing: {error}");
        Ok(())
    }

    /// Damages a copy and examines it; true if the damage was noticed.
    fn damaged(&self, what: &dyn Debug, tail: Tail, damage: impl FnOnce(&SimulatedDevice)) -> bool {
        let disk = copy_of(&self.disk);
        damage(&disk);
        self.examine(&disk, tail).unwrap_or_else(|wrong| panic!("{what:?}: {wrong}"))
    }

    /// What may go with a place.
    fn tail_at(&self, name: &str, offset: usize) -> Tail {
        let is_tail = self.tail.as_ref().is_some_and(|(file, start)| file == name && offset >= *start);
        if is_tail { Tail::LastWrite } else { Tail::Nothing }
    }

    /// What may go with what a whole file has: without a superblock that says so, nothing tells that the last segment had anything.
    fn tail_of(&self, name: &str) -> Tail {
        let is_last = self.tail.as_ref().is_some_and(|(last, _)| last == name);
        if is_last { Tail::LastSegment } else { Tail::Nothing }
    }

    /// What may go with a whole file: one that was prepared behind the last segment tells that it was there.
    fn tail_without(&self, name: &str) -> Tail {
        let is_behind = |other: &String| other.starts_with("segment-") && other.as_str() > name;
        let is_followed = files(&self.disk).iter().any(|(other, _)| is_behind(other));
        if is_followed { Tail::Nothing } else { self.tail_of(name) }
    }
}

/// Places in a file: all of them where something is stored, and few where there are only zeros. At most `most`.
fn places(bytes: &[u8], seed: u64, most: usize) -> Vec<usize> {
    let stored = |block: usize| bytes[block..].iter().take(BLOCK_BYTES).any(|&byte| byte != 0);
    let every = |block: &usize| if stored(*block) { 1 } else { SECTOR_BYTES };
    let blocks = (0..bytes.len()).step_by(BLOCK_BYTES);
    let all: Vec<usize> = blocks
        .flat_map(|block| (block..bytes.len().min(block + BLOCK_BYTES)).step_by(every(&block)))
        .collect();
    let stride = all.len().div_ceil(most.max(1)).max(1);
    all.into_iter().skip(seed as usize % stride).step_by(stride).collect()
}

/// Damages of one kind, all over a specimen. `most` is how many of them are tried, where there are many.
type Damage = fn(&Specimen, u64, usize, &mut Progress);

/// One bit of every byte, and all bits of the heads of blocks, where seals and the superblock are.
fn flip_bits(specimen: &Specimen, seed: u64, most: usize, progress: &mut Progress) {
    let (mut flips, mut noticed) = (0, 0);
    for (file, bytes) in files(&specimen.disk) {
        for place in places(&bytes, seed, most) {
            let bits = if place % BLOCK_BYTES < 128 { 0..8 } else { place % 7..place % 7 + 1 };
            for bit in bits.map(|bit| (place * 8 + bit) as u64) {
                let found =
                    specimen.damaged(&(&file, "bit", bit), Tail::Nothing, |disk| disk.flip_bit(&file, bit));
                flips += 1;
                noticed += u64::from(found);
                progress.count();
            }
            if progress.is_enough() {
                return;
            }
        }
    }
    assert!(noticed > flips / 4, "hardly any damage is noticed: {noticed} of {flips}");
}

fn zero_sectors(specimen: &Specimen, seed: u64, most: usize, progress: &mut Progress) {
    for (file, bytes) in files(&specimen.disk) {
        let sectors = (0..bytes.len()).step_by(SECTOR_BYTES);
        let stored = |at: &usize| bytes[*at..].iter().take(SECTOR_BYTES).any(|&byte| byte != 0);
        let places: Vec<_> = sectors.filter(stored).collect();
        let stride = places.len().div_ceil(most.max(1)).max(1);
        for place in places.into_iter().skip(seed as usize % stride).step_by(stride) {
            for length in [SECTOR_BYTES, BLOCK_BYTES] {
                let tail = specimen.tail_at(&file, place);
                let what = (&file, place, length);
                specimen.damaged(&what, tail, |disk| disk.zero(&file, place as u64, length as u64));
                progress.count();
            }
        }
    }
}

/// Every length, and those of whole sectors where there are only zeros.
fn change_lengths(specimen: &Specimen, seed: u64, most: usize, progress: &mut Progress) {
    for (file, bytes) in files(&specimen.disk) {
        let mut lengths = places(&bytes, seed, most);
        lengths.extend([0, 1, 511, 512, 4_095, 4_096, 4_097, bytes.len() - 1]);
        for length in lengths.into_iter().filter(|&length| length < bytes.len()) {
            let tail = specimen.tail_at(&file, length);
            specimen
                .damaged(&(&file, "cut to", length), tail, |disk| disk.set_bytes(&file, &bytes[..length]));
            progress.count();
            if progress.is_enough() {
                return;
            }
        }
        for more in [1, 512, 4_096, 100_000] {
            let longer = [bytes.as_slice(), &vec![0xEE; more]].concat();
            specimen
                .damaged(&(&file, "longer by", more), Tail::Nothing, |disk| disk.set_bytes(&file, &longer));
            progress.count();
        }
    }
}

fn remove_files(specimen: &Specimen, _seed: u64, _most: usize, progress: &mut Progress) {
    for (file, _) in files(&specimen.disk) {
        specimen
            .damaged(&(&file, "is missing"), specimen.tail_without(&file), |disk| disk.remove_file(&file));
        progress.count();
    }
}

/// Files that hold what another one holds, and segments that are there once more behind the last.
fn duplicate_files(specimen: &Specimen, _seed: u64, _most: usize, progress: &mut Progress) {
    let files = files(&specimen.disk);
    let last = files.iter().rev().find_map(|(name, _)| name.strip_prefix("segment-")?.parse::<u64>().ok());
    let behind = format!("segment-{:08}", last.expect("there is a segment") + 1);
    for (file, bytes) in &files {
        for other in files.iter().map(|(name, _)| name).chain([&behind]).filter(|other| *other != file) {
            // What was written last is lost where another file takes its place; an empty one looks as if nothing had been written
            // there, be it several times.
            let tail = specimen.tail_of(other);
            specimen.damaged(&(file, "is", other, "too"), tail, |disk| disk.set_bytes(other, bytes));
            progress.count();
        }
    }
}

/// Files, and blocks of them, that are again what they were once: a write that never came to be, or a copy put back.
fn bring_back_older(specimen: &Specimen, seed: u64, most: usize, progress: &mut Progress) {
    for (moment, older) in specimen.older.iter().enumerate() {
        for (file, old) in older {
            let what = (file, "as at moment", moment);
            specimen.damaged(&what, specimen.tail_of(file), |disk| disk.set_bytes(file, old));
            progress.count();
            let is_there = specimen.disk.list().unwrap().contains(file);
            let bytes = if is_there { specimen.disk.bytes(file) } else { Vec::new() };
            let ends = (BLOCK_BYTES..=bytes.len().min(old.len())).step_by(BLOCK_BYTES);
            let mut changed: Vec<_> = ends.map(|end| end - BLOCK_BYTES..end).collect();
            changed.retain(|block| bytes[block.clone()] != old[block.clone()]);
            let stride = changed.len().div_ceil(most.max(1)).max(1);
            for block in changed.into_iter().skip(seed as usize % stride).step_by(stride) {
                let what = (file, block.start, "as at moment", moment);
                let tail = specimen.tail_at(file, block.start);
                let piece = &old[block.clone()];
                specimen.damaged(&what, tail, |disk| overwrite(disk, file, block.start, piece));
                progress.count();
            }
            if progress.is_enough() {
                return;
            }
        }
    }
}

/// Blocks that have changed places, or stand in a second place too.
fn move_blocks(specimen: &Specimen, seed: u64, most: usize, progress: &mut Progress) {
    let files = files(&specimen.disk);
    let mut blocks = Vec::new();
    for (file, bytes) in &files {
        let starts = (0..bytes.len()).step_by(BLOCK_BYTES);
        let stored = |at: &usize| bytes[*at..*at + BLOCK_BYTES].iter().any(|&byte| byte != 0);
        blocks.extend(starts.filter(stored).map(|at| (file, at)));
    }
    let mut random = Random::new(seed);
    for _ in 0..most.min(MOVES).min(4 * blocks.len() * blocks.len()) {
        let ((one, at), (other, there)) = (*random.pick(&blocks), *random.pick(&blocks));
        let read = |file: &String, at: usize| specimen.disk.bytes(file)[at..at + BLOCK_BYTES].to_vec();
        let (first, second) = (read(one, at), read(other, there));
        let swap = random.one_in(2);
        let tail = match specimen.tail_at(one, at) {
            Tail::Nothing if swap => specimen.tail_at(other, there),
            tail => tail,
        };
        specimen.damaged(&(one, at, other, there, swap), tail, |disk| {
            overwrite(disk, one, at, &second);
            if swap {
                overwrite(disk, other, there, &first);
            }
        });
        progress.count();
        if progress.is_enough() {
            return;
        }
    }
}

fn overwrite(disk: &SimulatedDevice, file: &str, at: usize, block: &[u8]) {
    let mut bytes = disk.bytes(file);
    bytes[at..at + block.len()].copy_from_slice(block);
    disk.set_bytes(file, bytes);
}

/// Writes that the disk has lost or put in another place, and reported as done. After an orderly close each must be
/// noticed. (If the database was not closed, the loss of the very last write looks like a torn tail.) Returns how many
/// were.
fn lose_writes(profile: Profile, seed: u64, progress: &mut Progress) -> u64 {
    let mut noticed = 0;
    for kind in [FaultKind::Ignored, FaultKind::Misdirected(8_192), FaultKind::Misdirected(0)] {
        for nth in 1.. {
            let disk = SimulatedDevice::new(seed);
            disk.inject(Fault { operation: OperationKind::Write, nth, kind, sticky: false });
            let mut history = History::of_lying_disk();
            let played = play(&disk, &mut history, profile, seed, true);
            if disk.faults_fired() == 0 {
                break;
            }
            let contents = vec![history.latest.clone()];
            let (disk, older) = (copy_of(&disk), Vec::new());
            let specimen = Specimen { profile, disk, history, contents, tail: None, older };
            match played {
                // It was noticed while working, by a read.
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
                    noticed += 1;
                }
                Ok(()) => {
                    let what = (kind, nth, profile.operations);
                    noticed += u64::from(specimen.damaged(&what, Tail::Nothing, |_| {}));
                }
            }
            progress.count();
        }
    }
    noticed
}

/// The many come last.
const DAMAGES: [Damage; 8] = [
    remove_files,
    duplicate_files,
    streams::damage_backup,
    bring_back_older,
    zero_sectors,
    move_blocks,
    flip_bits,
    change_lengths,
];
/// Damages of a kind, in a file, that are tried before all of them are: who has little time sees something of each kind.
const FEW: usize = 100;
/// Moves of blocks that are tried with each specimen at the most. Of other damages one pass tries all.
const MOVES: usize = 4_000;

/// All damages to a closed and to a stopped database, with seed after seed.
pub(crate) fn prove(effort: &Effort, replay: &Replay, progress: &mut Progress) {
    let usual = [Name::Small, Name::Large, Name::Settling, Name::Named];
    let workloads = effort.workload.map_or(usual.to_vec(), |workload| vec![workload]);
    for seed in effort.seed.. {
        for &workload in &workloads {
            replay.at(&format!("corrupt --workload {} --seed {seed}", workload.as_str()));
            lose_writes(workload.profile(), seed, progress);
            let specimens = [closed, stopped].map(|make| make(workload.profile(), seed));
            for most in [FEW, usize::MAX] {
                for damage in DAMAGES {
                    for specimen in &specimens {
                        damage(specimen, seed, most, progress);
                        if progress.is_enough() {
                            return;
                        }
                    }
                }
            }
        }
        if !progress.goes_on() {
            return;
        }
    }
}
