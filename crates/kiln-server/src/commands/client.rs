//! `CLIENT`: names and lists connections.

use std::collections::BTreeSet;
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
