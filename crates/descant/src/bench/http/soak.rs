//! Many clients for a long time: every request is answered or refused with a hint, the answers stay the same, memory
//! stays flat, no slot is lost.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use descant_decision::Value;
use descant_decision::json::Object;

use super::Verdict;
use super::client::{Client, Outcome};
use super::times::{ms, ms_value, percentile};
use super::watch::{Look, look};
use crate::meter::Meter;
use crate::samples::Seeded;

/// What a soak came to.
#[derive(Debug, Default)]
pub(crate) struct Soak {
    clients: usize,
    time: Duration,
    latencies: Vec<Duration>,
    refused: usize,
    unequal: usize,
    failed: usize,
    /// One a second.
    looks: Vec<Look>,
    after: Look,
}

/// What all clients add to.
#[derive(Default)]
struct Counts {
    latencies: Mutex<Vec<Duration>>,
    refused: AtomicUsize,
    unequal: AtomicUsize,
    faults: Mutex<Vec<String>>,
    failed: AtomicUsize,
    over: AtomicBool,
}

/// Presses the server.
pub(crate) fn soak(
    client: &Client,
    requests: &[String],
    (clients, time): (usize, Duration),
    pid: Option<u32>,
    verdict: &mut Verdict,
) -> Soak {
    let meter = Meter::of("answers alone", 0, Some(requests.len() as u64));
    let mut known = Vec::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        match client.decided(request, &AtomicUsize::new(0)) {
            Ok(answer) => known.push((request.as_str(), answer.body)),
            Err(fault) => verdict.failed(format!("alone, request {index}: {fault}")),
        }
        meter.one();
    }
    drop(meter);
    let mut soak = Soak {
        clients,
        time,
        ..Soak::default()
    };
    if known.is_empty() {
        return soak;
    }
    let counts = Counts::default();
    thread::scope(|scope| {
        for index in 0..clients {
            let (counts, known) = (&counts, &known);
            scope.spawn(move || counts.press(client, known, index as u64));
        }
        let meter = Meter::of("seconds", 0, Some(time.as_secs()));
        let started = Instant::now();
        while started.elapsed() < time {
            soak.looks.push(look(client, pid));
            thread::sleep(Duration::from_secs(1).min(time.saturating_sub(started.elapsed())));
            meter.one();
        }
        counts.over.store(true, Ordering::Release);
    });
    soak.take(counts, verdict);
    // The engine shows its figures at the end of a step.
    thread::sleep(Duration::from_secs(1));
    soak.after = look(client, pid);
    soak.judge(verdict);
    soak
}

impl Counts {
    /// One client, until all is over.
    fn press(&self, client: &Client, known: &[(&str, Vec<u8>)], seed: u64) {
        let mut random = Seeded::new(seed);
        while !self.over.load(Ordering::Acquire) {
            let (request, wanted) = random.pick(known);
            match client.decide(request) {
                Outcome::Answered(answer) => {
                    if answer.body != *wanted {
                        self.unequal.fetch_add(1, Ordering::Relaxed);
                    }
                    self.latencies
                        .lock()
                        .expect("no client panics")
                        .push(answer.took);
                }
                Outcome::Failed(fault) => {
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    self.faults.lock().expect("no client panics").push(fault);
                    // A server that is gone fails at once, over and over.
                    thread::sleep(Duration::from_millis(100));
                }
                Outcome::Refused(pause) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(pause.min(PAUSE_MAX));
                }
            }
        }
    }
}

impl Soak {
    fn take(&mut self, counts: Counts, verdict: &mut Verdict) {
        self.latencies = counts.latencies.into_inner().expect("no client panicked");
        self.refused = counts.refused.into_inner();
        self.unequal = counts.unequal.into_inner();
        self.failed = counts.failed.into_inner();
        verdict.count(self.unequal, self.failed);
        let mut faults = counts.faults.into_inner().expect("no client panicked");
        faults.sort_unstable();
        faults.dedup();
        faults.into_iter().for_each(|fault| verdict.note(fault));
    }

