//! A drawing, written as SVG text.
//!
//! The pictures are bars, lines and labels, so that a few element kinds do; a plotting library would bring its own fonts, colours
//! and layout, which do not follow the reader's light or dark mode. Colours are classes: their values are in
//! [`STYLE`], once in the page and once in each picture that stands alone.

use std::fmt::Write as _;

/// The width of every picture, in its own units: small enough that letters stay readable on a phone.
pub(crate) const WIDTH: f64 = 480.0;
/// The height of letters.
pub(crate) const LETTER: f64 = 12.0;
/// The number of colours for peers.
pub(crate) const COLORS: usize = 12;

/// Colours and letters of all pictures, in light and dark. Class names begin with "p-", because a page has classes of its own.
pub(crate) const STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--muted:#5c6670;--grid:#e3e7eb;--kiln:#d2480b;--peer:#8fa6bd;--floor:#d5dade;\
--p0:#1f6fb4;--p1:#2a8a3e;--p2:#8b4fb8;--p3:#0f8587;--p4:#b3397a;--p5:#7a6a00;--p6:#4a56c8;--p7:#8a5a36;--p8:#4f7f1f;--p9:#b5303f;\
--p10:#5b6b7a;--p11:#007a9e}\
@media(prefers-color-scheme:dark){:root{--paper:#15191e;--ink:#e8ecf0;--muted:#a0abb6;--grid:#2d343c;--kiln:#ff8a3d;--peer:#5f7a95;\
--floor:#3a434c;--p0:#6cb2f0;--p1:#69c97c;--p2:#c79bf0;--p3:#4fd0d2;--p4:#f08cc0;--p5:#d8c54a;--p6:#9aa5ff;--p7:#d3a37c;--p8:#a5d46a;\
--p9:#ff8a98;--p10:#a9b8c6;--p11:#58c7ea}}\
.p-paper{fill:var(--paper)}.p-picture text{font:12px system-ui,-apple-system,\"Segoe UI\",Roboto,\"Liberation Sans\",sans-serif;\
fill:var(--ink);font-variant-numeric:tabular-nums;paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}\
.p-picture .p-title{font-size:14px;font-weight:600}.p-picture .p-strong{font-weight:600}.p-picture .p-muted{fill:var(--muted)}\
.p-picture .p-small{font-size:11px;fill:var(--muted)}\
.p-grid{stroke:var(--grid)}.p-axis{stroke:var(--muted)}.p-whisker{stroke:var(--ink);stroke-width:1.2}.p-break{stroke:var(--paper);stroke-width:2.5}\
.p-bar-kiln{fill:var(--kiln)}.p-bar-peer{fill:var(--peer)}.p-bar-floor{fill:var(--floor);stroke:var(--muted);stroke-dasharray:2 2}\
.p-line{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}.p-dashed{stroke-dasharray:5 3}\
.p-reference{fill:none;stroke:var(--muted);stroke-dasharray:2 3}.p-leader{fill:none;stroke-width:.7;opacity:.6}\
.p-area{opacity:.22;stroke:none}.p-mark{stroke:var(--ink);stroke-width:1}\
.p-s-kiln{stroke:var(--kiln)}.p-f-kiln{fill:var(--kiln)}.p-s-floor{stroke:var(--muted)}.p-f-floor{fill:var(--muted)}";

/// The classes of the peers' colours, as [`STYLE`] has them for Kiln and the floors.
pub(crate) fn color_style() -> String {
    (0..COLORS).map(|at| format!(".p-s-{at}{{stroke:var(--p{at})}}.p-f-{at}{{fill:var(--p{at})}}")).collect()
}

/// Where a text is put: its beginning, middle or end is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture that grows downwards.
pub(crate) struct Svg {
    title: String,
    height: f64,
    body: String,
}

impl Svg {
    /// An empty picture with a heading, and smaller lines under it.
    pub(crate) fn new(title: &str, lines: &[&str]) -> Svg {
        let mut svg = Svg { title: title.to_owned(), height: 22.0, body: String::new() };
        svg.text((0.0, 15.0), Anchor::Start, "p-title", title);
        for line in lines {
            svg.height += 15.0;
            let baseline = svg.height - 4.0;
            svg.text((0.0, baseline), Anchor::Start, "p-small", line);
        }
        svg
    }

    /// Where the next part begins.
    pub(crate) fn height(&self) -> f64 {
        self.height
    }

    /// Makes room below.
    pub(crate) fn grow(&mut self, by: f64) {
        self.height += by;
    }

    pub(crate) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str) {
        let [x, y, width, height] = [x, y, width, height].map(number);
        self.element(format_args!(
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" class="{class}"/>"#
        ));
    }

    pub(crate) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(number);
        self.element(format_args!(r#"<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{class}"/>"#));
    }

    pub(crate) fn dot(&mut self, (x, y): (f64, f64), class: &str) {
        let [x, y] = [x, y].map(number);
        self.element(format_args!(r#"<circle cx="{x}" cy="{y}" r="2.8" class="{class}"/>"#));
    }

    pub(crate) fn polyline(&mut self, points: &[(f64, f64)], class: &str) {
        let points = joined(points);
        self.element(format_args!(r#"<polyline points="{points}" class="{class}"/>"#));
    }

    pub(crate) fn polygon(&mut self, points: &[(f64, f64)], class: &str) {
        let points = joined(points);
        self.element(format_args!(r#"<polygon points="{points}" class="{class}"/>"#));
    }

    /// A text, on its base line.
    pub(crate) fn text(&mut self, place: (f64, f64), anchor: Anchor, class: &str, text: &str) {
        self.texts(place, anchor, &[(class, text)]);
    }

    /// Pieces of text one after the other, each with a class of its own.
    pub(crate) fn texts(&mut self, (x, y): (f64, f64), anchor: Anchor, pieces: &[(&str, &str)]) {
        let [x, y] = [x, y].map(number);
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let spans: String = pieces
            .iter()
            .map(|(class, text)| format!(r#"<tspan class="{class}">{}</tspan>"#, escape(text)))
            .collect();
        self.element(format_args!(r#"<text x="{x}" y="{y}" text-anchor="{anchor}">{spans}</text>"#));
    }

    /// Draws a part that shows a text when it is pointed at.
    pub(crate) fn explained(&mut self, text: &str, draw: impl FnOnce(&mut Svg)) {
        self.element(format_args!("<g><title>{}</title>", escape(text)));
        draw(self);
        self.element(format_args!("</g>"));
    }

    fn element(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.body, "{text}");
    }

    /// The picture as an element of a page that has [`STYLE`].
    pub(crate) fn inline(&self) -> String {
        self.element_with("")
    }

    /// The picture as a file.
    pub(crate) fn file(&self) -> String {
        let paper = r#"<rect x="-8" y="-8" width="100%" height="100%" class="p-paper"/>"#;
        self.element_with(&format!("<style>{STYLE}{}</style>\n{paper}\n", color_style()))
    }

    fn element_with(&self, before: &str) -> String {
        const MARGIN: f64 = 8.0;
        let [width, height] = [WIDTH + 2.0 * MARGIN, self.height + 2.0 * MARGIN].map(number);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"p-picture\" viewBox=\"-{MARGIN} -{MARGIN} {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{}\">\n{before}{}</svg>\n",
            escape(&self.title),
            self.body
        )
    }
}

/// How wide a text is at most, roughly: letters differ, and fonts too.
pub(crate) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER * 0.56
}

/// The text without what has a meaning in HTML and SVG, or none in XML.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            letter if letter.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            letter => escaped.push(letter),
        }
    }
    escaped
}

fn joined(points: &[(f64, f64)]) -> String {
    let points: Vec<String> = points.iter().map(|&(x, y)| format!("{},{}", number(x), number(y))).collect();
    points.join(" ")
}

/// A coordinate; more than a tenth of a unit is not seen.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_text_is_taken_for_markup() {
        assert_eq!(escape("<a href=\"x\">'&'"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;");
        assert_eq!(escape("a\u{0}b\u{1b}c\u{ffff}"), "a\u{fffd}b\u{fffd}c\u{fffd}");
        let mut svg = Svg::new("</svg><script>", &["&"]);
        svg.explained("]]>", |svg| svg.text((0.0, 0.0), Anchor::Middle, "p-small", "<"));
        for text in [svg.inline(), svg.file()] {
            let document = roxmltree::Document::parse(&text).unwrap();
            assert_eq!(document.root_element().attribute("aria-label"), Some("</svg><script>"));
            assert!(document.descendants().all(|node| node.tag_name().name() != "script"));
        }
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!([1.0, -0.04, 1.25, 1e6].map(number), ["1", "0", "1.2", "1000000"]);
    }
}
