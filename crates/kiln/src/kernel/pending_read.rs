//! Pending reads: the value of a key that may be on disk, for who does not want to wait for it meanwhile.
//!
//! ```text
//!  get_async      in memory: the value          on disk: a ticket, which the reader has, too
//!  reader         reads it ahead, many in flight -> the ordinary read, which finds it in the read cache -> the ticket's outcome
//!  PendingRead    awaited, waited for, asked now and then, or dropped
//! ```
//!
//! So a pending read is an ordinary one, at a moment between the call and its end. One thread of the database's, the *reader*, does them
//! all; it begins with the first. (Rejected: that whoever polls drives the device. A future that nobody polls for a while would hold up the
//! reads of others, or need a thread besides.) Where a database has no background threads, who waits or polls reads.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::engine::Engine;
use super::handle::Object;
use super::read_ahead::{ReadAhead, Step};
use super::single::SingleKey;
use crate::error::{Error, Result};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, contain};

/// What a read of one key comes to: its value, if it has one.
type Outcome = Result<Option<Vec<u8>>>;

/// A read that has begun: of [`Kiln::get_async`](crate::Kiln::get_async). It is a future for any executor; it can also be
/// [waited](Self::wait) for, or [asked](Self::try_wait) now and then. Who drops it forgoes the value: its waker goes with it, and its key soon.
#[must_use = "a read that nobody waits for has no effect"]
pub struct PendingRead {
    state: State,
}

enum State {
    /// The outcome is known, and gone once it was given.
    Known(Option<Outcome>),
    /// The reader has it.
    Sent(Arc<Ticket>),
    /// Who wants the outcome reads.
    Own(Box<Request>, Arc<Engine>),
}

/// A key that is asked for.
struct Request {
    object: u32,
    hash: u64,
    key: Box<[u8]>,
}

/// What the reader and a pending read have in common.
#[derive(Default)]
struct Ticket {
    state: Mutex<TicketState>,
    told: Condvar,
}

#[derive(Default)]
struct TicketState {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// The reader, and what it is to read.
#[derive(Default)]
pub(crate) struct Reader {
    requests: Mutex<Requests>,
    wake: Condvar,
}

#[derive(Default)]
struct Requests {
    waiting: VecDeque<(Request, Teller)>,
    /// So many wait when it is next looked who has given up.
    look_at: usize,
    thread: Option<JoinHandle<()>>,
    is_closed: bool,
}

impl Requests {
    /// Has one more wait. On a disk that stands still it may never be its turn, so those who have given up are looked for each time that twice as many wait.
    fn add(&mut self, request: Request) -> Arc<Ticket> {
        const LOOK_AT_MIN: usize = 64;
        if self.waiting.len() >= self.look_at {
            // With the lock: of what such a one leaves nothing is the caller's.
            self.waiting.retain(|(_, teller)| !teller.is_alone());
            self.look_at = (2 * self.waiting.len()).max(LOOK_AT_MIN);
        }
        let ticket = Arc::new(Ticket::default());
        self.waiting.push_back((request, Teller { ticket: ticket.clone(), has_told: false }));
        ticket
    }

    /// Takes as many as there is room for. Once nobody waits, how many once did tells nothing of those who will.
    fn take(&mut self, room: usize, taken: &mut Vec<(Request, Teller)>) {
        let count = self.waiting.len().min(room);
        taken.extend(self.waiting.drain(..count));
        if self.waiting.is_empty() {
            self.look_at = 0;
        }
    }
}

impl std::fmt::Debug for PendingRead {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_done = match &self.state {
            State::Known(_) => true,
            State::Sent(ticket) => ticket.state.lock().outcome.is_some(),
            State::Own(..) => false,
        };
        out.debug_struct("PendingRead").field("is_done", &is_done).finish_non_exhaustive()
    }
}

impl PendingRead {
    /// One that has ended already.
    fn known(outcome: Outcome) -> PendingRead {
        PendingRead { state: State::Known(Some(outcome)) }
    }

    /// Waits for the value.
    ///
    /// # Errors
    /// As [`Kiln::get`](crate::Kiln::get); `Aborted` if the database was closed before the record was read.
    pub fn wait(mut self) -> Result<Option<Vec<u8>>> {
        if let State::Sent(ticket) = &self.state {
            let mut state = ticket.state.lock();
            while state.outcome.is_none() {
                ticket.told.wait(&mut state);
            }
        }
        self.take(None).unwrap_or_else(given_already)
    }

