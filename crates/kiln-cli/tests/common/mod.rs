//! The command line in a directory of its own.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use tempfile::TempDir;

/// A directory for one test, and the program run in it.
pub(crate) struct Sandbox {
    directory: TempDir,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("kiln"));
        command.args(arguments).current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }

    /// The same under a limit of the shell's, such as `-n 200`.
    pub(crate) fn limited(&self, limit: &str, arguments: &[&str]) -> Command {
        self.through(&format!("ulimit {limit}; exec \"$@\""), arguments)
    }

    /// The same by a line of the shell's, for which the command is `"$@"`.
    pub(crate) fn through(&self, line: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line, "sh"]);
        command.arg(assert_cmd::cargo::cargo_bin!("kiln")).args(arguments);
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }

    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that must succeed and returns what it wrote.
    #[track_caller]
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a command that must fail with this code and returns what it said.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stderr)
    }

    /// Runs a command that must succeed with `input` on its standard input and returns what it wrote.
    #[track_caller]
    pub(crate) fn ok_with_input(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        output
    }
}

/// A server process, and what it has said so far.
pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) output: BufReader<ChildStdout>,
    pub(crate) port: u16,
}

impl Served {
    pub(crate) fn start(sandbox: &Sandbox, options: &[&str]) -> Self {
        Self::start_on(sandbox, "127.0.0.1:0", options)
    }

    pub(crate) fn start_on(sandbox: &Sandbox, listen: &str, options: &[&str]) -> Self {
        let mut arguments = vec!["serve", "--listen", listen, "--memory", "64MiB"];
        arguments.extend(options);
        Self::of(sandbox.command(&arguments))
    }

    pub(crate) fn of(mut serve: Command) -> Self {
        let mut child = serve.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut port = 0;
        let mut line = String::new();
        while !line.starts_with("Ctrl-C") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "the server ended");
            if let Some((_, rest)) = line.split_once(" -p ") {
                port = rest.split_whitespace().next().unwrap().parse().unwrap();
            }
        }
        Self { child, output, port }
    }

    pub(crate) fn connect(&self) -> redis::Connection {
        redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap().get_connection().unwrap()
    }

    pub(crate) fn send(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Sends a signal and returns the exit code and the last line.
    pub(crate) fn end(mut self, signal: rustix::process::Signal) -> (Option<i32>, String) {
        self.send(signal);
        let last = self.output.by_ref().lines().map_while(Result::ok).last().unwrap_or_default();
        (self.child.wait().unwrap().code(), last)
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
