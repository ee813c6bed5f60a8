//! Processors that stay awake while nothing runs on them.
//!
//! An idle processor goes to sleep, and in a virtual machine back to the host. What wakes it later finds caches and clock rates of
//! another moment: memory-bound work on the *other* processors then goes at one of two speeds, up to 2.2 apart, and changes from one to the other
//! every few tenths of a second, whatever the engine (docs/benchmarks.md, "How far to trust it"). Linux lets who may open `/dev/cpu_dma_latency` ask
//! for no latency at all: idle processors then wait in a loop, and take work at once. Nothing else changes: a loop of the idle task
//! is no process that the scheduler would have to take into account.

use std::fs::{File, OpenOptions};
use std::io::Write;

use crate::machine;

const DEVICE: &str = "/dev/cpu_dma_latency";

/// Keeps all processors awake until it is dropped, if that is allowed.
pub(crate) struct Awake(Option<File>);

impl Awake {
    /// From now on. Takes root's rights as a rule; without them nothing happens.
    pub(crate) fn hold() -> Awake {
        let asked = OpenOptions::new().write(true).open(DEVICE).and_then(|mut device| {
            device.write_all(&0i32.to_ne_bytes())?;
            Ok(device)
        });
        Awake(asked.ok())
    }

    /// The machine's description, with this: results that were made with it are not those without it.
    pub(crate) fn machine(&self) -> String {
        machine::description() + if self.0.is_some() { ", idle processors kept awake" } else { "" }
    }

    /// What to say if it is not allowed.
    pub(crate) fn warning(&self) -> Option<String> {
        self.0.is_none().then(|| {
            format!(
                "idle processors may sleep, because {DEVICE} cannot be written without root's rights: rates will differ more from round to round"
            )
        })
    }
}
