//! The read cache: nobody sees a mixture of two records.

use std::sync::Arc;

use super::{quietly, together};
use crate::storage::record::{Address, DiskRecord, Kind, NEVER, Shape};
use crate::storage::record_cache::RecordCache;

/// So few that each record that comes makes an older one leave.
const CACHE_BYTES: u64 = 1 << 10;
const VALUE_WORDS: usize = 3;

fn admit(cache: &RecordCache, address: Address) {
    let (key, value) = (address.to_le_bytes(), address.to_le_bytes().repeat(VALUE_WORDS));
    let shape = Shape { kind: Kind::Put, object: 1, key_bytes: key.len(), value_bytes: value.len() };
    let record =
        DiskRecord { shape, version: address, previous: 0, key: &key, value: &value, expires_at: NEVER };
    // Of some it is said that they are superseded.
    cache.admit(address, &record, &|address, _| address % 16 == 8);
}

/// What a reader has copied is the record that it asked for, although two others admit records over it.
pub(super) fn a_record_is_read_whole() {
    let cache = Arc::new(quietly(|| {
        let cache = RecordCache::new(CACHE_BYTES, CACHE_BYTES).unwrap_or_else(|error| panic!("{error}"));
        for address in (8..100).step_by(8) {
            (0..2).for_each(|_| admit(&cache, address));
        }
        cache
    }));
    let reader = |addresses: [Address; 3]| -> Box<dyn FnOnce() + Send> {
        let cache = cache.clone();
        Box::new(move || {
            for address in addresses {
                let seen = cache.look(address, |view| {
                    let (mut key, mut value) = (Vec::new(), Vec::new());
                    view.key_into(&mut key);
                    view.value_into(8, &mut value);
                    (key, value, view.version())
                });
                let Some((key, value, version)) = seen else { continue };
                assert_eq!(key, address.to_le_bytes(), "a cached record has changed while it was read");
                assert_eq!(value, address.to_le_bytes().repeat(VALUE_WORDS), "a cached value is a mixture");
                assert_eq!(version, address, "a cached version is another's");
            }
        })
    };
    let writer = |first: Address| -> Box<dyn FnOnce() + Send> {
        let cache = cache.clone();
        Box::new(move || {
            for number in 0..4 {
                (0..2).for_each(|_| admit(&cache, first + 8 * number));
            }
        })
    };
    // Its memory is another's from one moment to the next.
    let divider: Box<dyn FnOnce() + Send> = {
        let cache = cache.clone();
        Box::new(move || cache.divide(CACHE_BYTES / 2, 64))
    };
    // The oldest, whose memory is the next to be used again.
    together(vec![reader([8, 16, 24]), reader([16, 200, 8]), writer(200), writer(400), divider]);
}
