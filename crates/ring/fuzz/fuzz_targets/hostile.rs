//! `cargo +nightly fuzz run hostile`, in crates/ring: no words of the other end make this end
//! panic, read outside, or go on for ever.
#![no_main]

#[path = "../src/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|script: &[u8]| {
    hostile::run(script);
});
