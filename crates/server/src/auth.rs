//! Who may ask: API keys.
//!
//! Of a key only a digest is kept. A request's key is hashed and compared with every digest in constant time, so that
//! neither the time nor the place of a mismatch tells anything about a key.

use std::sync::{PoisonError, RwLock};

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName};
use blake3::Hash;

use crate::error::Refused;

/// Longest key that is looked at, in bytes.
const KEY_BYTES_MAX: usize = 1024;

/// The keys that are known. They can be replaced while the server runs.
pub struct Keys(RwLock<Vec<Hash>>);

impl Keys {
    /// The keys of these texts.
    pub fn new<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> Keys {
        Keys(RwLock::new(digests(keys)))
    }

    /// Knows other keys from now on.
    pub fn replace<K: AsRef<str>>(&self, keys: impl IntoIterator<Item = K>) {
        let fresh = digests(keys);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = fresh;
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether nobody has a key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets a request in that names a key: `authorization: Bearer KEY`, or `x-api-key: KEY`.
    ///
    /// # Errors
    /// [`Refused::Unauthorised`].
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Refused> {
        let sent: Vec<&[u8]> = bearer(headers).chain(own(headers)).collect();
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = false;
        for key in sent.iter().filter(|key| key.len() <= KEY_BYTES_MAX) {
            let key = blake3::hash(key);
            // No early end, and the comparison of digests takes the same time wherever they differ.
            for digest in known.iter() {
                found |= *digest == key;
            }
        }
        match found {
            true => Ok(()),
            false => Err(Refused::Unauthorised {
                sent: !sent.is_empty(),
            }),
        }
    }
}

/// The number of keys; nothing else of them is printed.
impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("len", &self.len()).finish()
    }
}

fn digests<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> Vec<Hash> {
    keys.into_iter()
        .map(|key| blake3::hash(key.as_ref().as_bytes()))
        .collect()
}

fn bearer(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers.get_all(AUTHORIZATION).iter().filter_map(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        let key = key.trim_ascii();
        (scheme.eq_ignore_ascii_case(b"bearer ") && !key.is_empty()).then_some(key)
    })
}

fn own(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(HeaderName::from_static("x-api-key"))
        .iter()
        .map(|value| value.as_bytes().trim_ascii())
        .filter(|key| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let field = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        HeaderMap::from_iter(fields.iter().map(field))
    }

    #[test]
    fn a_known_key_is_let_in_however_it_is_sent() {
        let keys = Keys::new(["first", "second key"]);
        for fields in [
            &[("authorization", "Bearer first")][..],
            &[("authorization", "bearer  second key ")],
            &[("x-api-key", "second key")],
            &[("authorization", "Basic eDp5"), ("x-api-key", "first")],
            &[("authorization", "Bearer none"), ("x-api-key", "first")],
        ] {
            assert_eq!(keys.check(&headers(fields)), Ok(()), "{fields:?}");
        }
    }

    #[test]
    fn all_others_stay_out() {
        let keys = Keys::new(["first"]);
        for (fields, sent) in [
            (&[][..], false),
            (&[("authorization", "Bearer ")], false),
            (&[("authorization", "Basic first")], false),
            (&[("authorization", "first")], false),
            (&[("x-api-key", "")], false),
            (&[("authorization", "Bearer firs")], true),
            (&[("authorization", "Bearer first2")], true),
            (&[("x-api-key", "First")], true),
        ] {
            let refused = Err(Refused::Unauthorised { sent });
            assert_eq!(keys.check(&headers(fields)), refused, "{fields:?}");
        }
        assert!(
            Keys::new([""; 0])
                .check(&headers(&[("x-api-key", "x")]))
                .is_err()
        );
    }

    /// The comparison takes the same time wherever two digests differ because `Hash`, unlike its bytes, compares so.
    #[test]
    fn nothing_but_digests_is_kept() {
        let keys = Keys::new(["first", "second"]);
        let kept: Vec<Hash> = keys.0.read().unwrap().clone();
        assert_eq!(kept, [blake3::hash(b"first"), blake3::hash(b"second")]);
        assert_eq!(size_of_val(&kept[..]), 2 * 32);
    }

    #[test]
    fn keys_can_be_replaced() {
        let keys = Keys::new(["old"]);
        keys.replace(["new"]);
        assert!(keys.check(&headers(&[("x-api-key", "old")])).is_err());
        assert!(keys.check(&headers(&[("x-api-key", "new")])).is_ok());
        assert_eq!(format!("{keys:?}"), "Keys { len: 1 }");
    }
}
