//! A contestant as its run sees it: a child process that is stopped whenever it is not its turn.
//!
//! Stopping (SIGSTOP) is what lets engines alternate fairly: what one does in the background, compaction or write-back, it does
//! in its own time only. What it has not done when it is stopped waits for its next turn.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command as Program, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::memory_group::MemoryGroup;
use super::protocol::{Cell, Command, Contestant, Reply};
use crate::interrupt;
use crate::machine::Watch;
use crate::results::Row;

/// A running contestant. Dropping it kills it.
pub(super) struct Child {
    contestant: Contestant,
    process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Removed last, when the process has ended.
    group: Option<MemoryGroup>,
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
        let reply = child.ask(&Command::Opened { round, generation })?;
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
        let output = BufReader::new(output);
        let mut child = Child { contestant, process, input, output, group };
        let first = serde_json::to_string(&child.contestant)?;
        writeln!(child.input, "{first}").context("a contestant does not listen")?;
        Ok(child)
    }

    /// Loads the database, which was loaded so often before.
    pub(super) fn load(&mut self, generation: u64) -> Result<()> {
        self.ask(&Command::Load { generation }).map(drop)
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
        let reply = self.ask(&Command::Cell(cell))?;
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
        self.ask(&Command::Finish)?;
        self.process.wait().context("cannot wait for a contestant")?;
        Ok(())
    }

    fn ask(&mut self, command: &Command) -> Result<Reply> {
        let label = self.contestant.label();
        let line = serde_json::to_string(command)?;
        // A contestant that has died cannot be written to; why it died is in what it said last.
        let _ = writeln!(self.input, "{line}");
        loop {
            let mut reply = String::new();
            let count =
                self.output.read_line(&mut reply).with_context(|| format!("{label}: cannot be heard"))?;
            interrupt::check()?;
            if count == 0 {
                let status = self.process.wait().context("cannot wait for a contestant")?;
                bail!("{label}: ended without an answer ({status})");
            }
            match serde_json::from_str(&reply) {
                Ok(Reply::Failed(reason)) => bail!("{label}: {reason}"),
                Ok(reply) => return Ok(reply),
                // Libraries may print, too.
                Err(_) => eprint!("{label}: {reply}"),
            }
        }
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
