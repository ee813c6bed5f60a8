//! Tests of the read cache: what comes out is what went in, in the memory that it was given.

use super::record::{Address, DiskRecord, Kind, NEVER, OwnedRecord, Shape};
use super::record_cache::{Filling, IsNewest, RecordCache};

/// The bytes of the record at an address, which say where they belong.
fn bytes_of(address: Address, length: usize) -> Vec<u8> {
    address.to_le_bytes().into_iter().cycle().take(length).collect()
}

fn record(address: Address, value_bytes: usize) -> OwnedRecord {
    let (key, value) = (bytes_of(address, 8), bytes_of(address, value_bytes));
    let shape = Shape { kind: Kind::Put, object: 7, key_bytes: key.len(), value_bytes };
    let (version, previous) = (address / 8, address - 8);
    OwnedRecord::from_disk(&DiskRecord {
        shape,
        version,
        previous,
        key: &key,
        value: &value,
        expires_at: NEVER,
    })
}

/// The same where not all that is there is its key's newest.
fn admit_if(cache: &RecordCache, address: Address, value_bytes: usize, is_newest: IsNewest<'_>) {
    cache.admit(address, &record(address, value_bytes).as_disk_record(), is_newest);
}

fn admit(cache: &RecordCache, address: Address, value_bytes: usize) {
    admit_if(cache, address, value_bytes, &|_, _| true);
}

/// Whether it is there, and then as it was put in. What it is shown before it has been looked whether it was there may be anything.
fn is_found(cache: &RecordCache, address: Address) -> bool {
    let seen = cache.look(address, |view| {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        view.key_into(&mut key);
        view.value_into(key.len(), &mut value);
        (key, value, view.shape(), view.version(), view.previous())
    });
    let Some((key, value, shape, version, previous)) = seen else { return false };
    assert_eq!(key, bytes_of(address, 8));
    assert_eq!(value, bytes_of(address, shape.value_bytes));
    assert_eq!((version, previous, shape.object), (address / 8, address - 8, 7));
    true
}

/// How many records are there, each as it was put in.
fn count_found(cache: &RecordCache, addresses: impl IntoIterator<Item = Address>) -> usize {
    addresses.into_iter().filter(|&address| is_found(cache, address)).count()
}

/// Of those at 8, 16, and so on.
fn count_numbers(cache: &RecordCache, numbers: std::ops::RangeInclusive<u64>) -> usize {
    count_found(cache, numbers.map(|number| 8 * number))
}

/// Addresses in no order: a generator that repeats.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

#[test]
fn c9_whatever_is_found_is_what_was_put_in_whatever_has_made_room_for_it() {
    for bytes in [0, 1 << 10, 16 << 10, 100_000, 1 << 20] {
        let cache = RecordCache::new(bytes, bytes).unwrap();
        let (mut state, mut found) = (bytes, 0);
        for _ in 0..if cfg!(miri) { 300 } else { 60_000 } {
            let number = random(&mut state, 40) * random(&mut state, 40);
            let address = 64 + 8 * number;
            match is_found(&cache, address) {
                true => found += 1,
                // The length belongs to the address, and some are too long to be kept.
                false => admit(&cache, address, (number as usize * 37) % 900),
            }
        }
        assert_eq!(cache.hits(), found);
        assert!(bytes < 16 << 10 || cfg!(miri) || found > 1_000, "{found} hits in {bytes} bytes");
        assert!(cache.bytes() <= bytes.max(1 << 10), "{} bytes instead of {bytes}", cache.bytes());
    }
}

#[test]
fn c9_whatever_is_found_is_what_was_put_in_while_others_make_room_and_divide_the_memory() {
    const BYTES: u64 = 16 << 10;
    let cache = RecordCache::new(BYTES, BYTES).unwrap();
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    std::thread::scope(|scope| {
        for seed in 1..=2 {
            let cache = &cache;
            scope.spawn(move || {
                let mut state = seed;
                for _ in 0..rounds {
                    let number = random(&mut state, 20);
                    if !is_found(cache, 64 + 8 * number) {
                        admit(cache, 64 + 8 * number, 100 + number as usize * 37);
                    }
                }
            });
        }
        (1..=4).for_each(|part| cache.divide(BYTES / part, 100));
    });
}

