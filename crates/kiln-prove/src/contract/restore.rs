//! Restoring: what comes out is what went in, or nothing.

use std::io::{self, Read, Write};
use std::sync::Arc;

use kiln::device::{Device, Fault, FaultKind, Keep, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Kiln, Object as _, check_on};

use super::backup::{contents, filled, open_whole};
pub(super) use crate::copies::restore_stream;
use crate::copies::{self, Written};
use crate::crash::reopen;
use crate::support::{Random, copy_of, manual};
use crate::testing::{budget, seed};

pub(super) fn stream_of(db: &Kiln) -> Vec<u8> {
    copies::stream_of(db).unwrap()
}

/// A small database with something of everything: log, tree, checkpoint.
fn small(disk: &SimulatedDevice) -> Kiln {
    small_with(disk, true)
}

fn small_with(disk: &SimulatedDevice, checkpoint: bool) -> Kiln {
    let db = manual().segment_bytes(16 << 10).open_on(Arc::new(disk.clone())).unwrap();
    let (table, map) = (db.table("table").unwrap(), db.map("map").unwrap());
    for number in 0..40_u32 {
        db.put(&table, number.to_be_bytes(), [number as u8; 50]).unwrap().forget();
        db.put(&map, number.to_be_bytes(), [number as u8; 20]).unwrap().forget();
    }
    db.persist().unwrap();
    assert!(db.settle().unwrap() > 0);
    if checkpoint {
        assert!(db.checkpoint().unwrap());
    }
    db.put(&table, b"last", b"value").unwrap().safe().unwrap();
    db
}

pub(super) fn restore(from: &SimulatedDevice, to: &SimulatedDevice) -> kiln::Result<kiln::Backup> {
    Kiln::restore_on(Arc::new(from.clone()), Arc::new(to.clone()), |_| {})
}

fn assert_empty(target: &SimulatedDevice) {
    assert_eq!(Device::list(target).unwrap(), Vec::<String>::new(), "something is left");
}

#[test]
fn c4_c9_what_a_stream_or_a_directory_restores_is_the_backup() {
    let disk = SimulatedDevice::new(seed());
    let db = filled(&disk);
    let expected = contents(&db);
    let (stream, files) = (stream_of(&db), SimulatedDevice::new(1));
    let backup = db.backup_on(Arc::new(files.clone()), |_| {}).unwrap();
    db.put(&db.map("map").unwrap(), b"later", b"value").unwrap().safe().unwrap();
    // Whatever follows a stream is not its own.
    let followed = [&stream[..], b"and more"].concat();
    let from_stream = SimulatedDevice::new(2);
    assert_eq!(restore_stream(&followed, &from_stream).unwrap().horizon, backup.horizon);
    let from_files = SimulatedDevice::new(3);
    let mut last = None;
    let (from, to) = (Arc::new(files.clone()), Arc::new(from_files.clone()));
    let restored = Kiln::restore_on(from, to, |progress| last = Some(progress)).unwrap();
    assert_eq!(restored.horizon, backup.horizon);
    assert_eq!(last.map(|last| (last.done_bytes, last.total_bytes)), Some((restored.bytes, restored.bytes)));
    for target in [from_stream, from_files] {
        // All of it is durable.
        let target = target.after_crash(&mut |_| Keep::Lost);
        let db = open_whole(&target);
        assert_eq!(contents(&db), expected);
        assert_eq!(db.recovery_report().horizon, backup.horizon);
        assert!(db.recovery_report().checkpoint_damage.is_none());
        drop(db);
        let error = restore(&files, &target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input, "{error}");
        let error = restore_stream(&stream, &target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input, "{error}");
        assert_eq!(contents(&reopen(&target).unwrap()), expected);
    }
}

