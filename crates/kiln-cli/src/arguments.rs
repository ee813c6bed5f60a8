//! The command line.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};
use kiln::Options;

/// Where the database is if the user does not say.
const DEFAULT_DIR: &str = "kiln-data";

/// Kiln: a transactional store in which commit and durability are two separate points.
#[derive(Debug, Parser)]
#[command(
    name = "kiln",
    bin_name = "kiln",
    version,
    max_term_width = 110,
    after_help = "\
Start with:
  kiln serve                       serve ./kiln-data to Redis clients on 127.0.0.1:6380
  redis-cli -p 6380 set clay 1     answered when it is durable
  kiln check                       account for every segment, seal and record"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the database to Redis clients
    #[command(after_help = "\
Examples:
  kiln serve
  kiln serve --dir /srv/ads --listen 0.0.0.0:6380 --memory 4GiB
  kiln serve --durability fast --window 20ms     answer at the commit point; at most 20 ms are at risk

A connection can choose for itself: KILN DURABILITY fast|safe. See KILN HELP.
There are no passwords: listen on an address that only trusted clients reach.
Ctrl-C and SIGTERM persist everything and end it; a second one ends it at once. SIGHUP does nothing, as in Redis.")]
    Serve(Serve),
    /// Check every segment, seal and record; exit with 1 if there is a problem
    #[command(after_help = "\
It remembers each key that is in the log, which are all keys of maps, and those of tables that
have not settled: with keys of 16 bytes, 160 to 260 bytes of memory for each. That may be several
times what serving the database takes.")]
    Check(Dir),
    /// Show the objects, the log and what recovery found (which runs if the database was not closed in order)
    Stat(Dir),
    /// Print one key's value
    #[command(after_help = "\
Example:
  kiln get --object counters visits

The server keeps its keys in the map 'strings', or, once there was a FLUSHALL, in one of 'strings', 'strings.1'
and so on, which are used again and again: kiln stat says which one is served.")]
    Get(Get),
    /// Store one key; returns when it is durable
    #[command(after_help = "\
Examples:
  kiln put --object notes hello 'good morning'
  kiln put --object photos cat < cat.jpg          without a value it is read from standard input
  kiln put --object tokens --ttl 10m ann f00      it expires after 10 minutes
  kiln put --object events --table 2026-01-01 x   --table: if the object is new, make it ordered

The server's keys are in the map that kiln stat names as served, in 'strings' before its first FLUSHALL. Nothing
is put into its other maps ('strings', 'strings.1' and so on), which are emptied.")]
    Put(Put),
    /// Delete keys; returns when that is durable
    Del(Del),
    /// List keys and values
    #[command(after_help = "\
Examples:
  kiln scan --object events --prefix 2026-
  kiln scan --object events --from a --to m --reverse --limit 10
  kiln scan --object strings --keys-only

One line for each key: key, tab, value, both escaped (\\xHH) unless --raw is given.")]
    Scan(Scan),
    /// Drop an object with all that is in it; returns when that is durable
    #[command(after_help = "\
Examples:
  kiln drop --object notes          asks first, on a terminal
  kiln drop --object notes --yes

Its name is free at once, for a map or a table. Snapshots from before still have it: kiln scan --object notes --snapshot monday.
The space is free once no snapshot needs it; kiln compact gives it back to the system at once.")]
    Drop(DropObject),
    /// Read JSON lines {"key": ..., "value": ...} into an object
    #[command(after_help = "\
Examples:
  kiln import --object notes notes.jsonl
  zcat dump.jsonl.gz | kiln import --object events --table
  kiln import --object events --bulk sorted.jsonl        makes a new table of rows in ascending order of their keys, all or none

