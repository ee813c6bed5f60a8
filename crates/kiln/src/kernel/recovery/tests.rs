//! Recovery by several threads comes to the same as by one: the same state, the same report, the same error.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::device::{Device, Fault, FaultKind, OpenMode, OperationKind, SimulatedDevice};
use crate::kernel::losses::LOSSES_OBJECT;
use crate::storage::epoch;
use crate::storage::extent::Item;
use crate::storage::ordered_index::LeafBatch;
use crate::storage::record::Kind;
use crate::storage::seal::{SEAL_BYTES, Seal};
use crate::storage::segments::{is_segment, name_of};
use crate::storage::superblock::SuperblockFile;
use crate::{Kiln, Object, Options};

/// Every log is long, every piece short, and a read brings one block or one extent.
fn divided(workers: usize) -> Division {
    Division {
        workers: Some(workers),
        threads_from_bytes: 0,
        piece_bytes: 200,
        read_bytes: BLOCK,
        arrived_bytes: 300,
        ..Division::default()
    }
}

thread_local! {
    /// How often a record that waits for its seal was looked at.
    pub(super) static LOOKS: Cell<u64> = const { Cell::new(0) };
}

const BLOCK: usize = crate::device::BLOCK_BYTES;
const SEGMENT_BYTES: u64 = 64 << 10;
const SEEDS: u64 = if cfg!(miri) { 2 } else { 60 };

fn open(disk: &SimulatedDevice, division: Division) -> Result<Kiln> {
    let mut options = Options::new().background(false).segment_bytes(SEGMENT_BYTES).memory(2 * SEGMENT_BYTES);
    options.recovery = division;
    options.open_on(Arc::new(disk.clone()))
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.0 >> 33) % end
    }
}

fn change(db: &Kiln, random: &mut Random) -> Result<()> {
    let (map, table) = (db.map("map")?, db.table("table")?);
    let key = format!("key {}", random.below(40));
    let value = vec![b'v'; random.below(60) as usize];
    match random.below(7) {
        0 => drop(db.delete(&map, &key)?.forget()),
        1 => drop(db.delete(&table, &key)?.forget()),
        2 => db.put(&db.table(&format!("table {}", random.below(5)))?, &key, &value)?.forget(),
        3 => {
            let session = db.session(["one", "two"][random.below(2) as usize])?;
            session.transact(|tx| tx.put(&map, &key, &value))?.forget();
            return Ok(());
        }
        4 => db.put(&map, &key, &value)?.forget(),
        _ => db.put(&table, &key, &value)?.forget(),
    };
    Ok(())
}

/// A few changes, one hardening.
fn work(db: &Kiln, random: &mut Random) -> Result<()> {
    (0..=random.below(6)).try_for_each(|_| change(db, random))?;
    db.persist()
}

/// A disk on which a database has lived through orderly closes and crashes.
fn lived(seed: u64) -> SimulatedDevice {
    let mut random = Random(seed);
    let mut disk = SimulatedDevice::new(seed);
    for _ in 0..1 + random.below(4) {
        let db = open(&disk, Division::default()).unwrap();
        for _ in 0..random.below(40) {
            work(&db, &mut random).unwrap();
        }
        if random.below(3) == 0 {
            db.close().unwrap();
        } else {
            disk.crash_after(disk.steps() + random.below(3));
            // What the crash comes upon fails.
            while work(&db, &mut random).is_ok() {}
        }
        drop(db);
        disk = disk.after_crash_seeded(seed);
    }
    disk
}

/// Has some seals say less than they did, as if their versions had been closed only after the records were written: these
/// wait for the next seal, or are lost.
fn with_pending(disk: &SimulatedDevice, random: &mut Random) {
    let mut last: Option<(u64, u32)> = None;
    for number in 0..8 {
        let name = name_of(number);
        if !disk.list().unwrap().contains(&name) {
            continue;
        }
        let (mut bytes, mut at) = (disk.bytes(&name), 0);
        while let Some(rest) = bytes.get(at..)
            && let Ok((mut seal, _)) = Seal::decode(rest)
        {
            if let Some((version, checksum)) = last {
                seal.previous_checksum = checksum;
                if random.below(3) > 0 {
                    seal.version = version;
                }
            }
            let (encoded, checksum) = seal.encode();
            bytes[at..at + encoded.len()].copy_from_slice(&encoded);
            last = Some((seal.version, checksum));
            at += seal.length as usize;
        }
        disk.set_bytes(&name, &bytes);
    }
}

