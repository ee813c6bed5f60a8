//! Sorted runs: what is sorted and does not fit into memory, in a file that nobody needs after a crash (external merge sort: Knuth,
//! The Art of Computer Programming 3, 5.4).
//!
//! ```text
//!  run 0: | chunk | chunk | chunk |  run 1: | chunk | ...      entries lie in chunks, and none in two
//! ```
//!
//! A run is written once, and read from its beginning, a chunk at a time, the next one while the last one is looked at. Where the chunks are, and their checksums, is known in memory only. The
//! file has its name for a moment: as long as it is open the operating system keeps it, and after a crash nobody has to remove it,
//! unless the crash came between its making and that.

use std::io;
use std::sync::Arc;

use crate::device::{
    AlignedBuffer, BLOCK_BYTES, Device, DeviceFile, FinishedRead, OpenMode, QueuedRead, ReadQueue,
};
use crate::error::{Error, Result};

/// The file's name, while it has one.
pub(crate) const FILE: &str = "runs.new";
/// What is written at once.
const WRITE_BYTES: usize = 1 << 20;
/// Bounds of a chunk that has more than one entry.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Runs in a file.
pub(crate) struct Runs {
    device: Arc<dyn Device>,
    /// Made with the first run.
    file: Option<Arc<dyn DeviceFile>>,
    runs: Vec<Vec<Chunk>>,
    /// The file's length.
    bytes: u64,
    chunk_bytes: usize,
}

#[derive(Clone, Copy)]
struct Chunk {
    offset: u64,
    /// Of its entries; it ends with its last block.
    bytes: usize,
    checksum: u32,
}

impl Runs {
    /// No runs. All that there will be can be read side by side in about so much memory, if they are as many as expected.
    pub(crate) fn new(device: Arc<dyn Device>, memory_bytes: usize, expected: usize) -> Runs {
        // Of each run two chunks are in memory.
        let chunk_bytes = (memory_bytes / 2 / expected.max(1)).clamp(BLOCK_BYTES, CHUNK_BYTES_MAX);
        let chunk_bytes = chunk_bytes - chunk_bytes % BLOCK_BYTES;
        Runs { device, file: None, runs: Vec::new(), bytes: 0, chunk_bytes }
    }

    pub(crate) fn count(&self) -> usize {
        self.runs.len()
    }

    /// Bytes that they take on disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes a further run.
    ///
    /// # Errors
    /// `Io` or `NoSpace`, if the file cannot be made or written. Then there is no further run.
    pub(crate) fn write<'e>(&mut self, entries: impl Iterator<Item = &'e [u8]>) -> Result<()> {
        let written = self.write_run(entries);
        let chunks = written.map_err(|error| Error::io("writing sorted runs of what is to settle", error))?;
        self.runs.push(chunks);
        Ok(())
    }

    fn write_run<'e>(&mut self, entries: impl Iterator<Item = &'e [u8]>) -> io::Result<Vec<Chunk>> {
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => Arc::clone(self.file.insert(create(&*self.device)?)),
        };
        let mut chunks = Vec::new();
        let mut buffer = AlignedBuffer::default();
        // Where the chunk begins that is being filled, and its end.
        let (mut start, mut end) = (0, 0);
        let mut entries = entries.peekable();
        while let Some(entry) = entries.next() {
            buffer.grow((end + entry.len()).next_multiple_of(BLOCK_BYTES));
            buffer[end..end + entry.len()].copy_from_slice(entry);
            end += entry.len();
            let next_bytes = entries.peek().map(|next| next.len());
            if next_bytes.is_some_and(|bytes| end - start + bytes <= self.chunk_bytes) {
                continue;
            }
            let filled = end.next_multiple_of(BLOCK_BYTES);
            buffer[end..filled].fill(0);
            let checksum = crc32c::crc32c(&buffer[start..filled]);
            chunks.push(Chunk { offset: self.bytes + start as u64, bytes: end - start, checksum });
            (start, end) = (filled, filled);
            if filled >= WRITE_BYTES || next_bytes.is_none() {
                file.write_at(&buffer[..filled], self.bytes)?;
                self.bytes += filled as u64;
                (start, end) = (0, 0);
            }
        }
        Ok(chunks)
    }

    /// What reads all runs side by side.
    pub(crate) fn readers(&self) -> RunReaders<'_> {
        let all = self.runs.iter().map(|chunks| Reading {
            chunks: chunks.iter(),
            buffer: AlignedBuffer::default(),
            bytes: 0,
            ahead: Ahead::Nothing,
        });
        let mut readers = RunReaders { runs: self, queue: None, reading: all.collect() };
        (0..self.count()).for_each(|run| readers.begin(run, AlignedBuffer::default()));
        readers
    }
}

