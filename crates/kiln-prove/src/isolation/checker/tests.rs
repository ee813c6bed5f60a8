//! The checker must flag each anomaly, and accept the legal history next to it.

mod claims;
mod drops;
mod names;
mod tallies;

use super::anomaly::Kind;
use super::check;
use crate::isolation::history::Operation::{Append, Delete, List, Put, Range, Read, Row, Write};
use crate::isolation::history::{
    Crash, GARBAGE, History, Level, Operation, Outcome, Times, Transaction, journal_of,
};
use crate::support::Random;

/// A committed, serializable transaction in a process of its own.
fn tx(from: u64, to: u64, operations: &[Operation]) -> Transaction {
    Transaction {
        process: (100 * from + to) as u32,
        generation: 0,
        level: Level::Serializable,
        times: Times {
            invoked: 10 * from,
            began: 10 * from + 1,
            committing: 10 * to - 1,
            completed: 10 * to,
        },
        operations: operations.to_vec(),
        outcome: Outcome::Committed(None),
        durable: None,
        serial: None,
    }
}

impl Transaction {
    fn at(mut self, version: u64) -> Transaction {
        self.outcome = Outcome::Committed(Some(version));
        self
    }

    fn level(mut self, level: Level) -> Transaction {
        self.level = level;
        self
    }

    fn snapshot(self) -> Transaction {
        self.level(Level::Snapshot)
    }

    fn outcome(mut self, outcome: Outcome) -> Transaction {
        self.outcome = outcome;
        self
    }

    fn process(mut self, process: u32) -> Transaction {
        self.process = process;
        self
    }

    fn after_crashes(mut self, generation: u32) -> Transaction {
        self.generation = generation;
        self
    }

    fn durable(mut self) -> Transaction {
        self.durable = Some(self.times.completed);
        self
    }

    fn serial(mut self, serial: u64) -> Transaction {
        self.serial = Some(serial);
        self
    }
}

fn history(transactions: &[Transaction]) -> History {
    History { transactions: transactions.to_vec(), crashes: Vec::new() }
}

fn crashed(transactions: &[Transaction], crashes: &[Crash]) -> History {
    History { transactions: transactions.to_vec(), crashes: crashes.to_vec() }
}

#[track_caller]
fn accepts(history: &History) {
    if let Err(anomalies) = check(history) {
        panic!("a legal history: {anomalies}");
    }
}

#[track_caller]
fn flags(history: &History, kind: Kind) {
    match check(history) {
        Ok(()) => panic!("{kind:?} went unnoticed"),
        Err(anomalies) => {
            assert!(anomalies.kinds().contains(&kind), "instead of {kind:?}: {anomalies}");
        }
    }
}

fn append(list: u32, seen: &[u32], number: u32) -> [Operation; 2] {
    [List(list, seen.to_vec()), Append(list, number)]
}

fn put(row: u32, journal: &[u32], number: u32) -> [Operation; 3] {
    [List(journal_of(row), journal.to_vec()), Append(journal_of(row), number), Put(row, number)]
}

fn delete(row: u32, journal: &[u32], number: u32) -> [Operation; 3] {
    [List(journal_of(row), journal.to_vec()), Append(journal_of(row), number), Delete(row, number)]
}

#[test]
fn a_transaction_must_see_its_own_writes_and_one_state() {
    let own = |read: &[u32]| {
        history(&[tx(
            1,
            2,
            &[List(1, vec![]), Append(1, 7), List(1, read.to_vec()), Write(2, 8), Read(2, Some(8))],
        )])
    };
    accepts(&own(&[7]));
    flags(&own(&[]), Kind::Internal);
    let writer = tx(1, 2, &[Write(2, 8)]);
    let twice = |again| history(&[writer.clone(), tx(1, 2, &[Read(2, None), Read(2, again)])]);
    accepts(&twice(None));
    flags(&twice(Some(8)), Kind::Internal);
    let rows =
        |row| history(&[tx(1, 2, &put(3, &[], 9)), tx(3, 4, &[Range(1, 5, vec![(3, 9)]), Row(3, row)])]);
    accepts(&rows(Some(9)));
    flags(&rows(None), Kind::Internal);
}

