//! The page: everything that was measured, first at a glance and then by workload.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use clap::ValueEnum;

use super::svg::{self, escape};
use super::{Picture, Section};
use crate::engines::catalog::{Mode, Name};
use crate::results::{Row, unchecked_text};
use crate::summary::cells::{Cell, Group, Kind, Promise, THROUGHPUT, cells};
use crate::summary::idleness;
use crate::summary::papers::Figures;
use crate::summary::{self, numbers};

/// The page's file.
pub(super) const FILE: &str = "index.html";

/// What the page has besides the pictures' style.
const STYLE: &str = "\
*{box-sizing:border-box}body{margin:0 auto;padding:1rem;max-width:76rem;background:var(--paper);color:var(--ink);\
font:16px/1.5 system-ui,-apple-system,\"Segoe UI\",Roboto,\"Liberation Sans\",sans-serif}\
h1{margin:.5rem 0 0;font-size:1.7rem}h2{margin:2.5rem 0 .5rem;font-size:1.3rem;border-bottom:1px solid var(--grid);padding-bottom:.2rem}\
p,ul{max-width:48rem}.muted{color:var(--muted)}a{color:inherit}\
.banner{border:2px solid var(--kiln);border-radius:.4rem;padding:.6rem .9rem;font-weight:600}\
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,27rem),1fr));gap:1.2rem 2.5rem;align-items:start}\
figure{margin:0;min-width:0}figure:has(details[open]){grid-column:1/-1}\
.p-picture{display:block;width:100%;max-width:36rem;height:auto}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;margin:.5rem 0}\
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--grid);text-align:left;vertical-align:top}th{color:var(--muted);font-weight:600}\
th,.n,.w{white-space:nowrap}caption{text-align:left;font-weight:600;padding-bottom:.3rem}.glance{display:flex;flex-wrap:wrap;gap:1rem 3rem}.glance>div{max-width:100%}.n{text-align:right}tr.kiln td{font-weight:600}tr.floor td{color:var(--muted)}\
summary{cursor:pointer;color:var(--muted);font-size:.85rem}nav a{display:inline-block;margin-right:.8rem}@media(max-width:30rem){table{font-size:.75rem}th,td{padding:.25rem .3rem}}";

/// What a reader must know to judge the numbers.
const METHOD: &[&str] = &[
    "Data is loaded once and warmed up; then come rounds in which the compared engines alternate, so that a slow moment of the machine \
     falls on all of them. Numbers are medians of the rounds, with minimum and maximum where it says so.",
    "Ratios are taken round by round within one run, and are the medians of these. Kiln ×3 means that Kiln does three times as many \
     operations in the same time. Where Kiln ran with several windows, the shortest is compared: it loses least in a crash.",
    "Engines that acknowledge a commit when it is durable (modes strong and safe, and the floor \"device\") are compared with each \
     other; those that acknowledge it first (weak and fast, and the floor \"memory\") likewise. The time for making everything durable \
     at the end counts.",
    "Floors are what the machine can do: \"memory\" keeps data in memory behind one lock, \"device\" writes and syncs 4 KiB, \
     \"generator\" is the load with no engine. A floor's bar that is cut off would be longer than there is room for.",
    "Every value that is read is checked; a wrong result fails the run. Of operations faster than 4 us in the mean, one in 61 is timed.",
];

/// The whole page.
pub(super) fn page(rows: &[Row], figures: &[Picture], sections: &[Section<'_>]) -> String {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>Kiln beside its peers</title>\n\
         <style>{}{}{STYLE}</style>\n</head>\n<body>\n<h1>Kiln beside its peers</h1>\n",
        svg::STYLE,
        svg::color_style()
    );
    html.push_str(&head(rows));
    html.push_str(&glance(sections));
    html.push_str(&papers(rows, figures));
    for section in sections {
        html.push_str(&section_html(section));
    }
    html.push_str(&engines(rows));
    html.push_str("<h2 id=\"method\">Method</h2>\n<ul>\n");
    METHOD.iter().for_each(|line| html.push_str(&format!("<li>{}</li>\n", escape(line))));
    html.push_str("</ul>\n</body>\n</html>\n");
    html
}

