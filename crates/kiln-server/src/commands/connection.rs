//! Commands about the connection itself.

use super::Context;
use super::options::integer;
use super::wrong_arity;
use crate::failure::Failure;
use crate::protocol::decoder::Arguments;
use crate::protocol::reply::Protocol;

/// Clients that still send a password get Redis' answer for a server without one.
const NO_PASSWORD: Failure = Failure::text(
    "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
     configuration is correct?",
);

/// `PING [message]`
pub(crate) fn ping(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    match (args.get(1), args.len()) {
        (None, _) => context.reply.simple("PONG"),
        (Some(message), 2) => context.reply.bulk(message),
        _ => return Err(wrong_arity("ping")),
    }
    Ok(())
}

/// `ECHO message`
pub(crate) fn echo(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    context.reply.bulk(args.at(1));
    Ok(())
}

/// `TIME`: seconds since 1970, and microseconds beyond them, by the clock that keys expire by.
pub(crate) fn time(context: &mut Context<'_>, _: Arguments<'_>) -> Result<(), Failure> {
    let ms = context.shared.db.time_ms();
    context.reply.array(2);
    for part in [ms / 1000, ms % 1000 * 1000] {
        context.reply.bulk(part.to_string().as_bytes());
    }
    Ok(())
}

/// `ROLE`: there are no replicas.
pub(crate) fn role(context: &mut Context<'_>, _: Arguments<'_>) -> Result<(), Failure> {
    context.reply.array(3);
    context.reply.bulk(b"master");
    context.reply.integer(0);
    context.reply.array(0);
    Ok(())
}

/// `SELECT 0`
pub(crate) fn select(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    if integer(args.at(1))? != 0 {
        return Err(Failure::text("ERR DB index is out of range"));
    }
    context.reply.ok();
    Ok(())
}

/// Any password is right for the only user, who needs none, as in Redis.
fn check_user(name: &[u8]) -> Result<(), Failure> {
    match name {
        b"default" => Ok(()),
        _ => Err(Failure::text("WRONGPASS invalid username-password pair or user is disabled.")),
    }
}

/// `AUTH [username] password`
pub(crate) fn auth(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    match args.len() {
        2 => return Err(NO_PASSWORD),
        3 => check_user(args.at(1))?,
        _ => return Err(Failure::SYNTAX),
    }
    context.reply.ok();
    Ok(())
}

/// `HELLO [2 | 3 [AUTH username password] [SETNAME name]]`
pub(crate) fn hello(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    let protocol = match args.get(1) {
        None => context.client.protocol,
        Some(b"2") => Protocol::Resp2,
        Some(b"3") => Protocol::Resp3,
        Some(other) if crate::protocol::number::parse_integer(other).is_some() => {
            return Err(Failure::text("NOPROTO unsupported protocol version"));
        }
        Some(_) => return Err(Failure::text("ERR Protocol version is not an integer or out of range")),
    };
    let mut new_name = None;
    let mut words = args.from(2);
    while let Some(word) = words.next() {
        match word.to_ascii_uppercase().as_slice() {
            b"AUTH" => {
                let (Some(name), Some(_)) = (words.next(), words.next()) else {
                    return Err(Failure::text("ERR Syntax error in HELLO option 'AUTH'"));
                };
                check_user(name)?;
            }
            b"SETNAME" => {
                let name = words.next().ok_or(Failure::text("ERR Syntax error in HELLO option 'SETNAME'"))?;
                new_name = Some(super::client::checked_name(name)?);
            }
            _ => {
                let word = String::from_utf8_lossy(&word[..word.len().min(128)]);
                return Err(Failure::Reply(format!("ERR Syntax error in HELLO option '{word}'").into()));
            }
        }
    }
    // From here on it cannot fail, so that one that fails changes nothing.
    if let Some(name) = new_name {
        context.client.card.names.lock().name = name;
    }
    context.client.protocol = protocol;
    context.reply.set_protocol(protocol);
    let reply = &mut *context.reply;
    reply.map(7);
    for (key, value) in [("server", "kiln"), ("version", env!("CARGO_PKG_VERSION"))] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"proto");
    reply.integer(protocol.number());
    reply.bulk(b"id");
    reply.integer(context.client.card.id as i64);
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}