#[test]
fn g0_two_transactions_append_to_two_lists_in_opposite_orders() {
    let blind = |lists: [[u32; 2]; 2]| {
        let reads = [List(1, lists[0].to_vec()), List(2, lists[1].to_vec())];
        history(&[
            tx(1, 4, &[Append(1, 11), Append(2, 12)]),
            tx(2, 4, &[Append(1, 21), Append(2, 22)]),
            tx(5, 6, &reads),
        ])
    };
    accepts(&blind([[11, 21], [12, 22]]));
    flags(&blind([[11, 21], [22, 12]]), Kind::WriteCycle);
}

#[test]
fn g1a_a_read_of_an_aborted_write() {
    for (write, read) in [(Append(1, 7), List(1, vec![7])), (Write(1, 7), Read(1, Some(7)))] {
        let writer = tx(1, 2, &[write]);
        let reader = tx(3, 4, &[read]);
        accepts(&history(&[writer.clone(), reader.clone()]));
        accepts(&history(&[writer.clone().outcome(Outcome::Unknown), reader.clone()]));
        // Whoever reads it, even if nobody knows what came of that one.
        let readers = reader.clone().outcome(Outcome::Unknown);
        accepts(&history(&[writer.clone().outcome(Outcome::Unknown), readers]));
        flags(&history(&[writer.outcome(Outcome::Aborted), reader]), Kind::AbortedRead);
    }
    let row = [tx(1, 2, &put(1, &[], 7)).outcome(Outcome::Aborted), tx(3, 4, &[Row(1, Some(7))])];
    flags(&history(&row), Kind::AbortedRead);
}

#[test]
fn g1b_a_read_of_an_intermediate_write() {
    let writer = tx(1, 4, &[List(1, vec![]), Append(1, 7), Append(1, 8)]);
    flags(&history(&[writer.clone(), tx(2, 4, &[List(1, vec![7])])]), Kind::IntermediateRead);
    accepts(&history(&[writer.clone(), tx(2, 4, &[List(1, vec![7, 8])])]));
    accepts(&history(&[writer, tx(2, 4, &[List(1, vec![])])]));
    let writer = tx(1, 4, &[Write(1, 7), Write(1, 8)]);
    flags(&history(&[writer.clone(), tx(2, 4, &[Read(1, Some(7))])]), Kind::IntermediateRead);
    accepts(&history(&[writer, tx(2, 4, &[Read(1, Some(8))])]));
}

#[test]
fn g1c_two_transactions_read_each_others_writes() {
    let pair = |read| {
        history(&[tx(1, 4, &[Write(1, 7), Read(2, Some(8))]), tx(2, 5, &[Write(2, 8), Read(1, read)])])
    };
    flags(&pair(Some(7)), Kind::CircularInformation);
    accepts(&pair(None));
}

#[test]
fn g_single_a_read_of_half_a_transaction() {
    let writer = tx(1, 4, &[append(1, &[], 7), append(2, &[], 8)].concat());
    let reader =
        |first: &[u32], second: &[u32]| tx(2, 5, &[List(1, first.to_vec()), List(2, second.to_vec())]);
    for (first, second) in [(&[7][..], &[8][..]), (&[], &[])] {
        accepts(&history(&[writer.clone(), reader(first, second)]));
    }
    let torn = reader(&[7], &[]);
    flags(&history(&[writer.clone(), torn.clone()]), Kind::SingleAntiDependency);
    flags(&history(&[writer.clone(), torn.clone().snapshot()]), Kind::SingleAntiDependency);
    // Opacity: not even a transaction that aborts may see that.
    flags(&history(&[writer.clone(), torn.outcome(Outcome::Aborted)]), Kind::SingleAntiDependency);
    accepts(&history(&[writer, reader(&[7], &[8]).outcome(Outcome::Aborted)]));
}

