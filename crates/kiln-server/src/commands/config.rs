//! `CONFIG`: the settings that clients and benchmarks ask for. They are set when the server starts, not here.

use super::{Context, unknown_subcommand, wrong_arity};
use crate::client::Durability;
use crate::failure::Failure;
use crate::glob;
use crate::limits::VALUE_BYTES_MAX;
use crate::protocol::decoder::Arguments;

const HELP: &[&str] = &[
    "CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GET <pattern> [<pattern> ...]",
    "    Return the settings that match.",
    "RESETSTAT",
    "    Accepted; the counters of INFO are never reset.",
];

/// `CONFIG subcommand ...`
pub(crate) fn config(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    let name = args.at(1);
    match name.to_ascii_uppercase().as_slice() {
        b"GET" if args.len() >= 3 => get(context, args)?,
        b"GET" => return Err(wrong_arity("config|get")),
        b"RESETSTAT" if args.len() == 2 => context.reply.ok(),
        b"RESETSTAT" => return Err(wrong_arity("config|resetstat")),
        b"SET" => {
            return Err(Failure::text(
                "ERR settings are given when the server starts (see 'kiln serve --help'); a connection's durability \
                 is set with KILN DURABILITY",
            ));
        }
        b"HELP" => super::client::help(context, HELP),
        _ => return Err(unknown_subcommand("CONFIG", name)),
    }
    Ok(())
}

fn get(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    /// There are not so many settings.
    const PATTERNS_MAX: usize = 64;
    if args.from(2).count() > PATTERNS_MAX {
        return Err(Failure::text("ERR CONFIG GET takes 64 patterns at most"));
    }
    args.from(2).try_for_each(|pattern| glob::bounded(pattern).map(drop))?;
    let settings = settings(context);
    let matching: Vec<_> = settings
        .iter()
        .filter(|(name, _)| args.from(2).any(|pattern| glob::matches(pattern, name.as_bytes(), true)))
        .collect();
    context.reply.map(matching.len());
    for (name, value) in matching {
        context.reply.bulk(name.as_bytes());
        context.reply.bulk(value.as_bytes());
    }
    Ok(())
}

fn settings(context: &Context<'_>) -> Vec<(&'static str, String)> {
    let shared = context.shared;
    let fsync = match shared.options.durability {
        Durability::Safe => "always",
        Durability::Fast => "everysec",
    };
    vec![
        ("appendfsync", fsync.to_owned()),
        ("appendonly", "yes".to_owned()),
        ("bind", shared.address.ip().to_string()),
        ("databases", "1".to_owned()),
        ("durability", shared.options.durability.name().to_owned()),
        ("maxclients", shared.options.connections_max.to_string()),
        ("maxmemory", "0".to_owned()),
        ("maxmemory-clients", shared.options.client_memory_max.to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", shared.address.port().to_string()),
        ("proto-max-bulk-len", VALUE_BYTES_MAX.to_string()),
        ("save", String::new()),
        ("timeout", "0".to_owned()),
    ]
}
