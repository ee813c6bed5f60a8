//! How often a cell is measured: a few rounds with everybody, and then more with those whose ratio to Kiln is still unsure, as
//! far as the cell's share of the time allows.
//!
//! Rounds are short, and what disturbs them (a peer's compaction, Kiln's checkpoint, a slow moment of the disk) falls on some of them:
//! the cure is more rounds where they differ, and not longer ones everywhere.

use crate::report::{SURE, Samples};

/// How many rounds there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rounds {
    /// Everybody is measured so often, unless there is no time for it.
    pub(super) least: u32,
    /// Nobody is measured more often.
    pub(super) most: u32,
}

/// The rates of a cell's contestants, by their place and round; those that are to be compared are compared with one of them.
pub(super) struct Rates {
    by_place: Vec<Vec<(u32, f64)>>,
    base: Option<usize>,
}

impl Rates {
    /// Of so many contestants; `base` is Kiln's place, if it is there.
    pub(super) fn new(places: usize, base: Option<usize>) -> Rates {
        Rates { by_place: vec![Vec::new(); places], base }
    }

    pub(super) fn push(&mut self, place: usize, round: u32, rate: f64) {
        self.by_place[place].push((round, rate));
    }

    /// Who should be measured again: those whose median ratio is not sure enough, and Kiln with them.
    pub(super) fn unsure(&self) -> Vec<usize> {
        // Without a rate it did not take part.
        let mut places: Vec<usize> =
            (0..self.by_place.len()).filter(|&place| !self.by_place[place].is_empty()).collect();
        // Where there is somebody to compare it with, Kiln's own rate says nothing.
        let base = self.base.filter(|_| places.len() > 1);
        places.retain(|&place| base != Some(place) && self.samples(place).error_of_median() > SURE);
        if let Some(base) = base.filter(|_| !places.is_empty()) {
            places.insert(0, base);
        }
        places
    }

    /// Ratios to Kiln, round by round; of Kiln itself, and of those without it, the rates.
    fn samples(&self, place: usize) -> Samples {
        let base = self.base.filter(|&base| base != place);
        let mut samples = Samples::default();
        for (round, rate) in &self.by_place[place] {
            let Some(base) = base else {
                samples.push(*rate);
                continue;
            };
            if let Some((_, kiln)) = self.by_place[base].iter().find(|(other, _)| other == round) {
                samples.push(kiln / rate);
            }
        }
        samples
    }
}

/// So many places, beginning with another one in each round, and every other round backwards: nobody always comes after the same
/// neighbour.
pub(super) fn in_turn(places: &[usize], round: u32) -> impl Iterator<Item = usize> {
    let mut places = places.to_vec();
    if !round.is_multiple_of(2) {
        places.reverse();
    }
    let first = round as usize % places.len().max(1);
    places.rotate_left(first);
    places.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_with_unsteady_ratios_are_measured_again_and_kiln_with_them() {
        let mut rates = Rates::new(4, Some(0));
        for (round, factor) in (0..).zip([1.0, 2.0, 1.0, 3.0, 1.0]) {
            // What falls on both sides leaves the ratio as it is; the last one never takes part.
            rates.push(0, round, 100.0 * factor);
            rates.push(1, round, 50.0 * factor);
            rates.push(2, round, 50.0);
        }
        assert_eq!(rates.unsure(), [0, 2]);
        let mut steady = Rates::new(2, Some(0));
        (0..5).for_each(|round| {
            steady.push(0, round, 100.0);
            steady.push(1, round, 10.0);
        });
        assert_eq!(steady.unsure(), [] as [usize; 0]);
    }

    #[test]
    fn kiln_alone_is_measured_until_its_rate_is_sure() {
        let mut rates = Rates::new(1, Some(0));
        (0..).zip([1.0, 2.0, 1.0, 3.0, 4.0]).for_each(|(round, rate)| rates.push(0, round, rate));
        assert_eq!(rates.unsure(), [0]);
    }

    #[test]
    fn without_kiln_the_rates_themselves_must_be_steady() {
        let mut rates = Rates::new(2, None);
        for (round, rate) in (0..).zip([1.0, 2.0, 1.0, 3.0, 4.0]) {
            rates.push(0, round, rate);
            rates.push(1, round, 5.0);
        }
        assert_eq!(rates.unsure(), [0]);
    }

    #[test]
    fn each_round_begins_with_another() {
        let order = |round| in_turn(&[3, 5, 8], round).collect::<Vec<_>>();
        assert_eq!([order(0), order(1), order(2)], [[3, 5, 8], [5, 3, 8], [8, 3, 5]]);
        assert_eq!([order(3), order(4), order(5)], [[8, 5, 3], [5, 8, 3], [3, 8, 5]]);
        assert_eq!(in_turn(&[], 4).count(), 0);
    }
}