#[test]
fn lost_updates_of_lists_registers_and_rows() {
    let both = [tx(1, 4, &append(1, &[], 7)), tx(2, 5, &append(1, &[], 8))];
    flags(&history(&both), Kind::LostUpdate);
    flags(&history(&both.map(Transaction::snapshot)), Kind::LostUpdate);
    accepts(&history(&[tx(1, 4, &append(1, &[], 7)), tx(2, 5, &append(1, &[7], 8))]));
    let update = |from, read, number| tx(from, 6, &[Read(1, read), Write(1, number)]);
    let updates = [update(1, None, 7).at(1), update(2, None, 8).at(2)];
    flags(&history(&updates), Kind::LostUpdate);
    flags(&history(&updates.map(Transaction::snapshot)), Kind::LostUpdate);
    accepts(&history(&[update(1, None, 7).at(1), update(2, Some(7), 8).at(2)]));
    let rows = [tx(1, 4, &put(1, &[], 7)), tx(2, 5, &put(1, &[], 8))];
    flags(&history(&rows), Kind::LostUpdate);
}

#[test]
fn the_first_committer_wins_even_if_nothing_was_read() {
    // The second begins before the first commits, and commits after it.
    let first = tx(2, 3, &[Write(1, 7)]).at(5).snapshot();
    let second = |from| tx(from, 6, &[Write(1, 8)]).at(6).snapshot();
    flags(&history(&[first.clone(), second(1)]), Kind::RealTime("G0"));
    accepts(&history(&[first.clone(), second(4)]));
    accepts(&history(&[first, second(1).level(Level::Serializable)]));
}

#[test]
fn g2_item_write_skew_is_flagged_among_serializable_transactions_only() {
    let skew = [tx(1, 4, &[Read(1, None), Write(2, 7)]).at(1), tx(2, 5, &[Read(2, None), Write(1, 8)]).at(1)];
    flags(&history(&skew), Kind::AntiDependencyItem);
    let [first, second] = skew.clone();
    accepts(&history(&[first.clone().snapshot(), second.clone().snapshot()]));
    accepts(&history(&[first.snapshot(), second]));
    let lists = [
        tx(1, 4, &[&[List(1, vec![])][..], &append(2, &[], 7)].concat()),
        tx(2, 5, &[&[List(2, vec![])][..], &append(1, &[], 8)].concat()),
    ];
    flags(&history(&lists), Kind::AntiDependencyItem);
    accepts(&history(&lists.map(Transaction::snapshot)));
}

#[test]
fn g2_two_transactions_put_rows_where_the_other_found_none() {
    let scan =
        |from, row, number| tx(from, 6, &[&[Range(1, 9, vec![])][..], &put(row, &[], number)].concat());
    let phantoms = [scan(1, 3, 7), scan(2, 4, 8)];
    flags(&history(&phantoms), Kind::AntiDependencyRange);
    accepts(&history(&phantoms.map(Transaction::snapshot)));
    let sees = tx(2, 6, &[&[Range(1, 9, vec![(3, 7)])][..], &put(4, &[], 8)].concat());
    accepts(&history(&[scan(1, 3, 7), sees]));
}

#[test]
fn a_range_must_see_what_was_put_before_and_not_what_was_deleted() {
    let (insert, remove) = (tx(1, 2, &put(3, &[], 7)), tx(3, 4, &delete(3, &[7], 8)));
    let again = tx(7, 8, &put(3, &[7, 8], 9));
    let range = |from, to, rows: &[(u32, u32)]| tx(from, to, &[Range(1, 9, rows.to_vec())]);
    accepts(&history(&[
        insert.clone(),
        range(2, 3, &[(3, 7)]),
        remove.clone(),
        range(5, 6, &[]),
        again.clone(),
    ]));
    accepts(&history(&[insert.clone(), remove.clone(), again.clone(), range(9, 10, &[(3, 9)])]));
    flags(&history(&[insert.clone(), range(3, 4, &[])]), Kind::RealTime("G-single"));
    flags(&history(&[insert.clone(), remove.clone(), range(5, 6, &[(3, 7)])]), Kind::RealTime("G-single"));
    flags(
        &history(&[insert.clone(), remove.clone(), again.clone(), range(9, 10, &[])]),
        Kind::RealTime("G-single"),
    );
    // While it is being put again it may be there or not.
    accepts(&history(&[insert.clone(), remove.clone(), again.clone(), range(6, 9, &[])]));
    accepts(&history(&[insert, remove, again, range(6, 9, &[(3, 9)])]));
}

