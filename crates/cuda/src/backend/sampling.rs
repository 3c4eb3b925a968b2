//! Choices of tokens on their way to the device, and the room that they are made in.

use descant_model::{ADJUSTMENTS_MAX, Choice};

use crate::driver::{Arena, Block, Gpu};
use crate::error::CudaError;
use crate::launch::{BINS, Draws, Kernels, SETTINGS_FOURS, spans};

/// Of each row the token's id; none where there is no such token.
pub(crate) type Tokens = Vec<Option<u32>>;

/// Most rows whose tokens are chosen at one time.
const ROWS: usize = 32;

/// Room for the choice of tokens of [`ROWS`] rows.
#[derive(Debug)]
pub(crate) struct SampleRoom {
    /// Settings of the rows, then their changes.
    lists: Block<[i32; 4]>,
    counts: Block<i32>,
    states: Block<[i32; 4]>,
    sums: Block<[i32; 4]>,
    ids: Block<i32>,
}

/// Lengths of its blocks, in their order.
struct Lengths {
    lists: usize,
    counts: usize,
    states: usize,
    sums: usize,
    ids: usize,
}

fn lengths(vocab: usize) -> Lengths {
    Lengths {
        lists: ROWS * (SETTINGS_FOURS + ADJUSTMENTS_MAX.min(vocab)),
        counts: ROWS * BINS,
        states: ROWS,
        sums: ROWS * spans(vocab),
        ids: ROWS,
    }
}

impl SampleRoom {
    /// Room for rows of so many logits.
    pub(crate) fn new(gpu: &Gpu, vocab: usize) -> Result<SampleRoom, CudaError> {
        let mut arena = Arena::new(gpu, "choice of tokens", SampleRoom::bytes(vocab))?;
        let lengths = lengths(vocab);
        Ok(SampleRoom {
            lists: arena.take(lengths.lists),
            counts: arena.take(lengths.counts),
            states: arena.take(lengths.states),
            sums: arena.take(lengths.sums),
            ids: arena.take(lengths.ids),
        })
    }

    pub(crate) fn bytes(vocab: usize) -> usize {
        let lengths = lengths(vocab);
        Arena::bytes_for::<[i32; 4]>(lengths.lists)
            + Arena::bytes_for::<i32>(lengths.counts)
            + Arena::bytes_for::<[i32; 4]>(lengths.states)
            + Arena::bytes_for::<[i32; 4]>(lengths.sums)
            + Arena::bytes_for::<i32>(lengths.ids)
    }

    /// Fills it with bytes that no kernel may take for its own.
    #[cfg(test)]
    pub(crate) fn poison(&self, gpu: &Gpu) -> Result<(), CudaError> {
        for block in [&self.lists, &self.states, &self.sums] {
            gpu.fill(block, 0xFF)?;
        }
        for block in [&self.counts, &self.ids] {
            gpu.fill(block, 0xFF)?;
        }
        Ok(())
    }

