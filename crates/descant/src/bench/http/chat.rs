//! The gaps between the tokens of a greedy chat stream, before and while a long decision runs.

use std::io::{BufRead, BufReader};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use descant_decision::Value;
use descant_decision::json::{Object, parse, to_json};

use super::client::{Answer, Client, said};
use super::times::{ms, ms_value, percentile};

/// What a stream went through.
#[derive(Debug)]
pub(crate) struct Gaps {
    /// Gaps that ended before the decision was sent.
    idle: Vec<Duration>,
    /// Gaps that the decision's time touches.
    during: Vec<Duration>,
    /// The decision beside the stream.
    beside: Asked,
    /// One of about the same length alone.
    alone: Asked,
    /// Whether the stream gave tokens until the decision was answered.
    whole: bool,
}

/// A decision.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// Tokens of its prompt.
    tokens: u64,
    took: Duration,
    /// Its longest round, where the server says so.
    round: Option<Duration>,
}

/// A stream as it comes: when each piece of text was there.
#[derive(Default)]
struct Watched {
    texts: Mutex<Vec<Instant>>,
    stop: AtomicBool,
    ended: AtomicBool,
}

/// Measures the gaps; `None` if the server has no chat.
///
/// # Errors
/// What went wrong.
pub(crate) fn gaps(client: &Client, long: &[String; 2]) -> Result<Option<Gaps>, String> {
    let refusals = AtomicUsize::new(0);
    let alone = Asked::of(&client.decided(&long[0], &refusals)?);
    let model = client.model().unwrap_or_default();
    let mut best: Option<Gaps> = None;
    // A model may end its text soon; another question may have a longer answer.
    for subject in SUBJECTS {
        let watched = Watched::default();
        let measured = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let read = watched.read(client, &model, subject);
                watched.ended.store(true, Ordering::Release);
                read
            });
            let measured = watched.meet(client, &long[1], &refusals);
            watched.stop.store(true, Ordering::Release);
            let read = reader.join().expect("a reader does not panic");
            read.map(|served| served.then_some(measured))
        })?;
        let Some(measured) = measured else {
            return Ok(None);
        };
        let (sent, beside) = measured?;
        let texts = watched.texts.into_inner().expect("a reader did not panic");
        let gaps = Gaps::between(&texts, sent, beside, alone);
        let whole = gaps.whole;
        if best
            .as_ref()
            .is_none_or(|best| gaps.during.len() > best.during.len())
        {
            best = Some(gaps);
        }
        if whole {
            break;
        }
    }
    Ok(best)
}

impl Watched {
    /// Reads a stream until it ends or nobody needs it any more; whether the server has chat at all.
    fn read(&self, client: &Client, model: &str, subject: &str) -> Result<bool, String> {
        let message = Object::new()
            .with("role", "user")
            .with("content", format!("Tell me all you know about {subject}."));
        let body = Object::new()
            .with("model", model)
            .with("messages", vec![Value::from(message)])
            .with("stream", true)
            .with("temperature", 0);
        // Not part of OpenAI's interface, but many servers have it: the text goes on behind the model's own end.
        let endless = to_json(&body.clone().with("ignore_eos", true).into());
        let mut reply = client.post(PATH, &endless)?;
        if matches!(reply.status().as_u16(), 400 | 422) {
            let bounded = body.with("max_tokens", TOKENS_MAX);
            reply = client.post(PATH, &to_json(&bounded.into()))?;
        }
        match reply.status().as_u16() {
            200 => {}
            404 | 405 | 501 => return Ok(false),
            status => return Err(format!("chat: {}", said(status, &mut reply))),
        }
        let reader = BufReader::new(reply.into_body().into_reader());
        for line in reader.lines() {
            let line = line.map_err(|error| format!("chat: {error}"))?;
            if line.strip_prefix("data:").is_some_and(has_text) {
                self.texts
                    .lock()
                    .expect("nobody panics")
                    .push(Instant::now());
            }
            if self.stop.load(Ordering::Acquire) {
                break;
            }
        }
        Ok(true)
    }

    /// Lets the stream run a while, then sends a decision beside it: when it was sent, and what came of it.
    fn meet(
        &self,
        client: &Client,
        long: &str,
        refusals: &AtomicUsize,
    ) -> Result<(Instant, Asked), String> {
        let started = Instant::now();
        while self.count() < TEXTS_BEFORE && !self.ended.load(Ordering::Acquire) {
            if started.elapsed() > BEGIN_WAIT_MAX {
                return Err(format!(
                    "chat: {} pieces of text in {} s",
                    self.count(),
                    BEGIN_WAIT_MAX.as_secs()
                ));
            }
            thread::sleep(Duration::from_millis(1));
        }
        if self.count() == 0 {
            return Err("chat: the stream ended without text".to_owned());
        }
        let sent = Instant::now();
        let answer = client.decided(long, refusals)?;
        let asked = Asked {
            // Refusals before it are part of the time beside the stream.
            took: sent.elapsed(),
            ..Asked::of(&answer)
        };
        Ok((sent, asked))
    }

    fn count(&self) -> usize {
        self.texts.lock().expect("nobody panics").len()
    }
}

/// Whether an event of a stream brings text.
fn has_text(event: &str) -> bool {
    let texts = || {
        let event = parse(event.trim().as_bytes()).ok()?;
        let delta = event
            .get("choices")?
            .as_array()?
            .first()?
            .get("delta")?
            .clone();
        ["content", "reasoning_content"].iter().find_map(|key| {
            let text = delta.get(key)?.as_str()?;
            (!text.is_empty()).then_some(())
        })
    };
    texts().is_some()
}

