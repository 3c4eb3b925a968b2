//! Who gets a slot and which rows run next: pure functions of a snapshot of the engine.
//!
//! A prompt's rank is the rows it still needs plus the prompt rows that the engine had run when it arrived. So a short
//! prompt passes a long one, but the longer one waits, the fewer can still pass it: a prompt is never passed by more
//! rows than it has itself. Besides, the oldest prompt gets a piece at least every
//! [`Limits::rounds_between_pieces_max`] rounds.

use std::cmp::Reverse;
use std::time::Duration;

use descant_model::CHUNK_ROWS;

use crate::job::JobId;

/// Bounds of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Rows of a round.
    pub(crate) rows_max: usize,
    /// Prompt rows of one stream in a round, and of all while chat streams run.
    pub(crate) piece_rows: usize,
    /// The oldest prompt gets a piece at least once in so many rounds with prompt rows.
    pub(crate) rounds_between_pieces_max: u32,
    /// Pieces of a round in whose middle a snapshot may be due.
    pub(crate) marks_max: usize,
    /// [`descant_model::Backend::rows_step`].
    pub(crate) rows_step: usize,
}

impl Limits {
    /// Prompt rows beside so many streams: a piece, but where a step of the device is smaller, the streams' rows take their
    /// place in it, since they would cost a step of their own.
    fn rows_beside(&self, streams: usize) -> usize {
        let steps = self.piece_rows / self.rows_step * self.rows_step;
        let rows = if self.rows_step < CHUNK_ROWS || steps == 0 {
            self.piece_rows
        } else {
            steps.saturating_sub(streams).max(CHUNK_ROWS)
        };
        rows.min(self.rows_max - streams)
    }
}

/// What the next round is planned from.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) limits: Limits,
    /// Chat streams with a next token to run, oldest first.
    pub(crate) streams: Vec<JobId>,
    /// Prompts that have a slot and rows left, oldest first.
    pub(crate) prompts: Vec<PromptView>,
    /// Whether the next round belongs to chat tokens alone.
    pub(crate) chat_owed: bool,
    /// Hidden rows that the head's buffer can still take.
    pub(crate) head_rows_free: usize,
}

/// A prompt that has a slot.
#[derive(Clone, Debug)]
pub(crate) struct PromptView {
    pub(crate) job: JobId,
    /// Rows run or restored.
    pub(crate) done: usize,
    /// Rows in all.
    pub(crate) rows: usize,
    /// Positions at which snapshots are taken, ascending; beyond `done`, multiples of a chunk. A piece ends there or has a
    /// mark there, and has one of them at most.
    pub(crate) cuts: Vec<usize>,
    /// Where the first of these snapshots begins.
    pub(crate) saved_rows: usize,
    /// The prompt's own bound of a piece.
    pub(crate) piece_rows: usize,
    /// Whether its client waits for tokens.
    pub(crate) for_chat: bool,
    /// Whether its rows go to the head.
    pub(crate) for_head: bool,
    /// Prompt rows that the engine had run when it arrived.
    pub(crate) arrived_rows: u64,
    /// Rounds with prompt rows, but none of its own, since its last piece.
    pub(crate) rounds_waited: u32,
}

/// The rows of a round: a row for each stream first, then the pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) streams: Vec<JobId>,
    pub(crate) pieces: Vec<Piece>,
}

/// Rows of one prompt in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) job: JobId,
    pub(crate) start: usize,
    pub(crate) rows: usize,
    /// A position inside at which a snapshot is due.
    pub(crate) mark: Option<usize>,
}

impl Piece {
    /// The position behind its last row.
    pub(crate) fn end(&self) -> usize {
        self.start + self.rows
    }
}

/// A job that waits for a slot.
#[derive(Clone, Debug)]
pub(crate) struct WaitView {
    pub(crate) job: JobId,
    pub(crate) seat: SeatKind,
    /// Rows of its prompt.
    pub(crate) rows: usize,
    /// Prompt rows that the engine had run when it arrived.
    pub(crate) arrived_rows: u64,
    /// How long it has waited.
    pub(crate) waited: Duration,
}

