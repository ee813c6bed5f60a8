//! Runs inputs through their targets without a fuzzer, and makes the first inputs of the corpus.

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
kiln-fuzz list                       names the targets
kiln-fuzz replay TARGET FILE...      runs inputs, such as one that a fuzzer has found
kiln-fuzz seeds DIRECTORY            writes inputs from real databases, a directory for each target";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["list"] => {
            kiln_fuzz::TARGETS.iter().for_each(|target| println!("{}", target.name));
            Ok(())
        }
        ["replay", target, files @ ..] => replay(target, files),
        ["seeds", directory] => {
            kiln_fuzz::seeds::write(Path::new(directory)).map_err(|error| error.to_string())
        }
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn replay(target: &str, files: &[&str]) -> Result<(), String> {
    let target = kiln_fuzz::target(target).ok_or_else(|| format!("there is no target {target:?}"))?;
    for file in files {
        let input = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
        println!("{file}");
        (target.run)(&input);
    }
    Ok(())
}
