//! Times and what is said of many of them.

use std::time::Duration;

use descant_decision::Value;

/// The value below or at which a share of the times lies (nearest rank); zero of none.
pub(crate) fn percentile(times: &[Duration], share: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (share * sorted.len() as f64).ceil() as usize;
    let at = rank.max(1).min(sorted.len());
    sorted.get(at.wrapping_sub(1)).copied().unwrap_or_default()
}

/// In milliseconds.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Milliseconds with three decimal places, for JSON.
pub(crate) fn ms_value(time: Duration) -> Value {
    Value::float((ms(time) * 1e3).round() / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_times() {
        let times: Vec<Duration> = [5, 1, 4, 2, 3].map(Duration::from_secs).to_vec();
        let seconds = |share| percentile(&times, share).as_secs();
        assert_eq!(
            (seconds(0.5), seconds(0.95), seconds(1.0), seconds(0.0)),
            (3, 5, 5, 1)
        );
        assert_eq!(percentile(&[], 0.5), Duration::ZERO);
    }
}
