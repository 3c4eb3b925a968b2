//! Times, counted in buckets: what a page of figures shows of a spread.

use std::time::Duration;

/// How many times were taken, how long they were in all, and how many fell into each bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// One bucket for each of [`Times::BOUNDS`], none of them counted in another.
    buckets: [u64; Times::BOUNDS.len()],
    count: u64,
    sum: Duration,
}

impl Times {
    /// Upper bounds of the buckets, each inclusive, ascending.
    pub const BOUNDS: [Duration; 14] = [
        Duration::from_micros(1_000),
        Duration::from_micros(2_500),
        Duration::from_millis(5),
        Duration::from_millis(10),
        Duration::from_millis(25),
        Duration::from_millis(50),
        Duration::from_millis(100),
        Duration::from_millis(250),
        Duration::from_millis(500),
        Duration::from_millis(1_000),
        Duration::from_millis(2_500),
        Duration::from_millis(5_000),
        Duration::from_millis(10_000),
        Duration::from_millis(60_000),
    ];

    /// Counts a time.
    pub fn note(&mut self, time: Duration) {
        if let Some(bucket) = Times::BOUNDS.iter().position(|bound| time <= *bound) {
            self.buckets[bucket] += 1;
        }
        self.count += 1;
        self.sum = self.sum.saturating_add(time);
    }

    /// For each of [`Times::BOUNDS`] how many times were no longer than it.
    pub fn up_to(&self) -> impl Iterator<Item = (Duration, u64)> {
        let mut below = 0;
        Times::BOUNDS
            .into_iter()
            .zip(self.buckets)
            .map(move |(bound, count)| {
                below += count;
                (bound, below)
            })
    }

    /// How many times were taken.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// All of them together.
    pub fn sum(&self) -> Duration {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_from_its_bucket_on() {
        let mut times = Times::default();
        for millis in [1, 2, 5, 6, 61_000] {
            times.note(Duration::from_millis(millis));
        }
        let counts: Vec<u64> = times.up_to().map(|(_, count)| count).collect();
        assert_eq!(counts, [1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]);
        assert_eq!(times.count(), 5);
        assert_eq!(times.sum(), Duration::from_millis(61_014));
        assert!(Times::BOUNDS.is_sorted());
    }
}
