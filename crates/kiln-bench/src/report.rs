//! Tables for people.

use std::fmt::Write as _;

/// A median ratio is sure enough with a standard error up to this: two runs then differ by more than a seventh in one case of a
/// hundred.
pub(crate) const SURE: f64 = 0.035;

/// The values of one cell over all rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Samples {
        Samples(values.into_iter().collect())
    }
}

impl Samples {
    /// Adds the value of a round.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// How many values there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The middle value, or the mean of the two in the middle. NaN without values.
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            count if count % 2 == 1 => sorted[count / 2],
            count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
        }
    }

    /// The mean. NaN without values.
    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// The smallest value.
    pub(crate) fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The largest value.
    pub(crate) fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// How far the median of such a row of values is likely to be from the true one, as a part of it: the standard error that
    /// values from a normal distribution with the same quartiles would give it. One stray value of five says nothing, two do. Infinite
    /// for fewer than two values.
    pub(crate) fn error_of_median(&self) -> f64 {
        // The distance of the quartiles over the standard deviation, and the median's standard error over that of the mean.
        const QUARTILES: f64 = 1.349;
        const MEDIAN: f64 = 1.2533;
        let median = self.median();
        if self.0.len() < 2 || !median.is_normal() {
            return f64::INFINITY;
        }
        let deviation = (self.quantile(0.75) - self.quantile(0.25)) / QUARTILES;
        MEDIAN * deviation / (self.0.len() as f64).sqrt() / median.abs()
    }

    /// The value that this part of the values is below, between two of them in proportion. There must be values.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let place = part * (sorted.len() - 1) as f64;
        let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
        low + (high - low) * place.fract()
    }

    /// The ratios of each round: a slow moment of the machine falls on both sides of a round, and so drops out.
    pub(crate) fn ratios_to(&self, base: &Samples) -> Samples {
        Samples(self.0.iter().zip(&base.0).map(|(value, base)| value / base).collect())
    }

    /// The values in a unit.
    pub(crate) fn over(&self, unit: f64) -> Samples {
        Samples(self.0.iter().map(|value| value / unit).collect())
    }

    /// Median, minimum and maximum in a unit.
    pub(crate) fn cells(&self, unit: f64, digits: usize) -> [String; 3] {
        [self.median(), self.min(), self.max()].map(|value| format!("{:.digits$}", value / unit))
    }
}

/// A table of text. Numbers are set to the right.
pub(crate) struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with the names of its columns.
    pub(crate) fn new(title: impl Into<String>, columns: &[&str]) -> Table {
        Table { title: title.into(), rows: vec![columns.iter().map(|&name| name.to_owned()).collect()] }
    }

    /// What it is about.
    pub(crate) fn title(&self) -> &str {
        &self.title
    }

    /// Its rows, the names of its columns first.
    pub(crate) fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as text that is also a Markdown table.
    pub(crate) fn text(&self) -> String {
        let column_count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..column_count).map(width).collect();
        let numeric: Vec<bool> = (0..column_count)
            .map(|column| {
                self.rows.iter().skip(1).filter_map(|row| row.get(column)).all(|cell| is_number(cell))
            })
            .collect();
        let mut text = format!("\n{}\n\n", self.title);
        for (index, row) in self.rows.iter().enumerate() {
            for (column, &width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                // Writing to a String cannot fail.
                let _ = if numeric[column] {
                    write!(text, "| {cell:>width$} ")
                } else {
                    write!(text, "| {cell:<width$} ")
                };
            }
            text.push_str("|\n");
            if index == 0 {
                for (column, &width) in widths.iter().enumerate() {
                    let _ =
                        write!(text, "|{}{}", "-".repeat(width + 1), if numeric[column] { ":" } else { "-" });
                }
                text.push_str("|\n");
            }
        }
        text
    }
}

fn is_number(cell: &str) -> bool {
    !cell.is_empty() && cell.starts_with(|c: char| c.is_ascii_digit() || c == '-')
}

/// A goal, and what was measured.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    /// What it is about.
    pub(crate) what: String,
    /// What was measured, round by round. The median counts.
    pub(crate) measured: Samples,
    /// What is wanted.
    pub(crate) wanted: Wanted,
}

/// On which side of a value a goal is met.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// Nothing: it is only told.
    Nothing,
}

impl Goal {
    /// Whether the goal is met.
    pub(crate) fn met(&self) -> bool {
        match self.wanted {
            Wanted::AtLeast(value) => self.measured.median() >= value,
            Wanted::AtMost(value) => self.measured.median() <= value,
            Wanted::Nothing => true,
        }
    }
}

