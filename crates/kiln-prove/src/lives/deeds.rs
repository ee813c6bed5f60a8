//! What lives are made of.

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
