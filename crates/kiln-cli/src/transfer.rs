//! `import` and `export`: objects as JSON lines; `backup`, `restore` and `compact`: a whole database.

use std::cmp::Reverse;
use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal as _, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};
use kiln::{BackupProgress, ErrorKind, Expiry, Kiln, Object, Options, Snapshot, Transaction};
use tempfile::NamedTempFile;

use crate::arguments::{Backup, Compact, Export, Import, Restore};
use crate::entry::{Entry, Text, When};
use crate::escape::escape;
use crate::failure::Failure;
use crate::object::{AnyObject, open_database, open_object_at, open_or_create_object, open_with};
use crate::output::say_aside;
use crate::outside::check_outside;
use crate::snapshot::open_at;
use crate::standard_output::standard_output;

/// How much one transaction of an import holds. Larger ones gain nothing: hardening is shared anyway.
const BATCH_ENTRIES: usize = 512;
const BATCH_BYTES: usize = 1024 * 1024;
/// The longest line: the longest key and value in base64, escapes and field names.
const LINE_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// `kiln import`
pub(crate) fn import(arguments: &Import) -> Result<(), Failure> {
    let (input, bytes): (Box<dyn Read>, _) = match &arguments.file {
        None => (Box::new(io::stdin()), None),
        Some(path) => {
            let file = File::open(path).map_err(|error| Failure::io("opening", path, error))?;
            let found = file.metadata().map_err(|error| Failure::io("reading", path, error))?;
            if found.is_dir() {
                return Err(Failure::io("reading", path, io::ErrorKind::IsADirectory.into()));
            }
            (Box::new(file), Some(found.len()))
        }
    };
    let progress = progress(bytes, Unit::Bytes);
    let mut lines = Lines::new(BufReader::new(progress.wrap_read(input)));
    // Before anything is made for what is no export.
    lines.look_ahead().inspect_err(|_| progress.finish_and_clear())?;
    let db = open_with(arguments.space.options(), &arguments.object.dir)?;
    let result = match arguments.bulk {
        true => import_in_bulk(&db, arguments, lines),
        false => open_or_create_object(&db, &arguments.object, arguments.table, arguments.object_ttl)
            .and_then(|object| import_lines(&db, &object, &mut lines)),
    };
    progress.finish_and_clear();
    // Also after a line that could not be read: what the message says is in must be durable.
    db.persist()?;
    let count = result?;
    db.close()?;
    say_aside(format_args!("imported {count} keys into '{}'", escape(arguments.object.object.as_bytes())));
    Ok(())
}

fn import_lines(db: &Kiln, object: &AnyObject, lines: &mut Lines<impl BufRead>) -> Result<u64, Failure> {
    let mut count = 0;
    loop {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_ENTRIES && bytes < BATCH_BYTES {
            let Some(row) = lines.next_row()? else { break };
            bytes += row.key.len() + row.value.len();
            batch.push((lines.number, row));
        }
        if batch.is_empty() {
            return Ok(count);
        }
        let mut refused = None;
        let commit = db.transact(|tx| {
            refused = None;
            batch.iter().try_for_each(|(number, row)| {
                let put = match object {
                    AnyObject::Map(map) => put_row(tx, map, row),
                    AnyObject::Table(table) => put_row(tx, table, row),
                };
                put.inspect_err(|_| refused = Some(*number))
            })
        });
        let commit = commit.map_err(|error| match refused {
            Some(number) if error.kind() == ErrorKind::Input => in_line(number, error),
            _ => Failure::Other(format!("the {} lines up to line {}: {error}", batch.len(), lines.number)),
        })?;
        commit.forget();
        count += batch.len() as u64;
    }
}

/// A time that has passed is a time, too: the row has expired, and what its key had before is replaced.
fn put_row(tx: &Transaction<'_>, object: &impl Object, row: &Row) -> kiln::Result<()> {
    match row.expiry {
        None => tx.put(object, &row.key, &row.value),
        Some(expiry) => tx.put_expiring(object, &row.key, &row.value, expiry),
    }
}

