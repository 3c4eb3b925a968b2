//! A backend and a head on the CPU.
#![deny(unsafe_code)]