/// A new file without a name.
fn create(device: &dyn Device) -> io::Result<Arc<dyn DeviceFile>> {
    remove_left(device)?;
    let file = device.open(FILE, OpenMode::Create)?;
    device.remove(FILE)?;
    Ok(file)
}

/// Removes the file that a crash has left, if there is one.
pub(crate) fn remove_left(device: &dyn Device) -> io::Result<()> {
    match device.list()?.iter().any(|name| name == FILE) {
        true => device.remove(FILE),
        false => Ok(()),
    }
}

/// Reads runs side by side, each from its beginning.
pub(crate) struct RunReaders<'r> {
    runs: &'r Runs,
    /// Made with the first read.
    queue: Option<Box<dyn ReadQueue>>,
    reading: Vec<Reading<'r>>,
}

/// How far a run is read.
struct Reading<'r> {
    /// Those of which reading has not begun.
    chunks: std::slice::Iter<'r, Chunk>,
    /// The chunk that was read last, and the bytes of its entries.
    buffer: AlignedBuffer,
    bytes: usize,
    /// The one that follows it.
    ahead: Ahead,
}

enum Ahead {
    Nothing,
    InFlight(Chunk),
    Read(Chunk, FinishedRead),
}

impl RunReaders<'_> {
    /// Takes the next chunk of a run; false if there is none.
    ///
    /// # Errors
    /// `Io`, also if it is not what was written; then no more can be read.
    pub(crate) fn next(&mut self, run: usize) -> Result<bool> {
        loop {
            match std::mem::replace(&mut self.reading[run].ahead, Ahead::Nothing) {
                Ahead::Nothing => return Ok(false),
                Ahead::Read(chunk, read) => return self.take(run, chunk, read).map(|()| true),
                in_flight @ Ahead::InFlight(_) => {
                    self.reading[run].ahead = in_flight;
                    let done = self.queue.as_mut().and_then(|queue| queue.wait());
                    self.note(done.ok_or_else(|| Error::io(READING, io::ErrorKind::Other.into()))?);
                }
            }
        }
    }

    fn take(&mut self, run: usize, chunk: Chunk, read: FinishedRead) -> Result<()> {
        let FinishedRead { buffer, outcome, .. } = read;
        let checked = outcome.and_then(|bytes| {
            let is_sound = bytes == buffer.len() && crc32c::crc32c(&buffer) == chunk.checksum;
            if is_sound { Ok(()) } else { Err(not_what_was_written(chunk.offset)) }
        });
        checked.map_err(|error| Error::io(READING, error))?;
        let reading = &mut self.reading[run];
        reading.bytes = chunk.bytes;
        let free = std::mem::replace(&mut reading.buffer, buffer);
        self.begin(run, free);
        Ok(())
    }

    /// Begins to read the next chunk of a run, into a buffer that is free.
    fn begin(&mut self, run: usize, mut buffer: AlignedBuffer) {
        let (reading, runs) = (&mut self.reading[run], self.runs);
        let (Some(&chunk), Some(file)) = (reading.chunks.next(), &runs.file) else { return };
        let whole = chunk.bytes.next_multiple_of(BLOCK_BYTES);
        if buffer.len() != whole {
            buffer = AlignedBuffer::for_reading(whole);
        }
        reading.ahead = Ahead::InFlight(chunk);
        let queue = self.queue.get_or_insert_with(|| runs.device.read_queue());
        queue.submit(QueuedRead { file: Arc::clone(file), offset: chunk.offset, buffer, token: run as u64 });
        if let Some(done) = queue.take_done() {
            self.note(done);
        }
    }

    /// Takes note of a read that is done.
    fn note(&mut self, read: FinishedRead) {
        let ahead = &mut self.reading[read.token as usize].ahead;
        if let &mut Ahead::InFlight(chunk) = ahead {
            *ahead = Ahead::Read(chunk, read);
        }
    }

    /// The entries of the chunk of a run that was taken last.
    pub(crate) fn chunk(&self, run: usize) -> &[u8] {
        let reading = &self.reading[run];
        &reading.buffer[..reading.bytes]
    }
}

