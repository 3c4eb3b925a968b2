//! The joint schema head by number of rows: `cargo bench -p descant-cpu --bench head [-- THREADS]`.
//!
//! A line reads: operation, shape, path and threads, median (min–max, n) of a whole decision, the part of it after the last
//! row came (`finish`), the floor that the operations and the peak measured in the same run give, hash of the logits. The
//! schema `2+4+3` is that of `tools/bench/torch_reference.py`. The small size of the ordinary tests checks the logits
//! against the f64 reference.
#![allow(clippy::print_stdout, reason = "a bench reports on stdout")]

#[path = "common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::Instant;

use common::{hash, machine_peak, measure};
use descant_cpu::CpuHead;
use descant_decision::{Encoded, EncodedOption, EncodedQuestion, Kind, Logits};
use descant_model::{Head, HeadWeights, reference};
use descant_release::HeadConfig;
use descant_testkit::head_cases::DrawnHead;
use descant_testkit::seeded::{self, Rule};

/// Token ids lie below.
const VOCAB: usize = 64;
/// Rows that come at once, as a round's do.
const PIECE_ROWS: usize = 512;
/// Rows of a span.
const SPAN_ROWS: usize = 8;

fn main() {
    let options = common::Options::from_args();
    let pool = Arc::new(options.pool());
    let config = config(options.small);
    let tokens: Vec<usize> = (0..VOCAB).collect();
    let weights: Arc<dyn HeadWeights> = Arc::new(DrawnHead::new(&config, 1, &tokens));
    let head = CpuHead::load(&config, Arc::clone(&weights), &pool).expect("memory for the weights");
    let peak = machine_peak(&pool, options.small);
    let path = format!("{}x{}", pool.isa().name(), pool.threads());
    println!("peak {peak}, {path}");
    let rows: &[usize] = if options.small {
        &[400]
    } else {
        &[1024, 4096, 16384]
    };
    for (name, schema) in [("2+4+3", &[2, 4, 3][..]), ("8x4", &[4; 8])] {
        for &rows in rows {
            let encoded = Arc::new(encoded(rows, schema));
            let hidden = seeded::uniform("hidden", 1, 0, rows * config.hidden, Rule::HIDDEN);
            let (mut logits, mut finish) = (Logits::new(), Vec::new());
            let times = measure(options.small, || {
                let seconds;
                (logits, seconds) = decide(&head, &encoded, &hidden, config.hidden);
                finish.push(seconds);
            });
            if options.small {
                check(&config, weights.as_ref(), &encoded, &hidden, &logits);
            }
            finish.sort_by(f64::total_cmp);
            let floor = operations(&config, rows, schema) / peak.f32 / 1e6;
            println!(
                "head {rows} rows {name} {path} {times} finish {:.1} ms floor {floor:.1} ms {:016x}",
                finish[finish.len() / 2] * 1e3,
                hash(&logits.concat()),
            );
        }
    }
}

/// Clef-Flash's head.
fn config(small: bool) -> HeadConfig {
    if small {
        return HeadConfig {
            hidden: 64,
            width: 32,
            routing_layers: 2,
            layers: 2,
            heads: 4,
            feedforward: 64,
        };
    }
    HeadConfig {
        hidden: 4096,
        width: 1024,
        routing_layers: 2,
        layers: 4,
        heads: 16,
        feedforward: 4096,
    }
}

/// A record whose last rows hold spans of [`SPAN_ROWS`] rows.
fn encoded(rows: usize, schema: &[usize]) -> Encoded {
    let spans: usize = schema.iter().map(|options| 1 + options).sum();
    let mut at = rows - 4 - spans * SPAN_ROWS;
    let schema_start = at;
    let mut span = || {
        at += SPAN_ROWS;
        at - SPAN_ROWS..at
    };
    let question = |(index, options): (usize, &usize)| EncodedQuestion {
        id: index.to_string(),
        kind: [Kind::Noul, Kind::Choice, Kind::Score][index % 3],
        span: span(),
        options: (0..*options)
            .map(|i| EncodedOption {
                id: i.to_string(),
                span: span(),
            })
            .collect(),
    };
    let questions = schema.iter().enumerate().map(question).collect();
    Encoded {
        ids: (0..rows).map(|row| (row % VOCAB) as u32).collect(),
        questions,
        truncated: 0,
        schema_start,
    }
}

/// One decision; gives the seconds after the last row too.
fn decide(head: &CpuHead, encoded: &Arc<Encoded>, hidden: &[f32], width: usize) -> (Logits, f64) {
    let mut run = head.begin(Arc::clone(encoded));
    for (index, piece) in hidden.chunks(PIECE_ROWS * width).enumerate() {
        run.absorb(index * PIECE_ROWS, piece)
            .expect("the CPU does not fail");
    }
    let start = Instant::now();
    let logits = run.finish().expect("the rows are finite");
    (logits, start.elapsed().as_secs_f64())
}

/// Operations of a decision's products, two a multiply-add.
fn operations(config: &HeadConfig, rows: usize, schema: &[usize]) -> f64 {
    let HeadConfig {
        hidden,
        width,
        routing_layers,
        layers,
        feedforward,
        ..
    } = *config;
    let (questions, options) = (schema.len(), schema.iter().sum::<usize>());
    let memory = rows * (hidden * width + (routing_layers + layers) * 2 * width * width);
    let attention = 2 * rows * width * (routing_layers * options + layers * questions);
    let of_option = 2 * hidden * width
        + routing_layers * (2 * width * width + 2 * width * feedforward)
        + 4 * width * width;
    let of_question = 2 * hidden * width + layers * (6 * width * width + 2 * width * feedforward);
    2.0 * (memory + attention + options * of_option + questions * of_question) as f64
}

/// Compares with the f64 reference.
fn check(
    config: &HeadConfig,
    weights: &dyn HeadWeights,
    encoded: &Encoded,
    hidden: &[f32],
    logits: &Logits,
) {
    let hidden: Vec<f64> = hidden.iter().map(|x| f64::from(*x)).collect();
    let wanted = reference::Head::new(config, weights)
        .logits(encoded, &hidden)
        .expect("the weights are there");
    for (found, wanted) in logits.concat().iter().zip(wanted.concat()) {
        assert!(
            (f64::from(*found) - wanted).abs() < 4e-6,
            "{found}, wanted {wanted}"
        );
    }
}
