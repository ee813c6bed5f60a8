//! The inbound half of RESP: finds requests in a stream of bytes, in place.
//!
//! # Invariants
//!
//! - Nothing is copied: arguments are [`Span`]s into the caller's buffer (an inline line with quotes is the
//!   one exception).
//! - Nothing is allocated for what a client merely *announces*. Memory grows with bytes that have arrived,
//!   and never beyond [`Limits::request_bytes`] for the bytes and 8 bytes for each argument.
//! - Every byte is looked at once, however the stream is cut into pieces: the decoder remembers where it
//!   stopped.
//!
//! # Lifecycle of a request
//!
//! ```text
//!            '*' count                  '$' length            bytes CRLF
//!   Idle ───────────────▶ Arguments ─────────────────▶ Bulk ─────────────▶ Arguments ... ─▶ Step::Request
//!    │ other first byte       │ argument or request over its limit
//!    ▼                        ▼
//!   inline line            the rest of the request is consumed and forgotten as it arrives ─▶ Step::TooLarge
//! ```

use std::fmt;

use kiln::planted::{Bug, planted};

use super::{inline, number};

/// The longest inline line, as in Redis.
pub(crate) const INLINE_BYTES_MAX: usize = 64 * 1024;
/// A bulk string announced longer than this is a broken client, not a large value: the connection ends, as in
/// Redis.
const ANNOUNCED_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// The longest decimal number that can follow `*` or `$`: a sign and 19 digits.
const NUMBER_BYTES_MAX: usize = 20;

/// What one request may cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The most arguments of one request, the command's name included.
    pub(crate) arguments: usize,
    /// The longest argument in bytes.
    pub(crate) argument_bytes: usize,
    /// The most bytes of one request, framing included.
    pub(crate) request_bytes: usize,
}

/// Where an argument lies, relative to the start of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// The span of `start..end`. Requests are far smaller than 4 GiB, which [`Decoder::new`] asserts.
    pub(crate) fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// The bytes of the argument.
    pub(crate) fn of<'a>(&self, request: &'a [u8]) -> &'a [u8] {
        &request[self.start as usize..self.end as usize]
    }
}

/// Why a request that was framed well was not accepted. The connection lives on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TooLarge {
    /// One argument of this many bytes.
    Argument(u64),
    /// All arguments together.
    Request,
    /// What has arrived of it, with what all other clients hold.
    ForNow,
}

/// Why the stream can no longer be understood. The connection must end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProtocolError {
    /// The number after `*` is no number or out of range.
    MultibulkLength,
    /// The number after `$` is no number or out of range.
    BulkLength,
    /// Something else than `$` where an argument must begin.
    ExpectedDollar(u8),
    /// An argument that does not end in CRLF.
    ExpectedLineEnd,
    /// A line without end.
    InlineTooLong,
    /// An inline line with an open quote.
    UnbalancedQuotes,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MultibulkLength => f.write_str("invalid multibulk length"),
            Self::BulkLength => f.write_str("invalid bulk length"),
            Self::ExpectedDollar(found) => write!(f, "expected '$', got '{}'", found.escape_ascii()),
            Self::ExpectedLineEnd => f.write_str("expected CRLF after a bulk string"),
            Self::InlineTooLong => f.write_str("too big inline request"),
            Self::UnbalancedQuotes => f.write_str("unbalanced quotes in request"),
        }
    }
}

/// What [`Decoder::decode`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A whole request of this many bytes; [`Decoder::arguments`] has its arguments until the next call.
    Request(usize),
    /// This many bytes hold nothing to do: an empty line or an empty array.
    Empty(usize),
    /// More bytes are needed. The caller drops this many bytes from the front of its buffer (more than none
    /// only within a request that is being skipped) and calls again with what is left and more.
    Incomplete(usize),
    /// A request that ends after this many bytes was skipped.
    TooLarge(usize, TooLarge),
    /// The stream is broken.
    Broken(ProtocolError),
}

/// Decodes the requests of one connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    limits: Limits,
    /// How much of the current request has been understood.
    cursor: usize,
    /// The arguments that the current request still lacks; none between requests.
    missing: usize,
    /// The length of the bulk string whose bytes are awaited at `cursor`.
    bulk: Option<u64>,
    /// Set once the current request is over a limit.
    skipping: Option<TooLarge>,
    spans: Vec<Span>,
    /// The arguments of an inline line that had quotes, unquoted; `spans` point here then.
    unquoted: Vec<u8>,
    from_unquoted: bool,
}

/// One step inside a request: go on, or tell the caller.
type Progress = Result<(), Stop>;

enum Stop {
    NeedBytes,
    Broken(ProtocolError),
}