impl Asked {
    fn of(answer: &Answer) -> Asked {
        Asked {
            tokens: answer.tokens(),
            took: answer.took,
            round: answer.round,
        }
    }
}

impl Gaps {
    fn between(texts: &[Instant], sent: Instant, beside: Asked, alone: Asked) -> Gaps {
        let answered = sent + beside.took;
        let (mut idle, mut during) = (Vec::new(), Vec::new());
        for pair in texts.windows(2) {
            let gap = pair[1] - pair[0];
            if pair[1] <= sent {
                idle.push(gap);
            } else if pair[0] < answered {
                during.push(gap);
            }
        }
        Gaps {
            idle,
            during,
            beside,
            alone,
            whole: texts.last().is_some_and(|last| *last >= answered),
        }
    }

    /// What a gap may last if it spans one round with a piece of the decision and one step of the stream alone: the
    /// longest of each.
    fn bound(&self) -> Option<Duration> {
        Some(self.beside.round? + percentile(&self.idle, 1.0))
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let longest = |gaps: &[Duration]| ms(percentile(gaps, 1.0));
        let median = |gaps: &[Duration]| ms(percentile(gaps, 0.5));
        let mut lines = vec![
            format!(
                "{:<34}{:>8}{:>11}{:>12}",
                "a greedy chat stream", "gaps", "median ms", "longest ms"
            ),
            format!(
                "{:<34}{:>8}{:>11.3}{:>12.2}",
                "alone",
                self.idle.len(),
                median(&self.idle),
                longest(&self.idle)
            ),
            format!(
                "{:<34}{:>8}{:>11.3}{:>12.2}",
                format!("beside a decision of {} tokens", self.beside.tokens),
                self.during.len(),
                median(&self.during),
                longest(&self.during)
            ),
        ];
        lines.push(format!(
            "the decision took {:.1} ms beside the stream; one of {} tokens takes {:.1} ms alone",
            ms(self.beside.took),
            self.alone.tokens,
            ms(self.alone.took)
        ));
        if let (Some(beside), Some(alone), Some(bound)) =
            (self.beside.round, self.alone.round, self.bound())
        {
            lines.push(format!(
                "its longest round, a piece and the stream's token, took {:.2} ms; alone, {:.2} ms; with the stream's longest \
                 step alone: {:.2} ms",
                ms(beside),
                ms(alone),
                ms(bound)
            ));
        }
        if !self.whole {
            lines.push("the stream ended before the decision".to_owned());
        }
        lines
    }

    pub(crate) fn value(&self) -> Value {
        let gaps = |gaps: &[Duration]| {
            Object::new()
                .with("gaps", gaps.len())
                .with("median_ms", ms_value(percentile(gaps, 0.5)))
                .with("p95_ms", ms_value(percentile(gaps, 0.95)))
                .with("longest_ms", ms_value(percentile(gaps, 1.0)))
        };
        Object::new()
            .with("alone", gaps(&self.idle))
            .with("beside_decision", gaps(&self.during))
            .with("decision_tokens", self.beside.tokens)
            .with("decision_ms", ms_value(self.beside.took))
            .with("decision_alone_ms", ms_value(self.alone.took))
            .with("longest_piece_ms", self.beside.round.map(ms_value))
            .with("longest_piece_alone_ms", self.alone.round.map(ms_value))
            .with("piece_and_step_ms", self.bound().map(ms_value))
            .with("stream_outlasted_decision", self.whole)
            .into()
    }
}

/// Where chat is served.
const PATH: &str = "/v1/chat/completions";
/// Pieces of text before the decision is sent.
const TEXTS_BEFORE: usize = 32;
/// Longest time until they are there.
const BEGIN_WAIT_MAX: Duration = Duration::from_secs(120);
/// Tokens that a stream may have where it must say so; it is left when the decision is answered.
const TOKENS_MAX: usize = 8192;
/// What a model is asked about.
const SUBJECTS: [&str; 4] = ["the sea", "bread", "trains in winter", "numbers"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_counts_as_text() {
        assert!(has_text(
            r#" {"choices":[{"index":0,"delta":{"content":"a"}}]}"#
        ));
        for silent in [
            "[DONE]",
            r#"{"choices":[]}"#,
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
        ] {
            assert!(!has_text(silent), "{silent}");
        }
    }

    #[test]
    fn gaps_are_told_apart_by_the_decision() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let texts = [at(0), at(10), at(20), at(50), at(90), at(100)];
        let asked = |took| Asked {
            tokens: 2048,
            took: Duration::from_millis(took),
            round: Some(Duration::from_millis(35)),
        };
        let gaps = Gaps::between(&texts, at(25), asked(55), asked(60));
        let ms = |gaps: &[Duration]| gaps.iter().map(Duration::as_millis).collect::<Vec<_>>();
        assert_eq!(ms(&gaps.idle), [10, 10]);
        assert_eq!(ms(&gaps.during), [30, 40]);
        assert!(gaps.whole);
        assert_eq!(gaps.bound(), Some(Duration::from_millis(35 + 10)));
        let short = Gaps::between(&texts[..3], at(25), asked(55), asked(60));
        assert!(!short.whole && short.during.is_empty());
    }
}
