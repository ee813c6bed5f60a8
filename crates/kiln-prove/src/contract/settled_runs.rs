//! Runs: settled rows that a walk knows to be its next ones end where rows of another kind come, whoever puts them there.

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln::device::SimulatedDevice;
use kiln::{Kiln, Table, Transaction};

use crate::support::{Random, manual};
use crate::testing::seed;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys of several lengths, of which neighbours may have nothing in common.
fn key(random: &mut Random) -> Vec<u8> {
    let stem = random.pick(&[&b""[..], b"a", b"long common stem of many keys ", b"z"]).to_vec();
    let length = random.below(5);
    [stem, (0..length).map(|_| b'a' + random.below(6) as u8).collect()].concat()
}

/// Mostly short; some are too long for a leaf.
fn value(random: &mut Random) -> Vec<u8> {
    let length = if random.one_in(40) { 5_000 } else { random.below(90) };
    random.bytes(length)
}

/// Two tables whose rows are neighbours in the tree, with some that were written and deleted since they settled.
fn tables(random: &mut Random) -> (Kiln, [(Table, Rows); 2]) {
    let db = manual().memory(1 << 20).open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let mut tables = ["one", "two"].map(|name| (db.table(name).unwrap(), Rows::new()));
    for changes in [400, 25] {
        for (table, rows) in &mut tables {
            for _ in 0..changes {
                let (key, value) = (key(random), value(random));
                db.put(table, &key, &value).unwrap().forget();
                rows.insert(key, value);
            }
            for key in rows.keys().step_by(29).cloned().collect::<Vec<_>>() {
                db.delete(table, &key).unwrap().forget();
                rows.remove(&key);
            }
        }
        if changes == 400 {
            db.persist().unwrap();
            assert!(db.settle().unwrap() > 300);
        }
    }
    (db, tables)
}

/// Walks, seeks, and writes ahead and behind, and compares every row.
fn walk(tx: &Transaction<'_>, (table, rows): &mut (Table, Rows), random: &mut Random, writes: bool) {
    let (from, reverse) = (key(random), random.one_in(2));
    let mut range = match reverse {
        false => tx.range(table, from.clone()..),
        true => tx.range(table, ..=from.clone()).reverse(),
    };
    let (mut at, mut is_at_included) = (from.clone(), true);
    for _ in 0..random.below(300) {
        if random.one_in(20) {
            let to = key(random);
            range.seek(&to);
            // The bounds stay; there is no far one.
            at = if reverse { to.min(from.clone()) } else { to.max(from.clone()) };
            is_at_included = true;
        }
        if writes && random.one_in(15) {
            let (key, value) = (key(random), value(random));
            match random.one_in(2) {
                true => {
                    tx.put(table, &key, &value).unwrap();
                    rows.insert(key, value);
                }
                false => assert_eq!(tx.delete(table, &key).unwrap(), rows.remove(&key).is_some()),
            }
        }
        let is_ahead = |key: &Vec<u8>| is_at_included || *key != at;
        let expected = match reverse {
            false => rows.range(at.clone()..).find(|(key, _)| is_ahead(key)),
            true => rows.range(..=at.clone()).rev().find(|(key, _)| is_ahead(key)),
        };
        let found = range.next_row().unwrap();
        assert!(
            found == expected.map(|(key, value)| (&key[..], &value[..])),
            "behind {at:?}, reverse {reverse}"
        );
        let Some((key, _)) = expected else { return };
        at.clone_from(key);
        is_at_included = false;
    }
}

#[test]
fn c2_a_run_of_settled_rows_ends_where_rows_of_another_kind_come() {
    let mut random = Random::new(seed());
    let (db, mut tables) = tables(&mut random);
    for round in 0..120 {
        let tx = db.begin().unwrap();
        let mut kept = tables.clone();
        for _ in 0..4 {
            let table = random.below(2);
            walk(&tx, &mut kept[table], &mut random, round % 2 == 0);
        }
        if random.one_in(4) {
            tx.commit().unwrap().forget();
            tables = kept;
        }
    }
}

/// A deletion of a settled row asks whether it is there, and not what it is.
#[test]
fn c1_deleting_a_settled_row_does_not_read_its_value() {
    const VALUE: usize = 30_000;
    let disk = SimulatedDevice::new(seed());
    let db = manual().memory(1 << 20).open_on(Arc::new(disk.clone())).unwrap();
    let table = db.table("table").unwrap();
    for number in 0..20_u8 {
        db.put(&table, [number], vec![number; VALUE]).unwrap().forget();
    }
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 20);
    // Every value is damaged, every leaf is whole.
    let mut bytes = disk.bytes("tree");
    let mut damaged = 0;
    for block in bytes.chunks_exact_mut(4096) {
        let first = block[0];
        if first < 20 && block[..1_000].iter().all(|&byte| byte == first) && first > 0 {
            block[500] ^= 1;
            damaged += 1;
        }
    }
    assert!(damaged >= 19, "{damaged} values were found in the tree's file");
    disk.set_bytes("tree", bytes);
    assert!(db.get(&table, [7]).is_err());
    assert!(db.delete(&table, [7]).unwrap().forget());
    assert!(!db.delete(&table, [7]).unwrap().forget());
    assert_eq!(db.get(&table, [7]).unwrap(), None);
    db.persist().unwrap();
}

