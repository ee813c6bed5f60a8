//! `get`, `put`, `del`, `drop` and `scan`: one object of a database.

use std::io::{self, BufWriter, IsTerminal as _, Read as _, Write};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use kiln::{ErrorKind, Expiry, Kiln, Map, Object as _, ObjectKind, Options, Snapshot, Table};

use crate::arguments::{At, Del, DropObject, Get, Object, Put, Scan};
use crate::escape::escape;
use crate::failure::Failure;
use crate::output::{report, say_aside};
use crate::snapshot::open_at;
use crate::standard_output::standard_output;

/// An object that exists, of either kind.
pub(crate) enum AnyObject {
    Map(Map),
    Table(Table),
}

/// Opens a database that must exist.
pub(crate) fn open_database(dir: &Path) -> Result<Kiln, Failure> {
    open_with(Options::new().create(false), dir)
}

/// Opens a database, and says what that has found to be lost or damaged: it is closed in order at the end, and whoever opens it next finds nothing of that.
pub(crate) fn open_with(options: Options, dir: &Path) -> Result<Kiln, Failure> {
    let db = options.open(dir).map_err(|error| Failure::opening(dir, error))?;
    let report = db.recovery_report();
    if report.lost_versions.is_some() || report.damaged_slot.is_some() || report.checkpoint_damage.is_some() {
        say_aside(format_args!("kiln: {}", report.to_string().trim_end()));
    }
    Ok(db)
}

/// Opens an object that must exist.
pub(crate) fn open_object(db: &Kiln, object: &Object) -> Result<AnyObject, Failure> {
    find_object(db, &object.object)?.ok_or_else(|| {
        let names: Vec<String> = db.objects().iter().map(|object| escape(object.name.as_bytes())).collect();
        let known =
            if names.is_empty() { "it has none".to_owned() } else { format!("it has: {}", names.join(", ")) };
        let name = escape(object.object.as_bytes());
        Failure::Other(format!("{}: no object named '{name}'; {known}", object.dir.display()))
    })
}

