//! Every input that was kept runs through its target. One test, since the targets measure their memory.

use std::path::Path;

#[test]
fn what_was_kept_of_the_fuzzers_inputs_does_no_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for target in kiln_fuzz::TARGETS {
        let directory = corpus.join(target.name);
        let files = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{directory:?}: {error}"));
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{directory:?} is empty");
        for file in &files {
            let input = std::fs::read(file).unwrap();
            let failed = std::panic::catch_unwind(|| (target.run)(&input)).is_err();
            assert!(
                !failed,
                "to repeat: cargo run -p kiln-fuzz -- replay {} {}",
                target.name,
                file.display()
            );
        }
        println!("{}: {} inputs", target.name, files.len());
    }
}
