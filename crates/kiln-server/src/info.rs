//! The text of `INFO`.

use std::cell::OnceCell;
use std::fmt::Write as _;
use std::time::Duration;

use kiln::planted::{Bug, planted};
use kiln::{Level, Statistics};

use crate::counters::Count;
use crate::keyspace::Space;
use crate::shared::Shared;

/// The Redis version whose commands and replies the server follows; clients compare it to decide what they
/// may send.
const REDIS_VERSION: &str = "7.2.0";

/// What is told of. The numbers of the engine, which it adds up for whoever asks, are asked for once, by the first section that tells some.
struct Source<'a> {
    shared: &'a Shared,
    space: &'a Space,
    statistics: OnceCell<Statistics>,
}

impl Source<'_> {
    fn statistics(&self) -> &Statistics {
        self.statistics.get_or_init(|| self.shared.db.statistics())
    }
}

type Section = (&'static str, fn(&Source<'_>, &mut String));

const SECTIONS: [Section; 9] = [
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Durability", durability),
    ("Stats", stats),
    ("Replication", replication),
    ("Cluster", cluster),
    ("Keyspace", keyspace),
];

/// The sections named in `wanted`, or all.
pub(crate) fn text(shared: &Shared, space: &Space, wanted: &[&[u8]]) -> String {
    let all = wanted.is_empty()
        || wanted.iter().any(|word| {
            [b"all".as_slice(), b"default", b"everything"].iter().any(|name| word.eq_ignore_ascii_case(name))
        });
    let source = Source { shared, space, statistics: OnceCell::new() };
    let mut text = String::new();
    for (name, write) in SECTIONS {
        if all || wanted.iter().any(|word| word.eq_ignore_ascii_case(name.as_bytes())) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            text.push_str(&format!("# {name}\r\n"));
            write(&source, &mut text);
        }
    }
    text
}

/// One line.
fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a String cannot fail.
    let _ = write!(text, "{name}:{value}\r\n");
}

/// Why something failed, in one line.
fn failure_line(text: &mut String, name: &str, failure: Option<&str>) {
    line(text, name, failure.map_or("none", |failure| failure.lines().next().unwrap_or("")));
}

fn ms(duration: Duration) -> u128 {
    duration.as_millis()
}

