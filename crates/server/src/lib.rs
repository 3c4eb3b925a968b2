//! How it is spoken: HTTP routes, dialects, errors, limits.
#![forbid(unsafe_code)]
