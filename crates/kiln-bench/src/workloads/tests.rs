//! Workloads find wrong results.

use std::time::Duration;

use super::*;
use crate::engines::wrong::{PERSISTING, Wrong};
use crate::engines::{Engine, Generator, MemoryMap, MemoryTable, Worker};
use crate::generate::Sizes;
use crate::generate::draws::Distribution;

const SIZES: Sizes = Sizes { key_bytes: 16, value_bytes: 100 };
const RECORDS: u64 = 1234;
const MOMENT: Duration = Duration::from_millis(3);

fn all_operations() -> Vec<Operation> {
    vec![
        Operation::GetOrPut { reads: 0 },
        Operation::GetOrPut { reads: 50 },
        Operation::GetOrPut { reads: 100 },
        Operation::GetOrAdd { reads: 50 },
        Operation::GetMany(4),
        Operation::PutMany(3),
        Operation::GetOrPutMany { reads: 50, count: 3 },
        Operation::ModifyMany(3),
        Operation::GetOrPutEach { reads: 50, count: 3 },
        Operation::GetOrInsert { reads: 50 },
        Operation::ScanOrInsert { scans: 95, rows: 100 },
        Operation::FillInOrder,
        Operation::ReadInOrder,
    ]
}

/// Runs an operation until it was done at least once: on a busy machine a moment may pass without.
fn run_uniform<E: Engine>(data: &Data<'_, E>, operation: Operation) -> anyhow::Result<u64> {
    loop {
        let ops = run(data, operation, Distribution::Uniform, 2, MOMENT)?.ops;
        if ops > 0 {
            return Ok(ops);
        }
    }
}

#[test]
fn a_right_engine_passes_everything_and_its_counters_add_up() {
    let engine = MemoryTable::default();
    let data = Data::new(&engine, SIZES, RECORDS);
    data.load().unwrap();
    assert_eq!(data.check_all().unwrap(), 0);
    let ops = run_uniform(&data, Operation::ModifyMany(3)).unwrap();
    let added = run_uniform(&data, Operation::GetOrAdd { reads: 0 }).unwrap();
    assert_eq!(data.check_all().unwrap(), 3 * ops + added);
    for operation in all_operations() {
        assert!(run_uniform(&data, operation).unwrap() > 0, "{operation:?}");
        data.check_written().unwrap();
    }
    for distribution in [Distribution::ZIPF, Distribution::Latest] {
        assert!(run(&data, Operation::GetOrInsert { reads: 95 }, distribution, 2, MOMENT).unwrap().ops > 0);
    }
    data.check_all().unwrap();
    data.check_order().unwrap();
}

#[test]
fn half_a_transaction_does_not_add_up() {
    for half in [false, true] {
        let engine = Wrong { half, ..Wrong::default() };
        let data = Data::new(&engine, SIZES, RECORDS);
        data.load().unwrap();
        let ops = run_uniform(&data, Operation::ModifyMany(3)).unwrap();
        assert_eq!(data.check_all().unwrap() == 3 * ops, !half);
    }
}

#[test]
fn an_overwrite_that_is_lost_and_a_row_that_a_scan_leaves_out_are_found() {
    for loses in [false, true] {
        let engine = Wrong { loses, ..Wrong::default() };
        let data = Data::new(&engine, SIZES, RECORDS);
        data.load().unwrap();
        for operation in [Operation::GetOrPut { reads: 0 }, Operation::GetOrPut { reads: 50 }] {
            run_uniform(&data, operation).unwrap();
            let checked = data.check_written();
            assert_eq!(checked.is_err(), loses, "{checked:?}");
            assert!(checked.err().is_none_or(|error| error.to_string().contains("lost write")));
        }
        data.check_all().unwrap();
    }
    for short in [false, true] {
        let engine = Wrong { short, ..Wrong::default() };
        let data = Data::new(&engine, SIZES, RECORDS);
        data.load().unwrap();
        let scanned = run_uniform(&data, Operation::ScanOrInsert { scans: 100, rows: 100 });
        assert_eq!(scanned.is_err(), short, "{scanned:?}");
    }
}

#[test]
fn a_row_that_a_scan_shows_twice_is_found() {
    let engine = Wrong { stutters: true, ..Wrong::default() };
    let data = Data::new(&engine, SIZES, RECORDS);
    data.load().unwrap();
    for operation in [Operation::ScanOrInsert { scans: 95, rows: 100 }, Operation::ReadInOrder] {
        let error = run_uniform(&data, operation).unwrap_err();
        assert!(format!("{error:#}").contains("out of order"), "{error:#}");
    }
}

