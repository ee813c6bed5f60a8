//! The decoders one by one: what decodes is encoded as it was, and what is encoded decodes.

use kiln::fuzzing;
use kiln::{ErrorKind, ObjectKind};

use crate::format::{self, HEAD};
use crate::measure::bounded;

/// Decoders of the engine copy what they understand a few times at the most.
const TIMES: usize = 8;

/// Both slots of a superblock, with checksums that hold unless the first byte says otherwise.
pub(crate) fn superblock(input: &[u8]) {
    let Some((&damaged, file)) = input.split_first() else { return };
    let mut file = file.to_vec();
    for (slot, bit) in file.chunks_mut(format::BLOCK).take(2).zip([1, 2]) {
        if slot.len() >= HEAD && damaged & bit == 0 {
            format::sign(slot);
        }
    }
    let expected = format::current_slot(&file);
    match bounded(&file, TIMES, || fuzzing::superblock(&file)) {
        Ok(slot) => {
            let mut expected = expected.expect("neither slot is valid").to_vec();
            // What this format does not use, and flags that it does not know, may hold anything.
            let flags = u32::from(expected[12] & format::SUPERBLOCK_FLAGS);
            format::put(&mut expected, 12, &flags.to_le_bytes());
            expected[108..112].fill(0);
            format::put(&mut expected, 8, &slot[8..12]);
            format::sign(&mut expected);
            assert_eq!(slot, expected);
            assert_eq!(fuzzing::superblock(&slot).expect("it was just encoded"), slot);
        }
        Err(error) if error.kind() == ErrorKind::Version => {}
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
            assert!(error.place().is_some(), "{error}");
            assert!(expected.is_none(), "a slot is valid: {error}");
        }
    }
}

/// A checkpoint, with checksums that hold unless the first byte says otherwise.
pub(crate) fn checkpoint(input: &[u8]) {
    let Some((&damaged, file)) = input.split_first() else { return };
    let mut file = file.to_vec();
    if file.len() >= HEAD && damaged & 1 == 0 {
        format::sign(&mut file);
    }
    if damaged & 2 == 0 {
        format::sign_blocks(&mut file);
    }
    // A file is read in blocks, and has whole ones.
    let room = file.len() + 8 * format::BLOCK;
    let Ok(encoded) = bounded(&vec![0; room], 4 * TIMES, || fuzzing::checkpoint(&file)) else { return };
    assert_eq!(fuzzing::checkpoint(&encoded).expect("it was just encoded"), encoded);
    // All but the number of blocks, which depends on how they are filled.
    assert_eq!(encoded[..120], file[..120]);
}

/// A seal, with a checksum that holds unless the first byte says otherwise.
pub(crate) fn seal(input: &[u8]) {
    let Some((&damaged, seal)) = input.split_first() else { return };
    let mut seal = seal.to_vec();
    if seal.len() >= HEAD && damaged & 1 == 0 {
        format::sign(&mut seal);
    }
    if let Ok(encoded) = bounded(&seal, TIMES, || fuzzing::seal(&seal)) {
        let mut expected = seal[..HEAD].to_vec();
        // Not used by this format.
        expected[60..64].fill(0);
        expected[88..HEAD - 4].fill(0);
        format::sign(&mut expected);
        assert_eq!(encoded, expected);
        assert_eq!(fuzzing::seal(&encoded).as_ref(), Ok(&encoded));
    }
}

/// An extent, with checksums that hold unless the first byte says otherwise.
pub(crate) fn extent(input: &[u8]) {
    let Some((&damaged, extent)) = input.split_first() else { return };
    let mut extent = extent.to_vec();
    if extent.len() < HEAD {
        return;
    }
    let address = u64::from_le_bytes(std::array::from_fn(|index| extent[8 + index]));
    if damaged & 1 == 0 {
        format::sign_records(&mut extent, address & ((1 << 48) - 1));
    }
    if damaged & 2 == 0 {
        format::sign(&mut extent);
    }
    let Ok(encoded) = bounded(&extent, TIMES, || fuzzing::extent(&extent)) else { return };
    let (found, expected) = (format::records(&encoded, address), format::records(&extent, address));
    assert!(found.is_some(), "it is not encoded as it is documented");
    assert_eq!(format!("{found:?}"), format!("{expected:?}"));
    assert_eq!(fuzzing::extent(&encoded).as_ref(), Ok(&encoded));
}

/// What a node's keys come to at most, when each has the prefix.
const NODE_WHOLE: usize = 4 << 20;

/// A node of a settled tree. Its checksum is its parent's matter.
pub(crate) fn node(input: &[u8]) {
    let room = vec![0; input.len() + NODE_WHOLE];
    if let Ok(encoded) = bounded(&room, TIMES, || fuzzing::tree_node(input)) {
        assert_eq!(fuzzing::tree_node(&encoded).as_ref(), Ok(&encoded));
    }
}

/// The smallest segment there is.
const SEGMENT: usize = 16 << 10;
const DATABASE: u128 = 7;

