//! Servers and the load generator of the RESP section, as child processes.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use redis::Connection;
use rustix::process::{Pid, Signal, kill_process};

use crate::interrupt;
use crate::usage::Usage;

/// How long a server may take to answer after its start, and to end after it was asked to.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server on a loopback port. Dropping it stops it.
pub(crate) struct Server {
    name: &'static str,
    child: Child,
    port: u16,
    log: PathBuf,
}

impl Server {
    /// Starts `kiln serve` on a new database in `directory`.
    pub(crate) fn kiln(
        program: &Path,
        directory: &Path,
        durability: &str,
        memory_bytes: u64,
    ) -> Result<Server> {
        let memory = format!("{}MiB", memory_bytes >> 20);
        Server::start("kiln", program, directory, |command, port| {
            command.arg("serve").arg("--dir").arg(directory.join("data"));
            command.args(["--listen", &format!("127.0.0.1:{port}"), "--durability", durability]);
            command.args(["--memory", &memory]);
        })
    }

    /// Starts a Redis server with an append-only file in `directory`. It never rewrites the file, which would only slow it down
    /// here.
    pub(crate) fn redis(program: &Path, directory: &Path, fsync: &str) -> Result<Server> {
        Server::start("redis", program, directory, |command, port| {
            command.args([
                "--bind",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--daemonize",
                "no",
                "--save",
                "",
            ]);
            command.args([
                "--appendonly",
                "yes",
                "--appendfsync",
                fsync,
                "--auto-aof-rewrite-percentage",
                "0",
            ]);
            command.arg("--dir").arg(directory);
        })
    }

    fn start(
        name: &'static str,
        program: &Path,
        directory: &Path,
        arrange: impl FnOnce(&mut Command, u16),
    ) -> Result<Server> {
        fs::create_dir_all(directory)?;
        let port = free_port()?;
        let log = directory.join("server.log");
        let output = File::create(&log)?;
        let mut command = Command::new(program);
        arrange(&mut command, port);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| {
            format!(
                "cannot start {} (for Redis: apt-get install redis-server redis-tools)",
                program.display()
            )
        })?;
        let mut server = Server { name, child, port, log };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            interrupt::check()?;
            if let Some(status) = self.child.try_wait()? {
                bail!("the {} server ended at once ({status}):\n{}", self.name, self.log_end());
            }
            if let Ok(mut connection) = self.connect()
                && redis::cmd("PING").query::<String>(&mut connection).is_ok_and(|reply| reply == "PONG")
            {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the {} server does not answer:\n{}", self.name, self.log_end());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log_end(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// The engine's name in results.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> Result<Connection> {
        let client = redis::Client::open(("127.0.0.1", self.port))?;
        Ok(client.get_connection_with_timeout(Duration::from_secs(5))?)
    }

    /// What the server has used so far.
    pub(crate) fn usage(&self) -> Usage {
        Usage::of(self.child.id())
    }

    /// Commands that the server has answered so far.
    pub(crate) fn commands_answered(&self) -> Result<u64> {
        let text: String = redis::cmd("INFO").arg("stats").query(&mut self.connect()?)?;
        text.lines()
            .find_map(|line| line.strip_prefix("total_commands_processed:"))
            .and_then(|number| number.trim().parse().ok())
            .with_context(|| format!("the {} server does not count its commands", self.name))
    }

    /// Asks the server to end, and waits for it.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.terminate();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                ensure!(
                    status.success(),
                    "the {} server ended with {status}:\n{}",
                    self.name,
                    self.log_end()
                );
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("the {} server does not end", self.name)
    }

    fn terminate(&self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It can only fail if the process is gone, which is what is wanted.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After `stop` the process is gone, and both do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0)).context("no free port")?.local_addr()?.port())
}

/// The `kiln` program to serve with: the one asked for; else, under cargo, one built now, so that it is never an old one; else
/// the one beside this program.
pub(crate) fn find_kiln(asked: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = asked {
        ensure!(path.is_file(), "there is no program {}", path.display());
        return Ok(path.to_owned());
    }
    let beside = std::env::current_exe()?.with_file_name("kiln");
    if let Some(cargo) = std::env::var_os("CARGO") {
        eprintln!("kiln-bench: building the kiln program");
        let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| ".".into());
        let mut build = build_kiln(&cargo, Path::new(&here), &beside, env!("KILN_BENCH_TARGET"));
        ensure!(build.status()?.success(), "the kiln program cannot be built");
    }
    ensure!(
        beside.is_file(),
        "there is no program {}; build it (cargo build --release -p kiln-cli) or name it with --kiln",
        beside.display()
    );
    Ok(beside)
}