    /// Resident memory once it is warm, and at the end: the greatest of a stretch of the soak.
    fn memory(&self) -> Option<(u64, u64)> {
        let part = |from: usize, to: usize| {
            let looks = &self.looks[self.looks.len() * from / 10..self.looks.len() * to / 10];
            looks.iter().filter_map(|look| look.memory_bytes).max()
        };
        part(1, 4).zip(part(8, 10))
    }

    fn judge(&self, verdict: &mut Verdict) {
        if let Some((warm, end)) = self.memory()
            && end > warm + (warm / 20).max(MEMORY_SLACK)
        {
            verdict.note(format!("memory grew from {warm} to {end} bytes"));
            verdict.broken();
        }
        if let Some((free, all)) = self.after.slots
            && free != all
        {
            verdict.note(format!("{free} of {all} slots are free though nobody asks"));
            verdict.broken();
        }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let mut lines = vec![format!(
            "{} clients for {} s: {} answered ({:.1}/s, p50 {:.1} ms, p95 {:.1} ms), {} refused with a hint, {} unequal, \
             {} failed",
            self.clients,
            self.time.as_secs(),
            self.latencies.len(),
            self.latencies.len() as f64 / self.time.as_secs_f64(),
            ms(percentile(&self.latencies, 0.5)),
            ms(percentile(&self.latencies, 0.95)),
            self.refused,
            self.unequal,
            self.failed
        )];
        lines.push(match self.memory() {
            Some((warm, end)) => format!(
                "memory: {:.1} MiB once warm, {:.1} MiB at the end",
                mib(warm),
                mib(end)
            ),
            None => "memory: not known; --pid names the server's process".to_owned(),
        });
        lines.push(match self.after.slots {
            Some((free, all)) => format!("slots afterwards: {free} of {all} free"),
            None => "slots: the server does not show them".to_owned(),
        });
        lines
    }

    pub(crate) fn value(&self) -> Value {
        let memory = self.memory();
        Object::new()
            .with("clients", self.clients)
            .with("seconds", self.time.as_secs())
            .with("answered", self.latencies.len())
            .with("p50_ms", ms_value(percentile(&self.latencies, 0.5)))
            .with("p95_ms", ms_value(percentile(&self.latencies, 0.95)))
            .with("refused", self.refused)
            .with("unequal", self.unequal)
            .with("failed", self.failed)
            .with("memory_warm_bytes", memory.map(|(warm, _)| warm))
            .with("memory_end_bytes", memory.map(|(_, end)| end))
            .with("slots_free_after", self.after.slots.map(|(free, _)| free))
            .with("slots", self.after.slots.map(|(_, all)| all))
            .into()
    }
}

/// Longest wait of a refused client, so that the pressure stays; a hint may be longer.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Growth of memory that is no growth, in bytes.
const MEMORY_SLACK: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn soaked(memory: impl Fn(usize) -> u64, free: u64) -> Verdict {
        let look = |second| Look {
            memory_bytes: Some(memory(second)),
            slots: None,
        };
        let soak = Soak {
            looks: (0..100).map(look).collect(),
            after: Look {
                memory_bytes: None,
                slots: Some((free, 4)),
            },
            ..Soak::default()
        };
        let mut verdict = Verdict::default();
        soak.judge(&mut verdict);
        verdict
    }

    #[test]
    fn memory_that_grows_and_slots_that_stay_taken_are_faults() {
        let flat = |second: usize| (100 << 20) + (second as u64 % 3) * 4096;
        let warm_up = |second: usize| if second < 8 { 10 << 20 } else { 100 << 20 };
        let grows = |second: usize| (100 << 20) + second as u64 * (1 << 20);
        assert!(soaked(flat, 4).is_good());
        assert!(soaked(warm_up, 4).is_good());
        assert!(!soaked(grows, 4).is_good());
        assert!(!soaked(flat, 3).is_good());
    }
}
