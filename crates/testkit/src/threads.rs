//! Threads of a test that serve until it ends.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag when it is dropped, by a panic too.
///
/// A scope waits for its threads. One that serves until a flag is set would keep a failed assertion
/// beside it from ending the test.
#[derive(Debug)]
#[must_use = "the flag is set when this is dropped"]
pub struct SetAtEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Instant;

    use super::*;
    use crate::driver::WATCHDOG;

    #[test]
    fn a_failed_assertion_ends_the_threads_beside_it() {
        let (over, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let body = || {
            std::thread::scope(|scope| {
                let _end = SetAtEnd(&over);
                scope.spawn(|| {
                    let start = Instant::now();
                    while start.elapsed() < WATCHDOG && !ended.load(Ordering::Relaxed) {
                        ended.store(over.load(Ordering::Relaxed), Ordering::Relaxed);
                        std::thread::yield_now();
                    }
                });
                panic!("as a failed assertion");
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(body)).is_err());
        assert!(ended.load(Ordering::Relaxed), "the thread went on without end");
    }
}