    /// The value, if it is there by now; `None` if not, and after it was given. Without background threads
    /// ([`Options::background`](crate::Options::background)) it is read now.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn try_wait(&mut self) -> Option<Result<Option<Vec<u8>>>> {
        self.take(None)
    }

    /// The outcome if it is known. If not, leaves a waker.
    fn take(&mut self, waker: Option<&Waker>) -> Option<Outcome> {
        match &mut self.state {
            State::Known(outcome) => outcome.take(),
            State::Sent(ticket) => {
                let mut waker = waker.cloned();
                let mut state = ticket.state.lock();
                match state.outcome.take() {
                    None => {
                        if waker.is_some() {
                            std::mem::swap(&mut state.waker, &mut waker);
                        }
                        // The one that was there may be the last to hold a task, and that the last to hold the database.
                        drop(state);
                        None
                    }
                    outcome => {
                        drop(state);
                        self.state = State::Known(None);
                        outcome
                    }
                }
            }
            State::Own(request, engine) => {
                let outcome = engine.check_open().and_then(|()| engine.read_requested(request));
                self.state = State::Known(None);
                Some(outcome)
            }
        }
    }
}

impl Drop for PendingRead {
    fn drop(&mut self) {
        if let State::Sent(ticket) = &self.state {
            // Without the lock: what it holds is somebody else's.
            let waker = ticket.state.lock().waker.take();
            drop(waker);
        }
    }
}

fn given_already() -> Outcome {
    Err(Error::input("this read's value was given already"))
}

impl Future for PendingRead {
    type Output = Result<Option<Vec<u8>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if matches!(self.state, State::Known(None)) {
            return Poll::Ready(given_already());
        }
        self.take(Some(context.waker())).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Ticket {
    fn tell(&self, outcome: Outcome) {
        let mut state = self.state.lock();
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state);
        self.told.notify_all();
        if let Some(waker) = waker {
            // A panic there has been reported by the panic hook. The reader has others to tell.
            let _ = contain(|| waker.wake());
        }
    }
}

/// The ticket of who reads for it. Whoever waits is told of the outcome in any case, also where the reader panics.
struct Teller {
    ticket: Arc<Ticket>,
    has_told: bool,
}

impl Teller {
    fn tell(mut self, outcome: Outcome) {
        self.has_told = true;
        self.ticket.tell(outcome);
    }

    /// Nobody waits for it any more.
    fn is_alone(&self) -> bool {
        Arc::strong_count(&self.ticket) == 1
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        if !self.has_told && !self.is_alone() {
            let what = "the reader panicked, which is a mistake in Kiln or in the device";
            self.ticket.tell(Err(Error::io("reading", std::io::Error::other(what))));
        }
    }
}

impl Engine {
    /// Begins to read a key.
    pub(crate) fn get_pending<O: Object>(self: &Arc<Self>, object: &O, key: &[u8]) -> PendingRead {
        let key = match self.single_key(object, key) {
            Ok(key) => key,
            Err(error) => return PendingRead::known(Err(error)),
        };
        let mut value = Vec::new();
        let reading = self.read_without_disk(key, &mut value);
        match key.life.check() {
            Err(error) => PendingRead::known(Err(error)),
            Ok(()) => match reading {
                Some(reading) => PendingRead::known(Ok(reading.found.then_some(value))),
                None => self.read_pending(key),
            },
        }
    }

    /// Begins to read a key that is not in memory.
    fn read_pending(self: &Arc<Self>, key: SingleKey<'_>) -> PendingRead {
        let request = Request { object: key.object, hash: key.hash, key: key.key.into() };
        // The reader is not forked along.
        if !self.hardening.has_background() || !self.process.is_this() {
            return PendingRead { state: State::Own(Box::new(request), self.clone()) };
        }
        let mut requests = self.reader.requests.lock();
        if requests.is_closed {
            return PendingRead::known(Err(Error::closed()));
        }
        if requests.thread.is_none() {
            let engine = self.clone();
            let thread = thread::Builder::new().name("kiln-reader".to_owned());
            // After a panic it begins anew, with those who are waiting. Whoever's read had begun is told.
            match thread.spawn(move || while contain(|| engine.run_reader()).is_none() {}) {
                Ok(thread) => requests.thread = Some(thread),
                // The system has no thread to spare.
                Err(_) => return PendingRead { state: State::Own(Box::new(request), self.clone()) },
            }
        }
        let ticket = requests.add(request);
        drop(requests);
        self.reader.wake.notify_one();
        PendingRead { state: State::Sent(ticket) }
    }

