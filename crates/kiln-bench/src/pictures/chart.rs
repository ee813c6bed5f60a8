//! Lines over a logarithmic axis, each named at its end instead of in a legend.

use super::scale::{Scale, spread};
use super::svg::{Anchor, LETTER, Svg, WIDTH};

/// Where the plotted area begins; the values of the axis are left of it.
const LEFT: f64 = 52.0;
/// The least distance of two labels.
const LABEL_GAP: f64 = LETTER + 1.5;

/// A line with its name.
pub(crate) struct Series {
    pub(crate) name: String,
    /// Of the color classes, what is behind "p-s-" and "p-f-".
    pub(crate) color: String,
    pub(crate) dashed: bool,
    pub(crate) strong: bool,
    /// By x.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Lines that share their axes.
pub(crate) struct Chart<'a> {
    /// Where a picture has several charts.
    pub(crate) heading: Option<&'a str>,
    pub(crate) series: &'a [Series],
    /// What the lines are seen against: a thin line that is named inside the chart.
    pub(crate) reference: Option<(&'a str, Vec<(f64, f64)>)>,
    /// The values of x that are named.
    pub(crate) x_values: &'a [f64],
    pub(crate) x_text: &'a dyn Fn(f64) -> String,
    pub(crate) y_text: &'a dyn Fn(f64) -> String,
    pub(crate) logarithmic: bool,
    /// Room for the names at the right.
    pub(crate) names: f64,
    pub(crate) height: f64,
}

impl Chart<'_> {
    /// Adds the chart below what is drawn.
    pub(crate) fn draw(&self, svg: &mut Svg) {
        if let Some(heading) = self.heading {
            svg.grow(22.0);
            svg.text((0.0, svg.height() - 5.0), Anchor::Start, "p-strong", heading);
        }
        // The names may need more room than the lines.
        let height = self.height.max(self.series.len() as f64 * LABEL_GAP);
        let (top, bottom) = (svg.height() + 4.0, svg.height() + 4.0 + height);
        let right = WIDTH - self.names;
        let x = Scale::logarithmic(self.x_values.iter().copied(), LEFT, right);
        let y = self.y_scale(bottom, top);
        for tick in y.ticks() {
            svg.line((LEFT, y.at(tick)), (right, y.at(tick)), "p-grid");
            svg.text((LEFT - 6.0, y.at(tick) + 4.0), Anchor::End, "p-small", &(self.y_text)(tick));
        }
        svg.line((LEFT, bottom), (right, bottom), "p-axis");
        for &value in self.x_values {
            svg.line((x.at(value), bottom), (x.at(value), bottom + 4.0), "p-axis");
            svg.text((x.at(value), bottom + 16.0), Anchor::Middle, "p-small", &(self.x_text)(value));
        }
        if let Some((name, points)) = &self.reference {
            let points: Vec<_> = points.iter().map(|&(a, b)| (x.at(a), y.at(b))).collect();
            svg.polyline(&points, "p-reference");
            if let Some(&(_, end)) = points.last() {
                svg.text((right, end - 5.0), Anchor::End, "p-small", name);
            }
        }
        self.lines(svg, &x, &y, (top, bottom));
        svg.grow(height + 26.0);
    }

    fn y_scale(&self, bottom: f64, top: f64) -> Scale {
        let reference = self.reference.iter().flat_map(|(_, points)| points);
        let values =
            self.series.iter().flat_map(|series| &series.points).chain(reference).map(|point| point.1);
        if self.logarithmic {
            Scale::logarithmic(values, bottom, top)
        } else {
            Scale::linear(values.fold(0.0, f64::max) * 1.05, bottom, top)
        }
    }

    /// The lines, and their names as near to their ends as others leave room.
    fn lines(&self, svg: &mut Svg, x: &Scale, y: &Scale, (top, bottom): (f64, f64)) {
        let right = WIDTH - self.names;
        let end = |series: &Series| series.points.last().map_or(bottom, |&(_, value)| y.at(value));
        let mut places: Vec<f64> = self.series.iter().map(end).collect();
        spread(&mut places, LABEL_GAP, top + 2.0, bottom - 2.0);
        // The first series are the most important ones, and are drawn over the others.
        for (series, &place) in self.series.iter().zip(&places).rev() {
            let points: Vec<_> = series.points.iter().map(|&(a, b)| (x.at(a), y.at(b))).collect();
            let Some(&last) = points.last() else { continue };
            let color = &series.color;
            let values: Vec<String> = series
                .points
                .iter()
                .map(|&(a, b)| format!("{}: {}", (self.x_text)(a), (self.y_text)(b)))
                .collect();
            svg.explained(&format!("{}: {}", series.name, values.join(", ")), |svg| {
                let dashed = if series.dashed { " p-dashed" } else { "" };
                svg.polyline(&points, &format!("p-line p-s-{color}{dashed}"));
                points.iter().for_each(|&point| svg.dot(point, &format!("p-f-{color}")));
                let leader = [(last.0 + 4.0, last.1), (right + 2.0, place), (right + 6.0, place)];
                svg.polyline(&leader, &format!("p-leader p-s-{color}"));
                let class = if series.strong { "p-strong" } else { "" };
                svg.text((right + 9.0, place + 4.0), Anchor::Start, class, &series.name);
            });
        }
    }
}
