//! Storage: the record log and its files, the indexes over it, and the epochs under them.
//!
//! ```text
//!   hash_index   ordered_index      find records, in memory
//!   log          ring of memory that holds the tail; records are updated in place there
//!                log/chunks: what threads take of it ahead, each for itself
//!   record_cache memory for what was read from disk
//!   extent       copies the tail out, sealed            scanner      walks it back in
//!   record_reader  reads a part of it once more, in pieces
//!   segments     the log's files            superblock   what must be known before reading them
//!   liveness     which of them are still needed
//!   names        when the names of all files are durable
//!   checkpoint   the file that says what the log comes to up to a place
//!   tree         what was settled: a B+-tree in a file of its own
//!   runs         what is sorted on its way there
//!   record, seal the formats                epoch, memory   pins and mapped words
//!   prefix       what keys have in common   leaf_images  a leaf's rows, side by side
//!   shared       what many read without counting, and few replace
//!   counts       how often what happens often has happened
//!   together     threads that last as long as a step of an opening, or of settling
//! ```

pub(crate) mod checkpoint;
pub(crate) mod counts;
pub(crate) mod epoch;
pub(crate) mod extent;
#[cfg(test)]
mod format_tests;
pub(crate) mod hash_index;
pub(crate) mod leaf_images;
pub(crate) mod liveness;
pub(crate) mod log;
pub(crate) mod memory;
pub(crate) mod names;
pub(crate) mod ordered_index;
pub(crate) mod prefix;
pub(crate) mod record;
pub(crate) mod record_cache;
#[cfg(test)]
mod record_cache_tests;
pub(crate) mod record_reader;
pub(crate) mod runs;
pub(crate) mod scanner;
pub(crate) mod seal;
pub(crate) mod segments;
pub(crate) mod shared;
pub(crate) mod superblock;
pub(crate) mod together;
pub(crate) mod tree;
