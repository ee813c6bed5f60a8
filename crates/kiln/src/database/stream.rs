//! A backup as one stream of bytes: what is done to the files of a copy, in the order in which it is done.
//!
//! ```text
//!   beginning | frame: create segment.new | frame: allocate | frame: write, with its bytes | ... | frame: end
//! ```
//!
//! [`StreamDevice`] is a device that writes down each change instead of making it, so that a backup onto it is a backup like any other; [`replay`] makes
//! the changes, on a device with nothing on it. So a restored copy comes to be as a copied one does: each file is synced before it has its
//! name, and the superblock comes last. `docs/format.md` has the bytes. Every frame's head has the checksum of its body and of the head before, so that none can be left out or
//! change places.
//!
//! *Rejected: an archive of files* (tar). It says how long a file is before the file, which nobody knows of the log's end and of the tree before they are
//! copied, and has no checksums.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use super::backup::{Backup, BackupProgress, is_of_database};
use crate::device::{AlignedBuffer, BLOCK_BYTES, Device, DeviceFile, DeviceLock, OpenMode};
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::clock::Version;
use crate::planted::{Bug, planted};
use crate::sync::Mutex;

/// What a stream begins with, and its format.
const MAGIC: [u8; 8] = *b"KILNBACK";
const FORMAT: u32 = 1;
const BEGINNING_BYTES: usize = 16;
const HEAD_BYTES: usize = 32;
/// The longest body.
const BODY_BYTES_MAX: usize = 1 << 20;
/// The longest file name.
const NAME_BYTES_MAX: usize = 255;
/// The longest file that a system has.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;
#[cfg(test)]
pub(crate) const OFFSETS: [(&str, usize); 7] = [
    ("kind", 0),
    ("file", 4),
    ("number", 8),
    ("body bytes", 16),
    ("body checksum", 20),
    ("checksum before", 24),
    ("head checksum", 28),
];

/// What a frame has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A new file with the next number gets the body for its name.
    Create = 1,
    /// The body is written from the byte `number` on.
    Write = 2,
    /// Space is reserved for so many bytes.
    Allocate = 3,
    /// The file's contents are made durable.
    Sync = 4,
    /// The file gets the body for its name.
    Rename = 5,
    /// The names are made durable.
    SyncDirectory = 6,
    /// That was all: the number is the version up to which the copy has all commits.
    End = 7,
}

impl Kind {
    const ALL: [Kind; 7] =
        [Kind::Create, Kind::Write, Kind::Allocate, Kind::Sync, Kind::Rename, Kind::SyncDirectory, Kind::End];
}

/// A frame but for its body.
#[derive(Clone, Copy, Debug)]
struct Frame {
    kind: Kind,
    file: u32,
    number: u64,
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |field| u32::from_le_bytes(*field))
}

fn encode_beginning() -> [u8; BEGINNING_BYTES] {
    let mut bytes = [0; BEGINNING_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..12]);
    bytes[12..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The head of a frame behind one whose head has the checksum `before`; and its own checksum.
fn encode_head(frame: Frame, body: &[u8], before: u32) -> ([u8; HEAD_BYTES], u32) {
    let mut bytes = [0; HEAD_BYTES];
    let mut put = |offset: usize, field: &[u8]| bytes[offset..offset + field.len()].copy_from_slice(field);
    put(0, &(frame.kind as u32).to_le_bytes());
    put(4, &frame.file.to_le_bytes());
    put(8, &frame.number.to_le_bytes());
    put(16, &(body.len() as u32).to_le_bytes());
    put(20, &crc32c::crc32c(body).to_le_bytes());
    put(24, &before.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..28]);
    bytes[28..].copy_from_slice(&checksum.to_le_bytes());
    (bytes, checksum)
}

/// A device that writes down what is done to its files.
#[derive(Clone)]
pub(super) struct StreamDevice(Arc<Mutex<Stream>>);

