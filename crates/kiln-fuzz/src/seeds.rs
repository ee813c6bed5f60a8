//! The first inputs of the corpus, made of real databases.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use kiln::device::{Device as _, Keep, SimulatedDevice};
use kiln::{Kiln, Options};

use crate::format::{BLOCK, HEAD};
use crate::resp::request;
use crate::{format, image, stream};

/// Writes them, in a directory for each target.
///
/// # Errors
/// If that fails.
pub fn write(directory: &Path) -> io::Result<()> {
    let mut seeds = Seeds { directory, number: 0 };
    for disk in databases().map_err(io::Error::other)? {
        seeds.add("image", &image::encode(&disk))?;
        let superblock = disk.bytes("superblock");
        seeds.add("superblock", &[&[3], superblock.as_slice()].concat())?;
        let mut flagged = superblock;
        flagged.chunks_mut(BLOCK).for_each(|slot| format::put(slot, 12, &[format::SUPERBLOCK_FLAGS]));
        seeds.add("superblock", &[&[0], flagged.as_slice()].concat())?;
        for name in disk.list()?.iter().filter(|name| name.starts_with("checkpoint-")) {
            seeds.add("checkpoint", &[&[3], disk.bytes(name).as_slice()].concat())?;
        }
        for name in disk.list()?.iter().filter(|name| name.starts_with("segment-")) {
            let segment = disk.bytes(name);
            seeds.extents(&segment)?;
            seeds.add("reader", &[&[0, 4], &segment[..segment.len().min(12 << 10)]].concat())?;
        }
    }
    seeds.streams().map_err(io::Error::other)?;
    seeds.nodes().map_err(io::Error::other)?;
    seeds.texts()
}

struct Seeds<'a> {
    directory: &'a Path,
    number: usize,
}

impl Seeds<'_> {
    fn add(&mut self, target: &str, input: &[u8]) -> io::Result<()> {
        let directory = self.directory.join(target);
        std::fs::create_dir_all(&directory)?;
        self.number += 1;
        std::fs::write(directory.join(format!("seed-{:03}", self.number)), input)
    }

    /// Extents, their seals, and what the records of the system objects hold.
    fn extents(&mut self, segment: &[u8]) -> io::Result<()> {
        let mut at = 0;
        while let Some(head) = segment.get(at..at + HEAD).filter(|head| head.starts_with(b"KILNSEAL")) {
            let field = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| head[at + index]));
            let (address, length) = (field(8), field(16) as usize);
            let Some(extent) = segment.get(at..at + length) else { break };
            self.add("seal", &[&[1], head].concat())?;
            if length == BLOCK {
                self.add("extent", &[&[3], extent].concat())?;
            }
            for record in format::records(extent, address).unwrap_or_default() {
                match record.object {
                    0 => {
                        let length = record.key.len() as u8;
                        self.add("catalog", &[&[length], record.key.as_slice(), &record.value].concat())?;
                    }
                    1 => self.add("sessions", &record.value)?,
                    2 => self.add("sessions", &[record.key, record.value].concat())?,
                    _ => {}
                }
            }
            at += length;
        }
        Ok(())
    }

    /// A backup with log, tree and checkpoint, and one of a database with nothing in it.
    fn streams(&mut self) -> kiln::Result<()> {
        for is_filled in [true, false] {
            let db = open(&SimulatedDevice::new(7))?;
            if is_filled {
                fill(&db, 2)?;
                db.settle()?;
                db.checkpoint()?;
            }
            let written = Written::default();
            db.backup_stream(written.clone(), |_| {})?;
            let stream = written.0.lock().unwrap_or_else(PoisonError::into_inner);
            let added = self.add("stream", &stream::shorten(&stream));
            added.map_err(|error| kiln::Error::caller(error.to_string()))?;
        }
        Ok(())
    }

    /// Leaves and inner nodes: keys with and without a common beginning, long ones, values of all lengths.
    fn nodes(&mut self) -> kiln::Result<()> {
        let number = |number: usize| format!("key{number:06}").into_bytes();
        let mut entries: Vec<_> = (0..300).map(|index| (number(index), vec![7; index % 90])).collect();
        entries.push((number(300), vec![1; 5000]));
        entries.push((vec![b'x'; 40_000], vec![2; 10]));
        entries.push((vec![b'x'; 40_001], Vec::new()));
        entries.push((vec![0xFF], vec![3; 2000]));
        for packs in [false, true] {
            self.nodes_of(&kiln::fuzzing::tree_of(&entries, packs)?)?;
        }
        Ok(())
    }

    fn nodes_of(&mut self, file: &[u8]) -> kiln::Result<()> {
        for blocks in [1, 2, 3, 11, 12, 21, 22] {
            for start in (2 * BLOCK..file.len()).step_by(BLOCK) {
                if let Some(node) = file.get(start..start + blocks * BLOCK)
                    && kiln::fuzzing::tree_node(node).is_ok()
                {
                    // Zeros at the end are part of a node, and of no interest.
                    let end = node.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                    self.add("node", &node[..end.max(16)])
                        .map_err(|error| kiln::Error::caller(error.to_string()))?;
                }
            }
        }
        Ok(())
    }

    /// Requests and JSON lines.
    fn texts(&mut self) -> io::Result<()> {
        for lines in COMMANDS {
            let words = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
            let stream: Vec<u8> = lines.lines().flat_map(|line| request(&words(line))).collect();
            for target in ["commands", "resp"] {
                self.add(target, &[&[7], stream.as_slice()].concat())?;
                self.add(target, &[&[0], lines.as_bytes(), b"\r\n"].concat())?;
            }
        }
        self.add("resp", b"\x09set \"a \\x41\\n\" 'it\\'s'\r\n*1\r\n$100\r\n")?;
        self.add("import", LINES.as_bytes())
    }
}

