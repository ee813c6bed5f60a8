//! What a window leaves in the file, and that leaves find their keys.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::file::PageFile;
use super::leaf::{Layout, PAGE_BYTES};
use super::store::{Store, Windows};
use super::*;
use crate::generate::Sizes;

const SIZES: Sizes = Sizes { key_bytes: 16, value_bytes: 100 };
const ROWS: u64 = 1000;

/// Not in the system's temporary directory, which may be a file system in memory.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

fn worker(store: &Store) -> InPlaceWorker<'_> {
    let (tree, generation) = store.tree();
    InPlaceWorker { store, tree, generation, writes: Vec::new(), values: Vec::new() }
}

/// A store with some rows, all of them durable.
fn loaded(directory: &Path) -> Store {
    let store = Store::create(directory, SIZES, ROWS).unwrap();
    let entries: Vec<Entry> = (0..ROWS).map(|index| SIZES.entry(index, 0)).collect();
    worker(&store).put_all(&entries).unwrap();
    store.persist().unwrap();
    store
}

/// The rows that a file holds according to the newest page of each leaf whose checksum is right.
fn rows_on_disk(directory: &Path, pages: &[u64]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (layout, bytes) = (Layout::new(SIZES).unwrap(), std::fs::read(directory.join("leaves")).unwrap());
    let mut rows = BTreeMap::new();
    for &position in pages {
        let page = &bytes[position as usize..][..PAGE_BYTES];
        assert_eq!(page[..4], crc32c::crc32c(&page[4..]).to_le_bytes());
        let count = u32::from_le_bytes(page[4..8].try_into().unwrap()) as usize;
        for row in 0..count {
            let key = page[16 + row * SIZES.key_bytes..][..SIZES.key_bytes].to_vec();
            let value = &page[16 + layout.rows_max * SIZES.key_bytes + row * SIZES.value_bytes..];
            rows.insert(key, value[..SIZES.value_bytes].to_vec());
        }
    }
    rows
}

#[test]
fn a_window_writes_the_leaves_that_are_dirty_and_no_others() {
    let directory = directory();
    let store = loaded(directory.path());
    let (tree, _) = store.tree();
    assert_eq!((tree.rows(), tree.take_dirty().count()), (ROWS, 0));
    let entry = SIZES.entry(7, 99);
    worker(&store).put(&entry.key, &entry.value).unwrap();
    worker(&store).put(&entry.key, &entry.value).unwrap();
    assert!(tree.take_dirty().eq([tree.leaf_of(&entry.key)]));
}

#[test]
fn what_a_window_wrote_is_in_the_file_and_nothing_that_it_replaced_was_overwritten() {
    let directory = directory();
    let store = loaded(directory.path());
    let before = store.file().positions();
    let rows = rows_on_disk(directory.path(), &before);
    assert_eq!(rows.len() as u64, ROWS);
    let entry = SIZES.entry(7, 99);
    worker(&store).put(&entry.key, &entry.value).unwrap();
    store.persist().unwrap();
    assert_eq!(rows_on_disk(directory.path(), &before), rows);
    let after = store.file().positions();
    assert_eq!(before.iter().zip(&after).filter(|(before, after)| before != after).count(), 1);
    assert_eq!(rows_on_disk(directory.path(), &after)[&*entry.key], entry.value);
}

#[test]
fn the_file_goes_around_and_its_tables_from_half_to_half() {
    let directory = directory();
    let mut file = PageFile::create(&directory.path().join("leaves"), 10).unwrap();
    for window in 0..100_u32 {
        file.write_window(0..10, |leaf, page| {
            page.fill(window as u8 + leaf as u8);
            window
        })
        .unwrap();
        let bytes = std::fs::read(directory.path().join("leaves")).unwrap();
        let positions = file.positions();
        assert!(positions.iter().zip(0..).all(|(&at, leaf)| bytes[at as usize] == window as u8 + leaf));
    }
}

#[test]
fn every_key_is_found_and_no_other_while_others_are_inserted() {
    let directory = directory();
    let store = Arc::new(Store::create(directory.path(), SIZES, ROWS).unwrap());
    let mut windows = Windows::start(store.clone(), Duration::ZERO);
    let mut own = worker(&store);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let store = &store;
            scope.spawn(move || {
                let mut worker = worker(store);
                for index in (thread..ROWS).step_by(2) {
                    let entry = SIZES.entry(index, 0);
                    worker.put(&entry.key, &entry.value).unwrap();
                    worker.add(&entry.key, index).unwrap();
                }
            });
        }
    });
    windows.end().unwrap();
    let mut value = Vec::new();
    for index in 0..ROWS {
        assert!(own.get(&SIZES.key(index), &mut value).unwrap());
        assert_eq!(SIZES.check(&value, index).unwrap(), index);
    }
    assert!(!own.get(&SIZES.key(ROWS), &mut value).unwrap());
    let one_more = SIZES.entry(ROWS, 0);
    assert!(own.put(&one_more.key, &one_more.value).is_err());
    store.persist().unwrap();
    assert_eq!(rows_on_disk(directory.path(), &store.file().positions()).len() as u64, ROWS);
}

#[test]
fn rows_that_do_not_fit_a_leaf_are_refused() {
    let directory = directory();
    let large = Sizes { key_bytes: 16, value_bytes: 5000 };
    assert!(Store::create(directory.path(), large, ROWS).is_err());
    let store = loaded(directory.path());
    assert!(worker(&store).put(&SIZES.key(1), b"short").is_err());
}
