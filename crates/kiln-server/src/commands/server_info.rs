//! `INFO`: the server's state, in Redis' format of sections and lines.

use super::Context;
use crate::failure::Failure;
use crate::info;
use crate::protocol::decoder::Arguments;

/// `INFO [section ...]`
pub(crate) fn info(context: &mut Context<'_>, args: Arguments<'_>) -> Result<(), Failure> {
    let wanted: Vec<&[u8]> = args.from(1).collect();
    let text = info::text(context.shared, context.space, &wanted);
    context.reply.text(&text);
    Ok(())
}
