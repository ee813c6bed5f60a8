//! `session`: listing sessions, and forgetting some.

use std::ffi::OsString;
use std::io::{BufWriter, Write as _};
use std::os::unix::ffi::OsStrExt as _;

use kiln::Kiln;

use crate::arguments::Session;
use crate::escape::escape;
use crate::failure::Failure;
use crate::object::open_database;
use crate::output::report;
use crate::standard_output::standard_output;

/// `kiln session`
pub(crate) fn session(arguments: &Session) -> Result<(), Failure> {
    let out = standard_output()?;
    match arguments {
        Session::List { dir } => {
            let db = open_database(dir)?;
            // There may be millions.
            let mut out = BufWriter::new(out.lock());
            for info in db.sessions() {
                let info = info?;
                writeln!(out, "{}\t{}", escape(&info.id), info.serial).map_err(Failure::report)?;
            }
            out.flush().map_err(Failure::report)?;
            Ok(db.close()?)
        }
        Session::Forget { ids, dir } => {
            let db = open_database(dir)?;
            let forgotten = forget(&db, ids)?;
            db.close()?;
            report(&format!("forgot {forgotten} of {}", ids.len()))
        }
    }
}

/// Forgets those that are there. Closing makes that durable.
fn forget(db: &Kiln, ids: &[OsString]) -> Result<u64, Failure> {
    ids.iter().try_fold(0, |count, id| Ok(count + u64::from(db.forget_session(id.as_bytes())?.forget())))
}
