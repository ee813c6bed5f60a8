//! What every engine must do right, so that none is fast or slow because its adapter is wrong.

use std::time::Duration;

use super::{Engine, KilnEngine, KilnObject, KilnSettings, Worker};
use crate::generate::{self, blank_value, key};

fn conforms(engine: &impl Engine) {
    let mut worker = engine.worker();
    let mut buffer = vec![1];
    assert!(!worker.get(&key(0), &mut buffer).unwrap());
    let mut values = [blank_value(); 4];
    for (index, value) in (0..).zip(&mut values) {
        generate::stamp(value, index, 10 * index);
    }
    worker.put(&key(0), &values[0]).unwrap();
    worker.put_durably(&key(1), &values[1]).unwrap();
    worker.put_all((2..4).map(|index| (key(index), &values[index as usize][..]))).unwrap();
    assert_eq!(engine.key_count().unwrap(), 4);
    worker.put(&key(0), &values[0]).unwrap();
    assert_eq!(engine.key_count().unwrap(), 4);

    let keys = [key(3), key(1)];
    let add = |at: usize, value: &mut [u8]| {
        let index = [3, 1][at];
        let counter = generate::check(value, index)?;
        value[8..16].copy_from_slice(&(counter + 1).to_le_bytes());
        Ok(())
    };
    worker.modify_all(&keys, add).unwrap();
    assert!(worker.modify_all(&[key(1), key(9)], |_, _| Ok(())).is_err());
    assert!(worker.modify_all(&[key(1)], |_, _| anyhow::bail!("no")).is_err());
    engine.persist().unwrap();
    let mut other = engine.worker();
    for (index, counter) in [(0, 0), (1, 11), (2, 20), (3, 31)] {
        assert!(other.get(&key(index), &mut buffer).unwrap());
        assert_eq!(generate::check(&buffer, index).unwrap(), counter);
    }
    assert!(!other.get(&key(4), &mut buffer).unwrap());
    assert!(engine.disk_bytes() > 0);
}

fn kiln_conforms<O: KilnObject>() {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let settings = KilnSettings { window: Duration::from_millis(5), memory_bytes: 64 << 20 };
    let engine = KilnEngine::<O>::create(&directory.path().join("database"), settings).unwrap();
    assert_eq!(engine.name(), "kiln");
    conforms(&engine);
    engine.close().unwrap();
}

#[test]
fn a_kiln_map_conforms() {
    kiln_conforms::<kiln::Map>();
}

#[test]
fn a_kiln_table_conforms() {
    kiln_conforms::<kiln::Table>();
}
