//! Damages of each kind, and what the examination must notice.

use std::time::Duration;

use super::*;
use crate::arguments::Limit;
use crate::testing::{at_test, budget, seed, watched};
use crate::workload::{LARGE, NAMED, SETTLING, SMALL};

const MINUTES: Duration = Duration::from_secs(600);

fn everywhere(name: &'static str, specimens: &[Specimen], damage: Damage, most: u64) {
    watched(name, MINUTES, |replay| {
        at_test(replay, name, seed());
        let mut progress = Progress::silent(name, Limit::Pass);
        specimens.iter().for_each(|specimen| damage(specimen, seed(), most as usize, &mut progress));
        progress.finish();
    });
}

/// Of tables that settle there is only a little: most is as in the others, and `tree` is small.
const SETTLING_LITTLE: Profile = Profile { operations: 60, ..SETTLING };

const NAMED_LITTLE: Profile = Profile { operations: 60, ..NAMED };

fn all() -> [Specimen; 8] {
    let [small, large, settling, named] = [SMALL, LARGE, SETTLING_LITTLE, NAMED_LITTLE];
    [
        closed(small, seed()),
        stopped(small, seed()),
        closed(large, seed()),
        stopped(large, seed()),
        closed(settling, seed()),
        stopped(settling, seed()),
        closed(named, seed()),
        stopped(named, seed()),
    ]
}

#[test]
fn c9_specimens_have_settled_between_the_moments_that_are_kept() {
    let specimen = closed(SETTLING_LITTLE, seed());
    let tree = |files: &Files| files.iter().find(|(name, _)| name == "tree").map(|(_, bytes)| bytes.clone());
    let mut trees: Vec<_> = specimen.older.iter().filter_map(tree).collect();
    trees.push(specimen.disk.bytes("tree"));
    trees.dedup();
    assert!(trees.len() > 3, "{} different trees", trees.len());
}

#[test]
fn c9_a_damaged_backup_is_refused() {
    everywhere("c9_a_damaged_backup_is_refused", &all(), streams::damage_backup, budget(300));
}

#[test]
fn c9_what_is_as_it_once_was_is_detected_or_harmless() {
    everywhere("c9_what_is_as_it_once_was", &all(), bring_back_older, budget(40));
}

#[test]
fn c9_a_flipped_bit_in_a_closed_database_is_detected_or_harmless() {
    let name = "c9_a_flipped_bit_in_a_closed_database";
    everywhere(name, &[closed(SMALL, seed())], flip_bits, budget(6_000));
    everywhere(name, &[closed(LARGE, seed())], flip_bits, budget(500));
    everywhere(name, &[closed(SETTLING_LITTLE, seed())], flip_bits, budget(1_000));
    everywhere(name, &[closed(NAMED_LITTLE, seed())], flip_bits, budget(500));
}

#[test]
fn c9_a_flipped_bit_in_a_stopped_database_is_detected_or_harmless() {
    let name = "c9_a_flipped_bit_in_a_stopped_database";
    everywhere(name, &[stopped(Profile { operations: 30, ..SMALL }, seed())], flip_bits, budget(6_000));
    everywhere(name, &[stopped(LARGE, seed())], flip_bits, budget(500));
}

#[test]
fn c9_zeroed_sectors_are_detected_or_harmless() {
    everywhere("c9_zeroed_sectors", &all(), zero_sectors, u64::MAX);
}

#[test]
fn c9_files_cut_short_or_lengthened_are_detected_or_harmless() {
    everywhere("c9_files_cut_short", &all(), change_lengths, budget(16));
}

#[test]
fn c9_files_that_hold_what_another_holds_are_detected_or_harmless() {
    everywhere("c9_files_that_hold_what_another_holds", &all(), duplicate_files, u64::MAX);
}

#[test]
fn c9_missing_files_are_detected_or_harmless() {
    everywhere("c9_missing_files", &all(), remove_files, u64::MAX);
    // Without any file there is no database, and a new one is none of ours.
    let disk = SimulatedDevice::new(1);
    let error = crate::support::manual().create(false).open_on(Arc::new(disk)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn c9_blocks_that_have_changed_places_are_detected_or_harmless() {
    everywhere("c9_blocks_that_have_changed_places", &all(), move_blocks, budget(300));
}

/// The newest slot of the superblock says that the log was closed in order. Without it the last extent, damaged, would
/// look like a write that was never finished.
#[test]
fn c9_a_torn_end_and_a_damaged_superblock_are_no_crash() {
    for specimen in [closed(SMALL, seed()), closed(LARGE, seed())] {
        let is_stored = |bytes: &[u8]| bytes.iter().any(|&byte| byte != 0);
        let mut segments = files(&specimen.disk);
        // The last one is prepared, and still empty.
        segments.retain(|(name, bytes)| name.starts_with("segment-") && is_stored(bytes));
        let (segment, bytes) = segments.pop().unwrap();
        let blocks = (0..bytes.len()).step_by(BLOCK_BYTES);
        let last = blocks.rev().find(|at| is_stored(&bytes[*at..*at + BLOCK_BYTES])).unwrap();
        for slot in [0, BLOCK_BYTES] {
            specimen.damaged(&(slot, last), Tail::Nothing, |disk| {
                let superblock = disk.bytes("superblock")[slot..slot + BLOCK_BYTES].to_vec();
                overwrite(disk, "superblock", slot, &bytes[last..last + BLOCK_BYTES]);
                overwrite(disk, &segment, last, &superblock);
            });
        }
    }
}

#[test]
fn c9_lost_and_misdirected_writes_are_detected_after_an_orderly_close() {
    let name = "c9_lost_and_misdirected_writes";
    watched(name, MINUTES, |replay| {
        at_test(replay, name, seed());
        let mut progress = Progress::silent(name, Limit::Pass);
        let noticed: u64 =
            [SMALL, LARGE].map(|profile| lose_writes(profile, seed(), &mut progress)).iter().sum();
        assert!(noticed > 20, "hardly any lost write was noticed: {noticed}");
    });
}

#[test]
fn c9_the_examination_notices_wrong_contents() {
    let mut specimen = closed(SMALL, seed());
    assert_eq!(specimen.examine(&copy_of(&specimen.disk), Tail::Nothing), Ok(false));
    let key = specimen.contents[0].keys().next_back().unwrap().clone();
    specimen.contents[0].insert(key, b"something else"[..].into());
    assert!(specimen.examine(&copy_of(&specimen.disk), Tail::Nothing).is_err());
    // Of sessions nobody asked.
    let mut specimen = closed(SMALL, seed());
    specimen.history.commits.iter_mut().for_each(|commit| commit.session = None);
    let examined = specimen.examine(&copy_of(&specimen.disk), Tail::Nothing);
    assert!(examined.unwrap_err().starts_with("C7"));
}

#[test]
fn c9_an_open_database_reports_damage_that_it_meets() {
    let specimen = closed(LARGE, seed());
    let db = reopen(&specimen.disk).unwrap();
    assert!(db.check().unwrap().problems.is_empty());
    let first = specimen.disk.list().unwrap().into_iter().find(|name| name.starts_with("segment")).unwrap();
    specimen.disk.flip_bit(&first, 8 * 300);
    let report = db.check().unwrap();
    assert!(report.problems.iter().any(|problem| problem.contains(&first)), "{report}");
}
