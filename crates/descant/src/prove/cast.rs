//! Who is on stage: records of all lengths, chats, and long prompts whose clients leave.

use std::path::Path;
use std::sync::Arc;

use descant_decision::json::to_json;
use descant_decision::{Encoded, Value};
use descant_engine::Sampling;
use descant_model::CHUNK_ROWS;
use descant_server::Desk;

use crate::failure::Failure;
use crate::samples::{Sample, asked_otherwise};
use crate::several::{Item, Items};

/// A record that is compared.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) encoded: Arc<Encoded>,
}

/// A chat that is compared.
#[derive(Debug)]
pub(crate) struct ChatCase {
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampling: Sampling,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Cast {
    /// Shortest first.
    pub(crate) cases: Vec<Case>,
    pub(crate) chats: Vec<ChatCase>,
    /// Prompts whose clients leave before they are through.
    pub(crate) victims: Vec<Arc<Encoded>>,
}

/// How many rows a made-up record has, besides those that it has with an empty state.
#[derive(Clone, Copy, Debug)]
enum Length {
    /// So many more.
    Beyond(usize),
    /// So many more than a multiple of a chunk that is at least a chunk away, and one fewer or more than that.
    Edge(usize, isize),
}

impl Case {
    /// Rows of the prompt.
    pub(crate) fn rows(&self) -> usize {
        self.encoded.ids.len()
    }

    /// Rows that a snapshot of an earlier run spares.
    pub(crate) fn cacheable_rows(&self) -> usize {
        chunks(self.encoded.schema_start.min(self.rows() - 1))
    }
}

impl ChatCase {
    /// Rows that a snapshot of an earlier run spares.
    pub(crate) fn cacheable_rows(&self) -> usize {
        chunks(self.prompt.len() - 1)
    }
}

fn chunks(rows: usize) -> usize {
    rows / CHUNK_ROWS * CHUNK_ROWS
}

impl Cast {
    /// Made-up records and those of a file. The prompts of the clients that leave have more than `left_rows` rows.
    pub(crate) fn gather(
        desk: &Desk,
        quick: bool,
        records: Option<&Path>,
        left_rows: usize,
    ) -> Result<Cast, Failure> {
        let mut cases = made_up(desk, quick)?;
        if let Some(file) = records {
            cases.extend(of_file(desk, file)?);
        }
        cases.sort_by_key(Case::rows);
        let victims = (0..VICTIMS)
            .map(|index| victim(desk, index, left_rows))
            .collect::<Result<_, _>>()?;
        Ok(Cast {
            chats: chats(&cases),
            cases,
            victims,
        })
    }

