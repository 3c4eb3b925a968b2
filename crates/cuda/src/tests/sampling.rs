//! The choice of tokens on the device: that of the host, token by token.
//!
//! Why equality may be asked for: the device's weights are multiples of 2^-44, so a cumulative sum over n tokens is off by at
//! most n 2^-45, and by some √n 2^-45 as roundings fall; the host's sums in f64 are off by less. A choice differs where the
//! number's share of the whole, or a cut's, falls between the two sums of the same tokens. Of a number drawn at random that is
//! at most n √n 2^-45, for n = 248,320 below 4e-6, for 8,193 below 3e-8. The numbers here come from fixed seeds.

use descant_model::choice::are_sound;
use descant_model::{Adjustment, Backend, Capacity, Choice, Pass, Segment, Slot};
use descant_release::Release;
use descant_testkit::fixtures::{self, RELEASES};

use super::{Device, Random, device, narrow, widen};
use crate::backend::sampling::SampleRoom;
use crate::{CudaBackend, Options};

const PLAIN: Choice<'_> = Choice {
    temperature: 1.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    number: 0.5,
    adjustments: &[],
};
const GREEDY: Choice<'_> = Choice {
    temperature: 0.0,
    ..PLAIN
};

/// What the host chooses.
fn on_host(mut logits: Vec<f32>, choice: &Choice<'_>) -> Option<u32> {
    if !are_sound(&logits) {
        return None;
    }
    choice.adjust(&mut logits);
    choice.choose(&logits)
}

/// What the device chooses, of each row of bf16 logits, in room that held other things. What stands behind a row is greater than
/// all of it.
fn on_device(device: &Device, rows: &[Vec<u16>], choices: &[Choice<'_>]) -> Vec<Option<u32>> {
    let width = rows[0].len();
    let pitch = width.next_multiple_of(8);
    let mut bits = vec![narrow(100.0); rows.len() * pitch];
    for (row, to) in rows.iter().zip(bits.chunks_exact_mut(pitch)) {
        to[..width].copy_from_slice(row);
    }
    let room = SampleRoom::new(&device.gpu, width).unwrap();
    room.poison(&device.gpu).unwrap();
    let found = room.draw(
        (&device.gpu, &device.kernels),
        &device.with(&bits),
        (width, pitch),
        choices,
    );
    found.unwrap()
}

#[track_caller]
fn compare(device: &Device, rows: &[Vec<u16>], choices: &[Choice<'_>]) {
    let found = on_device(device, rows, choices);
    for (index, (row, choice)) in rows.iter().zip(choices).enumerate() {
        let logits = row.iter().map(|bits| widen(*bits)).collect();
        let wanted = on_host(logits, choice);
        let changes = choice.adjustments.len();
        let choice = Choice {
            adjustments: &[],
            ..*choice
        };
        assert_eq!(
            found[index],
            wanted,
            "row {index} of {} logits, {changes} changed, {choice:?}",
            row.len()
        );
    }
}

/// Rows of logits as they come and as they do not.
fn rows_of(random: &mut Random, width: usize) -> Vec<Vec<u16>> {
    let map = |change: &mut dyn FnMut(usize) -> f32| -> Vec<u16> {
        (0..width).map(|id| narrow(change(id))).collect()
    };
    let mut unit = || random.unit();
    vec![
        // Much as a model's: a broad middle, a few far above it.
        map(&mut |_| {
            let sum = unit() + unit() + unit() + unit();
            4.0 * sum + 9.0 * unit().max(0.9).powi(40)
        }),
        // Few values, so that most are equal to many others.
        map(&mut |_| (3.0 * unit()).round()),
        // All equal.
        map(&mut |_| 1.5),
        // Half of them impossible, zeros of both signs.
        map(&mut |id| match id % 4 {
            0 | 1 => f32::NEG_INFINITY,
            2 => -0.0,
            _ => (4.0 * unit()).max(0.0),
        }),
        // One as good as certain.
        map(&mut |id| if id == width / 3 { 40.0 } else { 4.0 * unit() }),
        // Far apart, and next to nothing.
        map(&mut |id| 1e-3 * unit() * [1e6, 1e4, 1.0, 1e-30][id % 4]),
    ]
}

/// Changes of some logits: to the front, to the back, by next to nothing, to nothing.
fn changes(random: &mut Random, width: usize, count: usize) -> Vec<Adjustment> {
    let step = (width / count.max(1)).max(1);
    let change = |id: usize| Adjustment {
        id: id as u32,
        add: [0.3, 2.0, -100.0, 1e-4, 0.0][id % 5] * random.unit(),
        subtract: [0.0, 0.25, 1.0 / 3.0][id % 3] * (id % 7) as f32,
    };
    // The last is beyond the vocabulary.
    let ids = (0..count).map(|at| at * step).chain([width + 5]);
    ids.map(change).collect()
}

const TEMPERATURES: [f32; 5] = [0.0, 0.1, 0.7, 1.0, 2.0];
const TOP_PS: [f32; 5] = [1.0, 0.95, 0.5, 1e-6, 1e-42];
const MIN_PS: [f32; 4] = [0.0, 0.0, 0.05, 1.0];

/// A choice drawn from all that clients ask for.
fn choice<'a>(random: &mut Random, width: usize, lists: &'a [Vec<Adjustment>]) -> Choice<'a> {
    let mut pick = |count: usize| {
        let share = f64::from(random.unit()) / 2.0 + 0.5;
        ((share * count as f64) as usize).min(count - 1)
    };
    let top_ks = [0, 0, 1, 2, 20, 1000, width, width + 3];
    let (temperature, top_k) = (pick(5), pick(8));
    let (top_p, min_p, list) = (pick(5), pick(4), pick(lists.len()));
    let (high, low) = (pick(1 << 23), pick(1 << 22));
    Choice {
        temperature: TEMPERATURES[temperature],
        top_k: top_ks[top_k],
        top_p: TOP_PS[top_p],
        min_p: MIN_PS[min_p],
        // Forty-five random bits.
        number: (high as f64 + low as f64 / f64::from(1 << 22)) / f64::from(1 << 23),
        adjustments: &lists[list],
    }
}

