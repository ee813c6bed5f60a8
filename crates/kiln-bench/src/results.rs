//! Measurements as JSON lines, for programs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::engines::catalog::{Mode, Name};
use crate::generate::Sizes;
use crate::generate::draws::Distribution;
use crate::measure::{BIN, Measured};

/// What `--help` says of the fields. The names are stable: new ones may come, none goes or changes its meaning.
pub(crate) const FIELDS_HELP: &str = "\
Each line of a result file is one measurement:
  engine        kiln, a peer (see kiln-bench list), memory or device (the floors), generator (the load without an engine)
  version       the engine's version
  mode          safe or strong (acknowledged when durable), fast or weak (when committed), floor (of Kiln: nothing hardens)
  workload      see kiln-bench list; also resp-set and resp-get (a server under redis-benchmark), resp-set-two-threads (of the client),
                overwrite (update, where figures look at amplification), txn-put-3 (txn-3 without reading) and safe-commit-tasks (clients that are
                tasks); the txn-3 and safe-commit of figures are of a map, and all threads of its device write to one file, one after the other
  distribution  of the keys: uniform, zipf (with the exponent 0.99), zipf-0.1 (with another one) or latest
  threads       client threads, or connections for resp-*
  pipeline      requests in flight on each connection
  batch         keys of each operation of map-* and cold-*
  window_ms     the vulnerability window, null where there is none
  records, key_bytes, value_bytes, cache_bytes
  limit_bytes   what the engine's process may have in all, the page cache for its files included; not there where nothing limits it
  round         counted from 0
  ops, seconds  what was done, and in which time
  persist_s     the time after it for making everything durable; zero where it was, or where nothing was written
  ops_per_s     ops over seconds and persist_s together
  p50_us, p99_us, p999_us, max_us   latency; of operations faster than 4 us in the mean, one in 61 is timed, and what others between two
                of these took together, if it is more than 0.5 ms and they are not all as slow, counts as one: max_us is an upper bound there
  lag_p50_us, lag_p99_us, lag_max_us  from commit to durable, null where the engine does not tell
  alone_ops_per_s, scanned_rows_per_s  of write-beside-scan, whose other fields are about its writers beside the scan: their rate without the scan and
                without persist_s, and the scan's; elsewhere not there
  cpu_s         processor time of the engine's process (for an embedded engine, its load included)
  rss_bytes     the most memory that the process has had since it was loaded and checked; since it began where the system does not let that be forgotten
  device_bytes  bytes that it caused to be written to the device meanwhile; cpu_s and device_bytes of mixed-durability are those of both its halves
  disk_bytes    size of its files at the end
  bin_ms, bins  operations over time: so many in each bin of so many milliseconds
  hardenings    how many times commits became durable; not there where the engine does not count, and in files from before there was this field
  hardened_ms   when commits became durable, in milliseconds since the beginning, as far as it was seen: it is looked at 5 to 10 times from one to the
                next, but each 0.2 ms at most, and several between two looks are one. The lag is known as exactly, and is never told to be too short
  others, steal the parts of the processors' time that other processes and other machines took meanwhile; the system counts in
                steps of 10 ms, so that others may be a little below 0 in a short measurement
  memory_ns     what a read of memory that nothing could foresee took before the round, in nanoseconds: other machines that share its caches and memory slow it;
                null where nobody looked
  core_to_core_ns  what a cache line took from one processor to another and back, before or after the measurement, whichever was more, in nanoseconds; on a virtual
                machine it changes when the host moves its processors; null where nobody looked, or there is one processor
  checked       whether the results were checked, and right, at the end too, for which a run that is interrupted does not come
  machine       its processor, memory and system, and whether idle processors were kept awake
Of recovery and recovery-log, ops are the keys that were found again, and seconds the time for opening and reading the first one.";

/// One measurement of one round. See [`FIELDS_HELP`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) engine: String,
    pub(crate) version: String,
    pub(crate) mode: Mode,
    pub(crate) workload: String,
    pub(crate) distribution: Distribution,
    pub(crate) threads: usize,
    pub(crate) pipeline: u32,
    pub(crate) batch: usize,
    pub(crate) window_ms: Option<u64>,
    pub(crate) records: u64,
    pub(crate) key_bytes: usize,
    pub(crate) value_bytes: usize,
    pub(crate) cache_bytes: u64,
    /// Files from before there was this field have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) round: u32,
    pub(crate) ops: u64,
    pub(crate) seconds: f64,
    pub(crate) persist_s: f64,
    pub(crate) ops_per_s: f64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) p999_us: Option<f64>,
    pub(crate) max_us: Option<f64>,
    pub(crate) lag_p50_us: Option<f64>,
    pub(crate) lag_p99_us: Option<f64>,
    pub(crate) lag_max_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) alone_ops_per_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scanned_rows_per_s: Option<f64>,
    pub(crate) cpu_s: f64,
    pub(crate) rss_bytes: u64,
    pub(crate) device_bytes: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) bin_ms: u64,
    pub(crate) bins: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hardenings: Option<u64>,
    pub(crate) hardened_ms: Vec<f64>,
    pub(crate) others: f64,
    pub(crate) steal: f64,
    /// Files from before there was this field have none.
    #[serde(default)]
    pub(crate) memory_ns: Option<f64>,
    /// Files from before there was this field have none.
    #[serde(default)]
    pub(crate) core_to_core_ns: Option<f64>,
    pub(crate) checked: bool,
    /// Files from before there was this field have none.
    #[serde(default)]
    pub(crate) machine: String,
}

