//! What `import` reads and what `export` writes, for fuzzers. Only a build with the feature `fuzzing` shows them.

use crate::transfer::{Lines, write_line};

type Pair = (Vec<u8>, Vec<u8>);

/// The keys and values in what `import` is given.
///
/// # Errors
/// As `import` prints it.
pub fn entries(input: &[u8]) -> Result<Vec<Pair>, String> {
    let mut lines = Lines::new(input);
    let next = || lines.next_entry().map_err(|failure| failure.to_string()).transpose();
    std::iter::from_fn(next).collect()
}

/// What `export` writes.
pub fn lines(entries: &[Pair]) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        // Memory takes everything.
        let _ = write_line(&mut out, entry.clone());
    }
    out
}
