//! A session's operations take turns, and while a thread has one, nobody is called back on it: callbacks may ask for the session that is in
//! its turn, and would wait for themselves. They are called by the hardener, or, without one, when the turn is over.

use std::cell::Cell;
use std::ptr;

use super::engine::Engine;
use crate::sync::thread_local;

thread_local! {
    /// The database of which the thread has turns, and how many. Those that it has of another database meanwhile are not counted.
    static TURNS: Cell<(*const Engine, u32)> = const { Cell::new((ptr::null(), 0)) };
}

/// Lasts as long as the turn, and its thread counts it.
pub(super) struct Turn {
    engine: *const Engine,
}

/// The calling thread is about to have a turn.
pub(super) fn begin(engine: &Engine) -> Turn {
    let engine = ptr::from_ref(engine);
    count(engine, |turns| turns + 1);
    Turn { engine }
}

impl Drop for Turn {
    fn drop(&mut self) {
        count(self.engine, |turns| turns - 1);
    }
}

fn count(engine: *const Engine, change: impl Fn(u32) -> u32) {
    TURNS.with(|turns| {
        let (counted, count) = turns.get();
        if count == 0 || ptr::eq(counted, engine) {
            turns.set((engine, change(count)));
        }
    });
}

/// Whether the calling thread has a turn of a session of this database.
pub(super) fn is_taken(engine: &Engine) -> bool {
    TURNS.with(|turns| {
        let (counted, count) = turns.get();
        count > 0 && ptr::eq(counted, engine)
    })
}