/// Opens an object that must exist now, or must have when a snapshot was made that is asked for.
pub(crate) fn open_object_at(
    db: &Kiln,
    object: &Object,
    (snapshot, at): (&Snapshot<'_>, &At),
) -> Result<AnyObject, Failure> {
    if at.snapshot.is_some() {
        match snapshot.map(&object.object) {
            Ok(map) => return Ok(AnyObject::Map(map)),
            Err(error) if error.kind() == ErrorKind::Input => {
                return Ok(AnyObject::Table(snapshot.table(&object.object)?));
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            // It was made later, and nothing is in it.
            Err(_) => {}
        }
    }
    open_object(db, object)
}

/// Opens an object that is to be written, which is created if it does not exist.
pub(crate) fn open_or_create_object(
    db: &Kiln,
    object: &Object,
    table: bool,
    time_to_live: Option<Duration>,
) -> Result<AnyObject, Failure> {
    let found = find_object(db, &object.object)?;
    let is_map = found.as_ref().map_or(!table, |found| matches!(found, AnyObject::Map(_)));
    if is_map && let Some(served) = kiln_server::served_instead_of(db, &object.object)? {
        return Err(Failure::Other(format!(
            "{}: '{}' is one of the server's maps that are emptied after a flush, and must be empty before the first; \
             what the next server serves is '{served}'",
            object.dir.display(),
            object.object
        )));
    }
    match found {
        Some(AnyObject::Map(_)) if table => Err(Failure::Other(format!(
            "{}: '{}' is a map already; leave out --table, or choose another name",
            object.dir.display(),
            escape(object.object.as_bytes())
        ))),
        Some(found) => Ok(found),
        None => Ok(match (table, time_to_live) {
            (true, None) => AnyObject::Table(db.table(&object.object)?),
            (true, Some(time)) => AnyObject::Table(db.table_with_time_to_live(&object.object, time)?),
            (false, None) => AnyObject::Map(db.map(&object.object)?),
            (false, Some(time)) => AnyObject::Map(db.map_with_time_to_live(&object.object, time)?),
        }),
    }
}

fn find_object(db: &Kiln, name: &str) -> Result<Option<AnyObject>, Failure> {
    let found = db.objects().into_iter().find(|object| object.name == name);
    Ok(match found.map(|object| object.kind) {
        None => None,
        Some(ObjectKind::Map) => Some(AnyObject::Map(db.map(name)?)),
        Some(ObjectKind::Table) => Some(AnyObject::Table(db.table(name)?)),
        Some(kind) => {
            return Err(Failure::Other(format!("'{name}' is a {kind:?}, which this command cannot read")));
        }
    })
}

/// `kiln get`
pub(crate) fn get(arguments: &Get) -> Result<(), Failure> {
    let out = standard_output()?;
    let db = open_database(&arguments.object.dir)?;
    let key = arguments.key.as_bytes();
    let snapshot = open_at(&db, &arguments.at)?;
    let object = open_object_at(&db, &arguments.object, (&snapshot, &arguments.at))?;
    let value = match &object {
        AnyObject::Map(map) => snapshot.get(map, key)?,
        AnyObject::Table(table) => snapshot.get(table, key)?,
    };
    drop(snapshot);
    db.close()?;
    let value = value.ok_or_else(|| {
        let name = escape(arguments.object.object.as_bytes());
        Failure::Other(format!("'{name}' has no key '{}'", escape(key)))
    })?;
    let mut out = out.lock();
    let written = if arguments.raw { out.write_all(&value) } else { writeln!(out, "{}", escape(&value)) };
    written.and_then(|()| out.flush()).map_err(Failure::report)
}

/// `kiln put`
pub(crate) fn put(arguments: &Put) -> Result<(), Failure> {
    let value = match &arguments.value {
        Some(value) => value.as_bytes().to_vec(),
        None => read_standard_input()?,
    };
    let db = open_with(Options::new(), &arguments.object.dir)?;
    match open_or_create_object(&db, &arguments.object, arguments.table, None)? {
        AnyObject::Map(map) => put_into(&db, &map, arguments, &value)?,
        AnyObject::Table(table) => put_into(&db, &table, arguments, &value)?,
    }
    Ok(db.close()?)
}

fn put_into(db: &Kiln, object: &impl kiln::Object, arguments: &Put, value: &[u8]) -> Result<(), Failure> {
    let key = arguments.key.as_bytes();
    let commit = match arguments.ttl {
        None => db.put(object, key, value)?,
        Some(time_to_live) => db.put_expiring(object, key, value, Expiry::In(time_to_live))?,
    };
    Ok(commit.safe()?)
}

fn read_standard_input() -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    // A byte more than any value may have: the engine refuses that, and says why. What never ends would fill the memory first.
    let most = kiln::VALUE_BYTES_MAX as u64 + 1;
    io::stdin()
        .lock()
        .take(most)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::Io { doing: "reading standard input".to_owned(), error })?;
    Ok(bytes)
}

/// `kiln del`
pub(crate) fn del(arguments: &Del) -> Result<(), Failure> {
    // Who is told of a failure believes that nothing was deleted.
    standard_output()?;
    let db = open_database(&arguments.object.dir)?;
    let object = open_object(&db, &arguments.object)?;
    let deleted = db.transact(|tx| {
        arguments.keys.iter().try_fold(0u64, |count, key| {
            let existed = match &object {
                AnyObject::Map(map) => tx.delete(map, key.as_bytes())?,
                AnyObject::Table(table) => tx.delete(table, key.as_bytes())?,
            };
            Ok(count + u64::from(existed))
        })
    })?;
    let deleted = deleted.safe()?;
    db.close()?;
    report(&format!("deleted {deleted} of {}", arguments.keys.len()))
}