/// What the index must hold: each record applied by itself, one after the other.
fn one_by_one(disk: &SimulatedDevice) -> (Vec<Address>, BTreeMap<u32, i64>) {
    let superblock = SuperblockFile::open(disk, OpenMode::Read).unwrap().current().clone();
    let segments = Segments::open(Arc::new(disk.clone()), SEGMENT_BYTES, OpenMode::Read).unwrap();
    let mut scanner = Scanner::new(&segments, &superblock);
    let (mut entries, mut counts) = (BTreeSet::new(), BTreeMap::new());
    let (mut pending, mut horizon) = (Vec::new(), 0);
    let mut apply = |address, record: &OwnedRecord| {
        let count = counts.entry(record.shape.object).or_default();
        let had_previous = entries.remove(&record.previous);
        if record.shape.kind == Kind::Put {
            entries.insert(address);
        }
        *count += i64::from(record.shape.kind == Kind::Put) - i64::from(had_previous);
    };
    while let Some(extent) = scanner.next().unwrap() {
        if extent.seal.first_version != 0 {
            pending.clear();
        }
        horizon = horizon.max(extent.seal.version);
        let records = extent.items().filter_map(|item| match item.unwrap() {
            Item::Record(address, record) => Some((address, OwnedRecord::from_disk(&record))),
            Item::Padding(..) => None,
        });
        let (ready, wait) =
            pending.into_iter().chain(records).partition(|(_, record)| record.version <= horizon);
        let ready: Vec<(Address, OwnedRecord)> = ready;
        ready.iter().for_each(|(address, record)| apply(*address, record));
        pending = wait;
    }
    (entries.into_iter().collect(), counts)
}

/// The index's entries, sorted; after recovery some more may be there, of what it recorded itself.
fn entries_of(db: &Kiln) -> Vec<Address> {
    let end = db.engine().opened_end;
    let addresses = db.engine().index.buckets().flat_map(|(_, addresses)| addresses);
    let mut entries: Vec<_> = addresses.filter(|&address| address < end).collect();
    entries.sort_unstable();
    entries
}

/// Everything that recovery makes, in an order of its own.
fn state(db: &Kiln) -> String {
    let engine = db.engine();
    let mut report = db.recovery_report().clone();
    report.duration = Duration::ZERO;
    let entries = entries_of(db);
    let pin = epoch::pin();
    let objects: Vec<_> = engine
        .objects
        .iter()
        .map(|object| {
            let mut keys = Vec::new();
            if let Some(ordered) = object.ordered() {
                let [mut batch, mut next] = std::array::from_fn(|_| LeafBatch::new());
                ordered.read_forward(&pin, std::ops::Bound::Unbounded, &mut batch);
                loop {
                    keys.extend(batch.keys().map(<[u8]>::to_vec));
                    if !ordered.read_next(&pin, &batch, &mut next) {
                        break;
                    }
                    std::mem::swap(&mut batch, &mut next);
                }
            }
            (object.id, object.name().to_owned(), object.kind(), object.key_count.sum(), keys)
        })
        .collect();
    let liveness = engine.liveness.lock();
    let segments: Vec<_> =
        engine.segments.numbers().iter().map(|n| liveness.of_segment(n * SEGMENT_BYTES)).collect();
    let log =
        (engine.log.begin(), engine.log.head(), engine.log.hardened(), engine.log.tail(), engine.clock.now());
    format!("{report:?} {entries:?} {objects:?} {segments:?} {log:?}")
}