struct Stream {
    out: Box<dyn Write + Send>,
    /// Of the head before.
    checksum: u32,
    /// The files' numbers, by name.
    names: BTreeMap<String, u32>,
    files_count: u32,
}

impl Stream {
    fn put(&mut self, frame: Frame, body: &[u8]) -> io::Result<()> {
        let (head, checksum) = encode_head(frame, body, self.checksum);
        self.out.write_all(&head)?;
        self.out.write_all(body)?;
        self.checksum = checksum;
        Ok(())
    }
}

impl StreamDevice {
    pub(super) fn begin(mut out: Box<dyn Write + Send>) -> io::Result<StreamDevice> {
        let beginning = encode_beginning();
        out.write_all(&beginning)?;
        let checksum = u32_at(&beginning, 12);
        Ok(StreamDevice(Arc::new(Mutex::new(Stream {
            out,
            checksum,
            names: BTreeMap::new(),
            files_count: 0,
        }))))
    }

    /// Everything has been done.
    pub(super) fn end(&self, backup: &Backup) -> io::Result<()> {
        let mut stream = self.0.lock();
        stream.put(Frame { kind: Kind::End, file: 0, number: backup.horizon.number() }, &[])?;
        stream.out.flush()
    }
}

impl fmt::Debug for StreamDevice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StreamDevice").finish_non_exhaustive()
    }
}

/// What a backup does not do.
fn unsupported() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "a stream is only written")
}

impl Device for StreamDevice {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DeviceFile>> {
        let mut stream = self.0.lock();
        let number = match (mode, stream.names.get(name)) {
            (OpenMode::Create, None) => {
                let number = stream.files_count;
                stream.put(Frame { kind: Kind::Create, file: number, number: 0 }, name.as_bytes())?;
                stream.names.insert(name.to_owned(), number);
                stream.files_count += 1;
                number
            }
            (OpenMode::Create, Some(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
            (_, known) => *known.ok_or(io::ErrorKind::NotFound)?,
        };
        Ok(Arc::new(StreamFile { stream: self.clone(), number, last: Mutex::default() }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().names.keys().cloned().collect())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        // Only what is given up is removed, and then the stream has no end.
        Err(unsupported())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut stream = self.0.lock();
        let file = stream.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        stream.names.insert(to.to_owned(), file);
        stream.put(Frame { kind: Kind::Rename, file, number: 0 }, to.as_bytes())
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.0.lock().put(Frame { kind: Kind::SyncDirectory, file: 0, number: 0 }, &[])
    }

    fn lock(&self) -> io::Result<Box<dyn DeviceLock>> {
        Ok(Box::new(Own))
    }

    fn random(&self) -> io::Result<[u8; 32]> {
        Err(unsupported())
    }

    fn time_us(&self) -> u64 {
        0
    }

    fn describe(&self, name: &str) -> String {
        format!("{name} of a backup's stream")
    }
}

/// Nobody else has the stream.
#[derive(Debug)]
struct Own;

impl DeviceLock for Own {}

struct StreamFile {
    stream: StreamDevice,
    number: u32,
    /// Where the last write was, and its bytes: a tree's root node is looked at once more.
    last: Mutex<(u64, Vec<u8>)>,
}

impl StreamFile {
    fn put(&self, kind: Kind, number: u64, body: &[u8]) -> io::Result<()> {
        self.stream.0.lock().put(Frame { kind, file: self.number, number }, body)
    }
}

impl fmt::Debug for StreamFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StreamFile").field("number", &self.number).finish_non_exhaustive()
    }
}

impl DeviceFile for StreamFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let last = self.last.lock();
        let from = offset.checked_sub(last.0).and_then(|from| usize::try_from(from).ok());
        let bytes = from.and_then(|from| last.1.get(from..from + buffer.len())).ok_or_else(unsupported)?;
        buffer.copy_from_slice(bytes);
        Ok(buffer.len())
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        for (part, body) in buffer.chunks(BODY_BYTES_MAX).enumerate() {
            self.put(Kind::Write, offset + (part * BODY_BYTES_MAX) as u64, body)?;
        }
        let mut last = self.last.lock();
        last.0 = offset;
        last.1.clear();
        last.1.extend_from_slice(buffer);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.put(Kind::Sync, 0, &[])
    }

    fn size(&self) -> io::Result<u64> {
        Err(unsupported())
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.put(Kind::Allocate, bytes, &[])
    }

    fn clear(&self, _: u64) -> io::Result<()> {
        Err(unsupported())
    }

    fn truncate(&self, _: u64) -> io::Result<()> {
        Err(unsupported())
    }
}

