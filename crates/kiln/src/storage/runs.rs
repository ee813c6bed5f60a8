//! Sorted runs: what is sorted and does not fit into memory, in a file that nobody needs after a crash (external merge sort: Knuth,
//! The Art of Computer Programming 3, 5.4).
//!
//! ```text
//!  run 0: | chunk | chunk | chunk |  run 1: | chunk | ...      entries lie in chunks, and none in two
//! ```
//!
//! A run is written once, several of them side by side into the one file, and read a chunk at a time, the next one while the last one is looked at: from its beginning, or from an
//! [entrance](Entrance) on. Where the chunks are, their checksums, and the entrances are known in memory only. The
//! file has its name for a moment: as long as it is open the operating system keeps it, and after a crash nobody has to remove it,
//! unless the crash came between its making and that.

use std::io;
use std::sync::Arc;

use crate::device::{
    AlignedBuffer, BLOCK_BYTES, Device, DeviceFile, FinishedRead, OpenMode, QueuedRead, ReadQueue,
};
use crate::error::{Error, Result};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The file's name, while it has one.
pub(crate) const FILE: &str = "runs.new";
/// What is written at once.
const WRITE_BYTES: usize = 1 << 20;
/// Bounds of a chunk that has more than one entry.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// An entrance's key is no longer than that, so that all of them take little memory.
const ENTRANCE_KEY_BYTES_MAX: usize = 256;

/// The file of runs.
pub(crate) struct Runs {
    device: Arc<dyn Device>,
    /// Made with the first run.
    file: Mutex<Option<Arc<dyn DeviceFile>>>,
    /// The file's length.
    bytes: AtomicU64,
    chunk_bytes: usize,
    entrance_bytes: u64,
}

/// An entry as it is written, and its key. They come in ascending order of distinct keys.
pub(crate) struct RunEntry<'e> {
    pub(crate) key: &'e [u8],
    pub(crate) bytes: &'e [u8],
}

/// A run.
#[derive(Default)]
pub(crate) struct Run {
    chunks: Vec<Chunk>,
    entrances: Vec<Entrance>,
}

/// Where reading may begin.
struct Entrance {
    /// The number of a chunk.
    chunk: usize,
    /// The key of its first entry.
    first: Box<[u8]>,
}

impl Run {
    /// Keys that it has, in ascending order, one for about as many bytes each.
    pub(crate) fn entrances(&self) -> impl Iterator<Item = &[u8]> {
        self.entrances.iter().map(|entrance| &*entrance.first)
    }

    /// Those chunks from which on there are all entries from `low` on.
    fn chunks_from(&self, low: &[u8]) -> &[Chunk] {
        let behind = self.entrances.partition_point(|entrance| *entrance.first <= *low);
        let first = behind.checked_sub(1).and_then(|last| self.entrances.get(last));
        &self.chunks[first.map_or(0, |entrance| entrance.chunk)..]
    }
}

#[derive(Clone, Copy)]
struct Chunk {
    offset: u64,
    /// Of its entries; it ends with its last block.
    bytes: usize,
    checksum: u32,
}

