//! Every operation counts, stalls are seen, and lag is told.

use std::sync::atomic::AtomicU64;

use anyhow::bail;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::hardening::{LOOKS, Looks};
use super::*;

#[test]
fn every_operation_of_every_thread_is_counted_and_recorded() {
    for nap in [Duration::ZERO, Duration::from_millis(1)] {
        let done = AtomicU64::new(0);
        let measured = repeat(3, &Meanwhile::nothing(Duration::from_millis(5)), |_| {
            Ok(|| {
                done.fetch_add(2, Ordering::Relaxed);
                std::thread::sleep(nap);
                Ok(2)
            })
        })
        .unwrap();
        assert_eq!(measured.ops, done.into_inner());
        assert_eq!(measured.bins.iter().sum::<u64>(), measured.ops);
        assert_eq!(measured.latency_ns.len() * 2, measured.ops);
        // Sleeping takes at least as long as was asked for; the histogram keeps three digits.
        assert!(measured.latency_us(0.0) >= nap.as_micros() as f64 * 0.99);
        assert!(measured.hardening.is_none());
    }
}

#[test]
fn every_thread_does_an_operation_however_short_the_time_is() {
    for _ in 0..20 {
        let measured = repeat(3, &Meanwhile::nothing(Duration::ZERO), |_| Ok(|| Ok(1))).unwrap();
        assert!(measured.ops >= 3, "{}", measured.ops);
    }
}

#[test]
fn slow_operations_among_fast_ones_count_as_many_as_they_are() {
    let measured = repeat(1, &Meanwhile::nothing(Duration::from_millis(200)), |_| {
        let mut random = SmallRng::seed_from_u64(1);
        Ok(move || {
            if random.random_range(0..5) == 0 {
                std::thread::sleep(Duration::from_micros(20));
            }
            Ok(1)
        })
    })
    .unwrap();
    let slow = measured.latency_ns.count_between(20_000, LATENCY_NS_MAX) as f64;
    let part = slow / measured.ops as f64;
    assert!((0.1..0.4).contains(&part), "{part}");
}

#[test]
fn all_are_timed_where_slow_ones_are_many_however_fast_the_others_are() {
    let mut sampling = Sampling::default();
    for op in 0..10 * STRIDE {
        assert_eq!(sampling.stride, 1, "{op}");
        sampling.note(Duration::from_micros(if op % 5 == 0 { 70 } else { 1 }));
    }
    for _ in 0..2 * STRIDE {
        sampling.note(Duration::from_micros(1));
    }
    assert_eq!(sampling.stride, STRIDE);
    sampling.note(TIMED_EACH * STRIDE as u32);
    assert_eq!(sampling.stride, 1);
}

#[test]
fn a_stall_among_fast_operations_is_seen_and_counts_once() {
    let stall = Duration::from_millis(10);
    let stalls = AtomicU64::new(0);
    let measured = repeat(1, &Meanwhile::nothing(Duration::from_millis(400)), |_| {
        let (stalls, mut calls) = (&stalls, 0_u64);
        Ok(move || {
            calls += 1;
            if calls.is_multiple_of(2_000) {
                stalls.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(stall);
            }
            Ok(1)
        })
    })
    .unwrap();
    let stalls = stalls.into_inner();
    // The histogram keeps three digits.
    let seen = measured.latency_ns.count_between(nanoseconds(stall) / 100 * 99, LATENCY_NS_MAX);
    assert!((stalls..=stalls + stalls / 2).contains(&seen), "{seen} of {stalls}");
    assert_eq!(measured.latency_ns.len(), measured.ops);
}

#[test]
fn hardening_is_seen_with_its_lag() {
    let calls = AtomicU64::new(0);
    // Every fifth look finds that what was committed five looks ago is durable.
    let progress = || {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        Some(Hardening { current: call, durable: (call / 5 * 5).saturating_sub(5) })
    };
    let nap = || {
        std::thread::sleep(Duration::from_millis(1));
        Ok(1)
    };
    let meanwhile = Meanwhile { progress: &progress, ..Meanwhile::nothing(Duration::from_millis(200)) };
    let hardened = repeat(1, &meanwhile, |_| Ok(nap)).unwrap().hardening.unwrap();
    let looks = calls.into_inner();
    assert!(looks > 12, "{looks}");
    assert_eq!(hardened.marks_ms.len() as u64, (looks - 1) / 5 - 1);
    assert!(hardened.lag_ns.min() >= 5 * nanoseconds(*LOOKS.start()) * 3 / 4);
    // Of looks at commits none is forgotten, and all became durable in the end.
    let (mut hardened, before) = (hardened.clone(), hardened.lag_ns.len());
    hardened.note_all_durable();
    assert!((before + 1..looks).contains(&hardened.lag_ns.len()), "{before} of {looks}");
}

