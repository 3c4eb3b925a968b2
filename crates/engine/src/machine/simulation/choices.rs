//! Which streams' tokens the backend chooses, and which are chosen from logits: by a stream's own parameters, whatever its
//! company.

use descant_model::Adjustment;
use descant_testkit::fake::Asked;

use super::*;
use crate::Constraint;

/// A stream of this test.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Constrained,
    Greedy,
    Logprobs,
    Penalised,
}

/// A grammar that leaves one token.
struct Only(u32);

impl Constraint for Only {
    fn mask(&mut self, logits: &mut [f32]) {
        for (id, logit) in logits.iter_mut().enumerate() {
            if id != self.0 as usize {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn accept(&mut self, _: u32) {}
}

const TOKENS: usize = 12;

fn options(kind: Kind) -> GenerateOptions {
    let mut options = GenerateOptions {
        tokens_max: Some(TOKENS),
        ..GenerateOptions::default()
    };
    let sampling = &mut options.sampling;
    match kind {
        Kind::Constrained => options.constraint = Some(Box::new(Only(40))),
        Kind::Greedy => sampling.temperature = 0.0,
        Kind::Logprobs => sampling.logprobs = Some(1),
        Kind::Penalised => {
            (sampling.presence_penalty, sampling.frequency_penalty) = (0.5, 0.25);
            // Twice the same id, one beyond the vocabulary, not in order.
            sampling.bias = vec![(90, 1.5), (3, -2.0), (90, 0.5), (500, 1.0)];
            sampling.top_p = 0.9;
        }
    }
    options
}

/// Runs streams of these kinds together; gives the tokens of each and what each step asked of the backend.
fn run_together(kinds: &[Kind], fixed: Option<u32>) -> (Vec<Vec<u32>>, Vec<Vec<Asked>>) {
    // All four slots are theirs.
    let settings = Settings {
        decision_slots: 0,
        ..Settings::default()
    };
    let mut world = World::new(&settings, PLAIN);
    if let Some(id) = fixed {
        world.backend_script.fix_token(id);
    }
    let mut streams: Vec<TokenStream> = kinds
        .iter()
        .map(|kind| {
            let prompt = tokens(20, *kind as u32);
            world.handle.generate(prompt, options(*kind)).unwrap()
        })
        .collect();
    let mut asked = Vec::new();
    loop {
        while let Ok(event) = world.events.try_recv() {
            world.machine.note(event);
        }
        match world.machine.step() {
            Step::Ran => asked.push(world.backend_script.take_asked()),
            Step::Closed | Step::Idle(_) => break,
        }
    }
    let ids = streams.iter_mut().map(|stream| {
        let items = std::iter::from_fn(|| stream.wait_next().map(Result::unwrap));
        let ids = items.filter_map(|item| match item {
            StreamItem::Token(token) => Some(token.id),
            StreamItem::Finished(_) => None,
        });
        ids.collect()
    });
    (ids.collect(), asked)
}

/// Rows whose token the backend chose, and rows whose logits were read, of all steps.
fn counts(asked: &[Vec<Asked>]) -> (usize, usize) {
    let (mut chosen, mut read) = (0, 0);
    for asked in asked.iter().flatten() {
        match asked {
            Asked::Logits(rows) => read += rows.len(),
            Asked::Sample(rows) => chosen += rows.len(),
        }
    }
    (chosen, read)
}

use Kind::{Constrained, Greedy, Logprobs, Penalised};

#[test]
fn a_round_has_both_ways_and_reads_the_logits_of_those_who_need_them() {
    let kinds = [Constrained, Greedy, Logprobs, Penalised];
    let (ids, asked) = run_together(&kinds, None);
    assert!(ids.iter().all(|ids| ids.len() == TOKENS), "{ids:?}");
    assert_eq!(counts(&asked), (2 * TOKENS, 2 * TOKENS));
    // Once all four are running, a round has a row of each, in the order of their arrival.
    let together = asked.iter().filter(|asked| match &asked[..] {
        [Asked::Sample(chosen), Asked::Logits(read)] => {
            let rows: Vec<usize> = chosen.iter().map(|(row, _)| *row).collect();
            rows == [1, 3] && *read == [0, 2]
        }
        _ => false,
    });
    assert!(together.count() >= TOKENS - 2, "{asked:?}");
}

#[test]
fn the_same_request_goes_the_same_way_in_any_company() {
    for kind in [Constrained, Greedy, Logprobs, Penalised] {
        let (alone, asked) = run_together(&[kind], None);
        let own_way = counts(&asked);
        let is_chosen = matches!(kind, Greedy | Penalised);
        let wanted = if is_chosen { (TOKENS, 0) } else { (0, TOKENS) };
        assert_eq!(own_way, wanted, "{kind:?}");
        for other in [Constrained, Greedy, Logprobs, Penalised] {
            if other == kind {
                continue;
            }
            let (_, asked) = run_together(&[other], None);
            let others_way = counts(&asked);
            let (both, asked) = run_together(&[kind, other], None);
            assert_eq!(both[0], alone[0], "{kind:?} beside {other:?}");
            let sum = (own_way.0 + others_way.0, own_way.1 + others_way.1);
            assert_eq!(counts(&asked), sum, "{kind:?} beside {other:?}");
        }
    }
}

#[test]
fn what_the_backend_chose_reaches_the_client() {
    let (plain, _) = run_together(&[Greedy, Logprobs], None);
    let (fixed, _) = run_together(&[Greedy, Logprobs], Some(33));
    assert_eq!(fixed[0], [33; TOKENS]);
    assert_eq!(fixed[1], plain[1], "this one is not the backend's");
}

#[test]
fn bias_and_the_counts_of_tokens_given_reach_the_backend() {
    let (ids, asked) = run_together(&[Penalised], Some(33));
    assert_eq!(ids[0], [33; TOKENS]);
    for (given, asked) in asked.iter().enumerate() {
        let adjustment = |id, add, subtract| Adjustment { id, add, subtract };
        let mut wanted = vec![
            adjustment(3, -2.0, 0.0),
            adjustment(90, 2.0, 0.0),
            adjustment(500, 1.0, 0.0),
        ];
        if given > 0 {
            wanted.insert(1, adjustment(33, 0.0, 0.5 + 0.25 * given as f32));
        }
        assert_eq!(asked[..], [Asked::Sample(vec![(asked_row(asked), wanted)])]);
    }
}

/// The row of the only stream: the last of its prompt, then its only one.
fn asked_row(asked: &[Asked]) -> usize {
    match asked {
        [Asked::Sample(rows)] => rows[0].0,
        _ => usize::MAX,
    }
}

#[test]
fn a_stream_that_changed_very_many_logits_is_chosen_from_them() {
    let few = Sampling {
        bias: (0..descant_model::ADJUSTMENTS_MAX as u32)
            .map(|id| (id, 1.0))
            .collect(),
        ..Sampling::default()
    };
    let mut many = few.clone();
    many.bias.push((1_000_000, 1.0));
    assert!(Sampler::new(few, None).device_choice().is_some());
    assert!(Sampler::new(many, None).device_choice().is_none());
}
