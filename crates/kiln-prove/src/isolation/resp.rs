//! The load through the server: a connection that speaks the Redis protocol.
//!
//! Lists are strings to which numbers of ten digits are appended, registers are strings. What `WATCH` and `GET` have seen
//! counts as read by the `EXEC` that succeeds after them. There are no rows, and no ranges.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use kiln::Kiln;
use redis::{Client, Connection, Pipeline, RedisResult, Value, pipe};
use tokio::sync::oneshot;

use super::history::{GARBAGE, Key, Level, Number, Operation, Outcome};
use super::library::session_of;
use super::recorder::{Attempt, Recorder};
use super::round::Failure;
use crate::support::Random;

/// Digits of a number in a string.
const DIGITS: usize = 10;
/// One of so many processes is answered when its writes are durable.
const SAFE_ONE_IN: u32 = 3;
/// The longest that an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Keys that a survey reads at once.
const SURVEYED_AT_ONCE: usize = 64;

/// A server in this process.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Serves a database.
    pub(crate) fn start(db: &Kiln) -> Server {
        let (stop, stopped) = oneshot::channel::<()>();
        let (told, address) = std::sync::mpsc::channel();
        let db = db.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.expect("the system has threads").block_on(async {
                let options = kiln_server::Options::new().durability(kiln_server::Durability::Fast);
                let server = kiln_server::Server::bind(db, "127.0.0.1:0", options).await;
                let server = server.unwrap_or_else(|error| panic!("the server cannot start: {error}"));
                let _ = told.send(server.address());
                server.run(async { drop(stopped.await) }).await;
            });
        });
        let address = address.recv().expect("the server tells its address");
        Server { address, stop, thread }
    }

    /// Ends it in order.
    pub(crate) fn stop(self) {
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }

    /// A connection, with the session and the durability of its process.
    pub(crate) fn connect<'r, 's>(
        &self,
        recorder: &'r mut Recorder<'s>,
        random: Random,
    ) -> RedisResult<Teller<'r, 's>> {
        let connection = Client::open(format!("redis://{}", self.address))?.get_connection()?;
        connection.set_read_timeout(Some(PATIENCE))?;
        let is_safe = recorder.process % SAFE_ONE_IN == 1;
        let session = session_of(recorder.process);
        let mut teller = Teller { connection, recorder, random, is_safe, has_session: session.is_some() };
        let mut first = pipe();
        first.cmd("KILN").arg("DURABILITY").arg(if is_safe { "safe" } else { "fast" }).ignore();
        if let Some(session) = session {
            first.cmd("KILN").arg("SESSION").arg(session).ignore();
        }
        first.exec(&mut teller.connection)?;
        Ok(teller)
    }
}

impl From<&redis::RedisError> for Failure {
    fn from(error: &redis::RedisError) -> Failure {
        let text = error.to_string();
        Failure { of_disk: text.contains("LOST") || text.contains("simulated crash"), text }
    }
}

/// One command of a transaction.
#[derive(Clone, Debug)]
enum Command {
    Lists(Vec<Key>),
    Registers(Vec<Key>),
    Append(Key, Number),
    Set(Key, Number),
}

impl Command {
    fn add_to(&self, pipeline: &mut Pipeline) {
        match self {
            Command::Lists(keys) => add_read(pipeline, "l", keys),
            Command::Registers(keys) => add_read(pipeline, "r", keys),
            Command::Append(key, number) => {
                pipeline.cmd("APPEND").arg(format!("l{key}")).arg(digits(*number));
            }
            Command::Set(key, number) => {
                pipeline.cmd("SET").arg(format!("r{key}")).arg(digits(*number));
            }
        }
    }

    fn writes(&self) -> bool {
        matches!(self, Command::Append(..) | Command::Set(..))
    }

    /// Records what was answered.
    fn record(&self, answer: Option<&Value>, operations: &mut Vec<Operation>) {
        match self {
            Command::Lists(keys) => {
                let lists = answers(answer, keys.len());
                operations.extend(keys.iter().zip(lists).map(|(&key, list)| Operation::List(key, list)));
            }
            Command::Registers(keys) => {
                let value = |numbers: Vec<Number>| match numbers[..] {
                    [] => None,
                    [number] => Some(number),
                    _ => Some(GARBAGE),
                };
                let values = answers(answer, keys.len()).into_iter().map(value);
                operations.extend(keys.iter().zip(values).map(|(&key, value)| Operation::Read(key, value)));
            }
            Command::Append(key, number) => operations.push(Operation::Append(*key, *number)),
            Command::Set(key, number) => operations.push(Operation::Write(*key, *number)),
        }
    }
}

