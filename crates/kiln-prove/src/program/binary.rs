//! The `kiln` program.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

static PATH: OnceLock<PathBuf> = OnceLock::new();

/// From here on, this is the program.
pub(super) fn choose(path: PathBuf) {
    PATH.set(path).expect("the program is chosen once, before it is used");
}

/// The program's path: the one chosen, that of `KILN_PROGRAM`, or the one beside this program. Where there is none, as in
/// tests, it is built at the first call, so that it is never an old one.
pub(super) fn path() -> &'static Path {
    PATH.get_or_init(|| {
        if let Some(named) = std::env::var_os("KILN_PROGRAM") {
            return named.into();
        }
        let own = std::env::current_exe().expect("a program knows its own path");
        let beside = own.with_file_name("kiln");
        if beside.exists() { beside } else { build(&own) }
    })
}

/// Builds the program with the profile of this one, so that what cargo has compiled for it is used again. (Cargo names a
/// test's programs only to tests of the same package.)
fn build(own: &Path) -> PathBuf {
    // TARGET/PROFILE/kiln-prove, or TARGET/PROFILE/deps/TEST
    let in_profile = own.parent().filter(|parent| parent.ends_with("deps")).unwrap_or(own);
    let profile_dir = in_profile.parent().expect("a program lies in a directory");
    let target_dir = profile_dir.parent().expect("a program that cargo built lies in the target directory");
    let profile = match profile_dir.file_name().and_then(OsStr::to_str) {
        Some("debug") | None => "test",
        Some(profile) => profile,
    };
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args([
        "build",
        "--locked",
        "--quiet",
        "--package",
        "kiln-cli",
        "--bin",
        "kiln",
        "--profile",
        profile,
    ]);
    if cfg!(feature = "plant") {
        command.args(["--features", "planted-bugs"]);
    }
    let status = command
        .arg("--target-dir")
        .arg(target_dir)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .status()
        .expect("cargo can be started; --kiln names a program that is there already");
    assert!(status.success(), "the kiln program cannot be built");
    profile_dir.join("kiln")
}

/// Whether a server takes these options.
pub(super) fn knows(arguments: &[&str]) -> bool {
    let tried = Command::new(path()).arg("serve").args(arguments).arg("--help").output();
    tried.is_ok_and(|tried| tried.status.success())
}

/// Runs the program to its end. It must not panic.
pub(super) fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    let output =
        Command::new(path()).args(arguments).stdin(Stdio::null()).output().expect("kiln can be started");
    let text = errors(&output);
    assert!(!text.contains("panicked"), "kiln panicked:\n{text}");
    output
}

/// What the program wrote to standard error.
pub(super) fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs `kiln check`, which must find nothing wrong.
pub(super) fn check(directory: &Path) {
    let output = run([OsStr::new("check"), directory.as_os_str()]);
    assert!(
        output.status.success(),
        "kiln check found problems ({}):\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        errors(&output)
    );
}
