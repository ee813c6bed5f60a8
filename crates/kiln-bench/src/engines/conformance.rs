//! What every engine must do right, so that none is fast or slow because its adapter is wrong.

use std::io::{Write as _, stderr};
use std::time::Duration;

use super::catalog::{self, Mode, Name, Settings, Shape, Visitor};
use super::library::Unusable;
use super::{Access, Engine, Worker};
use crate::generate::{Entry, Key, Sizes, add_to_first_word};

/// The checks, for an engine that has just been made.
struct Conformance {
    sizes: Sizes,
    shape: Shape,
    name: Name,
}

impl Visitor for Conformance {
    type Output = ();

    fn visit<E: Engine>(self, engine: &E) -> anyhow::Result<()> {
        let description = self.name.description();
        single_keys(engine, self.sizes, description.durable_puts);
        if description.transactions {
            transactions(engine, self.sizes);
            contended_transactions(engine, self.sizes);
        }
        if self.shape == Shape::Table {
            scans(engine, self.sizes);
            if description.snapshot_scans {
                scans_beside_transactions(engine, self.sizes);
            }
        }
        contended_additions(engine, self.sizes);
        engine.persist().unwrap();
        values_stay_apart(engine, self.sizes);
        engine.checkpoint().unwrap();
        Ok(())
    }
}

/// What [`Conformance`] has left is there when the database is opened again.
struct Reopened {
    sizes: Sizes,
}

impl Visitor for Reopened {
    type Output = ();

    fn visit<E: Engine>(self, engine: &E) -> anyhow::Result<()> {
        let mut worker = engine.worker().unwrap();
        let counters = [0, 1, 2, 3, 5599].map(|index| counter(&mut worker, self.sizes, index));
        assert_eq!(counters, [0, 11, 20, 30, 7]);
        Ok(())
    }
}

fn counter(worker: &mut impl Worker, sizes: Sizes, index: u64) -> u64 {
    let mut buffer = vec![1];
    assert!(worker.get(&sizes.key(index), &mut buffer).unwrap(), "key {index}");
    sizes.check(&buffer, index).unwrap()
}

/// Keys 0 to 3 get the counters 0, 11, 20 and 30.
fn single_keys(engine: &impl Engine, sizes: Sizes, durable_puts: bool) {
    let mut worker = engine.worker().unwrap();
    let mut buffer = vec![1];
    assert!(!worker.get(&sizes.key(0), &mut buffer).unwrap());
    let entries: Vec<Entry> = (0..4).map(|index| sizes.entry(index, 10 * index)).collect();
    worker.put(&entries[0].key, &entries[0].value).unwrap();
    if durable_puts {
        worker.put_durably(&entries[1].key, &entries[1].value).unwrap();
    } else {
        worker.put(&entries[1].key, &entries[1].value).unwrap();
    }
    worker.put_all(&entries[2..]).unwrap();
    assert_eq!(engine.key_count().unwrap(), 4);
    // Writing what is there adds no key, and a value that was read is not another's.
    worker.put(&entries[0].key, &entries[3].value).unwrap();
    assert!(worker.get(&entries[0].key, &mut buffer).unwrap());
    assert_eq!(buffer, entries[3].value);
    worker.put(&entries[0].key, &entries[0].value).unwrap();
    worker.add(&entries[1].key, 1).unwrap();
    assert_eq!(engine.key_count().unwrap(), 4);

    let mut other = engine.worker().unwrap();
    let counters = [0, 1, 2, 3].map(|index| counter(&mut other, sizes, index));
    assert_eq!(counters, [0, 11, 20, 30]);
    assert!(!other.get(&sizes.key(4), &mut buffer).unwrap());

    let keys: Vec<Key> = [3, 1].map(|index| sizes.key(index)).to_vec();
    let mut seen = Vec::new();
    other
        .get_all(&keys, &mut |at, value| {
            sizes.check(value, [3, 1][at]).map(|counter| seen.push((at, counter)))
        })
        .unwrap();
    assert_eq!(seen, [(0, 30), (1, 11)]);
    assert!(other.get_all(&[sizes.key(1), sizes.key(9)], &mut |_, _| Ok(())).is_err());
    assert!(other.get_all(&keys, &mut |_, _| anyhow::bail!("no")).is_err());
}

