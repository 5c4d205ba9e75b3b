//! `megapipe run` with real programs.

mod execution;
mod obstacles;
mod pace;
mod promotion;
mod support;
