//! Where a report goes. Only what a report has written is ever replaced.
//!
//! A directory of a report holds a marker that lists the report's files. The marker is written before the files: a report that was
//! interrupted is known as one, too.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Output;

const MARKER: &str = ".kiln-bench-report";

/// Writes the files of a report, in place of those of an earlier one.
pub(super) fn write(path: &Path, outputs: &[Output]) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot make the directory {}", path.display()))?;
    let earlier = earlier(path)?;
    let names: BTreeSet<String> = outputs.iter().map(|output| output.name.clone()).collect();
    mark(path, &earlier.union(&names).cloned().collect())?;
    for name in earlier.difference(&names) {
        match fs::remove_file(path.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| {
                    format!("cannot remove {} of the earlier report", path.join(name).display())
                });
            }
            _ => {}
        }
    }
    for output in outputs {
        let file = path.join(&output.name);
        fs::write(&file, &output.text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    mark(path, &names)
}

fn mark(path: &Path, names: &BTreeSet<String>) -> Result<()> {
    let lines: String = names.iter().map(|name| format!("{name}\n")).collect();
    fs::write(path.join(MARKER), lines).with_context(|| format!("cannot write to {}", path.display()))
}

/// The files of the report that is there, if one is. An error if anything else is.
fn earlier(path: &Path) -> Result<BTreeSet<String>> {
    let marker = fs::read_to_string(path.join(MARKER)).unwrap_or_default();
    let listed: BTreeSet<&str> = marker.lines().filter(|name| is_of_report(name)).collect();
    let mut present = BTreeSet::new();
    for entry in fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
        let entry = entry.with_context(|| format!("cannot read {}", path.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == MARKER {
            continue;
        }
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        ensure!(
            is_file && listed.contains(name.as_str()),
            "{} holds {name}, which is not of an earlier report, and is left alone; name another directory with --out",
            path.display()
        );
        present.insert(name);
    }
    Ok(present)
}

/// Whether a report writes files of such a name: a marker could say anything.
fn is_of_report(name: &str) -> bool {
    [super::page::FILE, super::TABLES].contains(&name)
        || name.strip_suffix(".svg").is_some_and(|stem| super::file_name(stem) == stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(names: &[&str]) -> Vec<Output> {
        names.iter().map(|name| Output { name: (*name).to_owned(), text: (*name).to_owned() }).collect()
    }

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_report_replaces_an_earlier_one_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/report");
        write(&path, &outputs(&["index.html", "one.svg", "two.svg"])).unwrap();
        write(&path, &outputs(&["index.html", "two.svg", "three.svg"])).unwrap();
        assert_eq!(names(&path), [MARKER, "index.html", "three.svg", "two.svg"]);

        fs::write(path.join("mine.svg"), "mine").unwrap();
        let error = write(&path, &outputs(&["index.html"])).unwrap_err().to_string();
        assert!(error.contains("mine.svg") && error.contains("--out"), "{error}");
        assert_eq!(names(&path).len(), 5);
    }

    #[test]
    fn a_directory_of_something_else_is_refused_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("index.html"), "mine").unwrap();
        assert!(write(directory.path(), &outputs(&["index.html"])).is_err());
        assert_eq!(names(directory.path()), ["index.html"]);
        assert_eq!(fs::read_to_string(directory.path().join("index.html")).unwrap(), "mine");
    }

    #[test]
    fn a_marker_cannot_have_anything_else_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report");
        write(&path, &outputs(&["index.html"])).unwrap();
        fs::write(directory.path().join("mine.svg"), "mine").unwrap();
        fs::write(path.join("notes.txt"), "mine").unwrap();
        fs::write(path.join(MARKER), "index.html\n../mine.svg\nnotes.txt\n").unwrap();
        assert!(write(&path, &outputs(&["index.html"])).is_err());
        fs::remove_file(path.join("notes.txt")).unwrap();
        write(&path, &outputs(&["index.html"])).unwrap();
        assert!(directory.path().join("mine.svg").exists());
    }
}
