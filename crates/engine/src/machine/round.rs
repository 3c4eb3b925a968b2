//! A round: run on the device, then handed out row by row to the streams that it belongs to.

use std::ops::Range;
use std::time::Duration;

use descant_model::{Defect, Pass, Segment};

use super::{BACKEND, Machine, Prompt, State, Stream, guard};
use crate::EngineError;
use crate::cache::Lane;
use crate::job::{Chat, JobId, Work};
use crate::jury::{HeadPiece, HiddenPiece};
use crate::plan::{Piece, Round};
use crate::sampling::Token;
use crate::ticket::{FinishReason, Finished, HiddenRows, StreamItem};

/// A prompt's piece and where its rows are in the round.
struct RunPiece {
    piece: Piece,
    /// Rows of the round.
    rows: Range<usize>,
}

impl Machine {
    /// Runs a round and hands it out. If the device fails, every job of the round ends with the defect and its slot is
    /// emptied; the others are not touched.
    pub(super) fn run(&mut self, round: &Round) {
        let started = self.clock.now();
        let outcome = self.run_rows(round);
        let took = self.clock.now().saturating_sub(started);
        self.count(round, took);
        if let Err(defect) = outcome {
            self.fail(&defect);
            let pieces = round.pieces.iter().map(|piece| piece.job);
            for id in round.streams.iter().copied().chain(pieces) {
                self.refuse(id, EngineError::Defect(defect.clone()));
            }
            return;
        }
        self.failures = 0;
        self.hand_out(round);
    }

    fn run_rows(&mut self, round: &Round) -> Result<(), Defect> {
        let mut segments = Vec::with_capacity(round.streams.len() + round.pieces.len());
        for id in &round.streams {
            let State::Stream(stream) = &self.jobs[id].state else {
                unreachable!("the snapshot listed it as a stream");
            };
            segments.push(Segment {
                slot: stream.slot.slot(),
                start: stream.rows,
                tokens: std::slice::from_ref(&stream.next),
                pass: Pass::Decode,
                mark: None,
            });
        }
        for piece in &round.pieces {
            let entry = &self.jobs[&piece.job];
            let State::Prompt(prompt) = &entry.state else {
                unreachable!("the snapshot listed it as a prompt");
            };
            segments.push(Segment {
                slot: prompt.slot.slot(),
                start: piece.start,
                tokens: &entry.job.work.prompt()[piece.start..piece.end()],
                pass: Pass::Prefill,
                mark: piece.mark,
            });
        }
        let backend = &mut self.backend;
        guard(BACKEND, || backend.run(&segments))
    }

    fn count(&mut self, round: &Round, took: Duration) {
        self.chat_share.note(round, took);
        self.stats.rounds += 1;
        self.stats.round_time += took;
        self.stats.round_times.note(took);
        self.stats.prefill_rows += round.prompt_rows() as u64;
        self.stats.decode_rows += round.streams.len() as u64;
        if round.pieces.is_empty() {
            return;
        }
        for piece in &round.pieces {
            if let Some(entry) = self.jobs.get_mut(&piece.job) {
                entry.round_longest = entry.round_longest.max(took);
            }
        }
        for entry in self.jobs.values_mut() {
            if let State::Prompt(prompt) = &mut entry.state {
                prompt.rounds_waited = prompt.rounds_waited.saturating_add(1);
            }
        }
    }

    /// Gives each stream what the round computed for it.
    fn hand_out(&mut self, round: &Round) {
        let mut start = round.streams.len();
        let mut pieces = Vec::with_capacity(round.pieces.len());
        for piece in &round.pieces {
            let rows = start..start + piece.rows;
            start = rows.end;
            pieces.push(RunPiece {
                piece: *piece,
                rows,
            });
            // A chat prompt that is complete is a stream soon, or gone. Other copies wait until the tokens are given.
            let is_chat = matches!(self.jobs[&piece.job].job.work, Work::Chat(_));
            if let (true, Some(mark)) = (is_chat, piece.mark) {
                self.save(piece.job, mark);
            }
        }
        // Logits next: they are computed from the round's hidden rows, which stay until the next round.
        self.give_tokens(round, &pieces);
        for piece in &pieces {
            if let Err(defect) = self.take_piece(piece) {
                self.fail(&defect);
                self.refuse(piece.piece.job, EngineError::Defect(defect));
            }
        }
    }

