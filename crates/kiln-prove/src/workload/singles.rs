//! Operations outside of transactions: the workload's single operations and batches.

use kiln::{Result, Version};

use super::Shift;
use crate::support::Random;
use crate::workload::bank::number_of;
use crate::workload::history::{Key, Place, Writes};

impl Shift<'_> {
    /// The operations that are transactions of their own.
    pub(super) fn single_operation(&mut self) -> Result<()> {
        if self.random.one_in(3) {
            return self.batch();
        }
        let key = (Place::Numbers, b"visits".to_vec());
        let stored = self.history.latest.get(&key).cloned();
        let before = stored.as_ref().map(|value| number_of(value));
        let (db, numbers) = (self.db, &self.objects.numbers);
        assert_eq!(db.get_with(numbers, "visits", |value| value.map(number_of))?, before);
        let (commit, value) = match self.random.below(5) {
            0 => {
                let commit = db.add(numbers, "visits", 3)?;
                let (version, sum) = (commit.version(), commit.forget());
                assert_eq!(sum, before.unwrap_or(0) + 3);
                (version, Some(sum))
            }
            1 => (db.put(numbers, "visits", 7_i64.to_le_bytes())?.version(), Some(7)),
            2 => {
                let product = before.map(|number| number.wrapping_mul(3));
                let commit = db.update(numbers, "visits", |old| {
                    assert_eq!(old, stored.as_deref());
                    product.map(i64::to_le_bytes)
                });
                (commit?.version(), product)
            }
            3 => {
                let new = self.random.one_in(2).then_some(11_i64);
                let bytes = new.map(i64::to_le_bytes);
                let new_bytes = bytes.as_ref().map(<[u8; 8]>::as_slice);
                let refused = db.compare_and_set(numbers, "visits", Some(b"never"), None)?.forget();
                let commit = db.compare_and_set(numbers, "visits", stored.as_deref(), new_bytes)?;
                let version = commit.version();
                assert_eq!((refused, commit.forget()), (false, true));
                (version, new)
            }
            _ => {
                let commit = db.delete(numbers, "visits")?;
                let (version, existed) = (commit.version(), commit.forget());
                assert_eq!(existed, before.is_some());
                (version, None)
            }
        };
        if before.is_some() || value.is_some() {
            let value = value.map(|number| number.to_le_bytes().as_slice().into());
            self.history.commit(commit.number(), Writes::from([(key, value)]), None);
        }
        Ok(())
    }

    /// A batch of changes, each a transaction of its own: of one that breaks off in the middle the first are there.
    fn batch(&mut self) -> Result<()> {
        let names: Vec<Key> =
            (0..1 + self.random.below(6)).map(|_| vec![b'v', self.random.below(4) as u8]).collect();
        let (db, latest, seed) = (self.db, &self.history.latest, self.random.next());
        let mut changed = Writes::new();
        // An element is committed once there is a call for the next one, and on one thread no version has passed since.
        let mut done: Vec<(Version, Writes)> = Vec::new();
        let mut pending: Option<(usize, Writes)> = None;
        let commit = db.update_many(&self.objects.numbers, &names, |at, old, new| {
            let before = pending.take_if(|(last, _)| *last < at);
            done.extend(before.map(|(_, writes)| (db.version(), writes)));
            let key = (Place::Numbers, names[at].clone());
            if pending.is_none() {
                let stored = changed.get(&key).unwrap_or(&latest.get(&key).cloned()).clone();
                assert_eq!(old, stored.as_deref(), "element {at} of a batch");
            }
            let mut random = Random::new(seed + at as u64);
            let length = random.below(40);
            new.extend_from_slice(&random.bytes(length));
            // The deletion of what is not there would be no write.
            let exists = old.is_none() || !random.one_in(4);
            let value = exists.then(|| new.as_slice().into());
            changed.insert(key.clone(), value.clone());
            pending = Some((at, Writes::from([(key, value)])));
            exists
        });
        let commit = commit.map(|commit| commit.version());
        if let (Ok(version), Some((_, writes))) = (&commit, pending) {
            done.push((*version, writes));
        }
        for (version, writes) in done {
            self.history.commit(version.number(), writes, None);
        }
        commit.map(drop)
    }
}
