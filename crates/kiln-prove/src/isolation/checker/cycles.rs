//! Cycles: the smallest one that shows what is wrong, and what Adya calls it.
//!
//! The kinds are tried from the plainest on: among dependencies alone first, then with real time and the order of
//! processes; without an anti-dependency, with one, and with any number.

use std::collections::{HashMap, VecDeque};

use super::anomaly::Kind;
use super::graph::{Edge, SortedGraph, Why};

/// How many nodes of a knot a search begins at, and how many edges all searches of one kind in it may look at.
const STARTS_MAX: usize = 300;
const LOOKS_MAX: usize = 4_000_000;

/// The edges that a search may take.
#[derive(Clone, Copy)]
struct Filter {
    wr: bool,
    /// The number of anti-dependencies: 0, 1, or 2 for any.
    anti: u8,
    time: bool,
}

impl Filter {
    const ALL: [Filter; 8] = [
        Filter { wr: false, anti: 0, time: false },
        Filter { wr: true, anti: 0, time: false },
        Filter { wr: true, anti: 1, time: false },
        Filter { wr: true, anti: 2, time: false },
        Filter { wr: false, anti: 0, time: true },
        Filter { wr: true, anti: 0, time: true },
        Filter { wr: true, anti: 1, time: true },
        Filter { wr: true, anti: 2, time: true },
    ];

    fn takes(self, why: Why) -> bool {
        match why {
            Why::WriteWrite | Why::Itself | Why::Onwards => true,
            Why::WriteRead => self.wr,
            Why::ReadWrite | Why::ReadWriteRange => self.anti > 0,
            Why::Process | Why::RealTime => self.time,
        }
    }
}

/// The smallest cycle of the plainest kind within a knot.
pub(crate) fn smallest(graph: &SortedGraph, knot: &[u32]) -> Vec<Edge> {
    let members: HashMap<u32, ()> = knot.iter().map(|&node| (node, ())).collect();
    Filter::ALL
        .into_iter()
        .find_map(|filter| {
            let mut looks = LOOKS_MAX;
            let starts = knot.iter().take(STARTS_MAX);
            starts
                .filter_map(|&start| around(graph, &members, start, filter, &mut looks))
                .min_by_key(|cycle| length(cycle))
        })
        .unwrap_or_default()
}

/// Nodes that stand for no transaction make a cycle no longer.
fn length(cycle: &[Edge]) -> usize {
    cycle.iter().filter(|edge| !matches!(edge.why, Why::Onwards | Why::Itself)).count()
}

/// The shortest way from a node back to it. A state is a node and whether the one anti-dependency was taken.
fn around(
    graph: &SortedGraph,
    members: &HashMap<u32, ()>,
    start: u32,
    filter: Filter,
    looks: &mut usize,
) -> Option<Vec<Edge>> {
    let mut came: HashMap<(u32, bool), (Edge, bool)> = HashMap::new();
    let mut queue = VecDeque::from([(start, false)]);
    while let Some((node, taken)) = queue.pop_front() {
        for &edge in graph.edges_of(node) {
            *looks = looks.checked_sub(1)?;
            let anti = edge.why.is_anti_dependency();
            let skipped = !filter.takes(edge.why) || filter.anti == 1 && anti && taken;
            if skipped || !members.contains_key(&edge.to) {
                continue;
            }
            let state = (edge.to, taken || filter.anti == 1 && anti);
            if state.0 == start {
                let mut cycle = vec![edge];
                let (mut at, mut taken) = (node, taken);
                while at != start {
                    let (edge, before) = came[&(at, taken)];
                    cycle.push(edge);
                    (at, taken) = (edge.from, before);
                }
                cycle.reverse();
                return Some(cycle);
            }
            if let std::collections::hash_map::Entry::Vacant(place) = came.entry(state) {
                place.insert((edge, taken));
                queue.push_back(state);
            }
        }
    }
    None
}

/// What a cycle is called.
pub(crate) fn kind(cycle: &[Edge], transactions: usize) -> Kind {
    let anti = cycle.iter().filter(|edge| edge.why.is_anti_dependency()).count();
    let has = |why: Why| cycle.iter().any(|edge| edge.why == why);
    if has(Why::RealTime) || has(Why::Process) {
        return match anti {
            0 if !has(Why::WriteRead) => Kind::RealTime("G0"),
            0 => Kind::RealTime("G1c"),
            1 => Kind::RealTime("G-single"),
            _ if has(Why::ReadWriteRange) => Kind::RealTime("G2"),
            _ => Kind::RealTime("G2-item"),
        };
    }
    let same = |why: Why| cycle.iter().find(|edge| edge.why == why).map(|edge| edge.about);
    match anti {
        0 if !has(Why::WriteRead) => Kind::WriteCycle,
        0 => Kind::CircularInformation,
        1 if transactions == 2 && has(Why::WriteWrite) && same(Why::WriteWrite) == same(Why::ReadWrite) => {
            Kind::LostUpdate
        }
        1 => Kind::SingleAntiDependency,
        _ if has(Why::ReadWriteRange) => Kind::AntiDependencyRange,
        _ => Kind::AntiDependencyItem,
    }
}
