//! The commands: what each is called, takes and does.
//!
//! A new command is a function in the file of its noun and one line in [`TABLE`].

pub(crate) mod client;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod durability;
pub(crate) mod expiry;
pub(crate) mod keys;
pub(crate) mod numbers;
pub(crate) mod options;
pub(crate) mod ranges;
pub(crate) mod reflection;
pub(crate) mod scan;
pub(crate) mod server_info;
mod sessions;
pub(crate) mod snapshots;
pub(crate) mod strings;
pub(crate) mod transactions;

use std::borrow::Cow;

use kiln::{Map, Snapshot};

use crate::client::Client;
use crate::failure::Failure;
use crate::keyspace::Space;
use crate::protocol::decoder::Arguments;
use crate::protocol::reply::Reply;
use crate::shared::Shared;
use crate::work::Work;

/// A command on keys.
pub(crate) type RunKeys = fn(&mut Work<'_, '_>, Arguments<'_>) -> Result<(), Failure>;
/// A command on all keys.
pub(crate) type RunAll = fn(&All<'_>, Arguments<'_>, &mut Reply) -> Result<(), Failure>;
/// A command that tells the server's state. The current objects are the caller's: who has them must not [enter](crate::keyspace::Keyspace::enter) the keyspace once
/// more; it would wait for whoever waits for it to leave.
pub(crate) type RunState = fn(&Shared, &Space, Arguments<'_>, &mut Reply);
/// A command on the connection or the server.
pub(crate) type RunConnection = fn(&mut Context<'_>, Arguments<'_>) -> Result<(), Failure>;

/// What a command works on, which decides how it is run.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// Keys, inside a transaction.
    Keys(RunKeys),
    /// All keys at once, which no transaction of the engine can do over a map.
    All(RunAll),
    /// The server's state, and that of all keys.
    State(RunState),
    /// The connection or the server, not keys.
    Connection(RunConnection),
    /// Steers how the commands that follow are run. See `dispatch`.
    Flow(Flow),
}

/// Commands that steer the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Discard,
    Exec,
    Multi,
    Quit,
    Reset,
    Shutdown,
    Unwatch,
    Watch,
    Wait,
    WaitAof,
    Kiln,
}

/// What a command over all keys works with. Flushes do not wait for it: what it reads may be about to be emptied.
pub(crate) struct All<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) strings: Map,
    /// Of a moment at which that was current.
    pub(crate) snapshot: Snapshot<'a>,
}

/// What a command about the connection or the server works with.
pub(crate) struct Context<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) client: &'a mut Client,
    pub(crate) reply: &'a mut Reply,
}

/// Whether a command reads or writes keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    None,
    Read,
    Write,
}

/// What happens to a command between `MULTI` and `EXEC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InMulti {
    Queue,
    Refuse,
    RunAtOnce,
}

/// Commands so frequent that a way around the general one pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hot {
    Get,
    Set,
}

/// Which arguments are keys: from `first` to `last` (negative: from the end), each `step`-th. No keys if
/// `first` is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyPositions {
    pub(crate) first: i8,
    pub(crate) last: i8,
    pub(crate) step: i8,
}

/// One command.
pub(crate) struct Command {
    /// Lower case.
    pub(crate) name: &'static str,
    /// How many arguments, the name included; if negative, at least as many.
    pub(crate) arity: i8,
    pub(crate) access: Access,
    pub(crate) in_multi: InMulti,
    pub(crate) keys: KeyPositions,
    pub(crate) hot: Option<Hot>,
    /// Whether it makes other objects the current ones.
    pub(crate) flushes: bool,
    pub(crate) run: Run,
    /// For `COMMAND DOCS`.
    pub(crate) summary: &'static str,
}

impl Command {
    /// Whether `count` arguments fit, the name included.
    pub(crate) fn takes(&self, count: usize) -> bool {
        let arity = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { count >= arity } else { count == arity }
    }

