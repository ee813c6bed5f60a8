//! Checking a checkpoint: every block of it, and what it says against the log.
//!
//! The log is walked from its beginning anyhow. Where the checkpoint ends, what the walk knows is what the checkpoint must say:
//! an entry for the newest record of each key that has a value, and each such key of a table. What lay before the log's
//! present beginning nobody can compare any more; it was superseded since.

use std::collections::{HashMap, HashSet};

use super::check_report::CheckReport;
use crate::error::{Error, Result};
use crate::kernel::object::ObjectKind;
use crate::storage::checkpoint::{Block, Items, Reader, Section, kind};
use crate::storage::hash_index::{self, HashIndex};
use crate::storage::record::Address;
use crate::storage::segments::Segments;
use crate::storage::superblock::Superblock;

/// What the log says at the checkpoint's end.
pub(super) struct Expected<'a> {
    pub(super) live: LiveKeys,
    /// Objects that were dropped: some of what there was of them may have gone.
    pub(super) dropped: &'a HashSet<u32>,
}

/// For the newest record of each key that has a value its object and its key's hash.
pub(super) type LiveKeys = HashMap<Address, (u32, u64)>;

/// What a checkpoint says.
#[derive(Default)]
struct Contents {
    /// Address and as much of the key's hash as is known.
    entries: Vec<(Address, u64)>,
    tombstones: HashSet<Address>,
    keys: HashSet<(u32, u64)>,
}

/// Reads the checkpoint that the superblock names, if the log continues it, and reports what does not hold.
pub(super) fn check(
    segments: &Segments,
    superblock: &Superblock,
    expected: Option<&Expected<'_>>,
    (kinds, settled_to): (&HashMap<u32, (String, ObjectKind)>, Address),
    report: &mut CheckReport,
) {
    let Some(named) = superblock.usable_checkpoint() else { return };
    let compared = Reader::open(segments.device(), superblock.database, named).and_then(|reader| {
        // Of another format it is not used.
        let Some(mut reader) = reader else { return Ok(()) };
        let (name, base_level) = (reader.name.clone(), reader.header.base_level);
        let index = HashIndex::with_base_level(base_level)
            .map_err(|error| Error::io("checking a checkpoint", error))?;
        let contents = read(&mut reader, &index, superblock.hash_seed)?;
        if let Some(expected) = expected {
            compare(&contents, expected, &index, (superblock, kinds, settled_to), |what| {
                report.problems.push(format!("{name}: {what}"));
                // Opening believes it, so it does not do without.
                report.wrong_checkpoint.get_or_insert_with(|| name.clone());
            });
        }
        Ok(())
    });
    if let Err(error) = compared {
        report.mendable_problems += 1;
        report.problems.push(format!(
            "{}; it is not needed: opening reads the whole log instead",
            error.without_advice()
        ));
    }
}

fn read(reader: &mut Reader, index: &HashIndex, hash_seed: u64) -> Result<Contents> {
    let mut contents = Contents::default();
    for section in Section::ALL {
        let mut block = Block::default();
        while reader.read(section, &mut block)? {
            block.apply(&reader.name, section, |items| {
                read_items(section, items, (index, hash_seed), &mut contents)
            })?;
        }
    }
    reader.end()?;
    Ok(contents)
}

fn read_items(
    section: Section,
    mut items: Items<'_>,
    (index, hash_seed): (&HashIndex, u64),
    contents: &mut Contents,
) -> Result<(), &'static str> {
    match section {
        Section::System => {
            while let Some(item) = items.next_system()? {
                if let (kind::TOMBSTONE, Ok(address)) = (item.kind, item.value.try_into()) {
                    contents.tombstones.insert(u64::from_le_bytes(address));
                }
            }
        }
        Section::Entries => {
            while let Some((low_bits, entries)) = items.next_bucket()? {
                let known = |entry| (hash_index::address_of(entry), index.hash_of_entry(entry, low_bits));
                contents.entries.extend(entries.map(known));
            }
        }
        Section::Keys => {
            while let Some((object, key)) = items.next_key()? {
                contents.keys.insert((object, hash_index::hash_of(hash_seed, object, key)));
            }
        }
    }
    Ok(())
}

fn compare(
    contents: &Contents,
    expected: &Expected<'_>,
    index: &HashIndex,
    (superblock, kinds, settled_to): (&Superblock, &HashMap<u32, (String, ObjectKind)>, Address),
    mut problem: impl FnMut(String),
) {
    let mut found = HashSet::new();
    for (address, known) in &contents.entries {
        if *address < superblock.begin || contents.tombstones.contains(address) {
            continue;
        }
        match expected.live.get(address) {
            Some((_, hash)) if index.is_known_hash(*known, *hash) => {}
            Some(_) => {
                problem(format!("the entry of log address {address:#x} is of another hash than its key"))
            }
            None => problem(format!("the entry of log address {address:#x} is not of a key's newest record")),
        }
        if !found.insert(*address) {
            problem(format!("the entry of log address {address:#x} is there twice"));
        }
    }
    for (address, (object, hash)) in &expected.live {
        let is_table = kinds.get(object).is_some_and(|(_, kind)| *kind == ObjectKind::Table);
        // What has settled by now may have been on its way then; what was dropped may go at any time.
        if is_table && *address < settled_to || expected.dropped.contains(object) {
            continue;
        }
        if !found.contains(address) {
            problem(format!("the record at log address {address:#x} has no entry"));
        }
        if is_table && !contents.keys.contains(&(*object, *hash)) {
            problem(format!(
                "a key of object {object} is missing, that of the record at log address {address:#x}"
            ));
        }
    }
}
