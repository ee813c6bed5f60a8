//! The engine's smallest concurrent pieces under loom: every interleaving, and everything that weakly ordered memory may show.
//!
//! ```text
//!  models     short concurrent programs on the pieces, each with what must hold
//!  sync       loom's primitives in the shape that the engine takes from `crate::sync`
//!  storage    epoch, log, record, seal, hash_index      the engine's own files
//!  kernel     clock, horizon                            the engine's own files
//! ```
//!
//! `kiln-prove schedules` runs far more of the engine, but under it memory is sequentially consistent. Loom lets a load return
//! every older value that its ordering allows, so that an `Acquire` or `Release` that is missing shows, on any processor. It knows
//! sequentially consistent *fences* and takes sequentially consistent *accesses* for acquire and release; the pieces here
//! rest on fences, so nothing that it reports is false. The two halves of the engine's asymmetric barrier are the
//! fences that they are where the kernel has no `membarrier`, which is what `membarrier` itself promises.
//!
//! Whoever makes a system call cannot come along, nor who keeps more than words in mapped memory: so neither the ordered index nor the device do.
#![allow(dead_code, reason = "of the engine's files the models use a part")]

#[path = "../../crates/kiln/src/error.rs"]
mod error;
mod kernel;
mod models;
#[path = "../../crates/kiln/src/planted.rs"]
mod planted;
mod storage;
mod sync;

/// What the engine's files want of the device.
mod device {
    pub(crate) const BLOCK_BYTES: usize = 4096;
    pub(crate) const SECTOR_BYTES: usize = 512;
}

use std::process::{Command, ExitCode, Stdio};

use planted::Bug;

/// Mistakes that a model must notice.
const BUGS: [Bug; 11] = [
    Bug::ValidationOrdersNothing,
    Bug::UnpinOrdersNothing,
    Bug::PinOrdersNothing,
    Bug::ClosesWithoutWaiting,
    Bug::QuiesceOverlooks,
    Bug::EvictsUnderReaders,
    Bug::TailTakenTwice,
    Bug::ChunksOutliveShift,
    Bug::RestsLeft,
    Bug::RegistersUnseen,
    Bug::HorizonBeforeFailure,
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            models::run_all();
            notice_all()
        }
        ["--plant", name] => {
            let bug = name.parse().unwrap_or_else(|what| panic!("{what}"));
            planted::plant(bug);
            models::run_all();
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: kiln-loom [--plant NAME]");
            ExitCode::from(2)
        }
    }
}

/// Plants one mistake after the other, each in a process of its own, which must not come to a good end.
fn notice_all() -> ExitCode {
    let program = std::env::current_exe().expect("this program finds itself");
    let mut noticed = 0;
    for bug in BUGS {
        let mut command = Command::new(&program);
        command.args(["--plant", bug.name()]).stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status().expect("this program starts");
        match status.success() {
            true => println!("{:24} NOT NOTICED: {}", bug.name(), bug.what()),
            false => println!("{:24} noticed", bug.name()),
        }
        noticed += usize::from(!status.success());
    }
    println!("loom: {noticed} of {} planted bugs noticed", BUGS.len());
    if noticed == BUGS.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
