//! `INFO`: the server's state, in Redis' format of sections and lines.

use crate::info;
use crate::keyspace::Space;
use crate::protocol::decoder::Arguments;
use crate::protocol::reply::Reply;
use crate::shared::Shared;

/// `INFO [section ...]`
pub(crate) fn info(shared: &Shared, space: &Space, args: Arguments<'_>, reply: &mut Reply) {
    let wanted: Vec<&[u8]> = args.from(1).collect();
    reply.text(&info::text(shared, space, &wanted));
}
