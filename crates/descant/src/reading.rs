//! Replies read back: what was said about each question.

use descant_decision::Value;

/// What a reply says about a question.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reading {
    /// The options, in the order of the numbers.
    pub(crate) options: Vec<String>,
    /// Natural logarithms of the unrounded probabilities, from logits where there are any.
    pub(crate) exact: Option<Vec<f64>>,
    /// Probabilities as printed.
    pub(crate) printed: Option<Vec<f64>>,
}

/// What stands for a printed 0: half of the last of four decimal places.
pub(crate) const PRINTED_FLOOR: f64 = 5e-5;

/// Reads the answers of a reply, in its order.
///
/// # Errors
/// What is wrong, naming the question.
pub(crate) fn readings(reply: &Value) -> Result<Vec<(String, Reading)>, String> {
    let answers = reply.get("answers").and_then(Value::as_object);
    let answers = answers.ok_or_else(|| match reply.get("error") {
        Some(error) => format!("no answers but the error {error}"),
        None => "no answers".to_owned(),
    })?;
    let read = |(id, answer): (&str, &Value)| match reading(answer) {
        Some(reading) => Ok((id.to_owned(), reading)),
        None => Err(format!("answers.{id} has no usable probabilities")),
    };
    answers.iter().map(read).collect()
}

/// Tokens of the prompt, where the reply says so.
pub(crate) fn input_tokens(reply: &Value) -> Option<u64> {
    reply
        .get("usage")?
        .get("input_tokens")?
        .as_number()?
        .as_u64()
}

fn reading(answer: &Value) -> Option<Reading> {
    let printed = printed(answer);
    let Some(raw) = answer.get("raw") else {
        let (options, p) = printed?.into_iter().unzip();
        return checked(Reading {
            options,
            exact: None,
            printed: Some(p),
        });
    };
    let options: Vec<String> = raw
        .get("options")?
        .as_array()?
        .iter()
        .map(|option| option.as_str().map(str::to_owned))
        .collect::<Option<_>>()?;
    let exact = match raw.get("logits") {
        Some(logits) => log_softmax(&numbers(logits)?),
        None => logarithms(
            &numbers(raw.get("probabilities")?)?,
            f64::from(f32::MIN_POSITIVE),
        ),
    };
    let printed = printed.and_then(|printed| {
        let of = |name: &String| {
            printed
                .iter()
                .find(|(found, _)| found == name)
                .map(|(_, p)| *p)
        };
        options.iter().map(of).collect::<Option<Vec<_>>>()
    });
    checked(Reading {
        options,
        exact: Some(exact),
        printed,
    })
}

/// Nothing where counts differ or a number is no logarithm or probability.
fn checked(reading: Reading) -> Option<Reading> {
    let fits = |numbers: &Option<Vec<f64>>, allowed: fn(f64) -> bool| {
        let of = |numbers: &Vec<f64>| {
            numbers.len() == reading.options.len() && numbers.iter().all(|&x| allowed(x))
        };
        numbers.as_ref().is_none_or(of)
    };
    let good = !reading.options.is_empty()
        && fits(&reading.exact, f64::is_finite)
        && fits(&reading.printed, |p| (0.0..=1.0).contains(&p));
    good.then_some(reading)
}

fn printed(answer: &Value) -> Option<Vec<(String, f64)>> {
    let number = |value: &Value| value.as_number().map(|number| number.as_f64());
    if let Some(yes) = answer.get("noul") {
        let yes = number(yes)?;
        return Some(vec![
            ("true".to_owned(), yes),
            ("false".to_owned(), 1.0 - yes),
        ]);
    }
    let entries = answer.get("probabilities")?.as_object()?.iter();
    entries
        .map(|(name, p)| Some((name.to_owned(), number(p)?)))
        .collect()
}

fn numbers(value: &Value) -> Option<Vec<f64>> {
    value
        .as_array()?
        .iter()
        .map(|x| x.as_number().map(|number| number.as_f64()))
        .collect()
}

/// `x - ln Σ exp x`, in f64, the largest subtracted first.
pub(crate) fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|x| (x - largest).exp()).sum();
    logits.iter().map(|x| x - largest - sum.ln()).collect()
}

/// Logarithms of probabilities that are raised to `floor` and then sum to 1.
pub(crate) fn logarithms(p: &[f64], floor: f64) -> Vec<f64> {
    let raised: Vec<f64> = p.iter().map(|&p| p.max(floor)).collect();
    let sum: f64 = raised.iter().sum();
    raised.iter().map(|p| (p / sum).ln()).collect()
}

/// The index of the largest number, the first of equals.
pub(crate) fn top(numbers: &[f64]) -> usize {
    (1..numbers.len()).fold(0, |best, at| {
        if numbers[at] > numbers[best] {
            at
        } else {
            best
        }
    })
}

#[cfg(test)]
mod tests {
    use descant_decision::json::parse_str;

    use super::*;

    fn only(answer: &str) -> Result<Reading, String> {
        let reply = parse_str(&format!(r#"{{"answers": {{"a": {answer}}}}}"#)).unwrap();
        readings(&reply).map(|mut readings| readings.remove(0).1)
    }

    #[test]
    fn logits_are_taken_before_probabilities() {
        let reading = only(
            r#"{"noul": 0.75, "raw": {"options": ["true", "false"], "probabilities": [0.5, 0.5], "logits": [0, 0.0]}}"#,
        )
        .unwrap();
        assert_eq!(reading.exact.unwrap(), [-(2.0_f64.ln()); 2]);
        assert_eq!(reading.printed.unwrap(), [0.75, 0.25]);
    }

    #[test]
    fn printed_numbers_follow_the_raw_options() {
        let reading = only(
            r#"{"probabilities": {"b": 0.9, "a": 0.1}, "raw": {"options": ["a", "b"], "logits": [1, 2]}}"#,
        )
        .unwrap();
        assert_eq!(reading.printed.unwrap(), [0.1, 0.9]);
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        for wrong in [
            "{}",
            r#"{"noul": 2}"#,
            r#"{"probabilities": {}}"#,
            r#"{"raw": {"options": ["a", "b"], "logits": [1]}}"#,
        ] {
            assert!(only(wrong).unwrap_err().contains("answers.a"), "{wrong}");
        }
    }
}
