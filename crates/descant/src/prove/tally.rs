//! What was compared, how much of it differed, and what did not happen, for each value of each axis.

use descant_decision::Value;
use descant_decision::json::{Object, to_json};

use super::manner::{Company, Manner};
use super::scene::{Seen, Which};

/// Counts of one value of one axis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) axis: &'static str,
    pub(crate) value: String,
    pub(crate) answers: usize,
    pub(crate) chats: usize,
    pub(crate) unequal: usize,
    pub(crate) lapses: usize,
    /// Most streams in one round.
    pub(crate) peak: usize,
    /// Rows that snapshots spared.
    pub(crate) cached_rows: usize,
    /// Prompts left in their middle.
    pub(crate) cancelled: usize,
}

/// All counts, and the first of what went wrong.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// In the order in which the values came, axis by axis.
    rows: Vec<Row>,
    all: Row,
    /// Where the first answers differed.
    pub(crate) differences: Vec<String>,
    /// What did not happen first.
    pub(crate) lapses: Vec<String>,
}

impl Row {
    fn add(&mut self, seen: &Seen) {
        for (which, difference) in &seen.compared {
            match which {
                Which::Case(_) => self.answers += 1,
                Which::Chat(_) => self.chats += 1,
            }
            self.unequal += usize::from(difference.is_some());
        }
        self.lapses += usize::from(!seen.lapses.is_empty());
        self.peak = self.peak.max(seen.peak);
        self.cached_rows += seen.cached_rows;
        self.cancelled += seen.cancelled;
    }

    fn value(&self) -> Object {
        Object::new()
            .with("answers", self.answers)
            .with("chats", self.chats)
            .with("unequal", self.unequal)
            .with("scenes_that_did_not_happen", self.lapses)
            .with("streams_in_a_round_max", self.peak)
            .with("cached_rows", self.cached_rows)
            .with("cancelled_in_prefill", self.cancelled)
    }
}

impl Tally {
    /// Counts a scene.
    pub(crate) fn add(&mut self, manner: Manner, company: Company, seen: &Seen) {
        let values = [
            ("threads", manner.threads.to_string()),
            ("pieces", manner.piece.to_string()),
            ("company", company.to_string()),
            ("cache", manner.cache.to_string()),
        ];
        for (axis, value) in values {
            self.row(axis, value).add(seen);
        }
        self.all.add(seen);
        let place = |what: &str| format!("{manner}, company {company}: {what}");
        let differences = seen.compared.iter().filter_map(|(_, found)| found.as_ref());
        for difference in differences {
            note(&mut self.differences, || place(difference));
        }
        for lapse in &seen.lapses {
            note(&mut self.lapses, || place(lapse));
        }
    }

    /// Notes something that holds for a whole manner.
    pub(crate) fn add_lapse(&mut self, manner: Manner, company: Company, lapse: &str) {
        let seen = Seen {
            lapses: vec![lapse.to_owned()],
            ..Seen::default()
        };
        self.add(manner, company, &seen);
    }

    fn row(&mut self, axis: &'static str, value: String) -> &mut Row {
        let found = |row: &Row| row.axis == axis && row.value == value;
        if let Some(at) = self.rows.iter().position(found) {
            return &mut self.rows[at];
        }
        let behind = self.rows.iter().rposition(|row| row.axis == axis);
        let at = behind.map_or(self.rows.len(), |last| last + 1);
        let row = Row {
            axis,
            value,
            ..Row::default()
        };
        self.rows.insert(at, row);
        &mut self.rows[at]
    }

    /// The counts of a value of an axis.
    #[cfg(test)]
    pub(crate) fn of(&self, axis: &str, value: &str) -> &Row {
        let mut rows = self.rows.iter();
        rows.find(|row| row.axis == axis && row.value == value)
            .unwrap_or_else(|| panic!("nothing of {axis} {value}"))
    }

    /// Answers and chats compared.
    pub(crate) fn compared(&self) -> usize {
        self.all.answers + self.all.chats
    }

    /// Of these, how many were not the same bits.
    pub(crate) fn unequal(&self) -> usize {
        self.all.unequal
    }

    /// Scenes that were not what they were meant to be.
    pub(crate) fn lapsed(&self) -> usize {
        self.all.lapses
    }

    /// The counts for people.
    pub(crate) fn table(&self) -> String {
        let mut lines = vec![format!(
            "{:<10}{:>10}{:>10}{:>8}{:>9}{:>13}{:>12}{:>11}{:>13}",
            "axis",
            "",
            "answers",
            "chats",
            "unequal",
            "not happened",
            "in a round",
            "cancelled",
            "cached rows"
        )];
        let mut axis = "";
        for row in self.rows.iter().chain([&self.all]) {
            let name = if row.axis == axis { "" } else { row.axis };
            axis = row.axis;
            lines.push(format!(
                "{:<10}{:>10}{:>10}{:>8}{:>9}{:>13}{:>12}{:>11}{:>13}",
                if row.axis.is_empty() { "all" } else { name },
                row.value,
                row.answers,
                row.chats,
                row.unequal,
                row.lapses,
                row.peak,
                row.cancelled,
                row.cached_rows
            ));
        }
        let shown = |title: &str, list: &[String]| {
            let lines = list.iter().map(|line| format!("{title}: {line}"));
            lines.collect::<Vec<_>>()
        };
        lines.extend(shown("unequal", &self.differences));
        lines.extend(shown("did not happen", &self.lapses));
        lines.join("\n")
    }

    /// The counts for programs, behind what is said of the run.
    pub(crate) fn json(&self, run: Object) -> String {
        let rows = self.rows.iter().map(|row| {
            let all = Object::new()
                .with("axis", row.axis)
                .with("value", row.value.as_str());
            with_all(all, &row.value())
        });
        let rows: Value = rows.collect();
        let list = |lines: &[String]| lines.iter().map(String::as_str).collect::<Value>();
        let all = with_all(run, &self.all.value())
            .with("rows", rows)
            .with("differences", list(&self.differences))
            .with("did_not_happen", list(&self.lapses));
        to_json(&all.into())
    }

    /// Values that were asked for but of which nothing was compared.
    pub(crate) fn empty(&self, wanted: &[(&'static str, String)]) -> Vec<String> {
        let counted = |axis: &str, value: &str| {
            self.rows
                .iter()
                .any(|row| row.axis == axis && row.value == value && row.answers > 0)
        };
        let empty = wanted.iter().filter(|(axis, value)| !counted(axis, value));
        empty
            .map(|(axis, value)| format!("{axis} {value}"))
            .collect()
    }
}

fn with_all(mut object: Object, more: &Object) -> Object {
    for (key, value) in more.iter() {
        object.insert(key, value.clone());
    }
    object
}

/// Keeps the first lines of a kind; the counts say how many there were.
fn note(list: &mut Vec<String>, line: impl FnOnce() -> String) {
    if list.len() < LINES_MAX {
        list.push(line());
    }
}

/// Lines kept of each kind.
const LINES_MAX: usize = 20;

/// The values of an axis as they are counted.
pub(crate) fn values<T: ToString>(axis: &'static str, list: &[T]) -> Vec<(&'static str, String)> {
    list.iter().map(|value| (axis, value.to_string())).collect()
}

/// The company that a scene of this kind needs at some time to be called so.
pub(crate) fn peak_wanted(company: Company, cases: usize) -> usize {
    match company {
        Company::Alone => 1,
        Company::Three => 4.min(cases),
        Company::Eight => 9.min(cases),
        Company::Mixed => 4.min(cases),
        Company::Cancelled | Company::Chat => 3,
    }
}
