//! Memory that runs out in the middle of a commit.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kiln::Options;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::testing::PATIENCE;

/// Where this program, started anew, writes with little memory.
const DIRECTORY: &str = "KILN_PROVE_LITTLE_MEMORY";
const ROWS: u32 = 100_000;

/// Writes rows until there is no memory for the index any more. What is small is there already, from what the allocator has.
fn write_with_little_memory(directory: &Path) {
    let options = Options::new().memory(32 << 20).settle_log_bytes(0);
    let db = options.open(directory).unwrap();
    let table = db.table("rows").unwrap();
    let put = |number: u32| db.put(&table, number.to_be_bytes(), [0; 8]).unwrap();
    (0..ROWS).for_each(|number| put(number).forget());
    db.persist().unwrap();
    drop(std::hint::black_box(vec![vec![0_u8; 60_000]; 200]));
    let pages: u64 =
        std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
    let limit = Some(pages * 4096);
    setrlimit(Resource::As, Rlimit { current: limit, maximum: limit }).unwrap();
    (ROWS..100 * ROWS).for_each(|number| put(number).forget());
}

/// It panicked with a bucket locked; whoever came to that bucket next, closing the database, turned round for ever.
#[test]
fn c8_a_program_that_runs_out_of_memory_ends_and_what_was_durable_is_there() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return write_with_little_memory(Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    let errors = tempfile::NamedTempFile::new().unwrap();
    let mut program = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "program::little_memory::c8_a_program_that_runs_out_of_memory_ends_and_what_was_durable_is_there",
        ])
        .env(DIRECTORY, directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors.reopen().unwrap())
        .spawn()
        .unwrap();
    let end = Instant::now() + PATIENCE;
    let status = loop {
        match program.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > end => {
                program.kill().unwrap();
                panic!("it goes on without memory");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let said = std::fs::read_to_string(&errors).unwrap();
    assert!(
        !status.success() && said.contains("memory allocation of") && !said.contains("panicked"),
        "{said}"
    );
    let db = Options::new().open(directory.path()).unwrap();
    let table = db.table("rows").unwrap();
    assert!(db.get(&table, (ROWS - 1).to_be_bytes()).unwrap().is_some());
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report}");
}
