//! From values to places, and which values an axis names.

/// An axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// The values at its ends.
    from: f64,
    to: f64,
    /// The places of these.
    start: f64,
    end: f64,
    logarithmic: bool,
}

impl Scale {
    /// From zero to a value. Zero or nothing becomes one, so that a place can be computed.
    pub(crate) fn linear(to: f64, start: f64, end: f64) -> Scale {
        let to = if to.is_finite() && to > 0.0 { to } else { 1.0 };
        Scale { from: 0.0, to, start, end, logarithmic: false }
    }

    /// Orders of magnitude, around all the values; those that have no logarithm are left out.
    pub(crate) fn logarithmic(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Scale {
        let (mut from, mut to) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            from = from.min(value);
            to = to.max(value);
        }
        if from > to {
            (from, to) = (1.0, 10.0);
        }
        // Values stay off the edges, and a single one is in the middle.
        let margin = (to / from).powf(0.08).max(1.3);
        Scale { from: from / margin, to: to * margin, start, end, logarithmic: true }
    }

    /// Where a value is. Values outside are at the ends, and what is no number is at the beginning.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let part = if self.logarithmic {
            (value.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        let part = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        self.start + part * (self.end - self.start)
    }

    /// Round values on the axis: a few of them.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        if self.logarithmic { self.logarithmic_ticks() } else { self.linear_ticks() }
    }

    fn linear_ticks(&self) -> Vec<f64> {
        const MOST: f64 = 5.0;
        let unit = 10_f64.powf((self.to / MOST).log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|times| times * unit).into_iter().find(|step| step * MOST >= self.to);
        let step = step.unwrap_or(self.to);
        (0..).map(|count| f64::from(count) * step).take_while(|&tick| tick <= self.to * 1.0001).collect()
    }

    fn logarithmic_ticks(&self) -> Vec<f64> {
        let decades = (self.to / self.from).log10();
        let times: &[f64] = if decades < 1.2 {
            &[1.0, 2.0, 3.0, 5.0]
        } else if decades < 2.4 {
            &[1.0, 3.0]
        } else {
            &[1.0]
        };
        let step = if decades > 6.0 { 2 } else { 1 };
        let (first, last) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
        let decades = (first..=last).step_by(step).map(|exponent| 10_f64.powi(exponent));
        let ticks = decades.flat_map(|decade| times.iter().map(move |times| decade * times));
        ticks.filter(|&tick| tick >= self.from && tick <= self.to).collect()
    }
}

/// Moves places apart that are nearer than a gap, between two ends, and keeps their order.
pub(crate) fn spread(places: &mut [f64], gap: f64, first: f64, last: f64) {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|&a, &b| places[a].total_cmp(&places[b]));
    let mut least = first;
    for &at in &order {
        places[at] = places[at].max(least);
        least = places[at] + gap;
    }
    let mut most = last;
    for &at in order.iter().rev() {
        places[at] = places[at].min(most);
        most = places[at] - gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_has_few_round_values() {
        for (to, expected) in [
            (10.0, vec![0.0, 2.0, 4.0, 6.0, 8.0, 10.0]),
            (4.0, vec![0.0, 1.0, 2.0, 3.0, 4.0]),
            (230.0, vec![0.0, 50.0, 100.0, 150.0, 200.0]),
            (7e6, vec![0.0, 2e6, 4e6, 6e6]),
        ] {
            assert_eq!(Scale::linear(to, 0.0, 1.0).ticks(), expected);
        }
        assert_eq!(Scale::linear(f64::NAN, 0.0, 10.0).at(0.5), 5.0);
        assert_eq!(Scale::linear(2.0, 100.0, 0.0).at(0.5), 75.0);
        let scale = Scale::linear(2.0, 0.0, 10.0);
        assert_eq!([5.0, -1.0, f64::NAN].map(|value| scale.at(value)), [10.0, 0.0, 0.0]);
    }

    #[test]
    fn a_logarithmic_axis_has_two_to_eight_round_values_wherever_it_is() {
        for exponent in -30..60 {
            for span in 0..60 {
                let from = 10_f64.powf(f64::from(exponent) / 10.0);
                let to = from * 10_f64.powf(f64::from(span) / 10.0);
                let scale = Scale::logarithmic([from, to].into_iter(), 0.0, 100.0);
                let ticks = scale.ticks();
                assert!((1..=8).contains(&ticks.len()), "{from} {to} {ticks:?}");
                let places = [scale.at(from), scale.at(to)];
                assert!(places[0] > 0.0 && places[1] < 100.0 && places[0] <= places[1]);
            }
        }
        let single = Scale::logarithmic([7.0, 0.0, f64::NAN].into_iter(), 0.0, 100.0);
        assert!((single.at(7.0) - 50.0).abs() < 1e-9);
        assert_eq!(single.at(0.0), 0.0);
        assert!(!Scale::logarithmic(std::iter::empty(), 0.0, 1.0).ticks().is_empty());
    }

    #[test]
    fn labels_are_moved_apart_and_stay_inside() {
        let mut places = [50.0, 10.0, 51.0, 52.0, 99.0];
        spread(&mut places, 10.0, 0.0, 100.0);
        assert_eq!(places, [50.0, 10.0, 60.0, 70.0, 99.0]);
        let mut places = [99.0, 98.0, 100.0];
        spread(&mut places, 10.0, 0.0, 100.0);
        assert_eq!(places, [90.0, 80.0, 100.0]);
    }
}