/// Counts key 3 up by one and key 1 by none.
fn transactions(engine: &impl Engine, sizes: Sizes) {
    let mut worker = engine.worker().unwrap();
    let mut buffer = Vec::new();
    let keys = [sizes.key(3), sizes.key(1)];
    let mut count_up = |access: &mut dyn Access| {
        access.prefetch(&keys);
        for key in &keys {
            anyhow::ensure!(access.get(key, &mut buffer)?);
            add_to_first_word(&mut buffer, 1)?;
            access.put(key, &buffer)?;
        }
        Ok(())
    };
    worker.transact(&mut count_up).unwrap();
    // One that fails leaves nothing behind, and the next one is not disturbed by it.
    let failed = worker.transact(&mut |access| {
        count_up(access)?;
        access.put(&sizes.key(77), b"never")?;
        anyhow::bail!("the workload's own reason")
    });
    assert!(format!("{:#}", failed.unwrap_err()).contains("own reason"));
    worker.transact(&mut count_up).unwrap();
    let missing = worker.transact(&mut |access| {
        assert!(!access.get(&sizes.key(77), &mut Vec::new())?);
        Ok(())
    });
    missing.unwrap();
    let counters = [3, 1].map(|index| counter(&mut worker, sizes, index));
    assert_eq!(counters, [32, 13]);
    assert_eq!(engine.key_count().unwrap(), 4);
    for index in [3, 1] {
        worker.put(&sizes.key(index), &sizes.entry(index, 10 * index).value).unwrap();
    }
    worker.add(&sizes.key(1), 1).unwrap();
}

/// Threads that move counts between two keys lose none, and whoever reads both in a transaction sees a constant sum.
fn contended_transactions(engine: &impl Engine, sizes: Sizes) {
    const MOVES: u64 = 50;
    let (from, to) = (sizes.key(100), sizes.key(101));
    let mut worker = engine.worker().unwrap();
    worker.put(&from, &sizes.entry(100, 3 * MOVES).value).unwrap();
    worker.put(&to, &sizes.entry(101, 0).value).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let (mut worker, mut first, mut second) = (engine.worker().unwrap(), Vec::new(), Vec::new());
                for _ in 0..MOVES {
                    let result = worker.transact(&mut |access| {
                        anyhow::ensure!(access.get(&from, &mut first)? && access.get(&to, &mut second)?);
                        let sum = sizes.check(&first, 100)? + sizes.check(&second, 101)?;
                        anyhow::ensure!(sum == 3 * MOVES, "a transaction saw the sum {sum}");
                        add_to_first_word(&mut first, u64::MAX)?;
                        add_to_first_word(&mut second, 1)?;
                        access.put(&from, &first)?;
                        access.put(&to, &second)
                    });
                    result.unwrap();
                }
            });
        }
    });
    assert_eq!([100, 101].map(|index| counter(&mut worker, sizes, index)), [0, 3 * MOVES]);
}

/// Whoever scans while counts are moved between two keys far apart sees a constant sum.
fn scans_beside_transactions(engine: &impl Engine, sizes: Sizes) {
    const SUM: u64 = 1000;
    let (from, to) = (sizes.key(100), sizes.key(101));
    let mut worker = engine.worker().unwrap();
    worker.put(&from, &sizes.entry(100, SUM).value).unwrap();
    worker.put(&to, &sizes.entry(101, 0).value).unwrap();
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let (mut worker, mut first, mut second) = (engine.worker().unwrap(), Vec::new(), Vec::new());
            for _ in 0..SUM / 10 {
                let result = worker.transact(&mut |access| {
                    anyhow::ensure!(access.get(&from, &mut first)? && access.get(&to, &mut second)?);
                    add_to_first_word(&mut first, u64::MAX)?;
                    add_to_first_word(&mut second, 1)?;
                    access.put(&from, &first)?;
                    access.put(&to, &second)
                });
                result.unwrap();
            }
        });
        while !mover.is_finished() {
            let mut sum = 0;
            let mut add = |key: &[u8], value: &[u8]| {
                if [&*from, &*to].contains(&key) {
                    sum += sizes.check_row(key, value)?;
                }
                Ok(())
            };
            worker.scan(&[], usize::MAX, &mut add).unwrap();
            assert_eq!(sum, SUM);
        }
    });
}