#[test]
fn c9_whatever_is_found_is_what_was_put_in_however_often_the_memory_is_divided_anew() {
    const BYTES: u64 = 1 << 20;
    let cache = RecordCache::new(BYTES, BYTES).unwrap();
    let (mut state, mut found) = (1, 0);
    for turn in 0..if cfg!(miri) { 20 } else { 60_000 } {
        if turn % 2_000 == 0 {
            let (bytes, record_bytes) = (BYTES / (1 + random(&mut state, 8)), 1 << random(&mut state, 20));
            cache.divide(bytes, record_bytes);
            assert!((bytes * 9 / 10..=bytes).contains(&cache.bytes()), "{} of {bytes}", cache.bytes());
        }
        let number = random(&mut state, 40) * random(&mut state, 40);
        match is_found(&cache, 64 + 8 * number) {
            true => found += 1,
            false => admit(&cache, 64 + 8 * number, (number as usize * 37) % 900),
        }
    }
    assert!(cfg!(miri) || found > 20_000, "{found} were found");
}

#[test]
fn what_fits_stays_when_the_memory_is_divided_anew() {
    let cache = RecordCache::new(1 << 20, 1 << 20).unwrap();
    let addresses: Vec<Address> = (1..=3_000).map(|number| 8 * number).collect();
    addresses.iter().for_each(|&address| admit(&cache, address, 100));
    let found = || count_found(&cache, addresses.iter().copied());
    assert_eq!(found(), 3_000);
    // Of each record there are 18 words.
    for bytes in [700 << 10, 1 << 20, 600 << 10] {
        cache.divide(bytes, 136);
        assert!(found() > 2_990, "{} in {bytes} bytes", found());
    }
    cache.divide(300 << 10, 136);
    let fit = found();
    assert!((1_600..2_200).contains(&fit), "{fit} of 300 KiB");
    let newest = count_found(&cache, addresses[2_000..].iter().copied());
    assert!(newest > 800, "{newest} of the newest");
    cache.divide(1 << 20, 136);
    assert_eq!(found(), fit);
}

/// What had come last stayed, asked for or not: rows that are read all the time left at once as the caches were divided, among others that nobody had asked for.
#[test]
fn what_was_asked_for_stays_before_what_came_later_when_the_memory_is_divided_anew() {
    let cache = RecordCache::new(1 << 20, 1 << 20).unwrap();
    (1..=5_000).for_each(|number| admit(&cache, 8 * number, 100));
    let found = |numbers| count_numbers(&cache, numbers);
    assert!(found(1..=1_000) > 990);
    cache.divide(300 << 10, 136);
    assert!(found(1..=1_000) > 980, "{} of those that were asked for", found(1..=1_000));
    assert!((600..1_200).contains(&found(1_001..=5_000)), "{} others", found(1_001..=5_000));
    assert!(found(4_000..=5_000) > 500, "{} of the others' newest", found(4_000..=5_000));
}

/// It took the place of what is live, as it had come later.
#[test]
fn what_is_superseded_stays_only_if_there_is_room_when_the_memory_is_divided_anew() {
    let cache = RecordCache::new(1 << 20, 1 << 20).unwrap();
    (1..=5_000).for_each(|number| admit(&cache, 8 * number, 100));
    let found = |numbers| count_numbers(&cache, numbers);
    let divide = |bytes| {
        cache.begin_division(bytes, 136, u64::MAX);
        while cache.divide_some(&|address, _| address <= 8 * 1_500) {}
    };
    divide(800 << 10);
    let superseded = found(1_501..=5_000);
    assert!(found(1..=1_500) > 1_480 && superseded > 3_000, "{} and {superseded}", found(1..=1_500));
    divide(250 << 10);
    let superseded = found(1_501..=5_000);
    assert!(found(1..=1_500) > 1_480 && superseded < 300, "{} and {superseded}", found(1..=1_500));
}

/// With more memory the probation is longer, and there is less of the protected ring until that is opened: it lost what did not fit, though the probation was empty.
#[test]
fn what_the_protected_ring_has_no_room_for_stays_in_the_probation() {
    let cache = RecordCache::new(4 << 20, 4 << 20).unwrap();
    cache.divide(1 << 20, 136);
    (1..=8_000).for_each(|number| admit(&cache, 8 * number, 100));
    let found = || count_numbers(&cache, 1..=8_000);
    let before = found();
    let taken = cache.begin_division(4 << 20, 136, 1 << 20);
    while cache.divide_some(&|_, _| true) {}
    assert!(taken <= 1 << 20, "{taken}");
    assert!(found() > before * 6 / 10, "{} of {before}", found());
}

