//! The decoders, one function each, for fuzzers.
//!
//! Only a build with the feature `fuzzing` shows them. Each takes bytes apart as recovery does, and returns them as the engine
//! itself writes what it has understood: so whoever calls can compare, and the engine's own types stay private.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::{OpenMode, SimulatedDevice};
use crate::error::{Error, Result};
use crate::kernel::catalog::{self, Entry};
use crate::kernel::losses;
use crate::kernel::object::ObjectKind;
use crate::kernel::session;
use crate::storage::checkpoint::{self, Header, Section};
use crate::storage::extent::{Extent, Item};
use crate::storage::names::Names;
use crate::storage::record::{self, DiskRecord};
use crate::storage::record_reader::{Cursor, RecordReader};
use crate::storage::seal::Seal;
use crate::storage::segments::{self, Segments};
use crate::storage::superblock::{self, CheckpointName, SuperblockFile};
use crate::storage::tree::{self, Change, Tree};

/// The slot that counts of a file with both slots of a superblock.
///
/// # Errors
/// As opening a database that has it.
pub fn superblock(file: &[u8]) -> Result<Vec<u8>> {
    let disk = SimulatedDevice::new(0);
    disk.set_bytes(superblock::FILE, file);
    let opened = SuperblockFile::open(&disk, OpenMode::Read)?;
    let mut slot = vec![0; superblock::SLOT_BYTES];
    opened.current().encode(&mut slot);
    Ok(slot)
}

/// A checkpoint's file, as it would be written.
///
/// # Errors
/// As reading it.
pub fn checkpoint(file: &[u8]) -> Result<Vec<u8>> {
    let disk = SimulatedDevice::new(0);
    let corrupted = |what: &str| Error::corrupted("checkpoint", 0, what);
    let unknown = || corrupted("it has another format");
    let (header, checksum) = Header::decode(file).map_err(corrupted)?.ok_or_else(unknown)?;
    let named = CheckpointName { number: header.number, end: header.end, checksum };
    disk.set_bytes(&checkpoint::name_of(header.number), file);
    let mut reader = checkpoint::Reader::open(&disk, header.database, named)?.ok_or_else(unknown)?;
    let failed = |error| Error::io("writing a checkpoint", error);
    let mut writer = checkpoint::Writer::create(&disk, header.database, header.number).map_err(failed)?;
    for section in Section::ALL {
        let mut block = checkpoint::Block::default();
        while reader.read(section, &mut block)? {
            let copied =
                block.apply(&reader.name, section, |items| copy_items(section, items, &mut writer))?;
            copied.map_err(failed)?;
        }
    }
    reader.end()?;
    let (named, _) = writer.finish(header).map_err(failed)?;
    Ok(disk.bytes(&checkpoint::name_of(named.number)))
}

fn copy_items(
    section: Section,
    mut items: checkpoint::Items<'_>,
    writer: &mut checkpoint::Writer<'_>,
) -> Result<std::io::Result<()>, &'static str> {
    loop {
        let written = match section {
            Section::System => items.next_system()?.map(|item| writer.add_system(item)),
            Section::Entries => items
                .next_bucket()?
                .map(|(low_bits, entries)| writer.add_entries(low_bits, &entries.collect::<Vec<_>>())),
            Section::Keys => items.next_key()?.map(|(object, key)| writer.add_key(object, key)),
        };
        match written {
            None => return Ok(Ok(())),
            Some(Ok(())) => {}
            Some(error) => return Ok(error),
        }
    }
}

/// The seal that `bytes` begin with.
///
/// # Errors
/// What is wrong with it.
pub fn seal(bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
    Seal::decode(bytes).map(|(seal, _)| seal.encode().0.to_vec())
}