/// Compares so many choices at each width.
fn compare_many(device: &Device, widths: &[usize], draws: usize) {
    let mut random = Random::new(11);
    for &width in widths {
        let kinds = rows_of(&mut random, width);
        let most = width.min(descant_model::ADJUSTMENTS_MAX - 1);
        let lists: Vec<Vec<Adjustment>> = [0, 0, 3, most]
            .map(|count| changes(&mut random, width, count.min(width)))
            .to_vec();
        let mut done = 0;
        while done < draws {
            // More than are chosen at one time, so that room is used again.
            let count = (draws - done).min(if width > 10_000 { 40 } else { 500 });
            let rows: Vec<Vec<u16>> = (0..count)
                .map(|index| kinds[(done + index) % kinds.len()].clone())
                .collect();
            let choices: Vec<Choice<'_>> = (0..count)
                .map(|_| choice(&mut random, width, &lists))
                .collect();
            compare(device, &rows, &choices);
            done += count;
        }
        println!("{draws} choices among {width}: all equal");
    }
}

#[test]
fn choices_among_few_are_the_hosts() {
    let Some(device) = device(false) else { return };
    compare_many(&device, &[1, 2, 7, 8, 9, 63, 1000], 3000);
}

#[test]
fn choices_at_the_ends_of_spans_are_the_hosts() {
    let Some(device) = device(false) else { return };
    compare_many(&device, &[2047, 2048, 2049, 8193], 1500);
}

#[test]
fn choices_among_a_whole_vocabulary_are_the_hosts() {
    let Some(device) = device(false) else { return };
    compare_many(&device, &[248_320], 400);
}

/// Few tokens keep their share: of many numbers, in order, each token comes as often as its weight says.
#[test]
fn every_token_has_its_share_of_the_numbers() {
    let Some(device) = device(false) else { return };
    let logits: Vec<u16> = [0.5f32, 2.0, -1.0, 1.25, 0.0].map(narrow).to_vec();
    let draws = 2000;
    let choices: Vec<Choice<'_>> = (0..draws)
        .map(|index| Choice {
            number: (f64::from(index) + 0.5) / f64::from(draws),
            ..PLAIN
        })
        .collect();
    let found = on_device(&device, &vec![logits.clone(); draws as usize], &choices);
    let weights: Vec<f64> = logits
        .iter()
        .map(|bits| f64::from(widen(*bits)).exp())
        .collect();
    let all: f64 = weights.iter().sum();
    for (id, weight) in (0..).zip(&weights) {
        let count = found.iter().filter(|found| **found == Some(id)).count();
        let wanted = f64::from(draws) * weight / all;
        // Both ends of its share fall between two numbers.
        assert!((count as f64 - wanted).abs() <= 1.0, "{id}: {count}");
    }
}

