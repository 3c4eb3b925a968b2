//! One scene: a record and its company, put before the engine at one moment, and what came of it.
//!
//! The engine is held at the end of a round while the scene is set, so that all of it waits when the engine goes on: the
//! company is a fact and not a matter of luck. What the device was really given says afterwards whether the scene was
//! what it was meant to be; if not, none of its answers counts.

use std::sync::Arc;

use descant_decision::Logits;
use descant_engine::{
    Decided, GenerateOptions, Handle, JobOptions, StreamItem, Ticket, TokenStream,
};
use descant_model::CHUNK_ROWS;

use super::cast::{CHAT_TOKENS, Case, Cast, ChatCase};
use super::manner::{Cache, Company, Manner};
use super::rig::{Hold, Rig, RowDigest, Stay, Stuck};
use super::truth::Truth;
use crate::failure::Failure;
use crate::samples::Seeded;

/// Who is in a scene, by their places in the cast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scene {
    pub(crate) company: Company,
    /// The record whose company this is.
    pub(crate) subject: Option<usize>,
    pub(crate) neighbours: Vec<usize>,
    /// Prompts whose clients leave.
    pub(crate) victims: usize,
    /// Rounds after which they leave.
    pub(crate) leave_after: usize,
    pub(crate) chats: Vec<usize>,
    /// In which order the records arrive.
    pub(crate) order: u64,
}

/// An engine and what it is compared with.
pub(crate) struct Stage<'a> {
    pub(crate) rig: &'a Rig,
    pub(crate) engine: Handle,
    pub(crate) manner: Manner,
    pub(crate) cast: &'a Cast,
    pub(crate) truth: &'a Truth,
}

/// Which answer was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Case(usize),
    Chat(usize),
}

/// What a scene came to.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The answers, and where one is another than it should be.
    pub(crate) compared: Vec<(Which, Option<String>)>,
    /// What did not happen though it was meant to.
    pub(crate) lapses: Vec<String>,
    /// Most streams in one round.
    pub(crate) peak: usize,
    /// Rows that snapshots spared.
    pub(crate) cached_rows: usize,
    /// Prompts that were left in their middle.
    pub(crate) cancelled: usize,
}

/// What was asked for in a scene.
struct Asked {
    records: Vec<(usize, Ticket<Decided>)>,
    chats: Vec<(usize, TokenStream)>,
}

/// A chat as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chatted {
    pub(crate) ids: Vec<u32>,
    pub(crate) cached_tokens: usize,
}

impl Scene {
    /// Answers that it should give.
    pub(crate) fn answers(&self) -> usize {
        usize::from(self.subject.is_some()) + self.neighbours.len() + self.chats.len()
    }
}