/// An extent: its seal, its records, its padding.
///
/// # Errors
/// What is wrong with the first of them that cannot be read.
pub fn extent(bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
    let (seal, checksum) = Seal::decode(bytes)?;
    let mut encoded = seal.encode().0.to_vec();
    for item in (Extent { seal, checksum, bytes }).items() {
        match item.map_err(|(_, what)| what)? {
            Item::Record(address, record) => encoded.extend(encode_record(address, &record)),
            Item::Padding(_, bytes) => {
                let end = encoded.len() + bytes as usize;
                encoded.extend(record::padding_word(bytes).to_le_bytes());
                encoded.resize(end, record::PADDING_BYTE);
            }
        }
    }
    Ok(encoded)
}

/// The records that compaction finds in the first segment of a log, each with its address, when it reads at most `count_max` at a
/// time; with a reader of its own each time, or with one for all.
///
/// # Errors
/// What is wrong with the first thing that cannot be read.
///
/// # Panics
/// If a batch leads nowhere.
pub fn first_segment(
    segment: &[u8],
    database: u128,
    (count_max, afresh): (usize, bool),
) -> Result<Vec<(u64, Vec<u8>)>> {
    let disk = SimulatedDevice::new(0);
    disk.set_bytes(&segments::name_of(0), segment);
    let segments = Segments::open(Arc::new(disk), segment.len() as u64, OpenMode::Read)?;
    let end = segments.segment_bytes();
    let mut reader = RecordReader::new(&segments, database, Cursor::at_seal(0));
    let mut records = Vec::new();
    while reader.cursor().position < end {
        let before = reader.cursor();
        if afresh {
            reader = RecordReader::new(&segments, database, before);
        }
        let batch = reader.next_batch(end, count_max)?;
        records.extend(batch.records.iter().map(|(at, record)| (*at, encode_record(*at, record))));
        assert!(reader.cursor().position > before.position, "a batch leads nowhere");
    }
    Ok(records)
}

fn encode_record(address: record::Address, record: &DiskRecord<'_>) -> Vec<u8> {
    let words: Vec<AtomicU64> = (0..record.shape.words()).map(|_| AtomicU64::new(0)).collect();
    record::write(
        &words,
        record.shape,
        record.version,
        record.previous,
        record.key,
        (record.value, record.expires_at),
    );
    let mut bytes = vec![0; 8];
    bytes.extend(words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()));
    record::finish(address, &mut bytes, 8);
    bytes.split_off(8)
}

/// The name, kind and number in an object's entry in the catalog.
pub fn catalog_entry(name: &[u8], value: &[u8]) -> Option<(String, ObjectKind, u32)> {
    match catalog::decode_entry(name, value) {
        Some(Entry::Object(name, kind, id, _)) => Some((name, kind, id)),
        _ => None,
    }
}

/// The serial number in the record of a session.
pub fn serial(value: &[u8]) -> Option<u64> {
    session::decode_serial(value)
}

/// The first and the last version in the record of a loss.
pub fn loss(key: &[u8], value: &[u8]) -> Option<(u64, u64)> {
    losses::decode_loss(key, value)
}

/// A node of a settled tree, as a merge would write it.
///
/// # Errors
/// What is wrong with it.
///
/// # Panics
/// If a search in it does not find what is there, or what would be written is another one.
pub fn tree_node(bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
    tree::fuzzed::again(bytes)
}

/// The file of a settled tree with these keys and values, which ascend; its leaves are packed if that is wanted.
///
/// # Errors
/// As making it.
pub fn tree_of(entries: &[(Vec<u8>, Vec<u8>)], packs: bool) -> Result<Vec<u8>> {
    let disk = Arc::new(SimulatedDevice::new(0));
    let tree = Tree::open(&Names::new(disk.clone()), 0, 0, OpenMode::ReadWrite)?.packing(packs);
    let changes =
        entries.iter().map(|(key, value)| Change { key, value: Some(value), expires_at: record::NEVER });
    tree.merge(&mut { changes }, None)?;
    Ok(disk.bytes(tree::FILE))
}
