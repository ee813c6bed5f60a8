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
            let clean = u32::from(expected[12] & 1);
            format::put(&mut expected, 12, &clean.to_le_bytes());
            expected[88..HEAD - 4].fill(0);
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
        (name, [&[code], number.to_le_bytes().as_slice()].concat().as_slice())
    );
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