#[test]
fn c4_c7_c8_several_threads_recover_what_one_does_and_what_the_records_say() {
    let (mut lost, mut waited) = (0, 0);
    for seed in 0..SEEDS {
        let disk = lived(seed);
        if seed % 2 == 1 {
            with_pending(&disk, &mut Random(seed));
        }
        let alone = open(&disk.after_crash_seeded(seed), Division::default()).unwrap();
        let (entries, counts) = one_by_one(&disk.after_crash_seeded(seed));
        assert_eq!(entries_of(&alone), entries, "seed {seed}");
        let known = alone.engine().objects.iter().map(|object| (object.id, object.key_count.sum() as i64));
        // Recovery records losses itself.
        let counts_here = |(object, count): &(u32, i64)| *count != 0 && *object != LOSSES_OBJECT;
        let counted: BTreeMap<_, _> = known.filter(counts_here).collect();
        assert_eq!(counted, counts.into_iter().filter(counts_here).collect(), "seed {seed}");
        let expected = state(&alone);
        lost += alone.recovery_report().lost_records;
        waited += seed % 2;
        for workers in [1, 2, 3, 7] {
            let db = open(&disk.after_crash_seeded(seed), divided(workers)).unwrap();
            assert_eq!(state(&db), expected, "seed {seed}, {workers} workers");
            assert!(seed % 2 == 1 || db.check().unwrap().is_clean(), "seed {seed}, {workers} workers");
        }
        // One begins alone, since nobody knows yet how long the log is.
        let division = Division { threads_from_bytes: 3 * BLOCK as u64, ..divided(2) };
        let db = open(&disk.after_crash_seeded(seed), division).unwrap();
        assert_eq!(state(&db), expected, "seed {seed}, at first alone");
    }
    assert!(waited == 0 || lost > 0, "no record was lost");
}

/// Keys that are deleted keep their tombstones while a snapshot has a name, and lose them when none has.
#[test]
fn c4_several_threads_recover_the_same_for_snapshots_that_have_names() {
    for seed in 0..SEEDS / 4 {
        let (disk, mut random) = (SimulatedDevice::new(seed), Random(seed));
        let db = open(&disk, Division::default()).unwrap();
        (0..20).for_each(|_| work(&db, &mut random).unwrap());
        db.create_snapshot("held").unwrap();
        let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
        let rows_of = |snapshot: &crate::Snapshot<'_>| {
            let rows: BTreeSet<_> = snapshot.range::<&[u8]>(&table, ..).map(Result::unwrap).collect();
            let pairs: BTreeSet<_> = snapshot.iter(&map).map(Result::unwrap).collect();
            (rows, pairs)
        };
        let expected = rows_of(&db.open_snapshot("held").unwrap());
        (0..30).for_each(|_| work(&db, &mut random).unwrap());
        if seed % 2 == 0 {
            db.checkpoint().unwrap();
            (0..10).for_each(|_| work(&db, &mut random).unwrap());
        }
        if seed % 3 == 0 {
            db.drop_snapshot("held").unwrap();
        }
        disk.crash_after(disk.steps());
        drop((map, table, db));
        let disk = disk.after_crash_seeded(seed);
        let alone = state(&open(&disk.after_crash_seeded(seed), Division::default()).unwrap());
        let (entries, _) = one_by_one(&disk);
        for workers in [1, 2, 3, 7] {
            let db = open(&disk.after_crash_seeded(seed), divided(workers)).unwrap();
            assert_eq!(state(&db), alone, "seed {seed}, {workers} workers");
            assert!(db.check().unwrap().is_clean(), "seed {seed}, {workers} workers");
            let (map, table) = (db.map("map").unwrap(), db.table("table").unwrap());
            if seed % 3 == 0 {
                assert_eq!(entries_of(&db), entries, "seed {seed}: tombstones that nobody needs are left");
                continue;
            }
            assert!(entries_of(&db).len() > entries.len(), "seed {seed}: no tombstone was kept");
            let held = db.open_snapshot("held").unwrap();
            let rows: BTreeSet<_> = held.range::<&[u8]>(&table, ..).map(Result::unwrap).collect();
            let pairs: BTreeSet<_> = held.iter(&map).map(Result::unwrap).collect();
            assert!((rows, pairs) == expected, "seed {seed}, {workers} workers: the snapshot has changed");
        }
    }
}