Bytes that are not UTF-8 are written as {\"base64\": \"...\"} in place of a string. Keys that exist are replaced.
A third field, \"expires_at_ms\": N, is when the key expires, in milliseconds since 1970. If that has passed, the
line is imported as a key that has expired: it is not there, nor is what it had before. With \"never\" in place of
N it stays. A key without the field has the object's time to live, if there is one. With --bulk none may expire.
The server's keys are in the map that kiln stat names as served, in 'strings' before its first FLUSHALL. Nothing
is imported into its other maps ('strings', 'strings.1' and so on), which are emptied.
Everything is durable when the command ends; if it fails, the lines before the one it names may be in, and with --bulk none is.")]
    Import(Import),
    /// Write an object as JSON lines {"key": ..., "value": ...}
    #[command(after_help = "\
Examples:
  kiln export --object notes notes.jsonl
  kiln export --object events | gzip > events.jsonl.gz

Keys that expire have a third field, \"expires_at_ms\": N, when they do, in milliseconds since 1970. Those that
have expired are left out: by now, or, with --snapshot, when it was made. Of an object with a time to live keys
that stay have \"expires_at_ms\": \"never\".")]
    Export(Export),
    /// Copy a database into a new directory, each checksum compared on the way
    #[command(after_help = "\
Examples:
  kiln backup /backups/monday
  kiln backup - | ssh elsewhere kiln restore - /srv/ads
  redis-cli -p 6380 KILN BACKUP monday       of a database that is being served, with kiln serve --backups /backups

A backup is a database: check it with kiln check, serve it where it is, or copy it to where it is wanted with kiln restore.")]
    Backup(Backup),
    /// Make the database's files as short as they can be: settle, drop what is dead, write the rest anew
    #[command(after_help = "\
Examples:
  kiln compact
  kiln compact --leaf-compression /srv/ads
  redis-cli -p 6380 KILN COMPACT       of a database that is being served

There is seldom a need for it: free space is used again, and too much of it is given back by itself. It is for when most
of the data was deleted. What snapshots need stays, and the files may even become longer; the one that holds the most is named.")]
    Compact(Compact),
    /// Snapshots that have names: the database as it was when one was made, until it is dropped
    #[command(
        subcommand,
        after_help = "\
Examples:
  kiln snapshot create monday
  kiln scan --object events --snapshot monday
  kiln snapshot drop monday
  redis-cli -p 6380 KILN SNAPSHOT CREATE monday       of a database that is being served

As long as there is one, everything that is written since stays in the log."
    )]
    Snapshot(Snapshot),
    /// Sessions: list them, and forget those that nobody will go on with
    #[command(
        subcommand,
        after_help = "\
Examples:
  kiln session list
  kiln session forget exchange-7 exchange-8
  redis-cli -p 6380 KILN SESSIONS LIST ''       of a database that is being served

Each session that is not forgotten takes memory for its id and its serial number. What it has written stays."
    )]
    Session(Session),
    /// Make a database of a backup in a new directory, each checksum compared on the way
    #[command(after_help = "\
Examples:
  kiln restore /backups/monday /srv/ads
  kiln restore monday.kiln /srv/ads          a stream in a file, as kiln backup - writes it
  zstdcat monday.zst | kiln restore - /srv/ads

Nothing is ever replaced; if it fails, no database is left there. If something follows a stream, such as a second
one, what came first is restored all the same, and the exit code is 1; so a stream is read to the end of its file
or pipe, and whoever keeps a pipe open is waited for, once it was said what is restored.")]
    Restore(Restore),
    /// Print the log in readable form
    DumpLog(Dir),
}

/// A database given as the only argument.
#[derive(Debug, Args)]
pub(crate) struct Dir {
    /// The database's directory
    #[arg(default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
}

/// How the leaves of the B+-tree are written.
#[derive(Debug, Args)]
pub(crate) struct Leaves {
    /// Compress (LZ4) leaves of the B+-tree of rows that have settled, or were loaded with --bulk, when they are written, where that saves a block of 4 KiB. Those
    /// that are compressed stay so until they are written anew without it
    #[arg(long)]
    pub(crate) leaf_compression: bool,
}

/// How much space the database's files may take.
#[derive(Debug, Args)]
pub(crate) struct Space {
    /// How many times as long as its live data the log may be on disk, from 1.1 on; less saves disk, and writes more. With inf what is live is never
    /// written anew
    #[arg(long, default_value_t = 2.0, value_name = "TIMES")]
    pub(crate) space_amplification: f64,
    #[command(flatten)]
    pub(crate) leaves: Leaves,
}

impl Space {
    /// The engine's options that say so.
    pub(crate) fn options(&self) -> Options {
        Options::new()
            .space_amplification(self.space_amplification)
            .leaf_compression(self.leaves.leaf_compression)
    }
}

