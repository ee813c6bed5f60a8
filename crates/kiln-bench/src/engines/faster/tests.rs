use std::time::Duration;

use super::engine::FasterEngine;
use crate::engines::catalog::{Mode, Settings, Shape};
use crate::engines::{Engine, Worker};
use crate::generate::Sizes;

const WORDS: Sizes = Sizes { key_bytes: 8, value_bytes: 8 };
const WIDE: Sizes = Sizes { key_bytes: 16, value_bytes: 100 };

fn with_engine(sizes: Sizes, check: impl Fn(&FasterEngine)) {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let settings = Settings {
        path: directory.path().to_owned(),
        mode: Mode::Weak,
        shape: Shape::Map,
        sizes,
        records: 1000,
        cache_bytes: 0,
        window: Duration::ZERO,
        cold: false,
        limited: false,
        checkpoints: true,
    };
    check(&FasterEngine::create(&settings).unwrap());
}

#[test]
fn values_that_the_log_has_no_memory_for_are_read_and_changed_on_the_device() {
    let sizes = Sizes { key_bytes: 8, value_bytes: 64 << 10 };
    with_engine(sizes, |engine| {
        // 400 MB, beside 256 MB of memory.
        const COUNT: u64 = 6400;
        let mut worker = engine.worker().unwrap();
        let mut entry = sizes.entry(0, 0);
        for index in 0..COUNT {
            crate::generate::stamp(&mut entry.value, index, 1);
            worker.put(&sizes.key(index), &entry.value).unwrap();
        }
        let mut buffer = Vec::new();
        for index in (0..COUNT).step_by(50) {
            worker.add(&sizes.key(index), index).unwrap();
            assert!(worker.get(&sizes.key(index), &mut buffer).unwrap());
            assert_eq!(sizes.check(&buffer, index).unwrap(), 1 + index);
            assert!(worker.get(&sizes.key(index + 1), &mut buffer).unwrap());
            assert_eq!(sizes.check(&buffer, index + 1).unwrap(), 1);
        }
        assert!(!worker.get(&sizes.key(COUNT), &mut buffer).unwrap());
        drop(worker);
        assert_eq!(engine.key_count().unwrap(), COUNT);
    });
}

#[test]
fn nothing_is_lost_or_torn_while_threads_write_and_checkpoints_are_made() {
    for sizes in [WORDS, WIDE] {
        with_engine(sizes, |engine| {
            const ADDITIONS: u64 = 20_000;
            let keys = [1, 2, 3].map(|index| sizes.entry(index, 0));
            engine.worker().unwrap().put_all(&keys).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let (mut worker, mut buffer) = (engine.worker().unwrap(), Vec::new());
                        for _ in 0..ADDITIONS {
                            worker.add(&sizes.key(1), 1).unwrap();
                            worker.put(&sizes.key(2), &keys[1].value).unwrap();
                            for index in 1..4 {
                                assert!(worker.get(&sizes.key(index), &mut buffer).unwrap());
                                sizes.check(&buffer, index).unwrap();
                            }
                        }
                    });
                }
                (0..10).for_each(|_| engine.persist().unwrap());
            });
            let (mut worker, mut buffer) = (engine.worker().unwrap(), Vec::new());
            assert!(worker.get(&sizes.key(1), &mut buffer).unwrap());
            assert_eq!(sizes.check(&buffer, 1).unwrap(), 3 * ADDITIONS);
            assert_eq!(engine.key_count().unwrap(), 3);
        });
    }
}

#[test]
fn values_may_change_their_length_where_they_have_one() {
    with_engine(WIDE, |engine| {
        let (mut worker, mut buffer) = (engine.worker().unwrap(), Vec::new());
        for length in [8, 100, 9, 5000, 100] {
            worker.put(b"key", &vec![length as u8; length]).unwrap();
            assert!(worker.get(b"key", &mut buffer).unwrap());
            assert_eq!(buffer, vec![length as u8; length]);
        }
        assert!(!worker.get(b"kez", &mut buffer).unwrap());
        assert!(!worker.get(b"", &mut buffer).unwrap());
        assert!(worker.put(b"key", b"short").is_err());
        assert_eq!(engine.key_count().unwrap(), 1);
    });
}

#[test]
fn what_cannot_be_is_refused() {
    with_engine(WORDS, |engine| {
        let (mut worker, mut buffer) = (engine.worker().unwrap(), Vec::new());
        assert!(worker.put(b"longer than a word", &[0; 8]).is_err());
        assert!(worker.put(&[0; 8], b"longer than a word").is_err());
        assert!(worker.get(b"short", &mut buffer).is_err());
        assert!(worker.add(&[0; 8], 1).is_err());
        assert!(worker.put_durably(&[0; 8], &[0; 8]).is_err());
        assert!(worker.scan(&[], 1, &mut |_, _| Ok(())).is_err());
        assert!(worker.transact(&mut |_| Ok(())).is_err());
    });
}
