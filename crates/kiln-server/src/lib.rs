//! Kiln for any Redis client: a RESP2/RESP3 server over the engine.
//!
//! A client that knows nothing of Kiln gets a Redis whose `MULTI`/`EXEC` are strictly serializable and whose
//! acknowledged writes survive power loss. One that knows can choose, for each connection and at any time, to
//! be answered at the commit point, and wait for durability when it matters: `KILN DURABILITY`, `KILN
//! RECEIPT`, `KILN WAIT`, `WAITAOF`.
//!
//! # What a connection is promised
//!
//! - A **safe** connection's write is answered when it is durable; so is a write command that changed nothing,
//!   such as a `SETNX` of a key that exists, once what it saw is durable. What a *read* returns is the latest
//!   committed state, which may not be durable yet; a client that must not act on what may still be lost sends
//!   `WAITAOF 1 0 0` after writes of its own, or `KILN WAIT` with the version that another connection's `KILN
//!   RECEIPT` named.
//! - A **fast** connection's write is answered when it is committed, and durable within the engine's
//!   vulnerability window.
//! - If writes are lost (a disk failed), every reply that waited for them is a `-LOST` error, never `OK`.
//! - `EXEC` is one transaction of the engine. Inside it, a command that fails leaves the others alone, as in
//!   Redis. It may answer nil though nobody has touched what was watched: for a key that had just expired, or been deleted,
//!   since the engine deletes it, and forgets that, a little later.
//! - With `KILN SESSION id` every write command takes the next serial number, and after a crash the same
//!   command returns how many of them survived: all up to that one, none after it.
//!
//! # Architecture
//!
//! Top to bottom, each module only uses those below it:
//!
//! ```text
//! listener      accepts, ends the server in order          background   emptying after a flush
//! connection    one task: read, run, harden, reply         buffers      lent to connections that do something
//! batch         all requests that have arrived             ahead        some of them, decoded before the first is run
//! dispatch      one request: find, check, run
//! commands::*   what each command does                     info, glob, float
//! work          a command's view of one transaction
//! keyspace      where keys live in the engine
//! protocol::*   RESP in and out                            client, shared, counters, turns, options, limits, failure
//! ```

mod ahead;
mod background;
mod batch;
mod buffers;
mod client;
mod commands;
mod connection;
mod counters;
mod dispatch;
mod failure;
mod float;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod glob;
mod info;
mod keyspace;
mod limits;
mod listener;
mod memory;
mod options;
mod protocol;
mod shared;
mod turns;
mod work;

pub use client::Durability;
pub use keyspace::{served_instead_of, served_map};
pub use listener::Server;
pub use options::Options;
