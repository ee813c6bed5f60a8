//! Holds `docs/format.md` against the code: every field's name and offset.

use super::hash_index::hash_of;
use super::record::NEVER;
use super::{checkpoint, record, seal, superblock, tree};
use crate::sync::atomic::{AtomicU64, Ordering};

const DOCUMENT: &str = include_str!("../../../../docs/format.md");

/// The rows `| offset | bytes | name: ...` below a heading.
fn documented(heading: &str) -> Vec<(String, usize)> {
    let section = DOCUMENT.split(&format!("# {heading}\n")).nth(1).expect("the heading is in the document");
    let rows =
        section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let offset = cells.next()?.parse().ok()?;
        let name = cells.nth(1)?.split(':').next()?.to_owned();
        Some((name, offset))
    })
    .collect()
}

fn in_code(offsets: &[(&str, usize)]) -> Vec<(String, usize)> {
    offsets.iter().map(|&(name, offset)| (name.to_owned(), offset)).collect()
}

#[test]
fn the_superblock_is_laid_out_as_documented() {
    assert_eq!(documented("Superblock"), in_code(&superblock::OFFSETS));
    assert!(DOCUMENT.contains(&format!("| 8 | 4 | format: {} |", superblock::FORMAT)));
}

#[test]
fn a_checkpoint_is_laid_out_as_documented() {
    assert_eq!(documented("Checkpoint"), in_code(&checkpoint::OFFSETS));
    assert_eq!(documented("Block"), in_code(&checkpoint::BLOCK_OFFSETS));
}

/// It is in every checkpoint: with another one their checksums would hold, and their entries be of no key.
#[test]
fn a_key_has_the_hash_that_is_documented() {
    assert!(DOCUMENT.contains("XXH3_64bits_withSeed"));
    assert_eq!(hash_of(7, 16, b"key"), 0x655E_6892_491D_BCA4);
    let long: Vec<u8> = (0..=255).cycle().take(1_000).collect();
    let of_lengths = [
        (0, 0xFEFD_5D8B_128E_ABD0),
        (8, 0xF19B_7920_DD89_D569),
        (16, 0xDE8D_77AE_FF48_C825),
        (100, 0x1A88_CA70_9D61_48CE),
        (200, 0xED7F_39B3_61E8_AB9B),
        (1_000, 0x2BC2_A3D9_C03A_7458),
    ];
    for (length, hash) in of_lengths {
        assert_eq!(hash_of(7, 16, &long[..length]), hash, "{length} bytes");
    }
}

#[test]
fn a_checkpoints_fields_are_where_the_table_says() {
    let field =
        |name: &str| checkpoint::OFFSETS.iter().find(|field| field.0 == name).map(|field| field.1).unwrap();
    let header = checkpoint::Header {
        base_level: 11,
        database: 0x2222,
        number: 0x3333,
        end: 0x4000,
        chain: super::extent::Chain { number: 0x5555, checksum: 0x6666 },
        horizon: 0x7777,
        newest_version: 0x8888,
        entries: 0x9999,
        keys: 0xAAAA,
        blocks: 0xBBBB,
        time_us: 0xCCCC,
        settled_to: 0,
        forgotten_to: 0x44,
    };
    let mut bytes = [0; checkpoint::HEADER_BYTES];
    let checksum = header.encode(&mut bytes);
    let at = |name: &str| u32::from_le_bytes(*bytes[field(name)..].first_chunk().unwrap());
    assert_eq!(&bytes[field("magic")..][..8], &checkpoint::MAGIC);
    let expected = [
        ("format", 2),
        ("base level", 11),
        ("database", 0x2222),
        ("number", 0x3333),
        ("end", 0x4000),
        ("seal number", 0x5555),
        ("seal checksum", 0x6666),
        ("horizon", 0x7777),
        ("newest version", 0x8888),
        ("forgotten to", 0x44),
        ("entries", 0x9999),
        ("keys", 0xAAAA),
        ("blocks", 0xBBBB),
        ("time", 0xCCCC),
        ("header checksum", checksum),
    ];
    for (name, value) in expected {
        assert_eq!(at(name), value, "{name}");
    }
    assert_eq!(checkpoint::Header::decode(&bytes), Ok(Some((header, checksum))));
}

#[test]
fn a_seal_is_laid_out_as_documented() {
    assert_eq!(documented("Seal"), in_code(&seal::OFFSETS));
    assert!(DOCUMENT.contains(&format!("The first {} bytes of an extent", seal::SEAL_BYTES)));
}

