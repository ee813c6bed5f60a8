//! What Kiln's fuzzers try, and what must hold then.
//!
//! A target is a function that takes any bytes and panics if something is wrong. libFuzzer drives each from a program in
//! `fuzz/`; the test `corpus` runs each over the inputs that were kept, so that they are tried without a fuzzer, too.
//!
//! ```text
//!  decoders   superblock, checkpoint, seal, extent, reader, catalog, sessions, node      image, log   whole databases
//!  stream     a backup's stream, restored
//!  resp       requests in pieces     commands   a connection   import       JSON lines
//!  format     the format written down a second time            examine      what must hold of a database
//! ```
//!
//! Checksums keep a fuzzer out. They are made right here, in the input's bytes: the engine has no way around them.

mod commands;
mod decoders;
mod examine;
mod format;
mod image;
mod import;
mod log;
mod measure;
mod resp;
pub mod seeds;
mod stream;

/// What is tried: its name, and what takes the input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name on command lines, and that of its corpus.
    pub name: &'static str,
    /// Panics if something is wrong.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "superblock", run: decoders::superblock },
    Target { name: "checkpoint", run: decoders::checkpoint },
    Target { name: "seal", run: decoders::seal },
    Target { name: "extent", run: decoders::extent },
    Target { name: "reader", run: decoders::reader },
    Target { name: "catalog", run: decoders::catalog },
    Target { name: "sessions", run: decoders::sessions },
    Target { name: "node", run: decoders::node },
    Target { name: "stream", run: stream::stream },
    Target { name: "image", run: image::image },
    Target { name: "log", run: log::log },
    Target { name: "resp", run: resp::resp },
    Target { name: "commands", run: commands::commands },
    Target { name: "import", run: import::import },
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}

/// Runs one input.
///
/// # Panics
/// If something is wrong, or there is no such target.
pub fn run(name: &str, input: &[u8]) {
    let target = target(name).unwrap_or_else(|| panic!("there is no target {name:?}"));
    (target.run)(input);
}
