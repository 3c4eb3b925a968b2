//! Means over spans: of the normalised hidden rows while they pass, and of the output embedding's rows.
//!
//! Shapes: rows `[n, H]` f32; sums and means `[spans, H]` f64.
//! Sum order: rows of a span in their order, so that neither cuts nor threads matter.

use descant_decision::{Encoded, Span};
use descant_model::HeadWeights;
use descant_release::LoadError;

use crate::Pool;

/// Sums over the spans of a record: its questions' first, then its options'.
#[derive(Debug)]
pub(super) struct SpanSums {
    width: usize,
    questions: usize,
    spans: Vec<Span>,
    /// `[spans, H]`
    sums: Vec<f64>,
}

/// The means of a record's spans.
#[derive(Debug)]
pub(super) struct SpanMeans {
    /// q_k, `[questions, H]`
    pub(super) questions: Vec<f64>,
    /// c_o, `[options, H]`
    pub(super) options: Vec<f64>,
}

impl SpanSums {
    /// Sums of rows of H = `width` values over all spans of a record.
    pub(super) fn new(encoded: &Encoded, width: usize) -> SpanSums {
        let questions = encoded
            .questions
            .iter()
            .map(|question| question.span.clone());
        let spans: Vec<Span> = questions.chain(option_spans(encoded).cloned()).collect();
        let sums = vec![0.0; spans.len() * width];
        SpanSums {
            width,
            questions: encoded.questions.len(),
            spans,
            sums,
        }
    }

    /// First row of the first span.
    pub(super) fn first_row(&self) -> usize {
        self.spans
            .iter()
            .map(|span| span.start)
            .min()
            .unwrap_or(usize::MAX)
    }

    /// Adds rows, `[n, H]`, the first of which is the prompt's row `start`.
    pub(super) fn absorb(&mut self, pool: &Pool, start: usize, rows: &[f32]) {
        let (width, spans) = (self.width, &self.spans);
        let end = start + rows.len() / width;
        if !spans
            .iter()
            .any(|span| span.start < end && start < span.end)
        {
            return;
        }
        pool.chunks(&mut self.sums, width, |index, sums| {
            for row in spans[index].start.max(start)..spans[index].end.min(end) {
                add(sums, &rows[(row - start) * width..][..width]);
            }
        });
    }

    /// Divides by the spans' lengths, once all their rows were added.
    pub(super) fn means(self) -> SpanMeans {
        let mut questions = self.sums;
        for (sums, span) in questions.chunks_exact_mut(self.width).zip(&self.spans) {
            let count = span.len() as f64;
            sums.iter_mut().for_each(|sum| *sum /= count);
        }
        let options = questions.split_off(self.questions * self.width);
        SpanMeans { questions, options }
    }
}

/// x_o of every option: the mean of the output embedding's rows of its tokens, `[options, H]`. Rows are read from the
/// file's map, none is kept.
///
/// # Errors
/// [`LoadError::TensorMissing`].
///
/// # Panics
/// If a token has no row; a release's tokenizer gives no such token.
pub(super) fn lexical_means(
    pool: &Pool,
    weights: &dyn HeadWeights,
    encoded: &Encoded,
    width: usize,
) -> Result<Vec<f64>, LoadError> {
    let embedding = weights.lexical_embedding()?;
    let spans: Vec<&Span> = option_spans(encoded).collect();
    let mut means = vec![0.0; spans.len() * width];
    pool.chunks(&mut means, width, |index, mean| {
        let ids = &encoded.ids[spans[index].clone()];
        let mut row = vec![0.0; width];
        for id in ids {
            let id = *id as usize;
            embedding.copy_rows_f32_into(id..id + 1, &mut row);
            add(mean, &row);
        }
        let count = ids.len() as f64;
        mean.iter_mut().for_each(|sum| *sum /= count);
    });
    Ok(means)
}

/// The span of every option of all questions, in order.
fn option_spans(encoded: &Encoded) -> impl Iterator<Item = &Span> {
    encoded
        .questions
        .iter()
        .flat_map(|question| question.options.iter().map(|option| &option.span))
}

/// `sums += x`.
fn add(sums: &mut [f64], x: &[f32]) {
    sums.iter_mut()
        .zip(x)
        .for_each(|(sum, x)| *sum += f64::from(*x));
}