fn add_read(pipeline: &mut Pipeline, prefix: &str, keys: &[Key]) {
    pipeline.cmd(if keys.len() == 1 { "GET" } else { "MGET" });
    keys.iter().for_each(|key| {
        pipeline.arg(format!("{prefix}{key}"));
    });
}

fn digits(number: Number) -> String {
    format!("{number:0DIGITS$}")
}

/// The numbers in a string.
fn numbers(value: &Value) -> Vec<Number> {
    let bytes = match value {
        Value::Nil => return Vec::new(),
        Value::BulkString(bytes) => bytes,
        _ => return vec![GARBAGE],
    };
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok();
    bytes
        .chunks(DIGITS)
        .map(|digits| number(digits).filter(|_| digits.len() == DIGITS).unwrap_or(GARBAGE))
        .collect()
}

/// What a `GET` or an `MGET` has answered.
fn answers(answer: Option<&Value>, count: usize) -> Vec<Vec<Number>> {
    match answer {
        Some(Value::Array(values)) if values.len() == count => values.iter().map(numbers).collect(),
        Some(value) if count == 1 => vec![numbers(value)],
        _ => vec![vec![GARBAGE]; count],
    }
}

/// A connection that puts load on a server, and records it.
pub(crate) struct Teller<'r, 's> {
    connection: Connection,
    recorder: &'r mut Recorder<'s>,
    random: Random,
    is_safe: bool,
    has_session: bool,
}

impl Teller<'_, '_> {
    /// Works until it is told to stop, or the server cannot go on.
    pub(crate) fn work(&mut self) -> Result<(), Failure> {
        while !self.recorder.shared.is_over() {
            match self.random.below(20) {
                0..=7 => {
                    let commands = self.commands(5);
                    self.transaction(&commands, None)?;
                }
                8..=12 => self.watched()?,
                13..=15 => {
                    let command = self.read(4);
                    self.single(command)?;
                }
                16..=18 => {
                    let command = self.command();
                    self.single(command)?;
                }
                _ => self.wait()?,
            }
        }
        Ok(())
    }

    fn read(&mut self, most: usize) -> Command {
        let (shared, random) = (self.recorder.shared, &mut self.random);
        let count = 1 + random.below(most);
        match random.one_in(2) {
            true => Command::Lists((0..count).map(|_| shared.list(random)).collect()),
            false => Command::Registers((0..count).map(|_| shared.register(random)).collect()),
        }
    }

    fn command(&mut self) -> Command {
        let shared = self.recorder.shared;
        match self.random.below(4) {
            0..=1 => self.read(3),
            2 => Command::Append(shared.list(&mut self.random), self.recorder.number()),
            _ => Command::Set(shared.register(&mut self.random), self.recorder.number()),
        }
    }

    fn commands(&mut self, most: usize) -> Vec<Command> {
        (0..1 + self.random.below(most)).map(|_| self.command()).collect()
    }

    /// Watches what it reads, and writes if that has stayed.
    fn watched(&mut self) -> Result<(), Failure> {
        let shared = self.recorder.shared;
        let (list, register) = (shared.list(&mut self.random), shared.register(&mut self.random));
        let mut watch = pipe();
        watch.cmd("WATCH").arg(format!("l{list}")).arg(format!("r{register}"));
        // A key that somebody is writing for too long cannot be watched.
        match self.ask(&watch)?.remove(0) {
            Err(error) if error.code() == Some("CONFLICT") => return Ok(()),
            Err(error) => return Err(Failure::from(&error)),
            Ok(_) => {}
        }
        let reads = [Command::Lists(vec![list]), Command::Registers(vec![register])];
        let mut seen = Vec::new();
        for read in reads {
            seen.extend(self.single(read)?);
        }
        let mut commands = self.commands(2);
        match self.random.one_in(3) {
            true => commands.push(Command::Set(register, self.recorder.number())),
            false => commands.push(Command::Append(list, self.recorder.number())),
        }
        self.transaction(&commands, Some(&seen))
    }

