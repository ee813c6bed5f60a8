//! The kernel: transactions, the clock, hardening, sessions. What it knows of an object is in [`object`].
//!
//! ```text
//!   engine, object                       what all of it works on, and what there is to know of each object
//!   catalog, handle                      which objects there are, as records say, and what a program holds of one
//!   transaction ── read ── commit        what a transaction does
//!   read_set, write_set                  what it has read, and what it buffers
//!   change                               one write of it: locating, placing, installing
//!   single, batch                        transactions on one key, and many of them
//!   backoff                              pauses where two are in each other's way
//!   cold, read_ahead, neighbours         reading records that are on disk, many of them at once
//!   pending_read                         reading for who does not want to wait
//!   snapshot, session, receipt           what it gives out
//!   session_operations                   a session's transactions on one key
//!   commit_points                        who hears how far a session's operations are durable
//!   named_snapshot                       snapshots that outlive the process
//!   clock                                versions: tick and close
//!   hardening/                           making versions durable: leaders, horizon, background threads
//!   recovery, losses                     from the log to the indexes, and what crashes took
//!   checkpoint, ledger                   what opening need not replay
//!   settled, settle, newest, settling_pace
//!                                        what has left the log for the tree: reading it, moving it there, and how fast
//!   frozen, leaf_images                  for long scans what has not settled, in order; for those again and again a leaf's rows, side by side
//!   notes                                which of the records that an opening has left in memory are their keys' newest
//!   load                                 what was never in the log
//!   sweep, compaction                    forgetting what nobody needs, and moving what somebody does
//!   life, removal                        whether an object is there, and how the rows of one go that was dropped
//!   expiry                               rows that are absent from some time on, and go
//!   shares, hand_over                    what memory is for
//!   warm, warm_up                        keeping there what fits, and bringing it there
//!   write_counts, gauge                  what statistics tell of commits, and of work in the background
//! ```

mod backoff;
pub(crate) mod batch;
pub(crate) mod catalog;
pub(crate) mod change;
pub(crate) mod checkpoint;
pub(crate) mod clock;
pub(crate) mod cold;
pub(crate) mod commit;
mod commit_points;
pub(crate) mod compaction;
pub(crate) mod engine;
pub(crate) mod expiry;
pub(crate) mod frozen;
mod gauge;
mod hand_over;
pub(crate) mod handle;
pub(crate) mod hardening;
#[cfg(test)]
mod known_end_tests;
pub(crate) mod leaf_images;
pub(crate) mod ledger;
pub(crate) mod life;
pub(crate) mod load;
pub(crate) mod losses;
pub(crate) mod map_walk;
pub(crate) mod named_snapshot;
mod neighbours;
mod newest;
pub(crate) mod notes;
pub(crate) mod object;
pub(crate) mod pending_read;
pub(crate) mod read;
pub(crate) mod read_ahead;
pub(crate) mod read_set;
pub(crate) mod receipt;
pub(crate) mod recovery;
pub(crate) mod removal;
pub(crate) mod session;
mod session_operations;
pub(crate) mod settle;
pub(crate) mod settled;
mod settling_pace;
pub(crate) mod shares;
pub(crate) mod single;
pub(crate) mod snapshot;
pub(crate) mod sweep;
#[cfg(test)]
mod sweep_tests;
pub(crate) mod transaction;
pub(crate) mod warm;
pub(crate) mod warm_up;
pub(crate) mod write_counts;
pub(crate) mod write_set;
