//! `check`, `stat` and `dump-log`: what is in a database.

use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use bytesize::ByteSize;
use kiln::{Level, ObjectKind};

use crate::failure::Failure;
use crate::object::open_database;

/// `kiln check`
pub(crate) fn check(dir: &Path) -> Result<(), Failure> {
    let report = kiln::check(dir)?;
    println!("{}", report.to_string().trim_end());
    match report.problems.len() {
        0 => Ok(()),
        count => {
            let problems = if count == 1 { "1 problem".to_owned() } else { format!("{count} problems") };
            Err(Failure::Other(format!("{}: {problems}; restore the database from a backup", dir.display())))
        }
    }
}

/// `kiln stat`
pub(crate) fn stat(dir: &Path) -> Result<(), Failure> {
    let db = open_database(dir)?;
    println!("{}", db.recovery_report().to_string().trim_end());
    let statistics = db.statistics();
    println!("version       {}", statistics.version);
    println!("horizon       {} (durable on this machine)", db.horizon(Level::LOCAL));
    let log_bytes = statistics.log_tail.saturating_sub(statistics.log_begin);
    println!("log           {} ({}..{})", ByteSize(log_bytes), statistics.log_begin, statistics.log_tail);
    println!("live          about {}", ByteSize(statistics.live_bytes));
    println!("disk          {}", ByteSize(statistics.disk_bytes));
    if statistics.tree_bytes > 0 {
        println!("settled       {} rows, {}", statistics.settled_rows, ByteSize(statistics.tree_bytes));
    }
    let index_bytes = statistics.hash_index_bytes + statistics.ordered_index_bytes;
    println!(
        "memory        log {}, read cache {}, pages {}, images of leaves {}, indexes {}",
        ByteSize(statistics.ring_bytes),
        ByteSize(statistics.read_cache_bytes),
        ByteSize(statistics.page_cache_bytes),
        ByteSize(statistics.leaf_images_bytes),
        ByteSize(index_bytes)
    );
    match statistics.checkpoint_age {
        None => println!("checkpoint    none"),
        Some(age) => println!(
            "checkpoint    {}, {} s old, {} of log since",
            ByteSize(statistics.checkpoint_bytes),
            age.as_secs(),
            ByteSize(statistics.log_since_checkpoint)
        ),
    }
    let mut objects = db.objects();
    objects.sort_by(|left, right| left.name.cmp(&right.name));
    for object in objects {
        let kind = match object.kind {
            ObjectKind::Map => "map",
            ObjectKind::Table => "table",
            _ => "other",
        };
        let stays = object.time_to_live.map_or(String::new(), |time| {
            format!(", which expire after {}", humantime::format_duration(time))
        });
        println!("{kind:<13} {} ({} keys{stays})", object.name, object.keys);
    }
    Ok(db.close()?)
}

/// `kiln dump-log`
pub(crate) fn dump_log(dir: &Path) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    kiln::dump_log(dir, &mut out)?;
    out.flush().map_err(Failure::output)
}
