//! Where recovery has the log from: read here, or ahead by a thread of its own.
//!
//! Both read in the order of the log and through the same [`Scanner`], so that an extent that is not whole is found at the same
//! place, after everything before it was given out.
//!
//! ```text
//!  reader:   read, check seals and checksums, cut ──▶ stretch ──▶ recovery
//!                          ▲                                        │
//!                          └──────────── stretch, to be used again ─┘
//! ```
//!
//! The reader begins before there is anything to do with what it reads: while a checkpoint is loaded, which takes processors, and
//! hardly any of the disk's time. It goes ahead as far as its memory reaches. Each stretch has what is read at once, or one extent,
//! whichever is longer; there are at least [`STRETCHES_MIN`]. Whichever side ends first, the other one finds its channel closed and
//! ends, too.

use crate::error::{Error, Result};
use crate::storage::extent::{Chain, Extent};
use crate::storage::record::Address;
use crate::storage::scanner::{Batch, Scanner};
use crate::sync::mpsc::{self, Receiver, Sender};
use crate::sync::{spawn_scoped, thread};

/// The reader makes so many stretches, however long they are: one is worked on, one waits, one is filled.
const STRETCHES_MIN: usize = 3;

/// A stretch of the log, and where it is cut into pieces.
#[derive(Default)]
pub(super) struct Stretch {
    pub(super) batch: Batch,
    /// Where each piece begins, and where the last one ends. A record or a seal begins at each.
    pub(super) cuts: Vec<Address>,
}

impl Stretch {
    /// Cuts it into pieces of about so many bytes. A long extent is cut where a record begins as the lengths before it say:
    /// the extent's checksum holds, and where a length makes no sense all the same, the rest is one piece.
    fn cut(&mut self, piece_bytes: u64) {
        self.cuts.clear();
        let mut last = None;
        let mut end = 0;
        for extent in self.batch.extents() {
            let start = extent.seal.address;
            end = extent.seal.end();
            if start - *last.get_or_insert(start) >= piece_bytes || self.cuts.is_empty() {
                self.cuts.push(start);
                last = Some(start);
            }
            if extent.seal.length > piece_bytes {
                self.cuts.extend(cuts_of(&extent, piece_bytes));
                last = self.cuts.last().copied();
            }
        }
        self.cuts.push(end);
    }
}

fn cuts_of(extent: &Extent<'_>, piece_bytes: u64) -> impl Iterator<Item = Address> {
    let mut last = extent.seal.address;
    extent.bounds().map(|(address, _)| address).filter(move |&address| {
        let is_cut = address - last >= piece_bytes;
        last = if is_cut { address } else { last };
        is_cut
    })
}

/// Where the walk ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) position: Address,
    pub(super) chain: Chain,
    pub(super) cut_bytes: u64,
}

/// What the reader hands over.
pub(super) enum Ahead {
    Stretch(Stretch),
    End(End),
    Failed(Error),
}

/// See the module's documentation.
pub(super) enum Source<'a> {
    Direct(Scanner<'a>, u64),
    Ahead { full: Receiver<Ahead>, spare: Sender<Stretch> },
}

impl<'a> Source<'a> {
    /// Has a thread read on from where the scanner is, and take so much memory for it.
    ///
    /// # Errors
    /// `Io` if there can be no more threads.
    pub(super) fn ahead<'scope>(
        self,
        scope: &'scope thread::Scope<'scope, '_>,
        memory_bytes: u64,
    ) -> Result<Source<'a>>
    where
        'a: 'scope,
    {
        let Source::Direct(scanner, piece_bytes) = self else { return Ok(self) };
        let (spare, spares) = mpsc::channel();
        let (full, stretches) = mpsc::channel();
        let reader = ReadAhead { scanner, piece_bytes, memory_bytes, spares, full };
        spawn_scoped(scope, "kiln-read-ahead", move || reader.run())
            .map_err(|error| Error::io("starting a thread that reads the log", error))?;
        Ok(Source::Ahead { full: stretches, spare })
    }

    /// Exchanges the stretch for the next one; at the log's end it says where that is.
    pub(super) fn next(&mut self, stretch: &mut Stretch) -> Result<Option<End>> {
        match self {
            Source::Direct(scanner, piece_bytes) => {
                if !scanner.next_batch(&mut stretch.batch)? {
                    return Ok(Some(end_of(scanner)));
                }
                stretch.cut(*piece_bytes);
                Ok(None)
            }
            Source::Ahead { full, spare } => {
                // A reader that has come to the log's end takes none any more.
                let _ = spare.send(std::mem::take(stretch));
                match full.recv() {
                    Ok(Ahead::Stretch(next)) => *stretch = next,
                    Ok(Ahead::End(end)) => return Ok(Some(end)),
                    Ok(Ahead::Failed(error)) => return Err(error),
                    // It panicked, and its scope will.
                    Err(_) => return Err(super::thread_ended()),
                }
                Ok(None)
            }
        }
    }
}

