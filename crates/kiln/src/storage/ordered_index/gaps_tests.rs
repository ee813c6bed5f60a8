use super::*;

const ALWAYS: u64 = u64::MAX;

fn granted(version: u64) -> Granted {
    Granted { version, oldest_snapshot: ALWAYS, forward: true }
}

fn grant(index: &OrderedIndex, keys: Range<&str>, version: u64) {
    grant_as(index, keys, granted(version));
}

fn grant_as(index: &OrderedIndex, keys: Range<&str>, granted: Granted) -> Vec<Joined> {
    index.claim_gap(keys.start.as_bytes()..keys.end.as_bytes(), 1).unwrap().grant(granted)
}

/// The gap with a key as of a version: its first key, its end, and the version.
fn gap(index: &OrderedIndex, key: &str, version_max: u64) -> Option<(String, String, u64)> {
    let bound = |forward| {
        let mut far = Vec::new();
        let read = index.find_gap(key.as_bytes(), version_max, forward, &mut far)?;
        assert!(index.validate(&read.read));
        Some((String::from_utf8(far).unwrap(), read.version))
    };
    let ((first, version), (end, _)) = (bound(false)?, bound(true)?);
    Some((first, end, version))
}

fn read(index: &OrderedIndex, key: &str) -> LeafRead {
    index.find_gap(key.as_bytes(), ALWAYS, true, &mut Vec::new()).unwrap().read
}

fn put(index: &OrderedIndex, key: &str) -> Insertion {
    index.break_gap(&epoch::pin(), key.as_bytes(), |_| false)
}

fn is(first: &str, end: &str, version: u64) -> Option<(String, String, u64)> {
    Some((first.to_owned(), end.to_owned(), version))
}

#[test]
fn what_was_granted_is_a_gap_and_is_joined_with_those_that_it_touches() {
    let index = OrderedIndex::new();
    assert_eq!(gap(&index, "c", ALWAYS), None);
    grant(&index, "b".."d", 3);
    assert_eq!(
        ["a", "b", "c", "d"].map(|key| gap(&index, key, ALWAYS).is_some()),
        [false, true, true, false]
    );
    grant(&index, "f".."h", 5);
    assert_eq!((gap(&index, "c", ALWAYS), gap(&index, "g", ALWAYS)), (is("b", "d", 3), is("f", "h", 5)));
    grant(&index, "d".."f", 4);
    assert_eq!((index.gaps(), gap(&index, "c", ALWAYS)), (1, is("b", "h", 5)), "the newest of all");
    grant(&index, "c".."e", 6);
    assert_eq!(gap(&index, "g", ALWAYS), is("b", "h", 6), "one within another");
}

#[test]
fn c2_a_snapshot_from_before_a_gap_or_a_part_of_it_does_not_use_that() {
    let index = OrderedIndex::new();
    let grow = |keys, version, oldest_snapshot| {
        grant_as(&index, keys, Granted { version, oldest_snapshot, forward: true });
    };
    grow("b".."d", 3, ALWAYS);
    assert_eq!([2, 3].map(|version| gap(&index, "c", version).is_some()), [false, true]);
    grow("d".."f", 5, ALWAYS);
    assert_eq!((gap(&index, "c", 4), gap(&index, "d", 4)), (is("b", "d", 3), None));
    // One that is open uses what was there when it was opened, though the gap grows again and again.
    grow("f".."h", 7, 4);
    grow("h".."j", 9, 4);
    assert_eq!((gap(&index, "c", 4), gap(&index, "d", 8)), (is("b", "d", 3), None));
    assert_eq!(gap(&index, "c", 9), is("b", "j", 9));
    grow("j".."l", 9, 9);
    assert_eq!(gap(&index, "i", 9), is("b", "l", 9));
    grow("l".."n", 12, 11);
    assert_eq!((gap(&index, "i", 11), gap(&index, "m", 11)), (is("b", "l", 9), None));
}

