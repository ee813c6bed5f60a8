//! What is particular to the device on files; what both devices share is in `conformance`.

use std::fs;
use std::io::ErrorKind;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::*;
use crate::device::ZEROS_BYTES;
#[cfg(not(miri))]
use crate::device::forked::{in_fork, is_alone};
use crate::device::somebody::as_somebody;
use crate::sync::atomic::AtomicU64;

/// Tells the child process of a test which directory to lock.
const LOCK_DIRECTORY: &str = "KILN_TEST_LOCK_DIRECTORY";

fn temporary() -> (tempfile::TempDir, FileDevice) {
    let directory = tempfile::tempdir().unwrap();
    let device = FileDevice::open(directory.path(), false).unwrap();
    (directory, device)
}

#[test]
fn where_io_uring_is_refused_threads_read_and_it_is_not_asked_again() {
    let (_directory, device) = temporary();
    device.uring_refused.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        crate::device::conformance::check_reads_in_flight(&device);
        assert!(format!("{:?}", device.read_queue()).starts_with("ThreadedReads"));
    }
}

/// A process that had no descriptor left for a moment read with threads until it opened the database anew.
#[test]
fn where_an_io_uring_cannot_be_made_just_now_it_is_asked_again() {
    let (_directory, device) = temporary();
    let queue_after = |errno: Errno| format!("{:?}", device.read_queue_by(|_| Err(errno.into())));
    for passing in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN] {
        assert!(queue_after(passing).starts_with("ThreadedReads"));
        assert!(!device.uring_refused.load(Ordering::Relaxed), "{passing}");
    }
    for lasting in [Errno::NOSYS, Errno::PERM, Errno::ACCESS] {
        device.uring_refused.store(false, Ordering::Relaxed);
        assert!(queue_after(lasting).starts_with("ThreadedReads"));
        assert!(device.uring_refused.load(Ordering::Relaxed), "{lasting}");
    }
}

/// Who keeps queues for the next reader would give it one whose memory is not there, or whose threads are not.
#[test]
#[cfg(not(miri))]
fn a_process_that_was_forked_knows_its_parents_queues_from_its_own() {
    if !is_alone() {
        return;
    }
    for is_refused in [false, true] {
        let (_directory, device) = temporary();
        device.uring_refused.store(is_refused, Ordering::Relaxed);
        let queue = device.read_queue();
        assert!(queue.is_here());
        let queue = Mutex::new(queue);
        in_fork(move || {
            assert!(!queue.lock().is_here());
            assert!(device.read_queue().is_here());
            crate::device::conformance::check_reads_in_flight(&device);
        });
    }
}

#[test]
fn opening_creates_the_directory_only_on_request() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("database");
    let error = FileDevice::open(&path, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    FileDevice::open(&path, true).unwrap();
    FileDevice::open(&path, true).unwrap();
    FileDevice::open(&path, false).unwrap();
    let error = FileDevice::open(&path.join("a/b"), true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn a_path_that_is_a_file_is_refused_by_name() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("file");
    fs::write(&path, "text").unwrap();
    for create in [false, true] {
        let error = FileDevice::open(&path, create).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotADirectory);
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn a_directory_that_may_not_be_written_can_be_read_and_locked_if_it_has_a_lock() {
    use std::os::unix::fs::PermissionsExt;
    let (directory, device) = temporary();
    let allow = |mode| fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
    allow(0o555);
    as_somebody(|| {
        assert!(device.list().unwrap().is_empty());
        assert_eq!(device.lock().err().unwrap().kind(), ErrorKind::PermissionDenied);
        let error = device.open("new", OpenMode::Create).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains(directory.path().to_str().unwrap()), "{error}");
    });
    allow(0o755);
    drop(device.lock().unwrap());
    let lock = directory.path().join("LOCK");
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o444)).unwrap();
    allow(0o555);
    as_somebody(|| {
        let held = device.lock().unwrap();
        let error = FileDevice::open(directory.path(), false).unwrap().lock().err().unwrap();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
        drop(held);
    });
    allow(0o755);
    drop(device.lock().unwrap());
}

