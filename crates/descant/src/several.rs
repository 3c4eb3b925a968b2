//! Many records through one engine: several at work at once, answers in the order of the input.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use descant_decision::Value;
use descant_decision::json::{parse, to_json};
use descant_engine::{Decided, Engine, EngineError, JobOptions, Settings, Ticket};
use descant_model::Defect;
use descant_server::{Asking, Confidence, Desk, Refused, Reply};

use crate::args::{Accept, Compute, Length};
use crate::backend::Room;
use crate::failure::Failure;
use crate::input::{Line, Source};
use crate::load::{self, Loaded, Place};

/// Records at work or in line. More than fill a round of short prompts; their texts are all that they hold.
const WINDOW: usize = 64;
/// Prompts at work at one time. Four short ones fill a round; each takes the memory of a longest prompt.
const SLOTS: usize = 4;

/// How a model is loaded.
pub(crate) struct Setup<'a> {
    pub(crate) place: &'a Place,
    pub(crate) clef: Option<&'a Path>,
    pub(crate) accept: &'a Accept,
    pub(crate) length: &'a Length,
    pub(crate) compute: &'a Compute,
    pub(crate) confidence: Confidence,
    /// Whether replies have all digits and logits.
    pub(crate) raw: bool,
}

/// A loaded model and the desk before it.
pub(crate) struct Runner {
    desk: Desk,
    engine: Engine,
    raw: bool,
}

/// A record of a file.
pub(crate) struct Item {
    /// Its line or row, counted from 1.
    pub(crate) line: usize,
    /// The System One body, or why there is none.
    pub(crate) body: Result<Vec<u8>, Refused>,
}

impl Runner {
    /// Loads a model.
    pub(crate) fn load(setup: &Setup<'_>) -> Result<Runner, Failure> {
        let release = setup.place.release(setup.clef)?;
        release.require_head().map_err(Failure::NoHead)?;
        let tokenizer = release.tokenizer()?;
        let names = load::any_name(setup.place);
        let desk = load::desk(
            names,
            tokenizer,
            (setup.accept, setup.length),
            setup.confidence,
        );
        let room = Room {
            slots: SLOTS,
            ..Room::for_one(setup.length.max_length)
        };
        let settings = Settings {
            chat_slots: 0,
            ..load::settings_alone()
        };
        let engine = Loaded::new(release, setup.compute, room, &settings)?.engine;
        Ok(Runner {
            desk,
            engine,
            raw: setup.raw,
        })
    }

    /// Answers items, several at once, and hands each answer to `done` in the order of the items.
    ///
    /// # Errors
    /// The first failure of `items`, of `done` or of the engine. A refused item is none.
    pub(crate) fn each(
        &self,
        items: impl Iterator<Item = Result<Item, Failure>>,
        mut done: impl FnMut(usize, Result<Reply, Refused>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut at_work = VecDeque::with_capacity(WINDOW);
        for item in items {
            let item = item?;
            at_work.push_back((item.line, self.submit(item.body)?));
            if at_work.len() == WINDOW {
                let (line, begun) = at_work.pop_front().expect("the window is full");
                done(line, finish(begun)?)?;
            }
        }
        at_work
            .into_iter()
            .try_for_each(|(line, begun)| done(line, finish(begun)?))
    }

    fn submit(&self, body: Result<Vec<u8>, Refused>) -> Result<Begun, Failure> {
        let asking = match body.and_then(|body| self.desk.read(&body)) {
            Ok(asking) if self.raw => asking.with_raw(),
            Ok(asking) => asking,
            Err(refused) => return Ok(Err(refused)),
        };
        let engine = self.engine.handle();
        let tickets = asking
            .prompts()
            .iter()
            .map(|prompt| engine.decide(Arc::clone(prompt), &JobOptions::default()));
        match tickets.collect::<Result<_, EngineError>>() {
            Ok(tickets) => Ok(Ok((asking, tickets))),
            Err(error) => sorted(error).map(Err),
        }
    }

    /// Stops the engine.
    pub(crate) fn stop(self) {
        self.engine.shutdown(load::ENGINE_STOP);
    }
}

type Begun = Result<(Asking, Vec<Ticket<Decided>>), Refused>;

fn finish(begun: Begun) -> Result<Result<Reply, Refused>, Failure> {
    let (asking, tickets) = match begun {
        Ok(begun) => begun,
        Err(refused) => return Ok(Err(refused)),
    };
    let logits = tickets.into_iter().map(|ticket| Ok(ticket.wait()?.logits));
    match logits.collect::<Result<Vec<_>, EngineError>>() {
        Ok(logits) => Ok(asking.reply(&logits)),
        Err(error) => sorted(error).map(Err),
    }
}

/// Tells what is wrong with one record, which has its place among the answers, from what ends the run.
fn sorted(error: EngineError) -> Result<Refused, Failure> {
    match error {
        EngineError::TooLong { .. } | EngineError::Defect(Defect::NonFinite { .. }) => {
            Ok(error.into())
        }
        other => Err(Failure::Engine(other)),
    }
}

/// The records of a file, in order; blank lines are passed over.
pub(crate) struct Items {
    source: Source,
    line: usize,
}

impl Items {
    pub(crate) fn open(path: &Path) -> Result<Items, Failure> {
        Ok(Items {
            source: Source::open(path)?,
            line: 0,
        })
    }

    fn read(&mut self) -> Result<Option<Item>, Failure> {
        while let Some(line) = self.source.line()? {
            self.line += 1;
            if line.is_blank() {
                continue;
            }
            let body = match line {
                Line::Text(text) => Ok(body(text)),
                Line::Refused(refused) => Err(refused),
            };
            return Ok(Some(Item {
                line: self.line,
                body,
            }));
        }
        Ok(None)
    }
}

impl Iterator for Items {
    type Item = Result<Item, Failure>;

    fn next(&mut self) -> Option<Result<Item, Failure>> {
        self.read().transpose()
    }
}

/// The request in a line, which may stand alone or beside labels. What is no JSON is left to the desk to refuse.
fn body(text: Vec<u8>) -> Vec<u8> {
    match parse(&text).ok().as_ref().and_then(wrapped) {
        Some(request) => to_json(request).into_bytes(),
        None => text,
    }
}

/// The request in a record, if it is not the record itself.
pub(crate) fn wrapped(record: &Value) -> Option<&Value> {
    match record.get("questions") {
        None => record.get("request"),
        Some(_) => None,
    }
}

/// Reads the lines or rows of a file as JSON, with their numbers; blank lines are passed over.
pub(crate) fn values(path: &Path) -> Result<Vec<(usize, Value)>, Failure> {
    let (mut source, mut found, mut line) = (Source::open(path)?, Vec::new(), 0);
    while let Some(next) = source.line()? {
        line += 1;
        let wrong = |fault: String| Failure::Record {
            file: PathBuf::from(path),
            line,
            fault,
        };
        if next.is_blank() {
            continue;
        }
        match next {
            Line::Text(text) => {
                let value = parse(&text).map_err(|error| wrong(error.to_string()))?;
                found.push((line, value));
            }
            Line::Refused(refused) => return Err(wrong(refused.to_string())),
        }
    }
    Ok(found)
}
