//! `COMMAND`: the table of commands, as clients read it to learn where keys are.

use super::{Access, Command, Context, InMulti, TABLE, find, unknown_subcommand, wrong_arity};
use crate::failure::Failure;
use crate::protocol::decoder::Arguments;
use crate::protocol::reply::Reply;

const HELP: &[&str] = &[
    "COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "(no subcommand)",
    "    Return details about all commands.",
    "COUNT",
    "    Return the number of commands.",
    "DOCS [<name> ...]",
    "    Return documentation of commands.",
    "GETKEYS <full-command>",
    "    Return the keys of a command.",
    "INFO [<name> ...]",
    "    Return details about commands.",
    "LIST",
    "    Return the names of all commands.",
];

/// `COMMAND [subcommand ...]`
pub(crate) fn command(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    let reply = &mut *context.reply;
    let Some(name) = args.get(1) else {
        reply.array(TABLE.len());
        TABLE.iter().for_each(|command| details(command, reply));
        return Ok(());
    };
    match name.to_ascii_uppercase().as_slice() {
        b"COUNT" if args.len() == 2 => reply.integer(TABLE.len() as i64),
        b"COUNT" => return Err(wrong_arity("command|count")),
        b"DOCS" => {
            let chosen = chosen(args);
            reply.map(chosen.iter().flatten().count());
            chosen.into_iter().flatten().for_each(|command| docs(command, reply));
        }
        b"GETKEYS" if args.len() > 2 => getkeys(args, reply)?,
        b"GETKEYS" => return Err(wrong_arity("command|getkeys")),
        b"INFO" => {
            let chosen = chosen(args);
            reply.array(chosen.len());
            for command in chosen {
                match command {
                    Some(command) => details(command, reply),
                    None => reply.null_array(),
                }
            }
        }
        b"LIST" if args.len() == 2 => {
            reply.array(TABLE.len());
            TABLE.iter().for_each(|command| reply.bulk(command.name.as_bytes()));
        }
        b"LIST" => return Err(wrong_arity("command|list")),
        b"HELP" => super::client::help(context, HELP),
        _ => return Err(unknown_subcommand("COMMAND", name)),
    }
    Ok(())
}

fn getkeys(args: Arguments<'_>, reply: &mut Reply) -> Result<(), Failure> {
    let args = args.after(2);
    let command = find(args.at(0)).ok_or(Failure::text("ERR Invalid command specified"))?;
    if command.keys.first == 0 {
        return Err(Failure::text("ERR The command has no key arguments"));
    }
    if !command.takes(args.len()) {
        return Err(Failure::text("ERR Invalid number of arguments specified for command"));
    }
    reply.array(command.keys(args).count());
    command.keys(args).for_each(|key| reply.bulk(key));
    Ok(())
}

/// The commands that the arguments name, or all.
fn chosen(args: Arguments<'_>) -> Vec<Option<&'static Command>> {
    if args.len() == 2 { TABLE.iter().map(Some).collect() } else { args.from(2).map(find).collect() }
}

/// Name, arity, flags, first key, last key, step, ACL categories, tips, key specifications, subcommands.
fn details(command: &Command, reply: &mut Reply) {
    reply.array(10);
    reply.bulk(command.name.as_bytes());
    reply.integer(i64::from(command.arity));
    let flags: Vec<&str> = [
        match command.access {
            Access::None => None,
            Access::Read => Some("readonly"),
            Access::Write => Some("write"),
        },
        command.hot.map(|_| "fast"),
        (command.in_multi == InMulti::Refuse).then_some("no_multi"),
    ]
    .into_iter()
    .flatten()
    .collect();
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.simple(flag));
    for position in [command.keys.first, command.keys.last, command.keys.step] {
        reply.integer(i64::from(position));
    }
    (0..3).for_each(|_| reply.set(0));
    reply.array(0);
}

fn docs(command: &Command, reply: &mut Reply) {
    let group = match command.access {
        Access::None => "connection",
        Access::Read | Access::Write => "string",
    };
    reply.bulk(command.name.as_bytes());
    reply.map(3);
    for (key, value) in [("summary", command.summary), ("since", "1.0.0"), ("group", group)] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
}
