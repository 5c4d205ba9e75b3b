//! Whatever packet comes, from a client or from a monitor: it is refused, or it is exactly
//! what its message encodes to. `cargo +nightly fuzz run monitor_messages`
#![no_main]

use libfuzzer_sys::fuzz_target;
use promote::wire::view::Record;
use promote::wire::{ClientMessage, MonitorMessage};

fuzz_target!(|packet: &[u8]| {
    if let Ok(message) = ClientMessage::decode(packet) {
        assert_eq!(message.encode().as_bytes(), packet);
    }
    if let Ok(Some(record)) = Record::decode(packet) {
        assert_eq!(record.encode().as_bytes(), packet);
    }
    if let Ok(message) = MonitorMessage::decode(packet) {
        assert_eq!(message.encode().as_bytes(), packet);
    }
});
