//! What `kiln import` reads, `kiln export` writes as it was.

use crate::measure::bounded;

/// Strings grow by doubling, and each is decoded from a copy.
const TIMES: usize = 64;

/// JSON lines.
pub(crate) fn import(input: &[u8]) {
    let Ok(entries) = bounded(input, TIMES, || kiln_cli::fuzzing::entries(input)) else { return };
    let lines = kiln_cli::fuzzing::lines(&entries);
    assert_eq!(kiln_cli::fuzzing::entries(&lines).as_ref(), Ok(&entries));
    assert_eq!(kiln_cli::fuzzing::lines(&entries), lines);
}
