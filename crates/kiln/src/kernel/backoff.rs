//! Pauses between attempts that conflict.

use std::cell::Cell;

use crate::storage::epoch;
use crate::sync::{thread, thread_local};

/// Pauses after conflicts: first the processor is offered, then sleeps of up to about a millisecond.
#[derive(Default)]
pub(crate) struct Backoff {
    attempts: u32,
}

impl Backoff {
    #[cold]
    pub(crate) fn pause(&mut self) {
        thread_local! {
            static RANDOM: Cell<u64> = const { Cell::new(0x2545_F491_4F6C_DD1D) };
        }
        self.attempts += 1;
        if self.attempts <= 3 {
            thread::yield_now();
            return;
        }
        let random = RANDOM.with(|state| {
            let mut word = state.get() ^ (epoch::thread_index() as u64) << 32;
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            state.set(word);
            word
        });
        let most_us = 1u64 << self.attempts.min(10);
        thread::sleep(std::time::Duration::from_micros(random % most_us));
    }
}
