//! In which manners a record is answered: every combination of the axes.

use std::fmt;

use clap::ValueEnum;

/// One way to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    pub(crate) threads: usize,
    /// Most rows of a prompt in one round.
    pub(crate) piece: usize,
    pub(crate) cache: Cache,
}

/// What the state cache does for a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cache {
    /// It is off.
    Cold,
    /// It is on, and the prompt leaves its own snapshot.
    #[value(skip)]
    Filling,
    /// It gives the prompt's whole state.
    Hit,
}

/// Who else is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Company {
    /// Nobody.
    Alone,
    /// Three other records.
    #[value(name = "3")]
    Three,
    /// Eight other records.
    #[value(name = "8")]
    Eight,
    /// A short, a middle and a long record.
    Mixed,
    /// Long records whose clients leave in their middle.
    Cancelled,
    /// Chat streams that give tokens, and a record.
    Chat,
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cache::Cold => "cold",
            Cache::Filling => "filling",
            Cache::Hit => "hit",
        })
    }
}

impl fmt::Display for Company {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Company::Alone => "alone",
            Company::Three => "3",
            Company::Eight => "8",
            Company::Mixed => "mixed",
            Company::Cancelled => "cancelled",
            Company::Chat => "chat",
        })
    }
}

impl fmt::Display for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Manner {
            threads,
            piece,
            cache,
        } = self;
        write!(f, "threads {threads}, pieces {piece}, cache {cache}")
    }
}