fn end_of(scanner: &Scanner<'_>) -> End {
    End { position: scanner.position(), chain: scanner.chain(), cut_bytes: scanner.cut_bytes() }
}

/// The thread that reads.
struct ReadAhead<'a> {
    scanner: Scanner<'a>,
    piece_bytes: u64,
    memory_bytes: u64,
    spares: Receiver<Stretch>,
    full: Sender<Ahead>,
}

impl ReadAhead<'_> {
    fn run(mut self) {
        let (mut count, mut bytes) = (0, 0);
        loop {
            let mut stretch = match self.spares.try_recv() {
                Ok(spare) => spare,
                Err(_) if count < STRETCHES_MIN || bytes < self.memory_bytes => {
                    count += 1;
                    Stretch::default()
                }
                Err(_) => {
                    let Ok(spare) = self.spares.recv() else { return };
                    spare
                }
            };
            let before = stretch.batch.memory_bytes();
            let next = match self.scanner.next_batch(&mut stretch.batch) {
                Ok(true) => {
                    stretch.cut(self.piece_bytes);
                    bytes = bytes + stretch.batch.memory_bytes() - before;
                    Ahead::Stretch(stretch)
                }
                Ok(false) => Ahead::End(end_of(&self.scanner)),
                Err(error) => Ahead::Failed(error),
            };
            let is_last = !matches!(next, Ahead::Stretch(_));
            if self.full.send(next).is_err() || is_last {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Options;
    use crate::device::{OpenMode, SimulatedDevice};
    use crate::storage::segments::Segments;
    use crate::storage::superblock::SuperblockFile;

    /// How many stretches a reader of so much memory reads of a log of 40 extents, if nobody gives any back.
    fn read_without_spares(memory_bytes: u64) -> usize {
        let disk = SimulatedDevice::new(1);
        let db = Options::new().background(false).open_on(Arc::new(disk.clone())).unwrap();
        let map = db.map("map").unwrap();
        (0..40_u32).for_each(|key| db.put(&map, key.to_be_bytes(), [7; 5_000]).unwrap().safe().unwrap());
        let superblock = SuperblockFile::open(&disk, OpenMode::Read).unwrap().current().clone();
        let segments = Segments::open(Arc::new(disk), superblock.segment_bytes, OpenMode::Read).unwrap();
        let mut scanner = Scanner::new(&segments, &superblock);
        scanner.set_read_bytes_max(1);
        let (_, spares) = mpsc::channel();
        let (full, stretches) = mpsc::channel();
        ReadAhead { scanner, piece_bytes: 1 << 20, memory_bytes, spares, full }.run();
        let read: Vec<Ahead> = std::iter::from_fn(|| stretches.recv().ok()).collect();
        assert!(!read.iter().any(|read| matches!(read, Ahead::Failed(_))));
        read.iter().filter(|read| matches!(read, Ahead::Stretch(_))).count()
    }

    #[test]
    fn what_is_read_ahead_takes_no_more_memory_than_it_may() {
        assert_eq!(read_without_spares(0), STRETCHES_MIN);
        let some = read_without_spares(100_000);
        assert!(some > STRETCHES_MIN, "{some} stretches");
        let all = read_without_spares(1 << 30);
        assert!(some < all, "{some} of {all} stretches");
    }
}