    /// The keys among the arguments.
    pub(crate) fn keys<'a>(&self, args: Arguments<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let KeyPositions { first, last, step } = self.keys;
        let count = args.len();
        let end = match usize::try_from(last) {
            Ok(last) => last + 1,
            Err(_) => (count + 1).saturating_sub(usize::from(last.unsigned_abs())),
        };
        let range = if first == 0 { 0..0 } else { first as usize..end.min(count) };
        range.step_by(step.max(1) as usize).map(move |index| args.at(index))
    }

    const fn new(name: &'static str, arity: i8, run: Run, summary: &'static str) -> Self {
        Self {
            name,
            arity,
            access: Access::None,
            in_multi: InMulti::Queue,
            keys: KeyPositions { first: 0, last: 0, step: 0 },
            hot: None,
            flushes: false,
            run,
            summary,
        }
    }

    const fn reads(mut self, first: i8, last: i8) -> Self {
        self.access = Access::Read;
        self.keys = KeyPositions { first, last, step: 1 };
        self
    }

    const fn writes(mut self, first: i8, last: i8, step: i8) -> Self {
        self.access = Access::Write;
        self.keys = KeyPositions { first, last, step };
        self
    }

    const fn hot(mut self, hot: Hot) -> Self {
        self.hot = Some(hot);
        self
    }

    const fn flushes(mut self) -> Self {
        self.access = Access::Write;
        self.flushes = true;
        self
    }

    const fn alone(mut self) -> Self {
        self.in_multi = InMulti::Refuse;
        self
    }

    const fn at_once(mut self) -> Self {
        self.in_multi = InMulti::RunAtOnce;
        self
    }
}

const fn keys(name: &'static str, arity: i8, run: RunKeys, summary: &'static str) -> Command {
    Command::new(name, arity, Run::Keys(run), summary)
}

const fn connection(name: &'static str, arity: i8, run: RunConnection, summary: &'static str) -> Command {
    Command::new(name, arity, Run::Connection(run), summary)
}

const fn flow(name: &'static str, arity: i8, flow: Flow, summary: &'static str) -> Command {
    Command::new(name, arity, Run::Flow(flow), summary)
}

