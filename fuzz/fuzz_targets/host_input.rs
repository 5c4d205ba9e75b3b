//! No segments, packets and calls make a TCP host panic, leave something owed without a deadline, or
//! keep a page. `cargo +nightly fuzz run host_input`
#![no_main]

#[path = "../../crates/tcp/tests/common/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|script: &[u8]| {
    hostile::run(script);
});
