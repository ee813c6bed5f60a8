//! What the file system may lose at a power cut, and what it must keep. Where nothing can be mounted these tests say so and
//! do nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use kiln::device::{
    AlignedBuffer, BLOCK_BYTES, Device, DeviceFile, FileDevice, OpenMode, OperationKind, SECTOR_BYTES,
};

use super::machine::{Machine, leave_common_mounts};
use super::volume::{AtStake, DATABASE, Volume};
use crate::support::Random;

/// Power cuts after which whatever may happen has happened.
const CUTS: usize = 80;

/// Names and contents that a cut has left.
type Left = Vec<(String, Vec<u8>)>;

/// A machine with an empty disk; `None`, and a message, where there can be none.
fn machine(point: &Path) -> Option<Machine> {
    let booted = leave_common_mounts().and_then(|()| Machine::boot(Volume::new(1), point));
    booted.inspect_err(|error| println!("skipped: a file system cannot be mounted here: {error}")).ok()
}

/// Lets `work` use the path of a database that is not there yet, cuts the power, and returns all that may be left.
fn volumes_after(work: impl FnOnce(&Path)) -> Option<(Volume, Vec<Volume>)> {
    let point = tempfile::tempdir().unwrap();
    let machine = machine(point.path())?;
    work(&machine.database());
    let held_back = machine.cut();
    let mut random = Random::new(7);
    let left = (0..CUTS).map(|_| held_back.after_cut(&mut random)).collect();
    Some((held_back, left))
}

/// The same for work on the database's directory, which is there, durably.
fn left_after(work: impl FnOnce(&FileDevice)) -> Option<BTreeSet<Left>> {
    let (_, volumes) = volumes_after(|path| work(&FileDevice::open(path, true).unwrap()))?;
    let content = |volume: &Volume| -> Left {
        assert!(volume.has_database(), "the directory was synced, and is gone");
        let names = volume.disk.list().unwrap();
        names.into_iter().map(|name| (name.clone(), volume.disk.bytes(&name))).collect()
    };
    Some(volumes.iter().map(content).collect())
}

fn blocks(byte: u8, count: usize) -> AlignedBuffer {
    AlignedBuffer::from(&vec![byte; count * BLOCK_BYTES][..])
}

/// A file that is durable, name and all, with two blocks of ones.
fn ones(device: &FileDevice, name: &str) -> std::sync::Arc<dyn DeviceFile> {
    let file = device.open(name, OpenMode::Create).unwrap();
    file.write_at(&blocks(1, 2), 0).unwrap();
    file.sync().unwrap();
    device.sync_directory().unwrap();
    file
}

fn file(name: &str, byte: u8, count: usize) -> (String, Vec<u8>) {
    (name.to_owned(), vec![byte; count * BLOCK_BYTES])
}

#[test]
fn what_was_synced_is_never_lost() {
    let Some(left) = left_after(|device| {
        let file = ones(device, "a");
        file.write_at(&blocks(2, 1), BLOCK_BYTES as u64).unwrap();
        file.write_at(&blocks(3, 1), 2 * BLOCK_BYTES as u64).unwrap();
        file.sync().unwrap();
        ones(device, "b");
        device.rename("b", "c").unwrap();
        ones(device, "d");
        device.remove("d").unwrap();
        device.sync_directory().unwrap();
    }) else {
        return;
    };
    let a = [vec![1; BLOCK_BYTES], vec![2; BLOCK_BYTES], vec![3; BLOCK_BYTES]].concat();
    assert_eq!(left, BTreeSet::from([vec![("a".to_owned(), a), file("c", 1, 2)]]));
}

