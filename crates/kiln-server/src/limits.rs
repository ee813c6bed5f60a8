//! What one client can make the server hold, in one place; what all together can is an [option](crate::Options::client_memory_max).

use std::time::Duration;

use crate::protocol::decoder::Limits;

/// The longest value.
pub(crate) const VALUE_BYTES_MAX: usize = kiln::VALUE_BYTES_MAX;
/// The longest key.
pub(crate) const KEY_BYTES_MAX: usize = 64 * 1024;
/// The most bytes of one request, of all commands that wait for one `EXEC`, and of all that is watched for it.
pub(crate) const REQUEST_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The longest reply of one command. Beyond it the command fails, so that one `MGET big big big ...` cannot
/// exhaust memory.
pub(crate) const REPLY_BYTES_MAX: usize = 256 * 1024 * 1024;
/// When the replies of a batch reach this size they are sent before the next command runs.
pub(crate) const BATCH_REPLY_BYTES: usize = 256 * 1024;
/// When the commands of a batch have loaded so many bytes of values the next runs in another one: of an `INCR` of a long string
/// nothing is seen in the reply.
pub(crate) const BATCH_LOADED_BYTES: usize = 64 * 1024 * 1024;
/// The most bytes of values that the commands of one `EXEC` load.
pub(crate) const EXEC_LOADED_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// The longest that a command of many keys, or of all, or an `EXEC`, may take: what is on disk is read whole, whatever is to be known of it.
pub(crate) const COMMAND_TIME_MAX: Duration = Duration::from_secs(10);
/// How much is read from a socket at once, and the buffer that a busy connection keeps.
pub(crate) const READ_BYTES: usize = 64 * 1024;

/// The limits of the decoder.
pub(crate) const REQUEST: Limits =
    Limits { arguments: 1024 * 1024, argument_bytes: VALUE_BYTES_MAX, request_bytes: REQUEST_BYTES_MAX };
