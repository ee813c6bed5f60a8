//! `check`, `stat` and `dump-log`: what is in a database.

use std::io::{BufWriter, Write as _};
use std::path::Path;

use bytesize::ByteSize;
use kiln::{Kiln, Level, ObjectInfo, ObjectKind, Options, Statistics};

use crate::escape::escape;
use crate::failure::Failure;
use crate::output;
use crate::standard_output::standard_output;

/// `kiln check`
pub(crate) fn check(dir: &Path) -> Result<(), Failure> {
    let report = kiln::check(dir)?;
    let told = output::report(&report.to_string());
    match report.problems.len() {
        0 => told,
        // It is damaged whether or not somebody reads how.
        count => {
            let problems = if count == 1 { "1 problem".to_owned() } else { format!("{count} problems") };
            let advice = match &report.wrong_checkpoint {
                Some(file) => &format!(
                    "before you do anything else remove {file}, which opening would believe, and check again: the log may have everything"
                ),
                None if report.is_mendable() => {
                    "nothing is lost by it: opening does without, and `kiln compact` writes it anew"
                }
                None => "restore the database from a backup",
            };
            Err(Failure::Other(format!("{}: {problems}; {advice}", dir.display())))
        }
    }
}

/// `kiln stat`
pub(crate) fn stat(dir: &Path) -> Result<(), Failure> {
    // What opening finds is a part of what is asked for, and the next one finds nothing of that.
    standard_output()?;
    let db = Options::new().create(false).open(dir).map_err(|error| Failure::opening(dir, error))?;
    let mut lines = vec![db.recovery_report().to_string().trim_end().to_owned()];
    lines.extend(describe_sizes(&db));
    let mut objects = db.objects();
    objects.sort_by(|left, right| left.name.cmp(&right.name));
    lines.extend(objects.iter().map(describe_object));
    // Whoever uses its names for tables has nothing to be served.
    if let Ok(Some(map)) = kiln_server::served_map(&db) {
        lines.push(format!("served        {map}: what kiln serve shows"));
    }
    db.close()?;
    output::report(&lines.join("\n"))
}

/// What a database takes, a line each.
fn describe_sizes(db: &Kiln) -> Vec<String> {
    let statistics = db.statistics();
    let log_bytes = statistics.log_tail.saturating_sub(statistics.log_begin);
    let mut lines = vec![
        format!("version       {}", statistics.version),
        format!("horizon       {} (durable on this machine)", db.horizon(Level::LOCAL)),
        format!("log           {} ({}..{})", ByteSize(log_bytes), statistics.log_begin, statistics.log_tail),
        format!(
            "records       {} not durable ({}), {} durable in memory ({}), {} on disk only ({})",
            statistics.unhardened_records,
            ByteSize(statistics.unhardened_bytes),
            statistics.hardened_in_memory_records,
            ByteSize(statistics.hardened_in_memory_bytes),
            statistics.on_disk_only_records,
            ByteSize(statistics.on_disk_only_bytes)
        ),
        format!("live          about {}", ByteSize(statistics.live_bytes)),
        format!("disk          {}", ByteSize(statistics.disk_bytes)),
    ];
    if statistics.tree_bytes > 0 {
        let tree_bytes = ByteSize(statistics.tree_bytes);
        lines.push(format!("settled       {} rows, {tree_bytes}", statistics.settled_rows));
    }
    if statistics.dropping > 0 {
        lines.push(format!("dropped       rows of {} objects are yet to go", statistics.dropping));
    }
    let index_bytes = statistics.hash_index_bytes + statistics.ordered_index_bytes;
    lines.push(format!(
        "memory        log {}, read cache {}, pages {}, images of leaves {}, indexes {}",
        ByteSize(statistics.ring_bytes),
        ByteSize(statistics.read_cache_bytes),
        ByteSize(statistics.page_cache_bytes),
        ByteSize(statistics.leaf_images_bytes),
        ByteSize(index_bytes)
    ));
    let chains = db.index_chains();
    lines.push(format!(
        "index chains  {:.2} entries in {:.3} lines on average, {} lines at the most, of {} looked at",
        chains.entries_mean, chains.lines_mean, chains.lines_max, chains.sampled
    ));
    lines.push(match statistics.compaction_total_bytes {
        0 => "compaction    idle".to_owned(),
        total => {
            format!(
                "compaction    {} of {} passed",
                ByteSize(statistics.compaction_done_bytes),
                ByteSize(total)
            )
        }
    });
    lines.push(describe_checkpoint(&statistics));
    let failures = [
        ("settling", &statistics.settling_failure),
        ("expiry", &statistics.expiry_failure),
        ("dropping", &statistics.drop_failure),
    ];
    for (what, failure) in failures {
        lines.extend(failure.as_ref().map(|failure| format!("{:<13} {what}: {failure}", "failed")));
    }
    lines
}

/// The newest checkpoint, and how far the next one is: where there is much log since, it begins with the opening.
fn describe_checkpoint(statistics: &Statistics) -> String {
    let newest = match statistics.checkpoint_age {
        None => "none".to_owned(),
        Some(age) => format!(
            "{}, {} s old, {} of log since",
            ByteSize(statistics.checkpoint_bytes),
            age.as_secs(),
            ByteSize(statistics.log_since_checkpoint)
        ),
    };
    let next = match statistics.checkpoint_total_steps {
        0 => String::new(),
        total => format!("; the next: {} of about {total} steps", statistics.checkpoint_done_steps),
    };
    format!("checkpoint    {newest}{next}")
}

fn describe_object(object: &ObjectInfo) -> String {
    let kind = match object.kind {
        ObjectKind::Map => "map",
        ObjectKind::Table => "table",
        _ => "other",
    };
    let stays = object
        .time_to_live
        .map_or(String::new(), |time| format!(", which expire after {}", humantime::format_duration(time)));
    format!("{kind:<13} {} ({} keys{stays})", escape(object.name.as_bytes()), object.keys)
}

/// `kiln dump-log`
pub(crate) fn dump_log(dir: &Path) -> Result<(), Failure> {
    let mut out = BufWriter::new(standard_output()?.lock());
    kiln::dump_log(dir, &mut out).map_err(Failure::report_of_engine)?;
    out.flush().map_err(Failure::report)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_checkpoint_that_is_being_taken_is_told_beside_the_one_before() {
        let mut statistics = Statistics::default();
        assert_eq!(describe_checkpoint(&statistics), "checkpoint    none");
        (statistics.checkpoint_done_steps, statistics.checkpoint_total_steps) = (3, 256);
        assert_eq!(describe_checkpoint(&statistics), "checkpoint    none; the next: 3 of about 256 steps");
        (statistics.checkpoint_age, statistics.checkpoint_bytes) = (Some(Duration::from_secs(7)), 512);
        assert_eq!(
            describe_checkpoint(&statistics),
            "checkpoint    512 B, 7 s old, 0 B of log since; the next: 3 of about 256 steps"
        );
    }
}
