//! C9: damage is detected, never served.
//!
//! A small database is damaged in every way that a disk has: single bits, lost sectors, files cut short or missing,
//! blocks that have changed places. Whatever the damage, opening it and reading everything gives either exactly what
//! was there, or an error that says so and names the place. A torn tail is the one exception: where the database was
//! not closed, the loss of the very last write cannot be told from a power loss during it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use kiln::device::{BLOCK_BYTES, Device, Fault, FaultKind, OperationKind, SECTOR_BYTES, SimulatedDevice};
use kiln::{Error, ErrorKind, Kiln};

use super::crash::{play, reopen};
use super::model::{History, Place, State};
use super::oracle::{Verdict, ensure, read_all};
use super::support::{Random, Replay, budget, copy_of, seed, watched};
use super::workload::{LARGE, Profile, SMALL};

const MINUTES: Duration = Duration::from_secs(600);

/// A database to damage.
struct Specimen {
    disk: SimulatedDevice,
    history: History,
    /// What is there, and what would be there without the last write.
    contents: Vec<State>,
    /// The file and the place of the last write, if its loss cannot be noticed.
    tail: Option<(String, usize)>,
}

/// One that was closed in order.
fn closed(profile: Profile) -> Specimen {
    let disk = SimulatedDevice::new(seed());
    let mut history = History::default();
    play(&disk, &mut history, profile, seed(), true).unwrap();
    let contents = vec![history.latest.clone()];
    Specimen { disk: copy_of(&disk), history, contents, tail: None }
}

