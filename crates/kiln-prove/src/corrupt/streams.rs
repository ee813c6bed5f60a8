//! A backup's stream that is damaged on its way: whatever it is, it is refused, with the place, and nothing is left.

use std::fmt::Debug;

use kiln::ErrorKind;
use kiln::device::{Device as _, SimulatedDevice};

use crate::copies::{restore_stream, stream_of};
use crate::crash::reopen;
use crate::jobs::Progress;
use crate::support::copy_of;

use super::Specimen;

/// The bytes before the first frame, and of a frame's head.
const BEGINNING_BYTES: usize = 16;
const HEAD_BYTES: usize = 32;

/// At most so many bytes are flipped of one stream.
const PLACES_MAX: usize = 20_000;

/// Bytes flipped, streams that end early, frames that are missing, come twice, or have changed places.
pub(super) fn damage_backup(specimen: &Specimen, _seed: u64, most: usize, progress: &mut Progress) {
    let db = reopen(&copy_of(&specimen.disk)).unwrap();
    let stream = stream_of(&db).unwrap();
    let stride = stream.len().div_ceil(most.min(PLACES_MAX)).max(1);
    for place in (0..stream.len()).step_by(stride) {
        let mut damaged = stream.clone();
        damaged[place] ^= 1 << (place % 7);
        refused(&damaged, place, &("bit of byte", place));
        refused(&stream[..place], place, &("cut to", place));
        progress.count();
        progress.count();
        if progress.is_enough() {
            return;
        }
    }
    let frames = frames(&stream);
    // The last says that it is the end: what follows is not looked at.
    for (number, frame) in frames.iter().enumerate().take(frames.len() - 1) {
        let (before, after) = (&stream[..frame.start], &stream[frame.end..]);
        let (this, next) = (&stream[frame.clone()], &stream[frames[number + 1].clone()]);
        let behind = &after[next.len()..];
        refused(&[before, after].concat(), frame.start, &("without frame", number));
        refused(&[before, this, this, after].concat(), frame.end, &("twice frame", number));
        refused(&[before, next, this, behind].concat(), frame.start, &("frame too late", number));
        (0..3).for_each(|_| progress.count());
    }
}

/// Where the frames are.
fn frames(stream: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut frames = Vec::new();
    let mut at = BEGINNING_BYTES;
    while let Some(length) = stream.get(at + 16..).and_then(|rest| rest.first_chunk()) {
        let end = at + HEAD_BYTES + u32::from_le_bytes(*length) as usize;
        frames.push(at..end);
        at = end;
    }
    frames
}

/// The damage is at this place, or behind.
fn refused(stream: &[u8], place: usize, what: &dyn Debug) {
    let target = SimulatedDevice::new(1);
    let error = match restore_stream(stream, &target) {
        Ok(backup) => panic!("{what:?}: a damaged stream is restored: {backup:?}"),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{what:?}: {error}");
    let (_, told) = error.place().unwrap_or_else(|| panic!("{what:?}: no place: {error}"));
    assert!(told <= place as u64, "{what:?}: damage at {told}: {error}");
    assert_eq!(target.list().unwrap(), [""; 0], "{what:?}: something is left");
}
