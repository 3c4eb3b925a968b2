//! How good answers are, given labels. Pure functions of probabilities; all sums in f64, in the order of the cases.

use std::collections::BTreeMap;

/// Bins of confidence, of equal width.
pub(crate) const BINS: usize = 15;

/// An answered question with its label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case {
    /// The question's id.
    pub(crate) id: String,
    /// Its kind: `noul`, `choice` or `score`.
    pub(crate) kind: &'static str,
    /// Its options, in the order of the numbers.
    pub(crate) options: Vec<String>,
    /// Natural logarithms of their probabilities.
    pub(crate) ln: Vec<f64>,
    /// The index of the option that is right.
    pub(crate) label: usize,
    /// The index of the option that was answered.
    pub(crate) answered: usize,
}

/// What a set of cases comes to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figures {
    pub(crate) cases: usize,
    /// Share of right answers.
    pub(crate) accuracy: f64,
    /// Mean of F1 over the classes that are a label or an answer; a class is an option of a question id.
    pub(crate) macro_f1: f64,
    /// Mean of `-ln p` of the right option.
    pub(crate) nll: f64,
    /// Mean of `Σ (p - y)²` over the options, from 0 to 2.
    pub(crate) brier: f64,
    /// Mean distance between confidence and accuracy over the bins, weighted by their cases.
    pub(crate) ece: f64,
    /// Greatest share of cases that can be answered at the target precision.
    pub(crate) coverage: f64,
    /// The confidence from which these are answered; none if there is no such share.
    pub(crate) threshold: Option<f64>,
    /// Mean distance of the expected level from the right one, over the scores.
    pub(crate) score_mae: Option<f64>,
    pub(crate) bins: Vec<Bin>,
}

/// The cases whose confidence lies in `(at / BINS, (at + 1) / BINS]`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bin {
    pub(crate) cases: usize,
    /// Mean confidence; 0 without cases.
    pub(crate) confidence: f64,
    /// Share of right answers; 0 without cases.
    pub(crate) accuracy: f64,
}

impl Case {
    /// The probability of the most probable option.
    fn confidence(&self) -> f64 {
        self.ln
            .iter()
            .copied()
            .fold(f64::NEG_INFINITY, f64::max)
            .exp()
    }

    fn is_right(&self) -> bool {
        self.answered == self.label
    }

    fn brier(&self) -> f64 {
        let wanted = |at: usize| if at == self.label { 1.0 } else { 0.0 };
        self.ln
            .iter()
            .enumerate()
            .map(|(at, ln)| (ln.exp() - wanted(at)).powi(2))
            .sum()
    }

    fn level_error(&self) -> f64 {
        let expected: f64 = self
            .ln
            .iter()
            .enumerate()
            .map(|(level, ln)| float(level) * ln.exp())
            .sum();
        (expected - float(self.label)).abs()
    }
}

/// Sums up cases.
///
/// # Panics
/// If there are none.
pub(crate) fn figures(cases: &[&Case], target_precision: f64) -> Figures {
    assert!(!cases.is_empty(), "figures of no cases");
    let bins = bins(cases);
    let (coverage, threshold) = coverage(cases, target_precision);
    let scores: Vec<f64> = cases
        .iter()
        .filter(|case| case.kind == "score")
        .map(|case| case.level_error())
        .collect();
    Figures {
        cases: cases.len(),
        accuracy: mean(cases.iter().map(|case| share(case.is_right()))),
        macro_f1: macro_f1(cases),
        nll: mean(cases.iter().map(|case| -case.ln[case.label])),
        brier: mean(cases.iter().map(|case| case.brier())),
        ece: bins
            .iter()
            .map(|bin| float(bin.cases) * (bin.accuracy - bin.confidence).abs())
            .sum::<f64>()
            / float(cases.len()),
        coverage,
        threshold,
        score_mae: (!scores.is_empty()).then(|| mean(scores.iter().copied())),
        bins,
    }
}

fn bins(cases: &[&Case]) -> Vec<Bin> {
    let mut bins = vec![Bin::default(); BINS];
    for case in cases {
        let confidence = case.confidence();
        let place = (1..BINS)
            .find(|&edge| confidence <= float(edge) / float(BINS))
            .unwrap_or(BINS);
        let bin = &mut bins[place - 1];
        bin.cases += 1;
        bin.confidence += confidence;
        bin.accuracy += share(case.is_right());
    }
    for bin in bins.iter_mut().filter(|bin| bin.cases > 0) {
        bin.confidence /= float(bin.cases);
        bin.accuracy /= float(bin.cases);
    }
    bins
}

