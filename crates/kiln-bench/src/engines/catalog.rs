//! The engines by name: what each can do, with which settings it runs, and how it is opened.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::berkeleydb::BerkeleyDb;
use super::device::DeviceFloor;
#[cfg(feature = "faster")]
use super::faster::FasterEngine;
use super::fjall::FjallEngine;
use super::in_place::InPlace;
use super::kiln::KilnEngine;
use super::kiln_wal::WalEngine;
use super::kyotocabinet::KyotoCabinet;
use super::leveldb::LevelDb;
use super::lmdb::LmdbEngine;
use super::memory::{MemoryMap, MemoryTable};
use super::raw_reads::RawReads;
use super::redb::RedbEngine;
use super::rocksdb::RocksDb;
use super::sled::SledEngine;
use super::sqlite::SqliteEngine;
use super::{Engine, Generator};
use crate::generate::Sizes;

/// When a commit is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// A peer's commits are durable when they are acknowledged.
    Strong,
    /// A peer's commits are acknowledged first; each measurement ends with making them durable.
    Weak,
    /// Kiln's commits are acknowledged when they are durable.
    Safe,
    /// Commits of Kiln, and of the prototype beside it, are acknowledged first and harden within the window.
    Fast,
    /// What the machine can do with no durability, or with nothing else.
    Floor,
}

impl Mode {
    /// Its name in results.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Mode::Strong => "strong",
            Mode::Weak => "weak",
            Mode::Safe => "safe",
            Mode::Fast => "fast",
            Mode::Floor => "floor",
        }
    }

    /// Whether a commit is durable when it is acknowledged.
    pub(crate) fn is_durable(self) -> bool {
        matches!(self, Mode::Strong | Mode::Safe)
    }
}

/// Whether keys must be in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Shape {
    /// Keys in order, with ranges.
    Table,
    /// Keys in no order; an engine may use whatever is fastest for single keys.
    Map,
}

/// How a database is opened; a new one, but by engines that open what is there ([`Description::reopens`]).
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Its directory, which is there.
    pub(crate) path: PathBuf,
    pub(crate) mode: Mode,
    pub(crate) shape: Shape,
    pub(crate) sizes: Sizes,
    /// How many keys will be loaded, for engines that want to know.
    pub(crate) records: u64,
    /// Memory for caching data, or for Kiln's log.
    pub(crate) cache_bytes: u64,
    /// How long a fast commit may stay undurable.
    pub(crate) window: Duration,
    /// Whether the data is larger than memory, so that it is to be read past the system's page cache.
    pub(crate) cold: bool,
    /// Whether the memory of its process is limited, the page cache for its files included, to less than the data: what is read ahead drives out what is needed.
    pub(crate) limited: bool,
    /// Whether checkpoints are taken by themselves, by engines that can do without.
    pub(crate) checkpoints: bool,
}

/// What is known of an engine before it is opened.
pub(crate) struct Description {
    /// In one line, for people.
    pub(crate) what: &'static str,
    /// Its modes.
    pub(crate) modes: &'static [Mode],
    /// The shapes that it has. An ordered engine is a map, too, but is listed as one only if it has something faster for maps.
    pub(crate) shapes: &'static [Shape],
    /// Whether it has [`super::Worker::transact`].
    pub(crate) transactions: bool,
    /// Whether it keeps what is written. One that does not is only asked for commits, or to answer by itself.
    pub(crate) keeps_data: bool,
    /// Whether a database that acknowledges first can make a single commit durable ([`super::Worker::put_durably`]).
    pub(crate) durable_puts: bool,
    /// Whether it can read past the system's page cache, so that it has as much memory for data as it is given and no more.
    pub(crate) past_page_cache: bool,
    /// Whether a database that is there is opened, and found as it was made durable.
    pub(crate) reopens: bool,
    /// Whether a scan shows one state however long it takes, and whatever is written meanwhile.
    pub(crate) snapshot_scans: bool,
    /// The settings that it runs with in a mode, in words: what makes it fastest there.
    pub(crate) settings: fn(Mode) -> &'static str,
    /// Its version; an error says how to install it.
    pub(crate) version: fn() -> Result<String>,
}

