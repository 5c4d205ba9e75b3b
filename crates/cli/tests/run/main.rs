//! `megapipe run` with real programs.

macro_rules! need_python {
    ($name:literal) => {
        if crate::support::python().is_none() {
            println!("SKIPPED {}: no python3", $name);
            return;
        }
    };
}

mod execution;
mod obstacles;
mod pace;
mod places;
mod promotion;
mod reasons;
mod recorder;
mod rings;
mod shots;
mod succession;
mod support;
mod users;
