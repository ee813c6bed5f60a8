//! The load through the server: a connection that speaks the Redis protocol.
//!
//! Lists are strings to which numbers of ten digits are appended, registers are strings. What `WATCH` and `GET` have seen
//! counts as read by the `EXEC` that succeeds after them. There are no rows, and no ranges.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use kiln::{Kiln, Session};
use redis::{Client, Connection, Pipeline, RedisResult, Value, pipe};
use tokio::sync::oneshot;

use super::history::{GARBAGE, Key, Level, Number, Operation, Outcome};
use super::recorder::{Attempt, Recorder};
use super::round::Failure;
use crate::support::Random;

/// Digits of a number in a string.
const DIGITS: usize = 10;
/// One of so many processes is answered when its writes are durable.
const SAFE_ONE_IN: u32 = 3;
/// The longest that an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// A session that somebody else has, whoever asks for it.
const TAKEN: &str = "taken";
/// Keys that a survey reads at once.
const SURVEYED_AT_ONCE: usize = 64;

/// A server in this process.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    /// Held for as long as the server is there.
    _taken: Session,
}

impl Server {
    /// Serves a database.
    pub(crate) fn start(db: &Kiln) -> Server {
        let taken = db.session(TAKEN).unwrap_or_else(|error| panic!("opening a session: {error}"));
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
        Server { address, stop, thread, _taken: taken }
    }

    /// Ends it in order.
    pub(crate) fn stop(self) {
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }

    /// A connection, with this session and the durability of its process.
    pub(crate) fn connect<'r, 's>(
        &self,
        recorder: &'r mut Recorder<'s>,
        random: Random,
        session: Option<String>,
    ) -> RedisResult<Teller<'r, 's>> {
        let connection = Client::open(format!("redis://{}", self.address))?.get_connection()?;
        connection.set_read_timeout(Some(PATIENCE))?;
        let is_safe = recorder.process % SAFE_ONE_IN == 1;
        let mut teller = Teller { connection, recorder, random, is_safe, session };
        teller.introduction().exec(&mut teller.connection)?;
        Ok(teller)
    }
}