/// An engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Name {
    Kiln,
    /// Kiln's own store with a write-ahead log: what its hardening is compared with.
    #[serde(rename = "kiln-wal")]
    KilnWal,
    #[value(name = "rocksdb")]
    RocksDb,
    #[value(name = "leveldb")]
    LevelDb,
    #[value(name = "kyotocabinet")]
    KyotoCabinet,
    #[value(name = "berkeleydb")]
    BerkeleyDb,
    /// Microsoft's key-value store (C++), with the feature `faster`.
    Faster,
    /// AciKV's write path, updates in place: what Kiln's, by way of a log, is compared with.
    #[serde(rename = "in-place")]
    InPlace,
    /// Keys and values in memory behind one lock: the floor of everything that is not durable.
    Memory,
    /// One direct write and sync: the floor of everything that is.
    Device,
    /// Direct reads of 4 KiB, many in flight: the floor of reading what is not in memory.
    #[value(name = "rawreads")]
    RawReads,
    /// No engine at all: what the load costs.
    Generator,
    Redb,
    Lmdb,
    Sqlite,
    Fjall,
    Sled,
}

impl Name {
    /// What is known of it.
    pub(crate) fn description(self) -> &'static Description {
        match self {
            Name::Kiln => &super::kiln::DESCRIPTION,
            Name::KilnWal => &super::kiln_wal::DESCRIPTION,
            Name::InPlace => &super::in_place::DESCRIPTION,
            Name::RocksDb => &super::rocksdb::DESCRIPTION,
            Name::LevelDb => &super::leveldb::DESCRIPTION,
            Name::KyotoCabinet => &super::kyotocabinet::DESCRIPTION,
            Name::BerkeleyDb => &super::berkeleydb::DESCRIPTION,
            Name::Faster => &super::faster::DESCRIPTION,
            Name::Memory => &super::memory::DESCRIPTION,
            Name::Device => &super::device::DESCRIPTION,
            Name::RawReads => &super::raw_reads::DESCRIPTION,
            Name::Generator => &super::generator::DESCRIPTION,
            Name::Redb => &super::redb::DESCRIPTION,
            Name::Lmdb => &super::lmdb::DESCRIPTION,
            Name::Sqlite => &super::sqlite::DESCRIPTION,
            Name::Fjall => &super::fjall::DESCRIPTION,
            Name::Sled => &super::sled::DESCRIPTION,
        }
    }

    /// Its name in results and on the command line.
    pub(crate) fn text(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What is done with an engine, whichever it is.
pub(crate) trait Visitor {
    /// What comes out of it.
    type Output;

    /// Does it.
    fn visit<E: Engine>(self, engine: &E) -> Result<Self::Output>;
}

/// Creates a database, does something with it, and closes it.
pub(crate) fn with_engine<V: Visitor>(name: Name, settings: &Settings, visitor: V) -> Result<V::Output> {
    match (name, settings.shape) {
        (Name::Kiln, Shape::Table) => visit(KilnEngine::<::kiln::Table>::create(settings)?, visitor),
        (Name::Kiln, Shape::Map) => visit(KilnEngine::<::kiln::Map>::create(settings)?, visitor),
        (Name::KilnWal, Shape::Table) => visit(WalEngine::<::kiln::Table>::create(settings)?, visitor),
        (Name::KilnWal, Shape::Map) => visit(WalEngine::<::kiln::Map>::create(settings)?, visitor),
        (Name::InPlace, _) => visit(InPlace::create(settings)?, visitor),
        (Name::RocksDb, _) => visit(RocksDb::create(settings)?, visitor),
        (Name::LevelDb, _) => visit(LevelDb::create(settings)?, visitor),
        (Name::KyotoCabinet, _) => visit(KyotoCabinet::create(settings)?, visitor),
        (Name::BerkeleyDb, _) => visit(BerkeleyDb::create(settings)?, visitor),
        #[cfg(feature = "faster")]
        (Name::Faster, Shape::Map) => visit(FasterEngine::create(settings)?, visitor),
        (Name::Faster, _) => Err(super::faster::unavailable()),
        (Name::Memory, Shape::Table) => visit(MemoryTable::default(), visitor),
        (Name::Memory, Shape::Map) => visit(MemoryMap::default(), visitor),
        (Name::Device, _) => visit(DeviceFloor::create(&settings.path)?, visitor),
        (Name::RawReads, _) => visit(RawReads::create(settings)?, visitor),
        (Name::Generator, _) => visit(Generator::new(settings.sizes), visitor),
        (Name::Redb, _) => visit(RedbEngine::create(settings)?, visitor),
        (Name::Lmdb, _) => visit(LmdbEngine::create(settings)?, visitor),
        (Name::Sqlite, _) => visit(SqliteEngine::create(settings)?, visitor),
        (Name::Fjall, _) => visit(FjallEngine::create(settings)?, visitor),
        (Name::Sled, _) => visit(SledEngine::create(settings)?, visitor),
    }
}

fn visit<E: Engine, V: Visitor>(engine: E, visitor: V) -> Result<V::Output> {
    let output = visitor.visit(&engine)?;
    engine.close()?;
    Ok(output)
}
