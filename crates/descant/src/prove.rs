//! `descant prove`: the same request gives the same bits, whatever else happens.
//!
//! A set of records and chats is answered in every combination of threads, pieces, company and state cache, and each
//! answer is compared, by the bits of every logit, with the plain run. Whether a combination was what it claims to be is
//! read from what the device was given; one that was not is a failure, as an unequal answer is.

mod cast;
mod manner;
mod plan;
mod rig;
mod scene;
mod tally;
#[cfg(test)]
mod tests;
mod truth;

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use descant_decision::json::Object;
use descant_engine::{Engine, Settings, StartError};
use descant_model::{CHUNK_ROWS, Head};
use descant_server::Confidence;

pub(crate) use manner::{Cache, Company};

use self::cast::{Case, Cast};
use self::manner::Manner;
use self::plan::Axes;
use self::rig::{Rig, Stuck};
use self::scene::Stage;
use self::tally::{Tally, peak_wanted, values};
use self::truth::Truth;
use crate::args::{Compute, Prove};
use crate::backend::{self, Device, Room};
use crate::dummy::Dummy;
use crate::failure::Failure;
use crate::load;
use crate::meter::Meter;
use crate::output::Output;

/// A device that takes one engine after the other, and the head.
struct House {
    rig: Rig,
    head: Arc<dyn Head>,
}

/// The whole run.
struct Proof<'a> {
    cast: &'a Cast,
    axes: Axes,
    /// Answers to compare at least.
    least: usize,
    /// Passes of the next turn, which meet company that no pass before met.
    passes: Range<u64>,
    cache_bytes: usize,
    tally: Tally,
    meter: Meter,
}

pub(crate) fn run(args: &Prove) -> Result<(), Failure> {
    let started = Instant::now();
    let place = load::place(args.model.model.as_deref())?;
    let release = Arc::new(place.release(args.model.clef.clef.as_deref())?);
    let dummy = load::dummy(args.dummy.dummy_weights.as_deref(), &release)?;
    match &dummy {
        Some(dummy) => crate::say(&dummy.label()),
        None => {
            release.require_head().map_err(Failure::NoHead)?;
        }
    }
    let desk = load::desk(
        load::any_name(&place),
        release.tokenizer()?,
        (&args.accept, &args.length),
        Confidence::default(),
    );
    let axes = axes(args);
    let threads_max = axes.threads.iter().copied().max().unwrap_or(1);
    let piece_max = axes.pieces.iter().copied().max().unwrap_or(CHUNK_ROWS);
    let left_rows = plan::left_rows(&axes.pieces);
    let cast = Cast::gather(&desk, args.quick, args.records.as_deref(), left_rows)?;
    let rows = round_rows(piece_max, &cast);
    let room = Room {
        slots: SLOTS,
        rows,
        rows_asked: true,
        cache_mb: args.cache_mb,
        chats: true,
        // A slot has at least as many rows as a round.
        ..Room::for_one(rows.max(cast.rows_max()))
    };
    let house = |threads| {
        let compute = Compute {
            threads: Some(threads),
            ..args.compute.clone()
        };
        let settings = settings_of_budget(room, threads_max);
        let Device { backend, head } = match &dummy {
            Some(dummy) => backend::load_dummy(dummy, &compute, room, &settings)?,
            None => backend::load(&release, &compute, room, &settings)?,
        };
        Ok(House {
            rig: Rig::new(backend),
            head: head.expect("the release was asked for its head"),
        })
    };
    let mut proof = Proof::new(&cast, axes, args.comparisons, room.cache_bytes());
    proof.run(house)?;
    let run = Object::new()
        .with(
            "model",
            dummy.as_ref().map_or_else(|| place.name(), Dummy::name),
        )
        .with("records", cast.cases.len())
        .with("rows_max", cast.rows_max())
        .with("passes", proof.passes.end)
        .with("seconds", started.elapsed().as_secs());
    proof.report(args.json, run, started)
}