#[test]
fn errors_name_operation_and_path_and_keep_the_number() {
    let (directory, device) = temporary();
    let error = device.open("absent", OpenMode::Read).unwrap_err();
    let path = directory.path().join("absent");
    assert!(error.to_string().starts_with(&format!("cannot open {}: ", path.display())), "{error}");
    let inner = DeviceError::of(&error).unwrap();
    assert_eq!(inner.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
    assert_eq!(inner.file(), path.to_str().unwrap());
    assert_eq!(inner.operation(), "open");
}

#[test]
fn asking_for_more_space_than_any_disk_has_is_an_error_at_once() {
    let (_directory, device) = temporary();
    let file = device.open("huge", OpenMode::Create).unwrap();
    let kind = file.allocate(1 << 60).unwrap_err().kind();
    assert!(matches!(kind, ErrorKind::StorageFull | ErrorKind::FileTooLarge), "{kind:?}");
}

#[test]
fn a_full_disk_keeps_its_kind() {
    let error = DeviceError::wrap("write", "file", Errno::NOSPC);
    assert_eq!(error.kind(), ErrorKind::StorageFull);
}

#[test]
fn zeros_stand_in_for_reserved_space() {
    let (_directory, device) = temporary();
    let file = device.open_plain("zeros", OpenMode::Create).unwrap();
    file.write_at(&AlignedBuffer::from(&[5; 8192][..]), 0).unwrap();
    file.truncate(5000).unwrap();
    let bytes = 2 * ZEROS_BYTES as u64 + 6000;
    file.lengthen(bytes).unwrap();
    assert_eq!(file.size().unwrap(), bytes);
    file.lengthen(10).unwrap();
    assert_eq!(file.size().unwrap(), bytes);
    let mut buffer = AlignedBuffer::new(bytes as usize);
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), bytes as usize);
    assert!(buffer[..5000].iter().all(|byte| *byte == 5));
    assert!(buffer[5000..].iter().all(|byte| *byte == 0));
}

#[test]
fn what_is_named_goes_through_the_page_cache_and_nothing_else() {
    let (_directory, device) = temporary();
    let device = device.through_page_cache(|name| name == "named");
    let bytes = vec![7; 8192];
    for name in ["named", "other"] {
        let file = device.open_plain(name, OpenMode::Create).unwrap();
        let is_direct = rustix::fs::fcntl_getfl(&file.descriptor).unwrap().contains(OFlags::DIRECT);
        assert_eq!(file.direct.load(Ordering::Relaxed), is_direct);
        assert!(name == "other" || !is_direct);
    }
    let file = device.open("named", OpenMode::ReadWrite).unwrap();
    file.write_at(&AlignedBuffer::from(&bytes[..]), 0).unwrap();
    file.sync().unwrap();
    let mut read = AlignedBuffer::new(bytes.len());
    assert_eq!(file.read_at(&mut read, 0).unwrap(), bytes.len());
    assert_eq!(read[..], bytes[..]);
}

/// The second of two threads that are refused at the same time finds direct I/O turned off when it is.
#[test]
fn refusing_direct_io_late_falls_back_to_ordinary_io() {
    let (_directory, device) = temporary();
    let file = device.open_plain("late", OpenMode::Create).unwrap();
    for is_second in [false, true] {
        file.direct.store(true, Ordering::Relaxed);
        let mut attempts = 0;
        let outcome = file.transfer(|| {
            attempts += 1;
            if attempts > 1 {
                return Ok(4096);
            }
            file.direct.store(!is_second, Ordering::Relaxed);
            Err(Errno::INVAL)
        });
        assert_eq!((outcome, attempts), (Ok(4096), 2));
        assert!(!file.direct.load(Ordering::Relaxed));
        assert!(!rustix::fs::fcntl_getfl(&file.descriptor).unwrap().contains(OFlags::DIRECT));
    }
    assert_eq!(
        file.transfer(|| Err(Errno::INVAL)),
        Err(Errno::INVAL),
        "there is nothing left to fall back to"
    );
}

