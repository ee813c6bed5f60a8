//! Whether the machine had nothing else to do: what was measured on a busy one is no measure of an engine.

use crate::report::Samples;
use crate::results::Row;

/// With more of the processors' time taken by other processes, a machine was busy.
const OTHERS_MAX: f64 = 0.05;
/// With more of it taken by other machines on the same hardware, too.
const STEAL_MAX: f64 = 0.02;

/// What others took of the processors' time.
pub(crate) fn text(rows: &[Row]) -> String {
    let part = |field: fn(&Row) -> f64| {
        let mut samples = Samples::default();
        rows.iter().for_each(|row| samples.push(100.0 * field(row)));
        format!("{:.1}% (at worst {:.1}%)", samples.median(), samples.max())
    };
    format!(
        "Other processes took {} of the processors' time, other machines {}.",
        part(|row| row.others),
        part(|row| row.steal)
    )
}

/// What to say of rows that were measured while the machine was busy, if any were.
pub(crate) fn warning(rows: &[Row]) -> Option<String> {
    let busy = rows.iter().filter(|row| row.others > OTHERS_MAX || row.steal > STEAL_MAX).count();
    let worst = |field: fn(&Row) -> f64| 100.0 * rows.iter().map(field).fold(0.0, f64::max);
    (busy > 0).then(|| {
        format!(
            "{busy} of {} measurements were made on a busy machine: other processes took up to {:.1}% of the processors, other \
             machines up to {:.1}%. Measure again when it is idle.",
            rows.len(),
            worst(|row| row.others),
            worst(|row| row.steal)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::catalog::Mode;
    use crate::summary::tests::sample;

    #[test]
    fn a_busy_machine_is_reported_with_how_busy_it_was() {
        let mut rows: Vec<Row> = (0..3).map(|round| sample("kiln", Mode::Fast, "read", round, 1.0)).collect();
        assert_eq!(warning(&rows), None);
        rows[0].others = 0.05;
        rows[0].steal = 0.02;
        assert_eq!(warning(&rows), None);
        rows[1].others = 0.25;
        rows[2].steal = 0.03;
        let warning = warning(&rows).unwrap();
        assert!(warning.starts_with("2 of 3 ") && warning.contains("25.0%") && warning.contains("3.0%"));
        let text = text(&rows);
        assert!(text.contains("5.0% (at worst 25.0%)") && text.contains("2.0% (at worst 3.0%)"), "{text}");
    }
}