impl Stage<'_> {
    /// Plays a scene.
    ///
    /// # Errors
    /// If the engine refuses something or stands still: nothing of that is part of any scene.
    pub(crate) fn play(&self, scene: &Scene) -> Result<Seen, Failure> {
        let asked = self.set(scene)?;
        let mut seen = Seen::default();
        let mut decided = Vec::new();
        for (index, ticket) in asked.records {
            decided.push((index, ticket.wait()?));
        }
        let mut chatted = Vec::new();
        for (index, stream) in asked.chats {
            chatted.push((index, drain(stream)?));
        }
        let stays = self.rig.stays();
        seen.peak = stays.iter().map(|stay| stay.peak).max().unwrap_or(0);
        for (index, decided) in &decided {
            self.look_at_record(scene, *index, decided, &stays, &mut seen);
        }
        for (index, chatted) in &chatted {
            self.look_at_chat(scene, *index, chatted, &stays, &mut seen);
        }
        self.look_for_victims(scene, &stays, &mut seen);
        Ok(seen)
    }

    /// Sets the scene and lets the engine go on.
    fn set(&self, scene: &Scene) -> Result<Asked, Failure> {
        let hold = self.rig.hold();
        // A round of a single row, at whose end the engine stands while the others arrive.
        let plug = self
            .engine
            .hidden(vec![0], CHUNK_ROWS, &JobOptions::default())?;
        hold.reached()?;
        self.rig.forget();
        let chats = scene
            .chats
            .iter()
            .map(|&index| Ok((index, self.chat(&self.cast.chats[index])?)))
            .collect::<Result<_, Failure>>()?;
        wait_for_chats(&hold, scene.chats.len())?;
        let victims = self.cast.victims.iter().take(scene.victims);
        let victims = victims
            .map(|victim| {
                let ticket = self
                    .engine
                    .decide(Arc::clone(victim), &JobOptions::default())?;
                Ok(ticket)
            })
            .collect::<Result<Vec<_>, Failure>>()?;
        let mut all: Vec<usize> = scene.subject.into_iter().collect();
        all.extend(&scene.neighbours);
        Seeded::new(scene.order).shuffle(&mut all);
        let records = all
            .into_iter()
            .map(|index| {
                let encoded = Arc::clone(&self.cast.cases[index].encoded);
                Ok((index, self.engine.decide(encoded, &JobOptions::default())?))
            })
            .collect::<Result<_, Failure>>()?;
        if !victims.is_empty() {
            for _ in 0..scene.leave_after {
                hold.one_round()?;
            }
        }
        drop((victims, plug));
        Ok(Asked { records, chats })
    }

    fn chat(&self, chat: &ChatCase) -> Result<TokenStream, Failure> {
        Ok(self.engine.generate(chat.prompt.clone(), options(chat))?)
    }

    fn look_at_record(
        &self,
        scene: &Scene,
        index: usize,
        decided: &Decided,
        stays: &[Stay],
        seen: &mut Seen,
    ) {
        let case = &self.cast.cases[index];
        let ids = &case.encoded.ids;
        let Some(stay) = stays
            .iter()
            .find(|stay| stay.decoded == 0 && stay.completed(ids))
        else {
            let lapse = format!("{}: its rows were not seen on the device", case.name);
            return seen.lapses.push(lapse);
        };
        let mut lapses = self.lapses_of_cache(stay.loaded, case.cacheable_rows());
        if decided.cached_rows != stay.loaded {
            lapses.push(format!(
                "{} rows were said to be cached, {} were loaded",
                decided.cached_rows, stay.loaded
            ));
        }
        let rows = ids.len() - stay.loaded;
        if stay.pieces < rows.div_ceil(self.manner.piece) {
            lapses.push(format!("{rows} rows ran in {} pieces", stay.pieces));
        }
        if scene.subject == Some(index) {
            lapses.extend(lapse_of_company(scene, stay));
        } else if stay.shared == 0 {
            // A neighbour that came when all others had gone says nothing about company.
            return;
        }
        if lapses.is_empty() {
            seen.cached_rows += stay.loaded;
            let difference = difference(case, &decided.logits, &self.truth.logits[index]);
            seen.compared.push((Which::Case(index), difference));
        }
        let named = |lapse| format!("{}: {lapse}", case.name);
        seen.lapses.extend(lapses.into_iter().map(named));
    }

    fn look_at_chat(
        &self,
        scene: &Scene,
        index: usize,
        chatted: &Chatted,
        stays: &[Stay],
        seen: &mut Seen,
    ) {
        let chat = &self.cast.chats[index];
        let stay = stays
            .iter()
            .find(|stay| stay.decoded > 0 && stay.completed(&chat.prompt));
        let Some(stay) = stay else {
            let lapse = format!("chat {index}: its rows were not seen on the device");
            return seen.lapses.push(lapse);
        };
        let mut lapses = self.lapses_of_cache(stay.loaded, chat.cacheable_rows());
        if scene.company == Company::Alone && stay.peak > 1 {
            lapses.push(format!("it was not alone but one of {}", stay.peak));
        }
        if scene.company == Company::Chat && stay.shared == 0 {
            lapses.push("it had no company".to_owned());
        }
        if lapses.is_empty() {
            seen.cached_rows += stay.loaded;
            let difference = self.truth.chats[index].difference(&chatted.ids, &stay.logits);
            seen.compared.push((Which::Chat(index), difference));
        }
        let named = |lapse| format!("chat {index}: {lapse}");
        seen.lapses.extend(lapses.into_iter().map(named));
    }

    /// What is wrong about the rows that snapshots spared.
    fn lapses_of_cache(&self, loaded: usize, cacheable: usize) -> Vec<String> {
        let wanted = match self.manner.cache {
            Cache::Cold => 0,
            // Whatever others left there.
            Cache::Filling => loaded,
            Cache::Hit => cacheable,
        };
        let lapse = || format!("{loaded} rows came from the state cache, not {wanted}");
        (loaded != wanted).then(lapse).into_iter().collect()
    }

    fn look_for_victims(&self, scene: &Scene, stays: &[Stay], seen: &mut Seen) {
        for (index, victim) in self.cast.victims.iter().take(scene.victims).enumerate() {
            let mut own = stays.iter().filter(|stay| stay.broke_off(&victim.ids));
            match own.find(|stay| stay.shared > 0) {
                Some(_) => seen.cancelled += 1,
                None => seen.lapses.push(format!(
                    "the client that was to leave prompt {index} in its middle did not, or had no company"
                )),
            }
        }
        if !seen.lapses.is_empty() {
            // What the scene should have shown was not there for any of its answers.
            seen.compared.retain(|(_, difference)| difference.is_some());
        }
    }
}