/// How much was measured, and how idle the machine was.
fn head(rows: &[Row]) -> String {
    let mut rounds: Vec<u32> = rows.iter().map(|row| row.round).collect();
    rounds.sort_unstable();
    rounds.dedup();
    let mut html = format!(
        "<p class=\"muted\">{} measurements in up to {} rounds, {} altogether. {}</p>\n",
        rows.len(),
        rounds.len(),
        duration(rows.iter().map(|row| row.seconds + row.persist_s).sum()),
        escape(&idleness::text(rows))
    );
    for warning in idleness::warning(rows).into_iter().chain(unchecked_text(rows)) {
        // Writing to a String cannot fail.
        let _ = writeln!(html, "<p class=\"banner\" role=\"alert\">{}</p>", escape(&warning));
    }
    html
}

fn duration(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{} s", numbers::significant(seconds))
    } else {
        format!("{:.0} minutes", seconds / 60.0)
    }
}

/// Kiln and the best peer of each group, with links to the pictures; one table for each promise.
fn glance(sections: &[Section<'_>]) -> String {
    let data: BTreeSet<String> =
        sections.iter().flat_map(|section| &section.groups).map(|(group, _)| group.task.data()).collect();
    let mut html = String::new();
    for promise in [Promise::Later, Promise::Durable] {
        let of_section = |section: &Section<'_>| -> Vec<String> {
            let groups = section.groups.iter().filter(|(group, _)| group.promise == promise);
            groups.filter_map(|(group, _)| glance_row(&section.anchor, group, data.len() > 1)).collect()
        };
        let rows: Vec<String> = sections.iter().flat_map(of_section).collect();
        if !rows.is_empty() {
            html.push_str(&format!(
                "<div class=\"wide\"><table>\n<caption>Commits {}</caption>\n<tr><th>workload</th><th>load</th>\
                 <th>best peer</th><th class=\"n\">Kiln/it</th><th class=\"n\">Kiln ops/s</th><th class=\"n\">its ops/s</th>{}</tr>\n\
                 {}</table></div>\n",
                promise.text(),
                if data.len() > 1 { "<th>data</th>" } else { "" },
                rows.concat()
            ));
        }
    }
    if html.is_empty() {
        let link = |section: &Section<'_>| {
            format!("<a href=\"#{}\">{}</a>\n", section.anchor, escape(section.workload))
        };
        return format!("<nav>\n{}</nav>\n", sections.iter().map(link).collect::<String>());
    }
    format!("<h2>At a glance</h2>\n<div class=\"glance\">\n{html}</div>\n")
}

fn glance_row(anchor: &str, group: &Group<'_>, with_data: bool) -> Option<String> {
    let kiln = group.base()?;
    let median = |cell: &Cell<'_>| cell.samples(THROUGHPUT).median();
    let peers = group.cells.iter().filter(|cell| cell.contestant.kind == Kind::Peer);
    let best = peers.max_by(|a, b| median(a).total_cmp(&median(b)));
    let (name, rate, ratio) = best.map_or_else(Default::default, |best| {
        let ratio = summary::ratio_text(summary::kiln_ratio(group, best));
        (best.contestant.engine.clone(), numbers::rate(median(best)), ratio)
    });
    let task = &group.task;
    let data = if with_data { format!("<td class=\"w\">{}</td>", task.data()) } else { String::new() };
    Some(format!(
        "<tr><td class=\"w\"><a href=\"#{anchor}\">{}</a></td><td class=\"w\">{}</td><td class=\"w\">{}</td>\
         <td class=\"n\">{ratio}</td><td class=\"n\">{}</td><td class=\"n\">{rate}</td>{data}</tr>\n",
        escape(&task.workload),
        task.load(),
        escape(&name),
        numbers::rate(median(kiln)),
    ))
}

