//! `descant batch`: a file of requests becomes a file of replies, whatever happens in between.
//!
//! OUT holds replies and nothing else. What it answers stands in OUT.descant.json, written before OUT is made: a run
//! that continues OUT must have the same input, model and flags, or it is refused. Lines of OUT are counted, the rest
//! of a last one is cut, and the run goes on with the request after them. The same request gives the same bits, so it
//! does not show where a run was killed.

use std::path::{Path, PathBuf};

use crate::args::{Batch, Shard};
use crate::backend;
use crate::failure::Failure;
use crate::journal::{self, Journal, digest_of_model, digest_of_records, identity};
use crate::load::{self, Place};
use crate::meter::Meter;
use crate::output::{Output, error_line};
use crate::several::{Items, Runner, Setup};

/// Where replies go.
enum Sink {
    File(Journal),
    Stdout(Output),
}

/// The part of the input that a run answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Records before it.
    start: u64,
    /// Its records; none where the input is not known to its end.
    count: Option<u64>,
}

pub(crate) fn run(args: &Batch) -> Result<(), Failure> {
    let place = load::place(args.model.model.as_deref())?;
    let (mut sink, part, done) = open(args, &place)?;
    if part.count.is_some_and(|count| done.lines > count) {
        let fault = "it has more lines than there are requests";
        return Err(Failure::Resume {
            file: args.out.clone(),
            fault,
        });
    }
    let mut refused = done.refused;
    if part.count != Some(done.lines) {
        let runner = Runner::load(&setup(args, &place))?;
        let meter = Meter::start(done.lines, part.count);
        let skip = usize::try_from(part.start + done.lines).unwrap_or(usize::MAX);
        let take = part.count.map_or(usize::MAX, |count| {
            usize::try_from(count - done.lines).unwrap_or(usize::MAX)
        });
        let items = Items::open(&args.input)?.skip(skip).take(take);
        let answered = runner.each(items, |_, reply| {
            let text = match reply {
                Ok(reply) => reply.compact(),
                Err(error) => {
                    refused += 1;
                    error_line(&error)
                }
            };
            meter.one();
            sink.line(&text)
        });
        runner.stop();
        answered?;
    }
    sink.end()?;
    if refused > 0 {
        crate::say(&format!(
            "{refused} requests were refused; each says why in its place"
        ));
    }
    Ok(())
}

fn setup<'a>(args: &'a Batch, place: &'a Place) -> Setup<'a> {
    Setup {
        place,
        clef: args.model.clef.clef.as_deref(),
        accept: &args.accept,
        length: &args.length,
        compute: &args.compute,
        confidence: args.confidence.into(),
        raw: args.raw,
    }
}

/// What an output holds already.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    lines: u64,
    refused: u64,
}

fn open(args: &Batch, place: &Place) -> Result<(Sink, Part, Done), Failure> {
    let is_pipe = |path: &Path| path == Path::new("-");
    if is_pipe(&args.input) || is_pipe(&args.out) {
        return open_pipe(args, is_pipe(&args.out));
    }
    let (digest, lines) = digest_of_records(&args.input)?;
    let part = part(lines, args.shard);
    let clef = args.model.clef.clef.as_deref();
    let flags = format!(
        "{:?} {:?} {:?} {} {} {:?}",
        args.shard,
        args.confidence,
        args.accept,
        args.raw,
        args.length.max_length,
        args.length.over_length
    );
    let identity = identity([
        ("descant_batch", 1_u32.into()),
        ("input_sha256", digest.into()),
        ("model_sha256", digest_of_model(place, clef)?.into()),
        ("precision", backend::arithmetic(&args.compute)?.into()),
        ("flags", flags.into()),
    ]);
    check_identity(&args.out, &identity)?;
    let mut done = Done::default();
    let journal = Journal::open(&args.out, |line| {
        done.lines += 1;
        done.refused += u64::from(line.starts_with(b"{\"error\":"));
        Ok(())
    })?;
    Ok((Sink::File(journal), part, done))
}

/// Opens an output that cannot be continued.
fn open_pipe(args: &Batch, to_stdout: bool) -> Result<(Sink, Part, Done), Failure> {
    if args.shard.is_some() {
        let fault = "--shard needs files, to know how many requests there are";
        return Err(Failure::Resume {
            file: args.input.clone(),
            fault,
        });
    }
    let whole = Part {
        start: 0,
        count: None,
    };
    if to_stdout {
        return Ok((Sink::Stdout(Output::open()), whole, Done::default()));
    }
    if args.out.exists() {
        let fault =
            "it exists, and an output of standard input cannot be continued; remove it first";
        return Err(Failure::Resume {
            file: args.out.clone(),
            fault,
        });
    }
    Ok((
        Sink::File(Journal::open(&args.out, |_| Ok(()))?),
        whole,
        Done::default(),
    ))
}

/// Checks that an output answers what is asked now, or says so beside it before it is made.
fn check_identity(out: &Path, identity: &str) -> Result<(), Failure> {
    let mut name = out.as_os_str().to_owned();
    name.push(".descant.json");
    let beside = PathBuf::from(name);
    match std::fs::read_to_string(&beside) {
        Ok(found) if found == identity => Ok(()),
        Ok(_) => {
            let fault = "it belongs to a run with another input, model or flags; choose another or remove both";
            Err(Failure::Resume {
                file: beside,
                fault,
            })
        }
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::File {
            file: beside,
            source: error,
        }),
        Err(_) if out.exists() => {
            let fault = "it exists, and nothing beside it says what it answers; remove it first";
            Err(Failure::Resume {
                file: out.to_owned(),
                fault,
            })
        }
        Err(_) => journal::write_whole(&beside, identity),
    }
}

/// The part of so many records. All parts together are the whole; their lengths differ by at most one.
fn part(records: u64, shard: Option<Shard>) -> Part {
    let Some(Shard { index, count }) = shard else {
        return Part {
            start: 0,
            count: Some(records),
        };
    };
    let edge = |at: u64| (u128::from(records) * u128::from(at) / u128::from(count)) as u64;
    let start = edge(index);
    Part {
        start,
        count: Some(edge(index + 1) - start),
    }
}

impl Sink {
    fn line(&mut self, text: &str) -> Result<(), Failure> {
        match self {
            Sink::File(journal) => journal.line(text),
            Sink::Stdout(output) => output.line(text),
        }
    }

    fn end(&self) -> Result<(), Failure> {
        match self {
            Sink::File(journal) => journal.sync(),
            Sink::Stdout(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_are_the_whole() {
        for records in [0, 1, 2, 7, 64, 1001] {
            for count in [1, 2, 3, 8] {
                let mut next = 0;
                for index in 0..count {
                    let part = part(records, Some(Shard { index, count }));
                    assert_eq!(part.start, next);
                    next += part.count.unwrap();
                    assert!(part.count.unwrap().abs_diff(records / count) <= 1);
                }
                assert_eq!(next, records);
            }
        }
    }
}