#[test]
fn c2_a_row_that_is_put_into_a_gap_breaks_it_there_for_all_that_have_used_it() {
    let index = OrderedIndex::new();
    assert_eq!(put(&index, "c"), Insertion::Present);
    grant(&index, "b".."h", 3);
    grant(&index, "h".."k", 5);
    let before = read(&index, "c");
    assert!(index.validate(&before));
    assert_eq!([put(&index, "a"), put(&index, "k")], [Insertion::Present; 2], "beside it");
    assert!(index.validate(&before));
    let Insertion::Split { before: own, after } = put(&index, "d") else { panic!("two parts are left") };
    assert_eq!((own, after), (before, [read(&index, "c"), read(&index, "e")]));
    assert!(!index.validate(&before));
    assert_eq!((gap(&index, "b", ALWAYS), gap(&index, "d", ALWAYS)), (is("b", "d", 5), None));
    assert_eq!(gap(&index, "e", ALWAYS), is("d\0", "k", 5));
    assert_eq!((gap(&index, "c", 4), gap(&index, "e", 4)), (is("b", "d", 3), is("d\0", "h", 3)));
    // At either end one part is left, and who has used the other part does not notice.
    assert_eq!(put(&index, "b"), Insertion::Inserted { before: after[0], after: read(&index, "c") });
    assert!(index.validate(&after[1]) && !index.validate(&after[0]));
    assert_eq!((gap(&index, "b", ALWAYS), gap(&index, "c", ALWAYS)), (None, is("b\0", "d", 5)));
}

#[test]
fn c2_a_gap_of_one_key_goes_and_its_place_is_not_taken_for_that_of_another_one() {
    let index = OrderedIndex::new();
    grant(&index, "b".."b\0", 3);
    let before = read(&index, "b");
    put(&index, "b");
    assert_eq!((index.gaps(), index.validate(&before)), (0, false));
    grant(&index, "x".."y", 4);
    assert!(!index.validate(&before));
}

/// A transaction that makes a gap longer is not in conflict with itself.
#[test]
fn c2_of_gaps_that_are_joined_the_one_stays_from_which_the_walk_has_come_and_it_is_told_which_go() {
    for forward in [true, false] {
        let index = OrderedIndex::new();
        ["p".."q", "x".."y"].into_iter().for_each(|keys| grant(&index, keys, 4));
        let used = ["p", "x"].map(|key| read(&index, key));
        let joined = grant_as(&index, "q".."x", Granted { forward, ..granted(4) });
        let (stays, goes) = if forward { (used[0], used[1]) } else { (used[1], used[0]) };
        assert_eq!((index.gaps(), joined), (1, vec![Joined { before: goes, after: stays }]));
        assert!(index.validate(&stays) && !index.validate(&goes));
    }
}

#[test]
fn c2_nothing_is_granted_where_a_row_has_come_or_that_was_given_up() {
    let index = OrderedIndex::new();
    let keys = || b"b".as_slice()..b"d".as_slice();
    let claim = index.claim_gap(keys(), 1).unwrap();
    assert!(index.claim_gap(keys(), 1).is_none(), "there is one");
    put(&index, "d");
    assert_eq!(gap(&index, "c", ALWAYS), None, "nobody has looked yet");
    claim.grant(granted(3));
    assert_eq!(index.gaps(), 1);
    put(&index, "c");
    let claim = index.claim_gap(keys(), 1).unwrap();
    put(&index, "c\0");
    let other = index.claim_gap(keys(), 1).unwrap();
    claim.grant(granted(3));
    assert_eq!(gap(&index, "c", ALWAYS), None);
    drop(other);
    assert!(index.claim_gap(keys(), 1).is_some());
    assert_eq!(gap(&index, "c", ALWAYS), None);
    let long = [7; KEY_BYTES_MAX + 1];
    assert!(index.claim_gap(b"b"..&long, 1).is_none() && index.claim_gap(b"d"..b"b", 1).is_none());
}

/// Else each of the rows that come back would take it apart once more.
#[test]
fn c2_a_gap_to_which_rows_come_back_one_after_the_other_is_given_up_and_who_puts_them_has_not_seen_the_rest()
{
    let index = OrderedIndex::new();
    grant(&index, "a".."z", 3);
    let mut broken = 0;
    for row in 0..100_u32 {
        let key = format!("k{row:03}");
        broken += u32::from(put(&index, &key) != Insertion::Present);
    }
    assert_eq!((broken, index.gaps()), (BREAKS_MAX - 1, u64::from(BREAKS_MAX) - 1));
    let all = [1, 2].map(|_| read(&index, "b"));
    assert!(all.map(|read| index.validate(&read)) == [true; 2], "a part that no row came to stays");
}