/// Which bounds a waiting job falls under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeatKind {
    Chat,
    Decision,
    Hidden,
}

/// Slots and other places that can be given out now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seats {
    /// Slots that nobody has.
    pub(crate) slots: usize,
    /// How many of them chat may take, so that a reserve stays for the others.
    pub(crate) chat: usize,
    /// How many of them the others may take, so that a reserve stays for chat.
    pub(crate) others: usize,
    /// How many of them jobs of more than one piece, chat apart, may take, so that short ones find a slot soon.
    pub(crate) long: usize,
    /// Decisions that may still enter the head.
    pub(crate) head: usize,
    /// Rows from which a job is long.
    pub(crate) long_rows: usize,
    /// After such a wait a job goes before all that waited less.
    pub(crate) patience: Option<Duration>,
}

impl Round {
    /// Whether there is nothing to run.
    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.pieces.is_empty()
    }

    /// Prompt rows.
    pub(crate) fn prompt_rows(&self) -> usize {
        self.pieces.iter().map(|piece| piece.rows).sum()
    }
}

/// Plans the next round: every stream's next token, then pieces of prompts up to the bounds, by rank, the oldest first
/// when its piece is due. A piece ends at a multiple of [`CHUNK_ROWS`] or with its prompt, and goes past a position at which a
/// snapshot is taken only if it has a mark there.
pub(crate) fn plan(snapshot: &Snapshot) -> Round {
    let streams = snapshot.streams.clone();
    let mut room = Room::of(snapshot);
    let mut pieces = Vec::new();
    for prompt in by_rank(snapshot, room) {
        let piece = room.piece(prompt);
        if piece.rows > 0 {
            room.take(prompt, &piece);
            pieces.push(piece);
        }
    }
    Round { streams, pieces }
}

/// Prompt rows that a round can still take.
#[derive(Clone, Copy, Debug)]
struct Room {
    rows: usize,
    /// Of these, rows whose hidden rows the head's buffer can take.
    head_rows: usize,
    /// Rows of one prompt.
    piece_rows: usize,
    /// Rows that snapshots of its pieces will copy; `None` if no chat token waits for that.
    copied_rows: Option<usize>,
    /// Pieces that may have a mark.
    marks: usize,
}

impl Room {
    /// The room of a round with all its streams' tokens in it.
    fn of(snapshot: &Snapshot) -> Room {
        let Limits {
            rows_max,
            piece_rows,
            marks_max,
            ..
        } = snapshot.limits;
        let streams = snapshot.streams.len();
        let rows = match (streams, snapshot.chat_owed) {
            (0, _) => rows_max,
            (_, true) => 0,
            (_, false) => snapshot.limits.rows_beside(streams),
        };
        Room {
            rows,
            head_rows: snapshot.head_rows_free,
            piece_rows,
            copied_rows: (streams > 0 || snapshot.prompts.iter().any(|prompt| prompt.for_chat))
                .then_some(0),
            marks: marks_max,
        }
    }

    /// A prompt's next piece; without rows if none fits.
    fn piece(self, prompt: &PromptView) -> Piece {
        let (cut, later) = (prompt.cuts.first().copied(), prompt.cuts.get(1));
        let end = match cut {
            None => prompt.rows,
            // Its snapshot comes a round later.
            Some(cut) if !self.may_copy(cut - prompt.saved_rows) => cut - CHUNK_ROWS,
            Some(cut) if self.marks == 0 => cut,
            // One snapshot a piece: the second has its mark in the next.
            Some(_) => later.map_or(prompt.rows, |later| later - CHUNK_ROWS),
        };
        let rows = self.rows_until(prompt, end);
        Piece {
            job: prompt.job,
            start: prompt.done,
            rows,
            mark: cut.filter(|cut| *cut < prompt.done + rows),
        }
    }

