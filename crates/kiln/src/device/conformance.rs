//! What every device must do. Each test runs on files and on the simulated disk, so that neither can drift
//! from the traits' documentation or from the other.

use std::io::ErrorKind;

use super::*;

const BLOCK: u64 = BLOCK_BYTES as u64;

fn on_each_device(test: impl Fn(&dyn Device)) {
    let directory = tempfile::tempdir().unwrap();
    test(&FileDevice::open(directory.path(), false).unwrap());
    test(&SimulatedDevice::new(1));
}

pub(super) fn blocks(byte: u8, count: usize) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new(count * BLOCK_BYTES);
    buffer.fill(byte);
    buffer
}

fn contents(file: &dyn DeviceFile) -> Vec<u8> {
    let size = usize::try_from(file.size().unwrap()).unwrap();
    let mut buffer = AlignedBuffer::new(size + BLOCK_BYTES);
    let length = file.read_at(&mut buffer, 0).unwrap();
    assert_eq!(length, size);
    buffer[..length].to_vec()
}

#[test]
fn what_is_written_is_read_and_the_rest_is_zeros() {
    on_each_device(|device| {
        let file = device.open("a", OpenMode::Create).unwrap();
        file.write_at(&blocks(1, 2), 0).unwrap();
        file.write_at(&blocks(2, 1), 3 * BLOCK).unwrap();
        file.write_at(&blocks(3, 1), BLOCK).unwrap();
        let expected = [[1; 4096], [3; 4096], [0; 4096], [2; 4096]].concat();
        assert_eq!(contents(&*file), expected);
        file.sync().unwrap();
        let reader = device.open("a", OpenMode::Read).unwrap();
        assert_eq!(contents(&*reader), expected);
    });
}

#[test]
fn reading_stops_at_the_end_of_the_file() {
    on_each_device(|device| {
        let file = device.open("a", OpenMode::Create).unwrap();
        let mut buffer = blocks(9, 2);
        assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 0);
        file.write_at(&blocks(1, 2), 0).unwrap();
        file.truncate(5000).unwrap();
        assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 5000);
        assert_eq!(buffer[..5000], [1; 5000]);
        assert_eq!(file.read_at(&mut buffer, BLOCK).unwrap(), 5000 - BLOCK_BYTES);
        assert_eq!(file.read_at(&mut buffer, 2 * BLOCK).unwrap(), 0);
        assert_eq!(file.read_at(&mut buffer, 1 << 40).unwrap(), 0);
    });
}

