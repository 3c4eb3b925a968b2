//! What every answer is compared with: the plain run, one thread, the prompt whole, alone, nothing cached.
//!
//! A record's logits come from the device and the head themselves, without an engine: one round with the whole prompt,
//! one piece for the head. A chat's tokens need the engine's sampling, so they come from an engine with nothing else to
//! do; its logits are those that the device gave it there.

use std::sync::Arc;

use descant_decision::{Encoded, Logits};
use descant_engine::{Engine, Settings};
use descant_model::{CHUNK_ROWS, Defect, Head, Pass, Segment, Slot};

use super::cast::Cast;
use super::rig::Rig;
use super::scene::{ChatTruth, drain, options};
use super::start;
use crate::failure::Failure;
use crate::load;

/// The plain answers, in the order of the cast.
#[derive(Debug)]
pub(crate) struct Truth {
    pub(crate) logits: Vec<Logits>,
    pub(crate) chats: Vec<ChatTruth>,
}

impl Truth {
    /// Runs the whole cast on a device of one thread.
    pub(crate) fn find(
        rig: &Rig,
        head: &Arc<dyn Head>,
        cast: &Cast,
        mut done: impl FnMut(),
    ) -> Result<Truth, Failure> {
        let mut logits = Vec::with_capacity(cast.cases.len());
        for case in &cast.cases {
            let plain = plain(rig, &**head, &case.encoded);
            logits.push(plain.map_err(|defect| Failure::Engine(defect.into()))?);
            done();
        }
        let rows_max = rig.capacity().rows;
        let settings = Settings {
            rows_max,
            piece_rows: rows_max / CHUNK_ROWS * CHUNK_ROWS,
            ..load::settings_alone()
        };
        let engine = start(rig, head, &settings)?;
        let chats = chats(rig, &engine, cast);
        engine.shutdown(load::ENGINE_STOP);
        Ok(Truth {
            logits,
            chats: chats?,
        })
    }
}

fn plain(rig: &Rig, head: &dyn Head, encoded: &Arc<Encoded>) -> Result<Logits, Defect> {
    let hidden = rig.with_device(|device| {
        let slot = Slot(0);
        device.reset(slot);
        let whole = Segment {
            slot,
            start: 0,
            tokens: &encoded.ids,
            pass: Pass::Prefill,
            mark: None,
        };
        device.run(&[whole])?;
        let mut hidden = vec![0.0; encoded.ids.len() * device.config().hidden];
        device.hidden(0..encoded.ids.len(), &mut hidden)?;
        Ok::<_, Defect>(hidden)
    })?;
    let mut run = head.begin(Arc::clone(encoded));
    run.absorb(0, &hidden)?;
    run.finish()
}

fn chats(rig: &Rig, engine: &Engine, cast: &Cast) -> Result<Vec<ChatTruth>, Failure> {
    let mut all = Vec::with_capacity(cast.chats.len());
    for chat in &cast.chats {
        rig.forget();
        let stream = engine
            .handle()
            .generate(chat.prompt.clone(), options(chat))?;
        let ids = drain(stream)?.ids;
        let stays = rig.stays().into_iter();
        let logits = stays.flat_map(|stay| stay.logits).collect();
        all.push(ChatTruth { ids, logits });
    }
    Ok(all)
}
