//! The graph of what must have come before what.
//!
//! A transaction is one node, at which it happens. Under snapshot isolation one that writes is two, its reads and then its
//! writes, and whoever wrote a key before it must come before its *reads*: so the same search for cycles that
//! proves strict serializability proves snapshot isolation, first committer wins included, and any mix of the two.
//! An aborted transaction is its reads alone (opacity).
//!
//! Real time is a relation of n² pairs, and would be as many edges. Instead a line of *moments* passes between the nodes:
//!
//! ```text
//!   moment ──▶ moment ──▶ moment        whoever has ended leads to the next moment,
//!      ▲         │  ▲        │          and the last moment leads to whoever begins
//!    ended    begins ended  begins
//! ```

use std::ops::Range;

use crate::isolation::history::{History, Level};

/// Why one node comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    /// The second overwrote, or appended to, what the first had written.
    WriteWrite,
    /// The second read what the first had written.
    WriteRead,
    /// The second overwrote what the first had read.
    ReadWrite,
    /// The second wrote a row that the first had looked for and not found.
    ReadWriteRange,
    /// The second is the writes of the transaction whose reads are the first.
    Itself,
    /// On from a node that stands for several writes of a register.
    Onwards,
    /// The first had ended in the same process.
    Process,
    /// The first had ended before the second began.
    RealTime,
}

impl Why {
    pub(crate) fn is_anti_dependency(self) -> bool {
        matches!(self, Why::ReadWrite | Why::ReadWriteRange)
    }
}

/// What an edge is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    List(u32),
    Register(u32),
    Row(u32),
    Tally(u32),
    Nothing,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) why: Why,
    pub(crate) about: About,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Graph {
    edges: Vec<Edge>,
    transactions: u32,
    nodes: u32,
    split: Vec<bool>,
}

impl Graph {
    /// The transactions of a history, with the edges that need no look at their operations.
    pub(crate) fn of(history: &History) -> Graph {
        let transactions = history.transactions.len() as u32;
        let split: Vec<bool> =
            history.transactions.iter().map(super::super::history::Transaction::is_split).collect();
        let mut graph = Graph { edges: Vec::new(), transactions, nodes: 2 * transactions, split };
        for at in 0..transactions {
            if graph.split[at as usize] {
                graph.add(graph.reads(at), graph.writes(at), Why::Itself, About::Nothing);
            }
        }
        graph.add_process_order(history);
        graph.add_real_time(history);
        graph
    }

    /// The node at which a transaction reads.
    pub(crate) fn reads(&self, transaction: u32) -> u32 {
        2 * transaction
    }

    /// The node at which a transaction writes.
    pub(crate) fn writes(&self, transaction: u32) -> u32 {
        2 * transaction + u32::from(self.split[transaction as usize])
    }

    /// The transaction of a node, if it is one's.
    pub(crate) fn transaction_at(&self, node: u32) -> Option<u32> {
        (node < 2 * self.transactions).then_some(node / 2)
    }

    /// A node that stands for no transaction.
    pub(crate) fn add_node(&mut self) -> u32 {
        self.nodes += 1;
        self.nodes - 1
    }

    pub(crate) fn node_count(&self) -> usize {
        self.nodes as usize
    }

    pub(crate) fn add(&mut self, from: u32, to: u32, why: Why, about: About) {
        if from != to {
            self.edges.push(Edge { from, to, why, about });
        }
    }

    fn add_process_order(&mut self, history: &History) {
        let mut order: Vec<u32> = (0..self.transactions).collect();
        let process = |at: u32| {
            let transaction = &history.transactions[at as usize];
            (transaction.process, transaction.times.invoked)
        };
        // What reads an old state on purpose may come after what does not.
        order.retain(|&at| !history.transactions[at as usize].reads_old_state());
        order.sort_unstable_by_key(|&at| process(at));
        for pair in order.windows(2) {
            if process(pair[0]).0 == process(pair[1]).0 {
                self.add(self.writes(pair[0]), self.reads(pair[1]), Why::Process, About::Nothing);
            }
        }
    }

