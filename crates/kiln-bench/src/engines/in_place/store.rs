//! What all threads share: the tree, the new keys, and the windows in which both become durable.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::file::PageFile;
use super::leaf::Layout;
use super::tree::{NewRows, Tree};
use crate::engines::Hardening;
use crate::generate::Sizes;

/// The tree, the new keys and the file.
///
/// Lock order: the file, the new keys, latches. A transaction, which holds latches first, waits for nobody.
pub(super) struct Store {
    pub(super) layout: Layout,
    rows_max: u64,
    tree: RwLock<Arc<Tree>>,
    /// Counts the trees, so that who has one knows whether it is still the tree.
    generation: AtomicU64,
    new: Mutex<NewRows>,
    file: Mutex<PageFile>,
    /// The window that commits are in, and the last one that is durable.
    current: AtomicU64,
    durable: AtomicU64,
}

fn unpoisoned<T>(result: Result<T, PoisonError<T>>) -> T {
    // A panic elsewhere fails the run by itself.
    result.unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// An empty store for so many rows, with its file in a directory.
    pub(super) fn create(directory: &Path, sizes: Sizes, rows_max: u64) -> Result<Store> {
        let layout = Layout::new(sizes)?;
        let leaves_max = usize::try_from(rows_max)?.div_ceil(layout.rows_max).max(1);
        Ok(Store {
            layout,
            rows_max,
            tree: RwLock::new(Arc::new(Tree::empty(layout))),
            generation: AtomicU64::new(0),
            new: Mutex::default(),
            file: Mutex::new(PageFile::create(&directory.join("leaves"), leaves_max)?),
            current: AtomicU64::new(1),
            durable: AtomicU64::new(0),
        })
    }

    /// The tree, with its number.
    pub(super) fn tree(&self) -> (Arc<Tree>, u64) {
        let tree = unpoisoned(self.tree.read());
        (tree.clone(), self.generation())
    }

    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The new keys. While they are held no other tree comes.
    pub(super) fn new_rows(&self) -> MutexGuard<'_, NewRows> {
        unpoisoned(self.new.lock())
    }

    /// The same if nobody has them.
    pub(super) fn try_new_rows(&self) -> Option<MutexGuard<'_, NewRows>> {
        self.new.try_lock().ok()
    }

    /// Whether there is room for one more new key.
    pub(super) fn has_room(&self, tree: &Tree, new: &NewRows) -> bool {
        tree.rows() + (new.len() as u64) < self.rows_max
    }

    /// Brings new keys into leaves. AciKV merges them into the leaves that they belong to (its figure 5); here all leaves are built
    /// anew, since no workload with new keys is measured.
    pub(super) fn merge(&self) {
        let mut new = self.new_rows();
        if new.is_empty() {
            return;
        }
        let merged = Arc::new(self.tree().0.merged(&new));
        let mut tree = unpoisoned(self.tree.write());
        *tree = merged;
        self.generation.fetch_add(1, Ordering::Release);
        new.clear();
    }

    /// Ends a window: writes all leaves that are dirty, each as it is when its turn comes, and makes them durable.
    pub(super) fn persist(&self) -> Result<()> {
        let mut file = unpoisoned(self.file.lock());
        // What was committed until here is in the leaves, or new, and all of them are looked at below.
        let window = self.current.fetch_add(1, Ordering::SeqCst);
        self.merge();
        let (tree, _) = self.tree();
        file.write_window(tree.take_dirty(), |number, page| {
            let mut leaf = tree.latch(number);
            leaf.is_dirty = false;
            leaf.copy_to(page)
        })?;
        self.durable.store(window, Ordering::Release);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn file(&self) -> MutexGuard<'_, PageFile> {
        unpoisoned(self.file.lock())
    }

    pub(super) fn progress(&self) -> Hardening {
        let durable = self.durable.load(Ordering::Acquire);
        Hardening { current: self.current.load(Ordering::SeqCst), durable }
    }
}

/// The thread that ends windows.
pub(super) struct Windows {
    is_over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Windows {
    /// Begins to write early enough for what was committed when the last write began to be durable within the window, if the next one takes
    /// as long; where that cannot be, one right after the other.
    pub(super) fn start(store: Arc<Store>, window: Duration) -> Windows {
        let is_over = Arc::new((Mutex::new(false), Condvar::new()));
        let seen = is_over.clone();
        let thread = std::thread::spawn(move || {
            loop {
                let began = Instant::now();
                store.persist()?;
                let rest = window.saturating_sub(2 * began.elapsed());
                let (lock, woken) = &*seen;
                let over = unpoisoned(lock.lock());
                let (over, _) = unpoisoned(woken.wait_timeout_while(over, rest, |over| !*over));
                if *over {
                    return Ok(());
                }
            }
        });
        Windows { is_over, thread: Some(thread) }
    }

    /// Ends the thread, and says what it failed of.
    pub(super) fn end(&mut self) -> Result<()> {
        *unpoisoned(self.is_over.0.lock()) = true;
        self.is_over.1.notify_all();
        match self.thread.take() {
            Some(thread) => thread.join().map_err(|_| anyhow!("the thread that writes leaves panicked"))?,
            None => Ok(()),
        }
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        // Who wants to know has closed the engine.
        let _ = self.end();
    }
}