/// Whether the subject's company was there.
fn lapse_of_company(scene: &Scene, stay: &Stay) -> Option<String> {
    match scene.company {
        Company::Alone if stay.peak > 1 => {
            Some(format!("it was not alone but one of {}", stay.peak))
        }
        Company::Alone => None,
        Company::Chat if stay.beside_chat == 0 => {
            Some("no chat stream ran beside its rows".to_owned())
        }
        _ if stay.shared == 0 => Some("it shared no round".to_owned()),
        _ => None,
    }
}

/// Lets the engine run until so many chats give tokens.
fn wait_for_chats(hold: &Hold<'_>, chats: usize) -> Result<(), Stuck> {
    if chats == 0 {
        return Ok(());
    }
    for _ in 0..CHAT_TOKENS {
        if hold.one_round()?.decoding == chats {
            return Ok(());
        }
    }
    // Whoever looks at the scene afterwards finds that the company was not there.
    Ok(())
}

/// The first logit that is another than it should be, by its bits.
fn difference(case: &Case, found: &Logits, wanted: &Logits) -> Option<String> {
    if found.len() != wanted.len() {
        return Some(format!("{}: {} questions answered", case.name, found.len()));
    }
    let questions = case.encoded.questions.iter().zip(found).zip(wanted);
    for ((question, found), wanted) in questions {
        if found.len() != wanted.len() {
            return Some(format!(
                "{}, {}: {} logits",
                case.name,
                question.id,
                found.len()
            ));
        }
        let pairs = question.options.iter().zip(found).zip(wanted);
        for ((option, found), wanted) in pairs {
            if found.to_bits() != wanted.to_bits() {
                return Some(format!(
                    "{} of {} rows, question {}, option {}: {found:?} ({:08x}), alone {wanted:?} ({:08x})",
                    case.name,
                    case.rows(),
                    question.id,
                    option.id,
                    found.to_bits(),
                    wanted.to_bits()
                ));
            }
        }
    }
    None
}

/// How a chat is asked for.
pub(crate) fn options(chat: &ChatCase) -> GenerateOptions {
    GenerateOptions {
        sampling: chat.sampling.clone(),
        tokens_max: Some(CHAT_TOKENS),
        ..GenerateOptions::default()
    }
}

/// Reads a chat to its end.
pub(crate) fn drain(mut stream: TokenStream) -> Result<Chatted, Failure> {
    let mut chatted = Chatted {
        ids: Vec::new(),
        cached_tokens: 0,
    };
    while let Some(item) = stream.wait_next() {
        match item? {
            StreamItem::Finished(finished) => chatted.cached_tokens = finished.cached_tokens,
            StreamItem::Token(token) => chatted.ids.push(token.id),
        }
    }
    Ok(chatted)
}

/// Where two lists begin to differ.
fn first_difference<T: PartialEq>(a: &[T], b: &[T]) -> Option<usize> {
    let at = a.iter().zip(b).position(|(a, b)| a != b);
    at.or_else(|| (a.len() != b.len()).then_some(a.len().min(b.len())))
}

/// A chat as it is alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChatTruth {
    pub(crate) ids: Vec<u32>,
    /// All next-token logits of each token.
    pub(crate) logits: Vec<RowDigest>,
}

impl ChatTruth {
    /// The first token that is another than it should be, or whose logits are.
    fn difference(&self, ids: &[u32], logits: &[RowDigest]) -> Option<String> {
        let of_logits = first_difference(&self.logits, logits);
        let of_ids = first_difference(&self.ids, ids);
        match (of_logits, of_ids) {
            // A token follows from its logits, and the next logits from it.
            (Some(at), id) if id.is_none_or(|id| at <= id) => {
                Some(format!("the logits of token {at} are not the same bits"))
            }
            (_, Some(at)) => Some(format!(
                "token {at} is another, though its logits are the same bits"
            )),
            _ => None,
        }
    }
}
