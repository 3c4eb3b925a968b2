//! Runs rounds on a backend and gives back their hidden rows.

use descant_model::{Backend, Pass, Segment, Slot};

/// A backend with the sizes that its results have.
#[derive(Debug)]
pub struct Driver<B> {
    /// The backend.
    pub backend: B,
    /// Values of a hidden row.
    pub hidden: usize,
    /// Values of a row of logits.
    pub vocab: usize,
}

impl<B: Backend> Driver<B> {
    /// Drives a backend.
    pub fn new(backend: B) -> Driver<B> {
        Driver {
            hidden: backend.config().hidden,
            vocab: backend.config().vocab,
            backend,
        }
    }

    /// Runs a round and gives the hidden rows of all of it.
    ///
    /// # Panics
    /// If the backend fails.
    pub fn round(&mut self, round: &[Segment<'_>]) -> Vec<f32> {
        self.backend.run(round).expect("the round runs");
        let rows: usize = round.iter().map(|segment| segment.tokens.len()).sum();
        let mut out = vec![f32::NAN; rows * self.hidden];
        let copied = self.backend.hidden(0..rows, &mut out);
        copied.expect("the round's rows are there");
        out
    }

    /// The hidden rows of a prompt in a fresh slot, cut into pieces.
    pub fn prefill(&mut self, slot: usize, ids: &[u32], piece: usize) -> Vec<f32> {
        self.backend.reset(Slot(slot));
        self.go_on(slot, 0, ids, piece)
    }

    /// The hidden rows from `start` on.
    pub fn go_on(&mut self, slot: usize, start: usize, ids: &[u32], piece: usize) -> Vec<f32> {
        let pieces = ids[start..].chunks(piece).enumerate();
        pieces
            .flat_map(|(i, tokens)| self.round(&[prefill(slot, start + i * piece, tokens)]))
            .collect()
    }

    /// Next-token logits of a row of the last round.
    ///
    /// # Panics
    /// If the backend fails.
    pub fn logits(&mut self, row: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.vocab];
        let found = self.backend.logits(&[row], &mut out);
        found.expect("logits of the last round");
        out
    }
}

/// A piece of a prompt.
pub fn prefill(slot: usize, start: usize, tokens: &[u32]) -> Segment<'_> {
    Segment {
        slot: Slot(slot),
        start,
        tokens,
        pass: Pass::Prefill,
        mark: None,
    }
}

/// A next token.
pub fn decode(slot: usize, start: usize, token: &u32) -> Segment<'_> {
    Segment {
        slot: Slot(slot),
        start,
        tokens: std::slice::from_ref(token),
        pass: Pass::Decode,
        mark: None,
    }
}