#[test]
fn a_scan_beside_writers_is_of_one_state_or_found_out() {
    for half in [false, true] {
        let engine = Wrong { half, ..Wrong::default() };
        let data = Data::new(&engine, SIZES, RECORDS);
        data.load().unwrap();
        for alone in [Alone::First, Alone::Last] {
            // Long enough for each thread to get its turn on a busy machine.
            let measured =
                run_beside_scan(&data, Distribution::Uniform, 2, Duration::from_millis(600), alone, true);
            assert_eq!(measured.is_err(), half);
            if let Ok(measured) = measured {
                let scan = measured.scan.unwrap();
                assert!(measured.ops > 0 && scan.alone_ops_per_s > 0.0 && scan.rows_per_s > 0.0);
            }
        }
    }
}

#[test]
fn each_half_beside_a_scan_and_without_is_made_durable_by_itself_before_anything_is_read() {
    for alone in [Alone::First, Alone::Last] {
        let engine = Wrong::default();
        let data = Data::new(&engine, SIZES, RECORDS);
        data.load().unwrap();
        engine.journal.lock().unwrap().persisted.clear();
        let measured =
            run_beside_scan(&data, Distribution::Uniform, 2, Duration::from_millis(100), alone, true)
                .unwrap();
        let journal = engine.journal.into_inner().unwrap();
        assert_eq!(journal.persisted.len(), 2);
        assert_eq!(journal.persisted[usize::from(alone == Alone::First)], measured.ops);
        // The last scan is after both.
        assert_eq!(journal.persisted_before_last_scan, 2);
        assert!(measured.persist >= PERSISTING);
        // Nothing else makes anything durable: lag is known of what is made so in the end.
        assert!(!measured.hardening.unwrap().lag_ns.is_empty());
    }
}

#[test]
fn a_wrong_a_missing_and_a_surplus_value_are_found() {
    let engine = MemoryTable::default();
    let data = Data::new(&engine, SIZES, RECORDS);
    data.load().unwrap();
    let mut worker = engine.worker().unwrap();
    worker.put(&SIZES.key(1), &[0; 100]).unwrap();
    assert!(format!("{:#}", data.check_all().unwrap_err()).contains("wrong value"));
    let long = |operation| run(&data, operation, Distribution::Uniform, 1, Duration::from_secs(60));
    assert!(long(Operation::GetOrPut { reads: 100 }).is_err());
    worker.put(&SIZES.key(1), &SIZES.entry(1, 0).value).unwrap();
    data.check_all().unwrap();
    worker.put(&SIZES.key(RECORDS), &SIZES.entry(RECORDS, 0).value).unwrap();
    assert!(data.check_all().unwrap_err().to_string().contains("keys should be there"));
    assert!(data.check_order().unwrap_err().to_string().contains("a scan finds"));
    let more = Data::new(&engine, SIZES, RECORDS + 2);
    let missing =
        run(&more, Operation::GetOrPut { reads: 100 }, Distribution::Uniform, 1, Duration::from_secs(60));
    assert!(missing.map(drop).unwrap_err().to_string().contains("is missing"));
}

#[test]
fn the_generator_answers_reads_and_writes() {
    let engine = Generator::new(SIZES);
    let data = Data::new(&engine, SIZES, RECORDS);
    for operation in [
        Operation::GetOrPut { reads: 50 },
        Operation::GetOrAdd { reads: 50 },
        Operation::PutMany(3),
        Operation::ModifyMany(3),
        Operation::PutDurably,
        Operation::GetMany(3),
        Operation::ScanOrInsert { scans: 95, rows: 100 },
    ] {
        assert!(run_uniform(&data, operation).unwrap() > 0);
    }
    // A thread that the system lets wait for the whole moment does nothing in it.
    let mut tries = (0..1000).map(|_| run_in_both_ways(&data, Distribution::Uniform, 3, MOMENT).unwrap());
    assert!(tries.any(|both| both.iter().all(|measured| measured.ops > 0)));
}

#[test]
fn a_map_in_memory_passes_what_needs_no_order() {
    let sizes = Sizes { key_bytes: 8, value_bytes: 8 };
    let engine = MemoryMap::default();
    let data = Data::new(&engine, sizes, RECORDS);
    data.load().unwrap();
    let added = run_uniform(&data, Operation::GetOrAdd { reads: 0 }).unwrap();
    assert_eq!(data.check_all().unwrap(), added);
    for operation in all_operations().into_iter().take(8) {
        assert!(run_uniform(&data, operation).unwrap() > 0, "{operation:?}");
    }
}
