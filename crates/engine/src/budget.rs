//! The memory that a configuration takes, item by item, before any of it is taken.

use std::error::Error;
use std::fmt;

use descant_model::Capacity;

use crate::Settings;

/// Memory for one purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetItem {
    /// What it is for, as the user reads it.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A flag that the memory depends on: the more, the more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetFlag {
    /// Its name, with dashes.
    pub name: &'static str,
    /// What it is set to.
    pub value: u64,
    /// The least that is of use.
    pub least: u64,
    /// Advice is rounded down to multiples of it, but not below `least`; at least 1.
    pub step: u64,
}

/// A configuration that does not fit, and what would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverBudget {
    /// Everything that it takes.
    pub items: Vec<BudgetItem>,
    /// Memory that there is, in bytes.
    pub limit_bytes: u64,
    /// What would help.
    pub advice: Advice,
}

/// What makes a configuration fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// All of these settings together.
    All(Vec<(&'static str, u64)>),
    /// Any one of these settings.
    AnyOf(Vec<(&'static str, u64)>),
    /// No setting: so much is needed at least, in bytes.
    More(u64),
}

/// Sums what the settings take and compares it with a limit. `items` gives the items for values of the flags, in the
/// order of `flags`; a smaller value never takes more.
///
/// # Errors
/// [`OverBudget`] with all items and with the settings that would fit.
pub fn check_budget(
    flags: &[BudgetFlag],
    limit_bytes: u64,
    items: impl Fn(&[u64]) -> Vec<BudgetItem>,
) -> Result<Vec<BudgetItem>, OverBudget> {
    let values: Vec<u64> = flags.iter().map(|flag| flag.value).collect();
    let asked = items(&values);
    if budget_total(&asked) <= limit_bytes {
        return Ok(asked);
    }
    let total = |values: &[u64]| budget_total(&items(values));
    Err(OverBudget {
        items: asked,
        limit_bytes,
        advice: advise(flags, limit_bytes, &total),
    })
}

/// The sum of all items, in bytes.
pub fn budget_total(items: &[BudgetItem]) -> u64 {
    items
        .iter()
        .fold(0, |sum, item| sum.saturating_add(item.bytes))
}

impl Settings {
    /// What the engine itself takes beside the backend: `hidden` and `vocab` are the model's, `head_width` is the width
    /// of the head's memory rows, if there is a head.
    pub fn budget(
        &self,
        capacity: Capacity,
        hidden: usize,
        vocab: usize,
        head_width: Option<usize>,
    ) -> Vec<BudgetItem> {
        let item = |name: String, factors: &[usize]| BudgetItem {
            name,
            bytes: factors
                .iter()
                .fold(1, |bytes: u64, factor| bytes.saturating_mul(*factor as u64)),
        };
        let slots = capacity.slots;
        let mut items = vec![
            item(
                format!("next-token logits of {slots} streams"),
                &[slots, vocab, size_of::<f32>()],
            ),
            item("state cache".into(), &[self.cache_bytes]),
        ];
        if let Some(width) = head_width {
            let rows = self.head_rows_max().min(2 * capacity.rows);
            let name = format!("{rows} hidden rows on their way to the head");
            items.push(item(name, &[rows, hidden, size_of::<f32>()]));
            let runs = self.head_runs_max(slots);
            let name = format!("memory rows of {runs} decisions in the head");
            items.push(item(
                name,
                &[runs, capacity.positions, width, size_of::<f32>()],
            ));
        }
        items
    }
}

/// What makes the sum fit: any one flag if one is enough, else all of them, the later ones cut less where possible.
fn advise(flags: &[BudgetFlag], limit_bytes: u64, total: &dyn Fn(&[u64]) -> u64) -> Advice {
    let asked: Vec<u64> = flags.iter().map(|flag| flag.value).collect();
    let one = (0..flags.len()).filter_map(|index| {
        let value = greatest(flags, index, &asked, limit_bytes, total)?;
        Some((flags[index].name, value))
    });
    let any_of: Vec<_> = one.collect();
    if !any_of.is_empty() {
        return Advice::AnyOf(any_of);
    }
    let mut values: Vec<u64> = flags
        .iter()
        .map(|flag| flag.least.min(flag.value))
        .collect();
    let least = total(&values);
    if least > limit_bytes {
        return Advice::More(least);
    }
    for index in (0..flags.len()).rev() {
        if let Some(value) = greatest(flags, index, &values, limit_bytes, total) {
            values[index] = value;
        }
    }
    let changed = flags
        .iter()
        .zip(values)
        .filter(|(flag, value)| *value != flag.value);
    Advice::All(changed.map(|(flag, value)| (flag.name, value)).collect())
}

/// The greatest value of a flag with which the sum fits while the others are as in `values`.
fn greatest(
    flags: &[BudgetFlag],
    index: usize,
    values: &[u64],
    limit_bytes: u64,
    total: &dyn Fn(&[u64]) -> u64,
) -> Option<u64> {
    let flag = flags[index];
    let fits = |value| {
        let mut values = values.to_vec();
        values[index] = value;
        total(&values) <= limit_bytes
    };
    let (mut good, mut bad) = (flag.least.min(flag.value), flag.value.saturating_add(1));
    if !fits(good) {
        return None;
    }
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    if good == flag.value {
        return Some(good);
    }
    Some((good / flag.step.max(1) * flag.step.max(1)).max(flag.least.min(flag.value)))
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = budget_total(&self.items);
        writeln!(
            f,
            "{} needed, {} allowed:",
            size(total),
            size(self.limit_bytes)
        )?;
        for item in &self.items {
            writeln!(f, "{:>12}  {}", size(item.bytes), item.name)?;
        }
        let list = |settings: &[(&str, u64)], separator: &str| {
            let words: Vec<String> = settings
                .iter()
                .map(|(name, value)| format!("{name} {value}"))
                .collect();
            words.join(separator)
        };
        match &self.advice {
            Advice::All(settings) => write!(f, "it fits with {}", list(settings, " ")),
            Advice::AnyOf(settings) => write!(f, "it fits with {}", list(settings, " or ")),
            Advice::More(least) => write!(f, "{} is the least that this model needs", size(*least)),
        }
    }
}

impl Error for OverBudget {}

/// A size for reading, rounded up in its last digit, so that what is said to fit fits.
fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, unit_bytes) in UNITS {
        if bytes >= unit_bytes {
            let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(unit_bytes));
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn flags(slots: u64, length: u64) -> [BudgetFlag; 2] {
        [
            BudgetFlag {
                name: "--slots",
                value: slots,
                least: 1,
                step: 1,
            },
            BudgetFlag {
                name: "--max-length",
                value: length,
                least: 1024,
                step: 1024,
            },
        ]
    }

    /// 100 MiB of weights, 1 MiB for 64 rows of a slot.
    fn items(values: &[u64]) -> Vec<BudgetItem> {
        let item = |name: &str, bytes| BudgetItem {
            name: name.into(),
            bytes,
        };
        vec![
            item("weights", 100 * MIB),
            item("KV caches", values[0] * values[1] / 64 * MIB),
        ]
    }

    fn advice(slots: u64, length: u64, limit: u64) -> Advice {
        check_budget(&flags(slots, length), limit * MIB, items)
            .unwrap_err()
            .advice
    }

    #[test]
    fn what_fits_is_itemised() {
        let fits = check_budget(&flags(2, 4096), 228 * MIB, items).unwrap();
        assert_eq!(budget_total(&fits), 228 * MIB);
    }

    #[test]
    fn advice_names_what_would_fit() {
        assert_eq!(
            advice(2, 4096, 227),
            Advice::AnyOf(vec![("--slots", 1), ("--max-length", 3072)])
        );
        // One slot of 4096 rows takes 64 MiB, two of 1024 take 32.
        assert_eq!(
            advice(2, 4096, 140),
            Advice::AnyOf(vec![("--max-length", 1024)])
        );
        assert_eq!(
            advice(4, 8192, 150),
            Advice::All(vec![("--slots", 1), ("--max-length", 3072)])
        );
        assert_eq!(advice(4, 8192, 115), Advice::More(116 * MIB));
    }

    #[test]
    fn advice_fits_and_a_step_more_does_not() {
        for limit in 116..600 {
            let Err(over) = check_budget(&flags(3, 10_000), limit * MIB, items) else {
                continue;
            };
            let total = |slots, length| budget_total(&items(&[slots, length])) <= limit * MIB;
            match over.advice {
                Advice::AnyOf(settings) => {
                    for setting in settings {
                        match setting {
                            ("--slots", slots) => {
                                assert!(total(slots, 10_000) && !total(slots + 1, 10_000))
                            }
                            (_, length) => assert!(total(3, length) && !total(3, length + 1024)),
                        }
                    }
                }
                Advice::All(settings) => {
                    let value = |name, asked| {
                        let found = settings.iter().find(|(other, _)| *other == name);
                        found.map_or(asked, |(_, value)| *value)
                    };
                    assert!(
                        total(value("--slots", 3), value("--max-length", 10_000)),
                        "{limit}"
                    );
                }
                Advice::More(_) => panic!("{limit} is enough for one slot of 1024 rows"),
            }
        }
    }

    #[test]
    fn the_refusal_can_be_read() {
        let over = check_budget(&flags(2, 4096), 140 * MIB, items).unwrap_err();
        let wanted = "\
228.0 MiB needed, 140.0 MiB allowed:
   100.0 MiB  weights
   128.0 MiB  KV caches
it fits with --max-length 1024";
        assert_eq!(over.to_string(), wanted);
        assert_eq!(
            (size(1023), size(1025)),
            ("1023 bytes".into(), "1.1 KiB".into())
        );
    }

    #[test]
    fn the_engines_own_items_are_the_bounds_that_it_keeps() {
        let capacity = Capacity {
            slots: 2,
            positions: 1000,
            rows: 128,
        };
        let settings = Settings {
            cache_bytes: 77,
            head_threads: 1,
            ..Settings::default()
        };
        let bytes = |width| {
            let items = settings.budget(capacity, 10, 50, width);
            items.iter().map(|item| item.bytes).collect::<Vec<_>>()
        };
        assert_eq!(bytes(None), [2 * 50 * 4, 77]);
        assert_eq!(
            bytes(Some(8)),
            [2 * 50 * 4, 77, 256 * 10 * 4, 3 * 1000 * 8 * 4]
        );
    }
}