#[test]
fn strict_serializability_orders_what_does_not_overlap() {
    let write = tx(1, 2, &[Write(1, 7)]).at(1);
    accepts(&history(&[write.clone(), tx(1, 4, &[Read(1, None)])]));
    accepts(&history(&[write.clone(), tx(3, 4, &[Read(1, Some(7))])]));
    for level in [Level::Serializable, Level::Snapshot, Level::AsOf(0)] {
        flags(
            &history(&[write.clone(), tx(3, 4, &[Read(1, None)]).level(level)]),
            Kind::RealTime("G-single"),
        );
    }
    // What reads the durable state on purpose may be behind.
    accepts(&history(&[write.clone(), tx(3, 4, &[Read(1, None)]).level(Level::Durable(0))]));
    // Blind writes, and a reader that sees the older one.
    let later = tx(3, 4, &[Write(1, 8)]).at(1);
    accepts(&history(&[write.clone(), later.clone(), tx(5, 6, &[Read(1, Some(8))])]));
    flags(&history(&[write, later, tx(5, 6, &[Read(1, Some(7))])]), Kind::RealTime("G-single"));
    // A read of the future.
    flags(&history(&[tx(1, 2, &[Read(1, Some(7))]), tx(3, 4, &[Write(1, 7)])]), Kind::RealTime("G1c"));
}

#[test]
fn a_process_sees_its_own_writes() {
    let write = tx(1, 2, &append(1, &[], 7)).process(1);
    flags(&history(&[write.clone(), tx(3, 4, &[List(1, vec![])]).process(1)]), Kind::RealTime("G-single"));
    accepts(&history(&[write, tx(3, 4, &[List(1, vec![7])]).process(1)]));
}

#[test]
fn values_that_nobody_wrote_and_numbers_that_stand_twice() {
    flags(&history(&[tx(1, 2, &[Read(1, Some(GARBAGE))])]), Kind::Garbage);
    flags(&history(&[tx(1, 2, &[Range(1, 9, vec![(3, GARBAGE)])])]), Kind::Garbage);
    flags(&history(&[tx(1, 2, &[Append(1, 7)]), tx(3, 4, &[List(2, vec![7])])]), Kind::Garbage);
    flags(&history(&[tx(1, 2, &[Append(1, 7)]), tx(3, 4, &[List(1, vec![7, 7])])]), Kind::Duplicate);
}

#[test]
fn two_reads_of_a_list_of_which_neither_is_the_beginning_of_the_other() {
    let writes = [tx(1, 4, &[Append(1, 7)]), tx(2, 4, &[Append(1, 8)])];
    let reads = |first: &[u32]| {
        let reads = [tx(5, 6, &[List(1, first.to_vec())]), tx(5, 7, &[List(1, vec![8, 7])]).process(99)];
        history(&[&writes[..], &reads].concat())
    };
    flags(&reads(&[7, 8]), Kind::IncompatibleOrder);
    accepts(&reads(&[8, 7]));
}

#[test]
fn versions_agree_with_dependencies_and_with_time() {
    let append_at = |first, second| {
        history(&[tx(1, 4, &append(1, &[], 7)).at(first), tx(2, 5, &append(1, &[7], 8)).at(second)])
    };
    accepts(&append_at(3, 3));
    flags(&append_at(4, 3), Kind::VersionOrder);
    // An anti-dependency: the second overwrites what the first has read.
    let anti = |first, second| {
        let read = tx(1, 6, &[&[List(1, vec![])][..], &append(2, &[], 7)].concat()).at(first);
        history(&[read, tx(2, 6, &append(1, &[], 8)).at(second)])
    };
    accepts(&anti(3, 4));
    flags(&anti(4, 3), Kind::VersionOrder);
    // Under snapshot isolation it is the snapshot that counts.
    let mut snapshot = anti(4, 3);
    snapshot.transactions[0].level = Level::Snapshot;
    accepts(&snapshot);
    let in_time = |second| history(&[tx(1, 2, &[Write(1, 7)]).at(4), tx(3, 4, &[Write(2, 8)]).at(second)]);
    accepts(&in_time(4));
    flags(&in_time(3), Kind::VersionOrder);
}