/// A stream that is read.
struct Incoming<R> {
    input: R,
    /// Where it is, and the last frame began.
    offset: u64,
    frame_offset: u64,
    checksum: u32,
    /// A body, as long as the longest so far.
    body: AlignedBuffer,
    body_bytes: usize,
}

impl<R: Read> Incoming<R> {
    fn corrupted(&self, what: &str) -> Error {
        Error::corrupted_copy("a backup's stream", self.frame_offset, what)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof if self.offset == 0 => {
                self.corrupted("it is empty, or as good as that")
            }
            io::ErrorKind::UnexpectedEof => self.corrupted("it ends in what begins here"),
            _ => Error::io("reading a backup's stream", error),
        })?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn begin(input: R) -> Result<Incoming<R>> {
        let body = AlignedBuffer::default();
        let mut incoming = Incoming { input, offset: 0, frame_offset: 0, checksum: 0, body, body_bytes: 0 };
        let mut bytes = [0; BEGINNING_BYTES];
        incoming.fill(&mut bytes)?;
        if bytes[..8] != MAGIC || u32_at(&bytes, 12) != crc32c::crc32c(&bytes[..12]) {
            return Err(incoming.corrupted("it does not begin as a backup of Kiln's"));
        }
        let format = u32_at(&bytes, 8);
        if format != FORMAT {
            let what = format!(
                "the backup's stream has format {format}; this Kiln reads format {FORMAT}. Use a newer Kiln"
            );
            return Err(Error::new(ErrorKind::Version, what));
        }
        incoming.checksum = u32_at(&bytes, 12);
        Ok(incoming)
    }

    /// The next frame, checked, with its body in the buffer.
    fn next(&mut self) -> Result<Frame> {
        self.frame_offset = self.offset;
        let mut head = [0; HEAD_BYTES];
        self.fill(&mut head)?;
        let checksum = u32_at(&head, 28);
        if checksum != crc32c::crc32c(&head[..28]) {
            return Err(self.corrupted("a frame whose head has a wrong checksum"));
        }
        if u32_at(&head, 24) != self.checksum {
            return Err(self.corrupted("a frame that does not follow the one before"));
        }
        self.body_bytes = u32_at(&head, 16) as usize;
        let kind = Kind::ALL.into_iter().find(|&kind| kind as u32 == u32_at(&head, 0));
        let kind = kind.ok_or_else(|| self.corrupted("a frame of a kind that is not known"))?;
        let bytes_max = match kind {
            Kind::Write => BODY_BYTES_MAX,
            Kind::Create | Kind::Rename => NAME_BYTES_MAX,
            Kind::Allocate | Kind::Sync | Kind::SyncDirectory | Kind::End => 0,
        };
        if self.body_bytes > bytes_max {
            return Err(self.corrupted("a frame with a body that is too long"));
        }
        let mut body = std::mem::take(&mut self.body);
        body.grow(self.body_bytes);
        let filled = self.fill(&mut body[..self.body_bytes]);
        self.body = body;
        filled?;
        if crc32c::crc32c(self.body()) != u32_at(&head, 20) && !planted(Bug::FrameUnchecked) {
            return Err(self.corrupted("a frame whose body has a wrong checksum"));
        }
        self.checksum = checksum;
        let number = u64::from_le_bytes(std::array::from_fn(|index| head[8 + index]));
        self.check_place(kind, number)?;
        Ok(Frame { kind, file: u32_at(&head, 4), number })
    }

    /// What is written is whole blocks, where a file can have them.
    fn check_place(&self, kind: Kind, number: u64) -> Result<()> {
        let blocks = |bytes: u64| bytes.is_multiple_of(BLOCK_BYTES as u64);
        let is_sound = match kind {
            Kind::Write => {
                let bytes = self.body_bytes as u64;
                blocks(number) && blocks(bytes) && number <= FILE_BYTES_MAX - bytes
            }
            Kind::Allocate => number <= FILE_BYTES_MAX,
            _ => true,
        };
        if is_sound { Ok(()) } else { Err(self.corrupted("a frame for a place that no file has")) }
    }

    fn body(&self) -> &[u8] {
        &self.body[..self.body_bytes]
    }

    /// The body as a name for a file that none of these has.
    fn name(&self, files: &[String]) -> Result<String> {
        let name = std::str::from_utf8(self.body()).ok().filter(|name| is_of_database(name));
        let name = name.ok_or_else(|| self.corrupted("a file's name that no file of a database has"))?;
        match files.iter().any(|taken| taken == name) {
            false => Ok(name.to_owned()),
            true => Err(self.corrupted("a file's name that another file has")),
        }
    }
}