impl Runs {
    /// No runs. As many as expected can be read side by side in about so much memory. There is an entrance into each about every `entrance_bytes`.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        memory_bytes: usize,
        expected: usize,
        entrance_bytes: u64,
    ) -> Runs {
        // Of each run two chunks are in memory.
        let chunk_bytes = (memory_bytes / 2 / expected.max(1)).clamp(BLOCK_BYTES, CHUNK_BYTES_MAX);
        let chunk_bytes = chunk_bytes - chunk_bytes % BLOCK_BYTES;
        Runs { device, file: Mutex::new(None), bytes: AtomicU64::new(0), chunk_bytes, entrance_bytes }
    }

    /// Bytes that they take on disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Writes a run; others may be written at the same time.
    ///
    /// # Errors
    /// `Io` or `NoSpace`, if the file cannot be made or written.
    pub(crate) fn write<'e>(&self, entries: impl Iterator<Item = RunEntry<'e>>) -> Result<Run> {
        self.write_run(entries).map_err(|error| Error::io("writing sorted runs of what is to settle", error))
    }

    fn write_run<'e>(&self, entries: impl Iterator<Item = RunEntry<'e>>) -> io::Result<Run> {
        let file = self.file()?;
        let mut run = Run::default();
        let mut buffer = AlignedBuffer::default();
        // Where the chunk begins that is being filled, and its end; how many have their place in the file.
        let (mut start, mut end, mut placed) = (0, 0, 0);
        let mut since_entrance = u64::MAX;
        let mut entries = entries.peekable();
        while let Some(RunEntry { key, bytes }) = entries.next() {
            if start == end && since_entrance >= self.entrance_bytes && key.len() <= ENTRANCE_KEY_BYTES_MAX {
                run.entrances.push(Entrance { chunk: run.chunks.len(), first: key.into() });
                since_entrance = 0;
            }
            buffer.grow((end + bytes.len()).next_multiple_of(BLOCK_BYTES));
            buffer[end..end + bytes.len()].copy_from_slice(bytes);
            end += bytes.len();
            let next_bytes = entries.peek().map(|next| next.bytes.len());
            if next_bytes.is_some_and(|bytes| end - start + bytes <= self.chunk_bytes) {
                continue;
            }
            let filled = end.next_multiple_of(BLOCK_BYTES);
            buffer[end..filled].fill(0);
            let checksum = crc32c::crc32c(&buffer[start..filled]);
            run.chunks.push(Chunk { offset: start as u64, bytes: end - start, checksum });
            since_entrance = since_entrance.saturating_add((filled - start) as u64);
            (start, end) = (filled, filled);
            if filled >= WRITE_BYTES || next_bytes.is_none() {
                let offset = self.bytes.fetch_add(filled as u64, Ordering::Relaxed);
                file.write_at(&buffer[..filled], offset)?;
                run.chunks[placed..].iter_mut().for_each(|chunk| chunk.offset += offset);
                (start, end, placed) = (0, 0, run.chunks.len());
            }
        }
        Ok(run)
    }

    fn file(&self) -> io::Result<Arc<dyn DeviceFile>> {
        let mut file = self.file.lock();
        match &*file {
            Some(file) => Ok(Arc::clone(file)),
            None => Ok(Arc::clone(file.insert(create(&*self.device)?))),
        }
    }

    /// What reads some of its runs side by side: all entries from `low` on, and perhaps some before.
    pub(crate) fn readers<'r>(&'r self, runs: impl Iterator<Item = &'r Run>, low: &[u8]) -> RunReaders<'r> {
        let all = runs.map(|run| Reading {
            chunks: run.chunks_from(low).iter(),
            buffer: AlignedBuffer::default(),
            bytes: 0,
            ahead: Ahead::Nothing,
        });
        let file = self.file.lock().clone();
        let mut readers = RunReaders { runs: self, file, queue: None, reading: all.collect() };
        (0..readers.reading.len()).for_each(|run| readers.begin(run, AlignedBuffer::default()));
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

/// Reads runs side by side. They are numbered in the order in which they were given.
pub(crate) struct RunReaders<'r> {
    runs: &'r Runs,
    file: Option<Arc<dyn DeviceFile>>,
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
        let (Some(&chunk), Some(file)) = (reading.chunks.next(), &self.file) else { return };
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

    /// Each entry's key is its number.
    fn write(runs: &Runs, entries: &[Vec<u8>]) -> Run {
        let keys: Vec<_> = (0..entries.len() as u32).map(u32::to_be_bytes).collect();
        let entries = entries.iter().zip(&keys).map(|(bytes, key)| RunEntry { key, bytes });
        runs.write(entries).unwrap()
    }

    fn runs(device: &SimulatedDevice, count: usize) -> (Runs, Vec<Run>) {
        let runs = Runs::new(Arc::new(device.clone()), 64 << 10, 8, 16 << 10);
        let written = (0..count).map(|run| write(&runs, &entries(run))).collect();
        (runs, written)
    }

    /// What is read of each run by who enters at `low`.
    fn read(runs: &Runs, written: &[Run], low: &[u8]) -> Vec<Vec<u8>> {
        let (mut readers, mut read) = (runs.readers(written.iter(), low), vec![Vec::new(); written.len()]);
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
        read
    }

    #[test]
    fn runs_are_read_side_by_side_as_they_were_written() {
        let device = SimulatedDevice::new(1);
        let (runs, written) = runs(&device, 8);
        for (run, read) in read(&runs, &written, &[]).iter().enumerate() {
            assert!(*read == entries(run).concat(), "run {run}");
        }
    }

    #[test]
    fn runs_that_are_written_side_by_side_are_each_whole() {
        let device = SimulatedDevice::new(1);
        let runs = Runs::new(Arc::new(device), 64 << 10, 8, 16 << 10);
        // More than is written at once.
        let long = |run| entries(run).into_iter().cycle().take(4_000).collect::<Vec<_>>();
        let written: Vec<_> = std::thread::scope(|scope| {
            let runs = &runs;
            let spawn = |entries: Vec<_>| scope.spawn(move || write(runs, &entries));
            let all: Vec<_> = (0..4).flat_map(|run| [spawn(long(run)), spawn(entries(run))]).collect();
            all.into_iter().map(|run| run.join().unwrap()).collect()
        });
        for (run, read) in read(&runs, &written, &[]).iter().enumerate() {
            let whole = if run % 2 == 0 { long(run / 2) } else { entries(run / 2) };
            assert!(*read == whole.concat(), "run {run}");
        }
    }

    #[test]
    fn who_enters_a_run_at_a_key_reads_all_from_there_on_and_little_before() {
        let device = SimulatedDevice::new(1);
        let (runs, written) = runs(&device, 2);
        for run in 0..2 {
            let entries = entries(run);
            for low in (0..=entries.len()).step_by(3) {
                let read = &read(&runs, &written, &(low as u32).to_be_bytes())[run];
                let (before, wanted) = (entries[..low].concat(), entries[low..].concat());
                assert!(read.ends_with(&wanted), "from entry {low} on");
                let more = read.len() - wanted.len();
                assert!(
                    before[before.len() - more..] == read[..more] && more <= 64 << 10,
                    "{more} bytes more"
                );
            }
        }
        let entrances: Vec<_> = written[0].entrances().collect();
        assert!(entrances.len() > 8 && entrances.is_sorted() && entrances[0] == [0; 4], "{entrances:?}");
    }

    #[test]
    fn a_long_key_is_no_entrance() {
        let runs = Runs::new(Arc::new(SimulatedDevice::new(1)), 64 << 10, 8, 0);
        let keys: Vec<_> = (0..100_u8).map(|byte| vec![byte; usize::from(byte) * 10]).collect();
        let run = runs.write(keys.iter().map(|key| RunEntry { key, bytes: &[7; 9_000] })).unwrap();
        assert!(run.entrances().eq(keys.iter().take_while(|key| key.len() <= ENTRANCE_KEY_BYTES_MAX)));
        assert_eq!(read(&runs, &[run], &[99])[0].len(), 9_000 * (100 - ENTRANCE_KEY_BYTES_MAX / 10));
    }

    #[test]
    fn what_a_crash_has_left_is_removed() {
        let device = SimulatedDevice::new(1);
        device.open(FILE, OpenMode::Create).unwrap();
        let kept = runs(&device, 1);
        assert_eq!((device.list().unwrap(), kept.1.len()), (vec![], 1));
        device.open(FILE, OpenMode::Create).unwrap();
        remove_left(&device).unwrap();
        assert!(device.list().unwrap().is_empty());
    }

    #[test]
    fn damage_is_an_error_wherever_it_is() {
        let device = SimulatedDevice::new(1);
        let (runs, written) = runs(&device, 2);
        let file = runs.file().unwrap();
        for block in 0..runs.bytes() / BLOCK_BYTES as u64 {
            let mut kept = AlignedBuffer::new(BLOCK_BYTES);
            file.read_at(&mut kept, block * BLOCK_BYTES as u64).unwrap();
            let mut damaged = kept.clone();
            damaged[7] ^= 1;
            file.write_at(&damaged, block * BLOCK_BYTES as u64).unwrap();
            let read_run = |run| {
                let mut readers = runs.readers(written.iter(), &[]);
                while readers.next(run)? {}
                Ok(())
            };
            let read: Vec<Result<()>> = (0..2).map(read_run).collect();
            let errors: Vec<_> = read.into_iter().filter_map(Result::err).collect();
            assert!(matches!(&errors[..], [error] if error.kind() == ErrorKind::Io), "{errors:?}");
            file.write_at(&kept, block * BLOCK_BYTES as u64).unwrap();
        }
        file.truncate(0).unwrap();
        assert!(runs.readers(written.iter(), &[]).next(0).is_err());
    }
}