    /// Chooses a token for each row of `logits` `[rows, pitch]`, of which `vocab` count; the logits that the choices adjust are
    /// overwritten.
    ///
    /// # Panics
    /// If a choice breaks the rules of [`Choice`], or `logits` has another number of rows.
    pub(crate) fn draw(
        &self,
        (gpu, kernels): (&Gpu, &Kernels),
        logits: &Block<u16>,
        (vocab, pitch): (usize, usize),
        choices: &[Choice<'_>],
    ) -> Result<Tokens, CudaError> {
        assert_eq!(logits.len(), choices.len() * pitch, "a choice for each row");
        let mut found = Vec::with_capacity(choices.len());
        for (part, choices) in choices.chunks(ROWS).enumerate() {
            let rows = choices.len();
            let first = part * ROWS * pitch;
            let lists = lists(choices, vocab);
            let list = self.lists.part(0..lists.len());
            gpu.upload(&list, &lists)?;
            let ids = self.ids.part(0..rows);
            let draws = Draws {
                logits: &logits.part(first..first + rows * pitch),
                width: vocab,
                pitch,
                settings: &list.part(0..rows * SETTINGS_FOURS),
                changes: &list.part(rows * SETTINGS_FOURS..list.len()),
                counts: &self.counts,
                states: &self.states,
                sums: &self.sums,
                ids: &ids,
                any_cut: choices.iter().any(is_cut),
            };
            kernels.sampling.draw(gpu, draws)?;
            let mut read = vec![0; rows];
            gpu.download(&ids, &mut read)?;
            found.extend(read.into_iter().map(|id| u32::try_from(id).ok()));
        }
        Ok(found)
    }
}

/// Whether `top_k` or `top_p` cuts.
fn is_cut(choice: &Choice<'_>) -> bool {
    !choice.is_greedy() && (choice.top_k > 0 || choice.top_p < 1.0)
}

/// The kernels' `Settings` of each row, then all `Change`s.
fn lists(choices: &[Choice<'_>], vocab: usize) -> Vec<[i32; 4]> {
    let (mut settings, mut changes) = (Vec::new(), Vec::new());
    for choice in choices {
        check(choice);
        let first = changes.len();
        let known = choice
            .adjustments
            .iter()
            .filter(|change| (change.id as usize) < vocab);
        changes.extend(known.map(|change| {
            let [add, subtract] = [change.add, change.subtract].map(bits);
            [change.id.cast_signed(), add, subtract, 0]
        }));
        settings.extend(self::settings(choice, first..changes.len()));
    }
    settings.extend(changes);
    settings
}

fn check(choice: &Choice<'_>) {
    let ascend = choice
        .adjustments
        .windows(2)
        .all(|pair| pair[0].id < pair[1].id);
    assert!(
        ascend && choice.adjustments.len() <= ADJUSTMENTS_MAX,
        "adjustments by id, at most {ADJUSTMENTS_MAX}"
    );
    let Choice {
        temperature,
        top_p,
        min_p,
        number,
        ..
    } = choice;
    assert!(
        temperature.is_finite()
            && *temperature >= 0.0
            && *top_p > 0.0
            && (0.0..=1.0).contains(min_p)
            && (0.0..1.0).contains(number),
        "a choice within its rules"
    );
}

fn settings(choice: &Choice<'_>, changes: std::ops::Range<usize>) -> [[i32; 4]; SETTINGS_FOURS] {
    let int = |x: usize| i32::try_from(x).expect("fewer changes than 2^31");
    let [first, last] = [int(changes.start), int(changes.end)];
    // Exact: the number is a multiple of 2⁻⁵³.
    let number = (choice.number * 2f64.powi(53)) as u64;
    let [low, high] = [number as u32, (number >> 32) as u32].map(u32::cast_signed);
    if choice.is_greedy() {
        return [[bits(1.0), 1, 0, 0], [0, low, high, first], [last, 0, 0, 0]];
    }
    let top_k = i32::try_from(choice.top_k).unwrap_or(i32::MAX);
    let (share, shift) = match choice.top_p {
        top_p if top_p < 1.0 => fraction(top_p),
        _ => (0, 0),
    };
    [
        [bits(choice.temperature), top_k, share, shift],
        [bits(choice.min_p), low, high, first],
        [last, 0, 0, 0],
    ]
}

fn bits(x: f32) -> i32 {
    x.to_bits().cast_signed()
}

/// A number between 0 and 1 as an integer below 2²⁴ over a power of two.
fn fraction(x: f32) -> (i32, i32) {
    let bits = x.to_bits();
    let (exponent, digits) = ((bits >> 23).cast_signed(), (bits & 0x7f_ffff).cast_signed());
    match exponent {
        0 => (digits, 149),
        _ => (digits | 1 << 23, 150 - exponent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_fractions_of_powers_of_two() {
        for x in [
            0.95,
            0.5,
            1e-10,
            0.999_999_9,
            f32::MIN_POSITIVE,
            f32::from_bits(1),
            f32::from_bits(0x3f_ffff),
        ] {
            let (share, shift) = fraction(x);
            assert!((1..1 << 24).contains(&share), "{x}");
            let value = f64::from(share) * 2f64.powi(-shift);
            assert_eq!(value.to_bits(), f64::from(x).to_bits(), "{x}");
        }
    }
}