#[test]
fn a_write_that_was_not_synced_is_kept_lost_and_torn_between_sectors() {
    let Some(left) = left_after(|device| ones(device, "a").write_at(&blocks(2, 2), 0).unwrap()) else {
        return;
    };
    assert!(left.contains(&vec![file("a", 1, 2)]), "it is never lost");
    assert!(left.contains(&vec![file("a", 2, 2)]), "it is never kept");
    assert!(left.len() > 10, "it is hardly ever torn");
    for files in left {
        let [(_, bytes)] = &files[..] else { panic!("there are {} files", files.len()) };
        let is_whole =
            |sector: &[u8]| sector.iter().all(|&byte| byte == sector[0] && (1..=2).contains(&byte));
        assert!(bytes.chunks(SECTOR_BYTES).all(is_whole), "it is torn inside a sector");
    }
}

#[test]
fn a_clearing_that_was_not_synced_is_kept_or_lost_or_torn() {
    let Some(left) = left_after(|device| ones(device, "a").clear(2 * BLOCK_BYTES as u64).unwrap()) else {
        return;
    };
    assert!(left.contains(&vec![file("a", 1, 2)]), "it is never lost");
    assert!(left.contains(&vec![file("a", 0, 2)]), "it is never kept");
    assert!(left.len() > 10, "it is hardly ever torn");
}

#[test]
fn a_length_that_was_not_synced_is_kept_or_lost() {
    let Some(left) = left_after(|device| ones(device, "a").allocate(4 * BLOCK_BYTES as u64).unwrap()) else {
        return;
    };
    let lengths: BTreeSet<usize> = left.iter().map(|files| files[0].1.len()).collect();
    assert_eq!(lengths, BTreeSet::from([2 * BLOCK_BYTES, 4 * BLOCK_BYTES]));
}

#[test]
fn a_file_without_a_durable_name_is_lost_although_it_was_synced() {
    let Some(left) = left_after(|device| {
        let file = device.open("a", OpenMode::Create).unwrap();
        file.write_at(&blocks(1, 1), 0).unwrap();
        file.sync().unwrap();
    }) else {
        return;
    };
    assert_eq!(left, BTreeSet::from([vec![], vec![file("a", 1, 1)]]));
}

#[test]
fn a_durable_name_does_not_make_its_file_durable() {
    let Some(left) = left_after(|device| {
        device.open("a", OpenMode::Create).unwrap().write_at(&blocks(1, 1), 0).unwrap();
        device.sync_directory().unwrap();
    }) else {
        return;
    };
    assert!(left.contains(&vec![("a".to_owned(), Vec::new())]));
    assert!(left.contains(&vec![file("a", 1, 1)]));
    assert!(left.iter().all(|files| files.len() == 1), "the name was synced, and is gone");
}

#[test]
fn a_renaming_that_was_not_synced_is_kept_or_lost_and_never_half_there() {
    let Some(left) = left_after(|device| {
        ones(device, "a");
        device.rename("a", "b").unwrap();
    }) else {
        return;
    };
    assert_eq!(left, BTreeSet::from([vec![file("a", 1, 2)], vec![file("b", 1, 2)]]));
}

#[test]
fn a_removal_that_was_not_synced_is_kept_or_lost() {
    let Some(left) = left_after(|device| {
        ones(device, "a");
        device.remove("a").unwrap();
    }) else {
        return;
    };
    assert_eq!(left, BTreeSet::from([vec![], vec![file("a", 1, 2)]]));
}

#[test]
fn a_directory_that_was_not_synced_is_lost_with_all_that_is_in_it() {
    let Some((held_back, left)) = volumes_after(|path| {
        fs::create_dir(path).unwrap();
        ones(&FileDevice::open(path, false).unwrap(), "a");
    }) else {
        return;
    };
    let mut at_stake = AtStake::default();
    at_stake.add(&held_back);
    assert_eq!(at_stake.names, 1, "{at_stake:?}");
    let (kept, lost): (Vec<_>, Vec<_>) = left.iter().partition(|volume| volume.has_database());
    assert!(!kept.is_empty() && kept.iter().all(|volume| volume.disk.bytes("a") == file("a", 1, 2).1));
    assert!(!lost.is_empty() && lost.iter().all(|volume| volume.disk.list().unwrap().is_empty()));
}

