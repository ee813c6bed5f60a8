//! Logs made of whole records and seals, most of them as the engine would write them and some as it never would.

use arbitrary::{Result, Unstructured};

use crate::examine::examine;
use crate::format::{self, BLOCK, Files, HEAD, Record, Repairs, put};

const SEGMENT_BYTES: u64 = 64 << 10;
const RECORDS_MAX: usize = 12;
const EXTENTS_MAX: usize = 6;

/// Opens, reads and checks the log that the input describes.
pub(crate) fn log(input: &[u8]) {
    let mut choices = Unstructured::new(input);
    let mut log = Log::new(&mut choices);
    while log.extents < EXTENTS_MAX && !choices.is_empty() && log.extent(&mut choices).is_ok() {}
    if let Ok(files) = log.finish(&mut choices) {
        examine(&files);
    }
}

struct Log {
    superblock: Vec<u8>,
    segments: Vec<Vec<u8>>,
    position: u64,
    number: u64,
    version: u64,
    extents: usize,
    /// Where the records so far are, by object and key.
    last: Vec<(u32, Vec<u8>, u64)>,
}

impl Log {
    fn new(choices: &mut Unstructured<'_>) -> Log {
        let mut superblock = vec![0; 2 * BLOCK];
        put(&mut superblock, BLOCK, b"KILN-DB\0");
        put(&mut superblock, BLOCK + 8, &1_u32.to_le_bytes());
        put(&mut superblock, BLOCK + 16, &1_u64.to_le_bytes());
        put(&mut superblock, BLOCK + 24, &[7; 16]);
        put(&mut superblock, BLOCK + 40, &SEGMENT_BYTES.to_le_bytes());
        let begin = match choices.ratio(1, 4) {
            Ok(true) => SEGMENT_BYTES,
            _ => 0,
        };
        put(&mut superblock, BLOCK + 56, &begin.to_le_bytes());
        let mut log = Log {
            superblock,
            segments: Vec::new(),
            position: begin,
            number: match choices.ratio(1, 8) {
                Ok(true) => odd_number(choices).unwrap_or(0),
                _ => 0,
            },
            version: 0,
            extents: 0,
            last: Vec::new(),
        };
        // A map and a table, made by the first transaction.
        let entry = |name: &str, kind: u8, number: u32| Record {
            tombstone: false,
            expiring: false,
            object: 0,
            version: 1,
            previous: 0,
            key: name.into(),
            value: [&[kind], number.to_le_bytes().as_slice()].concat(),
        };
        let next = Record { value: 18_u32.to_le_bytes().to_vec(), ..entry("", 1, 0) };
        log.append(&[entry("map", 1, 16), entry("table", 2, 17), next], 1, 0);
        log
    }

    /// One more extent, of records that the input chooses.
    fn extent(&mut self, choices: &mut Unstructured<'_>) -> Result<()> {
        let first_version = match choices.int_in_range(0..=15)? {
            0 => self.version.wrapping_add((1 << 24) + u64::from(choices.arbitrary::<u16>()?)),
            1 => odd_number(choices)?,
            _ => 0,
        };
        let mut records = Vec::new();
        for _ in 0..choices.int_in_range(1..=RECORDS_MAX)? {
            records.push(self.record(choices, &records)?);
        }
        let version = match choices.int_in_range(0..=15)? {
            0 => odd_number(choices)?,
            1 => self.version,
            _ => self.version.max(1).wrapping_add(1),
        };
        self.append(&records, version, first_version);
        Ok(())
    }

    fn record(&self, choices: &mut Unstructured<'_>, before: &[Record]) -> Result<Record> {
        let object = match choices.int_in_range(0..=15)? {
            0 => choices.int_in_range(0..=(1 << 18) - 1)?,
            1 => 0,
            2..=3 => 1,
            4 => 2,
            5..=9 => 16,
            _ => 17,
        };
        let key = match (object, choices.int_in_range(0..=3)?) {
            (_, 0) => choices.arbitrary()?,
            (2, _) => u64::from(choices.arbitrary::<u8>()?).to_le_bytes().to_vec(),
            _ => vec![b'a' + choices.int_in_range(0..=3)?; choices.int_in_range(1..=12)?],
        };
        let mut value: Vec<u8> = match (object, choices.int_in_range(0..=3)?) {
            (_, 0) => choices.arbitrary()?,
            (0, _) => {
                let number = 16 + u32::from(choices.arbitrary::<u8>()? % 4);
                [&[1 + choices.arbitrary::<u8>()? % 3], number.to_le_bytes().as_slice()].concat()
            }
            (1 | 2, _) => u64::from(choices.arbitrary::<u16>()?).to_le_bytes().to_vec(),
            _ => vec![choices.arbitrary()?; choices.int_in_range(0..=300)?],
        };
        let tombstone = choices.ratio(1, 4)?;
        if tombstone && choices.ratio(3, 4)? {
            value.clear();
        }
        let known = self.last.iter().rev().find(|(at, known, _)| *at == object && *known == key);
        let is_new =
            known.is_none() || before.iter().any(|record| record.object == object && record.key == key);
        let previous = match choices.int_in_range(0..=15)? {
            0 => odd_number(choices)?,
            _ if is_new => 0,
            _ => known.map_or(0, |(_, _, address)| *address),
        };
        let version = match choices.int_in_range(0..=15)? {
            0 => odd_number(choices)?,
            1..=3 => self.version.wrapping_add(2),
            _ => self.version.wrapping_add(1),
        };
        Ok(Record { tombstone, expiring: false, object, version, previous, key, value })
    }