impl<'a> Proof<'a> {
    /// Of at least so many comparisons, or of one pass.
    fn new(
        cast: &'a Cast,
        axes: Axes,
        comparisons: Option<usize>,
        cache_bytes: usize,
    ) -> Proof<'a> {
        let answers = |pass| {
            let manners = axes
                .threads
                .iter()
                .flat_map(|&threads| axes.manners(threads));
            let scenes = manners.flat_map(|manner| axes.scenes(cast, manner, pass));
            scenes.map(|scene| scene.answers()).sum::<usize>()
        };
        // Passes differ in who meets whom; they have about as many answers each.
        let each = answers(0).max(1);
        let passes = comparisons.map_or(1, |least| least.div_ceil(each) as u64);
        let all: usize = (0..passes).map(answers).sum();
        let meter = Meter::of("answers", 0, Some((all + cast.cases.len()) as u64));
        Proof {
            cast,
            axes,
            least: comparisons.unwrap_or(0),
            passes: 0..passes,
            cache_bytes,
            tally: Tally::default(),
            meter,
        }
    }

    /// Goes through all manners. `house` loads the model for so many threads.
    fn run(&mut self, house: impl Fn(usize) -> Result<House, Failure>) -> Result<(), Failure> {
        // The plain run has one thread; where that is on the list too, its device serves twice.
        let plain = house(1)?;
        let truth = Truth::find(&plain.rig, &plain.head, self.cast, || self.meter.one())?;
        let mut plain = Some(plain);
        loop {
            let before = self.tally.compared();
            let threads = self.axes.threads.clone();
            if threads.contains(&1) {
                let house = plain.take().map_or_else(|| house(1), Ok)?;
                self.run_threads(&house, 1, &truth)?;
            }
            plain = None;
            for threads in threads.into_iter().filter(|threads| *threads != 1) {
                self.run_threads(&house(threads)?, threads, &truth)?;
            }
            // A neighbour that had no company after all was not counted, so there may be fewer than planned.
            let compared = self.tally.compared();
            if compared >= self.least || compared == before {
                return Ok(());
            }
            self.passes = self.passes.end..self.passes.end + 1;
        }
    }

    fn run_threads(&mut self, house: &House, threads: usize, truth: &Truth) -> Result<(), Failure> {
        for manner in self.axes.manners(threads) {
            let engine = start(&house.rig, &house.head, &self.settings(house, manner))?;
            let done = self.run_manner(house, &engine, manner, truth);
            engine.shutdown(load::ENGINE_STOP);
            done?;
        }
        Ok(())
    }

    fn run_manner(
        &mut self,
        house: &House,
        engine: &Engine,
        manner: Manner,
        truth: &Truth,
    ) -> Result<(), Failure> {
        let stage = |manner| Stage {
            rig: &house.rig,
            engine: engine.handle(),
            manner,
            cast: self.cast,
            truth,
        };
        if manner.cache == Cache::Hit {
            let filling = Manner {
                cache: Cache::Filling,
                ..manner
            };
            let stage = stage(filling);
            for scene in self.axes.filling(self.cast) {
                let seen = stage.play(&scene)?;
                self.tally.add(filling, scene.company, &seen);
            }
        }
        let stage = stage(manner);
        let mut peaks: Vec<(Company, usize)> = Vec::new();
        for pass in self.passes.clone() {
            for scene in self.axes.scenes(self.cast, manner, pass) {
                let seen = stage.play(&scene)?;
                match peaks
                    .iter_mut()
                    .find(|(company, _)| *company == scene.company)
                {
                    Some((_, peak)) => *peak = seen.peak.max(*peak),
                    None => peaks.push((scene.company, seen.peak)),
                }
                self.tally.add(manner, scene.company, &seen);
                self.meter.more(scene.answers() as u64);
            }
        }
        for (company, peak) in peaks {
            // So many pieces a round has room for whichever records are drawn; the longest comes last.
            let longest = self.cast.cases.last().map_or(1, Case::rows);
            let room = house.rig.capacity().rows / manner.piece.min(longest);
            let wanted = peak_wanted(company, self.cast.cases.len()).min(room.max(2));
            if peak < wanted {
                let lapse = format!("never more than {peak} streams in a round, not {wanted}");
                self.tally.add_lapse(manner, company, &lapse);
            }
        }
        Ok(())
    }

    fn settings(&self, house: &House, manner: Manner) -> Settings {
        Settings {
            rows_max: house.rig.capacity().rows,
            piece_rows: manner.piece,
            chat_slots: 0,
            decision_slots: 0,
            // Rounds of chat alone, as many as time says, would leave to chance whether a chat meets a record.
            chat_share: 0.0,
            head_threads: manner.threads,
            cache_bytes: match manner.cache {
                Cache::Cold => 0,
                Cache::Filling | Cache::Hit => self.cache_bytes,
            },
            ..load::settings_alone()
        }
    }

    /// Prints what was found.
    ///
    /// # Errors
    /// [`Failure::Unproven`] unless all was equal and all happened.
    fn report(self, as_json: bool, run: Object, started: Instant) -> Result<(), Failure> {
        let Proof {
            axes, tally, meter, ..
        } = self;
        drop(meter);
        let (compared, unequal) = (tally.compared(), tally.unequal());
        let mut output = Output::open();
        match as_json {
            true => output.line(&tally.json(run))?,
            false => {
                output.line(&tally.table())?;
                output.line(&format!(
                    "{compared} answers compared bit for bit with the plain run in {} s: {unequal} unequal, {} scenes \
                     did not happen",
                    started.elapsed().as_secs(),
                    tally.lapsed()
                ))?;
            }
        }
        let empty = tally.empty(&axes.values());
        match (unequal, tally.lapsed(), empty.is_empty()) {
            (0, 0, true) => Ok(()),
            (unequal, lapsed, _) => Err(Failure::Unproven {
                compared,
                unequal,
                lapsed,
                empty,
            }),
        }
    }
}

