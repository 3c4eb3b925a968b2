//! `descant verify`: whether a receipt is that of a model and a request.

use descant_engine::{Engine, JobOptions};
use descant_server::{Asking, Reading, Receipt};

use crate::args::Verify;
use crate::backend::{self, Room};
use crate::failure::Failure;
use crate::input::Source;
use crate::load::{self, Loaded};
use crate::output::Output;

pub(crate) fn run(args: &Verify) -> Result<(), Failure> {
    let receipt = read_receipt(args)?;
    let wrong = |fault: String| wrong(args, fault);
    let reading = Reading::from_name(&receipt.mode)
        .ok_or_else(|| wrong("its mode is none that this version has".to_owned()))?;
    let place = load::place(args.model.model.as_deref())?;
    let release = place.release(args.model.clef.clef.as_deref())?;
    release.require_head().map_err(Failure::NoHead)?;
    let tokenizer = release.tokenizer()?;
    let desk = load::desk(
        load::any_name(&place),
        tokenizer,
        (&args.accept, &args.length),
        descant_server::Confidence::Auto,
    )
    .with_reading(reading);
    let source = Source::open(&args.request)?;
    let name = source.name().to_owned();
    let asking = desk
        .read(&source.whole()?)
        .map_err(|refused| Failure::Refused { name, refused })?;
    let room = Room::for_one(args.length.max_length);
    let loaded = Loaded::new(release, &args.compute, room, &load::settings_alone())?;
    let backend = backend::name(&args.compute);
    let provenance = load::provenance(backend, &loaded.release);
    let logits = logits(&loaded.engine, &asking);
    loaded.engine.shutdown(load::ENGINE_STOP);
    let found = provenance.receipt(reading.name(), asking.prompts(), &logits?);
    compare(args, &receipt, &found.map_err(wrong)?)
}

fn read_receipt(args: &Verify) -> Result<Receipt, Failure> {
    let text = Source::open(&args.receipt)?.whole()?;
    let value = descant_decision::json::parse(&text)
        .map_err(|error| wrong(args, format!("it is no JSON: {error}")))?;
    Receipt::from_value(&value).map_err(|fault| wrong(args, fault))
}

fn wrong(args: &Verify, fault: String) -> Failure {
    Failure::Receipt {
        file: args.receipt.clone(),
        fault,
    }
}

fn logits(engine: &Engine, asking: &Asking) -> Result<Vec<descant_decision::Logits>, Failure> {
    let each = asking.prompts().iter().map(|prompt| {
        let ticket = engine
            .handle()
            .decide(prompt.clone(), &JobOptions::default())?;
        Ok(ticket.wait()?.logits)
    });
    each.collect::<Result<_, descant_engine::EngineError>>()
        .map_err(Failure::Engine)
}

/// Says whether the receipts agree. Another version or device that comes to the same logits proves as much.
fn compare(args: &Verify, receipt: &Receipt, found: &Receipt) -> Result<(), Failure> {
    let mut differences = Vec::new();
    for (field, theirs, ours) in receipt.differences(found) {
        match field {
            "backend" | "version" => crate::say(&format!(
                "note: the receipt is from {field} {}, this is {ours}",
                descant_decision::printable(theirs)
            )),
            _ => differences.push(field),
        }
    }
    match differences.is_empty() {
        true => Output::open()
            .line("verified: model, head, tokenizer, prompt and logits are those of the receipt"),
        false => Err(wrong(
            args,
            format!("it is of another {}", differences.join(", ")),
        )),
    }
}
