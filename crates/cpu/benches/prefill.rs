//! Prefill and decode of one linear-attention and one full-attention layer at Flash's shapes:
//! `cargo bench -p descant-cpu --bench prefill [-- THREADS]`.
//!
//! A line reads: operation, shape, path and threads, median (min–max, n), rows/s, share of the peak measured in the same
//! run, hash of the last hidden row. The weights are seeded and written to a temporary release (0.9 GB) first.
#![allow(clippy::print_stdout, reason = "a bench reports on stdout")]

#[path = "common/mod.rs"]
mod common;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use common::{Options, Seeded, hash, machine_peak, measure};
use descant_cpu::{CpuBackend, LmHead, Pool, Precision};
use descant_model::{Backend, Capacity, Pass, Segment, Slot};
use descant_release::{LoadPlan, Outline, Release};
use serde_json::{Map, Value, json};

fn main() {
    let options = Options::from_args();
    let pool = Arc::new(options.pool());
    let rows = if options.small { 70 } else { 512 };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let peak = machine_peak(&pool, options.small);
    println!(
        "peak {peak}, {} {} threads",
        pool.isa().name(),
        pool.threads()
    );
    for kind in ["linear_attention", "full_attention"] {
        write_release(directory.path(), kind, options.small);
        let release =
            Arc::new(Release::open(directory.path(), None).expect("the release just written"));
        for precision in [Precision::F32, Precision::Bf16] {
            bench(
                &release,
                kind,
                precision,
                &pool,
                (rows, options.small, peak),
            );
        }
    }
}

/// Times a prompt's first rows, and one row after them.
fn bench(
    release: &Arc<Release>,
    kind: &str,
    precision: Precision,
    pool: &Arc<Pool>,
    (rows, small, peak): (usize, bool, common::Peak),
) {
    let capacity = Capacity {
        slots: 1,
        positions: rows + 1,
        rows,
    };
    let options = descant_cpu::Options {
        precision,
        capacity,
        lm_head: LmHead::Mapped,
    };
    let mut backend =
        CpuBackend::load(Arc::clone(release), options, Arc::clone(pool)).expect("memory");
    let tokens: Vec<u32> = (0..rows as u32).map(|row| row % 64).collect();
    let mut prefill = || {
        backend.reset(Slot(0));
        let segment = Segment {
            slot: Slot(0),
            start: 0,
            tokens: &tokens,
            pass: Pass::Prefill,
            mark: None,
        };
        backend.run(&[segment]).expect("the CPU does not fail");
    };
    let times = measure(small, &mut prefill);
    let width = release.config().hidden;
    let mut last = vec![f32::NAN; width];
    backend
        .hidden(rows - 1..rows, &mut last)
        .expect("the CPU does not fail");
    assert!(last.iter().all(|x| x.is_finite()), "hidden rows are finite");
    let parameters: usize = weights(release).map(|wanted| wanted.parameters()).sum();
    let gflops = 2.0 * (parameters * rows) as f64 / times.median / 1e9;
    println!(
        "{kind}_{precision:?} [{rows}, {width}] {}x{} {times} {:.1} rows/s {gflops:.1} GFLOP/s {:.0}% of peak {:016x}",
        pool.isa().name(),
        pool.threads(),
        rows as f64 / times.median,
        100.0 * gflops
            / if matches!(precision, Precision::Bf16) {
                peak.bf16
            } else {
                peak.f32
            },
        hash(&last),
    );
}

/// The linear maps of a release's layer.
fn weights(release: &Release) -> impl Iterator<Item = &descant_release::Wanted> {
    release
        .plan()
        .tensors
        .iter()
        .filter(|wanted| wanted.shape.len() == 2 && wanted.name.contains("layers."))
}

/// Writes a release of one layer, with seeded weights.
fn write_release(directory: &Path, kind: &str, small: bool) {
    let (hidden, intermediate, dim) = if small {
        (64, 96, 32)
    } else {
        (4096, 12288, 256)
    };
    let (key_heads, value_heads, linear_dim) = if small { (2, 4, 16) } else { (16, 32, 128) };
    let text = json!({
        "model_type": "qwen3_5_text", "hidden_size": hidden, "intermediate_size": intermediate, "vocab_size": 64,
        "num_hidden_layers": 1, "layer_types": [kind], "num_attention_heads": hidden / dim,
        "num_key_value_heads": if small { 1 } else { 4 }, "head_dim": dim, "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads, "linear_key_head_dim": linear_dim, "linear_value_head_dim": linear_dim,
        "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "attention_bias": false,
        "attn_output_gate": true, "hidden_act": "silu", "tie_word_embeddings": true, "eos_token_id": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
            "mrope_interleaved": true, "mrope_section": [11, 11, 10]},
    });
    std::fs::write(directory.join("config.json"), text.to_string()).expect("config.json");
    let plan = Outline::open(directory, None).expect("the config").plan;
    write_weights(&directory.join("model.safetensors"), &plan);
}

/// Writes a plan's tensors as bf16: small values, of a size that keeps hidden rows near 1.
fn write_weights(path: &Path, plan: &LoadPlan) {
    let (mut header, mut at) = (Map::new(), 0);
    for wanted in &plan.tensors {
        let end = at + 2 * wanted.parameters();
        let entry = json!({"dtype": "BF16", "shape": wanted.shape, "data_offsets": [at, end]});
        header.insert(wanted.name.clone(), entry);
        at = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::new(File::create(path).expect("model.safetensors"));
    file.write_all(&(header.len() as u64).to_le_bytes())
        .expect("disk");
    file.write_all(header.as_bytes()).expect("disk");
    let mut seeded = Seeded::new(1);
    for wanted in &plan.tensors {
        let scale = 1.0 / (*wanted.shape.last().expect("no scalars") as f32).sqrt();
        for _ in 0..wanted.parameters() {
            let value = half::bf16::from_f32(seeded.unit() * scale);
            file.write_all(&value.to_le_bytes()).expect("disk");
        }
    }
    file.flush().expect("disk");
}