    /// Rows of a prompt's next piece, which ends at `end` at the latest.
    fn rows_until(self, prompt: &PromptView, end: usize) -> usize {
        let own = self.piece_rows.min(prompt.piece_rows).min(self.rows);
        let own = if prompt.for_head {
            own.min(self.head_rows)
        } else {
            own
        };
        let rows = own.min(end - prompt.done);
        if prompt.done + rows == prompt.rows {
            rows
        } else {
            rows / CHUNK_ROWS * CHUNK_ROWS
        }
    }

    /// Whether a chat token can wait for the copy of so many rows too: one of any length, or several that are together no
    /// longer than a piece.
    fn may_copy(self, rows: usize) -> bool {
        match self.copied_rows {
            None | Some(0) => true,
            Some(others) => others + rows <= self.piece_rows,
        }
    }

    fn take(&mut self, prompt: &PromptView, piece: &Piece) {
        let reached = prompt.cuts.first().filter(|cut| **cut <= piece.end());
        if let (Some(copied_rows), Some(cut)) = (&mut self.copied_rows, reached) {
            *copied_rows += cut - prompt.saved_rows;
        }
        self.marks -= usize::from(piece.mark.is_some());
        self.rows -= piece.rows;
        if prompt.for_head {
            self.head_rows -= piece.rows;
        }
    }
}

/// Decides which waiting jobs get a slot now, in the order in which they get it.
pub(crate) fn admit(waiting: &[WaitView], mut seats: Seats) -> Vec<JobId> {
    let mut order: Vec<&WaitView> = waiting.iter().collect();
    order.sort_by_key(|wait| {
        let tired = seats
            .patience
            .is_some_and(|patience| wait.waited >= patience);
        let rank = if tired {
            0
        } else {
            wait.arrived_rows + wait.rows as u64
        };
        (Reverse(tired), rank, wait.job)
    });
    let mut admitted = Vec::new();
    for wait in order {
        if seats.take(wait) {
            admitted.push(wait.job);
        }
    }
    admitted
}

impl Seats {
    /// Takes the places that a job needs if all of them are free.
    fn take(&mut self, wait: &WaitView) -> bool {
        let long = wait.rows > self.long_rows;
        let mut needed: Vec<&mut usize> = vec![&mut self.slots];
        match wait.seat {
            SeatKind::Chat => needed.push(&mut self.chat),
            SeatKind::Decision | SeatKind::Hidden => needed.push(&mut self.others),
        }
        if wait.seat == SeatKind::Decision {
            needed.push(&mut self.head);
        }
        if wait.seat != SeatKind::Chat && long {
            needed.push(&mut self.long);
        }
        let free = needed.iter().all(|count| **count > 0);
        if free {
            needed.into_iter().for_each(|count| *count -= 1);
        }
        free
    }
}

/// The prompts in the order in which they may take rows: by rank, but the oldest that can run first if its piece is due.
fn by_rank(snapshot: &Snapshot, room: Room) -> Vec<&PromptView> {
    let mut order: Vec<&PromptView> = snapshot.prompts.iter().collect();
    order.sort_by_key(|prompt| (prompt.rank(), prompt.job));
    let able = |(_, prompt): &(usize, &&PromptView)| room.piece(prompt).rows > 0;
    let able = order.iter().enumerate().filter(able);
    if let Some((index, oldest)) = able.min_by_key(|(_, prompt)| prompt.job)
        && oldest.rounds_waited + 1 >= snapshot.limits.rounds_between_pieces_max
    {
        order[..=index].rotate_right(1);
    }
    order
}

impl PromptView {
    fn rank(&self) -> u64 {
        self.arrived_rows + (self.rows - self.done) as u64
    }
}

/// Keeps a share of the device's time for rounds of chat tokens alone.
///
/// A round with prompt rows that took `t` while streams ran owes chat `t · share / (1 - share)` of rounds without.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChatShare {
    share: f64,
    /// Time owed, in seconds; never negative.
    owed: f64,
}

