//! Tests of crashes, faults and damage; the ordinary behaviour is in `conformance`.

mod failed_syncs;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::random::Random;
use super::*;
use crate::device::conformance::blocks;
use crate::device::{BLOCK_BYTES, SECTOR_BYTES};

const BLOCK: u64 = BLOCK_BYTES as u64;
const SECTORS: usize = BLOCK_BYTES / SECTOR_BYTES;

/// A disk with the durable file "a" of so many blocks, all filled with `byte`.
fn disk_with(byte: u8, count: usize) -> (SimulatedDevice, Arc<dyn DeviceFile>) {
    let disk = SimulatedDevice::new(1);
    disk.set_bytes("a", blocks(byte, count).as_slice());
    let file = disk.open("a", OpenMode::ReadWrite).unwrap();
    (disk, file)
}

/// All names with what they hold.
fn everything(disk: &SimulatedDevice) -> Vec<(String, Vec<u8>)> {
    disk.list().unwrap().into_iter().map(|name| (name.clone(), disk.bytes(&name))).collect()
}

fn fault(operation: OperationKind, nth: u64, kind: FaultKind) -> Fault {
    Fault { operation, nth, kind, sticky: false }
}

fn sectors(bytes: &[u8]) -> Vec<u8> {
    bytes
        .chunks(SECTOR_BYTES)
        .map(|sector| {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn");
            sector[0]
        })
        .collect()
}

fn lose_all(disk: &SimulatedDevice) -> SimulatedDevice {
    disk.after_crash(&mut |_| Keep::Lost)
}

fn keep_all(disk: &SimulatedDevice) -> SimulatedDevice {
    disk.after_crash(&mut |_| Keep::Kept)
}

#[test]
fn sync_and_sync_directory_together_make_a_file_durable() {
    let disk = SimulatedDevice::new(1);
    let file = disk.open("a", OpenMode::Create).unwrap();
    file.write_at(&blocks(1, 2), 0).unwrap();
    file.truncate(5000).unwrap();
    file.sync().unwrap();
    assert!(lose_all(&disk).list().unwrap().is_empty(), "the name was not synced");
    disk.sync_directory().unwrap();
    assert_eq!(disk.pending_sectors(), 0);
    assert_eq!(lose_all(&disk).bytes("a"), [1; 5000]);
}

#[test]
fn a_durable_name_may_refer_to_contents_that_are_lost() {
    let disk = SimulatedDevice::new(1);
    disk.open("a", OpenMode::Create).unwrap().write_at(&blocks(1, 1), 0).unwrap();
    disk.sync_directory().unwrap();
    assert_eq!(lose_all(&disk).bytes("a"), []);
    assert_eq!(keep_all(&disk).bytes("a"), [1; 4096]);
}

#[test]
fn syncing_one_file_leaves_the_others_volatile() {
    let (disk, file) = disk_with(1, 1);
    disk.set_bytes("b", [1; 4096]);
    let other = disk.open("b", OpenMode::ReadWrite).unwrap();
    file.write_at(&blocks(2, 1), 0).unwrap();
    other.write_at(&blocks(2, 1), 0).unwrap();
    file.sync().unwrap();
    assert_eq!(disk.pending_sectors(), SECTORS);
    let after = lose_all(&disk);
    assert_eq!((after.bytes("a"), after.bytes("b")), (vec![2; 4096], vec![1; 4096]));
}

#[test]
fn a_write_is_torn_at_sectors_in_every_possible_way() {
    let (disk, file) = disk_with(1, 1);
    file.write_at(&blocks(2, 1), 0).unwrap();
    let states = disk.crash_states();
    assert_eq!(states.unit_count(), SECTORS);
    let seen: BTreeSet<Vec<u8>> = states.exhaustive().map(|disk| sectors(&disk.bytes("a"))).collect();
    assert_eq!(seen.len(), 1 << SECTORS);
}

