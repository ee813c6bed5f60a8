//! A backup's stream: what it makes is what a second reading of the format says, or it is refused at the same frame, and nothing is left.
//!
//! ```text
//!  input    repairs 1 | beginning 16 | frame ...
//!  frame    head 32 | body             (unless bit 3 of the repairs is set: a write's body is one byte, to be repeated)
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln::device::{Device as _, SimulatedDevice};
use kiln::{ErrorKind, Kiln};

const BLOCK: u64 = 4096;
const BEGINNING: usize = 16;
const HEAD: usize = 32;
const BODY_MAX: usize = 1 << 20;
const NAME_MAX: usize = 255;
/// Files longer than this together have no room.
const CAPACITY: u64 = 4 << 20;

const CREATE: u32 = 1;
const WRITE: u32 = 2;
const ALLOCATE: u32 = 3;
const RENAME: u32 = 5;
const END: u32 = 7;

/// Restores the stream that the input describes.
pub(crate) fn stream(input: &[u8]) {
    let Some((&repairs, rest)) = input.split_first() else { return };
    let mut stream = if repairs & 8 == 0 { expand(rest) } else { rest.to_vec() };
    repair(&mut stream, repairs);
    let disk = SimulatedDevice::new(0);
    disk.set_capacity(Some(CAPACITY));
    let restored = Kiln::restore_stream_on(&stream[..], Arc::new(disk.clone()), |_| {});
    let told = read(&stream);
    let error = match (restored, told) {
        (Ok(backup), Ok(Told { horizon, files })) => {
            assert_eq!(backup.horizon.number(), horizon);
            let found = disk.list().unwrap_or_default().into_iter().map(|name| (disk.bytes(&name), name));
            assert_eq!(found.map(|(bytes, name)| (name, bytes)).collect::<BTreeMap<_, _>>(), files);
            return;
        }
        (Ok(_), Err(refused)) => panic!("it is restored, and should be refused: {refused:?}"),
        (Err(error), Ok(_)) => panic!("it is whole, and refused: {error}"),
        (Err(error), Err(refused)) => {
            let found = match error.kind() {
                ErrorKind::Corrupted => error.place().map(|(_, place)| Refused::Damaged(place)),
                ErrorKind::Version => Some(Refused::OtherFormat),
                ErrorKind::NoSpace => Some(Refused::NoRoom),
                _ => None,
            };
            assert_eq!(found, Some(refused), "{error}");
            error
        }
    };
    assert!(disk.list().is_ok_and(|names| names.is_empty()), "something is left: {error}");
}

/// Why a stream is refused; of damage where the frame begins.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    Damaged(u64),
    OtherFormat,
    NoRoom,
}

/// What a stream makes.
struct Told {
    horizon: u64,
    files: BTreeMap<String, Vec<u8>>,
}

