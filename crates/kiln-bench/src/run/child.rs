//! A contestant as its run sees it: a child process that is stopped whenever it is not its turn.
//!
//! Stopping (SIGSTOP) is what lets engines alternate fairly: what one does in the background, compaction or write-back, it does
//! in its own time only. What it has not done when it is stopped waits for its next turn.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command as Program, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::memory_group::MemoryGroup;
use super::plan::{check_seconds, load_seconds};
use super::protocol::{Cell, Command, Contestant, Reply};
use crate::interrupt;
use crate::machine::Watch;
use crate::results::Row;

/// A contestant that has not answered for so long hangs; and for so many times as long as what it does was planned to take.
const PATIENCE: Duration = Duration::from_secs(120);
const PATIENCE_FACTOR: f64 = 20.0;
/// How often it is looked whether the run is to end meanwhile.
const LOOKED_EACH: Duration = Duration::from_millis(100);

/// A running contestant. Dropping it kills it.
pub(super) struct Child {
    contestant: Contestant,
    process: Process,
    input: ChildStdin,
    /// What it says, line by line, until it has ended.
    lines: Receiver<io::Result<String>>,
    /// Removed last, when the process has ended.
    group: Option<MemoryGroup>,
    /// How long it has run workloads in all, which may have inserted much.
    measured_s: f64,
}

impl Child {
    /// Starts a contestant and loads its database.
    pub(super) fn start(contestant: Contestant) -> Result<Child> {
        std::fs::create_dir_all(&contestant.path).context("cannot make the directory of a database")?;
        let mut child = Child::spawn(contestant)?;
        child.load(0)?;
        child.limit()?;
        child.stop()?;
        Ok(child)
    }

    /// Starts a contestant whose database is there already, as that loading has left it, and measures how long it took to open.
    pub(super) fn reopen(contestant: Contestant, round: u32, generation: u64) -> Result<(Child, Vec<Row>)> {
        let mut child = Child::spawn(Contestant { reopened: true, ..contestant })?;
        child.limit()?;
        let watch = Watch::start(Some(child.process.id()));
        let planned_s = load_seconds(&child.contestant);
        let reply = child.ask(&Command::Opened { round, generation }, planned_s)?;
        let rows = child.rows(reply, &watch)?;
        Ok((child, rows))
    }

    fn spawn(contestant: Contestant) -> Result<Child> {
        let group = contestant.limit_bytes.map(|_| MemoryGroup::create()).transpose()?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut process = Program::new(program)
            .arg("contestant")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a contestant")?;
        // It does nothing before it was told what it is.
        group.iter().try_for_each(|group| group.add(process.id()))?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("a contestant has no pipes");
        };
        let lines = listen(output);
        let mut child = Child { contestant, process, input, lines, group, measured_s: 0.0 };
        let first = serde_json::to_string(&child.contestant)?;
        writeln!(child.input, "{first}").context("a contestant does not listen")?;
        Ok(child)
    }

    /// Loads the database, which was loaded so often before.
    pub(super) fn load(&mut self, generation: u64) -> Result<()> {
        let planned_s = load_seconds(&self.contestant);
        self.ask(&Command::Load { generation }, planned_s).map(drop)
    }

    /// Has it do with what it may have. Loading in no order would take some engines many minutes with so little.
    fn limit(&self) -> Result<()> {
        match (&self.group, self.contestant.limit_bytes) {
            (Some(group), Some(bytes)) => group.limit(bytes),
            _ => Ok(()),
        }
    }

    pub(super) fn contestant(&self) -> &Contestant {
        &self.contestant
    }

    /// Runs a workload.
    pub(super) fn measure(&mut self, cell: Cell) -> Result<Vec<Row>> {
        self.signal(Signal::CONT)?;
        let watch = Watch::start(Some(self.process.id()));
        // Before it, or behind it, everything may be checked.
        let planned_s = cell.seconds + self.check_seconds();
        self.measured_s += cell.seconds;
        let reply = self.ask(&Command::Cell(cell), planned_s)?;
        let rows = self.rows(reply, &watch);
        self.stop()?;
        rows
    }

    /// The rows that were measured while this watched.
    fn rows(&self, reply: Reply, watch: &Watch) -> Result<Vec<Row>> {
        let idleness = watch.finish();
        let Reply::Rows(mut rows) = reply else { bail!("{}: measured nothing", self.contestant.label()) };
        for row in &mut rows {
            (row.others, row.steal) = (idleness.others, idleness.steal);
        }
        Ok(rows)
    }

    /// Checks the database and closes it.
    pub(super) fn finish(mut self) -> Result<()> {
        self.signal(Signal::CONT)?;
        self.ask(&Command::Finish, self.check_seconds())?;
        // It has closed its database, and may hang in what a library does last.
        while self.hear(PATIENCE).with_context(|| self.contestant.label())?.is_some() {}
        self.process.wait().context("cannot wait for a contestant")?;
        Ok(())
    }

    /// Has it do something that was planned to take so many seconds.
    fn ask(&mut self, command: &Command, planned_s: f64) -> Result<Reply> {
        let label = self.contestant.label();
        let line = serde_json::to_string(command)?;
        // A contestant that has died cannot be written to; why it died is in what it said last.
        let _ = writeln!(self.input, "{line}");
        let patience = PATIENCE + Duration::from_secs_f64(planned_s * PATIENCE_FACTOR);
        loop {
            let Some(reply) = self.hear(patience).with_context(|| label.clone())? else {
                let status = self.process.wait().context("cannot wait for a contestant")?;
                bail!("{label}: ended without an answer ({status})");
            };
            match serde_json::from_str(&reply) {
                Ok(Reply::Failed(reason)) => bail!("{label}: {reason}"),
                Ok(reply) => return Ok(reply),
                // Libraries may print, too.
                Err(_) => eprintln!("{label}: {reply}"),
            }
        }
    }

    /// How long checking may be planned to take: all that it has inserted is read, too.
    fn check_seconds(&self) -> f64 {
        check_seconds(&self.contestant) + self.measured_s
    }

    /// The next line that it says. See [`hear`].
    fn hear(&self, patience: Duration) -> Result<Option<String>> {
        hear(|| self.lines.recv_timeout(LOOKED_EACH), patience)
    }

    fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw)
            .context("a contestant has no number")?;
        kill_process(pid, signal).with_context(|| format!("{}: cannot be signalled", self.contestant.label()))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Errors: it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a process says, line by line, until it has ended.
