//! What a contestant does wrong is found out.

use super::*;
use crate::engines::wrong::Wrong;
use crate::generate::Sizes;

/// A table in memory, as a contestant.
fn contestant() -> Contestant {
    Contestant {
        engine: Name::Memory,
        mode: Mode::Floor,
        window_ms: None,
        content: Content::Table { sizes: Sizes { key_bytes: 16, value_bytes: 100 }, records: 1000 },
        cache_bytes: 0,
        limit_bytes: None,
        path: std::path::PathBuf::new(),
        reopened: false,
    }
}

fn cell(workload: &str) -> Cell {
    let distribution = spec::find(workload).unwrap().distribution;
    let (workload, threads, batch) = (workload.to_owned(), 1, 1);
    Cell {
        workload,
        distribution,
        threads,
        batch,
        seconds: 0.003,
        warm_up_s: 0.0,
        persist_each_s: None,
        round: 0,
    }
}

/// Loads a table, runs a workload on it, and checks everything.
fn serve(engine: &Wrong, limit_bytes: Option<u64>, workload: &str) -> Result<()> {
    let contestant = Contestant { limit_bytes, ..contestant() };
    let mut served = Served::new(&contestant, engine)?;
    if let Loaded::Keys(data) = &served.loaded {
        data.load()?;
    }
    served.sum = Some(0);
    assert!(served.cell(&cell(workload))?[0].ops > 0);
    served.check()
}

#[test]
fn additions_that_are_lost_are_found_also_beside_reads_and_with_little_memory() {
    for limit_bytes in [None, Some(1 << 20)] {
        serve(&Wrong::default(), limit_bytes, "ycsb-f").unwrap();
        for (workload, engine) in [
            ("ycsb-f", Wrong { loses_adds: true, ..Wrong::default() }),
            ("txn-3", Wrong { half: true, ..Wrong::default() }),
        ] {
            let error = serve(&engine, limit_bytes, workload).unwrap_err();
            assert!(error.to_string().contains("add up"), "{error:#}");
        }
    }
}

#[test]
fn who_goes_on_in_the_background_after_loading_has_come_to_rest_before_anything_is_measured() {
    let engine = Wrong { lingers: true, ..Wrong::default() };
    let contestant = contestant();
    let mut served = Served::new(&contestant, &engine).unwrap();
    served.load(0).unwrap();
    assert!(!engine.is_busy.load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!(served.sum, Some(0));
}
