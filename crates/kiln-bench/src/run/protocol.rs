//! What the run and its contestants say to each other: JSON lines over the contestant's standard input and output.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::engines::catalog::{Mode, Name};
use crate::generate::Sizes;
use crate::generate::draws::Distribution;
use crate::results::Row;
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
    /// The database's directory.
    pub(super) path: PathBuf,
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
}

impl Content {
    /// How many rows it has to begin with.
    pub(super) fn records(self) -> u64 {
        match self {
            Content::Table { records, .. } | Content::Map { records, .. } => records,
            Content::Tpcc { warehouses } => u64::from(warehouses) * tpcc::WAREHOUSE_ROWS,
        }
    }
}

/// What a contestant is asked to do next.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Command {
    /// Load the database and warm it up.
    Load,
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
    pub(super) round: u32,
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