/// Log, read cache and pages together take no more than they were given, before anything settles and after, and whatever prevails.
#[test]
fn c2_memory_is_the_budget_of_pages_too() {
    const MEMORY: u64 = 1 << 20;
    let db = manual().memory(MEMORY).open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let table = db.table("table").unwrap();
    let within = || {
        let statistics = db.statistics();
        let bytes = [statistics.ring_bytes, statistics.read_cache_bytes, statistics.page_cache_bytes];
        assert!(bytes.iter().sum::<u64>() <= MEMORY, "{bytes:?}");
        statistics
    };
    assert!(within().read_cache_bytes > MEMORY * 2 / 5, "the read cache has what pages do not need yet");
    for number in 0..12_000_u32 {
        db.put(&table, number.to_be_bytes(), [number as u8; 100]).unwrap().forget();
    }
    db.persist().unwrap();
    assert_eq!(db.settle().unwrap(), 12_000);
    let settled = within();
    assert!(settled.read_cache_bytes <= MEMORY * 2 / 7, "{settled:?}");
    let mut random = Random::new(seed());
    for _ in 0..60_000 {
        let number = random.below(12_000) as u32;
        assert_eq!(db.get(&table, number.to_be_bytes()).unwrap().unwrap(), [number as u8; 100]);
    }
    let reading = within();
    assert!(reading.ring_bytes <= MEMORY / 4, "{reading:?}");
    assert!(reading.page_cache_bytes > MEMORY * 3 / 10, "{reading:?}");
    for number in 0..40_000_u32 {
        db.put(&table, (number % 9_000).to_be_bytes(), [number as u8; 100]).unwrap().forget();
        if number % 1_000 == 0 {
            assert!(db.get(&table, (11_000 + number % 900).to_be_bytes()).unwrap().is_some());
            db.persist().unwrap();
            within();
        }
    }
    let writing = within();
    assert!(writing.ring_bytes >= MEMORY / 2 && writing.page_cache_bytes <= MEMORY / 4, "{writing:?}");
}

/// A row that has not settled costs a range a read of its own, and a read of that row alone no more than if it had.
#[test]
fn rows_that_ranges_read_from_disk_one_by_one_settle_before_there_are_many() {
    const KEYS: u32 = 4_000;
    let options = manual().segment_bytes(16 << 10).memory(160 << 10).settle_log_bytes(1 << 20);
    let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let table = db.table("table").unwrap();
    (0..KEYS).for_each(|key| db.put(&table, key.to_be_bytes(), [7; 20]).unwrap().forget());
    db.persist().unwrap();
    let reads = || db.statistics().cold_reads;
    for _ in 0..2 {
        (0..KEYS).for_each(|key| assert!(db.get(&table, key.to_be_bytes()).unwrap().is_some()));
        db.persist().unwrap();
    }
    let before = db.statistics();
    assert!(before.cold_reads > u64::from(KEYS) && before.rows_settled == 0, "{before:?}");
    let range = || db.snapshot().unwrap().range::<&[u8]>(&table, ..).map(Result::unwrap).count();
    assert_eq!(range(), KEYS as usize);
    assert!(reads() > before.cold_reads);
    db.persist().unwrap();
    let after = db.statistics();
    assert!(after.rows_settled > u64::from(KEYS / 4), "{after:?}");
    let before = reads();
    assert_eq!(range(), KEYS as usize);
    // Only what is out of memory in the segment where that ends has not settled.
    assert!(reads() - before < u64::from(KEYS / 10), "{} records were read again", reads() - before);
    let check = db.check().unwrap();
    assert!(check.is_clean(), "{check}");
}

/// A pass reads all that is settled at once, and there are the more of them the more it is.
#[test]
fn what_settling_is_far_behind_with_settles_part_by_part() {
    const KEYS: u32 = 12_000;
    const LOG_BYTES: u64 = 32 << 10;
    let options = manual().segment_bytes(16 << 10).memory(160 << 10).settle_log_bytes(LOG_BYTES);
    let db = options.open_on(Arc::new(SimulatedDevice::new(seed()))).unwrap();
    let table = db.table("table").unwrap();
    // Nobody else settles, and who puts does not.
    (0..KEYS).for_each(|key| db.put(&table, key.to_be_bytes(), [7; 20]).unwrap().forget());
    let (mut before, mut most, mut parts) = (0, 0, 0);
    loop {
        db.persist().unwrap();
        let now = db.statistics().rows_settled;
        if now == before {
            break;
        }
        (most, parts, before) = (most.max(now - before), parts + 1, now);
    }
    let statistics = db.statistics();
    // What is less than a third of the tree is not worth settling.
    let due_bytes = LOG_BYTES.max(statistics.tree_used_bytes / 3);
    assert!(before > u64::from(KEYS / 2) && statistics.unsettled_bytes < due_bytes, "{statistics:?}");
    // A record takes more than the 24 bytes of its key and value.
    assert!(most < 4 * LOG_BYTES / 24 && parts > 4, "{most} rows at once, {parts} parts");
    let check = db.check().unwrap();
    assert!(check.is_clean(), "{check}");
}
