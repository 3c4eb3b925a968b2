//! What can go wrong while computing, none of it the request's fault.

use std::error::Error;
use std::fmt;

/// A fault of ours or of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Defect {
    /// The device failed; the text is the driver's own.
    Device {
        /// What the driver said.
        message: String,
    },
    /// A question's logits are not finite: the weights or the hidden rows hold NaN or infinity.
    NonFinite {
        /// Id of the question.
        question: String,
    },
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Defect::Device { message } => write!(f, "the device failed: {message}"),
            Defect::NonFinite { question } => write!(
                f,
                "question {question:?} has a logit that is not finite; the weights are damaged or overflow"
            ),
        }
    }
}

impl Error for Defect {}