#[test]
fn a_seals_fields_are_where_the_table_says() {
    let field = |name: &str| seal::OFFSETS.iter().find(|field| field.0 == name).map(|field| field.1).unwrap();
    let seal = seal::Seal {
        address: 0x1111,
        length: 0x2222,
        version: 0x3333,
        number: 0x4444,
        previous_checksum: 0x5555,
        data_checksum: 0x6666,
        time_us: 0x7777,
        zero_sectors: 0x8888,
        database: 0x9999,
        first_version: 0xAAAA,
    };
    let (bytes, checksum) = seal.encode();
    let at = |name: &str| u32::from_le_bytes(*bytes[field(name)..].first_chunk().unwrap());
    assert_eq!(&bytes[field("magic")..][..8], &seal::MAGIC);
    let expected = [
        ("address", 0x1111),
        ("length", 0x2222),
        ("version", 0x3333),
        ("number", 0x4444),
        ("previous checksum", 0x5555),
        ("data checksum", 0x6666),
        ("time", 0x7777),
        ("zero sectors", 0x8888),
        ("database", 0x9999),
        ("first version", 0xAAAA),
        ("seal checksum", checksum),
    ];
    for (name, value) in expected {
        assert_eq!(at(name), value, "{name}");
    }
    assert_eq!(seal::Seal::decode(&bytes), Ok((seal, checksum)));
    assert_eq!(seal::Seal::decode(&bytes[..100]), Err("a seal is cut short"));
}

#[test]
fn a_records_bits_are_where_the_table_says() {
    let shape = record::Shape {
        kind: record::Kind::Tombstone,
        object: 0x2_5A5A,
        key_bytes: 0x1_0000,
        value_bytes: 0x100_0000,
    };
    let word = shape.word();
    assert_eq!(word >> 60, 2);
    assert_eq!(word >> 42 & 0x3_FFFF, 0x2_5A5A);
    assert_eq!(word >> 25 & 0x1_FFFF, 0x1_0000);
    assert_eq!(word & 0x1FF_FFFF, 0x100_0000);
    assert_eq!(record::Shape::parse(word), Some(shape));
    assert_eq!(record::padding_word(64) >> 60, 3);
    let expiring = record::Shape::of_put(16, b"key", b"value", 7);
    assert_eq!((expiring.word() >> 60, expiring.value_bytes), (4, 13));
    assert_eq!(record::Shape::parse(expiring.word()), Some(expiring));
    assert!(record::Shape::parse(expiring.word() - 6).is_none(), "a value with no room for its time");
    let words: Vec<AtomicU64> = (0..expiring.words()).map(|_| AtomicU64::new(0)).collect();
    record::write(&words, expiring, 1, 0, b"key", (b"value", 7));
    assert_eq!(words[4].load(Ordering::Relaxed), 7);
}

#[test]
fn a_value_replaces_what_the_buffer_held_however_long_that_was() {
    let words: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
    let bytes: Vec<u8> = (0..32).collect();
    let mut out = Vec::new();
    for before in 0..40 {
        for length in 0..=32 {
            let shape =
                record::Shape { kind: record::Kind::Put, object: 1, key_bytes: 3, value_bytes: length };
            record::write(&words, shape, 1, 0, b"key", (&bytes[..length], NEVER));
            out.resize(before, 0xEE);
            record::RecordView::at(&words).unwrap().value_into(3, &mut out);
            assert_eq!(out, bytes[..length], "after {before} bytes");
        }
    }
}

#[test]
fn a_record_is_only_that_of_its_own_key() {
    let words: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
    let key = b"eight by eight 24 bytes+";
    for length in [24, 23, 22, 21, 20, 19, 18, 17, 0] {
        let shape = record::Shape { kind: record::Kind::Put, object: 16, key_bytes: length, value_bytes: 3 };
        record::write(&words, shape, 1, 0, &key[..length], (b"one", NEVER));
        let view = record::RecordView::at(&words).unwrap();
        assert!(view.is(16, &key[..length]) && !view.is(17, &key[..length]));
        assert!(!view.is(16, b"another length"));
        for at in 0..length {
            let mut other = key[..length].to_vec();
            other[at] += 1;
            assert!(!view.is(16, &other), "{at} of {length}");
            assert!(record::RecordView::put_of(&words, 16, &other).is_none(), "{at} of {length}");
        }
        let put_of =
            |object, key: &[u8]| record::RecordView::put_of(&words, object, key).map(|put| put.shape());
        assert_eq!(put_of(16, &key[..length]), Some(shape));
        assert!(put_of(17, &key[..length]).is_none() && put_of(16, b"another length").is_none());
        assert!(record::RecordView::put_of(&words[..shape.words() - 1], 16, &key[..length]).is_none());
        let tombstone = record::Shape { kind: record::Kind::Tombstone, value_bytes: 0, ..shape };
        record::write(&words, tombstone, 1, 0, &key[..length], (b"", NEVER));
        assert!(record::RecordView::put_of(&words, 16, &key[..length]).is_none(), "a deletion");
    }
    assert!(record::RecordView::at(&words[..2]).is_none() && record::RecordView::at(&[]).is_none());
}

#[test]
fn the_settled_tree_is_laid_out_as_documented() {
    for (heading, offsets) in tree::OFFSETS {
        assert_eq!(documented(heading), in_code(offsets), "{heading}");
    }
    assert!(DOCUMENT.contains(&format!("| 8 | 4 | tree format: {} |", tree::FORMAT)));
}

#[test]
fn a_frame_of_a_backups_stream_is_laid_out_as_documented() {
    assert_eq!(documented("Frame"), in_code(&crate::database::STREAM_OFFSETS));
}
