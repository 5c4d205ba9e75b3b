//! Tests that cannot run here: each says why, and the end of the run lists them.

use std::sync::{Mutex, PoisonError};

/// What a test came to, if it did not fail.
pub type Verdict = Result<(), Skipped>;

/// A test could not run on this machine.
#[derive(Clone, Debug)]
pub struct Skipped {
    /// What is missing.
    pub reason: String,
}

impl Skipped {
    /// Skipped for this reason.
    pub fn because(reason: impl Into<String>) -> Skipped {
        Skipped { reason: reason.into() }
    }
}

static SKIPPED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Prints and counts a skipped test; the process prints the list when it ends.
pub fn record(test: &str, skipped: &Skipped) {
    let line = format!("{test}: {}", skipped.reason);
    println!("skipped: {line}");
    let mut list = SKIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    if list.is_empty() {
        // SAFETY: the function takes no arguments, never unwinds, and lives as long as
        // the process.
        unsafe { libc::atexit(print_summary) };
    }
    list.push(line);
}

extern "C" fn print_summary() {
    let list = SKIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut text = format!("\n{} skipped:\n", list.len());
    for line in list.iter() {
        text.push_str("  skipped: ");
        text.push_str(line);
        text.push('\n');
    }
    // SAFETY: the kernel reads a live string. Not `print!`: the test runner captures that,
    // and the summary must be seen.
    unsafe { libc::write(libc::STDOUT_FILENO, text.as_ptr().cast(), text.len()) };
}
