//! What the tests of the `kiln` program from outside share; the tests themselves are in `tests/`.
//!
//! - [`program`]: the program, built once for a test run.
//! - [`server`]: a running `kiln serve`, which can be killed or asked to end.
//! - [`actors`]: clients that write, remember what was acknowledged, and check it after a restart.
//!
//! | variable | meaning |
//! |---|---|
//! | `KILN_BIN` | the program to test, in place of one built now |
//! | `KILN_ROUNDS` | rounds of kill -9 and restart, default 20 |
//! | `KILN_SOAK_SECONDS` | go on with rounds until so many seconds are over |
//! | `KILN_SEED` | the seed to replay; random and printed otherwise |

pub mod actors;
pub mod program;
pub mod server;