/// Makes a new table of all lines, or of none.
fn import_in_bulk(db: &Kiln, arguments: &Import, mut lines: Lines<impl BufRead>) -> Result<u64, Failure> {
    let pairs = std::iter::from_fn(|| lines.next_pair().transpose());
    if !arguments.sort {
        return load(db, arguments, pairs);
    }
    let mut rows = pairs.collect::<Result<Vec<(u64, Pair)>, _>>()?;
    // Stable, so that the last of a key's lines is the last of them still.
    rows.sort_by(|(_, one), (_, other)| one.0.cmp(&other.0));
    let mut rows = rows.into_iter().peekable();
    let newest = std::iter::from_fn(|| {
        loop {
            let (number, row) = rows.next()?;
            if rows.peek().is_none_or(|(_, next)| next.0 != row.0) {
                return Some(Ok((number, row)));
            }
        }
    });
    load(db, arguments, newest)
}

/// Loads rows, each with the number of its line.
fn load(
    db: &Kiln,
    arguments: &Import,
    rows: impl Iterator<Item = Result<(u64, Pair), Failure>>,
) -> Result<u64, Failure> {
    let mut taken = None;
    let pairs = rows.map(|row| {
        let (number, pair) = row?;
        taken = Some(number);
        Ok(pair)
    });
    let loaded = db.bulk_load(&arguments.object.object, pairs, |_| {});
    let loaded = loaded.map_err(|failure: Failure| match (failure, taken) {
        // A row is refused when it is taken.
        (Failure::Engine(error), Some(number)) if error.kind() == ErrorKind::Input => in_line(number, error),
        (failure, _) => failure,
    })?;
    Ok(loaded.rows)
}

/// The entries of an input, one a line.
pub(crate) struct Lines<R> {
    input: R,
    /// Of the line that was read last, from 1.
    number: u64,
    line: Vec<u8>,
    /// It was read, and not taken yet.
    ahead: Option<Row>,
}

/// What a line says.
pub(crate) struct Row {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// `None` if nothing is said.
    pub(crate) expiry: Option<Expiry>,
}

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, number: 0, line: Vec::new(), ahead: None }
    }

    /// Reads the first row, which is still the next one.
    fn look_ahead(&mut self) -> Result<(), Failure> {
        self.ahead = self.next_row()?;
        Ok(())
    }

    /// The next row; lines without text are passed over.
    pub(crate) fn next_row(&mut self) -> Result<Option<Row>, Failure> {
        if let Some(row) = self.ahead.take() {
            return Ok(Some(row));
        }
        loop {
            self.line.clear();
            let read = (&mut self.input).take(LINE_BYTES_MAX).read_until(b'\n', &mut self.line);
            if let Ok(0) = read {
                return Ok(None);
            }
            self.number += 1;
            match read {
                Ok(bytes) if bytes as u64 == LINE_BYTES_MAX => return Err(self.failure("is too long")),
                Ok(_) => {}
                Err(error) => return Err(self.failure(error)),
            }
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        let entry = Entry::from_line(&self.line)
            .map_err(|error| self.failure(format!("expected {{\"key\": ..., \"value\": ...}}: {error}")))?;
        let key = entry.key.into_bytes().map_err(|error| self.failure(error))?;
        let value = entry.value.into_bytes().map_err(|error| self.failure(error))?;
        Ok(Some(Row { key, value, expiry: entry.expires_at_ms.map(Expiry::from) }))
    }

    /// The next row for a bulk load, in which none can expire, and the number of its line.
    fn next_pair(&mut self) -> Result<Option<(u64, Pair)>, Failure> {
        match self.next_row()? {
            Some(Row { expiry: Some(Expiry::At(_) | Expiry::In(_)), .. }) => Err(self.failure(
                "this row has \"expires_at_ms\", which --bulk cannot keep; import it without --bulk",
            )),
            row => Ok(row.map(|row| (self.number, (row.key, row.value)))),
        }
    }

    fn failure(&self, what: impl std::fmt::Display) -> Failure {
        in_line(self.number, what)
    }
}

fn in_line(number: u64, what: impl std::fmt::Display) -> Failure {
    Failure::Other(format!("line {number}: {what}"))
}