/// One that was stopped after a hardening, without being closed.
fn stopped(profile: Profile) -> Specimen {
    let Specimen { disk, mut history, .. } = closed(profile);
    let db = reopen(&disk).unwrap();
    let map = db.map("numbers").unwrap();
    let mut contents = Vec::new();
    let mut before = Vec::new();
    for number in 0..3_i64 {
        before = files(&disk);
        contents.insert(0, history.latest.clone());
        let value = [number.to_le_bytes().as_slice(), &[7; 2_000]].concat();
        let commit = db.put(&map, "visits", &value).unwrap();
        let key = (Place::Numbers, b"visits".to_vec());
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
    Specimen { disk, history, contents, tail }
}

fn files(disk: &SimulatedDevice) -> Vec<(String, Vec<u8>)> {
    disk.list().unwrap().into_iter().map(|name| (name.clone(), disk.bytes(&name))).collect()
}

impl Specimen {
    /// Opens and reads a damaged copy. True if the damage was noticed.
    fn examine(&self, disk: &SimulatedDevice, is_tail: bool) -> Result<bool, String> {
        let steps = disk.steps();
        let allowed = if is_tail { self.contents.as_slice() } else { &self.contents[..1] };
        let error = match reopen(disk) {
            Ok(db) => match read_all(&db, &self.history) {
                Ok(found) => {
                    ensure!(allowed.contains(&found), "it opens and shows something else");
                    return Ok(false);
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

    fn check_error(&self, disk: &SimulatedDevice, error: &Error) -> Verdict {
        let kind = error.kind();
        let expected =
            matches!(kind, ErrorKind::Corrupted | ErrorKind::Version | ErrorKind::NotFound | ErrorKind::Io);
        ensure!(expected, "refused as {kind:?}: {error}");
        if kind == ErrorKind::Corrupted {
            let Some((file, offset)) = error.place() else { return Err(format!("no place: {error}")) };
            let name = file.strip_prefix("simulated:").unwrap_or(file);
            ensure!(error.to_string().contains(file), "the message does not name the file: {error}");
            let size = self.disk.list().is_ok_and(|names| names.iter().any(|known| known == name));
            let size = if size { self.disk.bytes(name).len() as u64 } else { 0 };
            ensure!(offset <= size, "offset {offset} is not in {file}: {error}");
            let report = kiln::check_on(Arc::new(copy_of(disk)));
            let finds = report.is_ok_and(|report| !report.problems.is_empty());
            ensure!(finds, "opening refuses it, the check finds nothing: {error}");
        }
        Ok(())
    }

    /// Damages a copy and examines it; true if the damage was noticed.
    fn damaged(&self, what: &dyn Debug, is_tail: bool, damage: impl FnOnce(&SimulatedDevice)) -> bool {
        let disk = copy_of(&self.disk);
        damage(&disk);
        self.examine(&disk, is_tail).unwrap_or_else(|wrong| panic!("{what:?}: {wrong}"))
    }

    /// Whether a place is in the last write.
    fn is_tail(&self, name: &str, offset: usize) -> bool {
        self.tail.as_ref().is_some_and(|(file, start)| file == name && offset >= *start)
    }
}

/// Places in a file: all of them where something is stored, and few where there are only zeros. At most `most`.
fn places(bytes: &[u8], most: usize) -> Vec<usize> {
    let stored = |block: usize| bytes[block..].iter().take(BLOCK_BYTES).any(|&byte| byte != 0);
    let every = |block: &usize| if stored(*block) { 1 } else { SECTOR_BYTES };
    let blocks = (0..bytes.len()).step_by(BLOCK_BYTES);
    let all: Vec<usize> = blocks
        .flat_map(|block| (block..bytes.len().min(block + BLOCK_BYTES)).step_by(every(&block)))
        .collect();
    let stride = all.len().div_ceil(most.max(1)).max(1);
    all.into_iter().skip(seed() as usize % stride).step_by(stride).collect()
}

/// One bit of every byte.
fn flip_bits(name: &str, replay: &Replay, specimen: &Specimen, most: u64) {
    replay.at(name, &format!("KILN_SEED={}", seed()));
    let (mut flips, mut noticed) = (0, 0);
    for (file, bytes) in files(&specimen.disk) {
        for place in places(&bytes, most as usize) {
            let bit = (place * 8 + place % 7) as u64;
            let found = specimen.damaged(&(&file, "bit", bit), false, |disk| disk.flip_bit(&file, bit));
            flips += 1;
            noticed += u64::from(found);
        }
    }
    println!("{name}: {flips} flips, {noticed} noticed, the others harmless");
    assert!(noticed > flips / 4, "hardly any damage is noticed: {noticed} of {flips}");
}

#[test]
fn c9_a_flipped_bit_in_a_closed_database_is_detected_or_harmless() {
    let name = "c9_a_flipped_bit_in_a_closed_database";
    watched(name, MINUTES, |replay| {
        flip_bits(name, replay, &closed(SMALL), budget(6_000));
        flip_bits(name, replay, &closed(LARGE), budget(500));
    });
}

#[test]
fn c9_a_flipped_bit_in_a_stopped_database_is_detected_or_harmless() {
    let name = "c9_a_flipped_bit_in_a_stopped_database";
    watched(name, MINUTES, |replay| {
        flip_bits(name, replay, &stopped(Profile { operations: 30, ..SMALL }), budget(6_000));
        flip_bits(name, replay, &stopped(LARGE), budget(500));
    });
}

#[test]
fn c9_zeroed_sectors_are_detected_or_harmless() {
    watched("c9_zeroed_sectors", MINUTES, |_| {
        for specimen in [closed(SMALL), stopped(SMALL), closed(LARGE), stopped(LARGE)] {
            for (file, bytes) in files(&specimen.disk) {
                let sectors = (0..bytes.len()).step_by(SECTOR_BYTES);
                let stored = |at: &usize| bytes[*at..].iter().take(SECTOR_BYTES).any(|&byte| byte != 0);
                for place in sectors.filter(stored) {
                    for length in [SECTOR_BYTES, BLOCK_BYTES] {
                        let tail = specimen.is_tail(&file, place);
                        let what = (&file, place, length);
                        specimen.damaged(&what, tail, |disk| disk.zero(&file, place as u64, length as u64));
                    }
                }
            }
        }
    });
}

#[test]
fn c9_files_cut_short_or_lengthened_are_detected_or_harmless() {
    watched("c9_files_cut_short", MINUTES, |_| {
        for specimen in [closed(SMALL), stopped(SMALL), closed(LARGE), stopped(LARGE)] {
            for (file, bytes) in files(&specimen.disk) {
                let mut lengths: Vec<usize> = (0..bytes.len()).step_by(2 * BLOCK_BYTES).collect();
                lengths.extend([1, 100, 511, 512, 4_095, 4_097, bytes.len() - 1, bytes.len() / 2 + 3]);
                for length in lengths.into_iter().filter(|&length| length < bytes.len()) {
                    let tail = specimen.is_tail(&file, length);
                    specimen.damaged(&(&file, "cut to", length), tail, |disk| {
                        disk.set_bytes(&file, &bytes[..length]);
                    });
                }
                for more in [1, 512, 4_096, 100_000] {
                    let longer = [bytes.as_slice(), &vec![0xEE; more]].concat();
                    specimen
                        .damaged(&(&file, "longer by", more), false, |disk| disk.set_bytes(&file, &longer));
                }
            }
        }
    });
}

#[test]
fn c9_missing_files_are_detected_or_harmless() {
    for specimen in [closed(SMALL), stopped(SMALL), closed(LARGE), stopped(LARGE)] {
        for (file, _) in files(&specimen.disk) {
            let (name, disk) = (file.as_str(), copy_of(&specimen.disk));
            disk.remove_file(name);
            // Without a superblock that says so, nothing tells that the last segment was there.
            let is_last = specimen.tail.as_ref().is_some_and(|(last, _)| last == name);
            match specimen.examine(&disk, false) {
                Ok(_) => {}
                Err(wrong) => assert!(is_last, "{name} is missing: {wrong}"),
            }
        }
        // Without any file there is no database, and a new one is none of ours.
        let disk = SimulatedDevice::new(1);
        assert_eq!(
            super::support::manual().create(false).open_on(Arc::new(disk)).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }
}

#[test]
fn c9_blocks_that_have_changed_places_are_detected_or_harmless() {
    watched("c9_blocks_that_have_changed_places", MINUTES, |_| {
        for specimen in [closed(SMALL), stopped(SMALL), closed(LARGE), stopped(LARGE)] {
            let files = files(&specimen.disk);
            let mut blocks = Vec::new();
            for (file, bytes) in &files {
                let starts = (0..bytes.len()).step_by(BLOCK_BYTES);
                let stored = |at: &usize| bytes[*at..*at + BLOCK_BYTES].iter().any(|&byte| byte != 0);
                blocks.extend(starts.filter(stored).map(|at| (file, at)));
            }
            let mut random = Random::new(seed());
            for _ in 0..budget(300) {
                let ((one, at), (other, there)) = (*random.pick(&blocks), *random.pick(&blocks));
                let read =
                    |file: &String, at: usize| specimen.disk.bytes(file)[at..at + BLOCK_BYTES].to_vec();
                let (first, second) = (read(one, at), read(other, there));
                let swap = random.one_in(2);
                let tail = specimen.is_tail(one, at) || swap && specimen.is_tail(other, there);
                specimen.damaged(&(one, at, other, there, swap), tail, |disk| {
                    overwrite(disk, one, at, &second);
                    if swap {
                        overwrite(disk, other, there, &first);
                    }
                });
            }
        }
    });
}

fn overwrite(disk: &SimulatedDevice, file: &str, at: usize, block: &[u8]) {
    let mut bytes = disk.bytes(file);
    bytes[at..at + block.len()].copy_from_slice(block);
    disk.set_bytes(file, bytes);
}

/// A write that the disk has lost or put in another place, and reported as done. After an orderly close it must
/// be noticed. (If the database was not closed, the loss of the very last write looks like a torn tail.)
#[test]
fn c9_lost_and_misdirected_writes_are_detected_after_an_orderly_close() {
    let name = "c9_lost_and_misdirected_writes";
    watched(name, MINUTES, |replay| {
        let mut noticed = 0;
        for profile in [SMALL, LARGE] {
            for kind in [FaultKind::Ignored, FaultKind::Misdirected(8_192), FaultKind::Misdirected(0)] {
                for nth in 1.. {
                    replay.at(name, &format!("KILN_SEED={}", seed()));
                    let disk = SimulatedDevice::new(seed());
                    disk.inject(Fault { operation: OperationKind::Write, nth, kind, sticky: false });
                    let mut history = History::default();
                    let played = play(&disk, &mut history, profile, seed(), true);
                    if disk.faults_fired() == 0 {
                        break;
                    }
                    let contents = vec![history.latest.clone()];
                    let specimen = Specimen { disk: copy_of(&disk), history, contents, tail: None };
                    match played {
                        // It was noticed while working, by a read.
                        Err(error) => {
                            assert!(matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::Io), "{error}");
                            noticed += 1;
                        }
                        Ok(()) => {
                            let what = (kind, nth, profile.operations);
                            noticed += u32::from(specimen.damaged(&what, false, |_| {}));
                        }
                    }
                }
            }
        }
        assert!(noticed > 20, "hardly any lost write was noticed: {noticed}");
    });
}

#[test]
fn c9_the_examination_notices_wrong_contents() {
    let mut specimen = closed(SMALL);
    assert_eq!(specimen.examine(&copy_of(&specimen.disk), false), Ok(false));
    let key = specimen.contents[0].keys().next_back().unwrap().clone();
    specimen.contents[0].insert(key, b"something else"[..].into());
    assert!(specimen.examine(&copy_of(&specimen.disk), false).is_err());
}

#[test]
fn c9_an_open_database_reports_damage_that_it_meets() {
    let specimen = closed(LARGE);
    let db: Kiln = reopen(&specimen.disk).unwrap();
    assert!(db.check().unwrap().problems.is_empty());
    let first = specimen.disk.list().unwrap().into_iter().find(|name| name.starts_with("segment")).unwrap();
    specimen.disk.flip_bit(&first, 8 * 300);
    let report = db.check().unwrap();
    assert!(report.problems.iter().any(|problem| problem.contains(&first)), "{report}");
}
