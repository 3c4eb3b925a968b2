//! The fixed pieces of the Clef prompt. Each is tokenised alone, so that where one ends is part of the format.
//!
//! The words are Cloudflare's (Apache-2.0, see THIRD_PARTY_NOTICES.md): the model was trained on them.

/// Opens the prompt; the rendered state follows.
pub(crate) const PREFIX: &str = "<|im_start|>system\n\
    Read the complete state and schema. Decide every field jointly. \
    Each answer must be exactly one of that field's allowed options.\
    <|im_end|>\n<|im_start|>user\nSTATE:\n";

/// Ends the state and opens the schema.
pub(crate) const SCHEMA: &str = "\n\nSCHEMA FIELDS:\n";

/// Ends a question's instructions and opens its options.
pub(crate) const OPTIONS: &str = "\nALLOWED OPTIONS:\n";

/// Ends an option.
pub(crate) const OPTION_END: &str = "\n";

/// Ends a question.
pub(crate) const FIELD_END: &str = "END FIELD\n";

/// Ends the prompt.
pub(crate) const SUFFIX: &str =
    "\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nJOINT SCHEMA DECISIONS:";

/// What `true` means where a noul does not say.
pub(crate) const NOUL_TRUE: &str = "The proposition is true or the answer is yes.";

/// What `false` means where a noul does not say.
pub(crate) const NOUL_FALSE: &str = "The proposition is false or the answer is no.";

/// Opens a question; its instructions follow. Questions count from 1.
pub(crate) fn field(number: usize, id: &str, kind: &str) -> String {
    format!("\nFIELD {number}\nID: {id}\nTYPE: {kind}\nINSTRUCTION: ")
}

/// Opens an option; its JSON text follows. Options count from 1.
pub(crate) fn option(number: usize) -> String {
    format!("OPTION {number}: ")
}
