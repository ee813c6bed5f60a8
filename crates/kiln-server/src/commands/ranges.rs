//! Strings: reading and writing parts of values.

use std::ops::Range;

use super::options::integer;
use crate::failure::Failure;
use crate::protocol::decoder::Arguments;
use crate::work::Work;

/// `GETRANGE key start end` and `SUBSTR key start end`: both ends included, and negative ones counted from the string's end.
pub(crate) fn getrange(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let (start, end) = (integer(args.at(2))?, integer(args.at(3))?);
    let entry = work.load(args.at(1))?;
    let range = part(work.string(&entry).len(), start, end);
    work.reply_part(&entry, range);
    Ok(())
}

/// The part of so many bytes that lies between two places.
fn part(length: usize, start: i64, end: i64) -> Range<usize> {
    // Values are at most 16 MiB long.
    let length = length as i64;
    let place = |place: i64| if place < 0 { place.saturating_add(length) } else { place };
    let (from, to) = (place(start).max(0), place(end).max(0).min(length - 1));
    // Both before the beginning are so in their own order, though both are taken for the first byte.
    let is_turned = start < 0 && end < 0 && start > end;
    if is_turned || from > to { 0..0 } else { from as usize..to as usize + 1 }
}

/// `SETRANGE key offset value`: what lies between the string's old end and the offset becomes zeros.
pub(crate) fn setrange(work: &mut Work<'_, '_>, args: Arguments<'_>) -> Result<(), Failure> {
    let (offset, value) = (integer(args.at(2))?, args.at(3));
    let offset = usize::try_from(offset).map_err(|_| Failure::text("ERR offset is out of range"))?;
    let entry = work.load(args.at(1))?;
    let length = match value.is_empty() {
        true => work.string(&entry).len(),
        false => work.overwrite(&entry, offset, value)?,
    };
    work.reply.integer(length as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn parts_lie_where_redis_looks_for_them() {
        for (start, end, expected) in [
            (0, -1, 0..5),
            (1, 3, 1..4),
            (-3, -1, 2..5),
            (-100, 100, 0..5),
            (-100, -100, 0..1),
            (-100, -99, 0..1),
            (-99, -100, 0..0),
            (4, 4, 4..5),
            (5, 10, 0..0),
            (3, 2, 0..0),
            (i64::MIN, i64::MAX, 0..5),
            (i64::MAX, i64::MIN, 0..0),
        ] {
            assert_eq!(part(5, start, end), expected, "{start} {end}");
        }
        assert_eq!(part(0, 0, -1), 0..0);
    }
}