impl ChatShare {
    /// Nothing owed yet.
    pub(crate) fn new(share: f64) -> ChatShare {
        ChatShare { share, owed: 0.0 }
    }

    /// Notes a round and what it took.
    pub(crate) fn note(&mut self, round: &Round, took: Duration) {
        let took = took.as_secs_f64();
        if round.streams.is_empty() {
            self.owed = 0.0;
        } else if round.pieces.is_empty() {
            self.owed = (self.owed - took).max(0.0);
        } else {
            self.owed += took * self.share / (1.0 - self.share);
        }
    }

    /// Whether the next round belongs to chat alone.
    pub(crate) fn is_owed(&self) -> bool {
        self.owed > 0.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    const LIMITS: Limits = Limits {
        rows_max: 512,
        piece_rows: 256,
        rounds_between_pieces_max: 4,
        marks_max: 0,
        rows_step: 1,
    };

    /// A prompt at its start: id, rows, prompt rows run when it arrived.
    fn prompt(id: u64, rows: usize, arrived_rows: u64) -> PromptView {
        PromptView {
            job: JobId(id),
            done: 0,
            rows,
            cuts: vec![],
            saved_rows: 0,
            piece_rows: usize::MAX,
            for_chat: false,
            for_head: false,
            arrived_rows,
            rounds_waited: 0,
        }
    }

    fn snapshot(streams: usize, prompts: Vec<PromptView>) -> Snapshot {
        Snapshot {
            limits: LIMITS,
            streams: (0..streams as u64).map(|id| JobId(1000 + id)).collect(),
            prompts,
            chat_owed: false,
            head_rows_free: 1024,
        }
    }

    /// The pieces of the next round: id, start, rows.
    fn pieces(snapshot: &Snapshot) -> Vec<(u64, usize, usize)> {
        let round = plan(snapshot);
        assert_eq!(
            round.streams, snapshot.streams,
            "every stream gets its next token"
        );
        round
            .pieces
            .iter()
            .map(|piece| (piece.job.0, piece.start, piece.rows))
            .collect()
    }

    #[test]
    fn several_short_prompts_share_a_round() {
        let prompts = vec![prompt(0, 100, 0), prompt(1, 70, 0), prompt(2, 200, 0)];
        assert_eq!(
            pieces(&snapshot(0, prompts)),
            [(1, 0, 70), (0, 0, 100), (2, 0, 200)]
        );
    }

    #[test]
    fn a_long_prompt_takes_a_piece_a_round() {
        let mut long = prompt(0, 600, 0);
        assert_eq!(pieces(&snapshot(0, vec![long.clone()])), [(0, 0, 256)]);
        long.done = 256;
        assert_eq!(pieces(&snapshot(0, vec![long.clone()])), [(0, 256, 256)]);
        long.done = 512;
        assert_eq!(pieces(&snapshot(0, vec![long])), [(0, 512, 88)]);
    }

    #[test]
    fn a_short_prompt_passes_a_long_one_that_takes_what_is_left() {
        let prompts = vec![prompt(0, 5000, 0), prompt(1, 300, 0)];
        // 300 rows are more than a piece; 256 and 256 fill the round.
        assert_eq!(pieces(&snapshot(0, prompts)), [(1, 0, 256), (0, 0, 256)]);
        let prompts = vec![prompt(0, 5000, 0), prompt(1, 250, 0), prompt(2, 150, 0)];
        // 112 rows are left, and an unfinished piece has whole chunks.
        assert_eq!(
            pieces(&snapshot(0, prompts)),
            [(2, 0, 150), (1, 0, 250), (0, 0, 64)]
        );
    }

    #[test]
    fn a_long_prompt_that_waited_its_length_is_passed_no_more() {
        let late = 5000 - 300;
        let prompts = |late| vec![prompt(0, 5000, 0), prompt(1, 300, late)];
        assert_eq!(pieces(&snapshot(0, prompts(late - 1)))[0].0, 1);
        assert_eq!(pieces(&snapshot(0, prompts(late)))[0].0, 0);
    }

    #[test]
    fn the_oldest_prompt_goes_first_when_its_piece_is_due() {
        let mut prompts = vec![prompt(0, 5000, 0), prompt(1, 200, 0), prompt(2, 250, 0)];
        prompts[0].rounds_waited = 2;
        assert_eq!(pieces(&snapshot(0, prompts.clone()))[0].0, 1);
        prompts[0].rounds_waited = 3;
        assert_eq!(pieces(&snapshot(0, prompts)), [(0, 0, 256), (1, 0, 200)]);
    }

    #[test]
    fn prompts_share_one_piece_while_streams_run() {
        let prompts = vec![prompt(0, 5000, 0), prompt(1, 100, 0)];
        assert_eq!(pieces(&snapshot(3, prompts)), [(1, 0, 100), (0, 0, 128)]);
    }

    #[test]
    fn streams_do_not_begin_another_step_of_the_device() {
        let beside = |rows_step: usize, streams: usize| {
            let mut limits = LIMITS;
            limits.rows_step = rows_step;
            limits.rows_beside(streams)
        };
        assert_eq!([beside(1, 3), beside(128, 0)], [256, 256]);
        assert_eq!(
            [beside(128, 3), beside(256, 3), beside(96, 3)],
            [253, 253, 189]
        );
        // A step larger than a piece says nothing, and there is always room for a chunk.
        assert_eq!([beside(512, 3), beside(256, 230)], [256, 64]);
        let mut beside = snapshot(3, vec![prompt(0, 5000, 0), prompt(1, 100, 0)]);
        beside.limits.rows_step = 128;
        assert_eq!(pieces(&beside), [(1, 0, 100), (0, 0, 128)]);
        beside.prompts.remove(1);
        assert_eq!(pieces(&beside), [(0, 0, 192)]);
        beside.streams.clear();
        assert_eq!(pieces(&beside), [(0, 0, 256)], "nothing is beside it");
    }

    #[test]
    fn streams_take_their_rows_of_the_round() {
        let mut tight = snapshot(200, vec![prompt(0, 5000, 0)]);
        tight.limits.rows_max = 300;
        assert_eq!(pieces(&tight), [(0, 0, 64)]);
    }

    #[test]
    fn a_round_that_chat_is_owed_has_no_pieces() {
        let mut owed = snapshot(2, vec![prompt(0, 100, 0)]);
        owed.chat_owed = true;
        assert_eq!(pieces(&owed), []);
        owed.streams.clear();
        assert_eq!(pieces(&owed), [(0, 0, 100)], "nobody is there to be owed");
    }

    #[test]
    fn a_piece_ends_where_a_snapshot_is_due() {
        let mut cut = prompt(0, 250, 0);
        cut.cuts = vec![192];
        assert_eq!(pieces(&snapshot(0, vec![cut])), [(0, 0, 192)]);
    }

    #[test]
    fn a_piece_goes_past_a_snapshot_with_a_mark_there() {
        let with = |id: u64, rows, cuts: &[usize]| PromptView {
            cuts: cuts.to_vec(),
            ..prompt(id, rows, 0)
        };
        let marked = |marks_max: usize, prompts: Vec<PromptView>| {
            let mut snapshot = snapshot(0, prompts);
            snapshot.limits.marks_max = marks_max;
            let pieces = plan(&snapshot).pieces.into_iter();
            let of = |piece: Piece| (piece.job.0, piece.rows, piece.mark);
            pieces.map(of).collect::<Vec<_>>()
        };
        // The second finds no mark left and ends there.
        let both = vec![with(0, 250, &[192]), with(1, 251, &[128])];
        assert_eq!(
            marked(1, both.clone()),
            [(0, 250, Some(192)), (1, 128, None)]
        );
        assert_eq!(marked(2, both), [(0, 250, Some(192)), (1, 251, Some(128))]);
        // One that ends there anyway needs none, nor does one that does not come so far.
        assert_eq!(marked(1, vec![with(0, 300, &[256])]), [(0, 256, None)]);
        assert_eq!(marked(1, vec![with(0, 900, &[320])]), [(0, 256, None)]);
        // One snapshot a piece.
        let two = |cuts: [usize; 2]| marked(1, vec![with(0, 250, &cuts)]);
        assert_eq!(two([64, 192]), [(0, 128, Some(64))]);
        assert_eq!(two([128, 192]), [(0, 128, None)]);
    }

    #[test]
    fn only_one_long_snapshot_is_copied_behind_a_chat_token() {
        let long = |id: u64| PromptView {
            done: 1024,
            cuts: vec![1024 + CHUNK_ROWS],
            ..prompt(id, 2000, 0)
        };
        let both = [(0, 1024, 64), (1, 1024, 64)];
        assert_eq!(pieces(&snapshot(0, vec![long(0), long(1)])), both);
        assert_eq!(
            pieces(&snapshot(1, vec![long(0), long(1)])),
            [(0, 1024, 64)]
        );
        // A chat prompt that ends with this round gives a token too.
        let mut chat = prompt(2, 10, 0);
        chat.for_chat = true;
        let prompts = vec![long(0), long(1), chat];
        assert_eq!(pieces(&snapshot(0, prompts)), [(2, 0, 10), (0, 1024, 64)]);
        // What was saved before is not copied again.
        let [mut first, mut second] = [long(0), long(1)];
        (first.saved_rows, second.saved_rows) = (960, 960);
        assert_eq!(pieces(&snapshot(1, vec![first, second])), both);
        // The other goes on up to the chunk before its snapshot.
        let later = PromptView {
            cuts: vec![1024 + 2 * CHUNK_ROWS],
            ..long(1)
        };
        assert_eq!(pieces(&snapshot(1, vec![long(0), later])), both);
    }

    #[test]
    fn a_full_head_holds_decisions_back_and_nothing_else() {
        let mut prompts = vec![prompt(0, 100, 0), prompt(1, 200, 0), prompt(2, 30, 0)];
        for decision in [0, 2] {
            prompts[decision].for_head = true;
        }
        let mut full = snapshot(0, prompts);
        full.head_rows_free = 40;
        assert_eq!(pieces(&full), [(2, 0, 30), (1, 0, 200)]);
        // The decision that is held back is the oldest and due, but does not take the turn of the next.
        full.head_rows_free = 0;
        full.limits.rows_max = 220;
        full.prompts[0].rounds_waited = 9;
        full.prompts[1].rounds_waited = 9;
        full.prompts.push(prompt(3, 150, 0));
        assert_eq!(pieces(&full), [(1, 0, 200)]);
    }

    #[test]
    fn a_prompts_own_bound_holds() {
        let mut own = prompt(0, 250, 0);
        own.piece_rows = 128;
        assert_eq!(pieces(&snapshot(0, vec![own])), [(0, 0, 128)]);
    }

    #[test]
    fn chat_is_owed_its_share_of_the_time() {
        let ms = Duration::from_millis;
        let mut share = ChatShare::new(0.25);
        let stream = || vec![JobId(0)];
        let piece = || {
            vec![Piece {
                job: JobId(1),
                start: 0,
                rows: 64,
                mark: None,
            }]
        };
        let mixed = Round {
            streams: stream(),
            pieces: piece(),
        };
        let chat = Round {
            streams: stream(),
            pieces: vec![],
        };
        let prompts = Round {
            streams: vec![],
            pieces: piece(),
        };
        // 90 ms of pieces against 30 of chat alone.
        share.note(&mixed, ms(90));
        let mut rounds = 0;
        while share.is_owed() {
            share.note(&chat, ms(5));
            rounds += 1;
        }
        // The last bit of 30 ms may be left by rounding.
        assert!((6..=7).contains(&rounds), "{rounds}");
        share.note(&mixed, ms(90));
        share.note(&prompts, ms(90));
        assert!(!share.is_owed(), "no stream, no debt");
        let mut none = ChatShare::new(0.0);
        none.note(&mixed, ms(90));
        assert!(!none.is_owed());
    }

    const SEATS: Seats = Seats {
        slots: 4,
        chat: 3,
        others: 3,
        long: 2,
        head: 5,
        long_rows: 256,
        patience: Some(Duration::from_secs(4)),
    };

    fn wait(id: u64, seat: SeatKind, rows: usize) -> WaitView {
        WaitView {
            job: JobId(id),
            seat,
            rows,
            arrived_rows: 0,
            waited: Duration::ZERO,
        }
    }

    fn admitted(waiting: &[WaitView], seats: Seats) -> Vec<u64> {
        admit(waiting, seats).iter().map(|job| job.0).collect()
    }

    #[test]
    fn short_jobs_are_admitted_first_but_nobody_is_passed_for_ever() {
        use SeatKind::Decision;
        let mut waiting = vec![wait(0, Decision, 250), wait(1, Decision, 100)];
        let one = Seats { slots: 1, ..SEATS };
        assert_eq!(admitted(&waiting, one), [1]);
        waiting[1].arrived_rows = 151;
        assert_eq!(admitted(&waiting, one), [0]);
        waiting[1].arrived_rows = 0;
        waiting[0].waited = Duration::from_secs(4);
        assert_eq!(admitted(&waiting, one), [0]);
    }

    #[test]
    fn reserves_stay_free() {
        use SeatKind::{Chat, Decision, Hidden};
        let decisions: Vec<_> = (0..5).map(|id| wait(id, Decision, 100)).collect();
        assert_eq!(admitted(&decisions, SEATS), [0, 1, 2]);
        let chats: Vec<_> = (0..5).map(|id| wait(id, Chat, 1000)).collect();
        assert_eq!(admitted(&chats, SEATS), [0, 1, 2]);
        let long: Vec<_> = (0..3).map(|id| wait(id, Hidden, 1000)).collect();
        assert_eq!(admitted(&long, SEATS), [0, 1], "one slot is for short jobs");
        let seats = Seats { head: 1, ..SEATS };
        assert_eq!(admitted(&decisions, seats), [0], "the head is full");
        let mixed = [
            wait(0, Decision, 100),
            wait(1, Chat, 100),
            wait(2, Hidden, 100),
        ];
        let seats = Seats { head: 0, ..SEATS };
        assert_eq!(admitted(&mixed, seats), [1, 2]);
    }

    fn prompts() -> impl Strategy<Value = Vec<PromptView>> {
        let one = (
            0..9usize,
            1..900usize,
            any::<bool>(),
            0..5000u64,
            0..5u32,
            (0..4usize, 0..4usize),
            0..9usize,
        );
        proptest::collection::vec(one, 0..12).prop_map(|list| {
            let prompts = (0..).zip(list).map(|(id, fields)| {
                let (chunks, left, for_head, arrived_rows, rounds_waited, cuts, saved) = fields;
                let done = chunks * CHUNK_ROWS;
                let (first, second) = (cuts.0, cuts.0 + cuts.1);
                let mut cuts: Vec<usize> = [first, second]
                    .into_iter()
                    .filter(|cut| *cut > 0 && left > cut * CHUNK_ROWS)
                    .map(|cut| done + cut * CHUNK_ROWS)
                    .collect();
                cuts.dedup();
                PromptView {
                    job: JobId(id),
                    done,
                    rows: done + left,
                    cuts,
                    saved_rows: saved.min(chunks) * CHUNK_ROWS,
                    piece_rows: usize::MAX,
                    for_chat: !for_head && saved == 8,
                    for_head,
                    arrived_rows,
                    rounds_waited,
                }
            });
            prompts.collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            rng_seed: RngSeed::Fixed(5),
            ..ProptestConfig::default()
        })]

        #[test]
        fn a_round_keeps_its_bounds_and_wastes_no_room(
            prompts in prompts(),
            streams in 0..20usize,
            head_rows_free in 0..600usize,
            marks_max in 0..3usize,
            rows_step in prop_oneof![Just(1usize), Just(128), Just(256)],
        ) {
            let mut snapshot = snapshot(streams, prompts);
            snapshot.head_rows_free = head_rows_free;
            (snapshot.limits.marks_max, snapshot.limits.rows_step) = (marks_max, rows_step);
            let round = plan(&snapshot);
            let rows = round.prompt_rows();
            prop_assert!(rows + streams <= LIMITS.rows_max);
            prop_assert!(streams == 0 || rows <= LIMITS.piece_rows);
            prop_assert!(streams == 0 || rows_step == 1 || rows + streams <= LIMITS.piece_rows);
            let mut for_head = 0;
            for piece in &round.pieces {
                let prompt = snapshot.prompts.iter().find(|prompt| prompt.job == piece.job).unwrap();
                let end = piece.start + piece.rows;
                prop_assert!(piece.rows > 0 && piece.rows <= LIMITS.piece_rows);
                prop_assert_eq!(piece.start, prompt.done);
                prop_assert!(end == prompt.rows || end.is_multiple_of(CHUNK_ROWS));
                // One snapshot at most, in the middle if it has a mark and else at its end.
                let mut due = prompt.cuts.iter().filter(|cut| **cut <= end);
                let first = due.next().copied();
                prop_assert_eq!(due.next(), None);
                prop_assert_eq!(piece.mark.or(first), first);
                prop_assert!(first.is_none_or(|cut| (cut < end) == piece.mark.is_some()));
                for_head += if prompt.for_head { piece.rows } else { 0 };
            }
            prop_assert!(for_head <= head_rows_free);
            let mut jobs: Vec<_> = round.pieces.iter().map(|piece| piece.job).collect();
            jobs.sort();
            jobs.dedup();
            prop_assert_eq!(jobs.len(), round.pieces.len());
            // What is copied behind a chat token: one snapshot, or several that are together no longer than a piece.
            let marks = round.pieces.iter().filter(|piece| piece.mark.is_some()).count();
            prop_assert!(marks <= marks_max);
            let copy = |prompt: &PromptView| prompt.cuts.first().map_or(0, |cut| cut - prompt.saved_rows);
            let copies = round.pieces.iter().filter_map(|piece| {
                let prompt = snapshot.prompts.iter().find(|prompt| prompt.job == piece.job).unwrap();
                prompt.cuts.first().is_some_and(|cut| *cut <= piece.end()).then(|| copy(prompt))
            });
            let copies: Vec<usize> = copies.collect();
            let copied: usize = copies.iter().sum();
            let for_chat = streams > 0 || snapshot.prompts.iter().any(|prompt| prompt.for_chat);
            prop_assert!(!for_chat || copies.len() <= 1 || copied <= LIMITS.piece_rows);
            // Who got nothing could not have got a chunk, or its snapshot has to wait.
            let whole = match (streams, rows_step) {
                (0, _) => LIMITS.rows_max,
                (_, 1) => LIMITS.piece_rows,
                _ => LIMITS.piece_rows - streams,
            };
            let room = whole - rows;
            for prompt in &snapshot.prompts {
                let head_room = if prompt.for_head { head_rows_free - for_head } else { usize::MAX };
                let ends = prompt.cuts.first() == Some(&(prompt.done + CHUNK_ROWS));
                let waits = for_chat && ends && copied > 0 && copied + copy(prompt) > LIMITS.piece_rows;
                let fits = CHUNK_ROWS <= room.min(head_room) && !waits;
                prop_assert!(!fits || jobs.contains(&prompt.job));
            }
        }
    }
}
