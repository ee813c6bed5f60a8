//! Which pictures there are, and that page and pictures are well-formed, closed in themselves, and the same each time.

use roxmltree::{Document, ParsingOptions};

use super::*;
use crate::engines::catalog::Mode;
use crate::summary::tests::sample;

fn parsed(text: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn names(rows: &[Row]) -> Vec<String> {
    outputs(rows).into_iter().map(|output| output.name).collect()
}

fn kiln(window_ms: u64, threads: usize) -> Row {
    Row { window_ms: Some(window_ms), threads, ..sample("kiln", Mode::Fast, "update", 0, 1e6) }
}

/// All kinds of pictures, with names that want to be markup.
fn everything() -> Vec<Row> {
    let hostile = "<b>&\"'</svg></script>\u{1}";
    let mut rows = vec![kiln(100, 1), kiln(5000, 1), kiln(100, 2), kiln(5000, 2)];
    rows[0].bins = vec![10, 20, 0, 30, 40, 50, 3];
    rows[0].hardened_ms = vec![90.0, 91.0, 190.0, 9999.0];
    rows[1].lag_p50_us = Some(2e6);
    rows[1].lag_p99_us = Some(4e6);
    rows.extend([
        sample("lmdb", Mode::Weak, "update", 0, 2e5),
        sample("generator", Mode::Floor, "update", 0, 6e7),
        sample("device", Mode::Floor, "update", 0, 5e3),
        sample("rocksdb", Mode::Strong, "update", 0, f64::NAN),
        sample(hostile, Mode::Weak, "update", 0, 0.0),
        Row { version: hostile.to_owned(), ..sample("lmdb", Mode::Weak, hostile, 0, 1e-9) },
    ]);
    rows
}

#[test]
fn bars_are_drawn_for_each_load_and_promise() {
    let mut rows = vec![
        sample("kiln", Mode::Fast, "update", 0, 1e6),
        sample("lmdb", Mode::Weak, "update", 0, 1e6),
        sample("kiln", Mode::Safe, "update", 0, 1e3),
        sample("kiln", Mode::Fast, "read it", 0, 1e6),
    ];
    let expected =
        ["bars-update-1-threads-later", "bars-update-1-threads-durable", "bars-read-it-1-threads-later"];
    let mut expected: Vec<String> = expected.map(|name| format!("{name}.svg")).into();
    expected.splice(0..0, ["index.html".to_owned(), "tables.md".to_owned()]);
    assert_eq!(names(&rows), expected);
    // The same load on other data is another picture, and does not take the first one's name.
    rows.push(Row { value_bytes: 8, ..rows[0].clone() });
    assert!(names(&rows).contains(&"bars-update-1-threads-later-2.svg".to_owned()));
}

#[test]
fn windows_are_drawn_where_kiln_ran_with_two() {
    let window = "window-update.svg".to_owned();
    assert!(names(&[kiln(100, 1), kiln(5000, 1)]).contains(&window));
    assert!(!names(&[kiln(100, 1), kiln(100, 2)]).contains(&window));
    // Neither another engine's window nor that of commits which wait is one.
    let other = Row { engine: "lmdb".to_owned(), ..kiln(5000, 1) };
    assert!(!names(&[kiln(100, 1), other]).contains(&window));
    let safe = Row { mode: Mode::Safe, ..kiln(5000, 1) };
    assert!(!names(&[kiln(100, 1), safe]).contains(&window));
}

#[test]
fn the_papers_figures_are_drawn_where_there_are_rows_for_them() {
    let of_figures = |rows: &[Row]| -> Vec<String> {
        names(rows).into_iter().filter(|name| name.starts_with("figure-")).collect()
    };
    let bins =
        |mode| Row { bins: vec![1, 2, 3, 4, 5], seconds: 0.25, ..sample("kiln", mode, "map-upsert", 0, 1e6) };
    let client =
        |threads| Row { threads, ..sample("kiln", Mode::Safe, "safe-commit", 0, 1e3 * threads as f64) };
    let mut rows = vec![
        sample("kiln", Mode::Fast, "map-txn-1-50", 0, 1e6),
        sample("kiln-wal", Mode::Weak, "map-txn-1-50", 0, 1e6),
        bins(Mode::Fast),
        bins(Mode::Floor),
        sample("kiln", Mode::Fast, "map-buffered-256", 0, 1e6),
        sample("kiln", Mode::Fast, "map-buffered-1024", 0, 2e6),
    ];
    rows.extend([1, 100, 5000].map(|window| kiln(window, 2)));
    assert_eq!(
        of_figures(&rows),
        ["figure-transactions-uniform-1-threads", "figure-time-map-upsert-1-threads-later", "figure-buffers"]
            .map(|name| format!("{name}.svg"))
    );
    rows.extend([1, 16, 64].map(client));
    assert!(of_figures(&rows).contains(&"figure-latency.svg".to_owned()));
    assert_eq!(of_figures(&everything()), [] as [String; 0]);
    let outputs = outputs(&rows);
    outputs
        .iter()
        .filter(|output| output.name.ends_with(".svg"))
        .for_each(|output| drop(parsed(&output.text)));
    let page = &outputs[0].text;
    assert!(page.contains("<caption>CPR, figures 12 to 14") && !page.contains("**"));
}

#[test]
fn a_window_has_its_lag_only_where_it_was_measured() {
    let text = |rows: &[Row]| {
        let outputs = outputs(rows);
        outputs.into_iter().find(|output| output.name == "window-update.svg").unwrap().text
    };
    let mut rows = vec![kiln(100, 1), kiln(5000, 1)];
    assert!(!text(&rows).contains("From commit to durable"));
    rows[1].lag_p99_us = Some(1e6);
    assert!(text(&rows).contains("From commit to durable"));
}

#[test]
fn scaling_is_drawn_where_an_engine_ran_with_two_numbers_of_threads() {
    let scaling = "scaling-update-later.svg".to_owned();
    assert!(names(&[kiln(100, 1), kiln(100, 2)]).contains(&scaling));
    assert!(!names(&[kiln(100, 1), kiln(5000, 1)]).contains(&scaling));
    // Two engines with one number each are no line.
    let other = Row { engine: "lmdb".to_owned(), mode: Mode::Weak, ..kiln(100, 2) };
    assert!(!names(&[kiln(100, 1), other]).contains(&scaling));
}

#[test]
fn time_is_drawn_for_the_longest_round_with_bins() {
    let has_time = |rows: &[Row]| names(rows).into_iter().find(|name| name.starts_with("time-"));
    let mut rows = vec![kiln(100, 1), kiln(100, 2)];
    assert_eq!(has_time(&rows), None);
    rows[0].bins = vec![1; 40];
    assert_eq!(has_time(&rows).unwrap(), "time-update-1-threads-later.svg");
    rows[1].bins = vec![1; 80];
    rows[1].seconds = 4.0;
    assert_eq!(has_time(&rows).unwrap(), "time-update-2-threads-later.svg");
    // A floor keeps no pace.
    rows[1].mode = Mode::Floor;
    assert_eq!(has_time(&rows).unwrap(), "time-update-1-threads-later.svg");
    // The last bin was cut off, and too few are left.
    rows[0].seconds = 0.19;
    assert_eq!(has_time(&rows), None);
}

#[test]
fn the_same_rows_make_the_same_report_in_well_formed_files() {
    let rows = everything();
    let outputs = outputs(&rows);
    assert!(
        ["bars-", "window-", "scaling-", "time-"]
            .iter()
            .all(|kind| { outputs.iter().any(|output| output.name.starts_with(kind)) })
    );
    for (output, again) in outputs.iter().zip(super::outputs(&rows)) {
        assert_eq!((&output.name, &output.text), (&again.name, &again.text));
        if output.name == TABLES {
            continue;
        }
        let document = parsed(&output.text);
        let kinds = ["script", "b", "img", "link", "iframe", "image", "use"];
        assert!(document.descendants().all(|node| !kinds.contains(&node.tag_name().name())));
        let ids: Vec<&str> = document.descendants().filter_map(|node| node.attribute("id")).collect();
        let links = document.descendants().filter_map(|node| node.attribute("href"));
        assert!(links.into_iter().all(|link| ids.contains(&link.trim_start_matches('#'))));
        assert!(ids.iter().enumerate().all(|(at, id)| !ids[..at].contains(id)));
        assert!(!output.text.contains("NaN") && !output.text.contains("inf\""));
    }
}

#[test]
fn nothing_is_asked_for_from_elsewhere() {
    for output in outputs(&everything()) {
        let text = output.text.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for foreign in ["http:", "https:", "//", "url(", "@import", "src="] {
            assert!(!text.contains(foreign), "{foreign} in {}", output.name);
        }
    }
}

#[test]
fn the_page_says_what_was_measured_and_how() {
    let mut rows = everything();
    let page = |rows: &[Row]| outputs(rows).remove(0).text;
    let text = page(&rows);
    for part in [
        "At a glance",
        "Method",
        "All numbers",
        "Kiln ×5.00",
        "1.2.3",
        "one direct write of 4 KiB and one fdatasync",
    ] {
        assert!(text.contains(part), "{part}");
    }
    assert!(!text.contains("class=\"banner\""));
    rows.iter_mut().for_each(|row| row.others = 0.5);
    assert!(page(&rows).contains("stop what else runs"));
    rows[1].checked = false;
    assert!(page(&rows).contains("1 measurements were not checked"));
}

#[test]
fn every_row_of_a_table_is_as_wide_as_its_head() {
    let outputs = outputs(&everything());
    let document = parsed(&outputs[0].text);
    for table in document.descendants().filter(|node| node.has_tag_name("table")) {
        let widths: Vec<usize> = table
            .children()
            .filter(|child| child.has_tag_name("tr"))
            .map(|row| row.children().filter(roxmltree::Node::is_element).count())
            .collect();
        assert!(widths.len() > 1 && widths.iter().all(|width| *width == widths[0]), "{widths:?}");
    }
}

#[test]
fn rounds_of_different_files_are_different_rounds() {
    let directory = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| {
        let path = directory.path().join(name);
        let engine = if name == "a" { "kiln" } else { "lmdb" };
        let mut writer = results::RowWriter::create(Some(&path)).unwrap();
        (0..3).for_each(|round| writer.write(&sample(engine, Mode::Fast, "read", round, 1e6)).unwrap());
        path
    });
    let rows = read(&paths).unwrap();
    assert_eq!(rows.iter().map(|row| row.round).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    let settings = ReportSettings { files: paths.into(), out: directory.path().join("report") };
    run(&settings).unwrap();
    assert!(settings.out.join("index.html").is_file());
    let unreadable = ReportSettings { files: vec![settings.out.join("index.html")], ..settings };
    let error = format!("{:#}", run(&unreadable).unwrap_err());
    assert!(error.contains("line 1") && error.contains("index.html"), "{error}");
}

#[test]
fn engines_keep_their_colours_and_share_none_while_there_are_enough() {
    let names = ["rocksdb", "leveldb", "lmdb", "sqlite", "redb", "fjall", "sled", "faster", "redis"];
    let rows: Vec<Row> = names.iter().map(|name| sample(name, Mode::Weak, "read", 0, 1.0)).collect();
    let color = |palette: &Palette, name: &str| {
        let cells = sample(name, Mode::Weak, "read", 0, 1.0);
        let cell = cells::cells(std::slice::from_ref(&cells)).remove(0);
        palette.color(&cell.contestant)
    };
    let palette = Palette::new(&rows);
    let mut colors: Vec<String> = names.iter().map(|name| color(&palette, name)).collect();
    colors.sort();
    colors.dedup();
    assert_eq!(colors.len(), names.len());
}
