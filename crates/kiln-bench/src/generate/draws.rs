//! Which key comes next, drawn before the clock runs.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};

use super::INDEX_END;

/// So many are drawn at least, and repeated: much more than a processor's cache holds lines. And at most, where few keys are drawn often: of keys that do not
/// fit into memory, too few would fit.
const COUNT_MIN: u64 = 1 << 21;
const COUNT_MAX: u64 = 1 << 23;
const INDEX_BITS: u32 = INDEX_END.trailing_zeros();

/// How keys are chosen. As text `uniform`, `zipf`, `zipf-0.1` (or another exponent below 1, of two digits) and `latest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Distribution {
    /// All keys alike.
    Uniform,
    /// Few keys often, spread over the whole key space.
    Zipf(Exponent),
    /// Keys written last most often (Zipf with YCSB's exponent by age).
    Latest,
}

/// The exponent of a Zipf distribution, in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Exponent(u8);

impl Exponent {
    /// YCSB's.
    const YCSB: Exponent = Exponent(99);

    fn value(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl Distribution {
    /// Zipf with YCSB's exponent, 0.99.
    pub(crate) const ZIPF: Distribution = Distribution::Zipf(Exponent::YCSB);
}

impl fmt::Display for Distribution {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Distribution::Uniform => out.write_str("uniform"),
            Distribution::ZIPF => out.write_str("zipf"),
            Distribution::Zipf(exponent) => write!(out, "zipf-{}", exponent.value()),
            Distribution::Latest => out.write_str("latest"),
        }
    }
}

impl FromStr for Distribution {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Distribution> {
        match text {
            "uniform" => return Ok(Distribution::Uniform),
            "zipf" => return Ok(Distribution::ZIPF),
            "latest" => return Ok(Distribution::Latest),
            _ => {}
        }
        let exponent = text.strip_prefix("zipf-").and_then(|text| text.parse::<f64>().ok());
        let hundredths = exponent.map(|exponent| (100.0 * exponent).round());
        match hundredths.filter(|hundredths| (1.0..100.0).contains(hundredths)) {
            Some(hundredths) => Ok(Distribution::Zipf(Exponent(hundredths as u8))),
            None => {
                bail!("keys are chosen uniform, zipf, zipf-0.01 to zipf-0.99, or latest, and not {text:?}")
            }
        }
    }
}

impl TryFrom<String> for Distribution {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Distribution> {
        text.parse()
    }
}

impl From<Distribution> for String {
    fn from(distribution: Distribution) -> String {
        distribution.to_string()
    }
}

/// A drawn key, its turn, and a throw of dice for whatever else is left to chance.
///
/// ```text
///   dice (14 bits) | turn (14 bits) | index (36 bits)
/// ```
///
/// The turn says which of several operations this one is. It is not thrown but counted, in steps of the golden ratio: that gives each
/// operation its share, and an order that the processor's branch prediction learns. Were it left to chance, a wrong guess in
/// every other turn would cost more than all else that the load does, and be no part of the engine.
#[derive(Clone, Copy)]
pub(crate) struct Draw(u64);

/// Bits of the turn, and of the dice.
const PART_BITS: u32 = (64 - INDEX_BITS) / 2;
const PART_MASK: u64 = (1 << PART_BITS) - 1;
/// 2^64 over the golden ratio.
const TURN_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Draw {
    /// The key's index; with [`Distribution::Latest`], how many keys are newer.
    #[inline]
    pub(crate) fn index(self) -> u64 {
        self.0 & (INDEX_END - 1)
    }

    /// True in `percent` of all turns.
    #[inline]
    pub(crate) fn within(self, percent: u32) -> bool {
        ((self.0 >> INDEX_BITS) & PART_MASK) * 100 < u64::from(percent) << PART_BITS
    }

    /// A number from 1 to `most`, by chance; all alike, while they are few beside 2^14.
    #[inline]
    pub(crate) fn one_to(self, most: u64) -> u64 {
        1 + (((self.0 >> (INDEX_BITS + PART_BITS)) * most) >> PART_BITS)
    }
}

/// An endless sequence of draws.
#[derive(Clone)]
pub(crate) struct Draws {
    /// A power of two of them.
    drawn: Arc<[u64]>,
    at: usize,
    /// Of how many keys.
    count: u64,
    /// Added to each index, and another one each time round: where all keys are alike, any of them is as good.
    shift: u64,
    is_uniform: bool,
    /// The indexes that were drawn for one operation, each near a place of its own.
    taken: Vec<u64>,
}

/// So many indexes are compared with each other.
const FEW: usize = 64;

