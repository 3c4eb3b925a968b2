//! What is served, as a listing: one body that satisfies clients of TypeSafe and of OpenAI.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use descant_decision::OverLength;
use descant_decision::json::{Object, Value};

use crate::hall::Setup;
use crate::limits::Limits;

/// The TypeSafe alias that is listed.
const ALIAS: &str = "jev-latest";

/// The served model as a listing shows it.
#[derive(Clone, Debug)]
pub struct Card {
    /// One sentence about the model.
    pub description: String,
    /// Most tokens of a prompt.
    pub length_max: usize,
    /// When it was loaded; stands for the release date, which no release file tells.
    pub loaded: SystemTime,
}

/// The body of `GET /v1/models`: `data` for OpenAI's clients, `models` for TypeSafe's.
pub(crate) fn list(setup: &Setup, limits: &Limits) -> Value {
    let listed = setup.desk.names().listed();
    let data = listed
        .iter()
        .map(|name| entry(name, setup, limits))
        .collect::<Value>();
    let models = listed.iter().copied().chain([ALIAS]);
    Object::new()
        .with("object", "list")
        .with("data", data)
        .with(
            "models",
            models
                .map(|name| typesafe_entry(name, &setup.card))
                .collect::<Value>(),
        )
        .into()
}

/// The body of `GET /v1/models/{id}`.
pub(crate) fn entry(name: &str, setup: &Setup, limits: &Limits) -> Object {
    let card = &setup.card;
    Object::new()
        .with("id", name)
        .with("object", "model")
        .with("created", since_epoch(card.loaded).as_secs())
        .with("owned_by", "descant")
        .with("max_model_len", card.length_max)
        .with("x_limits", shown(setup, limits))
        .with("x_mode", setup.desk.reading().name())
}

/// The limits that a client can run into.
fn shown(setup: &Setup, limits: &Limits) -> Object {
    let asked = setup.desk.limits();
    let budget = setup.desk.budget();
    let over_length = match budget.over_length {
        OverLength::Refuse => "refuse",
        OverLength::Truncate => "truncate",
    };
    Object::new()
        .with("prompt_tokens_max", budget.max_length)
        .with("over_length", over_length)
        .with("questions_max", asked.questions_max)
        .with("options_max", asked.options_max)
        .with("levels_max", asked.levels_max)
        .with("images_max", 0_u32)
        .with("body_bytes_max", limits.body_bytes_max)
}

fn typesafe_entry(name: &str, card: &Card) -> Object {
    Object::new()
        .with("name", name)
        .with("description", card.description.as_str())
        .with("release_date", date(card.loaded))
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The day of a time in UTC, `YYYY-MM-DD`.
fn date(time: SystemTime) -> String {
    let (year, month, day) = civil(since_epoch(time).as_secs() / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar. Counts in eras of 400 years, whose
/// years start in March, so that the leap day comes last.
fn civil(day: u64) -> (u64, u64, u64) {
    const ERA_DAYS: u64 = 146_097;
    /// Days from 0000-03-01 to 1970-01-01.
    const EPOCH_DAY: u64 = 719_468;
    let day = day + EPOCH_DAY;
    let (era, of_era) = (day / ERA_DAYS, day % ERA_DAYS);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (era * 400 + year + u64::from(month <= 2), month, of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dated() {
        // From `date -u -d @SECONDS +%F`.
        for (seconds, wanted) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_709_164_799, "2024-02-28"),
            (1_790_812_800, "2026-10-01"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(seconds)), wanted);
        }
    }
}