/// All that batches read was asked for, and all that scans pass: it took the place of what is asked for again and again.
#[test]
fn who_asks_for_what_was_read_ahead_for_it_does_not_count_and_who_comes_then_does() {
    let cache = RecordCache::new(1 << 20, 1 << 20).unwrap();
    let admit_ahead = |number: u64| {
        cache.admit_ahead(8 * number, &record(8 * number, 100).as_disk_record(), &|_, _| true);
    };
    (1..=5_000).for_each(admit_ahead);
    let found = |numbers| count_numbers(&cache, numbers);
    // Who they were read for, and of some somebody else.
    let there = found(1..=5_000);
    assert!(there > 4_900, "{there}");
    assert!(found(1..=500) > 480);
    for number in 5_001..=12_000 {
        admit_ahead(number);
        assert!(is_found(&cache, 8 * number));
    }
    assert!(found(1..=500) > 450, "{} of those that were asked for twice", found(1..=500));
}

/// A bucket of eight entries has five on average, and one in eight is full: whoever came next took the entry of another one, whose record was lost though there was room for it.
#[test]
fn hardly_a_record_is_lost_for_want_of_an_entry() {
    let cache = RecordCache::new(4 << 20, 4 << 20).unwrap();
    cache.divide(4 << 20, 136);
    // What the protected ring has room for: seven eighths, without the directory.
    const ROOM: u64 = 22_000;
    (1..=ROOM).for_each(|number| admit(&cache, 8 * number, 100));
    let lost = (1..=ROOM).filter(|number| !is_found(&cache, 8 * number)).count();
    assert!(lost <= 20, "{lost} were lost");
}

/// The oldest went first, superseded or not: of rows that are updated all over the place half were read from disk, though there was memory for all of them.
#[test]
fn what_is_superseded_makes_room_for_what_is_not() {
    const ROWS: u64 = 4_500;
    let cache = RecordCache::new(1 << 20, 1 << 20).unwrap();
    cache.divide(1 << 20, 136);
    let (mut newest, mut state) = (vec![0; ROWS as usize], 1);
    for number in 1..=if cfg!(miri) { 10_000 } else { 100_000 } {
        let (row, address) = (random(&mut state, ROWS) as usize, 8 * number);
        newest[row] = address;
        admit_if(&cache, address, 100, &|address, _| newest.contains(&address));
    }
    let found = count_found(&cache, newest.iter().copied());
    assert!(found > 4_400, "{found} of {ROWS} rows");
    // Where nothing is superseded, nobody goes on for others: what comes once leaves.
    let read: Vec<Address> = (1..=20_000).map(|number| (1 << 30) + 8 * number).collect();
    read.iter().for_each(|&address| admit(&cache, address, 100));
    let found = count_found(&cache, newest.iter().copied());
    assert!(found > 4_000, "{found} are left");
    assert!(count_found(&cache, read[..19_000].iter().copied()) < 1_000);
}

/// Nobody had asked for it, and what was read went by in the probation.
#[test]
fn what_was_taken_over_makes_room_for_what_is_read() {
    let cache = RecordCache::new(256 << 10, 256 << 10).unwrap();
    for number in 1..=2_000 {
        cache.take_over(8 * number, &record(8 * number, 100).as_disk_record(), &|_, _| true);
    }
    let read: Vec<Address> = (1..=900).map(|number| (1 << 20) + 8 * number).collect();
    read.iter().for_each(|&address| admit(&cache, address, 100));
    let found = count_found(&cache, read.iter().copied());
    assert!(found > 850, "{found} of {} are there", read.len());
    // But not for a scan without end.
    (0..20_000).for_each(|number| admit(&cache, (1 << 21) + 8 * number, 100));
    let found = count_found(&cache, read.iter().copied());
    assert!(found > 700, "{found} of {} are left", read.len());
}

/// After the memory was divided anew nobody knew any more that it had come unasked.
#[test]
fn what_came_unasked_takes_nobodys_place_and_makes_room_for_what_is_read() {
    for is_divided in [false, true] {
        let cache = RecordCache::new(256 << 10, 256 << 10).unwrap();
        let asked: Vec<Address> = (1..=200).map(|number| (1 << 20) + 8 * number).collect();
        asked.iter().for_each(|&address| admit(&cache, address, 100));
        let fill =
            |number: u64| cache.fill(8 * number, &record(8 * number, 100).as_disk_record(), &|_, _| true);
        let came_in = (1..=3_000).filter(|&number| fill(number) == Filling::CameIn).count();
        assert!((1_000..1_500).contains(&came_in), "{came_in}");
        assert_eq!(fill(1), Filling::NoUse);
        assert!((3_001..4_000).all(|number| fill(number) != Filling::CameIn));
        assert!(asked.iter().all(|&address| is_found(&cache, address)));
        if is_divided {
            cache.divide(200 << 10, 136);
        }
        let read: Vec<Address> = (1..=600).map(|number| (1 << 21) + 8 * number).collect();
        read.iter().for_each(|&address| admit(&cache, address, 100));
        let found = count_found(&cache, read.iter().copied());
        assert!(found > 550, "{found} of {} are there", read.len());
    }
}

