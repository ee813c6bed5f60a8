//! A session's commit points (CPR §2, §5.2), for who is called back with each new one.
//!
//! A commit point is the serial number up to which everything of the session is durable. It moves only as a version is covered into which
//! the session has committed. So a session waits at the horizon, as a receipt does, for the oldest such version, and for nothing if it has none: a hardening costs as much as
//! there are sessions that have committed since the last one, and have somebody to call.
//!
//! Rejected: to ask each session after each hardening, which is work for those, too, that have done nothing; and to
//! read the serial number in the last durable state, which is a read, perhaps of the disk, for what the session has just known.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::engine::Engine;
use super::hardening::horizon::Listener;
use crate::sync::{Mutex, MutexGuard, contain};

type OnDurable = Box<dyn FnMut(u64) + Send>;

/// See the module's documentation. A session holds it, and nobody else for long: so nobody is called back for one that was dropped.
pub(super) struct CommitPoints {
    engine: Arc<Engine>,
    state: Mutex<State>,
}

struct State {
    callbacks: Vec<OnDurable>,
    /// Versions that are not known to be durable, ascending, each with the last serial number committed into it.
    pending: VecDeque<(u64, u64)>,
    /// The horizon will tell of the first of them.
    is_registered: bool,
    /// It was covered before anybody could be registered: who ends the operation is to see to it.
    is_due: bool,
    /// The commit point, and the one that was told last.
    durable: u64,
    told: u64,
    /// Somebody calls the callbacks at the moment, and looks again afterwards.
    are_called: bool,
}

impl CommitPoints {
    /// Of a session whose last commit was this one: version and serial number.
    pub(super) fn new(engine: &Arc<Engine>, (version, serial): (u64, u64)) -> CommitPoints {
        let is_durable = matches!(engine.hardening.horizon.outcome(version), Some(Ok(())));
        let durable = if is_durable { serial } else { 0 };
        CommitPoints {
            engine: engine.clone(),
            state: Mutex::new(State {
                callbacks: Vec::new(),
                pending: (!is_durable).then_some((version, serial)).into_iter().collect(),
                is_registered: false,
                is_due: false,
                durable,
                told: durable,
                are_called: false,
            }),
        }
    }

    pub(super) fn add(self: &Arc<Self>, callback: OnDurable) {
        let mut state = self.state.lock();
        state.callbacks.push(callback);
        self.wait_for_first(&mut state);
    }

    /// Notes a commit of the session's, whose turn it is.
    pub(super) fn note(self: &Arc<Self>, version: u64, serial: u64) {
        let mut state = self.state.lock();
        match state.pending.back_mut() {
            Some((newest, last)) if *newest == version => *last = serial,
            _ => state.pending.push_back((version, serial)),
        }
        self.wait_for_first(&mut state);
    }

    /// Waits at the horizon for the oldest version that is pending, unless it does already. Called with locks held, so that nobody is told here.
    fn wait_for_first(self: &Arc<Self>, state: &mut State) {
        let Some(&(version, _)) = state.pending.front().filter(|_| !state.is_registered) else { return };
        let own: Weak<Self> = Arc::downgrade(self);
        state.is_registered = self.engine.hardening.horizon.register_listener(version, own);
        state.is_due |= !state.is_registered;
    }

    /// For who has ended an operation of the session, or added a callback, and holds no lock any more.
    pub(super) fn tell_if_due(self: &Arc<Self>) {
        let state = self.state.lock();
        if state.is_due {
            self.move_on(state);
        }
    }

    /// Moves the commit point, waits for what is still open, and calls back, unless somebody else does: they look again.
    fn move_on<'s>(self: &'s Arc<Self>, mut state: MutexGuard<'s, State>) {
        loop {
            self.advance(&mut state);
            self.wait_for_first(&mut state);
            if !std::mem::take(&mut state.is_due) {
                break;
            }
        }
        if std::mem::replace(&mut state.are_called, true) {
            return;
        }
        while state.durable > state.told {
            let durable = state.durable;
            state.told = durable;
            let mut callbacks = std::mem::take(&mut state.callbacks);
            drop(state);
            for callback in &mut callbacks {
                // If it panics, which the panic's hook has reported, nobody else is to miss anything.
                let _ = contain(|| callback(durable));
            }
            state = self.state.lock();
            callbacks.append(&mut state.callbacks);
            state.callbacks = callbacks;
        }
        state.are_called = false;
    }

    /// Moves the commit point as far as the horizon has come.
    fn advance(&self, state: &mut State) {
        while let Some(&(version, serial)) = state.pending.front() {
            match self.engine.hardening.horizon.outcome(version) {
                Some(Ok(())) => state.durable = serial,
                // Who wants to hear of losses is told by others.
                Some(Err(_)) => {}
                None => return,
            }
            state.pending.pop_front();
        }
    }
}

impl Listener for CommitPoints {
    fn hear(self: Arc<Self>) {
        let mut state = self.state.lock();
        state.is_registered = false;
        self.move_on(state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::Options;
    use crate::device::SimulatedDevice;

    /// It was gone once the others had been called, and heard of nothing.
    #[test]
    fn c7_a_callback_that_another_one_has_added_is_called_from_then_on() {
        let db = Options::new().background(false).open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
        let (map, session) = (db.map("map").unwrap(), Arc::new(db.session("client").unwrap()));
        let (told, hear) = mpsc::channel();
        let (adding, mut told) = (Arc::downgrade(&session), Some(told));
        session.on_durable(move |_| {
            if let (Some(session), Some(told)) = (adding.upgrade(), told.take()) {
                session.on_durable(move |serial| told.send(serial).unwrap());
            }
        });
        (0..2).for_each(|_| session.put(&map, "key", "value").unwrap().safe().unwrap());
        assert_eq!(hear.try_iter().collect::<Vec<_>>(), [2]);
    }
}
