//! What the run and its contestants say to each other: JSON lines over the contestant's standard input and output.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::engines::catalog::{Mode, Name};
use crate::generate::Sizes;
use crate::generate::draws::Distribution;
use crate::results::Row;
use crate::workloads::spec::{self, Kind};
use crate::workloads::tpcc;

/// Who takes part: an engine in a mode, with its data. The first line that a contestant reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Contestant {
    pub(super) engine: Name,
    pub(super) mode: Mode,
    /// The vulnerability window, for engines that have one.
    pub(super) window_ms: Option<u64>,
    pub(super) content: Content,
    pub(super) cache_bytes: u64,
    /// What its process may have in all, the page cache for its files included.
    pub(super) limit_bytes: Option<u64>,
    /// The database's directory.
    pub(super) path: PathBuf,
    /// Whether the database is there already, and how long it takes to open is what is measured.
    pub(super) reopened: bool,
}

impl Contestant {
    /// For people.
    pub(super) fn label(&self) -> String {
        let mode = self.mode.text();
        match self.window_ms {
            Some(window) => format!("{} {mode} {window} ms", self.engine.text()),
            None => format!("{} {mode}", self.engine.text()),
        }
    }

    /// The modes of its rows: of those who acknowledge first, half of the threads may wait.
    pub(super) fn modes(&self, kind: Kind) -> &'static [Mode] {
        match (kind, self.mode) {
            (Kind::BothWays, Mode::Fast) => &[Mode::Fast, Mode::Safe],
            (Kind::BothWays, _) => &[Mode::Weak, Mode::Strong],
            (_, Mode::Strong) => &[Mode::Strong],
            (_, Mode::Weak) => &[Mode::Weak],
            (_, Mode::Safe) => &[Mode::Safe],
            (_, Mode::Fast) => &[Mode::Fast],
            (_, Mode::Floor) => &[Mode::Floor],
        }
    }

    /// Whether a row is the first one of a measurement of it in a cell, in whichever round.
    pub(super) fn has_measured(&self, cell: &Cell, row: &Row) -> bool {
        row.mode == self.mode && self.has_made(cell, row)
    }

    /// Whether a row is one of a measurement of it in a cell.
    pub(super) fn has_made(&self, cell: &Cell, row: &Row) -> bool {
        let is_of_mode = spec::find(&cell.workload)
            .is_ok_and(|workload| self.modes(workload.in_batches(cell.batch)).contains(&row.mode));
        row.engine == self.engine.text()
            && is_of_mode
            && (row.window_ms, row.cache_bytes) == (self.window_ms, self.cache_bytes)
            && row.limit_bytes == self.limit_bytes
            && row.records == self.content.records()
            && Sizes { key_bytes: row.key_bytes, value_bytes: row.value_bytes } == self.content.sizes()
            && (row.workload.as_str(), row.threads) == (cell.workload.as_str(), cell.threads)
            && (row.batch, row.distribution) == (cell.batch, cell.distribution)
    }
}

/// What a database is loaded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Content {
    /// Keys in order.
    Table { sizes: Sizes, records: u64 },
    /// Keys in no order.
    Map { sizes: Sizes, records: u64 },
    /// TPC-C's tables.
    Tpcc { warehouses: u16 },
    /// Keys in order, of which a part fits into memory.
    Cold { sizes: Sizes, records: u64, part: u64 },
    /// Keys in order, to be found again after kill -9, with a checkpoint after all of them or without any.
    Recovery { sizes: Sizes, records: u64, checkpoint: bool },
}

impl Content {
    /// How many rows it has to begin with.
    pub(super) fn records(self) -> u64 {
        match self {
            Content::Table { records, .. }
            | Content::Map { records, .. }
            | Content::Cold { records, .. }
            | Content::Recovery { records, .. } => records,
            Content::Tpcc { warehouses } => tpcc::rows(warehouses),
        }
    }

    /// The sizes of its keys and values; none where they differ.
    pub(super) fn sizes(self) -> Sizes {
        match self {
            Content::Table { sizes, .. }
            | Content::Map { sizes, .. }
            | Content::Cold { sizes, .. }
            | Content::Recovery { sizes, .. } => sizes,
            Content::Tpcc { .. } => Sizes { key_bytes: 0, value_bytes: 0 },
        }
    }
}

/// What a contestant is asked to do next.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Command {
    /// Load the database and warm it up; or, to be found again, write all of it anew.
    Load {
        /// How often it was loaded before.
        generation: u64,
    },
    /// Tell how long opening took, once it is sure that everything is there.
    Opened {
        /// The number of the round.
        round: u32,
        /// Which loading has to be there.
        generation: u64,
    },
    /// Run a workload.
    Cell(Cell),
    /// Check everything that is in the database, and close it.
    Finish,
}

/// A workload, and how it is run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) workload: String,
    pub(super) distribution: Distribution,
    pub(super) threads: usize,
    pub(super) batch: usize,
    pub(super) seconds: f64,
    /// How long the untimed run before the first round is.
    pub(super) warm_up_s: f64,
    /// How often a peer that makes nothing durable by itself is asked to meanwhile.
    pub(super) persist_each_s: Option<f64>,
    pub(super) round: u32,
}

impl Cell {
    /// What it is about, for people.
    pub(super) fn title(&self) -> String {
        format!("{}, {} thread{}", self.workload, self.threads, if self.threads == 1 { "" } else { "s" })
    }
}

/// What a contestant answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// Done.
    Done,
    /// Measured.
    Rows(Vec<Row>),
    /// It did not work, for this reason.
    Failed(String),
}
