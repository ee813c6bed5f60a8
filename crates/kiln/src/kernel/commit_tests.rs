//! Attempts of one commit, and what happens between them.

use super::*;
use crate::kernel::settled::tests::{ROW, deletion, row_on_disk};

/// As [the same](crate::kernel::single) of a single delete.
#[test]
fn c2_a_row_that_settles_while_a_transaction_reads_what_it_deletes_is_deleted() {
    let (db, table) = row_on_disk();
    let (engine, writes) = (db.engine(), deletion(&db, &table));
    let (mut reads, mut scratch) = (ReadSet::default(), CommitScratch::default());
    let outcome = engine.attempt(&writes, &mut reads, &mut scratch, None);
    assert!(matches!(outcome, Err(Setback::Cold)), "it is on disk");
    engine.learn_all(&writes, &mut scratch).unwrap();
    assert!(db.settle().unwrap() > 1);
    while let Err(setback) = engine.attempt(&writes, &mut reads, &mut scratch, None) {
        assert!(matches!(setback, Setback::Cold));
        engine.learn_all(&writes, &mut scratch).unwrap();
    }
    assert_eq!(db.get(&table, ROW).unwrap(), None);
}