#[test]
fn logits_that_are_none_give_no_token_and_ties_go_to_the_first() {
    let Some(device) = device(false) else { return };
    let mut random = Random::new(3);
    for width in [1_usize, 7, 8, 9, 1000, 8193, 248_320] {
        let (last, middle) = (width - 1, width / 2);
        let special: [&[(usize, f32)]; 9] = [
            &[],
            &[(0, 9.0)],
            &[(last, 9.0)],
            // Equal ones, in other threads, warps and spans.
            &[(last, 9.0), (middle, 9.0), (width / 3, 9.0)],
            &[(middle, -0.0)],
            &[(middle, f32::NAN)],
            &[(last, f32::INFINITY)],
            &[(0, f32::NEG_INFINITY)],
            &[],
        ];
        let mut rows: Vec<Vec<u16>> = special
            .iter()
            .map(|special| {
                let mut row = random.bf16(width, 4.0);
                special
                    .iter()
                    .for_each(|(id, value)| row[*id] = narrow(*value));
                row
            })
            .collect();
        // Of the last row all are impossible.
        rows[8].fill(narrow(f32::NEG_INFINITY));
        let cut = Choice {
            top_k: 3,
            top_p: 0.9,
            ..PLAIN
        };
        // One that would hide a NaN or an infinity if it were looked at too late, and one that adds what is past all numbers.
        let hide = [middle, last].map(|id| Adjustment {
            id: id as u32,
            add: -100.0,
            subtract: 0.0,
        });
        let hide = &hide[usize::from(middle == last)..];
        let hidden = Choice {
            adjustments: hide,
            ..cut
        };
        let past = [Adjustment {
            id: 0,
            add: f32::MAX,
            subtract: -f32::MAX,
        }];
        let past = Choice {
            adjustments: &past,
            ..PLAIN
        };
        for choice in [GREEDY, PLAIN, cut, hidden, past] {
            compare(&device, &rows, &[choice; 9]);
        }
        let found = on_device(&device, &rows, &[GREEDY; 9]);
        assert!(found[5].is_none() && found[6].is_none() && found[8].is_none());
        assert_eq!(found[3], Some(width as u32 / 3), "of {width}");
    }
}

/// Room is used again and again, by rows of all kinds: the token of a row is that of the row alone.
#[test]
fn company_changes_no_token() {
    let Some(device) = device(false) else { return };
    let mut random = Random::new(8);
    let width = 5000;
    let kinds = rows_of(&mut random, width);
    let lists = vec![vec![], changes(&mut random, width, 900)];
    let rows: Vec<Vec<u16>> = (0..70).map(|at| kinds[at % kinds.len()].clone()).collect();
    let choices: Vec<Choice<'_>> = (0..70)
        .map(|_| choice(&mut random, width, &lists))
        .collect();
    let together = on_device(&device, &rows, &choices);
    for (index, (row, choice)) in rows.iter().zip(&choices).enumerate() {
        let alone = on_device(
            &device,
            std::slice::from_ref(row),
            std::slice::from_ref(choice),
        );
        assert_eq!(alone, [together[index]], "row {index}");
    }
}

#[test]
fn a_backend_chooses_what_its_logits_show() {
    if device(false).is_none() {
        return;
    }
    for name in RELEASES {
        let release = Release::open(&fixtures::release(name), None).unwrap();
        let capacity = Capacity {
            slots: 1,
            positions: 256,
            rows: 200,
        };
        let options = Options {
            ordinal: 0,
            capacity,
            snapshot_bytes: 0,
            portable: false,
        };
        let mut backend = CudaBackend::load(&release, options).unwrap();
        let vocab = release.config().vocab;
        let tokens: Vec<u32> = (0..150).map(|i| (i * 31 % vocab) as u32).collect();
        let segment = Segment {
            slot: Slot(0),
            start: 0,
            tokens: &tokens,
            pass: Pass::Prefill,
            mark: None,
        };
        backend.run(&[segment]).unwrap();
        // More rows than one product takes.
        let rows: Vec<usize> = (0..150).rev().collect();
        let mut logits = vec![f32::NAN; rows.len() * vocab];
        backend.logits(&rows, &mut logits).unwrap();
        let mut random = Random::new(4);
        let lists = vec![vec![], changes(&mut random, vocab, vocab.min(50))];
        let choices: Vec<Choice<'_>> = rows
            .iter()
            .map(|_| choice(&mut random, vocab, &lists))
            .collect();
        let wanted: Vec<Option<u32>> = logits
            .chunks_exact(vocab)
            .zip(&choices)
            .map(|(row, choice)| on_host(row.to_vec(), choice))
            .collect();
        let found = backend.sample(&rows, &choices).unwrap();
        assert_eq!(found, Some(wanted), "{name}");
        // What was overwritten is computed anew.
        let mut again = vec![f32::NAN; logits.len()];
        backend.logits(&rows, &mut again).unwrap();
        assert!(logits == again, "{name}: the logits were changed");
    }
}