fn server(source: &Source<'_>, text: &mut String) {
    let uptime = source.shared.started.elapsed();
    line(text, "redis_version", REDIS_VERSION);
    line(text, "redis_mode", "standalone");
    line(text, "kiln_version", env!("CARGO_PKG_VERSION"));
    line(text, "os", format_args!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
    line(text, "arch_bits", usize::BITS);
    line(text, "process_id", std::process::id());
    line(text, "tcp_port", source.shared.address.port());
    line(text, "uptime_in_seconds", uptime.as_secs());
    line(text, "uptime_in_days", uptime.as_secs() / 86_400);
}

fn clients(source: &Source<'_>, text: &mut String) {
    line(text, "connected_clients", source.shared.clients.len());
    line(text, "maxclients", source.shared.options.connections_max);
}

fn memory(source: &Source<'_>, text: &mut String) {
    let statistics = source.statistics();
    line(text, "maxmemory", 0);
    line(text, "maxmemory_policy", "noeviction");
    let index_bytes = statistics.hash_index_bytes + statistics.ordered_index_bytes;
    let record_bytes = statistics.ring_bytes + statistics.read_cache_bytes;
    let copy_bytes = statistics.page_cache_bytes + statistics.leaf_images_bytes;
    line(text, "used_memory", record_bytes + copy_bytes + index_bytes);
    line(text, "client_memory_bytes", source.shared.client_memory.bytes());
    line(text, "client_memory_bytes_max", source.shared.options.client_memory_max);
    line(text, "log_memory_bytes", statistics.ring_bytes);
    line(text, "read_cache_bytes", statistics.read_cache_bytes);
    line(text, "page_cache_bytes", statistics.page_cache_bytes);
    line(text, "leaf_images_bytes", statistics.leaf_images_bytes);
    line(text, "cache_hits", statistics.cache_hits);
    line(text, "cold_reads", statistics.cold_reads);
    line(text, "cold_read_bytes", statistics.cold_read_bytes);
    line(text, "reads_in_flight", statistics.reads_in_flight);
    line(text, "warmed_up_records", statistics.warmed_up_records);
    line(text, "neighbours_read", statistics.neighbours_read);
    line(text, "handed_over_records", statistics.handed_over_records);
    line(text, "warmed_up_leaves", statistics.warmed_up_leaves);
    line(text, "index_memory_bytes", index_bytes);
    let chains = source.shared.db.index_chains();
    line(text, "index_chain_entries_mean", format_args!("{:.2}", chains.entries_mean));
    line(text, "index_chain_lines_mean", format_args!("{:.3}", chains.lines_mean));
    line(text, "index_chain_lines_max", chains.lines_max);
}

fn persistence(source: &Source<'_>, text: &mut String) {
    line(text, "loading", 0);
    line(text, "rdb_bgsave_in_progress", 0);
    line(text, "aof_enabled", 1);
    line(text, "aof_rewrite_in_progress", 0);
    let statistics = source.statistics();
    line(text, "log_bytes", statistics.log_tail.saturating_sub(statistics.log_begin));
    line(text, "unhardened_records", statistics.unhardened_records);
    line(text, "hardened_in_memory_bytes", statistics.hardened_in_memory_bytes);
    line(text, "hardened_in_memory_records", statistics.hardened_in_memory_records);
    line(text, "on_disk_only_bytes", statistics.on_disk_only_bytes);
    line(text, "on_disk_only_records", statistics.on_disk_only_records);
    line(text, "live_bytes", statistics.live_bytes);
    line(text, "disk_bytes", statistics.disk_bytes);
    line(text, "compaction_done_bytes", statistics.compaction_done_bytes);
    line(text, "compaction_total_bytes", statistics.compaction_total_bytes);
    line(text, "segments_compacted", statistics.segments_compacted);
    line(text, "records_rewritten", statistics.records_rewritten);
    line(text, "bytes_rewritten", statistics.bytes_rewritten);
    line(text, "settled_rows", statistics.settled_rows);
    line(text, "tree_bytes", statistics.tree_bytes);
    line(text, "unsettled_bytes", statistics.unsettled_bytes);
    line(text, "unsettled_bytes_max", statistics.unsettled_bytes_max);
    line(text, "settling_waits", statistics.settling_waits);
    line(text, "checkpoint_done_steps", statistics.checkpoint_done_steps);
    line(text, "checkpoint_total_steps", statistics.checkpoint_total_steps);
    line(text, "checkpoints", statistics.checkpoints);
    line(text, "checkpoint_bytes", statistics.checkpoint_bytes);
    line(text, "checkpoint_age_ms", statistics.checkpoint_age.map_or(0, ms));
    line(text, "log_bytes_since_checkpoint", statistics.log_since_checkpoint);
    failure_line(text, "settling_failure", statistics.settling_failure.as_deref());
    failure_line(text, "expiry_failure", statistics.expiry_failure.as_deref());
    failure_line(text, "drop_failure", statistics.drop_failure.as_deref());
}

/// What may still be lost, and what was.
fn durability(source: &Source<'_>, text: &mut String) {
    let statistics = source.statistics();
    let report = source.shared.db.recovery_report();
    line(text, "durability_default", source.shared.options.durability.name());
    line(text, "version", source.shared.db.version());
    line(text, "horizon", source.shared.db.horizon(Level::LOCAL));
    line(text, "window_ms", ms(source.shared.db.window()));
    line(text, "lag_ms", statistics.oldest_unhardened.map_or(0, ms));
    line(text, "lag_bytes", statistics.unhardened_bytes);
    line(text, "lag_bytes_max", statistics.unhardened_bytes_max);
    let committed_at =
        |oldest| source.shared.db.time_ms().saturating_sub(u64::try_from(ms(oldest)).unwrap_or(u64::MAX));
    line(text, "oldest_unhardened_unix_ms", statistics.oldest_unhardened.map_or(0, committed_at));
    line(text, "hardenings", statistics.hardenings);
    line(text, "hardened_bytes", statistics.hardened_bytes);
    line(text, "hardening_us", statistics.hardening_duration.as_micros());
    failure_line(text, "failure", statistics.failure.as_deref());
    line(text, "recovered_horizon", report.horizon);
    line(text, "recovered_clean", u8::from(report.clean));
    line(text, "recovered_is_backup", u8::from(report.is_backup));
    match report.lost_versions {
        None => line(text, "recovered_lost_versions", "none"),
        Some((first, last)) => line(text, "recovered_lost_versions", format_args!("{first}-{last}")),
    }
    line(text, "recovery_ms", ms(report.duration));
}

fn stats(source: &Source<'_>, text: &mut String) {
    let counters = &source.shared.counters;
    line(text, "total_connections_received", source.shared.clients.total());
    for (name, counter) in [
        ("total_commands_processed", Count::Commands),
        ("total_net_input_bytes", Count::ReceivedBytes),
        ("total_net_output_bytes", Count::SentBytes),
        ("rejected_connections", Count::RejectedConnections),
        ("protocol_errors", Count::ProtocolErrors),
    ] {
        line(text, name, counters.total(counter));
    }
    let statistics = source.statistics();
    line(text, "expired_keys", statistics.expired_rows);
    line(text, "updates_in_place", statistics.updates_in_place);
    line(text, "updates_copied", statistics.updates_copied);
    line(text, "inserts", statistics.inserts);
}

fn replication(_: &Source<'_>, text: &mut String) {
    line(text, "role", "master");
    line(text, "connected_slaves", 0);
}

fn cluster(_: &Source<'_>, text: &mut String) {
    line(text, "cluster_enabled", 0);
}

fn keyspace(source: &Source<'_>, text: &mut String) {
    let _again = planted(Bug::InfoEntersAgain).then(|| source.shared.keyspace.enter());
    let keys = source.space.strings.len_estimate();
    if keys > 0 {
        // How many of them expire nobody counts; but there are programs that read all three.
        line(text, "db0", format_args!("keys={keys},expires=0,avg_ttl=0"));
    }
}
