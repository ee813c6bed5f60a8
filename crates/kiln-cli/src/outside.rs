//! That copies of a database are outside of its directory.

use std::io;
use std::path::{Component, Path, PathBuf};

use crate::failure::Failure;

/// Refuses to make a copy of a database within its own directory: who removes the one would remove the other. Neither need be there yet.
pub(crate) fn check_outside(copy: &Path, dir: &Path) -> Result<(), Failure> {
    match (place_of(copy), place_of(dir)) {
        (Ok(place), Ok(own)) if place.starts_with(&own) => Err(Failure::Other(format!(
            "{} is within {}, and would be lost with it; name a directory elsewhere",
            copy.display(),
            dir.display()
        ))),
        _ => Ok(()),
    }
}

/// Where a path leads, without links, or is going to: what is not there yet is going to be as it is written.
fn place_of(path: &Path) -> io::Result<PathBuf> {
    let mut place = PathBuf::new();
    for part in std::path::absolute(path)?.components() {
        match part {
            // No link is left by now that it could mean another directory behind.
            Component::ParentDir => drop(place.pop()),
            part => {
                place.push(part);
                place = place.canonicalize().unwrap_or(place);
            }
        }
    }
    Ok(place)
}