#[test]
fn c4_a_database_that_was_closed_or_crashed_is_restored_as_opening_it_would_find_it() {
    for closed in [true, false] {
        let disk = SimulatedDevice::new(seed());
        let db = filled(&disk);
        if closed {
            db.close().unwrap();
        } else {
            // An unfinished hardening at the end.
            let map = db.map("map").unwrap();
            db.put(&map, b"last", vec![1; 20_000]).unwrap().forget();
            disk.crash_after(disk.steps() + 1);
            db.persist().unwrap_err();
        }
        let states = disk.crash_states();
        drop(db);
        for choice in 0..budget(6) {
            let disk = states.after_crash_seeded(choice);
            let target = SimulatedDevice::new(seed());
            restore(&copy_of(&disk), &target).unwrap();
            let (found, restored) = (reopen(&disk).unwrap(), open_whole(&target));
            assert_eq!(contents(&restored), contents(&found));
            // Who has closed it is not told of a loss.
            let reports = [restored.recovery_report(), found.recovery_report()];
            assert_eq!(reports.map(|report| report.clean), [closed; 2], "{}", reports[0]);
            assert_eq!(reports[0].horizon, reports[1].horizon);
        }
    }
}

#[test]
fn c9_a_stream_that_ends_early_or_was_changed_is_refused_with_its_offset_and_leaves_nothing() {
    let stream = stream_of(&small(&SimulatedDevice::new(seed())));
    let mut random = Random::new(seed());
    let refused = |stream: &[u8], offset: usize| {
        let target = SimulatedDevice::new(1);
        let error = restore_stream(stream, &target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
        let (_, told) = error.place().unwrap();
        assert!(told as usize <= offset && offset - told as usize <= (1 << 20) + 32, "{error}: {offset}");
        assert_empty(&target);
    };
    // The beginning, the end, and any place.
    let places: Vec<usize> = (0..120).chain(stream.len() - 120..stream.len()).collect();
    let some: Vec<usize> = (0..budget(200)).map(|_| random.below(stream.len())).collect();
    for place in places.into_iter().chain(some) {
        refused(&stream[..place], place);
        let mut changed = stream.clone();
        changed[place] ^= 1 << random.below(8);
        refused(&changed, place);
    }
    // Every frame, left out, or twice: the heads are where the lengths say.
    let mut offset = 16;
    while offset < stream.len() {
        let body = u32::from_le_bytes(*stream[offset + 16..].first_chunk().unwrap()) as usize;
        let (before, frame, after) =
            (&stream[..offset], &stream[offset..offset + 32 + body], &stream[offset + 32 + body..]);
        if after.is_empty() {
            break;
        }
        refused(&[before, after].concat(), offset);
        refused(&[before, frame, frame, after].concat(), offset + frame.len());
        offset += frame.len();
    }
    restore_stream(&stream, &SimulatedDevice::new(1)).unwrap();
}

#[test]
fn c4_a_crash_at_any_step_of_a_restore_leaves_all_of_it_or_no_database() {
    for (by_stream, checkpoint) in [(true, true), (true, false), (false, true), (false, false)] {
        let db = small_with(&SimulatedDevice::new(seed()), checkpoint);
        let (expected, stream, files) = (contents(&db), stream_of(&db), SimulatedDevice::new(1));
        db.backup_on(Arc::new(files.clone()), |_| {}).unwrap();
        let restore_to = |target: &SimulatedDevice| match by_stream {
            true => restore_stream(&stream, target),
            false => restore(&files, target),
        };
        let mut whole = 0;
        for step in 1.. {
            let target = SimulatedDevice::new(step);
            target.crash_after(step);
            let done = restore_to(&target).is_ok();
            if !target.crashed() {
                assert!(done);
                break;
            }
            let states = target.crash_states();
            for choice in 0..8 {
                let after = states.after_crash_seeded(step * 7 + choice);
                match manual().create(false).open_on(Arc::new(after.clone())) {
                    Ok(db) => {
                        assert_eq!(contents(&db), expected);
                        // Its name was not durable before the superblock's.
                        assert!(db.recovery_report().checkpoint_damage.is_none(), "{}", db.recovery_report());
                        whole += 1;
                    }
                    Err(error) => {
                        assert!(!done, "{error}");
                        let has_superblock =
                            Device::list(&after).unwrap().iter().any(|name| name == "superblock");
                        assert!(!has_superblock, "a part of a database is there: {error}");
                    }
                }
            }
        }
        assert!(whole > 0);
    }
}

#[test]
fn c8_after_a_failed_operation_of_a_restore_nothing_is_left() {
    let disk = SimulatedDevice::new(seed());
    let db = small(&disk);
    let (stream, files) = (stream_of(&db), SimulatedDevice::new(1));
    db.backup_on(Arc::new(files.clone()), |_| {}).unwrap();
    for by_stream in [true, false] {
        for kind in [FaultKind::EIO, FaultKind::ENOSPC] {
            for nth in 1.. {
                let target = SimulatedDevice::new(nth);
                target.inject(Fault { operation: OperationKind::Any, nth, kind, sticky: false });
                let outcome = match by_stream {
                    true => restore_stream(&stream, &target),
                    false => restore(&files, &target),
                };
                if target.faults_fired() == 0 {
                    outcome.unwrap();
                    break;
                }
                let error = outcome.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace), "{error}");
                assert_empty(&target);
            }
        }
    }
    // A source that fails.
    let failing = (&stream[..stream.len() / 2]).chain(Failing);
    let target = SimulatedDevice::new(1);
    let error = Kiln::restore_stream_on(failing, Arc::new(target.clone()), |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert_empty(&target);
}