/// A segment as compaction reads it: in batches, and without the checksums of whole extents. What the input leaves out is zeros,
/// and what makes no sense as an extent's length is the length of the rest.
pub(crate) fn reader(input: &[u8]) {
    let Some((&[damaged, batch], bytes)) = input.split_first_chunk() else { return };
    let mut segment = bytes[..bytes.len().min(SEGMENT)].to_vec();
    segment.resize(SEGMENT, 0);
    let (mut at, mut expected) = (0, Some(Vec::new()));
    while at < SEGMENT {
        let extent = &mut segment[at..];
        let length = u64::from_le_bytes(std::array::from_fn(|index| extent[16 + index])) as usize;
        let is_length =
            length >= format::BLOCK && length.is_multiple_of(format::BLOCK) && length <= extent.len();
        let length = if is_length { length } else { extent.len() };
        let extent = &mut extent[..length];
        if damaged & 1 == 0 {
            format::put(extent, 0, b"KILNSEAL");
            format::put(extent, 8, &(at as u64).to_le_bytes());
            format::put(extent, 16, &(length as u64).to_le_bytes());
            format::put(extent, 64, &DATABASE.to_le_bytes());
        }
        if damaged & 8 == 0 {
            format::pad_rest(extent);
        }
        if damaged & 2 == 0 {
            format::sign_records(extent, at as u64);
        }
        if damaged & 4 == 0 {
            format::sign(extent);
        }
        let found = format::records(extent, at as u64).filter(|_| fuzzing::seal(extent).is_ok());
        expected = expected.zip(found).map(|(before, found)| [before, found].concat());
        at += length;
    }
    let way = (1 + usize::from(batch >> 1), batch & 1 != 0);
    let read = || fuzzing::first_segment(&segment, DATABASE, way);
    // Each reader has a buffer of its own.
    match if way.1 { read() } else { bounded(&segment, TIMES, read) } {
        Ok(records) => {
            let expected = expected.expect("there is something wrong with an extent");
            assert_eq!(records.len(), expected.len());
            for ((address, bytes), record) in records.iter().zip(&expected) {
                let mut unsigned = bytes.clone();
                unsigned[14..16].fill(0);
                unsigned[22..24].fill(0);
                assert_eq!(unsigned, record.bytes(), "the record at {address}");
            }
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
            assert!(error.place().is_some(), "{error}");
            assert!(expected.is_none() || damaged & 1 != 0, "nothing is wrong: {error}");
        }
    }
}

/// An entry of the catalog: the length of the name, the name, the value.
pub(crate) fn catalog(input: &[u8]) {
    let Some((&length, rest)) = input.split_first() else { return };
    let Some((name, value)) = rest.split_at_checked(usize::from(length)) else { return };
    let Some((decoded, kind, number)) = bounded(input, TIMES, || fuzzing::catalog_entry(name, value)) else {
        return;
    };
    let code = match kind {
        ObjectKind::Map => 1,
        ObjectKind::Table => 2,
        kind => panic!("{kind:?} is not documented"),
    };
    assert_eq!(
        (decoded.as_bytes(), value),
        (name, [&[code], number.to_le_bytes().as_slice(), &value[5..]].concat().as_slice())
    );
    assert!(matches!(value.len(), 5 | 13), "a time to live of another length");
}

/// The value of a session's record, and a loss.
pub(crate) fn sessions(input: &[u8]) {
    if let Some(serial) = fuzzing::serial(input) {
        assert_eq!(serial.to_le_bytes(), input);
    }
    let (first, last) = input.split_at(input.len() / 2);
    if let Some((one, other)) = fuzzing::loss(first, last) {
        assert_eq!((one.to_le_bytes().as_slice(), other.to_le_bytes().as_slice()), (first, last));
        assert!(one <= other, "a loss of no version");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the format on disk changes and the seeds do not, the fuzzer finds nothing any more, and says so to nobody.
    #[test]
    fn the_first_inputs_are_checkpoints_that_can_be_read() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/checkpoint");
        let seeds = std::fs::read_dir(directory).unwrap().map(|seed| seed.unwrap().path());
        let seeds = seeds.filter(|seed| seed.file_name().unwrap().to_string_lossy().starts_with("seed-"));
        let mut count = 0;
        for seed in seeds {
            let mut file = std::fs::read(&seed).unwrap().split_off(1);
            assert!(fuzzing::checkpoint(&file).is_ok(), "{seed:?}");
            // What a fuzzer has changed gets as far once it is signed.
            file[100] ^= 1;
            file[format::BLOCK + 40] ^= 1;
            format::sign(&mut file);
            format::sign_blocks(&mut file);
            let read = fuzzing::checkpoint(&file);
            let is_damaged = read.as_ref().is_err_and(|error| error.to_string().contains("checksum"));
            assert!(!is_damaged, "{seed:?}: {read:?}");
            count += 1;
        }
        assert!(count > 0);
    }
}