    /// Puts an extent with these records at the end.
    fn append(&mut self, records: &[Record], version: u64, first_version: u64) {
        let mut extent = vec![0; HEAD];
        let mut last = Vec::new();
        for record in records {
            last.push((record.object, record.key.clone(), extent.len() as u64));
            extent.extend(record.bytes());
        }
        let rest = extent.len().next_multiple_of(BLOCK) - extent.len();
        if rest > 0 {
            extent.extend(format::padding(rest));
        }
        let segment_rest = SEGMENT_BYTES - self.position % SEGMENT_BYTES;
        if extent.len() as u64 > segment_rest {
            return;
        }
        if self.position.is_multiple_of(SEGMENT_BYTES) {
            self.segments.push(vec![0; SEGMENT_BYTES as usize]);
        }
        self.number = self.number.wrapping_add(1);
        let length = extent.len() as u64;
        put(&mut extent, 16, &length.to_le_bytes());
        put(&mut extent, 24, &version.to_le_bytes());
        put(&mut extent, 32, &self.number.to_le_bytes());
        put(&mut extent, 80, &first_version.to_le_bytes());
        let at = (self.position % SEGMENT_BYTES) as usize;
        if let Some(segment) = self.segments.last_mut() {
            put(segment, at, &extent);
        }
        self.last.extend(last.into_iter().map(|(object, key, at)| (object, key, self.position + at)));
        self.position += extent.len() as u64;
        self.version = version.max(first_version);
        self.extents += 1;
    }

    /// The files, with every checksum right, and then perhaps with some damage.
    fn finish(mut self, choices: &mut Unstructured<'_>) -> Result<Files> {
        let begin = self.position / SEGMENT_BYTES + u64::from(!self.position.is_multiple_of(SEGMENT_BYTES))
            - self.segments.len() as u64;
        match choices.int_in_range(0..=3)? {
            0 => {
                put(&mut self.superblock, BLOCK + 12, &1_u32.to_le_bytes());
                put(&mut self.superblock, BLOCK + 64, &self.position.to_le_bytes());
                let clock = if choices.ratio(1, 4)? { odd_number(choices)? } else { self.version };
                put(&mut self.superblock, BLOCK + 80, &clock.to_le_bytes());
            }
            _ => put(&mut self.superblock, BLOCK + 64, &(begin * SEGMENT_BYTES).to_le_bytes()),
        }
        let mut files = Files::from([("superblock".to_owned(), self.superblock)]);
        for (number, segment) in (begin..).zip(self.segments) {
            files.insert(format::segment_name(number), segment);
        }
        format::repair(&mut files, Repairs::ALL);
        for _ in 0..choices.int_in_range(0..=2)? {
            let name = choices.choose_iter(files.keys())?.clone();
            damage(&mut files, &name, choices)?;
        }
        files.entry("superblock".to_owned()).or_default();
        Ok(files)
    }
}

/// Cuts a file short, removes it, puts another one beside it, or changes two of its bytes.
fn damage(files: &mut Files, name: &str, choices: &mut Unstructured<'_>) -> Result<()> {
    let at = usize::from(choices.arbitrary::<u16>()?);
    match choices.int_in_range(0..=3)? {
        0 => {
            let length = files[name].len().min(at);
            files.entry(name.to_owned()).or_default().truncate(length);
        }
        1 => {
            files.remove(name);
        }
        2 => {
            files.insert(format::segment_name(odd_number(choices)?), vec![0; SEGMENT_BYTES as usize]);
        }
        _ => {
            let bytes = choices.arbitrary::<[u8; 2]>()?;
            put(files.entry(name.to_owned()).or_default(), at, &bytes);
        }
    }
    Ok(())
}

/// A number that no engine writes, or hardly.
fn odd_number(choices: &mut Unstructured<'_>) -> Result<u64> {
    let edge = *choices.choose(&[0, 1, 1 << 24, 1 << 47, (1 << 48) - 1, 1 << 48, u64::MAX - 1, u64::MAX])?;
    Ok(match choices.ratio(1, 2)? {
        true => edge,
        false => u64::from(choices.arbitrary::<u32>()?),
    })
}