    /// `MULTI` to `EXEC`. `seen` is what was read of what was watched, if anything was watched: nothing where conflicts kept it from being read.
    fn transaction(&mut self, commands: &[Command], seen: Option<&[Operation]>) -> Result<(), Failure> {
        let mut pipeline = pipe();
        pipeline.cmd("MULTI");
        commands.iter().for_each(|command| command.add_to(&mut pipeline));
        pipeline.cmd("EXEC");
        let mut attempt = self.recorder.invoke(Level::Serializable);
        attempt.operations.extend(seen.unwrap_or_default().iter().cloned());
        let writes = commands.iter().any(Command::writes);
        let answers = match self.run(&mut pipeline, writes) {
            Ok(answers) => answers,
            Err(failure) => return self.failed(attempt, commands, failure),
        };
        match answers.get(commands.len() + 1) {
            Some(Ok(Value::Array(values))) if values.len() == commands.len() => {
                let each = commands.iter().zip(values);
                each.for_each(|(command, value)| command.record(Some(value), &mut attempt.operations));
                self.committed(attempt, writes, &answers[commands.len() + 2..]);
                Ok(())
            }
            // What was watched has changed.
            Some(Ok(Value::Nil)) if seen.is_some() => Ok(()),
            Some(Err(error)) => self.failed(attempt, commands, Failure::from(error)),
            other => panic!("an answer to EXEC that makes no sense: {other:?}"),
        }
    }

    /// A command that is a transaction of its own; gives what it has seen or done.
    fn single(&mut self, command: Command) -> Result<Vec<Operation>, Failure> {
        let mut pipeline = pipe();
        command.add_to(&mut pipeline);
        let mut attempt = self.recorder.invoke(Level::Serializable);
        let writes = command.writes();
        let answers = match self.run(&mut pipeline, writes) {
            Ok(answers) => answers,
            Err(failure) => return self.failed(attempt, &[command], failure).map(|()| Vec::new()),
        };
        match &answers[0] {
            Ok(value) => {
                command.record(Some(value), &mut attempt.operations);
                let done = attempt.operations.clone();
                self.committed(attempt, writes, &answers[1..]);
                Ok(done)
            }
            Err(error) => self.failed(attempt, &[command], Failure::from(error)).map(|()| Vec::new()),
        }
    }

    /// Sends a pipeline, with questions about its write at the end.
    fn run(&mut self, pipeline: &mut Pipeline, writes: bool) -> Result<Vec<RedisResult<Value>>, Failure> {
        if writes {
            pipeline.cmd("KILN").arg("RECEIPT");
            if self.has_session {
                pipeline.cmd("KILN").arg("SERIAL");
            }
        }
        self.ask(pipeline)
    }

    fn ask(&mut self, pipeline: &Pipeline) -> Result<Vec<RedisResult<Value>>, Failure> {
        let mut pipeline = pipeline.clone();
        pipeline.ignore_errors().query(&mut self.connection).map_err(|error| Failure::from(&error))
    }

    /// A transaction has committed; `told` is its version and its serial number.
    fn committed(&mut self, attempt: Attempt, writes: bool, told: &[RedisResult<Value>]) {
        let number = |at: usize| match told.get(at) {
            Some(Ok(Value::Int(number))) => u64::try_from(*number).ok(),
            _ => None,
        };
        for operation in &attempt.operations {
            if let Operation::List(key, numbers) = operation {
                self.recorder.shared.note_length(*key, numbers.len());
            }
        }
        let transaction = self.recorder.end(attempt, Outcome::Committed(number(0)));
        transaction.serial = number(1);
        transaction.durable = writes && self.is_safe;
    }

    /// Nobody knows what has become of a transaction.
    fn failed(
        &mut self,
        mut attempt: Attempt,
        commands: &[Command],
        failure: Failure,
    ) -> Result<(), Failure> {
        let writes = commands.iter().filter(|command| command.writes());
        // What was read before counts only if it succeeded.
        attempt.operations.clear();
        writes.for_each(|command| command.record(None, &mut attempt.operations));
        self.recorder.end(attempt, Outcome::Unknown);
        Err(failure)
    }

    /// Waits until its writes are durable.
    fn wait(&mut self) -> Result<(), Failure> {
        let mut waitaof = pipe();
        waitaof.cmd("WAITAOF").arg(1).arg(0).arg(0);
        if let Err(error) = self.ask(&waitaof)?.remove(0) {
            return Err(Failure::from(&error));
        }
        let written = self.recorder.transactions.iter_mut().rev().find(|transaction| transaction.writes());
        if let Some(last) = written {
            last.durable = true;
        }
        Ok(())
    }

    /// Reads everything.
    pub(crate) fn survey(&mut self) -> Result<(), Failure> {
        let shared = self.recorder.shared;
        let lists: Vec<Key> = shared.all_lists().collect();
        let registers: Vec<Key> = (0..shared.registers).collect();
        let lists = lists.chunks(SURVEYED_AT_ONCE).map(|keys| Command::Lists(keys.to_vec()));
        let registers = registers.chunks(SURVEYED_AT_ONCE).map(|keys| Command::Registers(keys.to_vec()));
        lists.chain(registers).try_for_each(|command| self.single(command).map(drop))
    }
}