    /// Chooses the next token of each stream and of each chat prompt that is complete.
    fn give_tokens(&mut self, round: &Round, pieces: &[RunPiece]) {
        let mut owners: Vec<(JobId, usize)> = round.streams.iter().copied().zip(0..).collect();
        owners.extend(pieces.iter().filter_map(|run| {
            let work = &self.jobs[&run.piece.job].job.work;
            let last = run.piece.end() == work.prompt().len();
            (last && matches!(work, Work::Chat(_))).then_some((run.piece.job, run.rows.end - 1))
        }));
        self.give_chosen(&mut owners);
        if owners.is_empty() {
            return;
        }
        let rows: Vec<usize> = owners.iter().map(|(_, row)| *row).collect();
        let vocab = self.backend.config().vocab;
        let mut logits = std::mem::take(&mut self.logits);
        logits.resize(rows.len() * vocab, 0.0);
        let outcome = guard(BACKEND, || self.backend.logits(&rows, &mut logits));
        if let Err(defect) = &outcome {
            self.fail(defect);
        }
        for ((id, _), logits) in owners.iter().zip(logits.chunks_exact_mut(vocab)) {
            match &outcome {
                Ok(()) => self.give_token(*id, logits),
                Err(defect) => self.refuse(*id, EngineError::Defect(defect.clone())),
            }
        }
        self.logits = logits;
    }

    /// Gives those their tokens who need the logits for no more than a choice, if the device makes it; takes them out of the
    /// list.
    fn give_chosen(&mut self, owners: &mut Vec<(JobId, usize)>) {
        let (mut chosen, mut others) = (Vec::new(), Vec::new());
        let (mut rows, mut choices) = (Vec::new(), Vec::new());
        for &(id, row) in &*owners {
            let Work::Chat(chat) = &self.jobs[&id].job.work else {
                unreachable!("only chat asks for tokens");
            };
            match chat.sampler.device_choice() {
                Some(choice) => {
                    chosen.push(id);
                    rows.push(row);
                    choices.push(choice);
                }
                None => others.push((id, row)),
            }
        }
        if chosen.is_empty() {
            return;
        }
        let backend = &mut self.backend;
        let found = match guard(BACKEND, || backend.sample(&rows, &choices)) {
            Ok(None) => return,
            Ok(Some(found)) => found.into_iter().map(Ok).collect(),
            Err(defect) => {
                self.fail(&defect);
                vec![Err(defect); chosen.len()]
            }
        };
        *owners = others;
        for (id, found) in chosen.into_iter().zip(found) {
            match found {
                Ok(Some(token)) => {
                    let token = self.chat(id).sampler.next_chosen(token);
                    self.pass_token(id, token);
                }
                Ok(None) => self.refuse(id, EngineError::NonFiniteLogits),
                Err(defect) => self.refuse(id, EngineError::Defect(defect)),
            }
        }
    }

    /// The chat of a job that asks for tokens.
    fn chat(&mut self, id: JobId) -> &mut Chat {
        let entry = self.jobs.get_mut(&id).expect("it was in the round");
        let Work::Chat(chat) = &mut entry.job.work else {
            unreachable!("only chat asks for tokens");
        };
        chat
    }

    /// Chooses a stream's next token from its logits `[vocab]`.
    fn give_token(&mut self, id: JobId, logits: &mut [f32]) {
        let chat = self.chat(id);
        // A grammar is a client's own; whatever it does, the others go on.
        match guard("the grammar", || Ok(chat.sampler.next(logits))) {
            Ok(Some(token)) => self.pass_token(id, token),
            Ok(None) => self.refuse(id, EngineError::NonFiniteLogits),
            Err(defect) => self.refuse(id, EngineError::Defect(defect)),
        }
    }

    /// Passes a token on, and moves its stream on or ends it.
    fn pass_token(&mut self, id: JobId, token: Token) {
        let chat = self.chat(id);
        let next = token.id;
        if let Some(reason) = chat.take(token) {
            self.finish(id, reason);
            return;
        }
        let prompt_rows = chat.prompt.len();
        let entry = self.jobs.get_mut(&id).expect("it was in the round");
        entry.state = match std::mem::replace(&mut entry.state, State::Jury) {
            State::Prompt(Prompt { slot, .. }) => State::Stream(Stream {
                slot,
                rows: prompt_rows,
                next,
            }),
            State::Stream(Stream { slot, rows, .. }) => State::Stream(Stream {
                slot,
                rows: rows + 1,
                next,
            }),
            State::Queued | State::Jury => unreachable!("it was in the round"),
        };
    }

    /// Ends a chat stream.
    fn finish(&mut self, id: JobId, reason: FinishReason) {
        let Some(left) = self.leave(id) else {
            return;
        };
        let Work::Chat(chat) = &left.work else {
            unreachable!("only chat streams finish");
        };
        self.stats.answered += 1;
        chat.reply.send(Ok(StreamItem::Finished(Finished {
            reason,
            prompt_tokens: chat.prompt.len(),
            cached_tokens: left.cached_rows,
            completion_tokens: chat.generated,
            queue_time: left.queue_time,
            engine_time: left.engine_time,
        })));
    }

