//! Tallies, and sessions that run batches.

use super::*;
use crate::isolation::history::Operation::{Add, Tally};

fn add(from: u64, to: u64, sum: u64) -> Transaction {
    tx(from, to, &[Add(1, Some(sum))])
}

#[test]
fn each_addition_has_a_sum_of_its_own() {
    accepts(&history(&[add(1, 4, 2), add(2, 5, 1), tx(6, 7, &[Tally(1, 2)])]));
    flags(&history(&[add(1, 4, 1), add(2, 5, 1)]), Kind::LostUpdate);
    // An answer that skips one, and a read.
    flags(&history(&[add(1, 4, 2)]), Kind::Garbage);
    flags(&history(&[add(1, 4, 1), tx(5, 6, &[Tally(1, 2)])]), Kind::Garbage);
    // An addition that was aborted counts for nothing, but has seen what was there.
    let aborted = add(2, 5, 2).outcome(Outcome::Aborted);
    accepts(&history(&[add(1, 4, 1), aborted.clone(), tx(6, 7, &[Tally(1, 1)])]));
    flags(&history(&[add(1, 4, 1), aborted, tx(6, 7, &[Tally(1, 2)])]), Kind::Garbage);
}

#[test]
fn a_transaction_adds_to_what_it_has_seen() {
    let adds = |sums: [u64; 2]| {
        history(&[tx(1, 2, &[Tally(1, 0), Add(1, Some(sums[0])), Add(1, Some(sums[1])), Tally(1, 2)])])
    };
    accepts(&adds([1, 2]));
    for lie in [[2, 3], [1, 1], [1, 3], [0, 1]] {
        flags(&adds(lie), Kind::Internal);
    }
    let twice = tx(1, 4, &[Add(1, Some(1)), Add(1, Some(2))]);
    accepts(&history(&[twice.clone(), tx(2, 5, &[Tally(1, 2)])]));
    flags(&history(&[twice, tx(2, 5, &[Tally(1, 1)])]), Kind::IntermediateRead);
}

#[test]
fn what_is_read_of_a_tally_fits_to_time_and_to_other_reads() {
    let read = |from, sum| tx(from, from + 1, &[Tally(1, sum)]);
    accepts(&history(&[add(1, 2, 1), read(3, 1), add(5, 6, 2), read(7, 2)]));
    flags(&history(&[add(1, 2, 1), read(3, 0)]), Kind::RealTime("G-single"));
    flags(&history(&[add(1, 2, 1), add(3, 4, 2), read(5, 1)]), Kind::RealTime("G-single"));
    flags(&history(&[add(1, 2, 2), add(3, 4, 1)]), Kind::RealTime("G0"));
    // Half a transaction.
    let both = tx(1, 4, &[&append(1, &[], 7)[..], &[Add(1, Some(1))]].concat());
    flags(&history(&[both.clone(), tx(2, 5, &[List(1, vec![7]), Tally(1, 0)])]), Kind::SingleAntiDependency);
    accepts(&history(&[both, tx(2, 5, &[List(1, vec![7]), Tally(1, 1)])]));
    // Write skew.
    let skew = [tx(1, 4, &[Tally(1, 0), Add(2, Some(1))]), tx(2, 5, &[Tally(2, 0), Add(1, Some(1))])];
    flags(&history(&skew), Kind::AntiDependencyItem);
    accepts(&history(&skew.map(Transaction::snapshot)));
    flags(&history(&[add(1, 4, 1).at(4), add(2, 5, 2).at(3)]), Kind::VersionOrder);
}

#[test]
fn additions_without_an_answer_are_as_many_as_the_sums_that_nobody_was_told() {
    let silent = tx(1, 4, &[Add(1, None)]);
    let with =
        |silent: &Transaction, sum| history(&[silent.clone(), add(2, 5, 2), tx(6, 7, &[Tally(1, sum)])]);
    accepts(&with(&silent, 2));
    flags(&with(&silent, 3), Kind::Garbage);
    let unknown = silent.clone().outcome(Outcome::Unknown);
    let alone = |silent: &Transaction, sum| history(&[silent.clone(), tx(6, 7, &[Tally(1, sum)])]);
    accepts(&alone(&unknown, 1));
    accepts(&alone(&unknown, 0));
    flags(&alone(&silent, 0), Kind::LostWrite);
    flags(&alone(&silent.outcome(Outcome::Aborted), 1), Kind::Garbage);
}

#[test]
fn a_tally_survives_a_crash_likewise() {
    let crash = [Crash { horizon: 3, told: 0, ..Crash::default() }];
    let additions = [add(1, 2, 1).at(3), add(3, 4, 2).at(4)];
    let after = |sum| tx(6, 7, &[Tally(1, sum)]).after_crashes(1);
    let with = |later: &[Transaction]| crashed(&[&additions[..], later].concat(), &crash);
    accepts(&with(&[after(1)]));
    accepts(&with(&[after(1), add(8, 9, 2).at(9).after_crashes(1)]));
    flags(&with(&[after(2)]), Kind::Garbage);
    flags(&with(&[after(0)]), Kind::RealTime("G-single"));
    flags(&with(&[add(8, 9, 1).at(9).after_crashes(1)]), Kind::NotRecovered);
    // What a durable read has seen is there.
    let read = tx(4, 5, &[Tally(1, 2)]).durable();
    flags(&crashed(&[&additions[..], &[read]].concat(), &crash), Kind::DurableLost);
    let silent = |version| tx(1, 2, &[Add(1, None)]).at(version);
    accepts(&crashed(&[silent(3), after(1)], &crash));
    flags(&crashed(&[silent(3), after(0)], &crash), Kind::LostWrite);
    flags(&crashed(&[silent(4), after(1)], &crash), Kind::Garbage);
}

/// Elements of a batch have serial numbers, also where their versions are not known.
#[test]
fn c7_a_batch_of_a_session_survives_up_to_an_element() {
    let element =
        |serial: u32| tx(u64::from(serial), 9, &[Write(1, serial)]).process(1).serial(u64::from(serial));
    let [first, second, third] = [element(1).at(3), element(2).outcome(Outcome::Unknown), element(3).at(4)];
    let run = |told| {
        let crash = [Crash { horizon: 3, told: 0, serials: vec![(1, told)], ..Crash::default() }];
        crashed(&[first.clone(), second.clone(), third.clone()], &crash)
    };
    accepts(&run(1));
    accepts(&run(2));
    flags(&run(0), Kind::SessionSerial);
    flags(&run(3), Kind::SessionSerial);
}
