//! `scripts/bench` with a stub in the place of the program: which options reach it, and what it publishes where.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A program cannot be started while it is open for writing, be it in a process that another test has just begun to start.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A repository with the script, and nothing else that is real.
struct Repository {
    directory: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Repository {
    fn new() -> Repository {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let repository = Repository { directory: tempfile::tempdir().unwrap(), _alone: alone };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/bench");
        repository.program("scripts/bench", &std::fs::read_to_string(script).unwrap());
        repository.program("scripts/peers", "#!/bin/sh\n");
        repository.program("scripts/faster", "#!/bin/sh\nexit 1\n");
        let target = repository.path("a target");
        let cargo = format!(
            "#!/bin/sh\nif [ \"$1\" = metadata ]; then echo '{{\"target_directory\":\"{}\",\"version\":1}}'; fi\n",
            target.display()
        );
        repository.program("path/cargo", &cargo);
        // It notes where it was called, with what, and makes the result file; and says what it is to say.
        let log = repository.path("log");
        let program = format!(
            "#!/bin/bash\necho \"$PWD: $*\" >>'{}'\nif [ \"$1\" = run ]; then echo '{{}}' >\"${{@: -1}}\"; cat '{}'; fi\n",
            log.display(),
            repository.path("told").display()
        );
        repository.program("a target/release/kiln-bench", &program);
        std::fs::write(repository.path("told"), "Tables\n").unwrap();
        std::fs::create_dir(repository.path("elsewhere")).unwrap();
        repository
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join(name)
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs the script from somewhere else.
    fn bench(&self, arguments: &str) -> Output {
        let path = std::env::join_paths(
            [self.path("path")].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
        );
        Command::new(self.path("scripts/bench"))
            .args(arguments.split_whitespace())
            .current_dir(self.path("elsewhere"))
            .env("PATH", path.unwrap())
            .output()
            .unwrap()
    }

    /// What the program was called with since the last time.
    fn calls(&self) -> String {
        let log = self.path("log");
        let calls = std::fs::read_to_string(&log).unwrap_or_default();
        let _ = std::fs::remove_file(&log);
        calls
    }
}

#[test]
fn only_a_whole_profile_is_published_and_only_where_its_tables_are() {
    let repository = Repository::new();
    // What was measured with other options may be in it, too.
    std::fs::write(repository.path("elsewhere/mine.json"), "").unwrap();
    for arguments in [
        "--publish --profile full",
        "--profile=small-cache --publish",
        "--publish --engines kiln,lmdb",
        "--publish --profile papers --workloads update",
        "--publish --resume mine.json",
    ] {
        let output = repository.bench(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert_eq!(repository.calls(), "", "{arguments}");
    }
    for (arguments, document) in [
        ("--publish", "docs/benchmarks.md"),
        ("--publish --profile quick", "docs/benchmarks.md"),
        ("--profile=papers --publish", "docs/papers.md"),
    ] {
        assert!(repository.bench(arguments).status.success());
        let calls = repository.calls();
        let into = format!(".json --into {}\n", repository.path(document).display());
        assert!(calls.contains(&into), "{arguments}: {calls}");
    }
    assert!(repository.bench("--profile full --engines kiln").status.success());
    assert!(!repository.calls().contains("--into"));
    std::fs::write(repository.path("told"), "Tables\nThere was no time for these, give\n  update\n").unwrap();
    let output = repository.bench("--publish");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("building ...\nTables\n"), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("not published"), "{output:?}");
    assert!(!repository.calls().contains("--into"));
}

#[test]
fn files_are_looked_for_where_the_user_is_and_what_is_not_named_is_in_the_repository() {
    let repository = Repository::new();
    let here = |path: &Path| format!("{}: run ", path.display());
    std::fs::write(repository.path("elsewhere/mine.json"), "").unwrap();
    assert!(repository.bench("--resume mine.json --dir data").status.success());
    let expected = here(&repository.path("elsewhere")) + "--resume --dir data --json mine.json\n";
    let calls = repository.calls();
    assert!(calls.starts_with(&expected), "{calls}");
    assert!(repository.bench("").status.success());
    let data = format!("--dir {} --json ", repository.path("kiln-bench-data").display());
    let calls = repository.calls();
    assert!(calls.contains(&data), "{calls}");
    assert!(calls.contains(&repository.path("bench-results").display().to_string()), "{calls}");
    let output = repository.bench("--resume missing.json");
    assert_eq!(output.status.code(), Some(2));
}