/// When a write is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durability {
    /// When it is committed
    Fast,
    /// When it is durable
    Safe,
}

/// `kiln serve`
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The database's directory; created if there is none
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:6380", value_name = "HOST:PORT", value_parser = host_and_port)]
    pub(crate) listen: String,
    /// When a new connection's writes are answered
    #[arg(long, default_value = "safe")]
    pub(crate) durability: Durability,
    /// The longest time that a fast write may stay un-hardened
    #[arg(long, default_value = "100ms", value_parser = humantime::parse_duration)]
    pub(crate) window: Duration,
    /// Memory for records: the newest of the log, and older ones that are read often
    #[arg(long, default_value = "320MiB", value_name = "SIZE")]
    pub(crate) memory: ByteSize,
    /// Read and write records through the operating system's page cache, for those that --memory has no room for
    #[arg(long)]
    pub(crate) system_page_cache: bool,
    /// The most bytes that may be un-hardened; beyond it writes are slowed [default: a quarter of --memory]
    #[arg(long, value_name = "SIZE")]
    pub(crate) unhardened: Option<ByteSize>,
    #[command(flatten)]
    pub(crate) space: Space,
    /// The most connections at once
    #[arg(long, default_value = "10000", value_name = "COUNT")]
    pub(crate) connections: NonZeroUsize,
    /// Memory for requests that have begun, queued commands and unread replies of all connections together; what would take more is refused
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    pub(crate) client_memory: ByteSize,
    /// Let clients make backups with KILN BACKUP <name>, each a directory in this one
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) backups: Option<PathBuf>,
    /// Plant this bug
    #[cfg(feature = "planted-bugs")]
    #[arg(long)]
    pub(crate) plant: Option<kiln::planted::Bug>,
}

/// Whether that host is there is found out when the server listens.
fn host_and_port(text: &str) -> Result<String, &'static str> {
    match text.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err("expected a host and a port, as in 127.0.0.1:6380 or localhost:6380"),
    }
}

/// A time after which somebody may want a key to expire, as for Redis: with none the key would be gone at once, for whatever was a slip of the finger.
fn time_to_live(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match time.as_millis() {
        0 => Err("expected at least 1ms: a key would expire at once".to_owned()),
        millis if i64::try_from(millis).is_err() => Err("it is too long a time".to_owned()),
        _ => Ok(time),
    }
}

/// An object of a database.
#[derive(Debug, Args)]
pub(crate) struct Object {
    /// The database's directory
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
    /// The object's name
    #[arg(long)]
    pub(crate) object: String,
}

/// When an object is read.
#[derive(Debug, Args)]
pub(crate) struct At {
    /// As it was when this snapshot was made (see kiln snapshot)
    #[arg(long, value_name = "NAME")]
    pub(crate) snapshot: Option<String>,
}

/// `kiln get`
#[derive(Debug, Args)]
pub(crate) struct Get {
    #[command(flatten)]
    pub(crate) object: Object,
    /// The key
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) at: At,
    /// Write the value's bytes as they are, without a line end
    #[arg(long)]
    pub(crate) raw: bool,
}

/// `kiln put`
#[derive(Debug, Args)]
pub(crate) struct Put {
    #[command(flatten)]
    pub(crate) object: Object,
    /// The key
    pub(crate) key: OsString,
    /// The value; read from standard input if absent
    pub(crate) value: Option<OsString>,
    /// If the object is new, make it a table (ordered) and not a map
    #[arg(long)]
    pub(crate) table: bool,
    /// After how long the key expires, as in 10m or 1h30m [default: the object's time to live, if it has one]
    #[arg(long, value_name = "TIME", value_parser = time_to_live)]
    pub(crate) ttl: Option<Duration>,
}

/// `kiln del`
#[derive(Debug, Args)]
pub(crate) struct Del {
    #[command(flatten)]
    pub(crate) object: Object,
    /// The keys
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<OsString>,
}

