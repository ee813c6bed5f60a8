//! `CLIENT`: names and lists connections.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::{Context, unknown_subcommand, wrong_arity};
use crate::client::Card;
use crate::failure::Failure;
use crate::protocol::decoder::Arguments;
use crate::protocol::number::parse_integer;

const HELP: &[&str] = &[
    "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GETNAME",
    "    Return the name of the current connection.",
    "ID",
    "    Return the ID of the current connection.",
    "INFO",
    "    Return information about the current connection.",
    "KILL <addr>",
    "    End the connection from this address.",
    "KILL (ID <id>|ADDR <addr>|LADDR <addr>|TYPE normal|USER default|SKIPME (YES|NO)) [...]",
    "    End the connections for which all of this is so, this one only with SKIPME NO. Return how many that were.",
    "    What they are running comes to its end first; between MULTI and EXEC, they end once EXEC has committed.",
    "LIST [ID <id> [<id> ...]]",
    "    Return information about all connections, or those with these IDs.",
    "NO-EVICT (ON|OFF)",
    "    Accepted; connections are never evicted.",
    "NO-TOUCH (ON|OFF)",
    "    Accepted; reads never change what is kept.",
    "SETINFO (LIB-NAME|LIB-VER) <value>",
    "    Say which client library the connection uses.",
    "SETNAME <name>",
    "    Name the current connection.",
];

/// `CLIENT subcommand ...`
pub(crate) fn client(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    // What its own batch has changed so far is told, too.
    context.client.card.touch(context.client.protocol, context.client.durability);
    let name = args.at(1);
    let arity = |expected: usize, full_name: &str| {
        if args.len() == expected { Ok(()) } else { Err(wrong_arity(full_name)) }
    };
    match name.to_ascii_uppercase().as_slice() {
        b"ID" => {
            arity(2, "client|id")?;
            context.reply.integer(context.client.card.id as i64);
        }
        b"GETNAME" => {
            arity(2, "client|getname")?;
            match context.client.card.names.lock().name.as_str() {
                "" => context.reply.null(),
                name => context.reply.bulk(name.as_bytes()),
            }
        }
        b"SETNAME" => {
            arity(3, "client|setname")?;
            context.client.card.names.lock().name = checked_name(args.at(2))?;
            context.reply.ok();
        }
        b"SETINFO" => {
            arity(4, "client|setinfo")?;
            set_info(context, args.at(2), args.at(3))?;
        }
        b"INFO" => {
            arity(2, "client|info")?;
            context.reply.text(&(context.client.card.line() + "\n"));
        }
        b"KILL" if args.len() > 2 => kill(context, args)?,
        b"KILL" => return Err(wrong_arity("client|kill")),
        b"LIST" => {
            let lines: String = listed(context, args)?.iter().map(|card| card.line() + "\n").collect();
            context.reply.text(&lines);
        }
        b"NO-EVICT" | b"NO-TOUCH" => {
            arity(3, &format!("client|{}", String::from_utf8_lossy(&name.to_ascii_lowercase())))?;
            if ![b"ON".as_slice(), b"OFF"].iter().any(|word| args.at(2).eq_ignore_ascii_case(word)) {
                return Err(Failure::SYNTAX);
            }
            context.reply.ok();
        }
        b"HELP" => help(context, HELP),
        _ => return Err(unknown_subcommand("CLIENT", name)),
    }
    Ok(())
}

/// `CLIENT KILL addr`, or `CLIENT KILL filter value [filter value ...]`
fn kill(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    let is_of_address = args.len() == 3;
    let filters = match is_of_address {
        true => Filters { peer: Some(address(args.at(2))), skips_own: false, ..Filters::default() },
        false => Filters::parse(args)?,
    };
    let own_id = context.client.card.id;
    let mut cards = context.shared.clients.all();
    cards.retain(|card| filters.hold(card, own_id));
    match (is_of_address, cards.len()) {
        (true, 0) => return Err(Failure::text("ERR No such client")),
        (true, _) => context.reply.ok(),
        (false, count) => context.reply.integer(count as i64),
    }
    context.client.kills.extend(cards.into_iter().map(|card| (card.id, card)));
    Ok(())
}

/// Which connections `CLIENT KILL` is to end. Of two filters of a kind the last holds, so that any number of them, which is up to the client, take as long as
/// one for each connection.
struct Filters {
    id: Option<u64>,
    peer: Option<SocketAddr>,
    local: Option<SocketAddr>,
    /// All connections are of one type, and of one user.
    is_of_type: bool,
    is_of_user: bool,
    skips_own: bool,
}