/// Every command, sorted by name.
pub(crate) static TABLE: [Command; 66] = [
    keys("append", 3, strings::append, "Appends to a string.").writes(1, 1, 1),
    connection("auth", -2, connection::auth, "Accepts the only user, who has no password."),
    connection("client", -2, client::client, "Names and lists connections."),
    connection("command", -1, reflection::command, "Describes the commands."),
    connection("config", -2, config::config, "Reads settings that clients ask for."),
    keys("copy", -3, keys::copy, "Copies a string to another key.").writes(1, 2, 1),
    Command::new("dbsize", 1, Run::State(scan::dbsize), "Counts the keys.").reads(0, 0).alone(),
    keys("decr", 2, numbers::decr, "Subtracts one from an integer.").writes(1, 1, 1),
    keys("decrby", 3, numbers::decrby, "Subtracts from an integer.").writes(1, 1, 1),
    keys("del", -2, keys::del, "Deletes keys.").writes(1, -1, 1),
    flow("discard", 1, Flow::Discard, "Forgets the queued commands.").at_once(),
    connection("echo", 2, connection::echo, "Returns its argument."),
    flow("exec", 1, Flow::Exec, "Runs the queued commands as one transaction.").at_once(),
    keys("exists", -2, keys::exists, "Counts which of the keys exist.").reads(1, -1),
    keys("expire", -3, expiry::expire, "Sets a key's lifetime in seconds.").writes(1, 1, 1),
    keys("expireat", -3, expiry::expireat, "Sets the unix time in seconds at which a key expires.")
        .writes(1, 1, 1),
    keys("expiretime", 2, expiry::expiretime, "Returns the unix time in seconds at which a key expires.")
        .reads(1, 1),
    keys("flushall", -1, keys::flush, "Deletes all keys.").flushes(),
    keys("flushdb", -1, keys::flush, "Deletes all keys.").flushes(),
    keys("get", 2, strings::get, "Returns a string.").reads(1, 1).hot(Hot::Get),
    keys("getdel", 2, strings::getdel, "Returns a string and deletes it.").writes(1, 1, 1),
    keys("getex", -2, strings::getex, "Returns a string and sets its lifetime.").writes(1, 1, 1),
    keys("getrange", 4, ranges::getrange, "Returns a part of a string.").reads(1, 1),
    keys("getset", 3, strings::getset, "Sets a string and returns the old one.").writes(1, 1, 1),
    connection("hello", -1, connection::hello, "Chooses the protocol.").alone(),
    keys("incr", 2, numbers::incr, "Adds one to an integer.").writes(1, 1, 1),
    keys("incrby", 3, numbers::incrby, "Adds to an integer.").writes(1, 1, 1),
    keys("incrbyfloat", 3, numbers::incrbyfloat, "Adds to a number.").writes(1, 1, 1),
    Command::new("info", -1, Run::State(server_info::info), "Describes the server's state."),
    Command::new("keys", 2, Run::All(scan::keys), "Lists the keys that match a pattern.").reads(0, 0).alone(),
    flow("kiln", -2, Flow::Kiln, "Durability: modes, receipts, sessions.").alone(),
    keys("mget", -2, strings::mget, "Returns several strings.").reads(1, -1),
    keys("mset", -3, strings::mset, "Sets several strings.").writes(1, -1, 2),
    keys("msetnx", -3, strings::msetnx, "Sets several strings if none exists.").writes(1, -1, 2),
    flow("multi", 1, Flow::Multi, "Begins to queue commands.").at_once(),
    keys("object", -2, keys::object, "Tells how Redis would keep a string.").reads(2, 2),
    keys("persist", 2, expiry::persist, "Removes a key's lifetime.").writes(1, 1, 1),
    keys("pexpire", -3, expiry::pexpire, "Sets a key's lifetime in milliseconds.").writes(1, 1, 1),
    keys("pexpireat", -3, expiry::pexpireat, "Sets the unix time in milliseconds at which a key expires.")
        .writes(1, 1, 1),
    keys(
        "pexpiretime",
        2,
        expiry::pexpiretime,
        "Returns the unix time in milliseconds at which a key expires.",
    )
    .reads(1, 1),
    connection("ping", -1, connection::ping, "Returns PONG or its argument."),
    keys("psetex", 4, strings::psetex, "Sets a string with a lifetime in milliseconds.").writes(1, 1, 1),
    keys("pttl", 2, expiry::pttl, "Returns a key's remaining lifetime in milliseconds.").reads(1, 1),
    flow("quit", -1, Flow::Quit, "Ends the connection.").at_once(),
    keys("rename", 3, keys::rename, "Gives a key another name.").writes(1, 2, 1),
    keys("renamenx", 3, keys::renamenx, "Gives a key another name if no key has that.").writes(1, 2, 1),
    flow("reset", 1, Flow::Reset, "Puts the connection into its first state.").at_once(),
    connection("role", 1, connection::role, "Returns master: there are no replicas."),
    keys("scan", -2, scan::scan, "Lists the keys bit by bit.").reads(0, 0).alone(),
    connection("select", 2, connection::select, "Accepts database 0, the only one."),
    keys("set", -3, strings::set, "Sets a string.").writes(1, 1, 1).hot(Hot::Set),
    keys("setex", 4, strings::setex, "Sets a string with a lifetime in seconds.").writes(1, 1, 1),
    keys("setnx", 3, strings::setnx, "Sets a string if it does not exist.").writes(1, 1, 1),
    keys("setrange", 4, ranges::setrange, "Overwrites a part of a string.").writes(1, 1, 1),
    flow("shutdown", -1, Flow::Shutdown, "Persists everything and ends the server.").alone(),
    keys("strlen", 2, strings::strlen, "Returns a string's length.").reads(1, 1),
    keys("substr", 4, ranges::getrange, "Returns a part of a string.").reads(1, 1),
    connection("time", 1, connection::time, "Returns the server's time."),
    keys("touch", -2, keys::exists, "Counts which of the keys exist.").reads(1, -1),
    keys("ttl", 2, expiry::ttl, "Returns a key's remaining lifetime in seconds.").reads(1, 1),
    keys("type", 2, keys::type_of, "Returns a key's type.").reads(1, 1),
    keys("unlink", -2, keys::del, "Deletes keys.").writes(1, -1, 1),
    flow("unwatch", 1, Flow::Unwatch, "Forgets the watched keys."),
    flow("wait", 3, Flow::Wait, "Returns 0: there are no replicas."),
    flow("waitaof", 4, Flow::WaitAof, "Waits until this connection's writes are durable."),
    flow("watch", -2, Flow::Watch, "Makes EXEC depend on keys not changing.").reads(1, -1).at_once(),
];

