//! Objects that are dropped.

use super::*;
use crate::isolation::history::Operation::Drop;

fn dropped(from: u64, to: u64) -> Transaction {
    tx(from, to, &[Drop(1, 5)])
}

#[test]
fn nobody_uses_an_object_after_it_was_dropped() {
    let insert = tx(1, 2, &put(3, &[], 7));
    let uses = [&[Row(3, Some(7))][..], &[Range(1, 5, vec![(3, 7)])], &put(3, &[7], 8), &delete(3, &[7], 8)];
    for used in uses {
        accepts(&history(&[insert.clone(), tx(3, 4, used), dropped(5, 6)]));
        accepts(&history(&[insert.clone(), tx(3, 6, used), dropped(4, 5)]));
        let late = tx(7, 8, used);
        let lie = check(&history(&[insert.clone(), dropped(4, 5), late.clone()])).unwrap_err();
        assert!(lie.kinds().iter().any(|kind| matches!(kind, Kind::RealTime(_))), "{lie}");
        // Not even a snapshot of a version that has the drop.
        if !late.writes() {
            let snapshot = |version| tx(3, 8, used).level(Level::AsOf(version));
            let with = |version| history(&[insert.clone().at(3), dropped(4, 5).at(4), snapshot(version)]);
            accepts(&with(3));
            flags(&with(4), Kind::TornSnapshot);
        }
    }
    // Another object.
    accepts(&history(&[dropped(1, 2), tx(3, 4, &put(6, &[], 7))]));
}

#[test]
fn what_is_written_to_an_object_is_of_no_newer_version_than_its_end() {
    let with = |version| history(&[tx(1, 4, &put(3, &[], 7)).at(version), dropped(2, 5).at(4)]);
    accepts(&with(4));
    flags(&with(5), Kind::VersionOrder);
}

#[test]
fn an_object_whose_end_is_lost_comes_back() {
    let crash = |horizon| [Crash { horizon, ..Crash::default() }];
    let writes = [tx(1, 2, &put(3, &[], 7)).at(3), dropped(3, 4).at(4)];
    let after = tx(6, 7, &[List(journal_of(3), vec![7]), Row(3, Some(7))]).after_crashes(1);
    let with = |horizon| crashed(&[&writes[..], std::slice::from_ref(&after)].concat(), &crash(horizon));
    accepts(&with(3));
    flags(&with(4), Kind::RealTime("G-single"));
}