impl Draws {
    /// Draws among so many keys. Two numbers give unrelated sequences.
    pub(crate) fn new(distribution: Distribution, number: u64, count: u64) -> Result<Draws> {
        let mut random = SmallRng::seed_from_u64(number);
        let exponent = match distribution {
            Distribution::Zipf(exponent) => exponent,
            Distribution::Uniform | Distribution::Latest => Exponent::YCSB,
        };
        let zipf = Zipf::new(count as f64, exponent.value()).context("at least one key is needed")?;
        let draw = |number: u64| {
            let index = match distribution {
                Distribution::Uniform => random.random_range(0..count),
                // The sample is a rank from 1.
                Distribution::Zipf(_) => scatter(zipf.sample(&mut random) as u64 - 1, count),
                Distribution::Latest => zipf.sample(&mut random) as u64 - 1,
            };
            let turn = number.wrapping_mul(TURN_STEP) >> (64 - PART_BITS);
            let dice = random.random::<u64>() << (INDEX_BITS + PART_BITS);
            dice | turn << INDEX_BITS | index.min(count - 1)
        };
        let is_uniform = distribution == Distribution::Uniform;
        let drawn_count = match is_uniform {
            true => COUNT_MIN,
            false => count.saturating_mul(4).clamp(COUNT_MIN, COUNT_MAX).next_power_of_two(),
        };
        Ok(Draws {
            drawn: (0..drawn_count).map(draw).collect(),
            at: 0,
            count,
            shift: 0,
            is_uniform,
            taken: Vec::new(),
        })
    }

    /// The same sequence from another place on: two numbers give places far from each other.
    pub(crate) fn at_place(&self, number: usize) -> Draws {
        let place = (number as u64).wrapping_mul(TURN_STEP);
        let mut draws = self.clone();
        draws.at = place as usize >> (64 - self.drawn.len().ilog2());
        draws.move_on(place);
        draws
    }

    fn move_on(&mut self, number: u64) {
        if self.is_uniform {
            self.shift = scatter(self.shift ^ number, self.count);
        }
    }

    /// The next draw.
    #[inline]
    pub(crate) fn next(&mut self) -> Draw {
        self.at = (self.at + 1) & (self.drawn.len() - 1);
        if self.at == 0 {
            self.move_on(1);
        }
        let draw = Draw(self.drawn[self.at]);
        let index = draw.index() + self.shift;
        let index = if index < self.count { index } else { index - self.count };
        Draw(draw.0 & !(INDEX_END - 1) | index)
    }

    /// The next `count` indexes, all different, in place of what `indexes` had. There must be so many keys that are
    /// drawn at all: of those of a distribution up to a half is not.
    #[inline]
    pub(crate) fn next_distinct(&mut self, count: usize, indexes: &mut Vec<u64>) {
        indexes.clear();
        if count > FEW {
            self.next_many_distinct(count, indexes);
            return;
        }
        while indexes.len() < count {
            let index = self.next().index();
            if !indexes.contains(&index) {
                indexes.push(index);
            }
        }
    }
}

impl Draws {
    /// The same of many, which would take a comparison with each of those before.
    fn next_many_distinct(&mut self, count: usize, indexes: &mut Vec<u64>) {
        // Half of the places stay empty.
        let places = (2 * count).next_power_of_two();
        self.taken.clear();
        self.taken.resize(places, u64::MAX);
        while indexes.len() < count {
            let index = self.next().index();
            let mut place = (index.wrapping_mul(TURN_STEP) >> (64 - places.ilog2())) as usize;
            while self.taken[place] != index && self.taken[place] != u64::MAX {
                place = (place + 1) & (places - 1);
            }
            if self.taken[place] != index {
                self.taken[place] = index;
                indexes.push(index);
            }
        }
    }
}