/// The greatest share of cases, most confident first and equals together, of which at least `target` are right; and the
/// confidence of the last of them.
fn coverage(cases: &[&Case], target: f64) -> (f64, Option<f64>) {
    let mut ranked: Vec<(f64, bool)> = cases
        .iter()
        .map(|case| (case.confidence(), case.is_right()))
        .collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut right, mut best) = (0, (0.0, None));
    for (at, &(confidence, is_right)) in ranked.iter().enumerate() {
        right += usize::from(is_right);
        let taken = at + 1;
        let last_of_equals = ranked.get(taken).is_none_or(|next| next.0 < confidence);
        if last_of_equals && float(right) >= target * float(taken) {
            best = (float(taken) / float(ranked.len()), Some(confidence));
        }
    }
    best
}

/// Counts of one class.
#[derive(Default)]
struct Class {
    hits: usize,
    labelled: usize,
    answered: usize,
}

fn macro_f1(cases: &[&Case]) -> f64 {
    let mut classes: BTreeMap<(&str, &str), Class> = BTreeMap::new();
    for case in cases {
        let mut class = |option: usize, count: fn(&mut Class)| {
            count(
                classes
                    .entry((&case.id, &case.options[option]))
                    .or_default(),
            );
        };
        class(case.label, |class| class.labelled += 1);
        class(case.answered, |class| class.answered += 1);
        if case.is_right() {
            class(case.label, |class| class.hits += 1);
        }
    }
    mean(
        classes
            .values()
            .map(|class| 2.0 * float(class.hits) / float(class.labelled + class.answered)),
    )
}

fn share(is_so: bool) -> f64 {
    if is_so { 1.0 } else { 0.0 }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len();
    values.sum::<f64>() / float(count)
}

/// A count as a float.
pub(crate) fn float(count: usize) -> f64 {
    u32::try_from(count).expect("fewer than 2³² cases").into()
}

#[cfg(test)]
mod tests {
    use descant_decision::Value;
    use descant_decision::json::parse;

    use super::*;

    /// A few f64 sums of a hundred terms near 1 round by 1.1e-16 each; the oracle's printed digits are exact.
    const ROUNDINGS: f64 = 1e-12;

    fn number(value: &Value, key: &str) -> f64 {
        value.get(key).unwrap().as_number().unwrap().as_f64()
    }

    /// The vectors are made by `tools/eval/make_metrics.py` with scikit-learn and NumPy.
    #[test]
    fn figures_are_those_of_scikit_learn() {
        let vectors = parse(include_bytes!("metrics.json")).unwrap();
        for set in vectors.as_array().unwrap() {
            let cases: Vec<Case> = set
                .get("cases")
                .unwrap()
                .as_array()
                .unwrap()
                .iter()
                .map(case)
                .collect();
            let found = figures(&cases.iter().collect::<Vec<_>>(), number(set, "target"));
            let close = |key: &str, found: f64| {
                let wanted = number(set, key);
                assert!(
                    (found - wanted).abs() < ROUNDINGS,
                    "{key}: found {found}, wanted {wanted}"
                );
            };
            close("accuracy", found.accuracy);
            close("macro_f1", found.macro_f1);
            close("nll", found.nll);
            close("brier", found.brier);
            close("ece", found.ece);
            close("coverage", found.coverage);
            if found.coverage > 0.0 {
                close("threshold", found.threshold.unwrap());
            }
            if let Some(mae) = found.score_mae {
                close("score_mae", mae);
            }
        }
    }

    fn case(value: &Value) -> Case {
        let p = value.get("p").unwrap().as_array().unwrap();
        let p: Vec<f64> = p.iter().map(|p| p.as_number().unwrap().as_f64()).collect();
        let place = |key: &str| {
            usize::try_from(
                value
                    .get(key)
                    .unwrap()
                    .as_number()
                    .unwrap()
                    .as_u64()
                    .unwrap(),
            )
        };
        let kind = value.get("kind").unwrap().as_str().unwrap();
        Case {
            id: value.get("id").unwrap().as_str().unwrap().to_owned(),
            kind: ["noul", "choice", "score"]
                .into_iter()
                .find(|name| *name == kind)
                .unwrap(),
            options: (0..p.len()).map(|at| at.to_string()).collect(),
            ln: p.iter().map(|p| p.ln()).collect(),
            label: place("label").unwrap(),
            answered: crate::reading::top(&p),
        }
    }
}
