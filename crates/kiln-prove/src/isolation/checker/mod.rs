//! The checker: is a history what the contract promises? It runs nothing, and knows nothing of the engine.
//!
//! ```text
//!  facts      what each transaction saw of others                anomaly   what can be wrong
//!  lists registers rows tallies    the order of the writes of each key: who depends on whom
//!  crashes    what must have survived, and what must not      durable   what a durable snapshot must cover
//!  names      which snapshots have a name after a crash          drops     that nobody uses what was dropped
//!  graph      all dependencies, with real time                   cycles    the smallest cycle, and its name
//! ```
//!
//! All of it is linear in the history but for sorting, and for ranges, which cost what rows were ever in their span: 100,000
//! transactions take about a second.

mod anomaly;
mod crashes;
mod cycles;
mod drops;
mod durable;
mod facts;
mod graph;
mod lists;
mod names;
mod registers;
mod rows;
mod tallies;
#[cfg(test)]
mod tests;

use anomaly::{Anomalies, Kind};
use facts::Facts;
use graph::{About, Edge, Graph, SortedGraph, Why};

use super::history::{History, Level, list_name};

/// A history, what is known about it, and what is wrong with it.
struct Check<'h> {
    history: &'h History,
    facts: Facts<'h>,
    graph: Graph,
    anomalies: Anomalies,
    /// Of each transaction, whose write is the newest that it read, and whose the oldest that it does not see.
    newest_read: Vec<Option<u32>>,
    oldest_missed: Vec<Option<u32>>,
}

/// Looks for everything that can be wrong with a history.
///
/// # Errors
/// What is wrong.
pub(crate) fn check(history: &History) -> Result<(), Anomalies> {
    let mut anomalies = Anomalies::default();
    let facts = Facts::of(history, &mut anomalies);
    let count = history.transactions.len();
    let mut check = Check {
        history,
        facts,
        graph: Graph::of(history),
        anomalies,
        newest_read: vec![None; count],
        oldest_missed: vec![None; count],
    };
    let orders = check.lists();
    check.registers();
    check.tallies();
    check.rows(&orders);
    check.drops();
    check.survivors(&orders);
    check.sessions();
    check.names();
    check.versions_in_time();
    check.snapshots();
    check.durable_snapshots();
    let Check { graph, mut anomalies, .. } = check;
    let transaction_at = |node| graph.transaction_at(node);
    let transaction_nodes: Vec<Option<u32>> = (0..graph.node_count() as u32).map(transaction_at).collect();
    let graph = graph.sorted();
    // Where much is wrong, a few cycles say what.
    const KNOTS_TOLD: usize = 20;
    for knot in graph.knots().iter().take(KNOTS_TOLD) {
        tell_cycle(history, &graph, knot, &transaction_nodes, &mut anomalies);
    }
    if anomalies.is_empty() { Ok(()) } else { Err(anomalies) }
}