#[test]
fn a_snapshot_is_all_up_to_a_version_and_nothing_after_it() {
    let writes = [tx(1, 5, &[Write(1, 7)]).at(3), tx(2, 5, &[Write(2, 8)]).at(4)];
    let read = |level, first, second| {
        let reader = tx(3, 6, &[Read(1, first), Read(2, second)]).level(level);
        history(&[&writes[..], &[reader]].concat())
    };
    for level in [Level::AsOf(3), Level::Durable(3)] {
        accepts(&read(level, Some(7), None));
        flags(&read(level, Some(7), Some(8)), Kind::TornSnapshot);
        flags(&read(level, None, None), Kind::TornSnapshot);
    }
    accepts(&read(Level::Snapshot, Some(7), None));
    flags(&read(Level::Snapshot, None, Some(8)), Kind::TornSnapshot);
    // Serializable transactions may come in either order.
    accepts(&read(Level::Serializable, None, Some(8)));
}

/// A durable snapshot could be of any state that was a prefix, the empty one included.
#[test]
fn c6_a_durable_snapshot_covers_what_was_known_to_be_durable_before_it() {
    let first = tx(1, 2, &append(1, &[], 7)).at(5).durable();
    let second = tx(3, 4, &append(1, &[7], 8)).at(6);
    let snapshot = |from: u64, version: u64, seen: &[u32]| {
        tx(from, from + 1, &[List(1, seen.to_vec())]).level(Level::Durable(version)).durable()
    };
    let with = |snapshots: &[Transaction]| history(&[&[first.clone(), second.clone()], snapshots].concat());
    accepts(&with(&[snapshot(7, 5, &[7])]));
    flags(&with(&[snapshot(7, 4, &[])]), Kind::StaleDurable);
    // Nobody had been told of the first when this one was asked for.
    accepts(&with(&[snapshot(1, 4, &[])]));
    // What a snapshot has shown, and what a safe read has seen, is durable from then on.
    accepts(&with(&[snapshot(7, 6, &[7, 8]), snapshot(9, 6, &[7, 8])]));
    flags(&with(&[snapshot(7, 6, &[7, 8]), snapshot(9, 5, &[7])]), Kind::StaleDurable);
    let safe_read = tx(5, 6, &[List(1, vec![7, 8])]).durable();
    flags(&with(&[safe_read, snapshot(7, 5, &[7])]), Kind::StaleDurable);
    // So is what a crash has left.
    let crash = [Crash { horizon: 6, told: 5, ..Crash::default() }];
    let after = |version, seen: &[u32]| {
        let snapshot = snapshot(7, version, seen).after_crashes(1);
        let survey = tx(5, 6, &[List(1, vec![7, 8])]).after_crashes(1);
        crashed(&[first.clone(), second.clone(), survey, snapshot], &crash)
    };
    accepts(&after(6, &[7, 8]));
    flags(&after(5, &[7]), Kind::StaleDurable);
}

#[test]
fn a_crash_leaves_exactly_what_the_horizon_covers() {
    let crash = [Crash { horizon: 3, told: 0, ..Crash::default() }];
    let kept = tx(1, 2, &append(1, &[], 7)).at(3);
    let lost = tx(3, 4, &append(1, &[7], 8)).at(4);
    let seen = tx(3, 5, &[List(1, vec![7, 8])]);
    let after = |numbers: &[u32]| tx(6, 7, &[List(1, numbers.to_vec())]).after_crashes(1);
    let branch = tx(8, 9, &append(1, &[7], 9)).at(10).after_crashes(1);
    accepts(&crashed(&[kept.clone(), lost.clone(), seen.clone(), after(&[7]), branch.clone()], &crash));
    flags(&crashed(&[kept.clone(), lost.clone(), after(&[7, 8])], &crash), Kind::CameBack);
    flags(&crashed(&[kept.clone(), lost.clone(), after(&[])], &crash), Kind::NotRecovered);
    flags(&crashed(&[kept.clone(), lost.clone().durable(), after(&[7])], &crash), Kind::DurableLost);
    accepts(&crashed(&[kept.clone().durable(), lost.clone(), after(&[7])], &crash));
    let told = [Crash { told: 4, ..crash[0].clone() }];
    flags(&crashed(&[kept, lost, after(&[7])], &told), Kind::DurableLost);
}