/// What a stream is written to.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const LINES: &str = r#"{"key":"a","value":"text"}

{"key":{"base64":"/w=="},"value":{"base64":"AP8="}}
{"value":"\u00fc\n\ud83d\ude00","key":""}
"#;

const COMMANDS: &[&str] = &[
    "SET k 1 EX 10 NX\nGET k\nINCR k\nINCRBYFLOAT k 0.1\nAPPEND k x\nSTRLEN k\nGETDEL k\nTTL k",
    "MULTI\nMSET a 1 b 2\nMGET a b c\nEXEC\nWATCH a\nUNWATCH\nDISCARD",
    "HELLO 3\nGET none\nKILN DURABILITY fast\nKILN SESSION s\nSET a 1\nKILN RECEIPT\nWAITAOF 1 0 0\nKILN SERIAL",
    "SETEX a 5 v\nPTTL a\nPERSIST a\nEXPIREAT a 1\nGETEX a PX 5\nSCAN 0 MATCH a* COUNT 2\nKEYS [a-c]?\nDBSIZE",
    "FLUSHALL\nSETNX a 1\nMSETNX a 1 b 2\nDEL a b\nEXISTS a a\nTYPE a\nCLIENT SETNAME me\nCLIENT LIST\nINFO",
    "SETRANGE a 2 x\nGETRANGE a 0 -1\nRENAME a b\nCOPY b c REPLACE\nOBJECT ENCODING c\nEXPIRETIME c\nTOUCH a\nTIME\nROLE",
    "SET a 1\nKILN SNAPSHOT CREATE s\nKILN SNAPSHOT GET s a\nKILN SNAPSHOT MGET s a b\nKILN SNAPSHOT KEYS s *",
    "COMMAND GETKEYS get a\nCOMMAND DOCS get\nCONFIG GET *\nSELECT 0\nECHO hello\nPING\nRESET\nQUIT",
];

/// Small databases: closed, stopped, crashed, over several segments, with deletions, sessions and losses.
fn databases() -> kiln::Result<Vec<SimulatedDevice>> {
    let mut disks = Vec::new();
    let closed = disk(&mut disks);
    let db = open(&closed)?;
    fill(&db, 3)?;
    db.checkpoint()?;
    db.close()?;
    drop(db);
    let stopped = disk(&mut disks);
    let db = open(&stopped)?;
    fill(&db, 2)?;
    stopped.crash_after(stopped.steps());
    drop(db);
    let mut before = stopped.after_crash_seeded(1);
    for seed in 2..4 {
        let db = open(&before)?;
        fill(&db, 1)?;
        let map = db.map("map")?;
        db.put(&map, "late", [seed; 40])?.forget();
        before.crash_after(before.steps() + 1);
        // The crash comes in between.
        let _ = db.persist();
        drop(db);
        before = before.after_crash_seeded(seed.into());
        disks.push(before.after_crash(&mut |_| Keep::Kept));
    }
    let large = disk(&mut disks);
    let db = open(&large)?;
    let table = db.table("table")?;
    for number in 0..90_u32 {
        db.put(&table, (number % 5).to_be_bytes(), [number as u8; 3000])?.safe()?;
    }
    db.checkpoint()?;
    db.close()?;
    // Those that have crashed answer again in a copy.
    Ok(disks.iter().map(|disk| disk.after_crash(&mut |_| Keep::Kept)).collect())
}

fn disk(disks: &mut Vec<SimulatedDevice>) -> SimulatedDevice {
    let disk = SimulatedDevice::new(disks.len() as u64);
    disks.push(disk.clone());
    disk
}

fn open(disk: &SimulatedDevice) -> kiln::Result<Kiln> {
    Options::new().background(false).segment_bytes(64 << 10).memory(128 << 10).open_on(Arc::new(disk.clone()))
}

fn fill(db: &Kiln, rounds: u8) -> kiln::Result<()> {
    let (map, table) = (db.map("map")?, db.table("table")?);
    let session = db.session("session")?;
    for round in 0..rounds {
        for number in 0..4_u8 {
            db.put(&map, [b'a' + number], [round; 9])?.forget();
            db.put(&table, [b'k', number], [number; 30])?.forget();
        }
        session.transact(|tx| tx.put(&map, "counter", [round]))?.safe()?;
        db.delete(&table, [b'k', 1])?.safe()?;
    }
    Ok(())
}
