//! Short concurrent programs on the engine's parts, each with an oracle of its own, to be run under one schedule after the
//! other by `kiln-prove schedules`, which has others on whole databases.
//!
//! Only a build with the feature `schedules` contains them. A program runs inside of one of shuttle's executions, after
//! [`begin`]; it panics if something is wrong, and never ends if a wake-up is lost, which shuttle notices.

mod epoch;
mod expiry;
mod hash_index;
mod leaf_images;
mod log_tail;
mod ordered_index;
mod record_cache;
mod snapshots;

pub use crate::sync::{Time, begin, quietly};

/// A program and the name under which it is asked for.
pub type Program = (&'static str, fn());

/// The programs on parts of the engine.
pub const PROGRAMS: &[Program] = &[
    ("pins", epoch::pins_hold_actions_up),
    ("idle-threads", epoch::idle_threads_hold_nobody_up),
    ("closing", epoch::nothing_joins_a_closed_version),
    ("shared-snapshots", snapshots::nobody_gets_what_a_sweep_has_passed),
    ("log-tail", log_tail::records_never_overlap),
    ("ring", log_tail::readers_keep_their_memory),
    ("hash-index", hash_index::entries_survive_splits),
    ("hash-index-shrinks", hash_index::entries_survive_mergers),
    ("buckets", hash_index::a_bucket_is_read_whole),
    ("settling-neighbour", hash_index::a_key_is_seen_beside_one_that_settles),
    ("ordered-index", ordered_index::ranges_see_what_stays),
    ("leaves", ordered_index::nobody_misses_the_other),
    ("read-cache", record_cache::a_record_is_read_whole),
    ("lifetimes", expiry::no_row_is_overlooked),
    ("leaf-images", leaf_images::an_image_is_copied_whole_or_not_at_all),
];

/// Runs each of the threads beside the others, and waits for all of them.
fn together(threads: Vec<Box<dyn FnOnce() + Send>>) {
    let running: Vec<_> = threads.into_iter().map(shuttle::thread::spawn).collect();
    running.into_iter().for_each(|thread| thread.join().unwrap_or_else(|_| panic!("a thread panicked")));
}
