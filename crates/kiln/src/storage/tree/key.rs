//! The keys in the tree, which are all objects' keys in one order.

/// So many bytes of a key in the tree are the object's number.
pub(crate) const OBJECT_BYTES: usize = 4;

/// The key in the tree of an object's key: the object's number, then the key, so that objects do not mix and each is in order.
pub(crate) fn write_tree_key(object: u32, key: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.reserve(OBJECT_BYTES + key.len());
    out.extend_from_slice(&object.to_be_bytes());
    out.extend_from_slice(key);
}

/// Where the rows of an object begin in the tree, and where they have ended.
pub(crate) fn tree_bounds(object: u32) -> (Vec<u8>, Vec<u8>) {
    tree_interval(object, &[], None)
}

/// The same of its rows from one key on, and up to, but not including, another one if there is one.
pub(crate) fn tree_interval(object: u32, low: &[u8], high: Option<&[u8]>) -> (Vec<u8>, Vec<u8>) {
    let (mut from, mut to) = (Vec::new(), Vec::new());
    write_tree_key(object, low, &mut from);
    match high {
        Some(high) => write_tree_key(object, high, &mut to),
        None => write_tree_key(object + 1, &[], &mut to),
    }
    (from, to)
}