/// The key with this rank: neighbours in rank are no neighbours in memory.
fn scatter(rank: u64, count: u64) -> u64 {
    // FNV-1a of the rank's bytes, as YCSB does. Two ranks may meet in one key, which changes the frequencies by little.
    let hash = rank.to_le_bytes().iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    ((u128::from(hash) * u128::from(count)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    fn indexes(distribution: Distribution, count: u64) -> Vec<u64> {
        let mut draws = Draws::new(distribution, 1, count).unwrap();
        (0..100_000).map(|_| draws.next().index()).collect()
    }

    #[test]
    fn uniform_draws_are_uniform() {
        let mut counts = [0_u32; 10];
        for index in indexes(Distribution::Uniform, 10) {
            counts[index as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_500..10_500).contains(&count)), "{counts:?}");
    }

    #[test]
    fn uniform_draws_are_others_each_time_round_and_in_each_place() {
        let draws = Draws::new(Distribution::Uniform, 1, 1 << 30).unwrap();
        let mut seen = HashSet::new();
        for place in 0..4 {
            let mut draws = draws.at_place(place);
            for lap in 1..=3 {
                seen.extend((0..COUNT_MIN).step_by(64).map(|_| draws.next().index()));
                draws.at = draws.drawn.len() - 1 - lap;
            }
        }
        // Drawn at random, two in a thousand would be the same.
        assert!(seen.len() as u64 > 12 * COUNT_MIN / 64 * 99 / 100, "{}", seen.len());
    }

    #[test]
    fn the_most_frequent_key_of_zipf_has_the_share_that_its_formula_gives() {
        for distribution in [Distribution::ZIPF, Distribution::Latest] {
            let mut counts = HashMap::<u64, u32>::new();
            for index in indexes(distribution, 1000) {
                assert!(index < 1000);
                *counts.entry(index).or_default() += 1;
            }
            let (&most, &count) = counts.iter().max_by_key(|(_, count)| **count).unwrap();
            // One over the sum of 1 / rank^0.99 is 0.1289.
            assert!((12_000..14_500).contains(&count), "{count}");
            assert_eq!(most == 0, distribution == Distribution::Latest);
        }
    }

    #[test]
    fn distributions_are_written_as_they_are_read_and_nothing_else_is() {
        for text in ["uniform", "zipf", "zipf-0.1", "zipf-0.55", "latest"] {
            let distribution: Distribution = text.parse().unwrap();
            assert_eq!(distribution.to_string(), text);
            assert_eq!(serde_json::to_value(distribution).unwrap(), text);
        }
        assert_eq!("zipf-0.99".parse::<Distribution>().unwrap(), Distribution::ZIPF);
        for text in ["", "Zipf", "zipf-", "zipf-0", "zipf-1", "zipf-NaN", "zipf--0.5"] {
            assert!(text.parse::<Distribution>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_small_exponent_is_nearly_uniform() {
        let mut counts = HashMap::<u64, u32>::new();
        for index in indexes("zipf-0.1".parse().unwrap(), 1000) {
            *counts.entry(index).or_default() += 1;
        }
        // One over the sum of 1 / rank^0.1 is 0.0018; two or three ranks may meet in a key.
        assert!(counts.values().all(|&count| count < 1000), "{:?}", counts.values().max());
    }

    #[test]
    fn dice_fall_as_often_as_they_should() {
        let mut draws = Draws::new(Distribution::Uniform, 1, 1 << 30).unwrap();
        let mut within = 0;
        let mut seen = [0; 4];
        for _ in 0..100_000 {
            let draw = draws.next();
            within += u32::from(draw.within(5));
            // The dice know nothing of the turn.
            seen[if draw.within(50) { draw.one_to(3) as usize } else { 1 + draw.one_to(3) as usize % 3 }] +=
                1;
            assert!(!draw.within(0) && draw.within(100));
        }
        assert!((4_950..5_050).contains(&within), "{within}");
        assert!(seen[0] == 0 && seen[1..].iter().all(|count| (32_000..34_500).contains(count)), "{seen:?}");
    }

    #[test]
    fn turns_come_in_few_orders_so_that_the_processor_foresees_them() {
        for percent in [5, 50, 95] {
            let mut draws = Draws::new(Distribution::ZIPF, 3, 1000).unwrap();
            let turns: Vec<bool> = (0..10_000).map(|_| draws.next().within(percent)).collect();
            // Of a line that is cut at two places, n steps in a row see 2 n orders at most; chance would show thousands.
            let orders: HashSet<&[bool]> = turns.windows(20).collect();
            assert!(orders.len() <= 40, "{}", orders.len());
        }
    }

    #[test]
    fn many_distinct_indexes_are_those_that_few_would_be_after_another() {
        for distribution in [Distribution::Uniform, Distribution::ZIPF] {
            let draws = Draws::new(distribution, 7, 5000).unwrap();
            for count in [FEW + 1, 1000, 1024] {
                let (mut many, mut one_by_one) = (draws.clone(), draws.clone());
                let (mut indexes, mut expected) = (Vec::new(), Vec::new());
                for _ in 0..3 {
                    many.next_distinct(count, &mut indexes);
                    expected.clear();
                    while expected.len() < count {
                        let index = one_by_one.next().index();
                        if !expected.contains(&index) {
                            expected.push(index);
                        }
                    }
                    assert_eq!(indexes, expected);
                }
            }
        }
    }

    #[test]
    fn distinct_indexes_are_distinct() {
        let mut draws = Draws::new(Distribution::Uniform, 7, 3).unwrap();
        let mut three = Vec::new();
        for _ in 0..100 {
            draws.next_distinct(3, &mut three);
            three.sort_unstable();
            assert_eq!(three, [0, 1, 2]);
        }
    }
}