const READING: &str = "reading sorted runs of what is to settle";

fn not_what_was_written(offset: u64) -> io::Error {
    let what =
        format!("what is at offset {offset} is not what was written there; the disk, or memory, is faulty");
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::SimulatedDevice;
    use crate::error::ErrorKind;

    /// Entries of all lengths, some of which are longer than a chunk.
    fn entries(run: usize) -> Vec<Vec<u8>> {
        let lengths =
            (0..400).map(|number| if number % 100 == 7 { 30_000 + number } else { number * 37 % 900 + 1 });
        lengths.map(|length| vec![(run * 31 + length) as u8; length]).collect()
    }

    fn runs(device: &SimulatedDevice, count: usize) -> Runs {
        let mut runs = Runs::new(Arc::new(device.clone()), 64 << 10, 8);
        for run in 0..count {
            runs.write(entries(run).iter().map(Vec::as_slice)).unwrap();
        }
        runs
    }

    #[test]
    fn runs_are_read_side_by_side_as_they_were_written() {
        let device = SimulatedDevice::new(1);
        let runs = runs(&device, 8);
        let (mut readers, mut read) = (runs.readers(), vec![Vec::new(); 8]);
        let mut are_at_end = false;
        while !std::mem::replace(&mut are_at_end, true) {
            for (run, read) in read.iter_mut().enumerate() {
                if readers.next(run).unwrap() {
                    let chunk = readers.chunk(run);
                    read.extend_from_slice(chunk);
                    assert!(chunk.len() <= 40 << 10, "a chunk is short, or one entry");
                    are_at_end = false;
                }
            }
        }
        for (run, read) in read.iter().enumerate() {
            assert!(*read == entries(run).concat(), "run {run}");
        }
    }

    #[test]
    fn what_a_crash_has_left_is_removed() {
        let device = SimulatedDevice::new(1);
        device.open(FILE, OpenMode::Create).unwrap();
        let kept = runs(&device, 1);
        assert_eq!((device.list().unwrap(), kept.count()), (vec![], 1));
        device.open(FILE, OpenMode::Create).unwrap();
        remove_left(&device).unwrap();
        assert!(device.list().unwrap().is_empty());
    }

    #[test]
    fn damage_is_an_error_wherever_it_is() {
        let device = SimulatedDevice::new(1);
        let runs = runs(&device, 2);
        let file = Arc::clone(runs.file.as_ref().unwrap());
        for block in 0..runs.bytes() / BLOCK_BYTES as u64 {
            let mut kept = AlignedBuffer::new(BLOCK_BYTES);
            file.read_at(&mut kept, block * BLOCK_BYTES as u64).unwrap();
            let mut damaged = kept.clone();
            damaged[7] ^= 1;
            file.write_at(&damaged, block * BLOCK_BYTES as u64).unwrap();
            let read_run = |run| {
                let mut readers = runs.readers();
                while readers.next(run)? {}
                Ok(())
            };
            let read: Vec<Result<()>> = (0..2).map(read_run).collect();
            let errors: Vec<_> = read.into_iter().filter_map(Result::err).collect();
            assert!(matches!(&errors[..], [error] if error.kind() == ErrorKind::Io), "{errors:?}");
            file.write_at(&kept, block * BLOCK_BYTES as u64).unwrap();
        }
        file.truncate(0).unwrap();
        assert!(runs.readers().next(0).is_err());
    }
}