fn contended_additions(engine: &impl Engine, sizes: Sizes) {
    const ADDITIONS: u64 = 100;
    let mut worker = engine.worker().unwrap();
    worker.put(&sizes.key(200), &sizes.entry(200, 0).value).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut worker = engine.worker().unwrap();
                (0..ADDITIONS).for_each(|_| worker.add(&sizes.key(200), 1).unwrap());
            });
        }
    });
    assert_eq!(counter(&mut worker, sizes, 200), 3 * ADDITIONS);
}

fn scans(engine: &impl Engine, sizes: Sizes) {
    let mut worker = engine.worker().unwrap();
    let entries: Vec<Entry> = (1000..2000).map(|index| sizes.entry(index, index)).collect();
    let before = engine.key_count().unwrap();
    worker.put_all(&entries).unwrap();
    assert_eq!(engine.key_count().unwrap(), before + 1000);
    let mut rows = |from: &[u8], count: usize| {
        let mut rows = Vec::new();
        worker
            .scan(from, count, &mut |key, value| {
                rows.push((key.to_vec(), value.to_vec()));
                Ok(())
            })
            .unwrap();
        rows
    };
    let all = rows(&[], usize::MAX);
    assert_eq!(all.len() as u64, before + 1000);
    assert!(all.is_sorted() && all.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert!(
        entries.iter().all(|entry| all.binary_search(&(entry.key.to_vec(), entry.value.clone())).is_ok())
    );
    assert_eq!(rows(&all[10].0, 5), all[10..15]);
    let mut between = all[10].0.clone();
    between.push(0);
    assert_eq!(rows(&between, 5), all[11..16]);
    assert_eq!(rows(&all[all.len() - 2].0, 5), all[all.len() - 2..]);
    assert_eq!(rows(&[0xFF; 64], 5), []);
    assert!(worker.scan(&[], 5, &mut |_, _| anyhow::bail!("no")).is_err());
}

/// What is read into a buffer is whole, whatever was in it, and of several sizes of an engine's own choosing.
fn values_stay_apart(engine: &impl Engine, sizes: Sizes) {
    let mut worker = engine.worker().unwrap();
    let entries: Vec<Entry> = (5000..5600).map(|index| sizes.entry(index, 7)).collect();
    entries.iter().for_each(|entry| worker.put(&entry.key, &entry.value).unwrap());
    let mut buffer = vec![9; 3000];
    for entry in &entries {
        assert!(worker.get(&entry.key, &mut buffer).unwrap());
        assert_eq!(buffer, entry.value);
    }
}

/// False if the engine's library is not installed, which is said past the tests' own capture: nothing is tested then.
fn is_installed(name: Name) -> bool {
    let Err(error) = (name.description().version)() else { return true };
    assert!(matches!(error.downcast_ref(), Some(Unusable::NotInstalled(_))), "{error:#}");
    writeln!(stderr(), "SKIPPED: {name:?} is not tested: {error:#}").unwrap();
    false
}

/// Checks an engine in all its modes and shapes.
fn conforms(name: Name) {
    if !is_installed(name) {
        return;
    }
    let description = name.description();
    for &mode in description.modes {
        assert!(!(description.settings)(mode).is_empty());
        for &shape in description.shapes {
            let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let path = directory.path().to_owned();
            let sizes = match shape {
                Shape::Table => Sizes { key_bytes: 16, value_bytes: 100 },
                Shape::Map => Sizes { key_bytes: 8, value_bytes: 8 },
            };
            let settings = Settings {
                path,
                mode,
                shape,
                sizes,
                records: 10_000,
                cache_bytes: 64 << 20,
                window: Duration::from_millis(5),
                cold: false,
                // Both are tried, whichever in which mode.
                limited: mode == Mode::Weak,
                checkpoints: true,
            };
            catalog::with_engine(name, &settings, Conformance { sizes, shape, name }).unwrap();
            if description.reopens {
                catalog::with_engine(name, &settings, Reopened { sizes }).unwrap();
            }
            let stored = crate::scratch::disk_bytes(directory.path()) > 0;
            assert!(stored || mode == Mode::Floor, "{name:?} in mode {mode:?}");
        }
    }
}

/// Records of which a tenth fits into memory are loaded and read in batches, by those who can read past the page cache.
fn reads_cold(name: Name) {
    struct Cold {
        sizes: Sizes,
        records: u64,
        loads: bool,
    }
    impl Visitor for Cold {
        type Output = ();

        fn visit<E: Engine>(self, engine: &E) -> anyhow::Result<()> {
            let data = crate::workloads::Data::new(engine, self.sizes, self.records);
            data.load().unwrap();
            if self.loads {
                data.check_all().unwrap();
            }
            let (mut worker, mut count) = (engine.worker().unwrap(), 0);
            for batch in [1, 64, 200] {
                // Some blocks are asked for twice.
                let indexes: Vec<u64> = (0..batch).map(|number| number * 7919 % self.records).collect();
                let keys: Vec<Key> = indexes.iter().map(|&index| self.sizes.key(index)).collect();
                let mut check = |at: usize, value: &[u8]| {
                    count += 1;
                    self.sizes.check(value, indexes[at]).map(drop)
                };
                worker.get_all(&keys, &mut check).unwrap();
                assert!(worker.get_all(&keys, &mut |_, _| anyhow::bail!("no")).is_err());
            }
            assert_eq!(count, 265);
            Ok(())
        }
    }
    if !is_installed(name) {
        return;
    }
    let description = name.description();
    assert!(description.past_page_cache);
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (path, sizes, records) =
        (directory.path().to_owned(), Sizes { key_bytes: 16, value_bytes: 1000 }, 3000);
    let settings = Settings {
        path,
        mode: description.modes[description.modes.len() - 1],
        shape: Shape::Table,
        sizes,
        records,
        cache_bytes: records * 1016 / 10,
        window: Duration::from_millis(5),
        cold: true,
        limited: false,
        checkpoints: true,
    };
    let visitor = Cold { sizes, records, loads: description.keeps_data };
    catalog::with_engine(name, &settings, visitor).unwrap();
}

#[test]
fn kiln_reads_cold_data() {
    reads_cold(Name::Kiln);
}

#[test]
fn rocksdb_reads_cold_data() {
    reads_cold(Name::RocksDb);
}

#[test]
fn raw_reads_read_cold_data() {
    reads_cold(Name::RawReads);
}

#[test]
fn kiln_conforms() {
    conforms(Name::Kiln);
}

#[test]
fn kiln_wal_conforms() {
    conforms(Name::KilnWal);
}

#[test]
fn in_place_conforms() {
    conforms(Name::InPlace);
}

#[test]
fn memory_conforms() {
    conforms(Name::Memory);
}

#[test]
fn redb_conforms() {
    conforms(Name::Redb);
}

#[test]
fn lmdb_conforms() {
    conforms(Name::Lmdb);
}

#[test]
fn sqlite_conforms() {
    conforms(Name::Sqlite);
}

#[test]
fn fjall_conforms() {
    conforms(Name::Fjall);
}

#[test]
fn sled_conforms() {
    conforms(Name::Sled);
}

#[test]
fn rocksdb_conforms() {
    conforms(Name::RocksDb);
}

#[test]
fn leveldb_conforms() {
    conforms(Name::LevelDb);
}

#[test]
fn kyotocabinet_conforms() {
    conforms(Name::KyotoCabinet);
}

#[test]
fn berkeleydb_conforms() {
    conforms(Name::BerkeleyDb);
}

#[cfg(feature = "faster")]
#[test]
fn faster_conforms() {
    conforms(Name::Faster);
}