#[test]
fn unaligned_addresses_lengths_and_offsets_are_refused() {
    on_each_device(|device| {
        let file = device.open("a", OpenMode::Create).unwrap();
        let mut buffer = blocks(1, 3);
        let refused = |buffer: &mut [u8], offset: u64| {
            assert_eq!(file.write_at(buffer, offset).unwrap_err().kind(), ErrorKind::InvalidInput);
            assert_eq!(file.read_at(buffer, offset).unwrap_err().kind(), ErrorKind::InvalidInput);
        };
        refused(&mut buffer, 512);
        refused(&mut buffer, u64::MAX - 4095);
        refused(&mut buffer[..4095], 0);
        refused(&mut buffer[..512], 0);
        refused(&mut buffer[512..4608], 0);
        refused(&mut buffer[1..4097], 0);
        assert_eq!(file.size().unwrap(), 0);
        assert_eq!(file.allocate(u64::MAX).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(file.truncate(u64::MAX).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn nothing_is_read_or_written_by_an_empty_buffer() {
    on_each_device(|device| {
        let file = device.open("a", OpenMode::Create).unwrap();
        file.write_at(&AlignedBuffer::new(0), BLOCK).unwrap();
        assert_eq!(file.size().unwrap(), 0);
        assert_eq!(file.read_at(&mut AlignedBuffer::new(0), 0).unwrap(), 0);
    });
}

#[test]
fn allocating_lengthens_with_zeros_and_never_shortens() {
    on_each_device(|device| {
        let file = device.open("a", OpenMode::Create).unwrap();
        file.write_at(&blocks(1, 1), 0).unwrap();
        file.allocate(10_000).unwrap();
        assert_eq!(contents(&*file), [vec![1; 4096], vec![0; 10_000 - 4096]].concat());
        file.allocate(0).unwrap();
        file.allocate(50).unwrap();
        assert_eq!(file.size().unwrap(), 10_000);
    });
}

#[test]
fn clearing_leaves_zeros_and_never_shortens() {
    on_each_device(|device| {
        let file = device.open("a", OpenMode::Create).unwrap();
        file.write_at(&blocks(1, 3), 0).unwrap();
        file.clear(2 * BLOCK).unwrap();
        assert_eq!(contents(&*file), [vec![0; 2 * 4096], vec![1; 4096]].concat());
        file.clear(0).unwrap();
        file.clear(4 * BLOCK).unwrap();
        assert_eq!(contents(&*file), vec![0; 4 * 4096]);
        assert_eq!(file.clear(100).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(file.clear(u64::MAX - 4095).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn truncating_cuts_off_and_what_is_appended_again_is_zeros() {
    on_each_device(|device| {
        let file = device.open("a", OpenMode::Create).unwrap();
        file.write_at(&blocks(1, 3), 0).unwrap();
        file.truncate(4100).unwrap();
        file.truncate(3 * BLOCK).unwrap();
        assert_eq!(contents(&*file), [vec![1; 4100], vec![0; 3 * 4096 - 4100]].concat());
        file.truncate(0).unwrap();
        assert_eq!(file.size().unwrap(), 0);
    });
}

#[test]
fn creating_needs_a_new_name_and_opening_an_existing_one() {
    on_each_device(|device| {
        for mode in [OpenMode::Read, OpenMode::ReadWrite] {
            assert_eq!(device.open("a", mode).unwrap_err().kind(), ErrorKind::NotFound);
        }
        device.open("a", OpenMode::Create).unwrap();
        let error = device.open("a", OpenMode::Create).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(error.to_string().contains(&device.describe("a")), "{error}");
        assert_eq!(device.remove("b").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(device.rename("b", "a").unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_file_opened_for_reading_cannot_be_changed() {
    on_each_device(|device| {
        device.open("a", OpenMode::Create).unwrap().write_at(&blocks(1, 1), 0).unwrap();
        let reader = device.open("a", OpenMode::Read).unwrap();
        assert!(reader.write_at(&blocks(2, 1), 0).is_err());
        assert!(reader.allocate(BLOCK).is_err());
        assert!(reader.clear(BLOCK).is_err());
        assert!(reader.truncate(0).is_err());
        assert_eq!(contents(&*reader), [1; 4096]);
        let writer = device.open("a", OpenMode::ReadWrite).unwrap();
        writer.write_at(&blocks(2, 1), 0).unwrap();
        assert_eq!(contents(&*reader), [2; 4096]);
    });
}

#[test]
fn names_that_are_not_plain_are_refused() {
    on_each_device(|device| {
        device.open("a", OpenMode::Create).unwrap();
        for name in ["", ".", "..", "a/b", "/a", "../a", "a\0b", LOCK_NAME] {
            let refused = |outcome: io::Result<()>| {
                assert_eq!(outcome.unwrap_err().kind(), ErrorKind::InvalidInput, "{name:?}");
            };
            refused(device.open(name, OpenMode::Create).map(drop));
            refused(device.open(name, OpenMode::Read).map(drop));
            refused(device.remove(name));
            refused(device.rename(name, "a"));
            refused(device.rename("a", name));
        }
        assert_eq!(device.list().unwrap(), ["a"]);
    });
}

#[test]
fn the_list_is_sorted_and_follows_every_change_at_once() {
    on_each_device(|device| {
        for name in ["c", "a", "b"] {
            device.open(name, OpenMode::Create).unwrap();
        }
        assert_eq!(device.list().unwrap(), ["a", "b", "c"]);
        device.remove("b").unwrap();
        device.rename("a", "d").unwrap();
        assert_eq!(device.list().unwrap(), ["c", "d"]);
        device.sync_directory().unwrap();
        assert_eq!(device.list().unwrap(), ["c", "d"]);
    });
}

#[test]
fn renaming_replaces_and_keeps_the_contents() {
    on_each_device(|device| {
        device.open("a", OpenMode::Create).unwrap().write_at(&blocks(1, 1), 0).unwrap();
        device.open("b", OpenMode::Create).unwrap().write_at(&blocks(2, 2), 0).unwrap();
        device.rename("a", "b").unwrap();
        device.rename("b", "b").unwrap();
        assert_eq!(device.list().unwrap(), ["b"]);
        assert_eq!(contents(&*device.open("b", OpenMode::Read).unwrap()), [1; 4096]);
    });
}

#[test]
fn an_open_file_outlives_its_name() {
    on_each_device(|device| {
        let removed = device.open("a", OpenMode::Create).unwrap();
        removed.write_at(&blocks(1, 1), 0).unwrap();
        device.remove("a").unwrap();
        let new = device.open("a", OpenMode::Create).unwrap();
        new.write_at(&blocks(2, 1), 0).unwrap();
        removed.write_at(&blocks(3, 1), BLOCK).unwrap();
        device.sync_directory().unwrap();
        removed.sync().unwrap();
        assert_eq!(contents(&*removed), [[1; 4096], [3; 4096]].concat());
        assert_eq!(contents(&*new), [2; 4096]);
    });
}

#[test]
fn a_device_is_locked_once_until_the_guard_is_dropped() {
    on_each_device(|device| {
        let guard = device.lock().unwrap();
        let error = device.lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let process = format!("is already open by process {}", std::process::id());
        assert!(error.to_string().ends_with(&process), "{error}");
        drop(guard);
        let _guard = device.lock().unwrap();
        assert!(device.lock().is_err());
        assert!(device.list().unwrap().is_empty());
    });
}

#[test]
fn threads_may_share_a_file() {
    on_each_device(|device| {
        let file = device.open("a", OpenMode::Create).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let file = &file;
                scope.spawn(move || {
                    for round in 0..8 {
                        let offset = (round * 4 + u64::from(thread)) * BLOCK;
                        file.write_at(&blocks(thread + 1, 1), offset).unwrap();
                        file.sync().unwrap();
                    }
                });
            }
        });
        let expected: Vec<u8> = (0..32).flat_map(|block| [block % 4 + 1; 4096]).collect();
        assert_eq!(contents(&*file), expected);
    });
}

#[test]
fn reads_in_flight_come_back_each_with_its_own_bytes() {
    on_each_device(check_reads_in_flight);
}

pub(super) fn check_reads_in_flight(device: &dyn Device) {
    const READS: u64 = 3 * READS_IN_FLIGHT_MAX as u64;
    let file = device.open("a", OpenMode::Create).unwrap();
    (0..READS).for_each(|number| file.write_at(&blocks(number as u8, 1), number * BLOCK).unwrap());
    let mut queue = device.read_queue();
    let submit = |queue: &mut dyn ReadQueue, number: u64, bytes: usize| {
        let (file, buffer) = (Arc::clone(&file), AlignedBuffer::new(bytes));
        queue.submit(QueuedRead { file, offset: number * BLOCK, buffer, token: number });
    };
    for round in 0..3 {
        (0..READS).for_each(|number| submit(&mut *queue, number, 4096));
        let mut tokens = Vec::new();
        // Taken when they are done, or waited for.
        while let Some(FinishedRead { token, buffer, outcome }) = queue.take_done().or_else(|| queue.wait()) {
            assert_eq!(outcome.unwrap(), 4096);
            assert!(buffer.iter().all(|&byte| byte == token as u8), "round {round}: read {token}");
            tokens.push(token);
        }
        tokens.sort_unstable();
        assert_eq!(tokens, (0..READS).collect::<Vec<_>>());
    }
    // Over the end of the file, and behind it.
    for (number, expected) in [(READS - 1, 4096), (READS, 0)] {
        submit(&mut *queue, number, 8192);
        assert_eq!(queue.wait().unwrap().outcome.unwrap(), expected);
    }
    let odd = QueuedRead { file: file.clone(), offset: 7, buffer: AlignedBuffer::new(4096), token: 0 };
    queue.submit(odd);
    assert_eq!(queue.wait().unwrap().outcome.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(queue.wait().is_none());
    // A queue may be dropped, and the file's name be gone, with reads in flight.
    (0..READS).for_each(|number| submit(&mut *queue, number, 4096));
    device.remove("a").unwrap();
    assert!(queue.wait().unwrap().outcome.is_ok());
    drop(queue);
}
