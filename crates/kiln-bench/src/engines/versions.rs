//! The versions of peers that are built into this program, from the workspace's lock file, which cannot lie.

use anyhow::{Context, Result};

const LOCK_FILE: &str = include_str!("../../../../Cargo.lock");

/// The version of a package that was built.
pub(super) fn locked_version(package: &str) -> Result<String> {
    LOCK_FILE
        .split_once(&format!("name = \"{package}\"\nversion = \""))
        .and_then(|(_, after)| after.split('"').next())
        .map(str::to_owned)
        .with_context(|| format!("{package} is not in Cargo.lock; build kiln-bench in its workspace"))
}

#[test]
fn a_version_is_found_and_a_missing_package_is_said_to_be_missing() {
    assert_eq!(locked_version("kiln-bench").unwrap(), env!("CARGO_PKG_VERSION"));
    assert!(locked_version("no-such-engine").unwrap_err().to_string().contains("no-such-engine"));
}
