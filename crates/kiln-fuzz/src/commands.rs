//! A connection from end to end: whatever a client sends, it gets one reply to each request, and each is one.

use std::sync::Arc;

use bytes::Bytes;
use kiln::device::SimulatedDevice;
use resp_rs::{resp2, resp3};

use crate::resp::pieces;

/// The first byte says where the rest is cut.
pub(crate) fn commands(input: &[u8]) {
    let Some((&cut, stream)) = input.split_first() else { return };
    let disk = SimulatedDevice::new(1);
    let options = kiln::Options::new().background(false).segment_bytes(64 << 10).memory(128 << 10);
    let db = options.open_on(Arc::new(disk)).expect("an empty disk takes a database");
    let served = kiln_server::fuzzing::serve(&db, &pieces(stream, cut)).expect("an empty database is served");
    let count = count(&served.replies);
    assert!(
        count == served.requests || served.closed && count < served.requests,
        "{count} replies to {} requests: {}",
        served.requests,
        served.replies.escape_ascii()
    );
    db.close().expect("nothing has failed");
    let report = db.check().expect("nothing has failed");
    assert!(report.is_clean(), "{report}");
}

/// How many replies these are.
fn count(replies: &[u8]) -> usize {
    let (mut rest, mut count) = (Bytes::copy_from_slice(replies), 0);
    while !rest.is_empty() {
        // A client may change its protocol in between.
        let parsed = resp2::parse_frame(rest.clone()).map(|(_, rest)| rest);
        let parsed = parsed.or_else(|_| resp3::parse_frame(rest.clone()).map(|(_, rest)| rest));
        rest = parsed.unwrap_or_else(|error| panic!("no reply: {error}: {}", rest.escape_ascii()));
        count += 1;
    }
    count
}
