//! The `kiln` program.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The program's path. It is built at the first call, so that it is never an old one.
///
/// # Panics
/// If it cannot be built.
pub fn path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| std::env::var_os("KILN_BIN").map_or_else(build, PathBuf::from))
}

/// Builds the program beside the running test, with the test's own profile, so that what `cargo test` has compiled is used
/// again. (Cargo names a test's programs only to tests of the same package.)
fn build() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    // TARGET/PROFILE/deps/TEST
    let profile_dir = test.ancestors().nth(2).expect("a test lies in the target directory");
    let target_dir = profile_dir.parent().expect("a test lies in the target directory");
    let profile = match profile_dir.file_name().and_then(OsStr::to_str) {
        Some("debug") | None => "test",
        Some(profile) => profile,
    };
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "kiln-cli", "--bin", "kiln", "--profile", profile])
        .arg("--target-dir")
        .arg(target_dir)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "the kiln program cannot be built");
    profile_dir.join("kiln")
}

/// Runs the program to its end.
///
/// # Panics
/// If it cannot be started, or if it panicked.
pub fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    let output =
        Command::new(path()).args(arguments).stdin(Stdio::null()).output().expect("kiln can be started");
    let text = errors(&output);
    assert!(!text.contains("panicked"), "kiln panicked:\n{text}");
    output
}

/// What the program wrote to standard error.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs `kiln check`, which must find nothing wrong.
///
/// # Panics
/// If it finds something.
pub fn check(directory: &Path) {
    let output = run([OsStr::new("check"), directory.as_os_str()]);
    assert!(
        output.status.success(),
        "kiln check found problems ({}):\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        errors(&output)
    );
}
