//! Wrong directories, a second opener and damaged files: a clear error, an exit code that is not 0, no panic, and never a wrong
//! answer.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use redis::cmd;

use super::binary::{self, errors, run};
use super::server::Server;
use crate::support::Random;
use crate::testing::seed;

const KEY_COUNT: u32 = 300;

fn kiln(arguments: &[&str], directory: &Path) -> Output {
    run(arguments.iter().map(OsStr::new).chain([directory.as_os_str()]))
}

/// Fails, with one clear message.
fn assert_refused(output: &Output, hint: &str) {
    let text = errors(output);
    assert!(!output.status.success(), "this should have failed: {}", String::from_utf8_lossy(&output.stdout));
    assert!(text.starts_with("kiln: ") && text.trim().lines().count() <= 3, "not one clear message:\n{text}");
    assert!(text.to_lowercase().contains(hint), "the message does not say {hint:?}:\n{text}");
}

/// A database that was closed in peace, and its content as `kiln export` prints it.
fn database(directory: &Path) -> (PathBuf, Vec<u8>) {
    let database = directory.join("database");
    let mut server = Server::start(&database, &["--memory", "64MiB"]);
    let mut connection = server.connect();
    for number in 0..KEY_COUNT {
        let value = vec![b'a' + (number % 26) as u8; 50 + 10 * number as usize];
        cmd("SET").arg(format!("key:{number:04}")).arg(value).exec(&mut connection).unwrap();
    }
    drop(connection);
    server.terminate();
    binary::check(&database);
    let content = export(&database);
    assert!(content.status.success(), "{}", errors(&content));
    assert_eq!(sorted_lines(&content.stdout).len(), KEY_COUNT as usize);
    (database, content.stdout)
}

fn export(database: &Path) -> Output {
    kiln(&["export", "--object", "strings", "--dir"], database)
}

/// The order of a map's keys means nothing.
fn sorted_lines(text: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    lines
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_directory_without_a_database_is_said_to_be_none() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "text").unwrap();
    for path in [&missing, &empty, &file] {
        let name = path.file_name().and_then(OsStr::to_str).unwrap();
        for command in ["check", "stat", "dump-log"] {
            assert_refused(&kiln(&[command], path), name);
        }
        assert_refused(&export(path), name);
    }
    assert!(!missing.exists(), "a command that only looks has made a directory");
    assert!(file_names(&empty).is_empty(), "a command that only looks has left files");
    assert!(Server::try_start(&file, &[]).is_err());
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
}

#[test]
fn somebody_elses_directory_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("letter.txt"), "dear").unwrap();
    assert_refused(&kiln(&["check"], &home), "home");
    if let Ok(server) = Server::try_start(&home, &[]) {
        // A database beside other files is allowed, as long as they stay as they are.
        server.terminate();
    }
    assert_eq!(fs::read_to_string(home.join("letter.txt")).unwrap(), "dear");
}

#[test]
fn a_second_opener_is_told_the_pid_of_the_first() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("database");
    let mut server = Server::start(&database, &["--memory", "64MiB"]);
    let pid = server.pid().to_string();
    let refused = Server::try_start(&database, &[]).expect_err("two servers have opened one database");
    assert!(refused.contains(&pid), "the message does not name the process {pid}:\n{refused}");
    assert_refused(&export(&database), &pid);
    cmd("SET").arg("still").arg("here").exec(&mut server.connect()).unwrap();
    server.terminate();
}

#[test]
fn flipped_bits_never_give_a_wrong_answer() {
    let directory = tempfile::tempdir().unwrap();
    let (database, content) = database(directory.path());
    let mut random = Random::new(seed());
    let (mut found, mut harmless) = (0, 0);
    for name in files_with_data(&database) {
        for _ in 0..12 {
            let damaged = directory.path().join("damaged");
            copy(&database, &damaged);
            let at = flip_bit(&damaged.join(&name), &mut random);
            match assert_right_or_refused(&damaged, &content, &format!("a bit flipped in {name} at {at}")) {
                true => harmless += 1,
                false => found += 1,
            }
            fs::remove_dir_all(&damaged).unwrap();
        }
    }
    println!("{found} flips were found, {harmless} were in bytes without meaning");
    assert!(found > 0, "no flipped bit was ever found");
}

#[test]
fn truncated_files_never_give_a_wrong_answer() {
    let directory = tempfile::tempdir().unwrap();
    let (database, content) = database(directory.path());
    for name in files_with_data(&database) {
        let size = fs::metadata(database.join(&name)).unwrap().len();
        for left in [0, 1, 100, 4096, 65_536, size / 2, size.saturating_sub(4096), size.saturating_sub(1)] {
            if left >= size {
                continue;
            }
            let damaged = directory.path().join("damaged");
            copy(&database, &damaged);
            OpenOptions::new().write(true).open(damaged.join(&name)).unwrap().set_len(left).unwrap();
            assert_right_or_refused(&damaged, &content, &format!("{name} cut from {size} to {left} bytes"));
            fs::remove_dir_all(&damaged).unwrap();
        }
        let damaged = directory.path().join("damaged");
        copy(&database, &damaged);
        fs::remove_file(damaged.join(&name)).unwrap();
        assert_right_or_refused(&damaged, &content, &format!("{name} removed"));
        fs::remove_dir_all(&damaged).unwrap();
    }
}

fn file_names(database: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(database)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

fn files_with_data(database: &Path) -> Vec<String> {
    let mut names = file_names(database);
    names.retain(|name| fs::metadata(database.join(name)).unwrap().len() > 0);
    names
}

/// Flips a bit, more often than not where data is, which is near the beginning.
fn flip_bit(path: &Path, random: &mut Random) -> u64 {
    let size = fs::metadata(path).unwrap().len();
    let reach = if random.one_in(5) { size } else { size.min(700_000) };
    let at = random.below(reach as usize) as u64;
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    byte[0] ^= 1 << random.below(8);
    file.write_all_at(&byte, at).unwrap();
    at
}

/// Reads the whole database. Returns whether it was all there; otherwise it must have been refused, clearly, by every command.
fn assert_right_or_refused(database: &Path, content: &[u8], what: &str) -> bool {
    let checked = kiln(&["check"], database);
    let exported = export(database);
    if exported.status.success() {
        assert!(
            sorted_lines(&exported.stdout) == sorted_lines(content),
            "{what}: a wrong answer, {} lines instead of {KEY_COUNT}; kiln check ended with {} and said:\n{}{}",
            sorted_lines(&exported.stdout).len(),
            checked.status,
            String::from_utf8_lossy(&checked.stdout),
            errors(&checked)
        );
        return true;
    }
    let text = errors(&exported);
    assert!(text.starts_with("kiln: "), "{what}: not a clear message:\n{text}");
    assert!(!checked.status.success(), "{what}: kiln check finds nothing, and reading fails:\n{text}");
    false
}
