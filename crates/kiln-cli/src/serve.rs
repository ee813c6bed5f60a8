//! `serve`: the database behind a Redis-compatible server.

use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kiln::{Kiln, Level};
use kiln_server::Server;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::{Durability, Serve};
use crate::failure::Failure;
use crate::output::{say, say_aside};
use crate::outside::check_outside;

/// The files that are opened later, beside one for each connection: of a log that grows, and for copies of it. That of a segment stays open, so these are for about 32 GiB more of it.
const OTHER_FILES: u64 = 1024;

/// `kiln serve`
pub(crate) fn serve(arguments: &Serve) -> Result<(), Failure> {
    // Warnings, such as connections that had to be cut off, go to stderr.
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_target(false);
    // By default one that cannot be written panics, if that cannot be said there either.
    let log = log.log_internal_errors(false);
    log.with_max_level(tracing_subscriber::filter::LevelFilter::WARN).init();

    #[cfg(feature = "planted-bugs")]
    arguments.plant.into_iter().for_each(kiln::planted::plant);
    if let Some(backups) = &arguments.backups {
        check_outside(backups, &arguments.dir)?;
    }
    // Else a database might be made that nobody can be served, or a long log be read in vain.
    TcpListener::bind(&arguments.listen).map_err(|error| cannot_listen(&arguments.listen, error))?;
    let db = open(arguments)?;
    say(format_args!("kiln {} on {}", env!("CARGO_PKG_VERSION"), arguments.dir.display()));
    say(db.recovery_report().to_string().trim_end());
    let connections = connections_allowed(arguments.connections.get());
    let runtime = runtime()?;
    runtime.block_on(run(arguments, connections, db.clone()))?;
    // Connections that did not end in time end here.
    runtime.shutdown_timeout(Duration::from_secs(1));

    say("persisting ...");
    let version = db.version();
    db.persist()?;
    let horizon = db.horizon(Level::LOCAL);
    db.close()?;
    say(format_args!("everything committed is persisted: up to version {}", version.max(horizon)));
    Ok(())
}

fn open(arguments: &Serve) -> Result<Kiln, Failure> {
    let mut options = arguments
        .space
        .options()
        .window(arguments.window)
        .memory(arguments.memory.as_u64())
        .system_page_cache(arguments.system_page_cache);
    if let Some(bytes) = arguments.unhardened {
        options = options.unhardened_bytes(bytes.as_u64());
    }
    options.open(&arguments.dir).map_err(|error| Failure::opening(&arguments.dir, error))
}

/// As many threads as processors: more of them take the processor from each other and from the hardener. A call that
/// is likely to wait for a disk leaves its thread to the others first.
fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .thread_name("kiln-server")
        .enable_all()
        .build()
        .map_err(|error| Failure::Io { doing: "starting threads".to_owned(), error })
}

async fn run(arguments: &Serve, connections: usize, db: Kiln) -> Result<(), Failure> {
    let (durability, answered) = match arguments.durability {
        Durability::Fast => (kiln_server::Durability::Fast, "when committed"),
        Durability::Safe => (kiln_server::Durability::Safe, "when durable"),
    };
    let client_memory = usize::try_from(arguments.client_memory.as_u64()).unwrap_or(usize::MAX);
    let mut options = kiln_server::Options::new()
        .durability(durability)
        .connections_max(connections)
        .client_memory_max(client_memory);
    if let Some(backups) = &arguments.backups {
        std::fs::create_dir_all(backups).map_err(|error| Failure::io("creating", backups, error))?;
        options = options.backups(backups);
    }
    // Before anybody is told, or can connect.
    let stop =
        stop_signal().map_err(|error| Failure::Io { doing: "waiting for signals".to_owned(), error })?;
    let server = Server::bind(db, &arguments.listen, options).await;
    let server = server.map_err(|error| cannot_listen(&arguments.listen, error))?;
    let address = server.address();
    let window = humantime::format_duration(arguments.window);
    say(format_args!(
        "listening on {address}; writes are answered {answered}; fast ones are durable within {window}"
    ));
    say(format_args!("now type:  redis-cli -h {} -p {} set clay 1", address.ip(), address.port()));
    say("Ctrl-C persists everything and ends; a second one ends at once");
    server.run(stop).await;
    Ok(())
}

fn cannot_listen(listen: &str, error: io::Error) -> Failure {
    match error.kind() {
        ErrorKind::AddrInUse => Failure::Other(format!(
            "{listen} is in use; is a server running already? --listen takes another address"
        )),
        _ => Failure::Io { doing: format!("listening on {listen}"), error },
    }
}

/// Ends at Ctrl-C or SIGTERM. Another one ends the process at once, whatever it still waits for, such as a disk that does not come back. SIGHUP does nothing, as in Redis:
/// the server outlives its terminal.
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds that nobody has asked.
        register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked))?;
        register(signal, Arc::clone(&asked))?;
    }
    // Caught is all that it need be.
    drop(signal(SignalKind::hangup())?);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// As many connections as are wanted, or as the process may open files for beside those that it has and is going to need: clients must not take the last ones from the database. Says if
/// they are fewer.
fn connections_allowed(wanted: usize) -> usize {
    use rustix::process::{Resource, getrlimit};
    let Some(limit) = getrlimit(Resource::Nofile).current else { return wanted };
    let opened = std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64);
    let left = limit.saturating_sub(opened);
    let allowed = usize::try_from(left - OTHER_FILES.min(left / 2)).unwrap_or(usize::MAX).max(1);
    if allowed < wanted {
        say_aside(format_args!(
            "kiln: the limit of open files allows {allowed} connections; raise it with 'ulimit -n'"
        ));
    }
    wanted.min(allowed)
}