impl Default for Filters {
    fn default() -> Self {
        Self { id: None, peer: None, local: None, is_of_type: true, is_of_user: true, skips_own: true }
    }
}

impl Filters {
    fn parse(args: Arguments<'_>) -> Result<Self, Failure> {
        let (mut filters, mut words) = (Self::default(), args.from(2));
        while let Some(filter) = words.next() {
            let value = words.next().ok_or(Failure::SYNTAX)?;
            let is_word = |word: &str| value.eq_ignore_ascii_case(word.as_bytes());
            match filter.to_ascii_uppercase().as_slice() {
                b"ID" => {
                    let id = parse_integer(value).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
                    filters.id = Some(id.ok_or(Failure::text("ERR client-id should be greater than 0"))?);
                }
                b"ADDR" => filters.peer = Some(address(value)),
                b"LADDR" => filters.local = Some(address(value)),
                b"TYPE" => filters.is_of_type = is_word("normal"),
                b"USER" => filters.is_of_user = value == b"default",
                b"SKIPME" if is_word("yes") => filters.skips_own = true,
                b"SKIPME" if is_word("no") => filters.skips_own = false,
                _ => return Err(Failure::SYNTAX),
            }
        }
        Ok(filters)
    }

    /// Whether all of them hold for this connection.
    fn hold(&self, card: &Card, own_id: u64) -> bool {
        self.is_of_type
            && self.is_of_user
            && self.id.is_none_or(|id| card.id == id)
            && self.peer.is_none_or(|address| card.peer == address)
            && self.local.is_none_or(|address| card.local == address)
            && !(self.skips_own && card.id == own_id)
    }
}

/// The address of either end of a connection. What is none is that of no connection, as in Redis.
fn address(text: &[u8]) -> SocketAddr {
    const NOBODYS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let address = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    address.unwrap_or(NOBODYS)
}

/// The connections that `CLIENT LIST` is asked for, each once.
fn listed(context: &Context<'_>, args: Arguments<'_>) -> Result<Vec<Arc<Card>>, Failure> {
    let mut cards = context.shared.clients.all();
    match args.get(2) {
        None => {}
        Some(word) if word.eq_ignore_ascii_case(b"ID") && args.len() > 3 => {
            let ids = args.from(3).map(|id| parse_integer(id).and_then(|id| u64::try_from(id).ok()));
            let ids: Option<BTreeSet<u64>> = ids.collect();
            let ids = ids.ok_or(Failure::text("ERR Invalid client ID"))?;
            cards.retain(|card| ids.contains(&card.id));
        }
        Some(_) => {
            return Err(Failure::text("ERR syntax error; CLIENT LIST takes nothing but ID id [id ...]"));
        }
    }
    Ok(cards)
}

/// Replies with lines of help.
pub(crate) fn help(context: &mut Context<'_>, lines: &[&str]) {
    context.reply.array(lines.len());
    lines.iter().for_each(|line| context.reply.simple(line));
}

fn set_info(context: &mut Context<'_>, what: &[u8], value: &[u8]) -> Result<(), Failure> {
    let mut names = context.client.card.names.lock();
    let (slot, label) = match what.to_ascii_uppercase().as_slice() {
        b"LIB-NAME" => (&mut names.library, "lib-name"),
        b"LIB-VER" => (&mut names.library_version, "lib-ver"),
        _ => {
            let what = String::from_utf8_lossy(&what[..what.len().min(128)]);
            return Err(Failure::Reply(format!("ERR Unrecognized option '{what}'").into()));
        }
    };
    *slot = printable(value).ok_or_else(|| {
        Failure::Reply(format!("ERR {label} cannot contain spaces, newlines or special characters.").into())
    })?;
    drop(names);
    context.reply.ok();
    Ok(())
}

/// A connection's name, which must not break the lines of `CLIENT LIST`.
pub(crate) fn checked_name(name: &[u8]) -> Result<String, Failure> {
    printable(name)
        .ok_or(Failure::text("ERR Client names cannot contain spaces, newlines or special characters."))
}

fn printable(text: &[u8]) -> Option<String> {
    let fits = text.len() <= 1024 && text.iter().all(u8::is_ascii_graphic);
    fits.then(|| String::from_utf8_lossy(text).into_owned())
}