    /// Ends the reader, and all reads that are pending. Those who wait for them are told that the database is closed.
    pub(crate) fn close_reader(&self) {
        let mut requests = self.reader.requests.lock();
        requests.is_closed = true;
        let thread = requests.thread.take();
        drop(requests);
        self.reader.wake.notify_one();
        // The last handle may have been dropped by a waker on the reader itself, which cannot await itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            // A panic there has been reported by the panic hook.
            let _ = thread.join();
        }
    }

    fn read_requested(&self, request: &Request) -> Outcome {
        let Request { object, hash, key } = request;
        let mut value = Vec::new();
        let life = &self.object(*object).life;
        let reading = self.read_newest(SingleKey { object: *object, hash: *hash, key, life }, &mut value)?;
        Ok(reading.found.then_some(value))
    }

    fn run_reader(&self) {
        let mut reading = Reading { engine: self, ahead: self.read_ahead(), slots: Vec::new() };
        let mut begun = Vec::new();
        loop {
            {
                let mut requests = self.reader.requests.lock();
                while requests.waiting.is_empty() && !reading.ahead.is_reading() && !requests.is_closed {
                    self.reader.wake.wait(&mut requests);
                }
                if requests.is_closed {
                    reading.tell_closed(std::mem::take(&mut requests.waiting), requests);
                    return;
                }
                requests.take(reading.ahead.room(), &mut begun);
            }
            begun.drain(..).for_each(|(request, ticket)| reading.begin(request, ticket));
            reading.step();
        }
    }
}

/// What the reader is at.
struct Reading<'e> {
    engine: &'e Engine,
    ahead: ReadAhead<'e>,
    /// What is in flight, by the number of its read.
    slots: Vec<Option<(Request, Teller)>>,
}

impl Reading<'_> {
    fn begin(&mut self, request: Request, ticket: Teller) {
        if ticket.is_alone() {
            return;
        }
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if self.ahead.begin(free, request.hash) {
            if free == self.slots.len() {
                self.slots.push(None);
            }
            self.slots[free] = Some((request, ticket));
        } else {
            self.end(&request, ticket);
        }
    }

    /// Waits until something that is in flight is done, and takes what else is.
    fn step(&mut self) {
        let mut step = Some(self.ahead.step());
        while let Some(taken) = step {
            self.note(taken);
            step = self.ahead.take_done();
        }
    }

    fn note(&mut self, step: Step) {
        match step {
            Step::Nothing => {}
            Step::Done(slot) => {
                if let Some((request, ticket)) = self.slots[slot].take() {
                    self.end(&request, ticket);
                }
            }
            Step::Broken => {
                for (request, ticket) in std::mem::take(&mut self.slots).into_iter().flatten() {
                    self.end(&request, ticket);
                }
            }
        }
    }

    /// Reads the key as everybody does: what was read for it is in the cache, unless it was not fit to be.
    fn end(&self, request: &Request, ticket: Teller) {
        if !ticket.is_alone() {
            ticket.tell(self.engine.read_requested(request));
        }
    }

    fn tell_closed(
        self,
        waiting: VecDeque<(Request, Teller)>,
        requests: crate::sync::MutexGuard<'_, Requests>,
    ) {
        // Wakers may do anything.
        drop(requests);
        let in_flight = self.slots.into_iter().flatten();
        for (_, ticket) in in_flight.chain(waiting) {
            ticket.tell(Err(Error::closed()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They stayed until their turn came, which on a disk that stands still is never.
    #[test]
    fn reads_that_nobody_waits_for_do_not_pile_up() {
        let mut requests = Requests::default();
        let mut add = |number: u32| {
            requests.add(Request { object: 1, hash: 0, key: number.to_le_bytes().into() });
            requests.waiting.len()
        };
        assert_eq!((0..10_000).map(&mut add).max(), Some(64));
        let mut requests = Requests::default();
        let add = |_| requests.add(Request { object: 1, hash: 0, key: [].into() });
        let tickets: Vec<_> = (0..1_000).map(add).collect();
        assert!(
            requests
                .waiting
                .iter()
                .map(|(_, teller)| Arc::as_ptr(&teller.ticket))
                .eq(tickets.iter().map(Arc::as_ptr))
        );
    }

    /// Once many had waited, as many had to wait again before anybody looked.
    #[test]
    fn reads_that_nobody_waits_for_do_not_pile_up_where_many_have_waited_before() {
        let mut requests = Requests::default();
        let add = |requests: &mut Requests| requests.add(Request { object: 1, hash: 0, key: [].into() });
        let tickets: Vec<_> = (0..1_000).map(|_| add(&mut requests)).collect();
        requests.take(tickets.len(), &mut Vec::new());
        let mut add_one = |_| {
            add(&mut requests);
            requests.waiting.len()
        };
        assert_eq!((0..1_000).map(&mut add_one).max(), Some(64));
    }
}
