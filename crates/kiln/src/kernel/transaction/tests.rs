//! What a transaction leaves behind.

use super::*;
use crate::Options;
use crate::device::SimulatedDevice;

#[test]
fn what_a_large_transaction_took_does_not_stay_with_its_thread() {
    let options = Options::new().background(false).memory(8 << 20);
    let db = options.open_on(Arc::new(SimulatedDevice::new(1))).unwrap();
    let map = db.map("map").unwrap();
    let kept_after = |keys: u32, bytes: usize| {
        let put_all = |tx: &Transaction<'_>| {
            (0..keys).try_for_each(|key| tx.put(&map, key.to_be_bytes(), vec![7; bytes]))
        };
        let act = || {
            db.transact(put_all).unwrap().forget();
            POOL.with(|pool| pool.borrow().len())
        };
        std::thread::scope(|scope| scope.spawn(act).join().unwrap())
    };
    assert_eq!(kept_after(10, 10), 1);
    assert_eq!(kept_after(5_000, 10), 0);
}