/// Makes on a device with nothing on it what a stream says.
///
/// # Errors
/// `Corrupted`, with the offset of the frame, if the stream is not what was written; `Version` if its format is newer; `Io` and `NoSpace`. There may be
/// a part of the files then.
pub(super) fn replay(
    device: &dyn Device,
    input: impl Read,
    mut progress: impl FnMut(BackupProgress),
) -> Result<Backup> {
    let mut incoming = Incoming::begin(input)?;
    let mut files: Vec<String> = Vec::new();
    // The one that is written at the moment: all of them at once would be as many as the log has segments.
    let mut open: Option<(u32, Arc<dyn DeviceFile>)> = None;
    let mut bytes = 0;
    loop {
        let frame = incoming.next()?;
        let failed = |error| Error::io("writing a restored file", error);
        match frame.kind {
            Kind::End => return Ok(Backup { horizon: Version::new(frame.number), bytes }),
            Kind::SyncDirectory => device.sync_directory().map_err(failed)?,
            Kind::Create => {
                let name = incoming.name(&files)?;
                if frame.file as usize != files.len() {
                    return Err(incoming.corrupted("a file with a number that is not the next"));
                }
                open = Some((frame.file, device.open(&name, OpenMode::Create).map_err(failed)?));
                files.push(name);
            }
            Kind::Write | Kind::Allocate | Kind::Sync | Kind::Rename => {
                let new_name = match frame.kind {
                    Kind::Rename => Some(incoming.name(&files)?),
                    _ => None,
                };
                let Some(name) = files.get_mut(frame.file as usize) else {
                    return Err(incoming.corrupted("a frame of a file that was not created"));
                };
                let (_, file) = match open.take_if(|(number, _)| *number == frame.file) {
                    Some(open) => open,
                    None => (frame.file, device.open(name, OpenMode::ReadWrite).map_err(failed)?),
                };
                match (frame.kind, new_name) {
                    (_, Some(new)) => device.rename(name, &new).map(|()| *name = new),
                    (Kind::Allocate, _) => file.allocate(frame.number),
                    (Kind::Sync, _) if planted(Bug::RestoreNotSynced) => Ok(()),
                    (Kind::Sync, _) => file.sync(),
                    _ => file.write_at(incoming.body(), frame.number),
                }
                .map_err(failed)?;
                open = Some((frame.file, file));
            }
        }
        bytes += incoming.body_bytes as u64;
        progress(BackupProgress { done_bytes: bytes, total_bytes: bytes });
    }
}

const _: () = assert!(BODY_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