#[test]
fn hardenings_between_two_looks_are_counted_and_looked_at_more_often() {
    let calls = AtomicU64::new(0);
    // Each look finds that there were three since the last one.
    let progress = || {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        Some(Hardening { current: call + 1, durable: call })
    };
    let hardenings = || Some(3 * calls.load(Ordering::Relaxed));
    let meanwhile = Meanwhile {
        progress: &progress,
        hardenings: &hardenings,
        ..Meanwhile::nothing(Duration::from_millis(50))
    };
    let hardened = repeat(1, &meanwhile, |_| Ok(|| Ok(1))).unwrap().hardening.unwrap();
    let looks = calls.into_inner();
    assert_eq!(hardened.count, Some(3 * (looks - 1)));
    let mut looks = Looks::new();
    let mut each_of = |between: u32| {
        for look in 0..20 * between {
            looks.note((look + 1).is_multiple_of(between));
        }
        looks.each
    };
    assert_eq!(each_of(1), *LOOKS.start());
    let settled = each_of(8);
    assert_eq!(settled, *LOOKS.start());
    assert_eq!(each_of(1000), *LOOKS.end());
    assert_eq!(each_of(8), *LOOKS.end());
    assert!(each_of(4) < *LOOKS.end());
}

#[test]
fn two_stalls_are_two_and_a_load_that_has_become_slow_is_none() {
    let us = Duration::from_micros;
    let noted = |timed, others| {
        let mut latency_ns = histogram().unwrap();
        latency_ns.record_n(1000, 10_000).unwrap();
        record(&mut latency_ns, timed, STRIDE, others);
        assert_eq!(latency_ns.len(), 10_000 + STRIDE);
        latency_ns
    };
    let above = |latency_ns: &Histogram<u64>, least: Duration| {
        latency_ns.count_between(nanoseconds(least), LATENCY_NS_MAX)
    };
    let two = noted(us(2000), us(3000));
    assert_eq!((above(&two, us(1000)), above(&two, us(10))), (2, 2));
    for timed in [us(10), us(100), us(2000)] {
        let slow = noted(timed, timed * (STRIDE as u32 - 1));
        assert_eq!((above(&slow, timed * 2), above(&slow, timed / 2)), (0, STRIDE), "{timed:?}");
    }
    let one = noted(us(1), us(10_000));
    assert_eq!((above(&one, us(9_900)), above(&one, us(2))), (1, 1));
    let one = noted(us(10_000), us(60));
    assert_eq!((above(&one, us(9_900)), above(&one, us(2))), (1, 1));
}

#[test]
fn who_hardens_nothing_by_itself_is_asked_to_so_often() {
    let calls = AtomicU64::new(0);
    let persist = || {
        calls.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let meanwhile = Meanwhile {
        persist: Some((Duration::from_millis(10), &persist)),
        ..Meanwhile::nothing(Duration::from_millis(100))
    };
    let nap = || {
        std::thread::sleep(Duration::from_millis(1));
        Ok(1)
    };
    let marks_ms = repeat(1, &meanwhile, |_| Ok(nap)).unwrap().hardening.unwrap().marks_ms;
    assert_eq!(marks_ms.len() as u64, calls.load(Ordering::Relaxed));
    assert!(
        (1..=10).contains(&marks_ms.len()) && marks_ms.is_sorted() && marks_ms[0] >= 10.0,
        "{marks_ms:?}"
    );
    let broken = || bail!("the disk is full");
    let meanwhile = Meanwhile { persist: Some((Duration::ZERO, &broken)), ..meanwhile };
    let error = repeat(1, &meanwhile, |_| Ok(nap)).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "the disk is full");
}

#[test]
fn slices_join_to_the_mean_rate_and_all_latencies() {
    let part = |ops: u64, seconds: f64| {
        let mut latency_ns = histogram().unwrap();
        latency_ns.record_n(ops, ops).unwrap();
        let ops_per_s = ops as f64 / seconds;
        Measured { ops, seconds, ops_per_s, latency_ns, ..Measured::nothing(Usage::default()).unwrap() }
    };
    let whole = join(vec![part(10, 1.0), part(50, 2.0)]).unwrap();
    assert_eq!((whole.ops, whole.seconds, whole.ops_per_s), (60, 3.0, 20.0));
    assert_eq!(whole.latency_ns.len(), 60);
}

#[test]
fn a_thread_that_fails_ends_the_measurement_with_its_error() {
    let hour = Meanwhile::nothing(Duration::from_secs(3600));
    for bad_thread in 0..2 {
        let prepare = |thread| {
            if thread == bad_thread {
                bail!("cannot begin");
            }
            Ok(|| Ok(1))
        };
        let error = repeat(2, &hour, prepare).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "cannot begin");
    }
    let failing = repeat(2, &hour, |_| Ok(|| bail!("broken")));
    assert_eq!(failing.map(drop).unwrap_err().to_string(), "broken");
}