#[test]
fn of_several_writes_to_a_sector_any_may_win() {
    let (disk, file) = disk_with(1, 1);
    file.write_at(&blocks(2, 1), 0).unwrap();
    file.write_at(&blocks(3, 1), 0).unwrap();
    let first_two = |unit: LossUnit<'_>| matches!(unit, LossUnit::Sector { offset: 0 | 512, .. });
    let mut seen = BTreeSet::new();
    for choices in 0..16_u32 {
        let mut remaining = choices;
        let after = disk.after_crash(&mut |unit| {
            let kept = first_two(unit) && remaining & 1 == 1;
            remaining >>= u32::from(first_two(unit));
            if kept { Keep::Kept } else { Keep::Lost }
        });
        seen.insert(sectors(&after.bytes("a"))[..2].to_vec());
    }
    assert_eq!(seen.len(), 9, "old, first and second contents of two sectors, independently: {seen:?}");
}

#[test]
fn size_and_data_are_lost_independently() {
    let (disk, file) = disk_with(1, 1);
    file.write_at(&blocks(2, 1), BLOCK).unwrap();
    let is_size = |unit: LossUnit<'_>| matches!(unit, LossUnit::Size { size: 8192, .. });
    let keep_if = |keep: bool| if keep { Keep::Kept } else { Keep::Lost };
    let grown = disk.after_crash(&mut |unit| keep_if(is_size(unit)));
    assert_eq!(grown.bytes("a"), [[1; 4096], [0; 4096]].concat());
    let ungrown = disk.after_crash(&mut |unit| keep_if(!is_size(unit)));
    assert_eq!(ungrown.bytes("a"), [1; 4096]);
    ungrown.open("a", OpenMode::ReadWrite).unwrap().truncate(2 * BLOCK).unwrap();
    assert_eq!(
        ungrown.bytes("a"),
        [[1; 4096], [0; 4096]].concat(),
        "what lay beyond the end is gone for good"
    );
}

#[test]
fn a_truncation_may_be_lost_with_what_followed_it() {
    let (disk, file) = disk_with(1, 2);
    file.truncate(0).unwrap();
    file.allocate(BLOCK).unwrap();
    assert_eq!(disk.pending_sectors(), 2);
    let sizes: Vec<usize> = disk.crash_states().exhaustive().map(|disk| disk.bytes("a").len()).collect();
    assert_eq!(sizes, [8192, 0, 8192, 4096]);
    file.sync().unwrap();
    assert_eq!(lose_all(&disk).bytes("a"), [0; 4096]);
}

#[test]
fn changes_of_names_are_lost_unless_the_directory_is_synced() {
    let disk = SimulatedDevice::new(1);
    disk.set_bytes("old", [1; 10]);
    disk.set_bytes("gone", [2; 10]);
    disk.set_bytes("replaced", [3; 10]);
    disk.open("new", OpenMode::Create).unwrap();
    disk.remove("gone").unwrap();
    disk.rename("old", "replaced").unwrap();
    assert_eq!(disk.pending_sectors(), 3);
    let states: Vec<_> = disk.crash_states().exhaustive().map(|disk| everything(&disk)).collect();
    let file = |name: &str, byte: u8| (name.to_owned(), vec![byte; 10]);
    assert_eq!(states[0], [file("gone", 2), file("old", 1), file("replaced", 3)]);
    assert_eq!(states[0b010], [file("old", 1), file("replaced", 3)]);
    assert_eq!(states[0b100], [file("gone", 2), file("replaced", 1)]);
    assert_eq!(states[0b111], [("new".to_owned(), vec![]), file("replaced", 1)]);
    disk.sync_directory().unwrap();
    assert_eq!(everything(&lose_all(&disk)), states[0b111]);
}

#[test]
fn a_rename_of_a_file_whose_creation_is_lost_does_not_happen() {
    let disk = SimulatedDevice::new(1);
    disk.set_bytes("root", [1; 10]);
    let file = disk.open("temporary", OpenMode::Create).unwrap();
    file.write_at(&blocks(2, 1), 0).unwrap();
    file.sync().unwrap();
    disk.rename("temporary", "root").unwrap();
    assert_eq!(disk.after_crash_mask(0b10).bytes("root"), [1; 10]);
    assert_eq!(disk.after_crash_mask(0b01).list().unwrap(), ["root", "temporary"]);
    assert_eq!(disk.after_crash_mask(0b11).bytes("root"), [2; 4096]);
}

