//! Work of several threads that only lasts as long as a step of an opening, or of settling.

use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, spawn_scoped, thread};

/// Has so many threads of this name do the work, of which one is the caller's; all have done it when this returns. Where there can be no more threads there are fewer.
pub(crate) fn together(count: usize, name: &str, work: impl Fn() + Sync) {
    let work = &work;
    thread::scope(|scope| {
        for _ in 1..count {
            let _ = spawn_scoped(scope, name, work);
        }
        work();
    });
}

/// Acts once for each number below `count`, on as many threads [`together`]. Gives what came of each, in the order of the numbers.
pub(crate) fn side_by_side<T: Send>(count: usize, name: &str, act: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(count)));
    together(count, name, || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            let outcome = act(number);
            done.lock().push((number, outcome));
        }
    });
    let mut done = std::mem::take(&mut *done.lock());
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Has the others stop, where they look at what it sets when it is dropped: an error, or a panic, is on its way. Whoever has ended well forgets it.
pub(crate) struct Fails<'a>(&'a AtomicBool);

impl<'a> Fails<'a> {
    pub(crate) fn new(has_failed: &'a AtomicBool) -> Fails<'a> {
        Fails(has_failed)
    }
}

impl Drop for Fails<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_its_turn_and_what_came_of_it_its_place() {
        for count in [0, 1, 2, 7] {
            assert_eq!(
                side_by_side(count, "test", |number| number * 2),
                (0..count).map(|number| number * 2).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn who_acts_alone_needs_no_thread() {
        let caller = thread::current().id();
        assert_eq!(side_by_side(1, "test", |_| thread::current().id()), [caller]);
    }
}