/// What builds the `kiln` program at a place like `target/release/kiln`, with cargo, from a directory in the repository: not from where the user
/// is, which may be anywhere. The triple is that which this program was built for.
fn build_kiln(cargo: &OsStr, directory: &Path, program: &Path, triple: &str) -> Command {
    let mut build = Command::new(cargo);
    build.current_dir(directory).stdin(Stdio::null());
    build.args(["build", "--quiet", "--locked", "--package", "kiln-cli", "--bin", "kiln"]);
    if let Some(target) = program.parent().and_then(Path::parent) {
        // Where a target is named, be it in the environment or in cargo's configuration, its programs are in a directory of its own.
        match target.parent().filter(|_| target.ends_with(triple)) {
            Some(above) => build.arg("--target-dir").arg(above).args(["--target", triple]),
            None => build.arg("--target-dir").arg(target),
        };
    }
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    build
}

/// What `redis-benchmark` is asked to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// `set` or `get`.
    pub(crate) test: &'static str,
    /// Connections.
    pub(crate) connections: usize,
    /// Threads of the client.
    pub(crate) client_threads: usize,
    /// Requests in flight on each connection.
    pub(crate) pipeline: u32,
    /// Requests in all.
    pub(crate) requests: u64,
    /// Different keys.
    pub(crate) records: u64,
    /// Size of a value.
    pub(crate) value_bytes: usize,
}

/// What `redis-benchmark` saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) requests_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

/// Runs `redis-benchmark` against a server, and checks that the server answered every request.
pub(crate) fn redis_benchmark(program: &Path, server: &Server, load: Load) -> Result<Seen> {
    interrupt::check()?;
    let before = server.commands_answered()?;
    let output = Command::new(program)
        .args(["-h", "127.0.0.1", "-p", &server.port.to_string(), "--csv", "--precision", "3"])
        .args(["-t", load.test, "-c", &load.connections.to_string(), "-P", &load.pipeline.to_string()])
        .args(["-n", &load.requests.to_string(), "-r", &load.records.to_string()])
        .args(["-d", &load.value_bytes.to_string()])
        .args(threads_of(load.client_threads))
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {} (apt-get install redis-tools)", program.display()))?;
    interrupt::check()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "redis-benchmark failed against {}: {}{}",
        server.name,
        text.trim(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let answered = server.commands_answered()? - before;
    ensure!(answered >= load.requests, "{} answered {answered} of {} requests", server.name, load.requests);
    parse(&text).with_context(|| format!("redis-benchmark printed something else: {text}"))
}

/// One thread is how it runs unless told otherwise; told so, it would be one beside the first.
fn threads_of(client_threads: usize) -> Vec<String> {
    match client_threads {
        1 => Vec::new(),
        _ => vec!["--threads".to_owned(), client_threads.to_string()],
    }
}

/// The line after the heading of `redis-benchmark --csv`.
fn parse(text: &str) -> Option<Seen> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("\"test\""));
    let split =
        |line: &str| line.split(',').map(|field| field.trim_matches('"').to_owned()).collect::<Vec<_>>();
    let (names, values) = (split(lines.next()?), split(lines.next()?));
    let value = |name: &str| values.get(names.iter().position(|found| found == name)?)?.parse().ok();
    Some(Seen {
        requests_per_s: value("rps")?,
        p50_ms: value("p50_latency_ms")?,
        p99_ms: value("p99_latency_ms")?,
        max_ms: value("max_latency_ms")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_redis_benchmark_is_read_by_its_column_names() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
                    \"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"SET\",\"418410.06\",\"2.193\",\"0.272\",\"1.439\",\"6.543\",\"19.087\",\"19.663\"\n";
        let seen = Seen { requests_per_s: 418410.06, p50_ms: 1.439, p99_ms: 19.087, max_ms: 19.663 };
        assert_eq!(parse(text), Some(seen));
        assert_eq!(parse(&format!("WARNING: something\n{text}")), Some(seen));
        assert_eq!(parse(""), None);
        assert_eq!(parse("Error from server: ERR\n"), None);
    }

    #[test]
    fn the_program_is_built_in_the_repository_and_where_it_is_looked_for_wherever_the_user_is() {
        let program = Path::new("/somewhere/target/release/kiln");
        let build =
            |program: &Path| build_kiln(OsStr::new("cargo"), Path::new("/somewhere/crate"), program, "a-b-c");
        let for_a_target = build(Path::new("/somewhere/target/a-b-c/release/kiln"));
        let build = build(program);
        assert_eq!(build.get_current_dir(), Some(Path::new("/somewhere/crate")));
        let words: Vec<&OsStr> = build.get_args().collect();
        assert!(words.contains(&OsStr::new("--locked")), "{words:?}");
        assert!(words.windows(2).any(|pair| pair == ["--target-dir", "/somewhere/target"]), "{words:?}");
        assert!(!words.contains(&OsStr::new("--target")), "{words:?}");
        // Where cargo is told to build for a target, it puts that one's programs a directory further down.
        let words: Vec<&OsStr> = for_a_target.get_args().collect();
        let pairs = [["--target-dir", "/somewhere/target"], ["--target", "a-b-c"]];
        assert!(pairs.iter().all(|pair| words.windows(2).any(|words| words == pair)), "{words:?}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = find_kiln(Some(Path::new("no/such/kiln"))).unwrap_err();
        assert!(error.to_string().contains("no/such/kiln"));
    }
}