#[test]
fn it_is_a_file_system_like_others_until_the_power_is_cut() {
    let point = tempfile::tempdir().unwrap();
    let Some(machine) = machine(point.path()) else { return };
    let device = FileDevice::open(&machine.database(), true).unwrap();
    let lock = device.lock().unwrap();
    assert_eq!(device.lock().unwrap_err().kind(), ErrorKind::WouldBlock);
    let a = ones(&device, "a");
    assert_eq!(device.open("a", OpenMode::Create).unwrap_err().kind(), ErrorKind::AlreadyExists);
    let b = ones(&device, "b");
    b.write_at(&blocks(2, 2), 0).unwrap();
    device.rename("a", "b").unwrap();
    assert_eq!(device.list().unwrap(), ["b"]);
    let mut buffer = AlignedBuffer::new(4 * BLOCK_BYTES);
    for (open, byte) in [(&a, 1), (&b, 2), (&device.open("b", OpenMode::Read).unwrap(), 1)] {
        assert_eq!(
            open.read_at(&mut buffer, 0).unwrap(),
            2 * BLOCK_BYTES,
            "a file that is open is another one"
        );
        assert!(buffer[..2 * BLOCK_BYTES].iter().all(|&found| found == byte));
    }
    a.truncate(BLOCK_BYTES as u64).unwrap();
    a.allocate(3 * BLOCK_BYTES as u64).unwrap();
    assert_eq!(a.size().unwrap(), 3 * BLOCK_BYTES as u64);
    assert_eq!(device.open("c", OpenMode::Read).unwrap_err().kind(), ErrorKind::NotFound);
    let written = fs::write(machine.database().join("d"), "five!");
    assert_eq!(written.unwrap_err().kind(), ErrorKind::InvalidInput, "the simulated disk takes whole blocks");
    drop((lock, a, b, device));
    machine.cut();
}

#[test]
fn from_the_cut_on_nothing_has_an_effect_and_nobody_is_answered() {
    let point = tempfile::tempdir().unwrap();
    let Some(machine) = machine(point.path()) else { return };
    let device = FileDevice::open(&machine.database(), true).unwrap();
    let file = ones(&device, "a");
    machine.power().cut_after(OperationKind::Sync, 2);
    let synced: Vec<bool> = (0..2).map(|_| file.sync().is_ok()).collect();
    assert_eq!(
        (synced, machine.power().is_off()),
        (vec![true; 2], true),
        "the last operation before a cut is answered"
    );
    std::thread::scope(|scope| {
        let write = scope.spawn(|| file.write_at(&blocks(2, 2), 0));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!write.is_finished(), "a machine without power has answered");
        machine.power().answer_the_dead();
        assert!(write.join().unwrap().is_err());
    });
    drop((file, device));
    let held_back = machine.cut();
    let mut random = Random::new(3);
    for _ in 0..CUTS {
        let left = held_back.after_cut(&mut random);
        assert_eq!(left.disk.bytes("a"), [1; 2 * BLOCK_BYTES]);
        assert!(left.has_database(), "{DATABASE} was synced");
    }
}

#[test]
fn a_machine_boots_with_what_a_cut_has_left() {
    let point = tempfile::tempdir().unwrap();
    let Some(machine) = machine(point.path()) else { return };
    drop(ones(&FileDevice::open(&machine.database(), true).unwrap(), "a"));
    let left = machine.cut().after_cut(&mut Random::new(1));
    let machine = Machine::boot(left, point.path()).unwrap();
    assert_eq!(fs::read(machine.database().join("a")).unwrap(), [1; 2 * BLOCK_BYTES]);
    assert_eq!(FileDevice::open(&machine.database(), false).unwrap().list().unwrap(), ["a"]);
    machine.cut();
}
