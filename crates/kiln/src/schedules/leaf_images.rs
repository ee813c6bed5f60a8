//! Leaf images: who copies one sees it whole or not at all, and does no more than it asked for, whatever has come to lie there meanwhile.

use std::sync::Arc;

use shuttle::rand::Rng as _;

use super::{quietly, together};
use crate::storage::epoch;
use crate::storage::leaf_images::{Copied, LeafImages, RowEnds, Validity};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Many times what one image may have.
const RING_BYTES: u64 = 224 << 10;
const OTHER_BYTES_MAX: usize = 24 << 10;
const ROWS: usize = 3;
const VALIDITY: Validity = Validity { leaf_version: 1, version_max: 1, address_min: 1, whole_at: 1, own: 0 };

/// Rows without a key, whose values repeat a number.
fn store(images: &LeafImages, number: u64) -> u64 {
    let ends: [RowEnds; ROWS] = std::array::from_fn(|row| (8 * row as u32, 8 * row as u32 + 8));
    let stored = images.store(VALIDITY, &ends, &number.to_le_bytes().repeat(ROWS));
    stored.unwrap_or_else(|| panic!("there is no room for an image"))
}

/// Another leaf's row: of words any of which may pass for how many rows there are, or for where they end in the ring.
fn store_other(images: &LeafImages) -> u64 {
    let mut random = shuttle::rand::thread_rng();
    let words = random.gen_range(0..OTHER_BYTES_MAX / 8);
    let mut word = || random.gen_range(0..RING_BYTES) << u32::BITS | random.gen_range(0..RING_BYTES);
    let bytes: Vec<u8> = (0..words).flat_map(|_| word().to_le_bytes()).collect();
    let stored = images.store(VALIDITY, &[(0, bytes.len() as u32)], &bytes);
    stored.unwrap_or_else(|| panic!("there is no room for another image"))
}

/// The oldest image is overwritten, and another stored in its place, while two copy the newest that they know. What they may do under their pins is bounded for every program.
pub(super) fn an_image_is_copied_whole_or_not_at_all() {
    let images = Arc::new(LeafImages::new(RING_BYTES));
    let place = quietly(|| {
        images.set_bytes(RING_BYTES);
        store_other(&images);
        let place = store(&images, 1);
        let end = (RING_BYTES as usize - OTHER_BYTES_MAX) as u64 / 64;
        while store_other(&images) < end {}
        place
    });
    let newest = Arc::new(AtomicU64::new(place));
    let reader = || -> Box<dyn FnOnce() + Send> {
        let (images, newest) = (images.clone(), newest.clone());
        Box::new(move || {
            let (mut bytes, mut ends, mut begin) = (Vec::new(), [0; 2 * ROWS], 0);
            for _ in 0..2 {
                let _pin = epoch::pin();
                let place = newest.load(Ordering::SeqCst);
                let copied = Copied { bytes: &mut bytes, ends: &mut ends, begin: &mut begin };
                if images.copy(place, 0..ROWS, copied).is_some() {
                    assert_eq!((begin, ends), (0, [0, 8, 8, 16, 16, 24]), "an image is another's");
                    let (first, rest) = bytes[..8 * ROWS].split_at(8);
                    assert_eq!(*rest, first.repeat(ROWS - 1), "an image is a mixture");
                }
            }
        })
    };
    let writer = {
        let (images, newest) = (images.clone(), newest.clone());
        Box::new(move || {
            (0..3).for_each(|_| {
                store_other(&images);
            });
            newest.store(store(&images, 2), Ordering::SeqCst);
        })
    };
    together(vec![reader(), reader(), writer]);
}
