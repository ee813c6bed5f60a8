//! Workloads find wrong results.

use std::collections::HashMap;
use std::sync::Mutex;

use anyhow::bail;

use super::*;
use crate::engines::Generator;
use crate::generate::Key;

/// A map behind a mutex that can be told to be wrong.
#[derive(Default)]
struct Simple {
    entries: Mutex<HashMap<Key, Vec<u8>>>,
    /// Drop the second write of each transaction.
    half: bool,
}

struct SimpleWorker<'a>(&'a Simple);

impl Engine for Simple {
    type Worker<'a> = SimpleWorker<'a>;

    fn name(&self) -> &'static str {
        "simple"
    }

    fn worker(&self) -> SimpleWorker<'_> {
        SimpleWorker(self)
    }

    fn key_count(&self) -> Result<u64> {
        Ok(self.entries.lock().unwrap().len() as u64)
    }

    fn persist(&self) -> Result<()> {
        Ok(())
    }

    fn is_warm(&self) -> bool {
        true
    }

    fn disk_bytes(&self) -> u64 {
        0
    }
}

impl Worker for SimpleWorker<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let entries = self.0.entries.lock().unwrap();
        Ok(entries.get(key).map(|found| value.extend_from_slice(found)).is_some())
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        self.0.entries.lock().unwrap().insert(*key, value.to_vec());
        Ok(())
    }

    fn put_durably(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        self.put(key, value)
    }

    fn put_all<'v>(&mut self, mut entries: impl Iterator<Item = (Key, &'v [u8])> + Clone) -> Result<()> {
        entries.try_for_each(|(key, value)| self.put(&key, value))
    }

    fn modify_all(
        &mut self,
        keys: &[Key],
        mut change: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut entries = self.0.entries.lock().unwrap();
        for (at, key) in keys.iter().enumerate() {
            match entries.get_mut(key) {
                Some(_) if self.0.half && at == 1 => {}
                Some(value) => change(at, value)?,
                None => bail!("missing"),
            }
        }
        Ok(())
    }
}

const RECORDS: u64 = 1234;
const MOMENT: Duration = Duration::from_millis(3);

#[test]
fn a_right_engine_passes_and_its_counters_add_up() {
    let engine = Simple::default();
    load(&engine, RECORDS).unwrap();
    assert_eq!(check_all(&engine, RECORDS).unwrap(), 0);
    run(&engine, Workload::Get, 2, MOMENT, RECORDS).unwrap();
    let measured = run(&engine, Workload::ModifyThree, 2, MOMENT, RECORDS).unwrap();
    assert_eq!(check_all(&engine, RECORDS).unwrap(), 3 * measured.ops);
    for workload in [Workload::Put, Workload::PutDurably, Workload::PutThree] {
        assert!(run(&engine, workload, 2, MOMENT, RECORDS).unwrap().ops > 0);
    }
}

#[test]
fn half_a_transaction_does_not_add_up() {
    let engine = Simple { half: true, ..Simple::default() };
    load(&engine, RECORDS).unwrap();
    let measured = run(&engine, Workload::ModifyThree, 1, MOMENT, RECORDS).unwrap();
    assert_ne!(check_all(&engine, RECORDS).unwrap(), 3 * measured.ops);
}

#[test]
fn a_wrong_and_a_missing_value_are_found() {
    let engine = Simple::default();
    load(&engine, RECORDS).unwrap();
    let value = engine.entries.lock().unwrap().insert(key(1), vec![0; VALUE_BYTES]).unwrap();
    assert!(check_all(&engine, RECORDS).unwrap_err().to_string().contains("wrong value"));
    assert!(run(&engine, Workload::Get, 1, Duration::from_secs(60), RECORDS).is_err());
    engine.entries.lock().unwrap().insert(key(1), value);
    engine.entries.lock().unwrap().remove(&key(2));
    assert!(check_all(&engine, RECORDS).is_err());
    assert!(run(&engine, Workload::Get, 1, Duration::from_secs(60), RECORDS).is_err());
}

#[test]
fn the_generator_answers_every_workload() {
    for workload in [Workload::Get, Workload::Put, Workload::PutThree, Workload::ModifyThree] {
        assert!(run(&Generator, workload, 1, MOMENT, RECORDS).unwrap().ops > 0);
    }
}
