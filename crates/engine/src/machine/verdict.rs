//! Decisions in the head: rows go out to it, memory rows and logits come back.

use descant_decision::Logits;
use descant_model::SavedMemory;

use super::Machine;
use crate::EngineError;
use crate::cache::Lane;
use crate::job::{JobId, Work};
use crate::jury::{HeadOut, HeadOutcome, HeadTask, Seat};
use crate::ticket::Decided;

impl Machine {
    /// Sends a decision's waiting rows to the head if its state is at home.
    pub(super) fn call_jury(&mut self, id: JobId) {
        let Some(jury) = &mut self.jury else { return };
        let Some(entry) = self.jobs.get_mut(&id) else {
            return;
        };
        let Some(head) = &mut entry.head else { return };
        if head.pending.is_empty() {
            return;
        }
        if let Some(seat) = head.seat.take() {
            self.away.insert(id);
            jury.submit(HeadTask {
                job: id,
                flags: entry.job.flags.clone(),
                seat,
                pieces: std::mem::take(&mut head.pending),
                finish: head.complete,
            });
        }
    }

    /// Takes what the head gives back. A job that ended meanwhile has nothing to take.
    pub(super) fn hear(&mut self, out: HeadOut) {
        let id = out.job;
        self.away.remove(&id);
        self.stats.head_time += out.took;
        self.stats.head_times.note(out.took);
        self.keep(id, out.copies);
        match out.outcome {
            HeadOutcome::Done(logits) => self.answer(id, logits),
            HeadOutcome::Failed(defect) => self.refuse(id, EngineError::Defect(defect)),
            HeadOutcome::Gone => self.refuse(id, EngineError::Cancelled),
            HeadOutcome::Home(run) => {
                if let Some(head) = self.jobs.get_mut(&id).and_then(|entry| entry.head.as_mut()) {
                    head.seat = Some(Seat::Taken(run));
                }
                self.call_jury(id);
            }
        }
    }

    /// Joins memory rows with the states that the backend saved for them, for the state cache.
    fn keep(&mut self, id: JobId, copies: Vec<Option<SavedMemory>>) {
        let Some(entry) = self.jobs.get_mut(&id) else {
            return;
        };
        let Some(head) = &mut entry.head else { return };
        for memory in copies {
            let saved = head
                .copies
                .pop_front()
                .expect("each copy was asked for with a snapshot");
            let Some(memory) = memory else {
                // The head could not copy them; the answer does not need them.
                continue;
            };
            let prefix = &entry.job.work.prompt()[..saved.0.rows.end];
            let parent = head.node.clone();
            let node = self
                .cache
                .insert(Lane::Decision, prefix, parent, saved, Some(memory));
            head.node = node.or(head.node.take());
        }
    }

    fn answer(&mut self, id: JobId, logits: Logits) {
        let Some(left) = self.leave(id) else { return };
        let Work::Decide(decide) = &left.work else {
            unreachable!("only decisions go to the head");
        };
        self.stats.answered += 1;
        decide.reply.send(Ok(Decided {
            logits,
            head_time: left.head_time,
            cached_rows: left.cached_rows,
            queue_time: left.queue_time,
            engine_time: left.engine_time,
            round_longest: left.round_longest,
        }));
    }
}
