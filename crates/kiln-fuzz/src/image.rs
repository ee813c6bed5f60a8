//! A whole database in few bytes, so that a fuzzer can change it.
//!
//! ```text
//!  input   repairs 1 | chunk ...
//!  chunk   tag 1 | offset 4 | length 2 | bytes             (tag: bits 0-6 file, bit 7 = one byte, repeated)
//!  file    0 = superblock, n = segment n-1; what no chunk says is zero
//! ```

use kiln::device::{Device as _, SimulatedDevice};

use crate::examine::examine;
use crate::format::{self, Files, Repairs};

/// Large enough for every database that the seeds are made of.
const SEGMENT_BYTES: usize = 64 << 10;
const SEGMENTS_MAX: u8 = 6;
const REPEATED: u8 = 0x80;
const CHUNK_HEAD: usize = 7;

/// Opens, reads and checks the database that the input describes.
pub(crate) fn image(input: &[u8]) {
    if let Some((repairs, mut files)) = decode(input) {
        format::repair(&mut files, Repairs(repairs));
        examine(&files);
    }
}

fn decode(input: &[u8]) -> Option<(u8, Files)> {
    let (&repairs, mut rest) = input.split_first()?;
    let mut files = Files::from([("superblock".to_owned(), vec![0; 2 * format::BLOCK])]);
    while let Some((&[tag, o0, o1, o2, o3, l0, l1], tail)) = rest.split_first_chunk::<CHUNK_HEAD>() {
        let (offset, length) = (u32::from_le_bytes([o0, o1, o2, o3]) as usize, u16::from_le_bytes([l0, l1]));
        let (length, stored) = match tag & REPEATED {
            0 => (length as usize, length as usize),
            _ => (length as usize, 1),
        };
        let bytes = tail.get(..stored)?;
        rest = &tail[stored..];
        let file = match tag & !REPEATED {
            0 => files.get_mut("superblock")?,
            number if number <= SEGMENTS_MAX => files
                .entry(format::segment_name(u64::from(number) - 1))
                .or_insert_with(|| vec![0; SEGMENT_BYTES]),
            _ => return None,
        };
        let place = file.get_mut(offset..offset.checked_add(length)?)?;
        if tag & REPEATED == 0 {
            place.copy_from_slice(bytes);
        } else {
            place.fill(bytes[0]);
        }
    }
    Some((repairs, files))
}

/// The input that describes what is on a disk; nothing is to be put right in it.
pub(crate) fn encode(disk: &SimulatedDevice) -> Vec<u8> {
    let mut input = vec![0];
    for name in disk.list().unwrap_or_default() {
        let tag = match name.strip_prefix("segment-").map(str::parse::<u8>) {
            Some(Ok(number)) => number + 1,
            _ if name == "superblock" => 0,
            // Without its checkpoint a database is read from its log.
            _ => continue,
        };
        let bytes = disk.bytes(&name);
        let mut at = 0;
        while at < bytes.len() {
            let (byte, run) = (bytes[at], run_at(&bytes, at));
            let chunk = match run {
                _ if byte == 0 => run,
                // So long that a chunk of its own is shorter.
                16.. => {
                    chunk(&mut input, tag | REPEATED, at, run, &[byte]);
                    run
                }
                _ => {
                    let end = (at..bytes.len()).find(|&end| run_at(&bytes, end) >= 16).unwrap_or(bytes.len());
                    let end = end.min(at + usize::from(u16::MAX));
                    chunk(&mut input, tag, at, end - at, &bytes[at..end]);
                    end - at
                }
            };
            at += chunk;
        }
    }
    input
}

fn run_at(bytes: &[u8], at: usize) -> usize {
    let same = bytes[at..].iter().take(usize::from(u16::MAX)).take_while(|&&byte| byte == bytes[at]);
    same.count()
}

fn chunk(input: &mut Vec<u8>, tag: u8, at: usize, length: usize, stored: &[u8]) {
    input.push(tag);
    input.extend((at as u32).to_le_bytes());
    input.extend((length as u16).to_le_bytes());
    input.extend_from_slice(stored);
}