impl Row {
    /// A row without measurements. What names the cell is filled in by the caller.
    pub(crate) fn new(engine: &str, mode: Mode, sizes: Sizes) -> Row {
        Row {
            engine: engine.to_owned(),
            version: String::new(),
            mode,
            workload: String::new(),
            distribution: Distribution::Uniform,
            threads: 0,
            pipeline: 1,
            batch: 1,
            window_ms: None,
            records: 0,
            key_bytes: sizes.key_bytes,
            value_bytes: sizes.value_bytes,
            cache_bytes: 0,
            limit_bytes: None,
            round: 0,
            ops: 0,
            seconds: 0.0,
            persist_s: 0.0,
            ops_per_s: 0.0,
            p50_us: None,
            p99_us: None,
            p999_us: None,
            max_us: None,
            lag_p50_us: None,
            lag_p99_us: None,
            lag_max_us: None,
            alone_ops_per_s: None,
            scanned_rows_per_s: None,
            cpu_s: 0.0,
            rss_bytes: 0,
            device_bytes: 0,
            disk_bytes: 0,
            bin_ms: BIN.as_millis() as u64,
            bins: Vec::new(),
            hardenings: None,
            hardened_ms: Vec::new(),
            others: 0.0,
            steal: 0.0,
            memory_ns: None,
            core_to_core_ns: None,
            checked: false,
            machine: String::new(),
        }
    }

    /// The bins that passed as a whole: the last one was cut off by the end.
    pub(crate) fn complete_bins(&self) -> &[u64] {
        let count = (self.seconds * 1000.0 / self.bin_ms.max(1) as f64).floor() as usize;
        &self.bins[..count.min(self.bins.len())]
    }

    /// A row with what was measured in this process.
    pub(crate) fn measured(engine: Name, mode: Mode, sizes: Sizes, measured: &Measured) -> Row {
        let microseconds = |ns: u64| ns as f64 / 1000.0;
        let lag = |quantile: f64| {
            let lag = measured.hardening.as_ref().map(|hardening| &hardening.lag_ns);
            lag.filter(|lag| !lag.is_empty()).map(|lag| microseconds(lag.value_at_quantile(quantile)))
        };
        Row {
            ops: measured.ops,
            seconds: measured.seconds,
            ops_per_s: measured.ops_per_s,
            p50_us: Some(measured.latency_us(0.5)),
            p99_us: Some(measured.latency_us(0.99)),
            p999_us: Some(measured.latency_us(0.999)),
            max_us: Some(measured.latency_us(1.0)),
            lag_p50_us: lag(0.5),
            lag_p99_us: lag(0.99),
            lag_max_us: lag(1.0),
            alone_ops_per_s: measured.scan.map(|scan| scan.alone_ops_per_s),
            scanned_rows_per_s: measured.scan.map(|scan| scan.rows_per_s),
            cpu_s: measured.usage.cpu_s,
            rss_bytes: measured.usage.rss_bytes,
            device_bytes: measured.usage.device_bytes,
            bins: measured.bins.clone(),
            hardenings: measured.hardening.as_ref().and_then(|seen| seen.count),
            hardened_ms: measured.hardening.as_ref().map_or_else(Vec::new, |seen| seen.marks_ms.clone()),
            ..Row::new(&engine.text(), mode, sizes)
        }
    }
}

/// How many of the measurements were never checked to the end, if any.
pub(crate) fn unchecked_text(rows: &[Row]) -> Option<String> {
    let unchecked = rows.iter().filter(|row| !row.checked).count();
    (unchecked > 0)
        .then(|| format!("{unchecked} measurements were not checked to the end: the run was interrupted."))
}

/// The rows of a result file.
pub(crate) fn read(path: &Path) -> Result<Vec<Row>> {
    let text = std::fs::read(path).with_context(|| format!("cannot open {}", path.display()))?;
    let rows = parse(path, &text)?;
    ensure!(!rows.is_empty(), "{} holds no measurements", path.display());
    Ok(rows)
}

fn parse(path: &Path, text: &[u8]) -> Result<Vec<Row>> {
    let lines = (1..).zip(text.split(|&byte| byte == b'\n'));
    let filled = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
    filled
        .map(|(number, line)| {
            serde_json::from_slice(line).with_context(|| {
                format!("line {number} of {} is no measurement of this version of kiln-bench", path.display())
            })
        })
        .collect()
}

/// Where the lines go, if anywhere.
pub(crate) struct RowWriter {
    file: Option<(PathBuf, BufWriter<File>)>,
}

impl RowWriter {
    /// Writes nothing.
    pub(crate) fn none() -> RowWriter {
        RowWriter { file: None }
    }

