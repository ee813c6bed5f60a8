//! Which key comes next, drawn before the clock runs.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};

use super::INDEX_END;

/// So many are drawn, and repeated. Much more than a cache holds lines.
const COUNT: usize = 1 << 21;
/// The exponent of YCSB's Zipf distribution.
const EXPONENT: f64 = 0.99;
const INDEX_BITS: u32 = INDEX_END.trailing_zeros();

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Distribution {
    /// All keys alike.
    Uniform,
    /// Few keys often (Zipf with exponent 0.99), spread over the whole key space.
    Zipf,
    /// Keys written last most often (Zipf with exponent 0.99 by age).
    Latest,
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
    drawn: Arc<[u64]>,
    at: usize,
}

impl Draws {
    /// Draws among so many keys. Two numbers give unrelated sequences.
    pub(crate) fn new(distribution: Distribution, number: u64, count: u64) -> Result<Draws> {
        let mut random = SmallRng::seed_from_u64(number);
        let zipf = Zipf::new(count as f64, EXPONENT).context("at least one key is needed")?;
        let draw = |number: u64| {
            let index = match distribution {
                Distribution::Uniform => random.random_range(0..count),
                // The sample is a rank from 1.
                Distribution::Zipf => scatter(zipf.sample(&mut random) as u64 - 1, count),
                Distribution::Latest => zipf.sample(&mut random) as u64 - 1,
            };
            let turn = number.wrapping_mul(TURN_STEP) >> (64 - PART_BITS);
            let dice = random.random::<u64>() << (INDEX_BITS + PART_BITS);
            dice | turn << INDEX_BITS | index.min(count - 1)
        };
        Ok(Draws { drawn: (0..COUNT as u64).map(draw).collect(), at: 0 })
    }

    /// The same sequence from another place on: two numbers give places far from each other.
    pub(crate) fn at_place(&self, number: usize) -> Draws {
        Draws {
            drawn: Arc::clone(&self.drawn),
            at: (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize >> (64 - COUNT.ilog2()),
        }
    }

    /// The next draw.
    #[inline]
    pub(crate) fn next(&mut self) -> Draw {
        self.at = (self.at + 1) & (COUNT - 1);
        Draw(self.drawn[self.at])
    }

    /// The next `count` indexes, all different, in place of what `indexes` had. There must be so many keys.
    #[inline]
    pub(crate) fn next_distinct(&mut self, count: usize, indexes: &mut Vec<u64>) {
        indexes.clear();
        while indexes.len() < count {
            let index = self.next().index();
            if !indexes.contains(&index) {
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
    fn the_most_frequent_key_of_zipf_has_the_share_that_its_formula_gives() {
        for distribution in [Distribution::Zipf, Distribution::Latest] {
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
            let mut draws = Draws::new(Distribution::Zipf, 3, 1000).unwrap();
            let turns: Vec<bool> = (0..10_000).map(|_| draws.next().within(percent)).collect();
            // Of a line that is cut at two places, n steps in a row see 2 n orders at most; chance would show thousands.
            let orders: HashSet<&[bool]> = turns.windows(20).collect();
            assert!(orders.len() <= 40, "{}", orders.len());
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
