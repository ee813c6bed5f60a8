//! The system's limits of a process.

mod common;

use std::os::unix::process::ExitStatusExt as _;

use common::{Sandbox, text};

/// The process was killed, and said nothing.
#[test]
fn a_limit_of_the_size_of_files_is_an_error_that_names_what_is_too_long() {
    let sandbox = Sandbox::new();
    let output = sandbox.limited("-f 8192", &["put", "--object", "notes", "key", "value"]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!((output.status.signal(), output.status.code()), (None, Some(1)), "{said}");
    assert!(said.contains("segment") && said.contains("File too large"), "{said}");
}
