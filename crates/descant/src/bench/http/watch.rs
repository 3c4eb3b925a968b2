//! What a server holds while it is pressed: its memory, and its slots where it shows them.

use super::client::Client;

/// One look at a server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Look {
    /// Resident memory.
    pub(crate) memory_bytes: Option<u64>,
    /// Slots that nobody has, and all.
    pub(crate) slots: Option<(u64, u64)>,
}

/// Looks at the server: by its process on this machine if that is known, else by what it says itself.
pub(crate) fn look(client: &Client, pid: Option<u32>) -> Look {
    let page = match client.read("/metrics") {
        Ok((200, body)) => String::from_utf8_lossy(&body).into_owned(),
        _ => String::new(),
    };
    let figure = |name: &str| metric(&page, name);
    Look {
        memory_bytes: match pid {
            Some(pid) => of_process(pid),
            None => figure("process_resident_memory_bytes"),
        },
        slots: figure("descant_slots_free").zip(figure("descant_slots")),
    }
}

/// The value of a metric without labels in a page of the Prometheus text format.
fn metric(page: &str, name: &str) -> Option<u64> {
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    let value: f64 = value.split_whitespace().next()?.parse().ok()?;
    (0.0..1e18).contains(&value).then_some(value as u64)
}

/// Resident memory of a process of this machine.
fn of_process(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let page = "# HELP x y\ndescant_slots_free 3\ndescant_slots 4\nmemory_bytes 1.5e+06\n";
        assert_eq!(metric(page, "descant_slots"), Some(4));
        assert_eq!(metric(page, "descant_slots_free"), Some(3));
        assert_eq!(metric(page, "memory_bytes"), Some(1_500_000));
        assert_eq!(metric(page, "bytes"), None);
    }

    #[test]
    fn this_process_has_memory() {
        assert!(of_process(std::process::id()).unwrap() > 1 << 20);
        assert_eq!(of_process(u32::MAX), None);
    }
}
