//! Entries: what a slot of the index holds of a key, its tag and its newest record's address, and what is passed on of one that was seen.

use crate::storage::record::Address;

pub(super) const TAG_BITS: u32 = 19;
pub(super) const TAG_MASK: u64 = !0 << (64 - TAG_BITS);

/// True for an entry with this tag; not for a free slot, whatever the tag is. In one comparison: what is left of an entry without its
/// tag is an address, and no record has address 0.
#[inline(always)]
pub(super) fn has_tag(entry: u64, tag: u64) -> bool {
    (entry ^ tag).wrapping_sub(1) < !TAG_MASK
}

/// The same entry with another address.
#[inline]
pub(crate) fn with_address(entry: u64, address: Address) -> u64 {
    entry & TAG_MASK | address >> 3
}

/// A slot of a bucket's own line in which something was seen; the first one, for who has seen nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot(u8);

impl Slot {
    #[inline(always)]
    pub(super) fn new(number: u32) -> Slot {
        Slot(number as u8)
    }

    #[inline(always)]
    pub(super) fn number(self) -> usize {
        usize::from(self.0)
    }
}

/// What the index says of a key, for who goes on to look whether it is the key's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// [`NO_ADDRESS`](crate::storage::record::NO_ADDRESS), unless there is one.
    pub(crate) address: Address,
    pub(crate) slot: Slot,
}

impl Candidate {
    /// That of whoever knows the address, and not where the index has it.
    pub(crate) fn at(address: Address) -> Candidate {
        Candidate { address, slot: Slot::default() }
    }
}

/// The address in an entry.
#[inline]
pub(crate) fn address_of(entry: u64) -> Address {
    (entry & !TAG_MASK) << 3
}