/// The longest name that [`fold`] can tell apart.
const NAME_BYTES_MAX: usize = 16;

/// A name without case, as a number that sorts as the name does.
const fn fold(name: &[u8]) -> u128 {
    let mut folded = [0u8; NAME_BYTES_MAX];
    let mut at = 0;
    while at < name.len() {
        folded[at] = name[at].to_ascii_lowercase();
        at += 1;
    }
    u128::from_be_bytes(folded)
}

/// The names of [`TABLE`], for a search that compares one integer at a time.
static NAMES: [u128; TABLE.len()] = {
    let mut names = [0; TABLE.len()];
    let mut at = 0;
    while at < names.len() {
        assert!(TABLE[at].name.len() <= NAME_BYTES_MAX);
        names[at] = fold(TABLE[at].name.as_bytes());
        assert!(at == 0 || names[at - 1] < names[at], "the table must be sorted");
        at += 1;
    }
    names
};

/// The command of that name, whatever its case.
pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    NAMES.binary_search(&fold(name)).ok().map(|index| &TABLE[index])
}

/// The error for a name that is no command, worded as Redis words it.
pub(crate) fn unknown(args: Arguments<'_>) -> Vec<u8> {
    const SHOWN_BYTES_MAX: usize = 128;
    let shorten = |bytes: &'_ [u8], most: usize| bytes[..bytes.len().min(most)].to_vec();
    let mut shown = Vec::new();
    for argument in args.from(1) {
        if shown.len() >= SHOWN_BYTES_MAX {
            break;
        }
        let argument = shorten(argument, SHOWN_BYTES_MAX - shown.len());
        shown.extend([b"'", argument.as_slice(), b"' "].concat());
    }
    let name = shorten(args.at(0), SHOWN_BYTES_MAX);
    [b"ERR unknown command '".as_slice(), &name, b"', with args beginning with: ", &shown].concat()
}

/// The error for too few or too many arguments. `name` may be `container|subcommand`.
pub(crate) fn wrong_arity(name: &str) -> Failure {
    Failure::Reply(Cow::Owned(format!("ERR wrong number of arguments for '{name}' command")))
}

/// The error for a subcommand that does not exist.
pub(crate) fn unknown_subcommand(container: &str, name: &[u8]) -> Failure {
    let name = String::from_utf8_lossy(&name[..name.len().min(128)]);
    Failure::Reply(Cow::Owned(format!("ERR unknown subcommand '{name}'. Try {container} HELP.")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::decoder::Span;

    #[test]
    fn commands_are_found_whatever_their_case() {
        for name in ["get", "GET", "gEt"] {
            assert_eq!(find(name.as_bytes()).unwrap().name, "get");
        }
        for command in &TABLE {
            assert_eq!(find(command.name.as_bytes()).unwrap().name, command.name);
        }
        for name in ["", "ge", "gett", "get\0", "incrbyfloatincrbyfloat"] {
            assert!(find(name.as_bytes()).is_none_or(|command| command.name == "get" && name == "get\0"));
        }
    }

    #[test]
    fn keys_are_where_the_table_says() {
        let bytes = b"abcdef";
        let spans: Vec<Span> = (0..5).map(|at| Span::new(at, at + 1)).collect();
        let args = Arguments::new(bytes, &spans);
        let keys = |name: &str| find(name.as_bytes()).unwrap().keys(args).collect::<Vec<_>>();
        assert_eq!(keys("get"), [b"b"]);
        assert_eq!(keys("del"), [b"b", b"c", b"d", b"e"]);
        assert_eq!(keys("mset"), [b"b", b"d"]);
        assert!(keys("ping").is_empty());
    }
}