/// Whoever put rows into a stretch that he had passed himself was told each time that somebody else had, for ever, if they were many, or there was no room for one more gap, or a key was long.
#[test]
fn c2_who_puts_a_row_into_a_gap_that_he_has_used_goes_on_with_all_of_it_whatever_becomes_of_it() {
    let long = [b'k'; KEY_BYTES_MAX];
    let many = (0..100).map(|row| format!("k{row:03}").into_bytes());
    let in_full_list = (0..GAPS_MAX as u32).map(|number| format!("b{number:05}"));
    for (others, keys) in [
        (vec![], many.collect()),
        (vec![], vec![long.to_vec()]),
        (in_full_list.collect(), vec![b"k".to_vec()]),
    ] {
        let index = OrderedIndex::new();
        for other in others.iter().skip(1) {
            grant(&index, other..&format!("{other}x"), 3);
        }
        grant(&index, "c".."z", 3);
        let mut own = vec![read(&index, "d")];
        let others_read = read(&index, "d");
        for key in &keys {
            let has_used = |gap| own.contains(&gap);
            let after = match index.break_gap(&epoch::pin(), key, has_used) {
                // It is watched, all of it.
                Insertion::Present => continue,
                Insertion::Inserted { before, after } => (before, vec![after]),
                Insertion::Split { before, after } => (before, after.to_vec()),
            };
            own.retain(|read| *read != after.0);
            own.extend(after.1);
        }
        let holds = |own: &[LeafRead]| own.iter().all(|read| index.validate(read));
        assert!(holds(&own) && !index.validate(&others_read));
        // Wherever somebody else puts one, he finds it.
        put(&index, ["d", "kz", "y"][others.len() % 3]);
        assert!(!holds(&own));
        // Once nobody has used it any more it is nothing special.
        grant(&index, "c".."z", 9);
        assert_eq!(gap(&index, "d", ALWAYS), is("c", "z", 9));
    }
}

#[test]
fn c2_where_there_are_too_many_gaps_those_stay_that_have_cost_most() {
    let index = OrderedIndex::new();
    let name = |number: usize| format!("{number:05}");
    let claim = |number: usize, keys: u64| {
        let (first, end) = (name(2 * number), name(2 * number + 1));
        index.claim_gap(first.as_bytes()..end.as_bytes(), keys)
    };
    let grant = |number: usize, keys: u64| claim(number, keys).unwrap().grant(granted(3));
    (0..GAPS_MAX).for_each(|number| _ = grant(number, 10 + number as u64));
    let least = read(&index, &name(0));
    // It need not be looked at.
    assert!(claim(GAPS_MAX, 10).is_none() && claim(0, 1).is_some());
    assert!(index.validate(&least) && gap(&index, &name(2 * GAPS_MAX), ALWAYS).is_none());
    grant(GAPS_MAX, 11);
    assert!(!index.validate(&least) && gap(&index, &name(0), ALWAYS).is_none());
    assert!(gap(&index, &name(2 * GAPS_MAX), ALWAYS).is_some());
    // A part for which there is no place goes, and who puts the row there has to look again.
    let before = read(&index, &name(2));
    assert_eq!(index.gaps(), GAPS_MAX as u64);
    assert_eq!(put(&index, &format!("{}x", name(2))), Insertion::Present);
    assert!(!index.validate(&before) && gap(&index, &format!("{}y", name(2)), ALWAYS).is_none());
    assert!(gap(&index, &name(2), ALWAYS).is_some());
    // Several become one, and all places are free again.
    grant_as(&index, "000".."999", granted(3));
    assert_eq!((index.gaps(), gap(&index, "500", ALWAYS)), (1, is("000", "999", 3)));
}

/// Each that was given up left two lists behind, for as long as the table was open.
#[test]
fn claims_that_are_given_up_again_and_again_leave_nothing_behind() {
    let index = OrderedIndex::new();
    for _ in 0..1_000 {
        drop(index.claim_gap(b"b"..b"d", 1).unwrap());
        assert!(index.gaps.retired.lock().len() <= RETIRED_MAX);
    }
}