/// The goals as a table, in the form that the README has it.
pub(crate) fn goals_table(title: &str, goals: &[Goal]) -> Table {
    let mut table = Table::new(title, &["what", "measured", "goal"]);
    for goal in goals {
        let [median, min, max] = goal.measured.cells(1.0, 2);
        let wanted = match goal.wanted {
            Wanted::AtLeast(value) => format!("at least {value}"),
            Wanted::AtMost(value) => format!("at most {value}"),
            Wanted::Nothing => String::new(),
        };
        let missed = if goal.met() { "" } else { ", **missed**" };
        table.row([goal.what.clone(), format!("{median} ({min} to {max})"), format!("{wanted}{missed}")]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        Samples(values.to_vec())
    }

    #[test]
    fn medians_ranges_and_ratios() {
        assert_eq!(samples(&[3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(samples(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert!(samples(&[]).median().is_nan() && samples(&[]).mean().is_nan());
        assert_eq!(samples(&[4.0, 1.0, 1.0]).mean(), 2.0);
        assert_eq!(samples(&[3.0, 1.0, 2.0]).cells(2.0, 1), ["1.0", "0.5", "1.5"]);
        let ratios = samples(&[2.0, 9.0]).ratios_to(&samples(&[1.0, 3.0]));
        assert_eq!((ratios.min(), ratios.max()), (2.0, 3.0));
    }

    #[test]
    fn the_median_of_more_values_and_of_steadier_ones_is_surer() {
        let few = samples(&[90.0, 95.0, 100.0, 105.0, 110.0]).error_of_median();
        let many = samples(&[90.0, 95.0, 100.0, 105.0, 110.0].repeat(3)).error_of_median();
        assert!((0.041..0.042).contains(&few) && (0.023..0.025).contains(&many), "{few} {many}");
        // One value of five that is far off says nothing, two do.
        assert!(samples(&[99.0, 100.0, 101.0, 100.0, 900.0]).error_of_median() < 0.02);
        assert!(samples(&[100.0, 100.0, 100.0, 200.0, 300.0]).error_of_median() > 0.4);
        assert_eq!(samples(&[7.0, 7.0]).error_of_median(), 0.0);
        for values in [&[][..], &[1.0], &[0.0, 0.0], &[f64::NAN, f64::NAN]] {
            assert_eq!(samples(values).error_of_median(), f64::INFINITY);
        }
    }

    #[test]
    fn a_table_lines_up_and_sets_numbers_to_the_right() {
        let mut table = Table::new("Title", &["name", "n"]);
        table.row(["a".to_owned(), "1".to_owned()]);
        table.row(["long name".to_owned(), "-100".to_owned()]);
        let expected = "\nTitle\n\n| name      |    n |\n|-----------|-----:|\n| a         |    1 |\n| long name | -100 |\n";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn a_goal_that_could_not_be_measured_is_not_met() {
        let goal = |measured, wanted| Goal { what: String::new(), measured: samples(&[measured]), wanted };
        assert!(goal(2.0, Wanted::AtLeast(2.0)).met());
        assert!(!goal(1.9, Wanted::AtLeast(2.0)).met());
        assert!(goal(1.3, Wanted::AtMost(1.3)).met());
        assert!(!goal(f64::NAN, Wanted::AtMost(1.3)).met());
        assert!(!goal(f64::NAN, Wanted::AtLeast(1.3)).met());
        assert!(goal(1.0, Wanted::Nothing).met());
    }

    #[test]
    fn goals_are_told_with_their_ranges_and_those_that_are_missed_stand_out() {
        let goal =
            |what: &str, wanted| Goal { what: what.to_owned(), measured: samples(&[1.0, 3.0, 2.0]), wanted };
        let goals = [
            goal("met", Wanted::AtLeast(2.0)),
            goal("not", Wanted::AtMost(1.5)),
            goal("told", Wanted::Nothing),
        ];
        let text = goals_table("Goals", &goals).text();
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for line in [
            "| met | 2.00 (1.00 to 3.00) | at least 2 |",
            "| not | 2.00 (1.00 to 3.00) | at most 1.5, **missed** |",
            "| told | 2.00 (1.00 to 3.00) | |",
        ] {
            assert!(lines.contains(&line.to_owned()), "{line} is missing in\n{text}");
        }
    }
}
