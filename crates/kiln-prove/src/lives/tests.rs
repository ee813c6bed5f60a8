//! Lives, and lies about them, each of which must be noticed.

use super::*;
use crate::arguments::Limit;
use crate::support::copy_of;
use crate::testing::{budget, seed, watched};

#[test]
fn c4_databases_that_are_opened_again_and_again_have_what_was_committed() {
    let name = "c4_databases_that_are_opened_again_and_again_have_what_was_committed";
    watched(name, std::time::Duration::from_secs(600), |replay| {
        let mut progress = Progress::silent(name, Limit::States(budget(1_500)));
        for seed in seed().. {
            crate::testing::at_test(replay, name, seed);
            live(seed, &mut progress).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
            if !progress.goes_on() {
                break;
            }
        }
        progress.finish();
    });
}

/// Of a map and a session lives knew nothing: what was lost of them nobody noticed.
#[test]
fn c7_what_is_lost_of_the_map_or_told_to_the_session_is_noticed() {
    let closed = |seed: u64| {
        let (disk, mut told) = (SimulatedDevice::new(seed), Told::default());
        assert!(one_opening(&disk, &mut told, &mut Random::new(seed), Kind::Small).is_ok());
        let is_durable = told.states.last().is_some_and(|(version, _)| *version == told.durable);
        let has_all = told.serial() > 0 && told.now().keys().any(|(object, _)| *object == MAP_NUMBER);
        (is_durable && has_all).then_some((disk, told))
    };
    let (disk, told) = (0..100).find_map(closed).expect("some opening ends in order");
    let opening =
        |told: &Told| one_opening(&copy_of(&disk), &mut told.clone(), &mut Random::new(1), Kind::Small);
    assert!(opening(&told).is_ok());
    let notices = |clause: &str, lie: fn(&mut Told)| {
        let mut told = told.clone();
        lie(&mut told);
        let ended = opening(&told);
        assert!(matches!(ended, Err(Ended::Wrong(what)) if what.starts_with(clause)), "{clause}");
    };
    notices("C7", |told| told.serials.last_mut().into_iter().for_each(|(_, serial)| *serial += 1));
    notices("C7", |told| told.serials.truncate(told.serials.len() - 1));
    notices("C4", |told| {
        let (_, state) = told.states.last_mut().unwrap();
        let row = state.keys().find(|(object, _)| *object == MAP_NUMBER).unwrap().clone();
        state.remove(&row);
    });
    notices("C4", |told| {
        let (_, state) = told.states.last_mut().unwrap();
        state.insert((MAP_NUMBER, b"another".to_vec()), vec![1].into());
    });
}

#[test]
fn c5_what_a_disk_refuses_that_is_not_full_or_was_cleared_is_noticed() {
    let opening = |disk: &SimulatedDevice, told: &Told, seed: u64| {
        one_opening(&copy_of(disk), &mut told.clone(), &mut Random::new(seed), Kind::Tight)
    };
    let closed = |seed: u64| {
        let (disk, mut told) = (SimulatedDevice::new(seed), Told::default());
        assert!(one_opening(&disk, &mut told, &mut Random::new(seed), Kind::Tight).is_ok());
        let is_sound = told.room.is_limited && told.room.was_closed && opening(&disk, &told, !seed).is_ok();
        is_sound.then_some((seed, disk, told))
    };
    let notices = |lie: fn(&mut Told), is_noticed: fn(Ended) -> bool| {
        (0..500).filter_map(closed).any(|(seed, disk, mut told)| {
            lie(&mut told);
            opening(&disk, &told, !seed).is_err_and(is_noticed)
        })
    };
    let is_full = |ended| matches!(ended, Ended::Failed(error) if error.kind() == ErrorKind::NoSpace);
    assert!(notices(|told| told.room.is_limited = false, is_full));
    let is_cleared = |ended| matches!(ended, Ended::Wrong(what) if what.starts_with("C5: everything"));
    assert!(notices(|told| told.room.is_cleared = true, is_cleared));
}
