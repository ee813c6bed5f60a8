//! What lives are made of.

use crate::support::Random;

/// One database in so many is large.
const LARGE_ONE_IN: usize = 60;
/// Of the others the disk of one in so many is full at times.
const TIGHT_ONE_IN: usize = 4;

/// What a database is like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Small,
    /// A small one, whose disk is full at times.
    Tight,
    Large,
}

impl Kind {
    pub(super) fn random(random: &mut Random) -> Kind {
        match random.below(LARGE_ONE_IN) {
            0 => Kind::Large,
            number if number.is_multiple_of(TIGHT_ONE_IN) => Kind::Tight,
            _ => Kind::Small,
        }
    }

    /// What is done to it, and how much of that at the most.
    pub(super) fn deeds(self) -> (&'static [(Deed, usize)], usize) {
        match self {
            Kind::Small => (USUAL, 70),
            Kind::Tight => (WHERE_TIGHT, 70),
            Kind::Large => (IN_LARGE, 60),
        }
    }
}

/// What is done to a database.
#[derive(Clone, Copy)]
pub(super) enum Deed {
    Put,
    Delete,
    DeleteAll,
    Append,
    Harden,
    Settle,
    Load,
    /// Drops a loaded table.
    Drop,
    /// Deletes rows of loaded tables, or has short ones in their place.
    Thin,
    Compact,
    Checkpoint,
    Name,
    BackUp,
    /// Has the disk be full soon.
    Limit,
    Lift,
    /// Puts rows until there is no room.
    Fill,
    /// Deletes, or drops, all there is, one after the other, so that there is room again.
    Clear,
}

/// How often each is done as a rule.
pub(super) const USUAL: &[(Deed, usize)] = &[
    (Deed::Put, 9),
    (Deed::Delete, 7),
    (Deed::DeleteAll, 2),
    (Deed::Append, 10),
    (Deed::Harden, 4),
    (Deed::Settle, 3),
    (Deed::Load, 1),
    (Deed::Drop, 1),
    (Deed::Compact, 1),
    (Deed::Checkpoint, 2),
    (Deed::Name, 1),
    (Deed::BackUp, 1),
];

/// The same, where the database is large: what makes its tree grow and shrink.
pub(super) const IN_LARGE: &[(Deed, usize)] = &[
    (Deed::Put, 2),
    (Deed::DeleteAll, 1),
    (Deed::Append, 1),
    (Deed::Settle, 3),
    (Deed::Load, 3),
    (Deed::Drop, 1),
    (Deed::Thin, 5),
    (Deed::Checkpoint, 1),
];

/// The same, where the disk is full at times.
pub(super) const WHERE_TIGHT: &[(Deed, usize)] = &[
    (Deed::Put, 9),
    (Deed::Delete, 5),
    (Deed::DeleteAll, 1),
    (Deed::Append, 6),
    (Deed::Harden, 4),
    (Deed::Settle, 3),
    (Deed::Load, 1),
    (Deed::Drop, 1),
    (Deed::Compact, 1),
    (Deed::Checkpoint, 2),
    (Deed::Name, 1),
    (Deed::BackUp, 1),
    (Deed::Limit, 3),
    (Deed::Lift, 1),
    (Deed::Fill, 3),
    (Deed::Clear, 2),
];
