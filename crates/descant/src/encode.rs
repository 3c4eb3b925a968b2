//! `descant encode`: a request's token ids and spans.

use descant_decision::json::{Object, to_json};
use descant_decision::{Encoded, EncodedQuestion, Span, Value};
use descant_server::Confidence;

use crate::args::Encode;
use crate::decide::each;
use crate::failure::Failure;
use crate::load;

pub(crate) fn run(args: &Encode) -> Result<(), Failure> {
    let place = load::place(args.model.model.as_deref())?;
    let tokenizer = place.tokenizer()?;
    let desk = load::desk(
        load::any_name(&place),
        tokenizer,
        (&args.accept, &args.length),
        Confidence::Auto,
    );
    each(&args.input, |body| {
        let encoded = desk.read_encoded(body)?;
        load::say_truncated(encoded.truncated);
        Ok(to_json(&value(&encoded)))
    })
}

/// What is printed: the ids, and for each question its spans, half open, counted from the prompt's start.
fn value(encoded: &Encoded) -> Value {
    Object::new()
        .with("input_ids", encoded.ids.iter().copied().collect::<Value>())
        .with(
            "questions",
            encoded.questions.iter().map(question).collect::<Value>(),
        )
        .into()
}

fn question(question: &EncodedQuestion) -> Object {
    let options = &question.options;
    Object::new()
        .with("id", question.id.as_str())
        .with("type", question.kind.name())
        .with("question_span", span(&question.span))
        .with(
            "option_spans",
            options
                .iter()
                .map(|option| span(&option.span))
                .collect::<Value>(),
        )
        .with(
            "option_ids",
            options
                .iter()
                .map(|option| option.id.as_str())
                .collect::<Value>(),
        )
}

fn span(span: &Span) -> Value {
    [span.start, span.end].into_iter().collect()
}