impl From<&redis::RedisError> for Failure {
    fn from(error: &redis::RedisError) -> Failure {
        /// What the server says of commits that are lost, of the crash itself, and of names whose sync has failed in it.
        const OF_DISK: [&str; 3] = ["LOST", "simulated crash", "could not be made durable"];
        let text = error.to_string();
        Failure { of_disk: OF_DISK.iter().any(|part| text.contains(part)), text }
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

/// A version, or a serial number.
fn number_told(answer: &RedisResult<Value>) -> u64 {
    match answer {
        Ok(Value::Int(number)) if *number >= 0 => *number as u64,
        other => panic!("this is no number: {other:?}"),
    }
}

/// The version of a connection's last write, if it has written.
fn version_told(answer: &RedisResult<Value>) -> Option<u64> {
    (!matches!(answer, Ok(Value::Nil))).then(|| number_told(answer))
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
    session: Option<String>,
}

impl Teller<'_, '_> {
    /// Works until it is told to stop, or the server cannot go on.
    pub(crate) fn work(&mut self) -> Result<(), Failure> {
        while !self.recorder.shared.is_over() {
            match self.random.below(24) {
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
                19 => self.several()?,
                20 => self.name_session()?,
                21 => self.reset()?,
                _ => self.wait()?,
            }
        }
        Ok(())
    }

    /// What a connection begins with.
    fn introduction(&self) -> Pipeline {
        let mut first = pipe();
        first.cmd("KILN").arg("DURABILITY").arg(if self.is_safe { "safe" } else { "fast" });
        if let Some(session) = &self.session {
            first.cmd("KILN").arg("SESSION").arg(session);
        }
        first
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
            if self.session.is_some() {
                pipeline.cmd("KILN").arg("SERIAL");
            }
        }
        self.ask(pipeline)
    }

    fn ask(&mut self, pipeline: &Pipeline) -> Result<Vec<RedisResult<Value>>, Failure> {
        let mut pipeline = pipeline.clone();
        pipeline.ignore_errors().query(&mut self.connection).map_err(|error| Failure::from(&error))
    }

    /// The answer to a command of these words.
    fn ask_one(&mut self, words: &[&str]) -> Result<RedisResult<Value>, Failure> {
        let mut pipeline = pipe();
        pipeline.cmd(words[0]).arg(&words[1..]);
        Ok(self.ask(&pipeline)?.remove(0))
    }

    /// A transaction has committed; `told` is its version and its serial number.
    fn committed(&mut self, attempt: Attempt, writes: bool, told: &[RedisResult<Value>]) {
        let number = |at: usize| told.get(at).map(number_told);
        for operation in &attempt.operations {
            if let Operation::List(key, numbers) = operation {
                self.recorder.shared.note_length(*key, numbers.len());
            }
        }
        let transaction = self.recorder.end(attempt, Outcome::Committed(number(0)));
        transaction.serial = number(1);
        transaction.durable = (writes && self.is_safe).then_some(transaction.times.completed);
    }

    /// A transaction has failed, and nobody knows what has become of it.
    fn failed(&mut self, attempt: Attempt, commands: &[Command], failure: Failure) -> Result<(), Failure> {
        self.unknown(attempt, commands);
        Err(failure)
    }

    fn unknown(&mut self, mut attempt: Attempt, commands: &[Command]) {
        let writes = commands.iter().filter(|command| command.writes());
        // What was read before counts only if it succeeded.
        attempt.operations.clear();
        writes.for_each(|command| command.record(None, &mut attempt.operations));
        self.recorder.end(attempt, Outcome::Unknown);
    }

    /// Several commands at once, each a transaction of its own, into more than one version if a snapshot is made in between. When
    /// the power fails, some are durable and some are lost, and each must be told which it is.
    fn several(&mut self) -> Result<(), Failure> {
        if self.session.is_some() {
            // Of its transactions only the last one may be without an answer.
            return Ok(());
        }
        let (mut pipeline, mut sent) = (pipe(), 1);
        pipeline.cmd("KILN").arg("RECEIPT");
        let count = 2 + self.random.below(6);
        let snapshot_at = self.random.below(2 * count);
        let mut writes = Vec::new();
        for at in 0..count {
            if at == snapshot_at {
                for action in ["CREATE", "DROP"] {
                    let name = format!("of process {}", self.recorder.process);
                    pipeline.cmd("KILN").arg("SNAPSHOT").arg(action).arg(name);
                }
                sent += 2;
            }
            let register = self.recorder.shared.register(&mut self.random);
            let command = Command::Set(register, self.recorder.number());
            command.add_to(&mut pipeline);
            pipeline.cmd("KILN").arg("RECEIPT");
            writes.push((self.recorder.invoke(Level::Serializable), command, sent));
            sent += 2;
        }
        let answers = match self.ask(&pipeline) {
            Ok(answers) => answers,
            Err(failure) => {
                writes.into_iter().for_each(|(attempt, command, _)| self.unknown(attempt, &[command]));
                return Err(failure);
            }
        };
        let (mut before, mut lost, mut failure) = (version_told(&answers[0]), Vec::new(), None);
        for (mut attempt, command, at) in writes {
            let version = version_told(&answers[at + 1]);
            match &answers[at] {
                Ok(value) => {
                    command.record(Some(value), &mut attempt.operations);
                    self.committed(attempt, true, &answers[at + 1..at + 2]);
                }
                Err(error) => {
                    // Of one that was refused, and did not commit, the version is that of the one before.
                    lost.extend(version.filter(|_| before < version));
                    self.unknown(attempt, &[command]);
                    failure = Some(Failure::from(error));
                }
            }
            before = version;
        }
        self.assert_lost(&lost)?;
        failure.map_or(Ok(()), Err)
    }

    /// Versions whose commits were answered as lost.
    fn assert_lost(&mut self, versions: &[u64]) -> Result<(), Failure> {
        let Some(first) = versions.iter().min() else { return Ok(()) };
        let horizon = number_told(&self.ask_one(&["KILN", "HORIZON"])?);
        assert!(*first > horizon, "a write into version {first} is called lost, and {horizon} is durable");
        Ok(())
    }

    /// Names its session once more: so many of its writes are durable. Or asks for one that it cannot have, and keeps its own.
    fn name_session(&mut self) -> Result<(), Failure> {
        if self.random.one_in(2) {
            let answer = self.ask_one(&["KILN", "SESSION", TAKEN])?;
            assert!(answer.is_err(), "a session that somebody has was given to somebody else");
            return Ok(());
        }
        let Some(session) = self.session.clone() else { return Ok(()) };
        let answer = self.ask_one(&["KILN", "SESSION", &session])?;
        if let Err(error) = answer {
            return Err(Failure::from(&error));
        }
        let told = number_told(&answer);
        if let Some(last) = self.all_durable() {
            assert_eq!(told, last, "a session's serial number is not that of its last write");
        }
        Ok(())
    }

    /// Begins anew, and waits for what it has written before.
    fn reset(&mut self) -> Result<(), Failure> {
        if let Err(error) = self.ask_one(&["RESET"])? {
            panic!("an answer to RESET that makes no sense: {error}");
        }
        self.wait()?;
        match self.ask(&self.introduction())?.into_iter().find_map(Result::err) {
            None => Ok(()),
            Some(error) => Err(Failure::from(&error)),
        }
    }

    /// Waits until its writes are durable.
    fn wait(&mut self) -> Result<(), Failure> {
        match self.ask_one(&["WAITAOF", "1", "0", "0"])? {
            Ok(answer) => assert_eq!(answer, Value::Array(vec![Value::Int(1), Value::Int(0)])),
            Err(error) => return Err(Failure::from(&error)),
        }
        self.all_durable();
        Ok(())
    }

    /// It was told that all that it has written is durable. Returns the serial number of its last write, if that has one.
    fn all_durable(&mut self) -> Option<u64> {
        let now = self.recorder.shared.now();
        let mut written = self.recorder.transactions.iter_mut().rev();
        let last = written.find(|transaction| transaction.writes())?;
        last.durable.get_or_insert(now);
        last.serial
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
