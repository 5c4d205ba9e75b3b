//! This crate's host.

use std::time::Duration;

use packet::{Batch, Capabilities, Checksum};
use tcp::{Config, Event, Host, Initial, Limits, Listener, Pattern, Prefix, Profile, Read, Time};

use crate::clients::{PORT, SERVER};
use crate::{Answered, Subject};

pub(super) struct Stack {
    host: Host,
    listener: Listener,
    out: Batch,
    room: Vec<u8>,
}

impl Stack {
    pub(super) fn new(connections: u32, checksum: Checksum) -> Self {
        let capabilities =
            Capabilities { mtu: 1500, checksum: checksum != Checksum::Complete, segment: 65_535 };
        let mut config = Config::new(vec![Prefix::one(SERVER.into())], capabilities);
        config.limits = Limits { flows: connections as usize, listeners: 1, ..Limits::default() };
        // One acknowledgement for each segment.
        config.profile = Profile { delayed_ack: Duration::ZERO, ..Profile::wan() };
        // The same number for every connection: clients keep no state.
        config.initial = Initial::Fixed { sequence: 1, timestamp: 0 };
        let mut host = Host::new(config, [7; 32]);
        let listener = host.listen(Pattern { address: None, port: Some(PORT) }, 128);
        let listener = listener.expect("there is no other listener");
        Self { host, listener, out: Batch::new(256 << 10), room: vec![0; 2048] }
    }
}

impl Subject for Stack {
    fn turn(&mut self, micros: u64, burst: &Batch) -> Answered {
        let now = Time::from_micros(micros);
        let mut answered = Answered::default();
        self.host.advance(now);
        self.host.input(now, burst.frames());
        while let Some(event) = self.host.event() {
            match event {
                Event::Flow { flow, .. } => {
                    // Less than there is room for is all that there is.
                    while let Ok(Read::Bytes(len)) = self.host.read(now, flow, &mut self.room) {
                        answered.bytes += len;
                        if len < self.room.len() {
                            break;
                        }
                    }
                }
                Event::Incoming(_) => while self.host.accept(self.listener).is_some() {},
                Event::Ask { .. } => {}
            }
        }
        loop {
            self.out.clear();
            let more = self.host.output(now, &mut self.out);
            answered.packets += self.out.len();
            if !more {
                return answered;
            }
        }
    }

    fn last(&self) -> &[u8] {
        self.out.frames().last().map_or(&[], |frame| frame.bytes)
    }
}
