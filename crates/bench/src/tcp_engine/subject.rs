//! What is measured: a TCP that takes a burst of segments, has its program read, and answers.

use packet::{Batch, Capabilities, Checksum};
use tcp::{Config, Event, Host, Initial, Limits, Listener, Pattern, Prefix, Profile, Read, Time};

use super::clients::{PORT, SERVER};

/// What came of a burst.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Answered {
    /// Packets that were sent.
    pub(super) packets: u64,
    /// Bytes that the program read.
    pub(super) bytes: u64,
}

impl std::ops::AddAssign for Answered {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// A TCP with its program, which reads all that comes.
pub(super) trait Subject {
    /// Takes a burst, reads, and puts the answers where [`Subject::last`] finds them.
    fn turn(&mut self, micros: u64, burst: &Batch) -> Answered;

    /// The last answer.
    fn last(&self) -> &[u8];
}

/// Ours.
pub(super) struct Tcp {
    host: Host,
    listener: Listener,
    out: Batch,
    room: Vec<u8>,
}

impl Tcp {
    /// For so many connections, with checksums as the device leaves them.
    pub(super) fn new(connections: u32, checksum: Checksum) -> Self {
        let capabilities =
            Capabilities { mtu: 1500, checksum: checksum != Checksum::Complete, segment: 65_535 };
        let mut config = Config::new(vec![Prefix::one(SERVER.into())], capabilities);
        config.limits = Limits {
            flows: connections as usize,
            active: 1024,
            half_open: 128,
            time_wait: 128,
            listeners: 1,
            receive_pages: 1024,
            send_pages: 128,
            ..Limits::default()
        };
        // One acknowledgement for each segment.
        config.profile = Profile { delayed_ack: std::time::Duration::ZERO, ..Profile::wan() };
        // The same number for every connection: clients keep no state.
        config.initial = Initial::Fixed { sequence: 1, timestamp: 0 };
        let mut host = Host::new(config, [7; 32]);
        let listener = host.listen(Pattern { address: None, port: Some(PORT) }, 128);
        Self {
            host,
            listener: listener.expect("there is no other listener"),
            out: Batch::new(256 << 10),
            room: vec![0; 2048],
        }
    }
}

impl Subject for Tcp {
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
                        answered.bytes += len as u64;
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
            answered.packets += self.out.len() as u64;
            if !more {
                return answered;
            }
        }
    }

    fn last(&self) -> &[u8] {
        self.out.frames().last().map_or(&[], |frame| frame.bytes)
    }
}