/// Where all that was read had been of a map that was dropped, nothing came in any more.
#[test]
fn what_comes_unasked_takes_the_place_of_what_is_superseded() {
    let cache = RecordCache::new(256 << 10, 256 << 10).unwrap();
    (1..=3_000).for_each(|number| admit(&cache, 8 * number, 100));
    let fill = |number: u64, is_newest: IsNewest<'_>| {
        cache.fill(8 * number, &record(8 * number, 100).as_disk_record(), is_newest) == Filling::CameIn
    };
    assert!(!(4_000..5_000).any(|number| fill(number, &|_, _| true)));
    let came_in = (4_000..5_000).filter(|&number| fill(number, &|address, _| address >= 8 * 4_000)).count();
    assert!(came_in > 950, "{came_in}");
    assert!(!(5_000..6_000).any(|number| fill(number, &|_, _| true)));
    // As long as some of the memory is not to be used there is nothing more to be had of what is, though all of it were given up.
    cache.divide(64 << 10, 136);
    cache.begin_division(256 << 10, 136, 128 << 10);
    while cache.divide_some(&|_, _| true) {}
    let came_in = (6_000..9_000).filter(|&number| fill(number, &|_, _| false)).count();
    assert!((100..800).contains(&came_in), "{came_in}");
}

#[test]
fn what_is_not_opened_is_not_used_until_it_is() {
    let cache = RecordCache::new(1 << 20, 1 << 20).unwrap();
    cache.divide(128 << 10, 136);
    (1..=600).for_each(|number| admit(&cache, 8 * number, 100));
    let kept = count_numbers(&cache, 1..=600);
    let taken = cache.begin_division(1 << 20, 136, 300 << 10);
    while cache.divide_some(&|_, _| true) {}
    assert!(taken <= 300 << 10 && cache.bytes() == taken, "{taken} and {}", cache.bytes());
    assert_eq!(count_numbers(&cache, 1..=600), kept);
    let mut state = 1;
    for bytes in [0, 400 << 10, 500 << 10, u64::MAX] {
        cache.open(bytes);
        let most = bytes.clamp(300 << 10, 1 << 20);
        assert!((most * 9 / 10..=most).contains(&cache.bytes()), "{} of {most}", cache.bytes());
        // Many are met again while there is a ghost of them, and go to the protected ring if they may.
        let mut found = 0;
        for _ in 0..if cfg!(miri) { 100 } else { 30_000 } {
            let address = 8 * (1 + random(&mut state, 6_000));
            match is_found(&cache, address) {
                true => found += 1,
                false => admit(&cache, address, 100),
            }
        }
        assert!(cfg!(miri) || found > 3_000, "{found} of {bytes} bytes");
    }
}

#[test]
fn what_is_read_again_and_again_stays_through_a_scan() {
    let cache = RecordCache::new(256 << 10, 256 << 10).unwrap();
    let hot: Vec<Address> = (1..=200).map(|number| 8 * number).collect();
    for _ in 0..2 {
        for &address in &hot {
            if !is_found(&cache, address) {
                admit(&cache, address, 100);
            }
        }
    }
    let mut found = 0;
    for round in 0..100 {
        // Four times the probation is scanned between two looks.
        for number in 0..1_000 {
            admit(&cache, (1 << 20) + (round * 1_000 + number) * 8, 100);
        }
        for &address in &hot {
            match is_found(&cache, address) {
                true => found += 1,
                false => admit(&cache, address, 100),
            }
        }
    }
    assert!(found > 100 * 200 * 95 / 100, "{found} of 20000 looks found it");
}

#[test]
fn what_is_too_long_for_the_probation_stays_when_it_is_read_again() {
    let cache = RecordCache::new(64 << 10, 64 << 10).unwrap();
    let long = 4_000;
    // As long as there is room anything may stay.
    (0..1_000).for_each(|number| admit(&cache, (1 << 20) + number * 8, 100));
    admit(&cache, 8, long);
    assert!(!is_found(&cache, 8));
    admit(&cache, 8, long);
    assert!(is_found(&cache, 8));
    // And what is longer than a quarter of everything never does.
    (0..3).for_each(|_| admit(&cache, 16, 60_000));
    assert!(!is_found(&cache, 16));
}

#[test]
fn a_record_of_the_longest_kind_goes_through_every_place_of_a_ring() {
    let cache = RecordCache::new(16 << 10, 16 << 10).unwrap();
    for number in 1..2_000_u64 {
        let address = number * 8;
        (0..2).for_each(|_| admit(&cache, address, 3_000 - (number as usize % 5) * 8));
        assert!(is_found(&cache, address), "record {number} was not kept");
    }
}