struct Failing;

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("the source fails"))
    }
}

#[test]
fn c9_a_damaged_backup_is_not_restored() {
    let disk = SimulatedDevice::new(seed());
    let db = small(&disk);
    let (expected, files) = (contents(&db), SimulatedDevice::new(1));
    db.backup_on(Arc::new(files.clone()), |_| {}).unwrap();
    let mut random = Random::new(seed());
    let mut refused = 0;
    for name in Device::list(&files).unwrap() {
        let bytes = files.bytes(&name);
        for _ in 0..budget(25) {
            let damaged = copy_of(&files);
            let place = random.below(bytes.len());
            damaged.flip_bit(&name, place as u64 * 8);
            let target = SimulatedDevice::new(1);
            match restore(&damaged, &target) {
                // In what nobody needs, or in the checkpoint, without which the log is read.
                Ok(_) => assert_eq!(contents(&open_whole(&target)), expected, "{name}, byte {place}"),
                Err(error) => {
                    assert!(!name.starts_with("checkpoint-"), "{error}");
                    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
                    assert!(error.place().is_some(), "{error}");
                    assert_empty(&target);
                    refused += 1;
                }
            }
        }
    }
    assert!(refused >= budget(11), "only {refused} were refused");
    let report = check_on(Arc::new(files)).unwrap();
    assert!(report.is_clean(), "{report}");
}

/// The name of its only checkpoint.
fn checkpoint_of(disk: &SimulatedDevice) -> Option<String> {
    Device::list(disk).unwrap().into_iter().find(|name| name.starts_with("checkpoint-"))
}

/// Opening does without it, and a restore failed, or copied the damage.
#[test]
fn c9_a_damaged_or_missing_checkpoint_is_left_out_of_every_copy() {
    let disk = SimulatedDevice::new(seed());
    let db = small(&disk);
    let (expected, name) = (contents(&db), checkpoint_of(&disk).unwrap());
    let missing = copy_of(&disk);
    missing.remove(&name).unwrap();
    let places = (0..disk.bytes(&name).len()).step_by(4_096).map(|block| block as u64 * 8 + 160);
    let damaged = places.map(|place| {
        let damaged = copy_of(&disk);
        damaged.flip_bit(&name, place);
        damaged
    });
    for source in damaged.chain([missing]) {
        assert!(check_on(Arc::new(copy_of(&source))).unwrap().is_mendable());
        let target = SimulatedDevice::new(1);
        restore(&source, &target).unwrap();
        assert_eq!(checkpoint_of(&target), None);
        let copy = open_whole(&target);
        assert_eq!(contents(&copy), expected);
        assert!(copy.recovery_report().checkpoint_damage.is_none(), "{}", copy.recovery_report());
        // Numbers of checkpoints are not used again.
        copy.put(&copy.map("map").unwrap(), b"later", b"value").unwrap().safe().unwrap();
        assert!(copy.checkpoint().unwrap());
        assert!(checkpoint_of(&target).unwrap() > name);
    }
    // Damage to one that is being served.
    let last_block = disk.bytes(&name).len() as u64 - 4_096;
    disk.flip_bit(&name, last_block * 8 + 160);
    let (files, from_stream) = (SimulatedDevice::new(2), SimulatedDevice::new(3));
    db.backup_on(Arc::new(files.clone()), |_| {}).unwrap();
    restore_stream(&stream_of(&db), &from_stream).unwrap();
    assert_eq!(checkpoint_of(&files), None);
    for target in [files, from_stream] {
        let copy = open_whole(&target);
        assert_eq!(contents(&copy), expected);
        assert!(copy.recovery_report().checkpoint_damage.is_none(), "{}", copy.recovery_report());
        // What was in the stream of it is gone.
        assert_eq!(checkpoint_of(&target), None);
    }
}

