//! `descant decide`: requests in, replies out.

use std::sync::Arc;

use descant_decision::Logits;
use descant_engine::{EngineError, Handle, JobOptions};
use descant_server::{Asking, Refused, Reply};

use crate::args::{Decide, Input};
use crate::backend::Room;
use crate::failure::Failure;
use crate::input::{Line, Source};
use crate::load::{self, Loaded};
use crate::output::{Output, error_line};

pub(crate) fn run(args: &Decide) -> Result<(), Failure> {
    let place = load::place(args.model.model.as_deref())?;
    let release = place.release(args.model.clef.clef.as_deref())?;
    release.require_head().map_err(Failure::NoHead)?;
    let tokenizer = release.tokenizer()?;
    let desk = load::desk(
        load::any_name(&place),
        tokenizer,
        (&args.accept, &args.length),
        args.confidence.into(),
    )
    .with_reading((&args.reading).into());
    let settings = load::settings_alone();
    let loaded = Loaded::new(
        release,
        &args.compute,
        Room::for_one(args.length.max_length),
        &settings,
    )?;
    let engine = loaded.engine.handle();
    let done = each(&args.input, |body| {
        let asking = desk.read(body)?;
        let asking = if args.raw { asking.with_raw() } else { asking };
        load::say_truncated(asking.truncated_tokens());
        let reply = answer(&engine, &asking)?;
        Ok(if args.pretty {
            reply.pretty()
        } else {
            reply.compact()
        })
    });
    loaded.engine.shutdown(load::ENGINE_STOP);
    done
}

fn answer(engine: &Handle, asking: &Asking) -> Result<Reply, Refused> {
    let each = asking.prompts().iter().map(|prompt| {
        let ticket = engine.decide(Arc::clone(prompt), &JobOptions::default())?;
        Ok(ticket.wait()?.logits)
    });
    let logits: Vec<Logits> = each.collect::<Result<_, EngineError>>()?;
    asking.reply(&logits)
}

/// Reads the input's requests, answers each and prints the answers: one alone, or with `--jsonl` a line for a line.
pub(crate) fn each(
    input: &Input,
    mut answer: impl FnMut(&[u8]) -> Result<String, Refused>,
) -> Result<(), Failure> {
    let source = Source::open(&input.request)?;
    let mut output = Output::open();
    if input.jsonl {
        return lines(source, &mut output, answer);
    }
    let name = source.name().to_owned();
    let body = source.whole()?;
    let reply = answer(&body).map_err(|refused| Failure::Refused { name, refused })?;
    output.line(&reply)
}

fn lines(
    mut source: Source,
    output: &mut Output,
    mut answer: impl FnMut(&[u8]) -> Result<String, Refused>,
) -> Result<(), Failure> {
    let (mut all, mut refused) = (0, 0);
    while let Some(line) = source.line()? {
        if line.is_blank() {
            continue;
        }
        let reply = match line {
            Line::Text(body) => answer(&body),
            Line::Refused(refused) => Err(refused),
        };
        all += 1;
        let text = reply.unwrap_or_else(|error| {
            refused += 1;
            error_line(&error)
        });
        output.line(&text)?;
    }
    match refused {
        0 => Ok(()),
        _ => Err(Failure::Lines { refused, all }),
    }
}
