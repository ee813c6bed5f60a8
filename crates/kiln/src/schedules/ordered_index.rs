//! The ordered index: ranges while leaves split and are unlinked, and two that each insert where the other has read.

use std::ops::Bound;
use std::sync::Arc;

use super::{quietly, together};
use crate::storage::epoch;
use crate::storage::ordered_index::{Insertion, LeafBatch, OrderedIndex};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Long enough to have memory of its own, which is given back by and by.
fn key(number: u64) -> Vec<u8> {
    format!("a key of many bytes {number:04}").into_bytes()
}

fn index_of(numbers: impl Iterator<Item = u64>) -> OrderedIndex {
    let index = OrderedIndex::new();
    let pin = epoch::pin();
    for number in numbers {
        index.insert(&pin, &key(number));
    }
    index
}

/// All keys, leaf by leaf, each leaf under a pin of its own as the engine does it.
fn scan(index: &OrderedIndex, forward: bool) -> Vec<Vec<u8>> {
    let (mut batch, mut next, mut keys) = (LeafBatch::new(), LeafBatch::new(), Vec::new());
    {
        let pin = epoch::pin();
        match forward {
            true => index.read_forward(&pin, Bound::Unbounded, &mut batch),
            false => index.reader(None).read_backward(&pin, Bound::Unbounded, &mut batch),
        }
    }
    loop {
        keys.extend((0..batch.len()).filter_map(|at| batch.get(at).map(<[u8]>::to_vec)));
        let pin = epoch::pin();
        if !index.read_next(&pin, &batch, &mut next) {
            return keys;
        }
        std::mem::swap(&mut batch, &mut next);
    }
}

/// A range has every key that is there throughout once, in order, and no key that never was, while leaves are split, emptied
/// and unlinked around it, and the memory of removed keys is given back.
pub(super) fn ranges_see_what_stays() {
    // Two leaves; the first loses all its keys, the second one is full and splits.
    let index = Arc::new(quietly(|| index_of((0..48).map(|number| number * 10))));
    let inserter: Box<dyn FnOnce() + Send> = {
        let index = index.clone();
        Box::new(move || {
            let pin = epoch::pin();
            for number in 301..304 {
                index.insert(&pin, &key(number));
            }
        })
    };
    let remover: Box<dyn FnOnce() + Send> = {
        let index = index.clone();
        Box::new(move || {
            quietly(|| {
                let pin = epoch::pin();
                (0..14).for_each(|number| assert!(index.remove(&pin, &key(number * 10))));
            });
            {
                let pin = epoch::pin();
                (14..18).for_each(|number| assert!(index.remove(&pin, &key(number * 10)), "a key was lost"));
            }
            index.pack();
            index.reclaim();
        })
    };
    let reader = |forward: bool| -> Box<dyn FnOnce() + Send> {
        let index = index.clone();
        Box::new(move || {
            let mut keys = scan(&index, forward);
            if !forward {
                keys.reverse();
            }
            assert!(keys.is_sorted_by(|one, other| one < other), "a range is out of order");
            let stays = (18..48).map(|number| key(number * 10));
            for key in stays {
                assert!(keys.binary_search(&key).is_ok(), "{} was missed", String::from_utf8_lossy(&key));
            }
            let may_be: Vec<_> = (0..48).map(|number| key(number * 10)).chain((301..304).map(key)).collect();
            assert!(keys.iter().all(|key| may_be.contains(key)), "a range has a key that never was");
        })
    };
    together(vec![inserter, remover, reader(true), reader(false)]);
    quietly(|| {
        let expected = (18..31).map(|number| number * 10).chain(301..304);
        let expected = expected.chain((31..48).map(|number| number * 10)).map(key);
        assert!(scan(&index, true).into_iter().eq(expected), "the index has other keys than it should");
    });
}

/// Two read a range, insert into it if they find nobody, and look again whether the range is as they left it. They cannot
/// both have been alone.
pub(super) fn nobody_misses_the_other() {
    const FIRST: u64 = 4;
    let index = Arc::new(quietly(|| index_of(0..FIRST)));
    let alone = Arc::new(AtomicU64::new(0));
    let inserter = |number: u64| -> Box<dyn FnOnce() + Send> {
        let (index, alone) = (index.clone(), alone.clone());
        Box::new(move || {
            let pin = epoch::pin();
            let mut batch = LeafBatch::new();
            index.read_forward(&pin, Bound::Unbounded, &mut batch);
            if batch.len() as u64 > FIRST {
                return;
            }
            let Insertion::Inserted { before, after } = index.insert(&pin, &key(number)) else {
                panic!("a leaf of few keys was split");
            };
            if before == batch.read() && index.validate(&after) {
                alone.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    together(vec![inserter(11), inserter(12)]);
    assert!(alone.load(Ordering::SeqCst) < 2, "two inserted into one range, and neither noticed the other");
}