fn listen(output: ChildStdout) -> Receiver<io::Result<String>> {
    let (said, lines) = channel();
    // It ends with the process, or when nobody listens any more.
    std::thread::spawn(move || BufReader::new(output).lines().try_for_each(|line| said.send(line)));
    lines
}

/// The next line of a contestant, none once it has ended. An error if it says nothing for so long, or the run is to end.
fn hear(
    mut look: impl FnMut() -> Result<io::Result<String>, RecvTimeoutError>,
    patience: Duration,
) -> Result<Option<String>> {
    // Looks, and not the time: while the run itself is stopped, as with Ctrl-Z, nobody can answer.
    let mut looks = patience.as_millis() / LOOKED_EACH.as_millis();
    loop {
        let heard = look();
        interrupt::check()?;
        match heard {
            Ok(line) => return line.map(Some).context("cannot be heard"),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) if looks > 0 => looks -= 1,
            Err(RecvTimeoutError::Timeout) => {
                bail!("has not answered for {} s, and is given up", patience.as_secs())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::protocol::Content;
    use super::*;
    use crate::engines::catalog::{Mode, Name};
    use crate::generate::Sizes;
    use crate::generate::draws::Distribution;

    #[test]
    fn who_does_not_answer_is_given_up_and_who_has_ended_is_known_to_have() {
        let (said, lines) = channel();
        let look = || lines.recv_timeout(LOOKED_EACH);
        said.send(Ok("done".to_owned())).unwrap();
        assert_eq!(hear(look, PATIENCE).unwrap(), Some("done".to_owned()));
        let error = hear(look, 2 * LOOKED_EACH).unwrap_err().to_string();
        assert!(error.contains("has not answered"), "{error}");
        drop(said);
        assert_eq!(hear(look, PATIENCE).unwrap(), None);
    }

    /// Ctrl-Z stops both; one look takes as long then as the run was stopped.
    #[test]
    fn while_the_run_itself_is_stopped_its_patience_does_not_pass() {
        let patience = 2 * LOOKED_EACH;
        let mut looks = 0;
        let look = || {
            looks += 1;
            if looks > 1 {
                return Ok(Ok("done".to_owned()));
            }
            std::thread::sleep(patience);
            Err(RecvTimeoutError::Timeout)
        };
        assert_eq!(hear(look, patience).unwrap(), Some("done".to_owned()));
    }

    #[test]
    fn who_has_inserted_for_long_may_check_for_long() {
        let contestant = Contestant {
            engine: Name::Redb,
            mode: Mode::Weak,
            window_ms: None,
            content: Content::Table { sizes: Sizes { key_bytes: 16, value_bytes: 100 }, records: 1000 },
            cache_bytes: 0,
            limit_bytes: None,
            path: PathBuf::new(),
            reopened: false,
        };
        let cell = Cell {
            workload: "insert".to_owned(),
            distribution: Distribution::Uniform,
            threads: 1,
            batch: 1,
            seconds: 100.0,
            warm_up_s: 0.0,
            persist_each_s: None,
            round: 0,
        };
        // It says that it has measured nothing, whatever it is asked.
        let mut process = Program::new("sed")
            .args(["-u", r#"s/.*/{"Rows":[]}/"#])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let lines = listen(output);
        let mut child = Child { contestant, process, input, lines, group: None, measured_s: 0.0 };
        let before_s = child.check_seconds();
        for measured in 1..=3 {
            assert!(child.measure(cell.clone()).unwrap().is_empty());
            assert_eq!(child.check_seconds(), before_s + f64::from(measured) * cell.seconds);
        }
    }
}