/// A log of several segments, of which the tables have settled up to the address, and a checkpoint of before, if that is to be.
fn settled(seed: u64, checkpoint: Option<u32>) -> (SimulatedDevice, Address) {
    let (disk, mut random) = (SimulatedDevice::new(seed), Random(seed));
    // So short that nothing is compacted.
    let db = open(&disk, Division::default()).unwrap();
    let map = db.map("map").unwrap();
    for round in 0..50_u32 {
        if checkpoint == Some(round) {
            db.persist().unwrap();
            assert!(db.checkpoint().unwrap());
        }
        db.put(&map, round.to_be_bytes(), [7; 100]).unwrap().forget();
        work(&db, &mut random).unwrap();
    }
    (0..10).for_each(|_| change(&db, &mut random).unwrap());
    db.settle().unwrap();
    let settled_to = db.engine().settled.tree.settled_to();
    // Without the sweep that would follow.
    db.engine().persist().unwrap();
    assert_eq!(db.engine().log.begin(), 0);
    assert!(settled_to > 2 * SEGMENT_BYTES && settled_to < db.engine().log.hardened());
    let disk = disk.after_crash_seeded(seed);
    (disk, settled_to)
}

#[test]
fn c4_several_threads_take_off_what_has_settled_as_one_does() {
    for seed in 0..SEEDS / 4 {
        let (disk, settled_to) = settled(seed, (seed % 2 == 0).then_some(20));
        let alone = open(&disk.after_crash_seeded(seed), Division::default()).unwrap();
        assert_eq!(alone.recovery_report().checkpoint.is_some(), seed % 2 == 0);
        let left = entries_of(&alone).into_iter().filter(|&address| address < settled_to).count();
        let others = alone.engine().objects.iter().filter(|object| object.ordered().is_none());
        let of_others: u64 = others.map(|object| object.key_count.sum()).sum();
        assert!(left > 0 && left as u64 <= of_others, "seed {seed}: {left} of {of_others}");
        let expected = state(&alone);
        for workers in [1, 2, 3, 7] {
            let db = open(&disk.after_crash_seeded(seed), divided(workers)).unwrap();
            assert_eq!(state(&db), expected, "seed {seed}, {workers} workers");
            let check = db.check().unwrap();
            assert!(check.is_clean(), "seed {seed}, {workers} workers: {check}");
        }
    }
}

/// Of two places the first is told.
#[test]
fn c9_damage_in_what_has_settled_is_found_at_the_same_place_by_several_threads() {
    let (disk, _) = settled(1, Some(45));
    for numbers in [&[1][..], &[0, 1], &[1, 0]] {
        let damaged = disk.after_crash_seeded(1);
        // The length of a record behind the first seal.
        numbers.iter().for_each(|number| damaged.flip_bit(&name_of(*number), 8 * SEAL_BYTES + 5));
        let error_of = |division: Division| {
            let division = Division { warm_bytes: 0, ..division };
            open(&damaged.after_crash_seeded(1), division).err().map(|error| error.to_string())
        };
        let alone = error_of(Division::default());
        let first = name_of(*numbers.iter().min().unwrap_or(&0));
        assert!(alone.as_ref().is_some_and(|error| error.contains(&first)), "{numbers:?}: {alone:?}");
        for workers in [2, 3] {
            assert_eq!(error_of(divided(workers)), alone, "{numbers:?}");
        }
    }
}

#[test]
fn c9_damage_is_found_at_the_same_place_by_several_threads_as_by_one() {
    let mut found = 0;
    for seed in 0..SEEDS {
        let disk = lived(seed);
        let mut random = Random(seed);
        for _ in 0..8 {
            let damaged = disk.after_crash_seeded(seed);
            let names: Vec<String> =
                damaged.list().unwrap().into_iter().filter(|name| is_segment(name)).collect();
            let Some(name) = names.get(random.below(names.len() as u64 + 1) as usize) else { continue };
            damaged.flip_bit(name, random.below(SEGMENT_BYTES * 8));
            let error_of = |division| {
                open(&damaged.after_crash_seeded(seed), division).err().map(|error| error.to_string())
            };
            let alone = error_of(Division::default());
            found += usize::from(alone.is_some());
            assert_eq!(error_of(divided(3)), alone, "seed {seed}");
        }
    }
    assert!(found > 0);
}

