//! What a sync that fails leaves on the disk, and what reads see of the rest.

use super::*;
use crate::device::AlignedBuffer;

fn durable_sectors(disk: &SimulatedDevice) -> Vec<u8> {
    sectors(&lose_all(disk).bytes("a"))
}

/// The file "a" of so many blocks of ones, and a sync that has forgotten twos in the first of them.
fn with_forgotten(seed: u64, count: usize, kind: FaultKind) -> (SimulatedDevice, Arc<dyn DeviceFile>) {
    let disk = SimulatedDevice::new(seed);
    disk.set_bytes("a", blocks(1, count).as_slice());
    let file = disk.open("a", OpenMode::ReadWrite).unwrap();
    file.write_at(&blocks(2, 1), 0).unwrap();
    disk.inject(fault(OperationKind::Sync, 1, kind));
    let error = file.sync().unwrap_err();
    assert_eq!(DeviceError::of(&error).unwrap().raw_os_error(), Some(Errno::IO.raw_os_error()));
    (disk, file)
}

#[test]
fn a_failed_sync_forgets_what_has_not_reached_the_disk_although_reads_still_see_it() {
    let mut left = BTreeSet::new();
    for seed in 0..100 {
        let (disk, file) = with_forgotten(seed, 2, FaultKind::FailedSyncThenSuccess);
        let durable = durable_sectors(&disk);
        assert_eq!(
            durable,
            durable_sectors(&with_forgotten(seed, 2, FaultKind::FailedSyncThenSuccess).0),
            "the seed decides"
        );
        file.write_at(&blocks(3, 1), BLOCK).unwrap();
        file.sync().unwrap();
        assert_eq!(disk.bytes("a"), [[2; 4096], [3; 4096]].concat());
        assert_eq!(keep_all(&disk).fingerprint(), lose_all(&disk).fingerprint());
        assert_eq!(durable_sectors(&disk), [&durable[..SECTORS], &[3; SECTORS]].concat());
        file.write_at(&blocks(2, 1), 0).unwrap();
        file.sync().unwrap();
        assert_eq!(lose_all(&disk).bytes("a"), [[2; 4096], [3; 4096]].concat(), "writing again helps");
        left.insert(durable[..SECTORS].to_vec());
    }
    assert!(
        left.contains(&vec![1; SECTORS]) && left.contains(&vec![2; SECTORS]) && left.len() > 10,
        "{left:?}"
    );
}

#[test]
fn what_a_failed_sync_has_forgotten_is_seen_until_it_is_evicted() {
    let read = |file: &Arc<dyn DeviceFile>| {
        let mut buffer = AlignedBuffer::new(3 * BLOCK_BYTES);
        assert_eq!(file.read_at(&mut buffer, 0).unwrap(), buffer.len());
        sectors(&buffer)
    };
    for seed in 0..20 {
        let (disk, file) = with_forgotten(seed, 3, FaultKind::FailedSyncThenSuccess);
        let durable = durable_sectors(&disk);
        file.write_at(&blocks(3, 1), BLOCK).unwrap();
        disk.inject(fault(OperationKind::Read, 2, FaultKind::Evicted));
        let whole = [[2; SECTORS], [3; SECTORS], [1; SECTORS]].concat();
        assert_eq!([read(&file), read(&file)], [whole.clone(), whole.clone()]);
        let evicted = [&durable[..SECTORS], &[3; SECTORS], &[1; SECTORS]].concat();
        assert_eq!(read(&file), evicted);
        assert_eq!(durable_sectors(&disk), durable, "what was pending is so still");
        file.sync().unwrap();
        assert_eq!(durable_sectors(&disk), evicted);

        let (disk, file) = with_forgotten(seed, 3, FaultKind::FailedSyncReverted);
        assert_eq!([read(&file), durable_sectors(&disk)], [durable.clone(), durable]);
    }
}
