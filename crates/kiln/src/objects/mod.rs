//! Objects: the kinds of named data that a database holds, and how a program gets at them.
//!
//! An object is an entry in the catalog, the records of its keys in the one log, and what its kind adds to the
//! indexes: a table's is an ordered index.
//!
//! ```text
//!   catalog                      making, opening and dropping them
//!   map     table                keys by hash, and keys in order
//!   snapshot                     both as of a version
//!   range = rows + walk          a table's rows in order: who reads them, and which key comes next
//!           leaf_keys, leaf_rows    in memory
//!           settled_rows            in the tree
//!           walk/frozen             in the log, for long scans
//!           deleted                 where there are none
//! ```

mod catalog;
mod deleted;
mod leaf_keys;
mod leaf_rows;
mod map;
mod range;
mod rows;
mod settled_rows;
mod snapshot;
mod table;
mod walk;

pub(crate) use catalog::{drop_object, enter_table, open_object, reserve_table};
pub use map::{Map, MapIter};
pub use range::{Range, SnapshotRange};
pub use snapshot::Snapshot;
pub use table::Table;