impl Decoder {
    pub(crate) fn new(limits: Limits) -> Self {
        assert!(limits.request_bytes < u32::MAX as usize, "spans are 32 bits wide");
        assert!(limits.argument_bytes <= limits.request_bytes);
        Self {
            limits,
            cursor: 0,
            missing: 0,
            bulk: None,
            skipping: None,
            spans: Vec::new(),
            unquoted: Vec::new(),
            from_unquoted: false,
        }
    }

    /// The arguments of the request that [`Step::Request`] announced, over the same `input`.
    pub(crate) fn arguments<'a>(&'a self, input: &'a [u8]) -> Arguments<'a> {
        Arguments { bytes: if self.from_unquoted { &self.unquoted } else { input }, spans: &self.spans }
    }

    /// True if the arguments of the last request were given by an inline line, and lie in the decoder itself.
    pub(crate) fn is_inline(&self) -> bool {
        self.from_unquoted
    }

    /// Forgets what of the next request was seen, so that the next call begins with it anew.
    pub(crate) fn restart(&mut self) {
        self.cursor = 0;
        self.missing = 0;
        self.bulk = None;
        self.skipping = None;
    }

    /// Gives back memory that an unusually large request needed, also where the next one has begun.
    pub(crate) fn shrink(&mut self) {
        if planted(Bug::PlacesHeld) {
            return;
        }
        if self.missing == 0 {
            self.spans.clear();
        }
        // Twice as many as there are is how they grow.
        self.spans.shrink_to(16.max(4 * self.spans.len()));
        self.unquoted = Vec::new();
    }

    /// Skips the rest of the request that has begun, and says how many bytes of what has arrived of it, which is `input`, are not needed any more.
    pub(crate) fn give_up(&mut self, input: &[u8]) -> usize {
        self.skip(TooLarge::ForNow);
        match self.decode(input) {
            Step::Incomplete(bytes) => bytes,
            // It is found again.
            _ => 0,
        }
    }

    /// Looks for the next request. `input` begins where the last one ended.
    pub(crate) fn decode(&mut self, input: &[u8]) -> Step {
        if self.missing == 0 {
            self.spans.clear();
            self.from_unquoted = false;
            match input.first() {
                None => return Step::Incomplete(0),
                Some(b'*') => {}
                Some(_) => return self.decode_inline(input),
            }
            match self.header(input) {
                Ok(()) if self.missing == 0 => return Step::Empty(std::mem::take(&mut self.cursor)),
                Ok(()) => {}
                Err(stop) => return self.stop(stop),
            }
        }
        while self.missing > 0 {
            if let Err(stop) = self.argument(input) {
                return self.stop(stop);
            }
        }
        let consumed = std::mem::take(&mut self.cursor);
        match self.skipping.take() {
            None => Step::Request(consumed),
            Some(reason) => Step::TooLarge(consumed, reason),
        }
    }

    fn stop(&mut self, stop: Stop) -> Step {
        match stop {
            Stop::Broken(error) => Step::Broken(error),
            Stop::NeedBytes if self.skipping.is_some() => Step::Incomplete(std::mem::take(&mut self.cursor)),
            Stop::NeedBytes => Step::Incomplete(0),
        }
    }

    /// `*count\r\n`. A count of none or less is an empty request, as in Redis.
    fn header(&mut self, input: &[u8]) -> Progress {
        let (count, end) = number_line(input, 1, ProtocolError::MultibulkLength)?;
        if count > self.limits.arguments as i64 {
            return Err(Stop::Broken(ProtocolError::MultibulkLength));
        }
        self.missing = count.max(0) as usize;
        self.cursor = end;
        Ok(())
    }

    /// One `$length\r\nbytes\r\n` at the cursor.
    fn argument(&mut self, input: &[u8]) -> Progress {
        let length = match self.bulk {
            Some(length) => length,
            None => self.bulk_header(input)?,
        };
        if self.skipping.is_some() {
            return self.skip_bulk(input, length);
        }
        let (start, end) = (self.cursor, self.cursor + length as usize);
        match input.get(end..end + 2) {
            None => Err(Stop::NeedBytes),
            Some(b"\r\n") => {
                self.spans.push(Span::new(start, end));
                self.finish_bulk(end + 2);
                Ok(())
            }
            Some(_) => Err(Stop::Broken(ProtocolError::ExpectedLineEnd)),
        }
    }

