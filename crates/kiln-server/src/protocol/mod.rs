//! RESP, the Redis serialization protocol: what arrives is decoded, what leaves is written.
//!
//! Inbound, a client only ever sends *requests*: an array of bulk strings, or one inline line. The decoder
//! here knows nothing else, so nesting, maps and the other RESP3 types cannot reach the server at all.
//!
//! ```text
//! *3\r\n $3\r\n SET\r\n $1\r\n k\r\n $5\r\n value\r\n        request     = "*" count CRLF count × bulk
//!                                                            bulk        = "$" length CRLF bytes CRLF
//! SET k value\r\n                                            inline line = words, with "..." and '...' quoting
//! ```
//!
//! Why not the crate `resp-rs` 0.3, which parses RESP2 and RESP3 without copying? It is made for frames of
//! any kind, and a server needs four things it does not offer: (1) no allocation for a command (it builds a
//! `Vec<Frame>` for each); (2) resuming in the middle of a command (it parses an incomplete frame again from
//! its start, so that a large `MSET` which arrives in pieces costs time quadratic in the pieces, and copies
//! the rest of its buffer with every piece); (3) limits that the server sets, with the bytes of an oversize
//! argument skipped and not buffered (its limits are constants: 512 MiB for a string, 10,000,000 elements);
//! (4) inline commands. The tests use it as the independent client side.

pub(crate) mod decoder;
mod inline;
pub(crate) mod number;
pub(crate) mod reply;