impl Check<'_> {
    fn version(&self, transaction: u32) -> Option<u64> {
        self.history.transactions[transaction as usize].version()
    }

    fn show(&self, transactions: &[u32]) -> String {
        let shown = |at: &u32| format!("\n  T{at}: {}", self.history.transactions[*at as usize]);
        transactions.iter().map(shown).collect()
    }

    /// `second` wrote what `first` had written before.
    fn overwrote(&mut self, first: u32, second: u32, about: About) {
        // Under snapshot isolation, before it even began to read: the first committer wins.
        self.graph.add(self.graph.writes(first), self.graph.reads(second), Why::WriteWrite, about);
        self.compare_versions(first, second, about, "overwrote what the first wrote");
    }

    /// `second` read what `first` had written.
    fn read_from(&mut self, first: u32, second: u32, about: About) {
        self.graph.add(self.graph.writes(first), self.graph.reads(second), Why::WriteRead, about);
        let (writer, reader) =
            (&self.history.transactions[first as usize], &self.history.transactions[second as usize]);
        if reader.durable.is_some() && facts::is_lost(&self.history.crashes, writer) {
            let text = format!(
                "{}: a durable read of what the next crash took{}",
                name(about),
                self.show(&[first, second])
            );
            self.anomalies.add(Kind::DurableLost, || text);
        }
        // Nothing is left of a row that is gone for long, so who finds it absent and writes nothing has no version of it.
        if reader.writes() || !matches!(about, About::Row(_)) {
            self.compare_versions(first, second, about, "read what the first wrote");
        }
        let version = self.version(first);
        let newest = &mut self.newest_read[second as usize];
        if newest.is_none_or(|newest| self.history.transactions[newest as usize].version() < version) {
            *newest = Some(first);
        }
    }

    /// `second` wrote what `first` had read before it.
    fn missed(&mut self, first: u32, second: u32, why: Why, about: About) {
        self.graph.add(self.graph.reads(first), self.graph.writes(second), why, about);
        self.note_missed(first, second, about);
    }

    /// As far as versions go.
    fn note_missed(&mut self, first: u32, second: u32, about: About) {
        if self.history.transactions[first as usize].level == Level::Serializable {
            self.compare_versions(first, second, about, "overwrote what the first read");
        }
        let version = self.version(second);
        let oldest = &mut self.oldest_missed[first as usize];
        let is_older = |oldest: u32| version < self.history.transactions[oldest as usize].version();
        if version.is_some() && oldest.is_none_or(is_older) {
            *oldest = Some(second);
        }
    }

    /// Whoever depends on another has no older version.
    fn compare_versions(&mut self, first: u32, second: u32, about: About, how: &str) {
        let (Some(before), Some(after)) = (self.version(first), self.version(second)) else { return };
        if before > after && first != second {
            let text = format!(
                "{}: the second {how}, at an older version{}",
                name(about),
                self.show(&[first, second])
            );
            self.anomalies.add(Kind::VersionOrder, || text);
        }
    }

    /// The clock never goes back: whoever writes after another has ended has no older version.
    fn versions_in_time(&mut self) {
        let transactions = &self.history.transactions;
        let versioned = |at: &u32| {
            let transaction = &transactions[*at as usize];
            self.version(*at).is_some() && transaction.writes()
        };
        let mut by_end: Vec<u32> = (0..transactions.len() as u32).filter(versioned).collect();
        let mut by_start = by_end.clone();
        by_end.sort_unstable_by_key(|&at| transactions[at as usize].times.completed);
        by_start.sort_unstable_by_key(|&at| transactions[at as usize].times.committing);
        let (mut ended, mut newest) = (by_end.into_iter().peekable(), None::<u32>);
        let mut wrong = Vec::new();
        for at in by_start {
            let begins = transactions[at as usize].times.committing;
            while let Some(before) =
                ended.next_if(|&before| transactions[before as usize].times.completed < begins)
            {
                if newest.is_none_or(|newest| self.version(newest) < self.version(before)) {
                    newest = Some(before);
                }
            }
            if let Some(newest) = newest.filter(|&newest| self.version(newest) > self.version(at)) {
                wrong.push([newest, at]);
            }
        }
        for pair in wrong {
            let text = format!(
                "the second committed after the first had ended, at an older version{}",
                self.show(&pair)
            );
            self.anomalies.add(Kind::VersionOrder, || text);
        }
    }

    /// A snapshot sees all up to one version, and nothing after it.
    fn snapshots(&mut self) {
        for at in 0..self.history.transactions.len() {
            let version = |of: Option<u32>| of.and_then(|of| self.version(of));
            let (newest, oldest) = (self.newest_read[at], self.oldest_missed[at]);
            let torn = match self.history.transactions[at].level {
                Level::Serializable => false,
                Level::Snapshot => {
                    version(newest).zip(version(oldest)).is_some_and(|(read, missed)| read >= missed)
                }
                Level::AsOf(boundary) | Level::Durable(boundary) | Level::Named(boundary) => {
                    version(newest).is_some_and(|read| read > boundary)
                        || version(oldest).is_some_and(|missed| missed <= boundary)
                }
            };
            if torn {
                let involved: Vec<u32> = [Some(at as u32), newest, oldest].into_iter().flatten().collect();
                let text = format!(
                    "a snapshot; the newest whose writes it reads; and the oldest whose writes it misses{}",
                    self.show(&involved)
                );
                self.anomalies.add(Kind::TornSnapshot, || text);
            }
        }
    }
}

fn name(about: About) -> String {
    match about {
        About::List(key) => list_name(key),
        About::Register(key) => format!("register {key}"),
        About::Row(key) => format!("row {key}"),
        About::Tally(key) => format!("tally {key}"),
        About::Nothing => String::new(),
    }
}

/// Adds the smallest cycle of a knot to what is wrong.
fn tell_cycle(
    history: &History,
    graph: &SortedGraph,
    knot: &[u32],
    transaction_nodes: &[Option<u32>],
    anomalies: &mut Anomalies,
) {
    let cycle = cycles::smallest(graph, knot);
    let at = |node: u32| transaction_nodes[node as usize];
    let mut members: Vec<u32> = cycle.iter().filter_map(|edge| at(edge.from)).collect();
    members.sort_unstable();
    members.dedup();
    let kind = cycles::kind(&cycle, members.len());
    anomalies.add(kind, || {
        let mut text = format!("a cycle of {} transactions", members.len());
        let steps = cycle.iter().filter(|edge| !matches!(edge.why, Why::Onwards));
        for Edge { from, to, why, about } in steps {
            let (Some(from), about) = (at(*from), name(*about)) else { continue };
            let to = at(*to).map_or("later ones".to_owned(), |to| format!("T{to}"));
            text += &match why {
                Why::WriteWrite => format!("\n  T{from} wrote {about} before {to} did"),
                Why::WriteRead => format!("\n  T{from} wrote {about}, and {to} read that"),
                Why::ReadWrite => format!("\n  T{from} read {about}, and {to} wrote it after that state"),
                Why::ReadWriteRange => format!("\n  T{from} did not find {about}, and {to} put it there"),
                Why::Process => format!("\n  T{from} came before {to} in its process"),
                Why::RealTime => format!("\n  T{from} had ended before {to} began"),
                Why::Itself | Why::Onwards => continue,
            };
        }
        let shown = |at: &u32| format!("\n  T{at}: {}", history.transactions[*at as usize]);
        text + &members.iter().map(shown).collect::<String>()
    });
}