    fn add_real_time(&mut self, history: &History) {
        // Moment, whether something begins then, and the node.
        let mut moments: Vec<(u64, bool, u32)> = Vec::new();
        for (at, transaction) in (0..).zip(&history.transactions) {
            let times = transaction.times;
            let reads_until = match transaction.level {
                Level::Serializable => times.completed,
                _ => times.began,
            };
            if !transaction.reads_old_state() {
                moments.push((times.invoked, true, self.reads(at)));
            }
            moments.push((reads_until, false, self.reads(at)));
            if self.split[at as usize] {
                moments.push((times.committing, true, self.writes(at)));
                moments.push((times.completed, false, self.writes(at)));
            }
        }
        moments.sort_unstable();
        let (mut now, mut had_begun) = (self.add_node(), false);
        for (_, begins, node) in moments {
            if begins {
                self.add(now, node, Why::RealTime, About::Nothing);
            } else {
                if had_begun {
                    let next = self.add_node();
                    self.add(now, next, Why::RealTime, About::Nothing);
                    now = next;
                }
                self.add(node, now, Why::RealTime, About::Nothing);
            }
            had_begun = begins;
        }
    }

    /// The graph, ready to be walked.
    pub(crate) fn sorted(self) -> SortedGraph {
        let mut starts = vec![0_u32; self.nodes as usize + 1];
        for edge in &self.edges {
            starts[edge.from as usize + 1] += 1;
        }
        for node in 0..self.nodes as usize {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let mut order = vec![0_u32; self.edges.len()];
        for (at, edge) in (0..).zip(&self.edges) {
            let place = &mut next[edge.from as usize];
            order[*place as usize] = at;
            *place += 1;
        }
        let edges = order.iter().map(|&at| self.edges[at as usize]).collect();
        SortedGraph { starts, edges }
    }
}

/// A graph whose edges lie in the order of the nodes that they leave.
#[derive(Debug)]
pub(crate) struct SortedGraph {
    starts: Vec<u32>,
    edges: Vec<Edge>,
}

impl SortedGraph {
    pub(crate) fn node_count(&self) -> usize {
        self.starts.len() - 1
    }

    fn range(&self, node: u32) -> Range<usize> {
        self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize
    }

    pub(crate) fn edges_of(&self, node: u32) -> &[Edge] {
        &self.edges[self.range(node)]
    }

    /// The strongly connected components of more than one node (Tarjan 1972, without recursion).
    pub(crate) fn knots(&self) -> Vec<Vec<u32>> {
        const UNSEEN: u32 = u32::MAX;
        let count = self.node_count();
        let (mut found, mut low) = (vec![UNSEEN; count], vec![0_u32; count]);
        let mut on_stack = vec![false; count];
        let (mut stack, mut path, mut knots) = (Vec::new(), Vec::<(u32, usize)>::new(), Vec::new());
        let mut clock = 0;
        for root in 0..count as u32 {
            if found[root as usize] != UNSEEN {
                continue;
            }
            path.push((root, self.range(root).start));
            while let Some(&mut (node, ref mut at)) = path.last_mut() {
                let here = node as usize;
                if found[here] == UNSEEN {
                    found[here] = clock;
                    low[here] = clock;
                    clock += 1;
                    stack.push(node);
                    on_stack[here] = true;
                }
                if *at < self.range(node).end {
                    let to = self.edges[*at].to;
                    *at += 1;
                    if found[to as usize] == UNSEEN {
                        path.push((to, self.range(to).start));
                    } else if on_stack[to as usize] {
                        low[here] = low[here].min(found[to as usize]);
                    }
                    continue;
                }
                path.pop();
                if let Some(&(parent, _)) = path.last() {
                    low[parent as usize] = low[parent as usize].min(low[here]);
                }
                if low[here] == found[here] {
                    let mut knot = Vec::new();
                    while let Some(member) = stack.pop() {
                        on_stack[member as usize] = false;
                        knot.push(member);
                        if member == node {
                            break;
                        }
                    }
                    if knot.len() > 1 {
                        knots.push(knot);
                    }
                }
            }
        }
        knots
    }
}
