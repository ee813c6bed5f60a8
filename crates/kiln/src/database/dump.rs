//! Printing a database's log.

use std::io::Write;
use std::path::Path;

use super::check::{file_device, open_offline};
use crate::error::{Error, Result};
use crate::storage::extent::{Extent, Item};
use crate::storage::record::NEVER;
use crate::storage::scanner::Scanner;

/// Prints a database's log for people: every seal and every record, in order. Nobody may have it open.
///
/// # Errors
/// As [`check`](super::check()); `Corrupted` where the log is damaged; `Io` if `out` fails.
pub fn dump_log(path: impl AsRef<Path>, out: &mut dyn Write) -> Result<()> {
    let (segments, superblock, _lock) = open_offline(file_device(path.as_ref())?)?;
    let print = |error| Error::io("printing the log", error);
    writeln!(out, "{superblock:#?}").map_err(print)?;
    let mut scanner = Scanner::new(&segments, &superblock);
    while let Some(extent) = scanner.next()? {
        dump_extent(&extent, out).map_err(print)?;
    }
    let (end, cut) = (scanner.position(), scanner.cut_bytes());
    writeln!(out, "{end:#014x} end of the log; {cut} bytes of an unfinished write follow").map_err(print)
}

fn dump_extent(extent: &Extent<'_>, out: &mut dyn Write) -> std::io::Result<()> {
    let seal = &extent.seal;
    write!(
        out,
        "{:#014x} seal {} version {} length {} previous {:08x} data {:08x} time {} us",
        seal.address,
        seal.number,
        seal.version,
        seal.length,
        seal.previous_checksum,
        seal.data_checksum,
        seal.time_us
    )?;
    match seal.first_version {
        0 => writeln!(out)?,
        first => {
            writeln!(out, " opened after a crash: versions {} to {} are lost", seal.version + 1, first - 1)?
        }
    }
    for item in extent.items() {
        match item {
            Err((address, what)) => writeln!(out, "{address:#014x}   DAMAGED: {what}")?,
            Ok(Item::Padding(address, bytes)) => writeln!(out, "{address:#014x}   padding {bytes}")?,
            Ok(Item::Record(address, record)) => writeln!(
                out,
                "{address:#014x}   {}{} version {} object {} previous {:#x} key \"{}\" value {} bytes \"{}\"",
                if record.shape.kind.is_put() { "put" } else { "tombstone" },
                if record.expires_at == NEVER {
                    String::new()
                } else {
                    format!(" until {} ms", record.expires_at)
                },
                record.version,
                record.shape.object,
                record.previous,
                record.key.escape_ascii(),
                record.value.len(),
                record.value[..record.value.len().min(64)].escape_ascii(),
            )?,
        }
    }
    Ok(())
}
