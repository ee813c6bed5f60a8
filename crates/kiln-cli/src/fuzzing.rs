//! What `import` reads and what `export` writes, for fuzzers. Only a build with the feature `fuzzing` shows them.

use kiln::Expiry;

use crate::transfer::{Lines, Row, write_line};

/// A key, its value, and when it expires, if that is said.
type Fields = (Vec<u8>, Vec<u8>, Option<Expiry>);

/// The rows in what `import` is given.
///
/// # Errors
/// As `import` prints it.
pub fn entries(input: &[u8]) -> Result<Vec<Fields>, String> {
    let mut lines = Lines::new(input);
    let next = || {
        let row = lines.next_row().map_err(|failure| failure.to_string()).transpose()?;
        Some(row.map(|row| (row.key, row.value, row.expiry)))
    };
    std::iter::from_fn(next).collect()
}

/// What `export` writes.
pub fn lines(entries: &[Fields]) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value, expiry) in entries.iter().cloned() {
        // Memory takes everything.
        let _ = write_line(&mut out, Row { key, value, expiry });
    }
    out
}