/// A database where a file system is mounted: that one's parent need not be one whose names can be synced, as those below `/sys` cannot.
#[test]
fn a_directory_that_is_there_opens_below_one_that_cannot_be_synced() {
    let parent = OwnedFd::from(fs::File::open("/sys").unwrap());
    let directory = Path::new("/sys/kernel");
    if rustix::fs::fsync(&parent) == Err(Errno::INVAL) && directory.is_dir() {
        drop(FileDevice::open(directory, true).unwrap());
    }
}

#[test]
fn an_interrupted_call_is_repeated() {
    let (_directory, device) = temporary();
    let file = device.open_plain("interrupted", OpenMode::Create).unwrap();
    let mut attempts = 0;
    let outcome = file.transfer(|| {
        attempts += 1;
        if attempts < 3 { Err(Errno::INTR) } else { Ok(1) }
    });
    assert_eq!(outcome, Ok(1));
}

#[test]
fn a_short_transfer_goes_on_at_a_whole_block_or_gives_up() {
    assert_eq!(next_start(0, 8192), Some(8192));
    assert_eq!(next_start(0, 5000), Some(4096));
    assert_eq!(next_start(4096, 5000), None);
    assert_eq!(next_start(4096, 4096), None);
}

#[test]
fn only_regular_files_are_listed() {
    let (directory, device) = temporary();
    fs::create_dir(directory.path().join("directory")).unwrap();
    std::os::unix::fs::symlink("elsewhere", directory.path().join("link")).unwrap();
    let _lock = device.lock().unwrap();
    device.open("file", OpenMode::Create).unwrap();
    assert_eq!(device.list().unwrap(), ["file"]);
}

#[test]
fn a_device_follows_its_directory_when_that_is_renamed() {
    let parent = tempfile::tempdir().unwrap();
    let device = FileDevice::open(&parent.path().join("old"), true).unwrap();
    fs::rename(parent.path().join("old"), parent.path().join("new")).unwrap();
    device.open("file", OpenMode::Create).unwrap();
    assert!(parent.path().join("new/file").exists());
}

/// Not a test of its own: the process that [`the_lock_ends_with_the_process_that_holds_it`] starts and kills.
#[test]
#[ignore = "runs only as the child process of another test"]
fn hold_the_lock_until_killed() {
    let Some(directory) = std::env::var_os(LOCK_DIRECTORY) else { return };
    let device = FileDevice::open(Path::new(&directory), false).unwrap();
    let _lock = device.lock().unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

fn start_holder(directory: &Path) -> Child {
    let module = module_path!().split_once("::").unwrap().1;
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", &format!("{module}::hold_the_lock_until_killed")])
        .env(LOCK_DIRECTORY, directory)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn the_lock_ends_with_the_process_that_holds_it() {
    let (directory, device) = temporary();
    let mut child = start_holder(directory.path());
    let process = format!("{}\n", child.id());
    let deadline = Instant::now() + Duration::from_secs(30);
    // Trying the lock instead would sometimes take it away from the child.
    while fs::read_to_string(directory.path().join(LOCK_NAME)).unwrap_or_default() != process {
        assert!(Instant::now() < deadline, "the child does not take the lock");
        std::thread::sleep(Duration::from_millis(1));
    }
    let error = device.lock().unwrap_err();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let expected =
        format!("database {} is already open by process {}", directory.path().display(), process.trim());
    assert_eq!(error.to_string(), expected);
    device.lock().unwrap();
}

/// Who opens the lock's file just before it is taken away locks what nobody else will find.
#[test]
fn a_lock_that_is_given_up_and_taken_again_is_held_by_one_at_a_time() {
    let (directory, _) = temporary();
    let (path, is_held, taken) = (directory.path(), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let device = FileDevice::open(path, false).unwrap();
                while taken.load(Ordering::SeqCst) < 4_000 {
                    let Ok(lock) = device.lock() else { continue };
                    assert!(!is_held.swap(true, Ordering::SeqCst), "two have the lock");
                    std::thread::yield_now();
                    is_held.store(false, Ordering::SeqCst);
                    taken.fetch_add(1, Ordering::SeqCst);
                    lock.give_up();
                }
            });
        }
    });
    assert_eq!(fs::read_dir(path).unwrap().count(), 0);
}
