//! The lead: who hardens, and how that ends.
//!
//! One at a time has the lead. Who has had it tells those whom the hardening was for, and sees to it that somebody leads the next one, if it is waited for.
//! What is told may use the database, so it is told by who holds no lock; everybody else ends quietly, and leaves it to the hardener, or to who
//! [tells](Engine::tell_withheld) first.

use std::sync::Arc;

use super::horizon::{Covered, Lost, Successor};
use super::{Hardening, Leader};
use crate::error::Result;
use crate::kernel::engine::Engine;
use crate::planted::{Bug, planted};
use crate::sync::{MutexGuard, contain};

const USED_AFTER_FORK: &str =
    "the database was used after a fork, in another process than the one that has opened it";

/// How a lead ends.
type LetGo = fn(&Engine, MutexGuard<'_, Leader>, Covered);

impl Hardening {
    /// Whether who lets go has somebody lead the next hardening.
    fn hands_over(covered: &Covered) -> bool {
        !planted(Bug::LeadLetGoQuietly) || covered.waiter_count() > 0
    }
}

impl Engine {
    /// Hardens, if nobody does and the version still needs it; false if somebody else is at it.
    pub(crate) fn try_lead_for(&self, version: u64) -> bool {
        let Some(leader) = self.hardening.leader.try_lock() else { return false };
        self.lead_for(version, leader, Self::let_go);
        true
    }

    /// Hardens, unless the version's fate is known.
    fn lead_for(&self, version: u64, leader: MutexGuard<'_, Leader>, let_go: LetGo) {
        match self.hardening.horizon.outcome(version) {
            None => self.lead(leader, let_go),
            Some(_) => let_go(self, leader, Covered::default()),
        }
    }

    /// As [`Self::harden_all`], for who holds no lock, and so can tell everybody.
    pub(crate) fn persist(&self) -> Result<()> {
        self.harden_all_and(Self::let_go)
    }

    /// Hardens everything committed so far; waits for a hardening under way first. One that begins meanwhile does for all who wait.
    pub(crate) fn harden_all(&self) -> Result<()> {
        self.harden_all_and(Self::let_go_quietly)
    }

    fn harden_all_and(&self, let_go: LetGo) -> Result<()> {
        if planted(Bug::PersistDoesNothing) {
            return Ok(());
        }
        self.lose_after_fork()?;
        // What is committed has this version at the most.
        let version = self.clock.now();
        self.lead_for(version, self.hardening.leader.lock(), let_go);
        self.check_not_lost()
    }

    /// # Errors
    /// `Lost` if a hardening has failed.
    pub(crate) fn check_not_lost(&self) -> Result<()> {
        self.hardening.horizon.failure().map_or(Ok(()), |lost| Err(lost.error()))
    }

    /// # Errors
    /// `Lost` in another process than the one that has opened the database. A system call, and so not for every operation.
    pub(crate) fn check_process(&self) -> Result<()> {
        match self.process.is_this() {
            true => Ok(()),
            false => Err(Lost::new(self.hardening.horizon.local(), USED_AFTER_FORK).error()),
        }
    }

    /// Before waiting for who has the lead: in a process that was forked off meanwhile nobody ever lets go of it. Nothing hardens there, so that nobody
    /// needs it to say what is lost.
    ///
    /// # Errors
    /// As [`Self::check_process`].
    pub(crate) fn lose_after_fork(&self) -> Result<()> {
        self.check_process().inspect_err(|_| {
            // Who waits may hold locks.
            self.hardening.horizon.withhold(self.lose(USED_AFTER_FORK));
        })
    }

    /// Whether somebody hardens at the moment.
    pub(crate) fn is_hardening(&self) -> bool {
        self.hardening.leader.is_locked()
    }

    /// Hardens, or waits until somebody else has made progress. Who waits does not ask for the lead: when it was woken up the next one
    /// might have it already, and hold it for another hardening.
    pub(crate) fn harden_or_wait(&self) {
        // Without the hardener nobody else may tell for a long time.
        let let_go = if self.hardening.background { Self::let_go_quietly } else { Self::let_go };
        self.harden_or_wait_and(let_go);
    }

    pub(super) fn harden_or_wait_and(&self, let_go: LetGo) {
        let hardening = &self.hardening;
        // Read before the look: a lead that is found taken ends after it.
        let seen = hardening.leads_ended.read();
        if let Some(leader) = hardening.leader.try_lock() {
            return self.lead(leader, let_go);
        }
        if self.lose_after_fork().is_err() {
            return;
        }
        while hardening.leads_ended.read() == seen {
            hardening.leads_ended.wait(seen);
        }
    }

    /// Runs one hardening as the leader, unless one has failed. One that panics has failed, and who waits for it hears of that as of any other.
    fn lead(&self, mut leader: MutexGuard<'_, Leader>, let_go: LetGo) {
        let hardening = &self.hardening;
        let mut covered = Covered::default();
        if self.check_process().is_err() {
            covered = self.lose(USED_AFTER_FORK);
        } else if hardening.horizon.failure().is_none() {
            let ended = contain(|| {
                hardening.gather();
                self.harden(&mut leader, &mut covered);
            });
            if ended.is_none() {
                covered.append(self.lose("hardening panicked, which is a mistake in Kiln or in the device"));
            }
        }
        let_go(self, leader, covered);
    }

    /// What is not durable is lost, and nothing more is committed. For who has the lead, or [sees](Self::lose_after_fork) that nobody can.
    pub(super) fn lose(&self, reason: impl Into<Arc<str>>) -> Covered {
        let horizon = &self.hardening.horizon;
        horizon.fail(Lost::new(horizon.local(), reason))
    }

    /// As [`Self::lose`], for who has not the lead, nor any lock.
    pub(super) fn fail(&self, reason: impl Into<Arc<str>>) {
        let leader = self.hardening.leader.lock();
        let covered = self.lose(reason);
        self.let_go(leader, covered);
    }

    /// What `look` finds while nobody hardens. The caller may hold locks.
    pub(super) fn between_hardenings<T>(&self, look: impl FnOnce(&mut Leader) -> T) -> T {
        let mut leader = self.hardening.leader.lock();
        let found = look(&mut leader);
        self.let_go_quietly(leader, Covered::default());
        found
    }

    /// Ends the lead, tells, and hands over to a waiter that was not covered. Nobody who has held the lock may leave this, or
    /// [`Self::let_go_quietly`], out, not even without a hardening: a waiter that found it taken sleeps, and relies on being seen here.
    pub(super) fn let_go(&self, leader: MutexGuard<'_, Leader>, mut covered: Covered) {
        let hardening = &self.hardening;
        // Waking many takes a while; the next leader need not wait for it.
        drop(leader);
        hardening.leads_ended.advance_for_all();
        let hands_over = Hardening::hands_over(&covered);
        hardening.horizon.wake_threads(&mut covered);
        // Before others are told, which takes as long as their callbacks do.
        let is_handed_over = !hands_over || hardening.horizon.wake_thread();
        hardening.horizon.tell(covered);
        if !is_handed_over {
            self.hand_over_lead();
        }
    }

    /// As [`Self::let_go`], for who may hold a lock that a callback asks for: threads are woken, and that is all.
    pub(super) fn let_go_quietly(&self, leader: MutexGuard<'_, Leader>, covered: Covered) {
        let hardening = &self.hardening;
        let hands_over = Hardening::hands_over(&covered);
        // Within the lead: who closes leads last, and tells then.
        let somebody_is_to_hear = hardening.horizon.withhold(covered);
        drop(leader);
        hardening.leads_ended.advance_for_all();
        // Without the hardener a task would sleep until this comes to its end.
        let successor = if hardening.background { Successor::Thread } else { Successor::Any };
        let somebody_is_to_lead = hands_over && hardening.horizon.wake_successor(successor);
        if hardening.background && (somebody_is_to_hear || somebody_is_to_lead) {
            let mut requests = hardening.requests.lock();
            requests.tell = true;
            hardening.wake_hardener.notify_one();
        }
    }

    /// Tells those whom somebody could not tell who might have held a lock.
    pub(crate) fn tell_withheld(&self) {
        self.hardening.horizon.tell(Covered::default());
        self.hand_over_lead();
    }

    /// Does what may harden with a lock held, and then tells those who could not be told meanwhile. The caller holds none.
    pub(crate) fn telling<T>(&self, act: impl FnOnce() -> T) -> T {
        let done = act();
        self.tell_withheld();
        done
    }

    /// Has somebody lead the next hardening, if anybody waits for one.
    pub(crate) fn hand_over_lead(&self) {
        if self.hardening.horizon.wake_successor(Successor::Any) && self.hardening.background {
            self.hardening.request_now();
        }
    }
}
