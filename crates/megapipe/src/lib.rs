//! Megapipe: scalable network I/O for Linux servers on a stock kernel.
//!
//! This crate is what a Rust program imports. It gives the [`Channel`] and what belongs
//! to it; the crates below it are details.

pub use channel::*;

/// The program in the README is compiled with the documentation's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
