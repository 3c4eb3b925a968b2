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
    /// A position where a piece must end, because a snapshot is taken there; beyond `done`, a multiple of a chunk.
    pub(crate) cut: Option<usize>,
    /// The prompt's own bound of a piece.
    pub(crate) piece_rows: usize,
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
/// when its piece is due. A piece ends at a multiple of [`CHUNK_ROWS`] or with its prompt.
pub(crate) fn plan(snapshot: &Snapshot) -> Round {
    let streams = snapshot.streams.clone();
    let mut room = Room::of(snapshot);
    let mut pieces = Vec::new();
    for prompt in by_rank(snapshot, room) {
        let rows = room.piece_rows(prompt);
        if rows > 0 {
            room.take(prompt, rows);
            pieces.push(Piece {
                job: prompt.job,
                start: prompt.done,
                rows,
            });
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
}

impl Room {
    /// The room of a round with all its streams' tokens in it.
    fn of(snapshot: &Snapshot) -> Room {
        let Limits {
            rows_max,
            piece_rows,
            ..
        } = snapshot.limits;
        let streams = snapshot.streams.len();
        let rows = match (streams, snapshot.chat_owed) {
            (0, _) => rows_max,
            (_, true) => 0,
            (_, false) => piece_rows.min(rows_max - streams),
        };
        Room {
            rows,
            head_rows: snapshot.head_rows_free,
            piece_rows,
        }
    }

    /// Rows of a prompt's next piece; 0 if none fits.
    fn piece_rows(self, prompt: &PromptView) -> usize {
        let end = prompt.cut.unwrap_or(prompt.rows);
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

    fn take(&mut self, prompt: &PromptView, rows: usize) {
        self.rows -= rows;
        if prompt.for_head {
            self.head_rows -= rows;
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
    let able = |(_, prompt): &(usize, &&PromptView)| room.piece_rows(prompt) > 0;
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