/// A close that had not hardened the last commits, and said so of nothing, passed for a crash that took them.
#[test]
fn c5_what_was_committed_before_an_orderly_close_is_durable() {
    let first = tx(1, 2, &append(1, &[], 7)).at(3);
    let last = tx(3, 4, &append(1, &[7], 8)).at(4);
    let only_reads = tx(5, 6, &[List(1, vec![7, 8])]).at(5);
    let written = [first, last, only_reads];
    let told = history(&written).newest_written(0);
    let closed = |horizon, seen: &[u32]| {
        let after = tx(7, 8, &[List(1, seen.to_vec())]).after_crashes(1);
        let crash = Crash { horizon, told, ..Crash::default() };
        crashed(&[&written[..], &[after]].concat(), &[crash])
    };
    accepts(&closed(4, &[7, 8]));
    flags(&closed(3, &[7]), Kind::DurableLost);
    assert_eq!(history(&written).newest_written(1), 0);
}

#[test]
fn registers_and_rows_survive_a_crash_likewise() {
    let crash = [Crash { horizon: 3, told: 0, ..Crash::default() }];
    let writes = [tx(1, 2, &[Write(1, 7)]).at(3), tx(3, 4, &[Write(1, 8)]).at(4)];
    let after = |read| tx(6, 7, &[Read(1, read)]).after_crashes(1);
    let with = |read| crashed(&[&writes[..], &[after(read)]].concat(), &crash);
    accepts(&with(Some(7)));
    flags(&with(Some(8)), Kind::CameBack);
    flags(&with(None), Kind::RealTime("G-single"));
    let rows = [tx(1, 2, &put(1, &[], 7)).at(3), tx(3, 4, &delete(1, &[7], 8)).at(4)];
    let after = |journal: &[u32], rows: &[(u32, u32)]| {
        let reads = [List(journal_of(1), journal.to_vec()), Range(0, 9, rows.to_vec())];
        tx(6, 7, &reads).after_crashes(1)
    };
    let with = |journal: &[u32], found: &[(u32, u32)]| {
        crashed(&[&rows[..], &[after(journal, found)]].concat(), &crash)
    };
    accepts(&with(&[7], &[(1, 7)]));
    flags(&with(&[7], &[]), Kind::SingleAntiDependency);
    flags(&with(&[7, 8], &[]), Kind::CameBack);
}

#[test]
fn c7_a_session_goes_on_from_the_last_serial_that_survived() {
    let told = |serial| [Crash { horizon: 3, told: 0, serials: vec![(1, serial)], ..Crash::default() }];
    let (first, second) = (tx(1, 2, &append(1, &[], 7)).at(3), tx(3, 4, &append(1, &[7], 8)).at(4));
    let session = [first.process(1).serial(1), second.process(1).serial(2)];
    let next = |serial| tx(6, 7, &append(1, &[7], 9)).at(9).process(1).after_crashes(1).serial(serial);
    let run = |recovered, serial| crashed(&[&session[..], &[next(serial)]].concat(), &told(recovered));
    accepts(&run(1, 2));
    for (recovered, serial) in [(2, 3), (0, 1), (1, 3)] {
        flags(&run(recovered, serial), Kind::SessionSerial);
    }
    flags(&history(&[session[0].clone(), session[1].clone().serial(3)]), Kind::SessionSerial);
}

