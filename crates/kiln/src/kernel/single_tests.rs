//! Attempts of one operation: what happens between them.

use super::{Learnt, Setback};
use crate::kernel::settled::tests::{ROW, deletion, row_on_disk};

/// The first attempt found the row's entry in the index, did not know whether it was the row's, and asked the tree all the same, which did not
/// have it yet. The row's way from one to the other changes nothing for who has seen the bucket: so the next attempt believed that there was none.
#[test]
fn c2_a_row_that_settles_while_its_delete_reads_is_deleted() {
    let (db, table) = row_on_disk();
    let (engine, writes) = (db.engine(), deletion(&db, &table));
    let (change, mut learnt) = (writes.change(&writes.writes()[0]), Learnt::default());
    let outcome = engine.attempt_single(&change, None, &mut learnt);
    assert!(matches!(outcome, Err(Setback::Cold)), "it is on disk");
    engine.learn(&change, &mut learnt).unwrap();
    assert!(db.settle().unwrap() > 1);
    let committed = loop {
        match engine.attempt_single(&change, None, &mut learnt) {
            Ok(committed) => break committed,
            Err(_) => engine.learn(&change, &mut learnt).unwrap(),
        }
    };
    assert!(committed.existed);
    assert_eq!(db.get(&table, ROW).unwrap(), None);
}
