//! What can be set about the engine, and what it comes to on a given backend.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use descant_model::{CHUNK_ROWS, Capacity};

/// What can be set about the engine. None of it changes a number in an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Rows of one round, all streams together; at most what the backend reserved. Default 4096.
    pub rows_max: usize,
    /// Prompt rows of one stream in one round, and of all prompts together while chat streams run, so that no chat
    /// token waits longer than one piece; a positive multiple of [`CHUNK_ROWS`]. Default 1024.
    pub piece_rows: usize,
    /// Slots that decisions leave to chat, if there are at least two. Default 1.
    pub chat_slots: usize,
    /// Slots that chat leaves to decisions, if there are at least two. Default 1.
    pub decision_slots: usize,
    /// Share of the device's time that belongs to rounds of chat tokens alone while chat streams run and prompts wait;
    /// from 0 up to, not including, 1. Default 0.25.
    pub chat_share: f64,
    /// The oldest prompt gets a piece at least once in so many rounds with prompt rows; at least 1. Default 4.
    pub rounds_between_pieces_max: u32,
    /// Jobs that may wait for a slot. Default 256.
    pub queue_max: usize,
    /// Longest wait for a slot, after which a job is refused; `None` waits for ever. Default 8 seconds, so that clients
    /// with the usual limit of 10 see the refusal and not a silent server.
    pub wait_max: Option<Duration>,
    /// Memory of the state cache, in bytes; 0 turns it off. Default 256 MiB.
    pub cache_bytes: usize,
    /// Shortest prefix that is worth a snapshot, in rows. Default 64.
    pub cache_rows_min: usize,
    /// Threads that run the head beside the next round; at least 1. Default 2, so that a short decision does not wait for
    /// a long one.
    pub head_threads: usize,
    /// Rounds that fail one after the other until [`Health::Failing`](crate::Health::Failing) is reported. Default 3.
    pub failures_max: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            rows_max: 4096,
            piece_rows: 1024,
            chat_slots: 1,
            decision_slots: 1,
            chat_share: 0.25,
            rounds_between_pieces_max: 4,
            queue_max: 256,
            wait_max: Some(Duration::from_secs(8)),
            cache_bytes: 256 << 20,
            cache_rows_min: CHUNK_ROWS,
            head_threads: 2,
            failures_max: 3,
        }
    }
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq)]
pub struct SettingsError {
    /// Name of the setting.
    pub name: &'static str,
    /// What it was set to.
    pub found: String,
    /// What it may be.
    pub wanted: String,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is {}, but must be {}",
            self.name, self.found, self.wanted
        )
    }
}

impl Error for SettingsError {}

impl Settings {
    /// Settings as they hold for a backend, with `rows_max` and `piece_rows` no greater than what it reserved.
    ///
    /// # Errors
    /// If a setting is outside its range, or the backend reserved fewer rows than a round needs: a token for every slot
    /// and one chunk of a prompt.
    pub(crate) fn fit(&self, capacity: Capacity) -> Result<Settings, SettingsError> {
        let refuse = |name, found: String, wanted: String| {
            Err(SettingsError {
                name,
                found,
                wanted,
            })
        };
        if capacity.slots == 0 {
            return refuse("slots", "0".into(), "at least 1".into());
        }
        let rows_max = self.rows_max.min(capacity.rows);
        if rows_max < capacity.slots + CHUNK_ROWS {
            let wanted = format!(
                "at least {}: one row for each of {} slots and {CHUNK_ROWS} of a prompt",
                capacity.slots + CHUNK_ROWS,
                capacity.slots
            );
            return refuse("rows_max", rows_max.to_string(), wanted);
        }
        if self.piece_rows == 0 || !self.piece_rows.is_multiple_of(CHUNK_ROWS) {
            let wanted = format!("a positive multiple of {CHUNK_ROWS}");
            return refuse("piece_rows", self.piece_rows.to_string(), wanted);
        }
        if !(0.0..1.0).contains(&self.chat_share) {
            let wanted = "at least 0 and below 1".into();
            return refuse("chat_share", self.chat_share.to_string(), wanted);
        }
        for (name, found) in [
            ("head_threads", self.head_threads),
            (
                "rounds_between_pieces_max",
                self.rounds_between_pieces_max as usize,
            ),
        ] {
            if found == 0 {
                return refuse(name, "0".into(), "at least 1".into());
            }
        }
        let mut fitted = self.clone();
        fitted.rows_max = rows_max;
        fitted.piece_rows = self.piece_rows.min(rows_max / CHUNK_ROWS * CHUNK_ROWS);
        // A reserve never takes the last slot from the others.
        fitted.chat_slots = self.chat_slots.min(capacity.slots - 1);
        fitted.decision_slots = self.decision_slots.min(capacity.slots - 1);
        Ok(fitted)
    }

    /// Decisions that may be in the head or on their way to it at one time; each holds a memory row for each of its
    /// prompt rows.
    pub fn head_runs_max(&self, slots: usize) -> usize {
        slots + self.head_threads
    }

    /// Hidden rows, f32, that may wait for the head at one time.
    pub fn head_rows_max(&self) -> usize {
        2 * self.rows_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Capacity = Capacity {
        slots: 4,
        positions: 1024,
        rows: 512,
    };

    #[test]
    fn rows_are_cut_to_what_the_backend_reserved() {
        let fitted = Settings::default().fit(CAPACITY).unwrap();
        assert_eq!((fitted.rows_max, fitted.piece_rows), (512, 512));
        let odd = Capacity {
            rows: 150,
            ..CAPACITY
        };
        assert_eq!(Settings::default().fit(odd).unwrap().piece_rows, 128);
    }

    #[test]
    fn a_reserve_leaves_one_slot() {
        let one = Capacity {
            slots: 1,
            ..CAPACITY
        };
        let fitted = Settings::default().fit(one).unwrap();
        assert_eq!((fitted.chat_slots, fitted.decision_slots), (0, 0));
    }

    #[test]
    fn settings_outside_their_range_are_named() {
        let with = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.fit(CAPACITY).unwrap_err().name
        };
        assert_eq!(with(|s| s.rows_max = 67), "rows_max");
        assert_eq!(with(|s| s.piece_rows = 0), "piece_rows");
        assert_eq!(with(|s| s.piece_rows = 100), "piece_rows");
        assert_eq!(with(|s| s.chat_share = 1.0), "chat_share");
        assert_eq!(with(|s| s.chat_share = f64::NAN), "chat_share");
        assert_eq!(with(|s| s.head_threads = 0), "head_threads");
        assert_eq!(
            with(|s| s.rounds_between_pieces_max = 0),
            "rounds_between_pieces_max"
        );
        let none = Capacity {
            slots: 0,
            ..CAPACITY
        };
        assert_eq!(Settings::default().fit(none).unwrap_err().name, "slots");
    }
}
