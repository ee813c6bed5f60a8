//! The contract, tested through the public API.
//!
//! Every test is named after the clause of the contract that it proves, `c1_` to `c9_`; `docs/durability.md` has
//! the clauses. Crashes, failing operations and damage have their tests where they are made; here is the rest:
//!
//! - [`hooked`], [`gate`]: a disk with which tests meddle, and one that is stuck until a test lets it go on.
//! - [`no_space`], [`space`], [`compaction`], [`compact`]: a full disk, the space that is given back, by itself and on request, and the bound on the log.
//! - [`checkpoints`]: opening from one, and what is wrong with one.
//! - [`backup`], [`restore`]: copies, as files and as streams, and what becomes of them.
//! - [`durability`], [`window`]: receipts, early visibility, the vulnerability window; [`callbacks`]: what is called back, and what that may do; [`commit_points`]: the same of sessions; [`closing`]: the end; [`reopening`]: what is told of what crashes took.
//! - [`isolation`], [`interleaving`]: what concurrent transactions may see of each other.
//! - [`singles`], [`singles_at_once`], [`batches`]: operations on one key that are transactions of their own.
//! - [`settling`], [`settling_at_once`], [`settled_runs`], [`settling_pace`], [`settling_reopened`], [`bulk_load`]: rows that have left the log, and those that never were in it.
//! - [`cold`], [`blind_puts`], [`warm`]: records on disk and the read cache, puts that do not read what they replace, and records that are kept from getting there.
//! - [`expiry`], [`expiry_at_once`], [`expired`]: rows that expire, also just while somebody looks at them, and what becomes of those that have.
//! - [`named_snapshots`]: snapshots that outlive the process; [`snapshots_and_loads`]: beside everything else that moves rows, in a [`world`] of tables, loads and names.
//! - [`dropping`]: objects that are dropped, beside everybody else; [`dropped_rows`]: after a crash, and what becomes of their rows.
//! - [`statistics`]: what is told of the log, of writes, and of work in the background.
//! - [`snapshots`], [`sessions`], [`forgotten_sessions`], [`ranges`], [`range_hints`], [`leaf_images`], [`limits`]: the rest of the API's promises.
//!
//! A test that fails prints a line beginning with `replay:` that runs it again. `KILN_SEED` is the seed of every
//! random choice, and `KILN_STATES` the number of crash states (and of other repetitions, in proportion).

mod backup;
mod batches;
mod blind_puts;
mod bulk_load;
mod callbacks;
mod checkpoints;
mod closing;
mod cold;
mod commit_points;
mod compact;
mod compaction;
mod dropped_rows;
mod dropping;
mod durability;
mod expired;
mod expiry;
mod expiry_at_once;
mod forgotten_sessions;
mod gaps;
pub(crate) mod gate;
mod hooked;
mod interleaving;
mod isolation;
mod leaf_images;
mod limits;
mod named_snapshots;
mod no_space;
mod pending_reads;
mod range_hints;
mod ranges;
mod reopening;
mod restore;
mod scans;
mod sessions;
mod settled_runs;
mod settling;
mod settling_at_once;
mod settling_pace;
mod settling_parts;
mod settling_reopened;
mod settling_replaced;
mod shares;
mod singles;
mod singles_at_once;
mod snapshots;
mod snapshots_and_loads;
mod space;
mod statistics;
mod warm;
mod window;
mod world;