impl Axes {
    fn values(&self) -> Vec<(&'static str, String)> {
        let mut all = values("threads", &self.threads);
        all.extend(values("pieces", &self.pieces));
        all.extend(values("company", &self.company));
        all.extend(values("cache", &self.cache));
        all
    }
}

fn axes(args: &Prove) -> Axes {
    let threads = match args.compute.threads {
        Some(threads) => vec![threads],
        None => distinct(&args.thread_counts),
    };
    Axes {
        threads,
        pieces: distinct(&args.pieces),
        company: distinct(&args.company),
        cache: distinct(&args.cache),
    }
}

/// A list without what it has twice.
fn distinct<T: Copy + PartialEq>(list: &[T]) -> Vec<T> {
    let mut found: Vec<T> = Vec::new();
    for value in list {
        if !found.contains(value) {
            found.push(*value);
        }
    }
    found
}

/// Rows of a round: two longest pieces share one, so do nine middling ones, and the plain run takes the longest prompt
/// whole.
fn round_rows(piece_max: usize, cast: &Cast) -> usize {
    let middling = 9 * piece_max.min(256);
    let rows = (2 * piece_max).max(middling).max(cast.rows_max());
    rows.next_multiple_of(CHUNK_ROWS)
}

/// The settings that take the most memory of all that run.
fn settings_of_budget(room: Room, head_threads: usize) -> Settings {
    Settings {
        head_threads,
        rows_max: room.rows + room.slots,
        cache_bytes: room.cache_bytes(),
        ..load::settings_alone()
    }
}

/// Starts an engine on a device that no other engine has.
fn start(rig: &Rig, head: &Arc<dyn Head>, settings: &Settings) -> Result<Engine, Failure> {
    let engine = Engine::start(rig.backend(), Some(Arc::clone(head)), settings);
    engine.map_err(|error| match error {
        StartError::Settings(error) => Failure::Settings(error),
        other => Failure::Start {
            what: "the engine",
            source: other.into(),
        },
    })
}

impl From<Stuck> for Failure {
    fn from(_: Stuck) -> Failure {
        Failure::Stuck
    }
}

/// Slots of each engine: the greatest company and its subject, one that long prompts leave to short ones, and three more
/// so that nobody waits for a slot that is being emptied.
const SLOTS: usize = 13;
