//! `megapipe run` with real programs.

mod execution;
mod obstacles;
mod promotion;
mod support;
