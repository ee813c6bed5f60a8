//! `snapshot`: making, listing and dropping snapshots that have names; and reading at one.

use bytesize::ByteSize;
use humantime::format_rfc3339_seconds;
use kiln::{Kiln, SnapshotInfo};

use crate::arguments::{At, Snapshot, SnapshotName};
use crate::escape::escape;
use crate::failure::Failure;
use crate::object::open_database;
use crate::output::{report, say_aside};
use crate::standard_output::standard_output;

/// `kiln snapshot`
pub(crate) fn snapshot(arguments: &Snapshot) -> Result<(), Failure> {
    match arguments {
        Snapshot::Create(SnapshotName { name, dir }) => {
            let db = open_database(dir)?;
            let version = db.create_snapshot(name)?.version;
            db.close()?;
            say_aside(format_args!("made '{}': everything up to version {version}", escape(name.as_bytes())));
        }
        Snapshot::List { dir } => {
            standard_output()?;
            let db = open_database(dir)?;
            let lines: Vec<String> = db.snapshots().iter().map(describe).collect();
            db.close()?;
            if !lines.is_empty() {
                report(&lines.join("\n"))?;
            }
        }
        Snapshot::Drop(SnapshotName { name, dir }) => {
            let db = open_database(dir)?;
            db.drop_snapshot(name)?;
            db.close()?;
            say_aside(format_args!("dropped '{}'", escape(name.as_bytes())));
        }
    }
    Ok(())
}

fn describe(info: &SnapshotInfo) -> String {
    let SnapshotInfo { name, version, created, held_bytes, .. } = info;
    let (name, created, held) =
        (escape(name.as_bytes()), format_rfc3339_seconds(*created), ByteSize(*held_bytes));
    format!("{name}\t{version}\t{created}\tholds about {held}")
}

/// Opens the snapshot that is asked for, or one of now.
pub(crate) fn open_at<'db>(db: &'db Kiln, at: &At) -> Result<kiln::Snapshot<'db>, Failure> {
    Ok(match &at.snapshot {
        Some(name) => db.open_snapshot(name)?,
        None => db.snapshot()?,
    })
}
