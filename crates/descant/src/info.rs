//! `descant info`: what a release is and what it takes.

use std::fmt::Write;
use std::path::Path;

use descant_decision::Value;
use descant_decision::json::{Object, to_json_pretty};
use descant_engine::{BudgetItem, budget_total};
use descant_release::{
    HeadConfig, LayerKind, LoadPlan, ModelConfig, Outline, Part, PartSize, Release,
};

use crate::args::Info;
use crate::backend::{self, Room};
use crate::embedded;
use crate::failure::Failure;
use crate::load::{self, Place};
use crate::output::Output;

/// Everything that is shown.
struct Report {
    place: String,
    config: ModelConfig,
    head: Option<HeadConfig>,
    parts: Vec<PartRow>,
    /// Why the weights could not be looked at; the parts are then as the configs ask for them.
    weights_fault: Option<String>,
    memory: Vec<BudgetItem>,
    max_length: usize,
}

/// What a part of the release takes on disk.
struct PartRow {
    name: &'static str,
    tensors: usize,
    parameters: usize,
    weights_bytes: usize,
    dtypes: String,
}

pub(crate) fn run(args: &Info) -> Result<(), Failure> {
    let report = report(args)?;
    let text = match args.json {
        true => to_json_pretty(&report.value()),
        false => report.text(),
    };
    Output::open().line(text.trim_end())
}

fn report(args: &Info) -> Result<Report, Failure> {
    let place = load::place(args.model.model.as_deref())?;
    let (outline, found) = look(&place, args.model.clef.clef.as_deref())?;
    let room = Room {
        slots: args.slots,
        ..Room::for_one(args.max_length)
    };
    let memory = backend::memory(&outline, &args.compute, room, &load::settings_alone());
    let Outline {
        config, head, plan, ..
    } = outline;
    let (parts, weights_fault) = match found {
        Ok(sizes) => (sizes.iter().map(PartRow::found).collect(), None),
        Err(fault) => (planned(&plan), Some(fault)),
    };
    Ok(Report {
        place: place.to_string(),
        memory,
        parts,
        weights_fault,
        config,
        head,
        max_length: args.max_length,
    })
}

/// What the configs say, and what the weight files hold or why that is not known. The configs of a release on the Hub
/// are fetched, its weights are not.
fn look(
    place: &Place,
    clef: Option<&Path>,
) -> Result<(Outline, Result<Vec<PartSize>, String>), Failure> {
    let opened = match place.texts()? {
        Some(directory) => Release::open(&directory, clef),
        None => Release::embedded(embedded::FILES),
    };
    match opened {
        Ok(release) => Ok((release.outline(), Ok(release.sizes()))),
        // The configs alone say much; if they are at fault themselves, that is the fault to show.
        Err(fault) => match place.outline(clef)? {
            Some(outline) => Ok((outline, Err(fault.to_string()))),
            None => Err(Failure::Load(fault)),
        },
    }
}

fn planned(plan: &LoadPlan) -> Vec<PartRow> {
    let parts = [Part::Backbone, Part::OutputEmbedding, Part::Head];
    parts
        .iter()
        .filter_map(|part| PartRow::planned(plan, *part))
        .collect()
}

impl PartRow {
    fn found(size: &PartSize) -> PartRow {
        let dtypes: Vec<String> = size.dtypes.iter().map(ToString::to_string).collect();
        PartRow {
            name: size.part.name(),
            tensors: size.tensors,
            parameters: size.parameters,
            weights_bytes: size.weights_bytes,
            dtypes: dtypes.join(", "),
        }
    }

    /// A part as the configs ask for it, in bf16 as releases are published.
    fn planned(plan: &LoadPlan, part: Part) -> Option<PartRow> {
        let tensors = plan.part(part);
        let (tensors, parameters) = tensors.fold((0, 0), |(tensors, parameters), tensor| {
            (tensors + 1, parameters + tensor.parameters())
        });
        (tensors > 0).then(|| PartRow {
            name: part.name(),
            tensors,
            parameters,
            weights_bytes: 2 * parameters,
            dtypes: "BF16 assumed".to_owned(),
        })
    }
}