/// `kiln export`
pub(crate) fn export(arguments: &Export) -> Result<(), Failure> {
    if arguments.file.is_none() {
        standard_output()?;
    }
    let db = open_database(&arguments.object.dir)?;
    let snapshot = open_at(&db, &arguments.at)?;
    let object = open_object_at(&db, &arguments.object, (&snapshot, &arguments.at))?;
    let destination: Box<dyn Destination> = match &arguments.file {
        None => Box::new(standard_output()?.lock()),
        Some(path) => Box::new(NewFile::create(path).map_err(|error| Failure::io("creating", path, error))?),
    };
    let mut out = BufWriter::new(destination);
    let (keys, time_to_live) = match &object {
        AnyObject::Map(map) => (map.len(), map.time_to_live()),
        AnyObject::Table(table) => (table.len(), table.time_to_live()),
    };
    let progress = progress(Some(keys), Unit::Keys);
    let mut count = 0u64;
    let mut write = |row: Row| -> Result<(), Failure> {
        write_line(&mut out, row)?;
        count += 1;
        progress.inc(1);
        Ok(())
    };
    let name = &arguments.object.object;
    // Elsewhere a row that stays would get what that object gives it: it is said of each that it does.
    let says_never = time_to_live.is_some();
    match &object {
        AnyObject::Map(map) => snapshot
            .iter(map)
            .try_for_each(|entry| write(with_expiry(&snapshot, map, entry?, says_never)?))?,
        AnyObject::Table(table) => snapshot
            .range::<&[u8]>(table, ..)
            .try_for_each(|entry| write(with_expiry(&snapshot, table, entry?, says_never)?))?,
    }
    finish(out)?;
    progress.finish_and_clear();
    say_aside(format_args!("exported {count} keys of '{}'", escape(name.as_bytes())));
    drop(snapshot);
    Ok(db.close()?)
}

/// Where an export goes.
trait Destination: Write {
    /// Makes what was written survive a power loss.
    fn harden(&mut self) -> io::Result<()>;
}

