//! Where recovery has the log from: read here, or ahead by a thread of its own.
//!
//! Both read in the order of the log and through the same [`Scanner`], so that the device sees the same operations, and an
//! extent that is not whole is found at the same place, after everything before it was given out.
//!
//! ```text
//!  reader:   read, check seals and checksums, cut ──▶ stretch ──▶ recovery
//!                          ▲                                        │
//!                          └──────────── stretch, to be used again ─┘
//! ```
//!
//! There are [`STRETCHES_AHEAD`] stretches and the reader's own, which bounds the memory: each has what is read at once, or
//! one extent, whichever is longer. Whichever side ends first, the other one finds its channel closed and ends, too.

use crate::error::{Error, Result};
use crate::storage::extent::{Chain, Extent};
use crate::storage::record::Address;
use crate::storage::scanner::{Batch, Scanner};
use crate::sync::mpsc::{Receiver, Sender};

/// How many stretches go around: one is worked on, one waits, one is filled.
pub(super) const STRETCHES_AHEAD: usize = 3;

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

impl Source<'_> {
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

/// What the reader does.
pub(super) fn read_ahead(
    mut scanner: Scanner<'_>,
    piece_bytes: u64,
    spare: &Receiver<Stretch>,
    full: &Sender<Ahead>,
) {
    while let Ok(mut stretch) = spare.recv() {
        let next = match scanner.next_batch(&mut stretch.batch) {
            Ok(true) => {
                stretch.cut(piece_bytes);
                Ahead::Stretch(stretch)
            }
            Ok(false) => Ahead::End(end_of(&scanner)),
            Err(error) => Ahead::Failed(error),
        };
        let is_last = !matches!(next, Ahead::Stretch(_));
        if full.send(next).is_err() || is_last {
            return;
        }
    }
}
