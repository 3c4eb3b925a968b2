//! Which scenes are played: for each record each company, neighbours drawn from a seed.

use super::cast::{Case, Cast};
use super::manner::{Cache, Company, Manner};
use super::scene::Scene;
use crate::samples::Seeded;

/// What is gone through.
#[derive(Clone, Debug)]
pub(crate) struct Axes {
    pub(crate) threads: Vec<usize>,
    pub(crate) pieces: Vec<usize>,
    pub(crate) company: Vec<Company>,
    pub(crate) cache: Vec<Cache>,
}

impl Axes {
    /// The manners of one number of threads.
    pub(crate) fn manners(&self, threads: usize) -> Vec<Manner> {
        let mut all = Vec::new();
        for &piece in &self.pieces {
            for &cache in &self.cache {
                all.push(Manner {
                    threads,
                    piece,
                    cache,
                });
            }
        }
        all
    }

    /// The scenes of a manner, other ones in each pass.
    pub(crate) fn scenes(&self, cast: &Cast, manner: Manner, pass: u64) -> Vec<Scene> {
        let mut random = Seeded::new(pass);
        let mut all = Vec::new();
        for &company in &self.company {
            for subject in 0..cast.cases.len() {
                if manner.cache != Cache::Hit || cast.cases[subject].cacheable_rows() > 0 {
                    all.push(scene(cast, manner, company, subject, &mut random));
                }
            }
            if company == Company::Alone {
                all.extend((0..cast.chats.len()).filter_map(|chat| alone(cast, manner, chat)));
            }
        }
        all
    }

    /// The scenes after which every snapshot is there: each state once, alone.
    pub(crate) fn filling(&self, cast: &Cast) -> Vec<Scene> {
        let manner = Manner {
            threads: 1,
            piece: 64,
            cache: Cache::Filling,
        };
        let mut all: Vec<Scene> = Vec::new();
        for (subject, case) in cast.cases.iter().enumerate() {
            let state = |case: &Case| case.encoded.ids[..case.cacheable_rows()].to_vec();
            // A state that was asked about before is there, whatever else is asked now.
            let known = all.iter().filter_map(|scene| scene.subject);
            let known = known.map(|earlier| state(&cast.cases[earlier]));
            if known.into_iter().all(|known| known != state(case)) {
                all.push(blank(Company::Alone, Some(subject)));
            }
        }
        all.extend((0..cast.chats.len()).filter_map(|chat| alone(cast, manner, chat)));
        all
    }
}

fn blank(company: Company, subject: Option<usize>) -> Scene {
    Scene {
        company,
        subject,
        neighbours: Vec::new(),
        victims: 0,
        leave_after: 0,
        chats: Vec::new(),
        order: 0,
    }
}

/// A chat with nobody beside it, if it can be what its manner says.
fn alone(cast: &Cast, manner: Manner, chat: usize) -> Option<Scene> {
    let possible = manner.cache != Cache::Hit || cast.chats[chat].cacheable_rows() > 0;
    possible.then(|| Scene {
        chats: vec![chat],
        ..blank(Company::Alone, None)
    })
}

fn scene(
    cast: &Cast,
    manner: Manner,
    company: Company,
    subject: usize,
    random: &mut Seeded,
) -> Scene {
    let count = cast.cases.len();
    // The longest third comes on among eight and in mixed company; elsewhere it would only take time.
    let (smallest, small) = (0..count.div_ceil(3), 0..(2 * count).div_ceil(3));
    let mut scene = blank(company, Some(subject));
    scene.order = random.next();
    let able = |index: &usize| {
        *index != subject && (manner.cache != Cache::Hit || cast.cases[*index].cacheable_rows() > 0)
    };
    let mut draw = |from: std::ops::Range<usize>, wanted: usize| {
        let mut able: Vec<usize> = from.filter(able).collect();
        random.shuffle(&mut able);
        able.truncate(wanted);
        able
    };
    match company {
        Company::Alone => {}
        Company::Three => scene.neighbours = draw(small, 3),
        Company::Eight => scene.neighbours = draw(0..count, 8),
        Company::Mixed => {
            let (third, two) = (count / 3, 2 * count / 3);
            for part in [0..third, third..two, two..count] {
                scene.neighbours.extend(draw(part, 1));
            }
        }
        Company::Cancelled => {
            scene.neighbours = draw(small, 1);
            // Two longest prompts do not fit a round of the greatest piece.
            scene.victims = if manner.piece > MANY_ROWS { 1 } else { 2 };
            scene.leave_after = 1 + subject % leave_after_max(manner.piece);
        }
        Company::Chat => {
            // Soon through, so that the subject has its turn while the chats last.
            scene.neighbours = draw(smallest, 1);
            let able =
                |chat: &usize| manner.cache != Cache::Hit || cast.chats[*chat].cacheable_rows() > 0;
            let mut chats: Vec<usize> = (0..cast.chats.len()).filter(able).collect();
            random.shuffle(&mut chats);
            chats.truncate(2);
            scene.chats = chats;
        }
    }
    scene
}

/// Most rounds after which a client leaves.
fn leave_after_max(piece: usize) -> usize {
    if piece > MANY_ROWS { 1 } else { 3 }
}

/// Most rows of a prompt that have run when its client leaves.
pub(crate) fn left_rows(pieces: &[usize]) -> usize {
    let rows = pieces.iter().map(|piece| piece * leave_after_max(*piece));
    rows.max().unwrap_or(0)
}

/// Rows of a piece from which a long prompt takes a round almost alone.
const MANY_ROWS: usize = 1024;