/// Runs transactions one after the other on a model, and then lets their times overlap as far as that stays legal.
fn serial_history(count: u64, seed: u64) -> History {
    let (mut random, mut transactions) = (Random::new(seed), Vec::new());
    let mut lists = vec![Vec::new(); (count / 20 + 4) as usize];
    let mut registers = [None; 10];
    let mut rows: Vec<(Option<u32>, Vec<u32>)> = vec![(None, Vec::new()); (count / 30 + 4) as usize];
    for at in 1..=count {
        let number = |step: u64| (at * 8 + step) as u32;
        let mut operations = Vec::new();
        for step in 0..1 + random.below(3) as u64 {
            // Few keys at a time, and other ones later, so that no list becomes long.
            let recent = |random: &mut Random, length: usize| {
                (at as usize * length / (count as usize + 1)).saturating_sub(random.below(3))
            };
            match random.below(5) {
                0 => {
                    let key = recent(&mut random, lists.len());
                    operations.extend(append(key as u32, &lists[key], number(step)));
                    lists[key].push(number(step));
                }
                1 => {
                    let key = random.below(registers.len());
                    operations.push(Write(key as u32, number(step)));
                    registers[key] = Some(number(step));
                }
                2 => {
                    let key = recent(&mut random, rows.len());
                    let row = &mut rows[key];
                    operations.extend(match row.0 {
                        Some(_) => delete(key as u32, &row.1, number(step)),
                        None => put(key as u32, &row.1, number(step)),
                    });
                    row.0 = if row.0.is_some() { None } else { Some(number(step)) };
                    row.1.push(number(step));
                }
                3 => {
                    let key = random.below(registers.len());
                    operations.push(Read(key as u32, registers[key]));
                }
                _ => {
                    let first = recent(&mut random, rows.len()).saturating_sub(3);
                    let found = (first..first + 4).filter_map(|key| Some((key as u32, rows.get(key)?.0?)));
                    operations.push(Range(first as u32, first as u32 + 3, found.collect()));
                }
            }
        }
        // It happens at moment 1,000 `at`, and is long on its way before and after that.
        let mut transaction = tx(at, at, &operations).at(at / 5).process(at as u32 % 16);
        let before = 1 + random.below(6_000) as u64;
        let moment = 1_000 * at;
        transaction.times.invoked = moment.saturating_sub(before);
        transaction.times.began = transaction.times.invoked;
        transaction.times.committing = moment;
        transaction.times.completed = moment + 1 + random.below(6_000) as u64;
        transaction.process = at as u32;
        transactions.push(transaction);
    }
    history(&transactions)
}

#[test]
fn any_serial_history_with_overlapping_times_is_accepted() {
    for seed in 0..60 {
        accepts(&serial_history(200, seed));
    }
}

/// The commit of one transaction is moved so far that the order of versions and of time is broken, or one of its reads
/// is made older.
#[test]
fn a_read_that_is_made_wrong_is_flagged() {
    let mut flagged = 0;
    for seed in 0..200 {
        let mut history = serial_history(200, seed);
        let mut random = Random::new(seed);
        let readers: Vec<usize> = (100..200)
            .filter(|&at| {
                let reads = |operation: &Operation| matches!(operation, List(_, seen) if !seen.is_empty());
                history.transactions[at].operations.iter().any(reads)
            })
            .collect();
        let reader = *random.pick(&readers);
        let list = history.transactions[reader].operations.iter_mut().find_map(|operation| match operation {
            List(_, seen) if !seen.is_empty() => Some(seen),
            _ => None,
        });
        list.unwrap().pop();
        assert!(check(&history).is_err(), "seed {seed}: transaction {reader} reads a list without its end");
        flagged += 1;
    }
    assert_eq!(flagged, 200);
}

#[test]
fn a_hundred_thousand_transactions_are_checked() {
    accepts(&serial_history(100_000, 7));
}

#[test]
fn a_history_is_the_same_after_saving_and_loading() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history");
    let mut history = serial_history(50, 1);
    history.crashes.push(Crash { horizon: 1, told: 1, serials: vec![(1, 2)], names: vec![(1, 1)] });
    history.save(&path).unwrap();
    assert!(History::load(&path).unwrap() == history);
}

#[test]
fn that_a_transaction_of_unknown_outcome_has_seen_its_own_write_does_not_mean_that_it_has_committed() {
    let own = tx(1, 2, &[Append(8, 1), List(8, vec![1])]).outcome(Outcome::Unknown);
    accepts(&history(&[own, tx(3, 4, &[List(8, vec![])])]));
}
