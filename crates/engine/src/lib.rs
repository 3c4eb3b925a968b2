//! Who runs when: rounds, slots, caches, memory.
#![forbid(unsafe_code)]