/// Equal for the same bytes, however they came about; and different for another byte, size or name, and another order of bytes.
#[test]
fn a_fingerprint_tells_disks_apart_by_what_they_hold() {
    let made = |files: &[(&str, Vec<u8>)]| {
        let disk = SimulatedDevice::new(1);
        files.iter().for_each(|(name, bytes)| disk.set_bytes(name, bytes));
        disk
    };
    let (plain, file) = disk_with(7, 2);
    file.sync().unwrap();
    plain.sync_directory().unwrap();
    let same = made(&[("a", vec![7; 2 * BLOCK_BYTES])]);
    assert_eq!(plain.fingerprint(), same.fingerprint());
    // A block that was overwritten by zeros is one that was never written.
    file.write_at(&blocks(0, 1), 0).unwrap();
    let mut zeros = vec![0; BLOCK_BYTES];
    zeros.extend([7; BLOCK_BYTES]);
    assert_eq!(plain.fingerprint(), made(&[("a", zeros.clone())]).fingerprint());
    same.zero("a", 0, 100);
    same.zero("a", 100, BLOCK_BYTES as u64 - 100);
    assert_eq!(plain.fingerprint(), same.fingerprint());

    let mut swapped = zeros.clone();
    swapped.rotate_left(BLOCK_BYTES);
    let mut longer = zeros.clone();
    longer.push(0);
    let mut other = zeros.clone();
    other[BLOCK_BYTES - 1] = 1;
    let different = [
        plain,
        made(&[("a", swapped)]),
        made(&[("a", longer)]),
        made(&[("a", other)]),
        made(&[("b", zeros.clone())]),
        made(&[("a", zeros.clone()), ("b", Vec::new())]),
        made(&[("b", zeros), ("a", Vec::new())]),
        made(&[]),
    ];
    let fingerprints: BTreeSet<_> = different.iter().map(SimulatedDevice::fingerprint).collect();
    assert_eq!(fingerprints.len(), different.len());
}

#[test]
fn a_failed_sync_of_the_directory_forgets_the_names() {
    let mut left = BTreeSet::new();
    for seed in 0..100 {
        let disk = SimulatedDevice::new(seed);
        disk.set_bytes("a", []);
        disk.rename("a", "b").unwrap();
        disk.open("c", OpenMode::Create).unwrap();
        disk.inject(fault(OperationKind::SyncDirectory, 1, FaultKind::FailedSyncThenSuccess));
        disk.sync_directory().unwrap_err();
        disk.sync_directory().unwrap();
        assert_eq!(disk.list().unwrap(), ["b", "c"]);
        let kept = keep_all(&disk).list().unwrap();
        assert_eq!(kept, lose_all(&disk).list().unwrap());
        left.insert(kept.join(" "));
    }
    assert_eq!(left.into_iter().collect::<Vec<_>>(), ["a", "a c", "b", "b c"]);
}

