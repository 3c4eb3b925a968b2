//! What the benches share: options, seeded numbers, timing, the machine's peak.
#![allow(dead_code, unreachable_pub, reason = "each bench uses a part")]

use std::fmt;
use std::hint::black_box;
use std::time::Instant;

use descant_cpu::{Isa, Pool};

/// What a bench was asked to do.
pub struct Options {
    /// The small size, as the ordinary tests run it.
    pub small: bool,
    threads: usize,
}

impl Options {
    /// From the command line: `[THREADS]`; `--test`, or no `--bench` (which cargo gives), asks for the small size.
    pub fn from_args() -> Options {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let has = |flag: &str| args.iter().any(|arg| arg == flag);
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(all);
        Options {
            small: has("--test") || !has("--bench"),
            threads,
        }
    }

    /// A pool on the path that `DESCANT_ISA` names, or the fastest.
    pub fn pool(&self) -> Pool {
        let isa = Isa::from_env().expect("a path of this machine");
        Pool::with_isa(self.threads, isa).expect("threads")
    }
}

/// Seeded numbers (xorshift64*).
pub struct Seeded(u64);

impl Seeded {
    pub fn new(seed: u64) -> Seeded {
        Seeded(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Between −1 and 1.
    pub fn unit(&mut self) -> f32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Times of some runs, in seconds.
pub struct Times {
    pub median: f64,
    min: f64,
    max: f64,
    runs: usize,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |seconds: f64| seconds * 1e3;
        write!(
            f,
            "{:.3} ms ({:.3}–{:.3}, {})",
            ms(self.median),
            ms(self.min),
            ms(self.max),
            self.runs
        )
    }
}

/// Times a run: once to warm up, then for about a second; once alone if `small`. With `DESCANT_BENCH_CPU_TIME` set, the
/// times are those that the calling thread ran on a processor, which is what one thread on a busy machine can tell.
pub fn measure(small: bool, mut run: impl FnMut()) -> Times {
    run();
    let (start, mut times) = (Instant::now(), Vec::new());
    let cpu = std::env::var_os("DESCANT_BENCH_CPU_TIME").is_some();
    while times.is_empty() || (!small && (times.len() < 5 || start.elapsed().as_secs_f64() < 1.0)) {
        let start = (Instant::now(), cpu.then(processor_seconds));
        run();
        times.push(match start {
            (_, Some(start)) => processor_seconds() - start,
            (start, None) => start.elapsed().as_secs_f64(),
        });
    }
    times.sort_by(f64::total_cmp);
    Times {
        median: times[times.len() / 2],
        min: times[0],
        max: times[times.len() - 1],
        runs: times.len(),
    }
}

/// Seconds that this thread has run on a processor, as Linux counts them.
fn processor_seconds() -> f64 {
    let line = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux' schedstat");
    let nanoseconds: f64 = line
        .split(' ')
        .next()
        .and_then(|text| text.parse().ok())
        .expect("a number");
    nanoseconds / 1e9
}

/// FNV-1a of the bits.
pub fn hash(values: &[f32]) -> u64 {
    values
        .iter()
        .flat_map(|value| value.to_bits().to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

/// GFLOP/s of independent operations in registers, all threads of the pool together.
#[derive(Clone, Copy)]
pub struct Peak {
    /// Fused multiply-adds in f32.
    pub f32: f64,
    /// bf16 dot products of two, or `f32` where the path has none.
    pub bf16: f64,
}

impl fmt::Display for Peak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} GFLOP/s of f32 multiply-adds, {:.1} in bf16",
            self.f32, self.bf16
        )
    }
}

/// Measures the peaks.
pub fn machine_peak(pool: &Pool, small: bool) -> Peak {
    let rounds = if small { 1000 } else { 4_000_000 };
    let rate = |run: &(dyn Fn(usize) + Sync), flop: usize| {
        let times = measure(small, || {
            pool.run(pool.threads(), |_| run(black_box(rounds)))
        });
        (pool.threads() * rounds * flop) as f64 / times.median / 1e9
    };
    let isa = pool.isa();
    let flop = descant_cpu::MULTIPLY_ADDS_A_ROUND * 2;
    let f32 = rate(
        &|rounds| {
            black_box(descant_cpu::multiply_adds(isa, rounds));
        },
        flop,
    );
    let bf16 = match descant_cpu::dot_products(isa, 1) {
        Some(_) => rate(
            &|rounds| {
                black_box(descant_cpu::dot_products(isa, rounds));
            },
            4 * flop,
        ),
        None => f32,
    };
    Peak { f32, bf16 }
}
