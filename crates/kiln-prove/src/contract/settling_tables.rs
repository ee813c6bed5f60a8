//! Rows that settle, while they are read, written and deleted: nobody sees more of it than that they are where they were.

use kiln::device::{Fault, FaultKind, OperationKind, SimulatedDevice};
use kiln::{ErrorKind, Isolation};

use crate::crash::reopen;
use crate::testing::seed;

/// The last settled row of all is deleted, and that settles, too, while somebody walks. The walk had begun with the tree in which the
/// row still was; for the leaves behind there is no tree any more, and it went on with the old one.
#[test]
fn c2_a_walk_does_not_meet_what_was_deleted_when_nothing_settled_is_left() {
    const ROWS: u32 = 300;
    let db = reopen(&SimulatedDevice::new(seed())).unwrap();
    let table = db.table("table").unwrap();
    db.put(&table, "the last", "settled").unwrap().safe().unwrap();
    assert_eq!(db.settle().unwrap(), 1);
    assert!(db.delete(&table, "the last").unwrap().safe().unwrap());
    for number in 0..ROWS {
        db.put(&table, format!("row {number:04}"), "here").unwrap().forget();
    }
    let tx = db.begin().unwrap();
    let mut rows = tx.range::<&str>(&table, ..);
    assert_eq!(rows.next().unwrap().unwrap().0, b"row 0000");
    assert_eq!(db.settle().unwrap(), 1);
    let rest: Vec<_> = rows.map(|row| String::from_utf8(row.unwrap().0).unwrap()).collect();
    let expected: Vec<_> = (1..ROWS).map(|number| format!("row {number:04}")).collect();
    assert_eq!(rest, expected);
}

/// The version of a transaction that only reads is that of the newest row it has read: whoever depends on it waits for that one. A row that
/// has settled counted as if it had always been there, and in a range not at all.
#[test]
fn c4_who_reads_a_settled_row_is_no_older_than_who_wrote_it() {
    let disk = SimulatedDevice::new(seed());
    let mut written = kiln::Version::new(0);
    for _ in 0..2 {
        let db = reopen(&disk).unwrap();
        let table = db.table("table").unwrap();
        if written.number() == 0 {
            let commit = db.put(&table, "row", "settled").unwrap();
            written = commit.version();
            commit.safe().unwrap();
            assert_eq!(db.settle().unwrap(), 1);
        }
        for isolation in [Isolation::Serializable, Isolation::Snapshot] {
            let read = db.transact_with(isolation, |tx| tx.get(&table, "row")).unwrap();
            assert!(read.version() >= written, "{isolation:?}: {} reads {written}", read.version());
            assert_eq!(read.forget().unwrap(), b"settled");
            let read = db.transact_with(isolation, |tx| Ok(tx.range::<&str>(&table, ..).count())).unwrap();
            assert!(read.version() >= written, "a range, {isolation:?}: {} reads {written}", read.version());
            assert_eq!(read.forget(), 1);
        }
    }
}

/// Something that settles fails: nothing is lost, and everything else goes on.
#[test]
fn c8_a_tree_that_cannot_be_written_loses_nothing() {
    let disk = SimulatedDevice::new(seed());
    let db = reopen(&disk).unwrap();
    let table = db.table("table").unwrap();
    db.put(&table, "row", "one").unwrap().safe().unwrap();
    disk.inject(Fault { operation: OperationKind::Write, nth: 1, kind: FaultKind::EIO, sticky: false });
    for _ in 0..2 {
        // Not as if commits were lost, also when it is tried again.
        assert_eq!(db.settle().unwrap_err().kind(), ErrorKind::Io);
        db.put(&table, "row", "two").unwrap().safe().unwrap();
        assert_eq!(db.get(&table, "row").unwrap().unwrap(), b"two");
    }
    drop((table, db));
    let db = reopen(&disk).unwrap();
    let table = db.table("table").unwrap();
    db.put(&table, "another", "three").unwrap().safe().unwrap();
    assert_eq!(db.settle().unwrap(), 2);
    assert_eq!(db.get(&table, "row").unwrap().unwrap(), b"two");
}
