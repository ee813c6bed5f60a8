//! What can be wrong with a history.

/// The kinds of anomalies. Those of Adya (1999) have his names; the others follow Elle, and Kiln's own promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A transaction does not see its own writes, or sees two states.
    Internal,
    /// A transaction sees a row, or is told of one, and reads a journal that says something else.
    AgainstJournal,
    /// A read of what nobody wrote there.
    Garbage,
    /// A number is in a list twice.
    Duplicate,
    /// G1a: a read of what an aborted transaction wrote.
    AbortedRead,
    /// G1b: a read of what was not the writer's last write of the key.
    IntermediateRead,
    /// Two reads of a list of which neither is the beginning of the other.
    IncompatibleOrder,
    /// Two transactions changed the same state of a key.
    LostUpdate,
    /// A committed write is nowhere.
    LostWrite,
    /// G0: a cycle of writes.
    WriteCycle,
    /// G1c: a cycle of writes and reads.
    CircularInformation,
    /// A cycle with one anti-dependency; a read of half a transaction, say.
    SingleAntiDependency,
    /// A cycle with several anti-dependencies; write skew, say.
    AntiDependencyItem,
    /// As that, with a phantom.
    AntiDependencyRange,
    /// One of these cycles, which only contradicts the order of real time or of a process.
    RealTime(&'static str),
    /// A transaction that depends on another has the older version.
    VersionOrder,
    /// A snapshot sees something newer than something that it misses.
    TornSnapshot,
    /// A durable snapshot does not cover what was known to be durable.
    StaleDurable,
    /// After a crash something is missing up to the horizon.
    NotRecovered,
    /// After a crash something from beyond the horizon is there.
    CameBack,
    /// What was called durable is lost.
    DurableLost,
    /// The serial number of a session does not fit its transactions.
    SessionSerial,
}

impl Kind {
    pub(crate) fn name(self) -> String {
        let name = match self {
            Kind::Internal => "internal",
            Kind::AgainstJournal => "row against its journal",
            Kind::Garbage => "garbage",
            Kind::Duplicate => "duplicate append",
            Kind::AbortedRead => "G1a, aborted read",
            Kind::IntermediateRead => "G1b, intermediate read",
            Kind::IncompatibleOrder => "incompatible orders",
            Kind::LostUpdate => "lost update",
            Kind::LostWrite => "lost write",
            Kind::WriteCycle => "G0, cycle of writes",
            Kind::CircularInformation => "G1c, circular information flow",
            Kind::SingleAntiDependency => "G-single",
            Kind::AntiDependencyItem => "G2-item",
            Kind::AntiDependencyRange => "G2, phantom",
            Kind::RealTime(cycle) => return format!("{cycle} against real time"),
            Kind::VersionOrder => "version order",
            Kind::TornSnapshot => "torn snapshot",
            Kind::StaleDurable => "stale durable snapshot",
            Kind::NotRecovered => "not recovered",
            Kind::CameBack => "came back",
            Kind::DurableLost => "durable and lost",
            Kind::SessionSerial => "session serial",
        };
        name.to_owned()
    }
}

/// Something wrong.
#[derive(Clone, Debug)]
pub(crate) struct Anomaly {
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// Anomalies of one kind that are told of.
const TOLD_OF_A_KIND: usize = 3;

/// All that is wrong with a history.
#[derive(Debug, Default)]
pub(crate) struct Anomalies {
    told: Vec<Anomaly>,
    count: usize,
}

impl Anomalies {
    /// Adds one; `text` is only made if it is going to be told.
    pub(crate) fn add(&mut self, kind: Kind, text: impl FnOnce() -> String) {
        self.count += 1;
        if self.told.iter().filter(|told| told.kind == kind).count() < TOLD_OF_A_KIND {
            self.told.push(Anomaly { kind, text: text() });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[cfg(test)]
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = self.told.iter().map(|told| told.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }
}

impl std::fmt::Display for Anomalies {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut told: Vec<&Anomaly> = self.told.iter().collect();
        told.sort_by_key(|anomaly| anomaly.kind);
        for Anomaly { kind, text } in told {
            writeln!(out, "{}: {text}", kind.name())?;
        }
        write!(out, "{} anomalies", self.count)
    }
}
