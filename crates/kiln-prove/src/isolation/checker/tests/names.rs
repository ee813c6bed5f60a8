//! Snapshots that have a name.

use super::*;
use crate::isolation::history::Operation::{Name, Unname};

#[test]
fn what_has_a_name_is_read_as_of_its_version_also_after_a_crash() {
    let crash = [Crash { horizon: 4, names: vec![(1, 3)], ..Crash::default() }];
    let name = |version| tx(5, 6, &[Name(1, Some(version))]).level(Level::AsOf(version));
    let writes = [
        tx(1, 2, &[&append(1, &[], 7)[..], &put(3, &[], 8)].concat()).at(3),
        name(3),
        tx(7, 8, &[&append(1, &[7], 9)[..], &delete(3, &[8], 10)].concat()).at(4),
    ];
    let survey = tx(9, 10, &[List(1, vec![7, 9]), List(journal_of(3), vec![8, 10]), Range(0, 9, vec![])]);
    let with = |reads: &[Operation]| {
        let reader = tx(11, 12, reads).level(Level::Named(3)).after_crashes(1);
        crashed(&[&writes[..], &[survey.clone().after_crashes(1), reader]].concat(), &crash)
    };
    accepts(&with(&[List(1, vec![7]), Row(3, Some(8))]));
    for lie in [&[List(1, vec![7, 9])][..], &[List(1, vec![])], &[Row(3, None)], &[Range(1, 5, vec![])]] {
        flags(&with(lie), Kind::TornSnapshot);
    }
}

#[test]
fn an_absent_row_of_what_has_a_name_is_of_its_version() {
    let rows = [
        tx(1, 2, &put(3, &[], 7)).at(2),
        tx(3, 4, &delete(3, &[7], 8)).at(3),
        tx(5, 6, &put(3, &[7, 8], 9)).at(4),
    ];
    let with = |version, row| {
        history(&[&rows[..], &[tx(7, 8, &[Row(3, row)]).level(Level::Named(version))]].concat())
    };
    accepts(&with(1, None));
    accepts(&with(3, None));
    flags(&with(2, None), Kind::TornSnapshot);
    flags(&with(4, None), Kind::TornSnapshot);
    flags(&with(3, Some(9)), Kind::TornSnapshot);
}

#[test]
fn a_name_stays_until_it_is_dropped() {
    let found = |names: &[(u32, u64)]| Crash { horizon: 9, names: names.to_vec(), ..Crash::default() };
    let name = |version| tx(1, 2, &[Name(1, Some(version))]).level(Level::AsOf(version));
    let dropped = tx(3, 4, &[Unname(1)]);
    accepts(&crashed(&[name(3)], &[found(&[(1, 3)]), found(&[(1, 3)])]));
    for lie in [&[][..], &[(1, 4)], &[(1, 3), (2, 3)]] {
        flags(&crashed(&[name(3)], &[found(lie)]), Kind::NotRecovered);
        flags(&crashed(&[name(3)], &[found(&[(1, 3)]), found(lie)]), Kind::NotRecovered);
    }
    accepts(&crashed(&[name(3), dropped.clone()], &[found(&[])]));
    flags(&crashed(&[name(3), dropped.clone()], &[found(&[(1, 3)])]), Kind::NotRecovered);
    let unknown = dropped.outcome(Outcome::Unknown);
    for found in [found(&[]), found(&[(1, 3)])] {
        accepts(&crashed(&[name(3), unknown.clone()], &[found]));
    }
}
