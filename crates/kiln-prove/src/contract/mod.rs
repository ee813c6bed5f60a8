//! The contract, tested through the public API.
//!
//! Every test is named after the clause of the contract that it proves, `c1_` to `c9_`; `docs/durability.md` has
//! the clauses. The modules:
//!
//! - [`support`]: randomness, budgets, replay lines, the watchdog.
//! - [`model`]: the history of everything that was committed, and what it makes the recovered state be.
//! - [`bank`]: one transaction of the workload, run against the engine and the model at once.
//! - [`deeds`]: what the transactions do, so that the invariants of the bank hold.
//! - [`workload`]: the workload itself: transactions, snapshots, waits and durable reads, at random.
//! - [`oracle`]: compares a recovered database with the history; it is tested against planted lies.
//! - [`crash`]: a power loss at every step of the device.
//! - [`gate`]: a disk that is stuck until a test lets it go on.
//! - [`faults`], [`no_space`]: failed writes and syncs, a full disk.
//! - [`corruption`]: damaged, truncated and missing files.
//! - [`durability`], [`window`]: receipts, early visibility, the vulnerability window.
//! - [`isolation`], [`interleaving`]: what concurrent transactions may see of each other.
//! - [`snapshots`], [`sessions`], [`ranges`], [`limits`], [`space`]: the rest of the API's promises.
//!
//! A test that fails prints a line beginning with `replay:` that runs it again. `KILN_SEED` is the seed of every
//! random choice, and `KILN_STATES` the number of crash states (and of other repetitions, in proportion).

mod bank;
mod corruption;
mod crash;
mod deeds;
mod durability;
mod faults;
mod gate;
mod interleaving;
mod isolation;
mod limits;
mod model;
mod no_space;
mod oracle;
mod ranges;
mod sessions;
mod snapshots;
mod space;
mod support;
mod window;
mod workload;