impl Report {
    fn text(&self) -> String {
        let mut out = format!("{}\n", self.place);
        let mut line = |name: &str, text: String| {
            writeln!(out, "  {name:<18}{text}").expect("a String takes all text");
        };
        let ModelConfig {
            hidden,
            intermediate,
            vocab,
            attention,
            linear,
            ..
        } = &self.config;
        line("family", self.family().to_owned());
        line("hidden size", format!("{hidden}, SwiGLU {intermediate}"));
        line("layers", self.layers());
        line(
            "full attention",
            format!(
                "{} query heads, {} key and value heads of {}",
                attention.heads, attention.kv_heads, attention.head_dim
            ),
        );
        line(
            "linear attention",
            format!(
                "{} key heads of {}, {} value heads of {}",
                linear.key_heads, linear.key_dim, linear.value_heads, linear.value_dim
            ),
        );
        let tied = if self.config.tied { "tied" } else { "not tied" };
        line(
            "vocabulary",
            format!("{vocab} tokens, output embedding {tied}"),
        );
        line("positions", self.config.positions_max.to_string());
        line("head", self.head_text());
        out.push_str(&self.tables());
        out
    }

    fn tables(&self) -> String {
        let mut out = String::new();
        let mut push = |line: String| {
            out.push_str(&line);
            out.push('\n');
        };
        push(String::new());
        push(format!(
            "  {:<18}{:>8}{:>16}{:>12}  dtype",
            "on disk", "tensors", "parameters", "size"
        ));
        for part in &self.parts {
            push(format!(
                "  {:<18}{:>8}{:>16}{:>12}  {}",
                part.name,
                part.tensors,
                grouped(part.parameters),
                size(part.weights_bytes as u64),
                part.dtypes
            ));
        }
        if let Some(fault) = &self.weights_fault {
            push(format!("  the weights cannot be used: {fault}"));
        }
        push(String::new());
        push(format!(
            "  in memory, for prompts of up to {} tokens",
            self.max_length
        ));
        for BudgetItem { name, bytes } in &self.memory {
            push(format!("  {name:<42}{:>12}", size(*bytes)));
        }
        push(format!(
            "  {:<42}{:>12}",
            "all together",
            size(budget_total(&self.memory))
        ));
        out
    }

    fn family(&self) -> &'static str {
        match self.head {
            Some(_) => "qwen3_5 text model with a joint schema head",
            None => "qwen3_5 text model without a joint schema head",
        }
    }

    fn full_layers(&self) -> usize {
        self.config
            .layers
            .iter()
            .filter(|kind| **kind == LayerKind::FullAttention)
            .count()
    }

    fn layers(&self) -> String {
        let (all, full) = (self.config.layers.len(), self.full_layers());
        format!(
            "{all}: {full} full attention, {} linear attention",
            all - full
        )
    }

    fn head_text(&self) -> String {
        match &self.head {
            Some(head) => format!(
                "width {}, {} routing layers, {} layers, {} heads, feed-forward {}",
                head.width, head.routing_layers, head.layers, head.heads, head.feedforward
            ),
            None => "none: decisions are refused".to_owned(),
        }
    }

    fn value(&self) -> Value {
        let part = |part: &PartRow| {
            Object::new()
                .with("part", part.name)
                .with("tensors", part.tensors)
                .with("parameters", part.parameters)
                .with("bytes", part.weights_bytes)
                .with("dtypes", part.dtypes.as_str())
        };
        let memory = self
            .memory
            .iter()
            .map(|item| (item.name.as_str(), item.bytes));
        Object::new()
            .with("place", self.place.as_str())
            .with("family", "qwen3_5")
            .with("hidden_size", self.config.hidden)
            .with("intermediate_size", self.config.intermediate)
            .with("layers", self.config.layers.len())
            .with("full_attention_layers", self.full_layers())
            .with("vocab_size", self.config.vocab)
            .with("tied", self.config.tied)
            .with("positions_max", self.config.positions_max)
            .with("head", self.head.as_ref().map(head_value))
            .with("parts", self.parts.iter().map(part).collect::<Value>())
            .with("weights_fault", self.weights_fault.clone())
            .with("max_length", self.max_length)
            .with("memory_bytes", memory.collect::<Object>())
            .with("memory_bytes_total", budget_total(&self.memory))
            .into()
    }
}

fn head_value(head: &HeadConfig) -> Object {
    Object::new()
        .with("width", head.width)
        .with("routing_layers", head.routing_layers)
        .with("layers", head.layers)
        .with("heads", head.heads)
        .with("feedforward", head.feedforward)
}

/// A number of bytes in the largest unit that leaves a digit before the point.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A number with a comma between its groups of three digits.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit() {
        let sizes = [0, 999, 1000, 999_949, 999_950, 19_100_000_000].map(size);
        assert_eq!(
            sizes,
            ["0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "19.1 GB"]
        );
    }

    #[test]
    fn digits_are_grouped() {
        let numbers = [0, 999, 1000, 9_409_813_744].map(grouped);
        assert_eq!(numbers, ["0", "999", "1,000", "9,409,813,744"]);
    }
}