    /// Rows of the longest prompt, with all that a chat adds to its own.
    pub(crate) fn rows_max(&self) -> usize {
        let cases = self.cases.iter().map(Case::rows);
        let victims = self.victims.iter().map(|victim| victim.ids.len());
        let chats = self
            .chats
            .iter()
            .map(|chat| chat.prompt.len() + CHAT_TOKENS);
        cases.chain(victims).chain(chats).max().unwrap_or(0)
    }
}

fn made_up(desk: &Desk, quick: bool) -> Result<Vec<Case>, Failure> {
    let lengths = if quick { &QUICK[..] } else { &LENGTHS[..] };
    let mut cases = Vec::new();
    for (seed, length) in (0..).zip(lengths) {
        let sample = Sample::new(seed);
        let rows = length.rows(rows(desk, &sample.request(0, 0))?);
        if rows > desk.budget().max_length {
            continue;
        }
        let request = sample.of_rows(rows, |request| self::rows(desk, request))?;
        cases.push(case(desk, format!("made-up {seed}"), &request)?);
        // Every third state is asked about twice.
        if seed % 3 == 0 {
            let name = format!("made-up {seed}, asked otherwise");
            cases.push(case(desk, name, &asked_otherwise(&request, 1000 + seed))?);
        }
    }
    Ok(cases)
}

fn of_file(desk: &Desk, file: &Path) -> Result<Vec<Case>, Failure> {
    let case = |item: Result<Item, Failure>| {
        let Item { line, body } = item?;
        let encoded = body.and_then(|body| desk.read_encoded(&body));
        let encoded = encoded.map_err(|refused| Failure::Record {
            file: file.to_owned(),
            line,
            fault: refused.to_string(),
        })?;
        Ok::<Case, Failure>(Case {
            name: format!("line {line}"),
            encoded: Arc::new(encoded),
        })
    };
    let mut cases: Vec<Case> = Items::open(file)?.map(case).collect::<Result<_, _>>()?;
    // In one scene, a prompt is told from another by its tokens.
    cases.sort_by(|a, b| a.encoded.ids.cmp(&b.encoded.ids));
    cases.dedup_by(|a, b| a.encoded.ids == b.encoded.ids);
    Ok(cases)
}

fn victim(desk: &Desk, index: u64, left_rows: usize) -> Result<Arc<Encoded>, Failure> {
    let rows = left_rows + 3 * CHUNK_ROWS + 40 * index as usize;
    let sample = Sample::new(2000 + index);
    let request = sample.of_rows(rows, |request| self::rows(desk, request))?;
    Ok(encoded(desk, &request)?.into())
}

/// Chats whose prompts are the last tokens of records.
fn chats(cases: &[Case]) -> Vec<ChatCase> {
    let chat = |(index, rows): (usize, &usize)| {
        let ids = &cases[index % cases.len()].encoded.ids;
        ChatCase {
            prompt: ids[ids.len().saturating_sub(*rows)..].to_vec(),
            sampling: sampling(index as u64),
        }
    };
    CHAT_ROWS.iter().enumerate().map(chat).collect()
}

/// Greedy, drawn from all tokens, and drawn from few of them with penalties, in turns.
pub(crate) fn sampling(seed: u64) -> Sampling {
    let drawn = Sampling {
        temperature: 0.9,
        seed,
        ..Sampling::default()
    };
    match seed % 3 {
        0 => Sampling {
            temperature: 0.0,
            ..drawn
        },
        1 => drawn,
        _ => Sampling {
            top_k: 40,
            top_p: 0.9,
            min_p: 0.01,
            presence_penalty: 0.4,
            frequency_penalty: 0.2,
            ..drawn
        },
    }
}

fn case(desk: &Desk, name: String, request: &Value) -> Result<Case, Failure> {
    Ok(Case {
        name,
        encoded: Arc::new(encoded(desk, request)?),
    })
}

fn rows(desk: &Desk, request: &Value) -> Result<usize, Failure> {
    Ok(encoded(desk, request)?.ids.len())
}

fn encoded(desk: &Desk, request: &Value) -> Result<Encoded, Failure> {
    let read = desk.read_encoded(to_json(request).as_bytes());
    read.map_err(|refused| Failure::Refused {
        name: "a made-up record".to_owned(),
        refused,
    })
}

impl Length {
    /// The rows of a record that has `least` with an empty state.
    fn rows(self, least: usize) -> usize {
        match self {
            Length::Beyond(more) => least + more,
            Length::Edge(more, off) => {
                (least.next_multiple_of(CHUNK_ROWS) + CHUNK_ROWS + more).saturating_add_signed(off)
            }
        }
    }
}

/// Tokens of each chat: enough that a prompt of a hundred pieces meets some of them.
pub(crate) const CHAT_TOKENS: usize = 48;
/// Rows of the chats' prompts: below, at and above one and two chunks.
const CHAT_ROWS: [usize; 6] = [40, 64, 65, 128, 150, 200];
/// Clients that leave in one scene.
const VICTIMS: u64 = 2;

/// Lengths of the made-up records.
const LENGTHS: [Length; 16] = [
    Length::Beyond(0),
    Length::Edge(0, -1),
    Length::Edge(0, 0),
    Length::Edge(0, 1),
    Length::Beyond(21),
    Length::Edge(64, 0),
    Length::Edge(192, 1),
    Length::Beyond(150),
    Length::Edge(256, -1),
    Length::Beyond(333),
    Length::Edge(512, 0),
    Length::Beyond(777),
    Length::Edge(1024, 1),
    Length::Beyond(1500),
    Length::Beyond(2600),
    Length::Edge(4096, 0),
];

/// Of these, what a quick run takes.
const QUICK: [Length; 7] = [
    Length::Beyond(0),
    Length::Edge(0, -1),
    Length::Edge(0, 0),
    Length::Edge(0, 1),
    Length::Beyond(150),
    Length::Edge(256, 0),
    Length::Beyond(600),
];
