//! No words that the other end writes into its segment make this end panic, read outside, or
//! go on for ever. `cargo +nightly fuzz run hostile`
#![no_main]

#[path = "../../crates/ring/src/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|script: &[u8]| {
    hostile::run(script);
});