/// `kiln drop`
#[derive(Debug, Args)]
pub(crate) struct DropObject {
    #[command(flatten)]
    pub(crate) object: Object,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `kiln scan`
#[derive(Debug, Args)]
pub(crate) struct Scan {
    #[command(flatten)]
    pub(crate) object: Object,
    #[command(flatten)]
    pub(crate) at: At,
    /// Only keys that begin so; without --from and --to
    #[arg(long, conflicts_with_all = ["from", "to"])]
    pub(crate) prefix: Option<OsString>,
    /// The first key (tables only)
    #[arg(long)]
    pub(crate) from: Option<OsString>,
    /// The key before which to stop (tables only)
    #[arg(long)]
    pub(crate) to: Option<OsString>,
    /// From the last key to the first (tables only)
    #[arg(long)]
    pub(crate) reverse: bool,
    /// At most so many keys
    #[arg(long)]
    pub(crate) limit: Option<usize>,
    /// Leave the values out
    #[arg(long)]
    pub(crate) keys_only: bool,
    /// Write bytes as they are
    #[arg(long)]
    pub(crate) raw: bool,
}

/// `kiln import`
#[derive(Debug, Args)]
pub(crate) struct Import {
    #[command(flatten)]
    pub(crate) object: Object,
    /// The file; standard input if absent
    pub(crate) file: Option<PathBuf>,
    /// If the object is new, make it a table (ordered) and not a map
    #[arg(long)]
    pub(crate) table: bool,
    /// If the object is new: after how long a row expires that is put later without a word on that, as in 10m. Lines say it for themselves
    #[arg(long, value_name = "TIME", value_parser = time_to_live, conflicts_with = "bulk")]
    pub(crate) object_ttl: Option<Duration>,
    /// Make a new table at once of lines in ascending order of their keys' bytes
    #[arg(long)]
    pub(crate) bulk: bool,
    /// With --bulk: put the lines in order first, in memory; of a key that comes twice the last one counts
    #[arg(long, requires = "bulk")]
    pub(crate) sort: bool,
    #[command(flatten)]
    pub(crate) space: Space,
}

/// `kiln export`
#[derive(Debug, Args)]
pub(crate) struct Export {
    #[command(flatten)]
    pub(crate) object: Object,
    #[command(flatten)]
    pub(crate) at: At,
    /// The file; standard output if absent. It must not exist. Until all is written it is `.kiln-export-` and some letters beside it; one that a killed export has left there can be removed
    pub(crate) file: Option<PathBuf>,
}

/// `kiln backup`
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The database's directory
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
    /// The backup's directory, which is empty or not there; `-` writes one stream of bytes to standard output
    #[arg(value_name = "DIRECTORY")]
    pub(crate) to: PathBuf,
}

/// `kiln restore`
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The backup: a directory, or a stream in a file; `-` reads one from standard input
    pub(crate) from: PathBuf,
    /// The new database's directory, which is empty or not there
    #[arg(value_name = "DIRECTORY")]
    pub(crate) to: PathBuf,
}

/// `kiln compact`
#[derive(Debug, Args)]
pub(crate) struct Compact {
    /// The database's directory
    #[arg(default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
    #[command(flatten)]
    pub(crate) leaves: Leaves,
}

/// `kiln snapshot`
#[derive(Debug, Subcommand)]
pub(crate) enum Snapshot {
    /// Make one; returns when it is durable
    Create(SnapshotName),
    /// List them: name, version, when each was made, about how many bytes of the log it holds
    List {
        /// The database's directory
        #[arg(long, default_value = DEFAULT_DIR)]
        dir: PathBuf,
    },
    /// Drop one; returns when that is durable
    Drop(SnapshotName),
}

/// `kiln session`
#[derive(Debug, Subcommand)]
pub(crate) enum Session {
    /// List them: id and serial number
    List {
        /// The database's directory
        #[arg(long, default_value = DEFAULT_DIR)]
        dir: PathBuf,
    },
    /// Forget some: who opens one of them again begins with the serial number 0; returns when that is durable
    Forget {
        /// Their ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<OsString>,
        /// The database's directory
        #[arg(long, default_value = DEFAULT_DIR)]
        dir: PathBuf,
    },
}

/// A snapshot of a database.
#[derive(Debug, Args)]
pub(crate) struct SnapshotName {
    /// Its name
    pub(crate) name: String,
    /// The database's directory
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
}
