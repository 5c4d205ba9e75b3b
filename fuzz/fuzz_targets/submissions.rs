//! No submissions to an io_uring, beside calls through the library, crash it, or lose a byte of a connection that they do not
//! name. `cargo +nightly fuzz run submissions`
#![no_main]

#[path = "../../crates/interpose/tests/common/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(init: hostile::prepare(), |script: &[u8]| {
    interpose::forget_rings();
    let _ = hostile::run(script);
});
