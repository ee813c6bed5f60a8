//! `snapshot`: making, listing and dropping snapshots that have names; and reading at one.

use bytesize::ByteSize;
use humantime::format_rfc3339_seconds;
use kiln::{Kiln, SnapshotInfo};

use crate::arguments::{At, Snapshot, SnapshotName};
use crate::failure::Failure;
use crate::object::open_database;

/// `kiln snapshot`
pub(crate) fn snapshot(arguments: &Snapshot) -> Result<(), Failure> {
    match arguments {
        Snapshot::Create(SnapshotName { name, dir }) => {
            let db = open_database(dir)?;
            let version = db.create_snapshot(name)?.version;
            db.close()?;
            eprintln!("made '{name}': everything up to version {version}");
        }
        Snapshot::List { dir } => {
            let db = open_database(dir)?;
            db.snapshots().iter().for_each(print);
            db.close()?;
        }
        Snapshot::Drop(SnapshotName { name, dir }) => {
            let db = open_database(dir)?;
            db.drop_snapshot(name)?;
            db.close()?;
            eprintln!("dropped '{name}'");
        }
    }
    Ok(())
}

fn print(info: &SnapshotInfo) {
    let SnapshotInfo { name, version, created, held_bytes, .. } = info;
    let (created, held) = (format_rfc3339_seconds(*created), ByteSize(*held_bytes));
    println!("{name}\t{version}\t{created}\tholds about {held}");
}

/// Opens the snapshot that is asked for, or one of now.
pub(crate) fn open_at<'db>(db: &'db Kiln, at: &At) -> Result<kiln::Snapshot<'db>, Failure> {
    Ok(match &at.snapshot {
        Some(name) => db.open_snapshot(name)?,
        None => db.snapshot()?,
    })
}