    /// Moves a prompt on by the piece that ran, takes a snapshot where one is due and passes the hidden rows on.
    fn take_piece(&mut self, run: &RunPiece) -> Result<(), Defect> {
        let id = run.piece.job;
        let Some(entry) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let State::Prompt(prompt) = &mut entry.state else {
            // A chat prompt that is complete is a stream by now, or has ended.
            return Ok(());
        };
        prompt.done += run.piece.rows;
        prompt.rounds_waited = 0;
        let complete = prompt.done == entry.job.work.prompt().len();
        let at = run.piece.mark.unwrap_or(prompt.done);
        let copied = self.save(id, at);
        match self.jobs[&id].job.work {
            Work::Chat(_) => Ok(()),
            Work::Decide(_) => self.pass_to_head(run, copied, complete),
            Work::Hidden(_) => self.pass_to_client(run, complete),
        }
    }

    /// Takes a prompt's snapshot if one is due at a position: where it stands now, or at the mark of its piece. A chat prompt's
    /// goes to the cache at once; a decision's waits for its memory rows, which are given back.
    fn save(&mut self, id: JobId, at: usize) -> Option<Range<usize>> {
        let entry = self.jobs.get_mut(&id)?;
        let State::Prompt(prompt) = &mut entry.state else {
            return None;
        };
        if prompt.cuts.front() != Some(&at) {
            return None;
        }
        prompt.cuts.pop_front();
        let rows = prompt.saved_rows..at;
        let memory_bytes = match (&entry.head, &self.jury) {
            (Some(_), Some(jury)) => jury.memory_bytes(rows.len()),
            _ => 0,
        };
        let bytes = self.backend.saved_bytes(rows.len()) + memory_bytes;
        let reserved = self.cache.reserve(bytes)?;
        self.copied_rows += rows.len();
        let backend = &mut self.backend;
        let saved = match guard(BACKEND, || backend.save(prompt.slot.slot(), rows.clone())) {
            Ok(saved) => (saved?, reserved),
            Err(defect) => {
                // The answer does not need the snapshot.
                self.fail(&defect);
                return None;
            }
        };
        if let Some(head) = &mut entry.head {
            prompt.saved_rows = rows.end;
            head.copies.push_back(saved);
            return Some(rows);
        }
        let prefix = &entry.job.work.prompt()[..rows.end];
        let node = self
            .cache
            .insert(Lane::Chat, prefix, prompt.node.clone(), saved, None);
        if node.is_some() {
            prompt.saved_rows = rows.end;
            prompt.node = node;
        }
        None
    }

    fn pass_to_head(
        &mut self,
        run: &RunPiece,
        copy: Option<Range<usize>>,
        complete: bool,
    ) -> Result<(), Defect> {
        let backend = &self.backend;
        let kept = guard(BACKEND, || backend.keep_hidden(run.rows.clone()))?;
        let hidden = match kept {
            Some(rows) => HiddenPiece::Kept(rows),
            None => HiddenPiece::Host(self.hidden(run.rows.clone())?),
        };
        let entry = self
            .jobs
            .get_mut(&run.piece.job)
            .expect("it was in the round");
        let head = entry
            .head
            .as_mut()
            .expect("a decision has a side in the head");
        head.pending.push(HeadPiece::Absorb {
            start: run.piece.start,
            hidden,
            copy,
            place: self.head_rows.take(run.piece.rows),
        });
        if complete {
            head.complete = true;
            // The slot is free from here on.
            entry.state = State::Jury;
            head.since = self.clock.now();
        }
        self.call_jury(run.piece.job);
        Ok(())
    }

    fn pass_to_client(&mut self, run: &RunPiece, complete: bool) -> Result<(), Defect> {
        let rows = self.hidden(run.rows.clone())?;
        let id = run.piece.job;
        let Work::Hidden(hidden) = &self.jobs[&id].job.work else {
            unreachable!("only its kind gets hidden rows");
        };
        hidden.reply.send(Ok(HiddenRows {
            start: run.piece.start,
            rows,
        }));
        if complete && self.leave(id).is_some() {
            self.stats.answered += 1;
        }
        Ok(())
    }

    /// Copies hidden rows of the last round, `[rows, hidden]`.
    fn hidden(&self, rows: Range<usize>) -> Result<Vec<f32>, Defect> {
        let mut out = vec![0.0; rows.len() * self.backend.config().hidden];
        guard(BACKEND, || self.backend.hidden(rows, &mut out))?;
        Ok(out)
    }
}

impl Chat {
    /// Passes a token on to the client, unless it ends the stream; says why the stream ends.
    fn take(&mut self, token: Token) -> Option<FinishReason> {
        self.generated += 1;
        let id = token.id;
        if self.stop_ids.contains(&id) {
            return Some(FinishReason::Stop { id });
        }
        self.reply.send(Ok(StreamItem::Token(token)));
        (self.generated == self.tokens_max).then_some(FinishReason::Length)
    }
}