    /// A new file; one that is there is not overwritten.
    pub(crate) fn create(path: Option<&Path>) -> Result<RowWriter> {
        let Some(path) = path else { return Ok(RowWriter::none()) };
        let file = File::create_new(path).with_context(|| {
            let (is_there, path) = (path.exists(), path.display());
            if is_there {
                format!("{path} is there already, and is left alone; name another result file")
            } else {
                format!("cannot make the result file {path}")
            }
        })?;
        Ok(RowWriter { file: Some((path.to_owned(), BufWriter::new(file))) })
    }

    /// A file that an interrupted run has left, to be gone on with, and its rows. A last line that is not whole is cut off.
    pub(crate) fn resume(path: Option<&Path>) -> Result<(RowWriter, Vec<Row>)> {
        let path = path.context("a run goes on in its result file: name it with --json")?;
        let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let file = File::options().append(true).open(path);
        let file = file.with_context(|| format!("cannot write to {}", path.display()))?;
        // Whatever else a person may have named by mistake is not changed.
        let rows = parse(path, &text[..whole])?;
        let torn = &text[whole..];
        ensure!(
            torn.is_empty() || torn.starts_with(b"{") || !rows.is_empty(),
            "{} holds no measurements",
            path.display()
        );
        file.set_len(whole as u64).context("cannot cut off a line that is not whole")?;
        Ok((RowWriter { file: Some((path.to_owned(), BufWriter::new(file))) }, rows))
    }

    /// Writes these rows in the place of all that there are. Whoever ends the run meanwhile keeps what was there.
    pub(crate) fn rewrite(&mut self, rows: &[Row]) -> Result<()> {
        let Some((path, _)) = &self.file else { return Ok(()) };
        let path = path.clone();
        let anew = path.with_added_extension("new");
        let file = File::create(&anew).with_context(|| format!("cannot make {}", anew.display()))?;
        self.file = Some((path.clone(), BufWriter::new(file)));
        rows.iter().try_for_each(|row| self.write(row))?;
        std::fs::rename(&anew, &path).context("cannot write the result file")
    }

    /// Writes a line, at once: an interrupted run keeps what it measured.
    pub(crate) fn write(&mut self, row: &Row) -> Result<()> {
        if let Some((_, file)) = &mut self.file {
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

    fn row() -> Row {
        Row::new("kiln", Mode::Fast, Sizes { key_bytes: 16, value_bytes: 100 })
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
        let rows = read(&path).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(serde_json::to_value(&rows[1]).unwrap(), serde_json::to_value(row()).unwrap());
        let error = RowWriter::create(Some(&path)).map(drop).unwrap_err();
        assert!(error.to_string().contains("left alone"), "{error}");
        assert_eq!(read(&path).unwrap().len(), 2);
        writer.rewrite(&rows[..1]).unwrap();
        writer.write(&row()).unwrap();
        assert_eq!(read(&path).unwrap().len(), 2);
        let nowhere = directory.path().join("missing/results.json");
        let error = RowWriter::create(Some(&nowhere)).map(drop).unwrap_err();
        assert!(error.to_string().contains("cannot make"), "{error}");
    }

    #[test]
    fn an_interrupted_file_is_gone_on_with_without_its_torn_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.json");
        assert!(RowWriter::resume(Some(&path)).is_err() && RowWriter::resume(None).is_err());
        RowWriter::create(Some(&path)).unwrap().write(&row()).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{whole}{}", &whole[..50])).unwrap();
        let (mut writer, rows) = RowWriter::resume(Some(&path)).unwrap();
        assert_eq!(rows.len(), 1);
        writer.write(&row()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), whole.repeat(2));
        // Somebody's letter stays as it is.
        for letter in ["Dear reader,\nhow are you", "Dear reader"] {
            std::fs::write(&path, letter).unwrap();
            assert!(RowWriter::resume(Some(&path)).is_err());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), letter);
        }
    }

    /// Else rows would change by a hair each time the file is written anew.
    #[test]
    fn figures_are_read_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.json");
        let mut writer = RowWriter::create(Some(&path)).unwrap();
        for divisor in 1..=1000 {
            writer.write(&Row { seconds: 1.0 / f64::from(divisor), ..row() }).unwrap();
        }
        let before = std::fs::read_to_string(&path).unwrap();
        let (mut writer, rows) = RowWriter::resume(Some(&path)).unwrap();
        writer.rewrite(&rows).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap() == before, "rows have changed");
    }

    #[test]
    fn a_file_from_before_there_were_machines_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.json");
        let mut value = serde_json::to_value(row()).unwrap();
        value.as_object_mut().unwrap().remove("machine");
        std::fs::write(&path, value.to_string()).unwrap();
        assert_eq!(read(&path).unwrap()[0].machine, "");
    }

    #[test]
    fn a_file_of_something_else_is_refused_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.json");
        assert!(read(&path).unwrap_err().to_string().contains("cannot open"));
        let line = serde_json::to_string(&row()).unwrap();
        for (text, complaint) in [("", "no measurements"), (&format!("{line}\n{{}}\n"), "line 2")] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }
}