/// Each extent was a write of its own, for which a disk in a network takes as long as for a thousand.
#[test]
fn c4_many_small_extents_are_copied_with_few_writes() {
    const COMMITS: u32 = 1_000;
    let disk = SimulatedDevice::new(seed());
    let db = manual().segment_bytes(16 << 20).open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map("map").unwrap();
    (0..COMMITS).for_each(|key| db.put(&map, key.to_le_bytes(), b"value").unwrap().safe().unwrap());
    let (files, restored) = (SimulatedDevice::new(1), SimulatedDevice::new(2));
    db.backup_on(Arc::new(files.clone()), |_| {}).unwrap();
    restore(&files, &restored).unwrap();
    for target in [files, restored] {
        assert!(target.steps() < 100, "{} steps", target.steps());
        assert_eq!(open_whole(&target).map("map").unwrap().len(), u64::from(COMMITS));
    }
    let (stream, mut frames, mut offset) = (stream_of(&db), 0, 16);
    while let Some(body) = stream.get(offset + 16..).and_then(|rest| rest.first_chunk()) {
        (frames, offset) = (frames + 1, offset + 32 + u32::from_le_bytes(*body) as usize);
    }
    assert!(offset == stream.len() && frames < 100, "{frames} frames");
}

#[test]
fn c8_a_stream_that_cannot_be_written_is_an_error_and_has_no_end() {
    let disk = SimulatedDevice::new(seed());
    let db = small(&disk);
    let whole = stream_of(&db);
    for bytes in [0, 10, 40, 5_000, whole.len() - 1] {
        let out = Written::default();
        let error = db.backup_stream(Full { out: out.clone(), bytes }, |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        let stream = out.take();
        assert_eq!(
            restore_stream(&stream, &SimulatedDevice::new(1)).unwrap_err().kind(),
            ErrorKind::Corrupted
        );
    }
    db.put(&db.map("map").unwrap(), b"key", b"value").unwrap().safe().unwrap();
}

/// Has room for so many bytes.
struct Full {
    out: Written,
    bytes: usize,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.bytes);
        if taken == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes -= taken;
        self.out.write(&bytes[..taken])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is said to be a stream, with checksums that hold: frames of a kind, a file's number, a number and a body.
fn forged(frames: &[(u32, u32, u64, &[u8])]) -> Vec<u8> {
    let sum = |bytes: &[u8]| crc32c::crc32c(bytes).to_le_bytes();
    let mut stream = [&b"KILNBACK"[..], &1_u32.to_le_bytes()].concat();
    let mut before = sum(&stream);
    stream.extend(before);
    for &(kind, file, number, body) in frames {
        let mut head = [kind.to_le_bytes(), file.to_le_bytes()].concat();
        head.extend(number.to_le_bytes());
        head.extend((body.len() as u32).to_le_bytes());
        head.extend(sum(body));
        head.extend(before);
        before = sum(&head);
        head.extend(before);
        stream.extend(head);
        stream.extend(body);
    }
    stream
}

#[test]
fn c9_a_stream_that_nobody_has_written_stays_in_its_directory_and_is_refused() {
    const BLOCK: &[u8] = &[7; 4096];
    let create = (1, 0, 0, &b"tree"[..]);
    let names: [&[u8]; 10] =
        [b"../outside", b"/outside", b"a/b", b".", b"..", b"", b"a\0b", b"\xff", &[b'a'; 256], b"notes"];
    let mut streams: Vec<Vec<u8>> = Vec::new();
    for name in names {
        streams.push(forged(&[(1, 0, 0, name), (7, 0, 1, b"")]));
        streams.push(forged(&[create, (5, 0, 0, name), (7, 0, 1, b"")]));
    }
    for frame in [
        (2, 0, u64::MAX, BLOCK),
        (2, 0, u64::MAX - 4095, BLOCK),
        (2, 0, 1 << 63, BLOCK),
        (2, 0, 7, BLOCK),
        (2, 0, 0, &BLOCK[1..]),
        (2, 1, 0, BLOCK),
        (2, u32::MAX, 0, BLOCK),
        (3, 0, u64::MAX, b""),
        (3, 0, 1 << 62, b""),
        (1, 0, 0, b"superblock"),
        (1, 1, 0, b"tree"),
        (5, 0, 0, b"tree"),
        (8, 0, 0, b""),
        (0, 0, 0, b""),
    ] {
        streams.push(forged(&[create, frame, (7, 0, 1, b"")]));
    }
    let too_long = forged(&[create, (3, 0, 1 << 62, b""), (7, 0, 1, b"")]);
    for (number, stream) in streams.iter().enumerate() {
        let outside = tempfile::tempdir().unwrap();
        let error = Kiln::restore_stream(&stream[..], outside.path().join("inside"), |_| {}).unwrap_err();
        // Only a file system knows that it has no room for the one file that could be so long.
        let is_told = error.kind() == ErrorKind::Corrupted && error.place().is_some();
        assert!(
            is_told || matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace),
            "stream {number}: {error}"
        );
        assert_eq!(is_told, *stream != too_long, "stream {number}: {error}");
        assert_eq!(names_in(outside.path()), [""; 0], "stream {number} has left something");
    }
}

