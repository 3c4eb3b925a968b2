//! Workers AI's route: a System One body in, an envelope out.
//!
//! `POST /client/v4/accounts/{account}/ai/run/{model}`, for any account: clients that are wired to that path need only
//! another base address.

use descant_decision::Value;
use descant_decision::json::Object;

use crate::systemone::Reply;

/// A reply in its envelope.
pub(crate) fn envelope(reply: Reply) -> Reply {
    let empty = || Value::Array(Vec::new());
    Reply::new(
        Object::new()
            .with("result", reply.into_value())
            .with("success", true)
            .with("errors", empty())
            .with("messages", empty())
            .into(),
    )
}