#[test]
fn c9_a_block_that_cannot_be_read_is_named_also_when_it_was_read_ahead() {
    let disk = lived(3);
    let reads_before = |division: Division| {
        let disk = disk.after_crash_seeded(1);
        let mut nth = 1;
        let mut errors = Vec::new();
        loop {
            let disk = disk.after_crash_seeded(1);
            disk.inject(Fault { operation: OperationKind::Read, nth, kind: FaultKind::EIO, sticky: true });
            match open(&disk, division.clone()) {
                Ok(_) => return errors,
                Err(error) => errors.push(error.to_string()),
            }
            nth += 1;
        }
    };
    let errors = reads_before(Division::default());
    assert!(errors.iter().any(|error| error.contains("reading simulated:segment-")), "{errors:?}");
    assert!(!reads_before(divided(3)).is_empty());
}

#[test]
fn a_member_that_panics_ends_the_team_and_the_panic_comes_to_the_caller() {
    let team = team::Team::default();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        std::thread::scope(|scope| {
            let _leading = Leading(&team);
            scope.spawn(|| team.follow(|_| panic!("planned")));
            scope.spawn(|| team.follow(|_| {}));
            team.add_members(2);
            assert!(!team.lead(Step::Sort, |_| {}));
        });
    }));
    assert!(ended.is_err());
}

/// The superblock knows of a log's end only since the last sweep or checkpoint.
#[test]
fn a_long_log_is_known_to_reach_its_last_segment_but_not_those_that_were_made_in_advance() {
    let disk = SimulatedDevice::new(1);
    let db = open(&disk, Division::default()).unwrap();
    let map = db.map("map").unwrap();
    let mut tail = 0;
    for number in 0_u32.. {
        db.put(&map, number.to_be_bytes(), [7; 1_000]).unwrap().safe().unwrap();
        tail = db.statistics().log_tail;
        if tail > 59 * SEGMENT_BYTES + 4 * BLOCK as u64 {
            break;
        }
    }
    drop((map, db));
    let disk = disk.after_crash_seeded(1);
    let mut superblock = SuperblockFile::open(&disk, OpenMode::Read).unwrap().current().clone();
    superblock.known_end = 0;
    let segments = Segments::open(Arc::new(disk), SEGMENT_BYTES, OpenMode::Read).unwrap();
    assert!(segments.numbers().len() as u64 > tail / SEGMENT_BYTES);
    assert_eq!(Survey::of(&segments, &superblock, 0).reaches, tail - tail % SEGMENT_BYTES);
}

/// Each extent of a hardening but the last has the seal of the one before: what waits for the last was looked at with each of them.
#[test]
fn what_waits_for_its_seal_is_looked_at_once_the_horizon_moves() {
    const ROWS: u64 = 12_000;
    let disk = SimulatedDevice::new(1);
    let options = || Options::new().background(false).segment_bytes(16 << 10).memory(16 << 20);
    let db = options().open_on(Arc::new(disk.clone())).unwrap();
    let map = db.map("map").unwrap();
    db.persist().unwrap();
    // Else each row for which there is none has all hardened before it.
    db.engine().prepare_ahead(200 * ROWS).unwrap();
    (0..ROWS).for_each(|key| db.put(&map, key.to_be_bytes(), [7; 100]).unwrap().forget());
    db.persist().unwrap();
    drop((map, db));
    let disk = disk.after_crash_seeded(1);
    LOOKS.set(0);
    let db = options().open_on(Arc::new(disk.clone())).unwrap();
    assert_eq!(db.map("map").unwrap().len(), ROWS);
    let extents = db.recovery_report().seals;
    assert!(extents > 90, "the hardening had {extents} extents");
    assert!((ROWS / 2..=2 * ROWS).contains(&LOOKS.get()), "{} looks", LOOKS.get());
    assert!(db.check().unwrap().is_clean());
}
