//! Profiles fit into their time, and plans have what was asked for.

use clap::Parser;

use super::*;
use crate::arguments::{Arguments, Command, Profile};

fn plan(arguments: &str) -> Plan {
    let words = ["kiln-bench", "run"].into_iter().chain(arguments.split_whitespace());
    match Arguments::parse_from(words).command {
        Command::Run(settings) => Plan::make(&settings).unwrap(),
        _ => unreachable!(),
    }
}

#[test]
fn the_quick_profile_fits_into_its_time_and_leaves_some_for_unsure_ratios() {
    let plan = plan("");
    let limit = parts(Profile::Quick)[0].time_limit.unwrap();
    assert_eq!(plan.time_limit, Some(limit));
    assert!(
        limit < Duration::from_secs(300) && plan.duration() < limit.mul_f64(0.92),
        "{:?}",
        plan.duration()
    );
}

#[test]
fn who_asks_for_more_gets_the_time_for_it_and_who_names_a_time_or_rounds_gets_those() {
    let more = plan("--engines kiln,memory --seconds 10");
    assert!(more.time_limit.unwrap() > more.duration());
    let named = plan("--engines kiln,memory --seconds 10 --time-limit 1m");
    assert_eq!(named.time_limit, Some(Duration::from_secs(60)));
    assert!(named.heading("").contains("as many of them as fit into 1m;"), "{}", named.heading(""));
    assert_eq!(plan("--engines kiln,memory --rounds 3").time_limit, None);
    let full = plan("--engines kiln,memory --profile full");
    assert_eq!(full.time_limit, None);
    assert!(full.heading("").contains(", and others where a ratio is unsure, all within "));
}

#[test]
fn the_papers_figures_fit_into_a_quarter_of_an_hour_and_each_part_keeps_its_own_engines() {
    let plan = plan("--profile papers --engines kiln,kiln-wal");
    assert!(plan.duration() < Duration::from_secs(900), "{:?}", plan.duration());
    let has = |engine: Name, workload: &str| {
        plan.groups.iter().any(|group| {
            group.contestants.iter().any(|contestant| contestant.engine == engine)
                && group.cells.iter().any(|cell| cell.workload == workload)
        })
    };
    assert!(has(Name::KilnWal, "map-txn-10-0") && !has(Name::KilnWal, "map-upsert"));
    let modes = |workload: &str| -> Vec<(Mode, Option<u64>)> {
        let groups =
            plan.groups.iter().filter(|group| group.cells.iter().any(|cell| cell.workload == workload));
        groups.flat_map(|group| &group.contestants).map(|one| (one.mode, one.window_ms)).collect()
    };
    assert_eq!(modes("map-upsert"), [(Mode::Fast, Some(1000)), (Mode::Floor, None)]);
    assert_eq!(modes("update").len(), 9);
    let narrowed = super::tests::plan("--profile papers --engines kiln --workloads update --window 1ms,100s");
    assert_eq!(narrowed.groups.len(), 1);
    assert_eq!(narrowed.groups[0].contestants.len(), 2);
}

#[test]
fn kiln_without_hardening_and_a_log_take_part_only_where_they_are_asked_for() {
    let floors = |arguments: &str| {
        let plan = plan(arguments);
        let all = plan.groups.iter().flat_map(|group| &group.contestants);
        all.filter(|one| one.engine == Name::KilnWal || (one.engine, one.mode) == (Name::Kiln, Mode::Floor))
            .count()
    };
    assert_eq!(floors(""), 0);
    assert_eq!(floors("--engines kiln --workloads update --window 1s,never"), 1);
    assert_eq!(floors("--engines kiln,kiln-wal --workloads update"), 1);
}

#[test]
fn what_is_planned_adds_up() {
    let plan = plan("--engines kiln,memory,device --workloads read,safe-commit,map-read");
    let cells = plan.groups.iter().flat_map(|group| group.cells.iter().map(move |cell| (group, cell)));
    let sum: f64 = cells.map(|(group, cell)| plan.cell_seconds(group, cell)).sum();
    assert!((sum - plan.cells_s()).abs() < 1e-6 && sum > 0.0 && plan.rest_s() > 0.0);
    // Kiln and a floor at each of three workloads, with one thread and with two.
    assert_eq!(plan.measurements(), 3 * 2 * 2 * u64::from(parts(Profile::Quick)[0].rounds.least));
}

#[test]
fn the_room_that_is_needed_has_what_is_inserted_until_the_last_round() {
    let room = |arguments: &str| plan(&format!("--engines {arguments}")).disk_bytes();
    // As many as 0.8 million rows of 116 bytes a second were seen.
    assert!(room("kiln --workloads insert --seconds 10 --rounds 5") > 9_000_000_000);
    let two = |workload| room(&format!("kiln,redb --workloads {workload} --seconds 10 --rounds 5"));
    for workload in ["insert", "fill-seq", "ycsb-d", "ycsb-e"] {
        assert!(two(workload) > two("update"), "{workload}");
    }
    let rounds = |count| room(&format!("kiln,redb --workloads tpcc --rounds {count}"));
    assert!(rounds(5) > rounds(1));
    // In the order of their keys some insert more slowly than others, and TPC-C's transactions.
    for workload in ["fill-seq", "tpcc"] {
        let of = |engine| room(&format!("{engine} --workloads {workload} --seconds 10 --rounds 9"));
        assert!(of("redb") < of("lmdb") / 2, "{workload}");
    }
    // As many rounds as the time does not allow insert nothing.
    let long = "redb --workloads insert --threads 1 --seconds 100";
    let (allowed, certain) = (room(long), room(&format!("{long} --rounds 5")));
    assert!(certain < allowed && allowed < 2 * certain, "{certain} {allowed}");
    // What is in memory takes no room on the disk.
    let of_kiln = room("kiln --workloads insert");
    assert_eq!(room("kiln,memory --workloads insert"), of_kiln);
}

#[test]
fn an_operation_with_more_keys_than_come_is_refused() {
    let make = |arguments: &str| {
        let words = ["kiln-bench", "run", "--engines", "kiln", "--records", "1000"].into_iter();
        match Arguments::parse_from(words.chain(arguments.split_whitespace())).command {
            Command::Run(settings) => Plan::make(&settings).map(drop),
            _ => unreachable!(),
        }
    };
    make("--workloads map-rmw --batch 500").unwrap();
    for arguments in ["--workloads map-rmw --batch 501", "--workloads txn-1000"] {
        let error = make(arguments).unwrap_err().to_string();
        assert!(error.contains("--records"), "{error}");
    }
}
