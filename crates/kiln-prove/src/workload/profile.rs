//! What a workload is like: how long, how large its values, and what it makes the engine do. One profile for each name.

/// Segments of which a long log needs few.
const LONG_SEGMENTS: u64 = 1 << 20;

/// What a workload is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    /// Operations, the first transaction not counted.
    pub(crate) operations: usize,
    /// One commit in so many is safe.
    pub(crate) safe_one_in: usize,
    /// The longest filler of a value.
    pub(crate) filler_max: usize,
    /// One value in so many is long.
    pub(crate) long_one_in: usize,
    /// One transaction in so many overwrites ballast: it lets the log grow, but not the data.
    pub(crate) ballast_one_in: usize,
    /// Values that are written once, before all else.
    pub(crate) cold_keys: usize,
    /// Transactions before all else, each of which writes one large value for good and overwrites another.
    pub(crate) filling: usize,
    /// The size of the log's segments.
    pub(crate) segment_bytes: u64,
    /// How many times as long as the live data the log may become.
    pub(crate) space_amplification: f64,
    /// After so much log a checkpoint is taken; 0: never.
    pub(crate) checkpoint_log_bytes: u64,
    /// One operation in so many settles the tables; 0: none.
    pub(crate) settle_one_in: usize,
    /// One operation in so many gives a snapshot a name, takes it from one, or looks at one; 0: none.
    pub(crate) name_one_in: usize,
    /// One operation in so many loads a table in bulk, writes to one, or drops one; 0: none.
    pub(crate) load_one_in: usize,
    /// Memory for settling.
    pub(crate) settle_memory: u64,
    /// Some rows expire, long after the workload, and some are not deleted, but put so that they have expired.
    pub(crate) expires: bool,
    /// Memory; 0: the least there is.
    pub(crate) memory: u64,
}

impl Profile {
    /// Whether its values are so long that a transaction can be too large.
    pub(crate) fn may_reach_limits(&self) -> bool {
        self.filler_max > 2_000
    }
}

/// The engine's default.
const USUAL_AMPLIFICATION: f64 = 2.0;

/// The engine's default where there is little memory.
const USUAL_SETTLE_MEMORY: u64 = 16 << 20;

/// The smallest segments there are: the less an opening reads and writes, the more states can be looked at.
const SMALLEST_SEGMENTS: u64 = 16 << 10;
/// Segments in which a value may have so many blocks that a hardening goes over several of them.
const MIDDLE_SEGMENTS: u64 = 32 << 10;
/// Segments in which the longest values have room.
const LARGER_SEGMENTS: u64 = 64 << 10;

/// Three transactions: every loss pattern of every step can be tried, though a step have 4,096.
pub(crate) const THREE: Profile = Profile {
    operations: 3,
    safe_one_in: 2,
    filler_max: 0,
    long_one_in: 1_000,
    ballast_one_in: 1_000,
    cold_keys: 0,
    filling: 0,
    segment_bytes: SMALLEST_SEGMENTS,
    space_amplification: USUAL_AMPLIFICATION,
    checkpoint_log_bytes: 0,
    settle_one_in: 0,
    name_one_in: 0,
    load_one_in: 0,
    settle_memory: USUAL_SETTLE_MEMORY,
    expires: false,
    memory: 0,
};

/// So little that every loss pattern of every step can be tried.
pub(crate) const TINY: Profile = Profile {
    operations: 16,
    safe_one_in: 3,
    filler_max: 0,
    long_one_in: 1_000,
    ballast_one_in: 1_000,
    cold_keys: 0,
    filling: 0,
    segment_bytes: SMALLEST_SEGMENTS,
    space_amplification: USUAL_AMPLIFICATION,
    checkpoint_log_bytes: 16 << 10,
    settle_one_in: 0,
    name_one_in: 0,
    load_one_in: 0,
    settle_memory: USUAL_SETTLE_MEMORY,
    expires: false,
    memory: 0,
};

/// Small values: most hardenings write a single block.
pub(crate) const SMALL: Profile = Profile {
    operations: 60,
    safe_one_in: 4,
    filler_max: 24,
    long_one_in: 1_000,
    ballast_one_in: 1_000,
    cold_keys: 0,
    filling: 0,
    segment_bytes: SMALLEST_SEGMENTS,
    space_amplification: USUAL_AMPLIFICATION,
    checkpoint_log_bytes: 24 << 10,
    settle_one_in: 0,
    name_one_in: 0,
    load_one_in: 0,
    settle_memory: USUAL_SETTLE_MEMORY,
    expires: false,
    memory: 0,
};

/// Values of all sizes, in many hardenings: the log goes over several segments and its beginning is dropped.
pub(crate) const LARGE: Profile = Profile {
    operations: 200,
    safe_one_in: 7,
    filler_max: 2_500,
    long_one_in: 8,
    ballast_one_in: 4,
    cold_keys: 0,
    filling: 0,
    segment_bytes: MIDDLE_SEGMENTS,
    space_amplification: USUAL_AMPLIFICATION,
    checkpoint_log_bytes: 96 << 10,
    settle_one_in: 0,
    name_one_in: 0,
    load_one_in: 0,
    settle_memory: USUAL_SETTLE_MEMORY,
    expires: false,
    memory: 0,
};

/// Rare hardenings: each covers many transactions, and at times more than one segment.
pub(crate) const LAZY: Profile = Profile {
    operations: 220,
    safe_one_in: 60,
    filler_max: 18_000,
    long_one_in: 8,
    ballast_one_in: 16,
    cold_keys: 0,
    filling: 0,
    segment_bytes: LARGER_SEGMENTS,
    space_amplification: USUAL_AMPLIFICATION,
    checkpoint_log_bytes: 256 << 10,
    settle_one_in: 0,
    name_one_in: 0,
    load_one_in: 0,
    settle_memory: USUAL_SETTLE_MEMORY,
    expires: false,
    memory: 0,
};