/// What becomes of it is up to whoever reads it.
impl Destination for io::StdoutLock<'_> {
    fn harden(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that has its name once all of it is there: what ends before leaves nothing that looks like an export.
struct NewFile {
    /// Under a name of its own, beside it; `None` once it has the right one.
    unfinished: Option<NamedTempFile>,
    path: PathBuf,
}

impl NewFile {
    /// Never over an existing file: it may be the only other copy.
    fn create(path: &Path) -> io::Result<NewFile> {
        match path.symlink_metadata() {
            Ok(_) => {
                let what = "it is there already; name another file";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if path.file_name().is_none() || path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        let unfinished = tempfile::Builder::new()
            .prefix(".kiln-export-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(parent_of(path))?;
        Ok(NewFile { unfinished: Some(unfinished), path: path.to_owned() })
    }

    fn unfinished(&mut self) -> io::Result<&mut NamedTempFile> {
        self.unfinished.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unfinished()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unfinished()?.flush()
    }
}

impl Destination for NewFile {
    #[allow(
        clippy::disallowed_methods,
        reason = "it is no file of the engine's, and tests have destinations of their own"
    )]
    fn harden(&mut self) -> io::Result<()> {
        self.unfinished()?.as_file().sync_all()?;
        if let Some(unfinished) = self.unfinished.take() {
            unfinished.persist_noclobber(&self.path).map_err(|failed| match failed.file.keep() {
                // All of it is there, whatever it is called.
                Ok((_, kept)) => io::Error::new(
                    failed.error.kind(),
                    format!("{}; all of it is in {}", failed.error, kept.display()),
                ),
                Err(_) => failed.error,
            })?;
        }
        // And its name. A directory into which one may write but not look cannot be asked to.
        match File::open(parent_of(&self.path)) {
            Ok(directory) => directory.sync_all(),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Ends an export: all of it is written, and hardened, or it has failed.
fn finish(out: BufWriter<Box<dyn Destination + '_>>) -> Result<(), Failure> {
    let mut destination = out.into_inner().map_err(|error| Failure::output(error.into_error()))?;
    destination.flush().and_then(|()| destination.harden()).map_err(Failure::output)
}

/// A row that `snapshot` has, and when it expires. It sees all of them as of one moment, so the row is still there.
fn with_expiry(
    snapshot: &Snapshot<'_>,
    object: &impl Object,
    (key, value): Pair,
    says_never: bool,
) -> Result<Row, Failure> {
    let expiry = snapshot.expiry(object, &key)?;
    Ok(Row { key, value, expiry: expiry.filter(|expiry| says_never || *expiry != Expiry::Never) })
}

/// `kiln backup`
pub(crate) fn backup(arguments: &Backup) -> Result<(), Failure> {
    let stream = match is_standard(&arguments.to) {
        true if io::stdout().is_terminal() => {
            return Err(Failure::Other("a backup is not for a terminal: pipe it somewhere".to_owned()));
        }
        true => Some(BufWriter::new(standard_output()?)),
        false => {
            check_outside(&arguments.to, &arguments.dir)?;
            None
        }
    };
    let db = open_database(&arguments.dir)?;
    let bar = progress(Some(0), Unit::Bytes);
    let backup = match stream {
        Some(stream) => db.backup_stream(stream, |progress| show(&bar, progress)),
        None => db.backup(&arguments.to, |progress| show(&bar, progress)),
    };
    bar.finish_and_clear();
    let backup = backup?;
    db.close()?;
    let (size, to) = (ByteSize(backup.bytes), arguments.to.display());
    say_aside(format_args!("backed up {size} into {to}: everything up to version {}", backup.horizon));
    Ok(())
}

/// `kiln restore`
pub(crate) fn restore(arguments: &Restore) -> Result<(), Failure> {
    let Restore { from, to } = arguments;
    let (mut stream, bytes): (Option<Box<dyn Read>>, _) = if is_standard(from) {
        (Some(Box::new(io::stdin().lock())), None)
    } else if from.is_dir() {
        check_outside(to, from)?;
        (None, Some(0))
    } else {
        let file = File::open(from).map_err(|error| Failure::io("opening", from, error))?;
        let bytes = file.metadata().map_err(|error| Failure::io("reading", from, error))?.len();
        (Some(Box::new(BufReader::new(file))), Some(bytes))
    };
    let bar = progress(bytes, Unit::Bytes);
    let restored = match &mut stream {
        Some(stream) => Kiln::restore_stream(bar.wrap_read(stream), to, |_| {}),
        None => Kiln::restore(from, to, |progress| show(&bar, progress)),
    };
    bar.finish_and_clear();
    let restored = restored.map_err(|error| match error.kind() {
        // The engine does not know where a stream comes from.
        ErrorKind::Corrupted | ErrorKind::Version if stream.is_some() => {
            Failure::Other(format!("{}: {error}", from.display()))
        }
        _ => error.into(),
    })?;
    let (size, shown) = (ByteSize(restored.bytes), to.display());
    say_aside(format_args!("restored {size} into {shown}: everything up to version {}", restored.horizon));
    // By now it is there, and durable; but it need not be all that was meant.
    let follows = stream.map_or(Ok(0), |mut stream| stream.read(&mut [0]));
    match follows.map_err(|error| Failure::io("reading what follows the backup in", from, error))? {
        0 => Ok(()),
        _ => Err(Failure::Other(format!(
            "{}: something follows the backup, and was not restored; each stream is restored by itself",
            from.display()
        ))),
    }
}

/// `kiln compact`
pub(crate) fn compact(arguments: &Compact) -> Result<(), Failure> {
    let options = Options::new().create(false).leaf_compression(arguments.leaves.leaf_compression);
    let db = open_with(options, &arguments.dir)?;
    let bar = progress(Some(0), Unit::Bytes);
    let compacted = db.compact(|progress| {
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
    });
    bar.finish_and_clear();
    let compacted = compacted?;
    let snapshots = db.snapshots();
    db.close()?;
    let (after, before) = (ByteSize(bytes_in(&arguments.dir)?), ByteSize(compacted.bytes_before));
    // Of those that hold the same the oldest, and not whichever is listed last.
    let most = snapshots.iter().max_by_key(|snapshot| (snapshot.held_bytes, Reverse(snapshot.version)));
    let holding = match most {
        Some(most) if most.held_bytes > 0 => {
            format!(
                "; the snapshot '{}' holds about {}",
                escape(most.name.as_bytes()),
                ByteSize(most.held_bytes)
            )
        }
        _ => String::new(),
    };
    say_aside(format_args!("compacted to {after}, from {before}{holding}"));
    Ok(())
}

/// What the files in a directory have in all: closing has removed some.
fn bytes_in(dir: &Path) -> Result<u64, Failure> {
    let sum = || fs::read_dir(dir)?.map(|file| Ok(file?.metadata()?.len())).sum::<io::Result<u64>>();
    sum().map_err(|error| Failure::Other(format!("{}: {error}", dir.display())))
}

/// True for standard input or output.
fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn show(bar: &ProgressBar, progress: BackupProgress) {
    bar.set_length(progress.total_bytes);
    bar.set_position(progress.done_bytes);
}

/// Writes a row as one line.
pub(crate) fn write_line(out: &mut impl Write, row: Row) -> Result<(), Failure> {
    let Row { key, value, expiry } = row;
    let expires_at_ms = expiry.map(When::try_from).transpose().map_err(Failure::Other)?;
    let entry = Entry { key: Text::new(key), value: Text::new(value), expires_at_ms };
    serde_json::to_writer(&mut *out, &entry).map_err(|error| Failure::output(error.into()))?;
    out.write_all(b"\n").map_err(Failure::output)
}

/// What a bar counts.
#[derive(Debug, Clone, Copy)]
enum Unit {
    Bytes,
    Keys,
}

/// A bar on stderr if that is a terminal, and nothing otherwise.
fn progress(total: Option<u64>, unit: Unit) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match (total, unit) {
        (Some(total), Unit::Bytes) => {
            (ProgressBar::new(total), "{wide_bar} {percent}% ({binary_bytes_per_sec}, {eta} left)")
        }
        (Some(total), Unit::Keys) => {
            (ProgressBar::new(total), "{wide_bar} {percent}% ({human_pos} keys, {eta} left)")
        }
        (None, _) => (ProgressBar::no_length(), "{spinner} {binary_bytes} ({binary_bytes_per_sec})"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that keeps what is hardened, or refuses to.
    #[derive(Default)]
    struct Disk {
        written: Vec<u8>,
        hardened: Vec<u8>,
        fails: bool,
    }

    impl Write for &mut Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.written.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Destination for &mut Disk {
        fn harden(&mut self) -> io::Result<()> {
            if self.fails {
                return Err(io::Error::other("it failed"));
            }
            self.hardened.clone_from(&self.written);
            Ok(())
        }
    }

    fn export_to(disk: &mut Disk) -> Result<(), Failure> {
        let mut out = BufWriter::new(Box::new(disk) as Box<dyn Destination>);
        write_line(&mut out, Row { key: b"k".to_vec(), value: b"v".to_vec(), expiry: None })?;
        finish(out)
    }

    /// A part of it had its name, and was imported as if it were all.
    #[test]
    fn an_export_has_its_name_when_it_is_over_and_takes_nobodys() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows");
        let files = || fs::read_dir(&directory).unwrap().count();
        let row = || Row { key: b"k".to_vec(), value: b"v".to_vec(), expiry: None };
        let begin = || {
            let mut out = BufWriter::new(Box::new(NewFile::create(&path).unwrap()) as Box<dyn Destination>);
            write_line(&mut out, row()).unwrap();
            assert!(!path.exists());
            out
        };
        drop(begin());
        assert_eq!(files(), 0, "nothing is left of it");
        let second = begin();
        finish(begin()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"{\"key\":\"k\",\"value\":\"v\"}\n");
        let error = finish(second).unwrap_err().to_string();
        assert!(error.contains("all of it is in"), "{error}");
        assert_eq!(files(), 2);
        for (wrong, kind) in
            [("rows", io::ErrorKind::AlreadyExists), ("other/", io::ErrorKind::InvalidFilename)]
        {
            assert_eq!(NewFile::create(&directory.path().join(wrong)).err().unwrap().kind(), kind);
        }
    }

    /// It said how much it had exported when nothing of that need have been on the disk.
    #[test]
    fn an_export_is_over_when_all_of_it_is_hardened() {
        let mut disk = Disk::default();
        export_to(&mut disk).unwrap();
        assert_eq!(disk.hardened, b"{\"key\":\"k\",\"value\":\"v\"}\n");
        let mut failing = Disk { fails: true, ..Disk::default() };
        let error = export_to(&mut failing).unwrap_err();
        assert_eq!(error.to_string(), "writing the output: it failed");
    }
}