#[test]
fn c2_a_gap_does_not_end_at_a_long_key_that_comes_into_it_either() {
    let index = OrderedIndex::new();
    grant(&index, "a".."z", 3);
    let before = read(&index, "c");
    assert_eq!(index.break_gap(&epoch::pin(), &[b'k'; KEY_BYTES_MAX], |_| false), Insertion::Present);
    assert_eq!((index.gaps(), index.validate(&before)), (0, false));
}

/// Any claims and rows, against a model of which keys are known to have none.
#[test]
fn c2_gaps_are_what_was_granted_without_the_rows_that_have_come_since() {
    const KEYS: u8 = 40;
    let (index, mut state) = (OrderedIndex::new(), 1_u64);
    let mut random = |below: u8| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 33) as u8 % below
    };
    // Of each key the version from which on it is known to have no row.
    let mut model = [None::<u64>; KEYS as usize];
    let mut used: Vec<(LeafRead, Range<u8>, bool)> = Vec::new();
    let (mut uses, mut own_puts) = (0, 0);
    for now in 9..20_000_u64 {
        let (key, version) = (random(KEYS), now - u64::from(random(9)));
        if random(3) == 0 {
            // By somebody who has used the gap, if there is one.
            let own = used.iter().position(|(read, keys, _)| keys.contains(&key) && index.validate(read));
            let own = own.filter(|_| random(2) == 0).map(|own| used.swap_remove(own));
            let has_used = |gap| own.as_ref().is_some_and(|own| own.0 == gap);
            let broken = index.break_gap(&epoch::pin(), &[key], has_used);
            model[key as usize] = None;
            used.iter_mut().filter(|(_, keys, _)| keys.contains(&key)).for_each(|used| used.2 = true);
            if let Some((read, keys, _)) = own {
                own_puts += 1;
                match broken {
                    Insertion::Inserted { before, after } if before == read => {
                        // All of it is watched, or the key was the first one or the last, and that is not in it any more.
                        let (first, last) = (keys.start == key, keys.end == key + 1);
                        used.push((after, keys.start + u8::from(first)..keys.end - u8::from(last), false));
                    }
                    Insertion::Split { before, after: [left, right] } if before == read => {
                        used.extend([(left, keys.start..key, false), (right, key + 1..keys.end, false)]);
                    }
                    // It was watched.
                    Insertion::Present => used.push((read, keys, false)),
                    other => panic!("{other:?} of {read:?}"),
                }
            }
        } else {
            let end = (key + 1 + random(6)).min(KEYS);
            let claim = index.claim_gap(&[key]..&[end], 1).unwrap();
            claim.grant(Granted {
                version,
                oldest_snapshot: now - u64::from(random(9)),
                forward: random(2) == 0,
            });
            model[key as usize..end as usize]
                .iter_mut()
                .for_each(|known| *known = Some(known.unwrap_or(version).min(version)));
        }
        for key in 0..KEYS {
            for version_max in [now, now - u64::from(random(9))] {
                let (mut first, mut end) = (Vec::new(), Vec::new());
                let Some(found) = index.find_gap(&[key], version_max, false, &mut first) else { continue };
                index.find_gap(&[key], version_max, true, &mut end).unwrap();
                // An end behind a row is that with a zero.
                let keys = first[0] + u8::from(first.len() > 1)..end[0] + u8::from(end.len() > 1);
                assert!(keys.contains(&key) && found.version <= version_max);
                let is_known = |key: u8| model[key as usize].is_some_and(|known| known <= version_max);
                assert!(keys.clone().all(is_known), "{keys:?} as of {version_max}: {model:?}");
                if random(50) == 0 {
                    used.push((found.read, keys, false));
                }
                uses += 1;
            }
        }
        used.retain(|(read, _, is_broken)| {
            let holds = index.validate(read);
            assert!(!(*is_broken && holds), "a row was missed");
            holds
        });
        used.truncate(200);
    }
    assert!(uses > 100_000 && own_puts > 1_000, "{uses}, {own_puts}");
}