    fn bulk_header(&mut self, input: &[u8]) -> Result<u64, Stop> {
        match input.get(self.cursor) {
            None => return Err(Stop::NeedBytes),
            Some(b'$') => {}
            Some(&found) => return Err(Stop::Broken(ProtocolError::ExpectedDollar(found))),
        }
        let (length, end) = number_line(input, self.cursor + 1, ProtocolError::BulkLength)?;
        let length = u64::try_from(length)
            .ok()
            .filter(|length| *length <= ANNOUNCED_BYTES_MAX)
            .ok_or(Stop::Broken(ProtocolError::BulkLength))?;
        self.cursor = end;
        self.bulk = Some(length);
        if length > self.limits.argument_bytes as u64 {
            self.skip(TooLarge::Argument(length));
        } else if end as u64 + length + 2 > self.limits.request_bytes as u64 {
            self.skip(TooLarge::Request);
        }
        Ok(length)
    }

    /// From here on the request is consumed and forgotten. The first reason stands.
    fn skip(&mut self, reason: TooLarge) {
        self.skipping.get_or_insert(reason);
        self.spans = Vec::new();
    }

    /// Consumes what has arrived of a bulk string and its CRLF; `bulk` keeps how much of it is still to come.
    fn skip_bulk(&mut self, input: &[u8], length: u64) -> Progress {
        let available = (input.len() - self.cursor) as u64;
        if available < length + 2 {
            // The CRLF is left for the last piece, so that it can be checked whole.
            let taken = available.min(length);
            self.bulk = Some(length - taken);
            self.cursor += taken as usize;
            return Err(Stop::NeedBytes);
        }
        let end = self.cursor + length as usize;
        if &input[end..end + 2] != b"\r\n" {
            return Err(Stop::Broken(ProtocolError::ExpectedLineEnd));
        }
        self.finish_bulk(end + 2);
        Ok(())
    }

    fn finish_bulk(&mut self, cursor: usize) {
        self.bulk = None;
        self.missing -= 1;
        self.cursor = cursor;
    }

    fn decode_inline(&mut self, input: &[u8]) -> Step {
        // `cursor` is where the search for the line's end stopped, so that a line that drips in is searched
        // once.
        let Some(found) = memchr::memchr(b'\n', &input[self.cursor..]) else {
            self.cursor = input.len();
            if input.len() > INLINE_BYTES_MAX {
                return Step::Broken(ProtocolError::InlineTooLong);
            }
            return Step::Incomplete(0);
        };
        let end = self.cursor + found;
        self.cursor = 0;
        if end > INLINE_BYTES_MAX {
            return Step::Broken(ProtocolError::InlineTooLong);
        }
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        self.unquoted.clear();
        self.from_unquoted = true;
        match inline::split(line, &mut self.unquoted, &mut self.spans) {
            Err(error) => Step::Broken(error),
            Ok(()) if self.spans.is_empty() => Step::Empty(end + 1),
            Ok(()) => Step::Request(end + 1),
        }
    }
}

/// The number that starts at `from` and its CRLF; also where the line ends.
fn number_line(input: &[u8], from: usize, error: ProtocolError) -> Result<(i64, usize), Stop> {
    let window = &input[from..input.len().min(from + NUMBER_BYTES_MAX + 2)];
    match window.iter().position(|byte| !(byte.is_ascii_digit() || *byte == b'-')) {
        None if window.len() < NUMBER_BYTES_MAX + 2 => Err(Stop::NeedBytes),
        None => Err(Stop::Broken(error)),
        Some(length) => match window.get(length..length + 2) {
            Some(b"\r\n") => number::parse_integer(&window[..length])
                .map(|value| (value, from + length + 2))
                .ok_or(Stop::Broken(error)),
            // A number of 20 characters leaves room for its CRLF in the window, so too short means not
            // arrived.
            None if window[length] == b'\r' && from + length + 1 == input.len() => Err(Stop::NeedBytes),
            _ => Err(Stop::Broken(error)),
        },
    }
}

/// The arguments of one request; the command's name is the first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Arguments<'a> {
    /// Arguments over bytes that were kept, as those of a queued command are.
    pub(crate) fn new(bytes: &'a [u8], spans: &'a [Span]) -> Self {
        Self { bytes, spans }
    }

    /// Where they lie.
    pub(crate) fn spans(&self) -> &'a [Span] {
        self.spans
    }

    /// How many there are, the command's name included.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// The argument at `index`, which the caller has checked against the command's arity.
    pub(crate) fn at(&self, index: usize) -> &'a [u8] {
        self.spans[index].of(self.bytes)
    }

    /// The argument at `index`, if there is one.
    pub(crate) fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|span| span.of(self.bytes))
    }

    /// Those from `index` on, as a request of their own.
    pub(crate) fn after(&self, index: usize) -> Self {
        Self { spans: self.spans.get(index..).unwrap_or(&[]), ..*self }
    }

    /// The arguments from `index` on.
    pub(crate) fn from(&self, index: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.spans.get(index..).unwrap_or(&[]).iter().map(move |span| span.of(bytes))
    }
}

#[cfg(test)]
#[path = "decoder_tests.rs"]
mod tests;
