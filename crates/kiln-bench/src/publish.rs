//! `kiln-bench tables`: the tables of the documentation, printed or put into it.

use std::path::Path;

use anyhow::{Context, Result};

use crate::arguments::TablesSettings;
use crate::pictures;
use crate::summary::published;

/// What stands before and behind the tables in a document.
const BEGIN: &str = "<!-- kiln-bench tables: begin -->";
const END: &str = "<!-- kiln-bench tables: end -->";

/// Prints the tables of result files, or replaces those of a document.
pub(crate) fn run(settings: &TablesSettings) -> Result<()> {
    let tables = published::text(&pictures::read(&settings.files)?);
    match &settings.into {
        None => print!("{tables}"),
        Some(path) => {
            let document =
                std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            let document = replaced(&document, &tables, path)?;
            write(path, &document).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}

/// Writes a document beside the one that is there, and then in its place: one that cannot be written, or is not to the end, leaves the old one.
fn write(path: &Path, document: &str) -> std::io::Result<()> {
    // One that is a link stays one.
    let path = std::fs::canonicalize(path)?;
    let anew = path.with_added_extension("new");
    std::fs::write(&anew, document).and_then(|()| std::fs::rename(&anew, &path))
}

/// A document with other tables.
fn replaced(document: &str, tables: &str, path: &Path) -> Result<String> {
    let found = document.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?)));
    let (before, (_, after)) =
        found.with_context(|| format!("{} has no place for tables: {BEGIN} and {END}", path.display()))?;
    Ok(format!("{before}{BEGIN}\n\n{tables}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_between_the_marks_is_replaced_and_nothing_else() {
        let path = Path::new("document.md");
        let document = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let once = replaced(&document, "new\n", path).unwrap();
        assert_eq!(once, format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert_eq!(replaced(&once, "new\n", path).unwrap(), once);
        for document in ["", BEGIN, &format!("{END} {BEGIN}")] {
            assert!(replaced(document, "new", path).unwrap_err().to_string().contains("document.md"));
        }
    }
}
