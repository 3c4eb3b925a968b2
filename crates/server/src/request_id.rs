//! The name of a request in headers and logs.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderMap, HeaderValue};

/// Longest id of a caller that is taken over, in bytes.
const CALLER_BYTES_MAX: usize = 128;

/// A request's id: the caller's own `x-request-id` where it is usable, otherwise `req_` and 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    /// Takes over the caller's id if it is at most 128 printable ASCII characters, or makes one.
    pub(crate) fn from_headers(headers: &HeaderMap) -> RequestId {
        match headers.get("x-request-id") {
            Some(value) if usable(value.as_bytes()) => RequestId(value.clone()),
            Some(_) | None => RequestId::fresh(),
        }
    }

    /// Makes an id that no other request of this process has and that other processes are unlikely to have.
    pub(crate) fn fresh() -> RequestId {
        static KEYS: LazyLock<[RandomState; 2]> =
            LazyLock::new(|| [RandomState::new(), RandomState::new()]);
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let [high, low] = KEYS.each_ref().map(|key| key.hash_one(count));
        let text = format!("req_{high:016x}{low:016x}");
        RequestId(HeaderValue::try_from(text).expect("hexadecimal digits are header text"))
    }

    /// The id as a header's value.
    pub(crate) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().unwrap_or("?"))
    }
}

/// Whether a caller's id may go into headers and logs as it is.
fn usable(id: &[u8]) -> bool {
    !id.is_empty() && id.len() <= CALLER_BYTES_MAX && id.iter().all(|b| (0x20..0x7f).contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usable_id_of_the_caller_is_taken_over() {
        let longest = "x".repeat(CALLER_BYTES_MAX);
        for id in ["a", "trace 7/9", longest.as_str()] {
            let headers = HeaderMap::from_iter([(
                "x-request-id".parse().unwrap(),
                HeaderValue::from_str(id).unwrap(),
            )]);
            assert_eq!(RequestId::from_headers(&headers).to_string(), id);
        }
    }

    #[test]
    fn an_unusable_id_is_replaced() {
        let too_long = "x".repeat(CALLER_BYTES_MAX + 1);
        for id in ["".as_bytes(), too_long.as_bytes(), b"tab\there", b"\xe9"] {
            let headers = HeaderMap::from_iter([(
                "x-request-id".parse().unwrap(),
                HeaderValue::from_bytes(id).unwrap(),
            )]);
            let made = RequestId::from_headers(&headers).to_string();
            assert!(made.starts_with("req_") && made.len() == 36, "{made}");
        }
    }

    #[test]
    fn fresh_ids_differ() {
        assert_ne!(RequestId::fresh(), RequestId::fresh());
    }
}
