//! Measurements as JSON lines, for programs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::measure::Measured;

/// What `--help` says of the fields. The names are stable: new ones may come, none goes or changes its meaning.
pub(crate) const FIELDS_HELP: &str = "\
Each line of the --json file is one measurement:
  engine        kiln, redis, floor (the device alone) or generator (the load without an engine)
  mode          safe or strong (acknowledged when durable), fast or weak (when committed), floor
  workload      map-read, map-upsert, read, update (tables), txn-N (read and write N keys),
                txn-put-N, safe-commit, resp-set, resp-get
  threads       client threads, or connections for resp-*
  pipeline      requests in flight on each connection
  window_ms     the vulnerability window, null where there is none
  records, key_bytes, value_bytes
  round         counted from 0
  ops, seconds, ops_per_s
  p50_us, p99_us, p999_us, max_us   latency, null where only throughput was measured
  cpu_s         processor time of the engine's process (for an embedded engine, its load included)
  rss_bytes     memory of that process at the end of the measurement
  device_bytes  bytes that it caused to be written to the device meanwhile
  disk_bytes    size of its files at the end
  checked       whether the results were checked, and right";

/// One measurement of one round. See [`FIELDS_HELP`].
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) engine: &'static str,
    pub(crate) mode: &'static str,
    pub(crate) workload: String,
    pub(crate) threads: usize,
    pub(crate) pipeline: u32,
    pub(crate) window_ms: Option<u64>,
    pub(crate) records: u64,
    pub(crate) key_bytes: usize,
    pub(crate) value_bytes: usize,
    pub(crate) round: u32,
    pub(crate) ops: u64,
    pub(crate) seconds: f64,
    pub(crate) ops_per_s: f64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) p999_us: Option<f64>,
    pub(crate) max_us: Option<f64>,
    pub(crate) cpu_s: f64,
    pub(crate) rss_bytes: u64,
    pub(crate) device_bytes: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) checked: bool,
}

impl Row {
    /// A row with what was measured in this process. What names the cell is filled in by the caller.
    pub(crate) fn measured(measured: &Measured) -> Row {
        Row {
            engine: "",
            mode: "",
            workload: String::new(),
            threads: 0,
            pipeline: 1,
            window_ms: None,
            records: 0,
            key_bytes: crate::generate::KEY_BYTES,
            value_bytes: crate::generate::VALUE_BYTES,
            round: 0,
            ops: measured.ops,
            seconds: measured.seconds,
            ops_per_s: measured.ops_per_s,
            p50_us: measured.latency_us(0.5),
            p99_us: measured.latency_us(0.99),
            p999_us: measured.latency_us(0.999),
            max_us: measured.latency_us(1.0),
            cpu_s: measured.usage.cpu_s,
            rss_bytes: measured.usage.rss_bytes,
            device_bytes: measured.usage.device_bytes,
            disk_bytes: 0,
            checked: false,
        }
    }
}

/// Where the lines go, if anywhere.
pub(crate) struct RowWriter {
    file: Option<BufWriter<File>>,
}

impl RowWriter {
    /// A new file; one that is there is not overwritten.
    pub(crate) fn create(path: Option<&Path>) -> Result<RowWriter> {
        let file = path
            .map(|path| {
                File::create_new(path)
                    .map(BufWriter::new)
                    .with_context(|| format!("cannot make the result file {}", path.display()))
            })
            .transpose()?;
        Ok(RowWriter { file })
    }

    /// Writes a line, at once: an interrupted run keeps what it measured.
    pub(crate) fn write(&mut self, row: &Row) -> Result<()> {
        if let Some(file) = &mut self.file {
            serde_json::to_writer(&mut *file, row)?;
            file.write_all(b"\n")?;
            file.flush().context("cannot write the result file")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::usage::Usage;

    fn row() -> Row {
        let usage = Usage::default();
        Row::measured(&Measured { ops: 1, seconds: 1.0, ops_per_s: 1.0, latency_ns: None, usage })
    }

    #[test]
    fn the_documented_fields_are_the_fields_and_the_names_of_issue_four_are_among_them() {
        let value = serde_json::to_value(row()).unwrap();
        let fields: BTreeSet<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let words: BTreeSet<&str> = FIELDS_HELP.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        for field in &fields {
            assert!(words.contains(field), "{field} is not documented");
        }
        let promised = "engine mode workload threads round ops seconds ops_per_s p50_us p99_us p999_us cpu_s rss_bytes \
                        device_bytes disk_bytes checked";
        for field in promised.split_whitespace() {
            assert!(fields.contains(field), "{field} is missing");
        }
    }

    #[test]
    fn a_result_file_is_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.json");
        let mut writer = RowWriter::create(Some(&path)).unwrap();
        writer.write(&row()).unwrap();
        writer.write(&row()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
        assert!(RowWriter::create(Some(&path)).is_err());
    }
}