fn names_in(directory: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The lock's file stayed, and the directory that had been made.
#[test]
fn c8_a_restore_or_a_backup_that_fails_leaves_a_directory_as_it_was() {
    let db = small(&SimulatedDevice::new(seed()));
    let stream = stream_of(&db);
    let there = tempfile::tempdir().unwrap();
    let source = there.path().join("damaged");
    db.backup(&source, |_| {}).unwrap();
    let segment = std::fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.into_iter().find(|path| path.to_str().unwrap().contains("segment-")).unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[200] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    type Attempt<'a> = &'a dyn Fn(&std::path::Path) -> kiln::Result<kiln::Backup>;
    let attempts: [Attempt<'_>; 4] = [
        &|to| Kiln::restore_stream(&stream[..stream.len() - 1], to, |_| {}),
        &|to| Kiln::restore_stream((&stream[..5_000]).chain(Failing), to, |_| {}),
        &|to| Kiln::restore(&source, to, |_| {}),
        &|to| {
            let closed = small(&SimulatedDevice::new(seed()));
            closed.close().unwrap();
            closed.backup(to, |_| {})
        },
    ];
    for (number, attempt) in attempts.iter().enumerate() {
        let parent = tempfile::tempdir().unwrap();
        let inside = parent.path().join("inside");
        attempt(&inside).unwrap_err();
        assert_eq!(names_in(parent.path()), [""; 0], "attempt {number}");
        std::fs::create_dir(&inside).unwrap();
        attempt(&inside).unwrap_err();
        assert_eq!(names_in(&inside), [""; 0], "attempt {number}");
    }
    // What was there before stays, and of a database its lock, too.
    let strange = there.path().join("strange");
    std::fs::create_dir(&strange).unwrap();
    std::fs::write(strange.join("letter"), "dear reader").unwrap();
    let kept = there.path().join("kept");
    Kiln::open(&kept).unwrap().close().unwrap();
    for directory in [strange, kept] {
        let before = names_in(&directory);
        let error = Kiln::restore_stream(&stream[..], &directory, |_| {}).unwrap_err();
        assert_eq!((error.kind(), names_in(&directory)), (ErrorKind::Input, before), "{error}");
    }
}