/// `kiln drop`
pub(crate) fn drop_object(arguments: &DropObject) -> Result<(), Failure> {
    let name = &arguments.object.object;
    let db = open_database(&arguments.object.dir)?;
    let object = open_object(&db, &arguments.object)?;
    let keys = match &object {
        AnyObject::Map(map) => map.len(),
        AnyObject::Table(table) => table.len(),
    };
    let shown = escape(name.as_bytes());
    if !arguments.yes && !confirm(&format!("drop '{shown}' with its {keys} keys?"))? {
        db.close()?;
        return Err(Failure::Other(format!("'{shown}' stays")));
    }
    let commit = match &object {
        AnyObject::Map(_) => db.drop_map(name)?,
        AnyObject::Table(_) => db.drop_table(name)?,
    };
    commit.safe()?;
    db.close()?;
    say_aside(format_args!("dropped '{shown}'"));
    Ok(())
}

/// Asks whoever sits there.
fn confirm(question: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::Other(format!("{question} say so with --yes")));
    }
    say_aside(format_args!("{question} [y/N]"));
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::Io { doing: "reading the answer".to_owned(), error })?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// `kiln scan`
pub(crate) fn scan(arguments: &Scan) -> Result<(), Failure> {
    let out = standard_output()?;
    let db = open_database(&arguments.object.dir)?;
    let snapshot = open_at(&db, &arguments.at)?;
    let object = open_object_at(&db, &arguments.object, (&snapshot, &arguments.at))?;
    let mut out = BufWriter::new(out.lock());
    let mut print = |key: &[u8], value: &[u8]| print_entry(&mut out, arguments, key, value);
    let limit = arguments.limit.unwrap_or(usize::MAX);
    match &object {
        AnyObject::Map(map) => scan_map(&snapshot, map, arguments, limit, &mut print)?,
        AnyObject::Table(table) => scan_table(&snapshot, table, arguments, limit, &mut print)?,
    }
    out.flush().map_err(Failure::report)?;
    drop(snapshot);
    Ok(db.close()?)
}

fn scan_map(
    snapshot: &Snapshot<'_>,
    map: &Map,
    arguments: &Scan,
    limit: usize,
    print: &mut impl FnMut(&[u8], &[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if arguments.from.is_some() || arguments.to.is_some() || arguments.reverse {
        let name = escape(arguments.object.object.as_bytes());
        return Err(Failure::Other(format!(
            "'{name}' is a map, which has no order; --from, --to and --reverse are for tables"
        )));
    }
    let prefix = arguments.prefix.as_deref().map_or(b"".as_slice(), |prefix| prefix.as_bytes());
    let mut printed = 0;
    for entry in snapshot.iter(map) {
        if printed == limit {
            break;
        }
        let (key, value) = entry?;
        if key.starts_with(prefix) {
            print(&key, &value)?;
            printed += 1;
        }
    }
    Ok(())
}

fn scan_table(
    snapshot: &Snapshot<'_>,
    table: &Table,
    arguments: &Scan,
    limit: usize,
    print: &mut impl FnMut(&[u8], &[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let range = match &arguments.prefix {
        Some(prefix) => snapshot.prefix(table, prefix.as_bytes()),
        None => {
            let from =
                arguments.from.as_deref().map_or(Bound::Unbounded, |key| Bound::Included(key.as_bytes()));
            let to = arguments.to.as_deref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_bytes()));
            if let (Bound::Included(from), Bound::Excluded(to)) = (from, to)
                && from >= to
            {
                return Ok(());
            }
            snapshot.range::<&[u8]>(table, (from, to))
        }
    };
    let range = if arguments.reverse { range.reverse() } else { range };
    let mut range = range.limit(limit);
    while let Some((key, value)) = range.next_row()? {
        print(key, value)?;
    }
    Ok(())
}

fn print_entry(out: &mut impl Write, arguments: &Scan, key: &[u8], value: &[u8]) -> Result<(), Failure> {
    let mut field = |bytes: &[u8], end: &[u8]| {
        let written =
            if arguments.raw { out.write_all(bytes) } else { out.write_all(escape(bytes).as_bytes()) };
        written.and_then(|()| out.write_all(end)).map_err(Failure::report)
    };
    if arguments.keys_only {
        return field(key, b"\n");
    }
    field(key, b"\t")?;
    field(value, b"\n")
}