/// The figures of the papers, with their tables.
fn papers(rows: &[Row], figures: &[Picture]) -> String {
    let tables = Figures::new(rows).tables;
    if tables.is_empty() && figures.is_empty() {
        return String::new();
    }
    let mut html = "<h2 id=\"papers\">The papers' figures</h2>\n<div class=\"pictures\">\n".to_owned();
    figures.iter().for_each(|picture| html.push_str(&figure(picture, "")));
    html.push_str("</div>\n");
    for table in &tables {
        html.push_str(&format!(
            "<div class=\"wide\"><table>\n<caption>{}</caption>\n",
            escape(table.title())
        ));
        for (at, row) in table.rows().iter().enumerate() {
            let tag = if at == 0 { "th" } else { "td" };
            // What Markdown sets in bold type.
            let cell = |text: &String| format!("<{tag}>{}</{tag}>", escape(&text.replace("**", "")));
            html.push_str(&format!("<tr>{}</tr>\n", row.iter().map(cell).collect::<String>()));
        }
        html.push_str("</table></div>\n");
    }
    html
}

fn section_html(section: &Section<'_>) -> String {
    let mut html = format!(
        "<h2 id=\"{}\">{}</h2>\n<div class=\"pictures\">\n",
        section.anchor,
        escape(section.workload)
    );
    for (group, picture) in &section.groups {
        html.push_str(&figure(
            picture,
            &format!("<details><summary>All numbers</summary>{}</details>\n", table(group)),
        ));
    }
    section.others.iter().for_each(|picture| html.push_str(&figure(picture, "")));
    html.push_str("</div>\n");
    html
}

fn figure(picture: &Picture, below: &str) -> String {
    format!("<figure id=\"{}\">\n{}{below}</figure>\n", picture.name, picture.svg.inline())
}

/// A group's table; the first two columns are words.
fn table(group: &Group<'_>) -> String {
    let (columns, rows) = summary::table(group);
    let class = |at: usize| if at < 2 { "" } else { " class=\"n\"" };
    let cells = |texts: &mut dyn Iterator<Item = &str>, tag: &str| -> String {
        let cell = |(at, text)| format!("<{tag}{}>{}</{tag}>", class(at), escape(text));
        texts.enumerate().map(cell).collect()
    };
    let mut html =
        format!("<div class=\"wide\"><table>\n<tr>{}</tr>\n", cells(&mut columns.into_iter(), "th"));
    for (cell, row) in group.cells.iter().zip(rows) {
        let class = match cell.contestant.kind {
            Kind::Kiln => "kiln",
            Kind::Peer => "peer",
            Kind::Floor => "floor",
        };
        let _ =
            writeln!(html, "<tr class=\"{class}\">{}</tr>", cells(&mut row.iter().map(String::as_str), "td"));
    }
    html.push_str("</table></div>\n");
    html
}

/// The engines: versions, and the settings of those that this program knows.
fn engines(rows: &[Row]) -> String {
    let cells = cells(rows);
    let mut modes: Vec<(Kind, &str, Mode)> = cells
        .iter()
        .map(|cell| (cell.contestant.kind, cell.contestant.engine.as_str(), cell.contestant.mode))
        .collect();
    modes.sort_unstable();
    modes.dedup();
    let mut html = "<h2 id=\"engines\">Engines</h2>\n<div class=\"wide\"><table>\n<tr><th>engine</th><th>version</th><th>mode</th>\
                    <th>what it is, and its settings</th></tr>\n"
        .to_owned();
    for (_, engine, mode) in modes {
        let own =
            cells.iter().filter(|cell| cell.contestant.engine == engine && cell.contestant.mode == mode);
        let mut versions: Vec<&str> =
            own.clone().flat_map(Cell::versions).filter(|text| !text.is_empty()).collect();
        versions.sort_unstable();
        versions.dedup();
        let mode_text =
            own.clone().next().map_or_else(String::new, |cell| cell.contestant.mode.text().to_owned());
        let described = Name::from_str(engine, false).ok().map(Name::description);
        let settings =
            described.map_or_else(String::new, |known| format!("{}. {}", known.what, (known.settings)(mode)));
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{mode_text}</td><td>{}</td></tr>",
            escape(engine),
            escape(&versions.join(", ")),
            escape(&settings)
        );
    }
    html.push_str("</table></div>\n");
    html
}
