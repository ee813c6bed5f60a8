//! What a transaction is told of rows without seeing them.

use super::*;
use crate::isolation::history::Operation::{Count, Is};

fn journal(row: u32, seen: &[u32]) -> Operation {
    List(journal_of(row), seen.to_vec())
}

#[test]
fn what_is_told_of_a_row_is_what_its_journal_says() {
    let (insert, remove) = (tx(1, 2, &put(3, &[], 7)), tx(3, 4, &delete(3, &[7], 8)));
    let told = |claim: &Operation, seen: &[u32]| {
        let orders = [[claim.clone(), journal(3, seen)], [journal(3, seen), claim.clone()]];
        // While it is deleted, either state may be seen.
        orders.map(|operations| history(&[insert.clone(), remove.clone(), tx(3, 5, &operations)]))
    };
    let legal = [
        (Is(3, None, false), &[7][..]),
        (Is(3, Some(7), true), &[7]),
        (Is(3, Some(9), false), &[7]),
        (Is(3, None, true), &[7, 8]),
        (Is(3, Some(7), false), &[7, 8]),
    ];
    for (claim, seen) in legal {
        told(&claim, seen).iter().for_each(accepts);
    }
    let lies = [
        (Is(3, None, true), &[7][..]),
        (Is(3, Some(7), false), &[7]),
        (Is(3, None, false), &[7, 8]),
        (Is(3, Some(7), true), &[7, 8]),
    ];
    for (claim, seen) in lies {
        told(&claim, seen).iter().for_each(|history| flags(history, Kind::AgainstJournal));
    }
    // Who sees the row, and the journal of another moment.
    flags(&told(&Row(3, None), &[7])[0], Kind::AgainstJournal);
    flags(&told(&Range(1, 9, vec![]), &[7])[0], Kind::AgainstJournal);
}

#[test]
fn what_is_told_of_a_row_is_what_the_transaction_has_seen_and_written() {
    let insert = tx(1, 2, &put(3, &[], 7));
    let with = |operations: &[Operation]| history(&[insert.clone(), tx(3, 4, operations)]);
    accepts(&with(&[Row(3, Some(7)), Is(3, None, false)]));
    flags(&with(&[Row(3, Some(7)), Is(3, None, true)]), Kind::Internal);
    flags(&with(&[Row(3, Some(7)), Is(3, Some(7), false)]), Kind::Internal);
    let deleted = |claim| with(&[&delete(3, &[7], 8)[..], &[claim]].concat());
    accepts(&deleted(Is(3, None, true)));
    flags(&deleted(Is(3, None, false)), Kind::Internal);
    // A value that is told to be there was written by somebody who has committed.
    flags(&with(&[Is(3, Some(5), true)]), Kind::Garbage);
}

#[test]
fn as_many_rows_are_deleted_as_their_journals_say() {
    let inserts = [tx(1, 2, &put(3, &[], 7)), tx(1, 2, &put(4, &[], 8)).process(1)];
    let with =
        |operations: &[&[Operation]]| history(&[&inserts[..], &[tx(3, 4, &operations.concat())]].concat());
    let clear = |told| {
        let deletions = [delete(2, &[], 10), delete(3, &[7], 11), delete(4, &[8], 12)].concat();
        with(&[&[Count(2, 4, told)], &deletions])
    };
    accepts(&clear(2));
    for lie in [0, 1, 3] {
        flags(&clear(lie), Kind::AgainstJournal);
    }
    // Of what the transaction itself has changed the journal says nothing.
    let own = |told, own: &[Operation]| with(&[own, &[Count(2, 4, told), journal(2, &[]), journal(4, &[8])]]);
    let (changed, gone) = (put(3, &[7], 9), delete(3, &[7], 9));
    accepts(&own(2, &changed));
    flags(&own(1, &changed), Kind::AgainstJournal);
    accepts(&own(1, &gone));
    flags(&own(2, &gone), Kind::AgainstJournal);
    flags(&own(0, &changed), Kind::Internal);
    // Who fails before it has read all the journals is not asked.
    accepts(&history(&[tx(3, 4, &[Count(2, 4, 9), journal(2, &[])]).outcome(Outcome::Aborted)]));
}

#[test]
fn a_row_that_is_loaded_after_it_was_journaled_may_be_absent_in_between() {
    let load = [tx(1, 2, &[journal(3, &[]), Append(journal_of(3), 7)]).at(3), tx(4, 5, &[Put(3, 7)]).at(5)];
    let with = |from, row| {
        history(&[&load[..], &[tx(from, from + 1, &[Row(3, row), journal(3, &[7])]).snapshot()]].concat())
    };
    accepts(&with(3, None));
    accepts(&with(6, Some(7)));
    flags(&with(6, None), Kind::RealTime("G-single"));
}