#[test]
fn an_error_strikes_the_nth_matching_operation_once_and_has_no_effect() {
    let (disk, file) = disk_with(1, 1);
    disk.inject(fault(OperationKind::Write, 2, FaultKind::ENOSPC));
    file.sync().unwrap();
    file.write_at(&blocks(2, 1), 0).unwrap();
    assert_eq!(disk.faults_fired(), 0);
    assert_eq!(file.write_at(&blocks(3, 1), 0).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(disk.bytes("a"), [2; 4096]);
    file.write_at(&blocks(4, 1), 0).unwrap();
    assert_eq!(disk.faults_fired(), 1);
    disk.inject(fault(OperationKind::Sync, 1, FaultKind::EINTR));
    assert_eq!(file.sync().unwrap_err().kind(), ErrorKind::Interrupted);
    assert_ne!(disk.pending_sectors(), 0);
}

#[test]
fn a_sticky_fault_strikes_until_it_is_cleared() {
    let (disk, file) = disk_with(1, 1);
    disk.inject(Fault { operation: OperationKind::Any, nth: 2, kind: FaultKind::EIO, sticky: true });
    file.sync().unwrap();
    for _ in 0..3 {
        file.sync().unwrap_err();
        file.size().unwrap_err();
    }
    disk.clear_faults();
    file.sync().unwrap();
}

#[test]
fn every_kind_of_operation_can_be_made_to_fail() {
    let mut buffer = blocks(0, 1);
    let mut failing = |operation: OperationKind| {
        let (disk, file) = disk_with(1, 1);
        disk.inject(Fault { operation, nth: 1, kind: FaultKind::EIO, sticky: true });
        let outcomes = [
            disk.open("a", OpenMode::Read).map(drop),
            disk.list().map(drop),
            file.size().map(drop),
            file.read_at(&mut buffer, 0).map(drop),
            file.write_at(&blocks(2, 1), 0),
            file.sync(),
            file.allocate(BLOCK),
            file.truncate(BLOCK),
            disk.open("b", OpenMode::Create).map(drop),
            disk.rename("a", "c"),
            disk.remove("c").or_else(|_| disk.remove("a")),
            disk.sync_directory(),
        ];
        outcomes.iter().filter(|outcome| outcome.is_err()).count()
    };
    use OperationKind::*;
    for operation in
        [Open, List, Size, Read, Write, Sync, Allocate, Truncate, Create, Remove, Rename, SyncDirectory]
    {
        assert_eq!(failing(operation), 1, "{operation:?}");
    }
    assert_eq!(failing(Any), 12);
}

#[test]
fn a_short_write_stores_any_sectors_and_a_short_read_returns_fewer_bytes() {
    let mut stored = BTreeSet::new();
    let mut buffer = blocks(0, 1);
    for seed in 0..200 {
        let disk = SimulatedDevice::new(seed);
        disk.set_bytes("a", blocks(1, 1).as_slice());
        let file = disk.open("a", OpenMode::ReadWrite).unwrap();
        disk.inject(fault(OperationKind::Write, 1, FaultKind::ShortWrite));
        assert_eq!(file.write_at(&blocks(2, 1), 0).unwrap_err().kind(), ErrorKind::WriteZero);
        stored.insert(sectors(&disk.bytes("a")));
        file.write_at(&blocks(2, 1), 0).unwrap();
        assert_eq!(disk.bytes("a"), [2; 4096]);
        disk.inject(fault(OperationKind::Read, 1, FaultKind::ShortWrite));
        assert!(file.read_at(&mut buffer, 0).unwrap() < BLOCK_BYTES);
    }
    // A part at the beginning, from nothing to all, and others.
    let beginnings = stored.iter().filter(|sectors| sectors.is_sorted_by(|one, next| one >= next)).count();
    assert_eq!(beginnings, SECTORS + 1);
    assert!(stored.len() > beginnings + 10, "{stored:?}");
}

#[test]
fn a_disk_can_lie_misdirect_and_be_slow() {
    let (disk, file) = disk_with(1, 2);
    disk.inject(fault(OperationKind::Write, 1, FaultKind::Ignored));
    file.write_at(&blocks(2, 1), 0).unwrap();
    assert_eq!(disk.bytes("a"), [1; 8192]);
    disk.inject(fault(OperationKind::Write, 1, FaultKind::Misdirected(BLOCK)));
    file.write_at(&blocks(3, 1), 0).unwrap();
    assert_eq!(disk.bytes("a"), [[1; 4096], [3; 4096]].concat());
    disk.inject(fault(OperationKind::Sync, 1, FaultKind::Ignored));
    file.sync().unwrap();
    assert_eq!(lose_all(&disk).bytes("a"), [1; 8192]);
    disk.inject(fault(OperationKind::Sync, 1, FaultKind::Delay(Duration::from_millis(20))));
    let start = Instant::now();
    file.sync().unwrap();
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_eq!(lose_all(&disk).bytes("a"), [[1; 4096], [3; 4096]].concat());
}

#[test]
fn a_full_disk_refuses_to_lengthen_and_lets_overwrite() {
    let disk = SimulatedDevice::new(1);
    disk.set_capacity(Some(4 * BLOCK));
    let file = disk.open("a", OpenMode::Create).unwrap();
    let other = disk.open("b", OpenMode::Create).unwrap();
    file.allocate(3 * BLOCK).unwrap();
    assert_eq!(other.allocate(2 * BLOCK).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(other.size().unwrap(), BLOCK, "what fits is taken");
    assert_eq!(other.write_at(&blocks(1, 2), 0).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(disk.bytes("b"), [1; 4096], "what fits is stored");
    file.write_at(&blocks(2, 3), 0).unwrap();
    disk.remove("a").unwrap();
    assert_eq!(disk.used_bytes(), 4 * BLOCK, "an open file keeps its space");
    drop(file);
    other.write_at(&blocks(1, 2), 0).unwrap();
    disk.fail_after_bytes(BLOCK);
    other.write_at(&blocks(1, 1), 2 * BLOCK).unwrap();
    assert_eq!(other.truncate(4 * BLOCK).unwrap_err().kind(), ErrorKind::StorageFull);
    disk.set_capacity(None);
    other.truncate(4 * BLOCK).unwrap();
}

#[test]
fn after_a_crash_every_operation_fails_and_changes_nothing() {
    let (disk, file) = disk_with(1, 1);
    disk.crash_after(2);
    file.write_at(&blocks(2, 1), 0).unwrap();
    assert!(!disk.crashed());
    file.sync().unwrap();
    assert!(disk.crashed());
    let mut buffer = blocks(0, 1);
    let outcomes = [
        file.read_at(&mut buffer, 0).map(drop),
        file.write_at(&blocks(3, 1), 0),
        file.sync(),
        file.size().map(drop),
        file.allocate(2 * BLOCK),
        file.truncate(0),
        disk.open("a", OpenMode::Read).map(drop),
        disk.open("b", OpenMode::Create).map(drop),
        disk.list().map(drop),
        disk.remove("a"),
        disk.rename("a", "b"),
        disk.sync_directory(),
        disk.lock().map(drop),
    ];
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Other);
        assert!(error.to_string().contains("simulated crash"), "{error}");
    }
    assert_eq!((disk.steps(), disk.pending_sectors()), (2, 0));
    assert_eq!(disk.bytes("a"), [2; 4096]);
}

#[test]
fn steps_count_what_may_change_the_disk() {
    let disk = SimulatedDevice::new(1);
    let file = disk.open("a", OpenMode::Create).unwrap();
    file.write_at(&blocks(1, 1), 0).unwrap();
    file.sync().unwrap();
    file.allocate(BLOCK).unwrap();
    file.truncate(BLOCK).unwrap();
    disk.rename("a", "b").unwrap();
    disk.remove("b").unwrap();
    disk.sync_directory().unwrap();
    assert_eq!(disk.steps(), 8);
    file.size().unwrap();
    disk.list().unwrap();
    file.read_at(&mut blocks(0, 1), 0).unwrap();
    file.write_at(&[0; 1], 0).unwrap_err();
    assert_eq!(disk.steps(), 8, "reads and refused arguments do not count");
}

#[test]
fn a_disk_after_a_crash_is_independent_and_clean() {
    let (disk, file) = disk_with(1, 1);
    let _lock = disk.lock().unwrap();
    file.write_at(&blocks(2, 1), 0).unwrap();
    disk.inject(Fault { operation: OperationKind::Any, nth: 1, kind: FaultKind::EIO, sticky: true });
    disk.crash_after(0);
    let after = keep_all(&disk);
    assert_eq!((after.steps(), after.pending_sectors(), after.crashed()), (0, 0, false));
    let _other_lock = after.lock().unwrap();
    after.open("a", OpenMode::ReadWrite).unwrap().write_at(&blocks(3, 1), 0).unwrap();
    after.remove("a").unwrap();
    assert_eq!(disk.bytes("a"), [2; 4096]);
    assert_eq!(lose_all(&disk).bytes("a"), [1; 4096]);
}

#[test]
fn damage_reaches_what_is_durable() {
    let (disk, _file) = disk_with(1, 2);
    disk.flip_bit("a", 8 * 5000 + 3);
    disk.flip_bit("a", 8 * 8192);
    disk.zero("a", 8000, 1 << 40);
    for bytes in [disk.bytes("a"), lose_all(&disk).bytes("a")] {
        assert_eq!(bytes.len(), 8192);
        assert_eq!(bytes[5000], 9);
        assert!(bytes[..5000].iter().chain(&bytes[5001..8000]).all(|byte| *byte == 1));
        assert!(bytes[8000..].iter().all(|byte| *byte == 0));
    }
    disk.rename("a", "b").unwrap();
    disk.remove_file("b");
    assert!(disk.list().unwrap().is_empty() && keep_all(&disk).list().unwrap().is_empty());
}

/// Runs operations that `seed` chooses, and leaves some of them un-synced.
fn random_workload(seed: u64) -> SimulatedDevice {
    let disk = SimulatedDevice::new(seed);
    let mut random = Random::new(seed);
    disk.inject(fault(OperationKind::Write, 3, FaultKind::ShortWrite));
    for _ in 0..40 {
        let name = ["a", "b", "c"][random.below(3)];
        let file =
            disk.open(name, OpenMode::Create).or_else(|_| disk.open(name, OpenMode::ReadWrite)).unwrap();
        let byte = 1 + random.below(250) as u8;
        let _ = match random.below(8) {
            0 => file.sync(),
            1 => disk.sync_directory(),
            2 => disk.rename(name, "d"),
            3 => disk.remove(name),
            4 => file.truncate(random.below(20_000) as u64),
            _ => file.write_at(&blocks(byte, 1 + random.below(2)), random.below(4) as u64 * BLOCK),
        };
    }
    disk
}

#[test]
fn the_same_seed_gives_the_same_disk_and_the_same_crash() {
    let mut distinct = BTreeSet::new();
    for seed in 0..50 {
        let (first, second) = (random_workload(seed), random_workload(seed));
        assert_eq!(everything(&first), everything(&second));
        assert_eq!(first.steps(), second.steps());
        assert_eq!(first.pending_sectors(), second.pending_sectors());
        for crash in 0..20 {
            let after = everything(&first.after_crash_seeded(crash));
            assert_eq!(after, everything(&second.after_crash_seeded(crash)));
            distinct.insert(after);
        }
    }
    assert!(distinct.len() > 300, "only {} different crash states", distinct.len());
}

#[test]
fn random_crashes_reach_the_extremes_and_tear() {
    let (disk, file) = disk_with(1, 2);
    file.write_at(&blocks(2, 2), 0).unwrap();
    let states = disk.crash_states();
    let count_new = |seed| {
        let after = states.after_crash_seeded(seed);
        sectors(&after.bytes("a")).iter().filter(|byte| **byte == 2).count()
    };
    let counts: BTreeSet<usize> = (0..500).map(count_new).collect();
    assert_eq!(counts, (0..=2 * SECTORS).collect());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write { block: u64, count: usize },
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    let write = (0..4_u64, 1..3_usize).prop_map(|(block, count)| Step::Write { block, count });
    prop_oneof![3 => write, 1 => Just(Step::Sync)]
}

proptest! {
    #[test]
    fn each_sector_after_a_crash_is_as_last_synced_or_as_written_since(
        steps in prop::collection::vec(step(), 1..20),
        seeds in prop::collection::vec(any::<u64>(), 10),
    ) {
        let (disk, file) = disk_with(0, 6);
        // By sector, everything that a crash may leave there; the last is what reads see.
        let mut possible = vec![vec![0_u8]; 6 * SECTORS];
        for (index, step) in steps.iter().enumerate() {
            match *step {
                Step::Sync => {
                    file.sync().unwrap();
                    possible.iter_mut().for_each(|values| { values.drain(..values.len() - 1); });
                }
                Step::Write { block, count } => {
                    // Zeros are kept in another way.
                    let byte = if index % 4 == 3 { 0 } else { index as u8 + 1 };
                    file.write_at(&blocks(byte, count), block * BLOCK).unwrap();
                    let first = block as usize * SECTORS;
                    possible[first..first + count * SECTORS].iter_mut().for_each(|values| values.push(byte));
                }
            }
        }
        let latest: Vec<u8> = possible.iter().map(|values| values[values.len() - 1]).collect();
        prop_assert_eq!(sectors(&disk.bytes("a")), latest.clone());
        prop_assert_eq!(sectors(&keep_all(&disk).bytes("a")), latest);
        for seed in seeds {
            for (value, allowed) in sectors(&disk.after_crash_seeded(seed).bytes("a")).iter().zip(&possible) {
                prop_assert!(allowed.contains(value));
            }
        }
    }
}