/// Small segments, and among the data much that is overwritten: what is not goes through compaction again and again.
pub(crate) const SKEWED: Profile = Profile {
    operations: 160,
    safe_one_in: 3,
    filler_max: 400,
    long_one_in: 4,
    ballast_one_in: 2,
    cold_keys: 12,
    filling: 0,
    segment_bytes: SMALLEST_SEGMENTS,
    space_amplification: 1.1,
    checkpoint_log_bytes: 128 << 10,
    settle_one_in: 0,
    name_one_in: 0,
    load_one_in: 0,
    settle_memory: USUAL_SETTLE_MEMORY,
    expires: false,
    memory: 0,
};

/// Tables whose rows settle again and again, and are written and deleted again.
pub(crate) const SETTLING: Profile = Profile {
    operations: 120,
    safe_one_in: 4,
    filler_max: 300,
    long_one_in: 16,
    ballast_one_in: 8,
    cold_keys: 0,
    filling: 0,
    segment_bytes: SMALLEST_SEGMENTS,
    space_amplification: USUAL_AMPLIFICATION,
    checkpoint_log_bytes: 48 << 10,
    settle_one_in: 8,
    name_one_in: 0,
    load_one_in: 0,
    settle_memory: USUAL_SETTLE_MEMORY,
    expires: false,
    memory: 0,
};

/// Snapshots that have names, bulk loads, tables that are dropped, and all that moves or drops what they need.
pub(crate) const NAMED: Profile = Profile {
    operations: 120,
    safe_one_in: 6,
    filler_max: 300,
    long_one_in: 16,
    ballast_one_in: 6,
    cold_keys: 6,
    filling: 0,
    segment_bytes: SMALLEST_SEGMENTS,
    space_amplification: 1.1,
    checkpoint_log_bytes: 48 << 10,
    settle_one_in: 12,
    name_one_in: 6,
    load_one_in: 20,
    settle_memory: USUAL_SETTLE_MEMORY,
    expires: false,
    memory: 0,
};

/// The same with so little memory that what settles is sorted in many runs on disk, and merged in several ranges of keys.
pub(crate) const RUNS: Profile =
    Profile { settle_memory: 8 << 10, filler_max: 2_000, long_one_in: 2, ballast_one_in: 3, ..SETTLING };

/// What is live has room in memory, and is written anew before it would leave, while the log goes around its memory.
pub(crate) const WARM: Profile = Profile {
    operations: 200,
    ballast_one_in: 2,
    filler_max: 60,
    checkpoint_log_bytes: 96 << 10,
    memory: 160 << 10,
    ..SMALL
};

/// Rows that expire, in tables that settle, and a log that is compacted.
pub(crate) const EXPIRING: Profile = Profile { expires: true, space_amplification: 1.1, ..SETTLING };

/// A log so long that several threads recover it, which takes more than 16 MiB. What stays keeps its beginning from being
/// compacted.
pub(crate) const LONG: Profile = Profile {
    operations: 30,
    safe_one_in: 3,
    filler_max: 2_500,
    long_one_in: 8,
    ballast_one_in: 4,
    cold_keys: 0,
    filling: 1_250,
    segment_bytes: LONG_SEGMENTS,
    space_amplification: 100.0,
    // With one there would be nothing left for several.
    checkpoint_log_bytes: 0,
    settle_one_in: 0,
    name_one_in: 0,
    load_one_in: 0,
    settle_memory: USUAL_SETTLE_MEMORY,
    expires: false,
    memory: 0,
};

/// The workloads, for the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Name {
    /// Three small transactions.
    Three,
    /// A few small transactions.
    Tiny,
    /// Many small transactions.
    Small,
    /// Values of all sizes in many hardenings; segments come and go.
    Large,
    /// Values of all sizes in few, long hardenings.
    Lazy,
    /// Data of which a part is overwritten all the time; the log is compacted.
    Skewed,
    /// Tables that settle.
    Settling,
    /// Snapshots that have names, bulk loads, and tables that are dropped.
    Named,
    /// Tables that settle in many steps.
    Runs,
    /// Rows that expire.
    Expiring,
    /// Data that stays in memory while the log does not.
    Warm,
    /// A log that several threads recover.
    Long,
}

impl Name {
    pub(crate) const ALL: [Name; 12] = [
        Name::Three,
        Name::Tiny,
        Name::Small,
        Name::Large,
        Name::Lazy,
        Name::Skewed,
        Name::Settling,
        Name::Named,
        Name::Runs,
        Name::Expiring,
        Name::Warm,
        Name::Long,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Name::Three => "three",
            Name::Tiny => "tiny",
            Name::Small => "small",
            Name::Large => "large",
            Name::Lazy => "lazy",
            Name::Skewed => "skewed",
            Name::Settling => "settling",
            Name::Named => "named",
            Name::Runs => "runs",
            Name::Expiring => "expiring",
            Name::Warm => "warm",
            Name::Long => "long",
        }
    }

    pub(crate) fn profile(self) -> Profile {
        match self {
            Name::Three => THREE,
            Name::Tiny => TINY,
            Name::Small => SMALL,
            Name::Large => LARGE,
            Name::Lazy => LAZY,
            Name::Skewed => SKEWED,
            Name::Settling => SETTLING,
            Name::Named => NAMED,
            Name::Runs => RUNS,
            Name::Expiring => EXPIRING,
            Name::Warm => WARM,
            Name::Long => LONG,
        }
    }
}