/// A file: its name, its length, and the blocks of it that were written.
#[derive(Default)]
struct File {
    name: String,
    length: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

/// The stream of an input in which the body of a write is one byte.
fn expand(input: &[u8]) -> Vec<u8> {
    let (beginning, mut rest) = input.split_at(input.len().min(BEGINNING));
    let mut stream = beginning.to_vec();
    while let Some((head, behind)) = rest.split_at_checked(HEAD) {
        let length = (word(head, 16) as usize).min(BODY_MAX);
        stream.extend(head);
        if stream.len() > CAPACITY as usize {
            break;
        }
        let stored = if word(head, 0) == WRITE { length.min(1) } else { length }.min(behind.len());
        let (body, behind) = behind.split_at(stored);
        match body {
            [byte] if word(head, 0) == WRITE => stream.resize(stream.len() + length, *byte),
            body => stream.extend(body),
        }
        rest = behind;
    }
    stream.extend(rest);
    stream
}

/// The input that [`expand`] makes such a stream of, with its writes' bodies of one byte each; for the corpus.
pub(crate) fn shorten(stream: &[u8]) -> Vec<u8> {
    let mut input = [&[0], &stream[..BEGINNING]].concat();
    let mut at = BEGINNING;
    while let Some(head) = stream.get(at..at + HEAD) {
        let body = &stream[at + HEAD..at + HEAD + word(head, 16) as usize];
        input.extend(head);
        input.extend(if word(head, 0) == WRITE { &body[..1] } else { body });
        at += HEAD + body.len();
    }
    input
}

/// Makes the checksums right: of the beginning, of bodies and of heads, unless bits 0 to 2 say otherwise.
fn repair(stream: &mut [u8], repairs: u8) {
    if stream.len() < BEGINNING {
        return;
    }
    if repairs & 1 == 0 {
        put_sum(stream, 12, 0..12);
    }
    let (mut at, mut before) = (BEGINNING, word(stream, 12));
    while at + HEAD <= stream.len() {
        let body = at + HEAD..stream.len().min(at + HEAD + (word(stream, at + 16) as usize).min(BODY_MAX));
        if repairs & 2 == 0 {
            put_sum(stream, at + 20, body.clone());
        }
        if repairs & 4 == 0 {
            stream[at + 24..at + 28].copy_from_slice(&before.to_le_bytes());
            put_sum(stream, at + 28, at..at + 28);
        }
        before = word(stream, at + 28);
        at = body.end;
    }
}

fn put_sum(bytes: &mut [u8], at: usize, of: std::ops::Range<usize>) {
    let sum = crc32c::crc32c(&bytes[of]).to_le_bytes();
    bytes[at..at + 4].copy_from_slice(&sum);
}

/// The second reading.
fn read(stream: &[u8]) -> Result<Told, Refused> {
    let beginning = stream.get(..BEGINNING).ok_or(Refused::Damaged(0))?;
    if &beginning[..8] != b"KILNBACK" || word(beginning, 12) != crc32c::crc32c(&beginning[..12]) {
        return Err(Refused::Damaged(0));
    }
    if word(beginning, 8) != 1 {
        return Err(Refused::OtherFormat);
    }
    let (mut at, mut before, mut files) = (BEGINNING, word(beginning, 12), Vec::<File>::new());
    loop {
        let damaged = || Refused::Damaged(at as u64);
        let head = stream.get(at..at + HEAD).ok_or_else(damaged)?;
        let length = word(head, 16) as usize;
        let body = stream.get(at + HEAD..).and_then(|rest| rest.get(..length)).ok_or_else(damaged)?;
        let sums = [word(head, 28), word(head, 24), word(head, 20)];
        if sums != [crc32c::crc32c(&head[..28]), before, crc32c::crc32c(body)] {
            return Err(damaged());
        }
        let number = u64::from(word(head, 8)) | u64::from(word(head, 12)) << 32;
        if word(head, 0) == END && length == 0 {
            let whole = files.into_iter().map(File::whole);
            return Ok(Told { horizon: number, files: whole.collect() });
        }
        change(&mut files, (word(head, 0), word(head, 4) as usize, number), body).map_err(|refused| {
            match refused {
                Refused::Damaged(_) => damaged(),
                other => other,
            }
        })?;
        (at, before) = (at + HEAD + length, sums[0]);
    }
}

/// One frame: its kind, file and number.
fn change(
    files: &mut Vec<File>,
    (kind, file, number): (u32, usize, u64),
    body: &[u8],
) -> Result<(), Refused> {
    let damaged = Refused::Damaged(0);
    let name = || {
        let name = std::str::from_utf8(body).ok()?;
        let refused = ["", ".", "..", "LOCK"].contains(&name) || name.contains(['/', '\0']);
        let taken = files.iter().any(|file| file.name == name);
        (!refused && !taken && body.len() <= NAME_MAX).then(|| name.to_owned())
    };
    match kind {
        CREATE if file == files.len() => {
            let name = name().ok_or(damaged)?;
            files.push(File { name, ..File::default() });
        }
        RENAME => {
            let name = name().ok_or(damaged)?;
            files.get_mut(file).ok_or(Refused::Damaged(0))?.name = name;
        }
        WRITE => {
            let blocks = number.is_multiple_of(BLOCK) && (body.len() as u64).is_multiple_of(BLOCK);
            let fits = number <= i64::MAX as u64 - body.len() as u64;
            let written = files.get_mut(file).filter(|_| blocks && fits && body.len() <= BODY_MAX);
            let written = written.ok_or(damaged)?;
            if !body.is_empty() {
                written.length = written.length.max(number + body.len() as u64);
            }
            let pieces = body.chunks(BLOCK as usize).zip((number / BLOCK)..);
            written.blocks.extend(pieces.map(|(piece, at)| (at, piece.to_vec())));
        }
        ALLOCATE if body.is_empty() && number <= i64::MAX as u64 => {
            let allocated = files.get_mut(file).ok_or(damaged)?;
            allocated.length = allocated.length.max(number);
        }
        4 if body.is_empty() => drop(files.get(file).ok_or(damaged)?),
        6 if body.is_empty() => {}
        _ => return Err(damaged),
    }
    let used = files.iter().map(|file| file.length.next_multiple_of(BLOCK)).fold(0, u64::saturating_add);
    if used > CAPACITY { Err(Refused::NoRoom) } else { Ok(()) }
}

impl File {
    fn whole(self) -> (String, Vec<u8>) {
        let mut bytes = vec![0; self.length as usize];
        for (at, block) in self.blocks {
            let start = (at * BLOCK) as usize;
            bytes[start..start + block.len()].copy_from_slice(&block);
        }
        (self.name, bytes)
    }
}
