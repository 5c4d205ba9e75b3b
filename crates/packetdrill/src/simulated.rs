//! Scripts run on a host of ours, under virtual time.

use std::net::SocketAddr;
use std::time::Duration;

use packet::{Batch, Capabilities, Frame, Offload};
use tcp::sockets::{Bits, Errno, How, Notice, Options, Readiness, Set, Socket, Sockets};
use tcp::{Config, Host, Initial, Prefix, Profile, State, Time};

use crate::parse::Script;
use crate::settings::Settings;
use crate::system::{Failed, Sent, System, Watch};

/// Where our sequence numbers begin: data passes 2^32.
const SEQUENCE: u32 = u32::MAX - 700;
/// Timers that are followed between two events, at most.
const STEPS: usize = 100_000;

pub(crate) struct Simulated {
    sockets: Sockets,
    config: Config,
    is_freebsds: bool,
    now: Time,
    batch: Batch,
}

impl Simulated {
    pub(crate) fn new(script: &Script, local: SocketAddr, start: Time) -> Simulated {
        let capabilities = Capabilities { mtu: script.mtu as _, checksum: false, segment: 0 };
        let mut config = Config::new(vec![Prefix::one(local.ip())], capabilities);
        config.initial = Initial::Fixed { sequence: SEQUENCE, timestamp: u32::MAX - 5_000 };
        let is_freebsds = script.is_freebsds();
        Settings::default().apply(&mut config, is_freebsds);
        let sockets = sockets(&config);
        Simulated { sockets, config, is_freebsds, now: start, batch: Batch::new(1 << 20) }
    }

    fn collect(&mut self, sent: &mut Sent) {
        let mut more = true;
        while more {
            self.batch.clear();
            more = self.sockets.output(self.now, &mut self.batch);
            sent.extend(self.batch.frames().map(|frame| (self.now, frame.bytes.to_vec())));
        }
    }
}

fn sockets(config: &Config) -> Sockets {
    Sockets::new(Host::new(config.clone(), [7; 32]), 64)
}

impl System for Simulated {
    fn now(&self) -> Time {
        self.now
    }

    /// With a new host, as long as nothing is open on the old one.
    fn configure(&mut self, settings: &Settings) {
        settings.apply(&mut self.config, self.is_freebsds);
        if self.sockets.open() == 0 && self.sockets.host().live_flows().next().is_none() {
            self.sockets = sockets(&self.config);
        }
    }

    fn runs_by_itself(&self) -> bool {
        false
    }

    fn lateness(&self, _wait: Duration) -> Duration {
        Duration::ZERO
    }

    fn pass(&mut self, until: Time, stop: bool, sent: &mut Sent) {
        for _ in 0..STEPS {
            self.collect(sent);
            if stop && !sent.is_empty() {
                return;
            }
            match self.sockets.deadline() {
                Some(due) if due <= until => self.now = self.now.max(due),
                _ => break,
            }
            self.sockets.advance(self.now);
        }
        self.now = self.now.max(until);
    }

    fn input(&mut self, packet: &[u8]) {
        self.sockets.input(self.now, [Frame { bytes: packet, offload: Offload::default() }]);
    }

    fn socket(&mut self, _v6: bool) -> Result<u32, Failed> {
        Ok(self.sockets.socket()?.0)
    }

    fn bind(&mut self, socket: u32, local: SocketAddr) -> Result<(), Failed> {
        Ok(self.sockets.bind(Socket(socket), local)?)
    }

    fn listen(&mut self, socket: u32, backlog: usize) -> Result<(), Failed> {
        Ok(self.sockets.listen(Socket(socket), backlog)?)
    }

    fn accept(&mut self, socket: u32) -> Result<u32, Failed> {
        Ok(self.sockets.accept(self.now, Socket(socket))?.0)
    }

    fn connect(&mut self, socket: u32, remote: SocketAddr) -> Result<(), Failed> {
        Ok(self.sockets.connect(self.now, Socket(socket), remote)?)
    }

    fn local_address(&self, socket: u32) -> Result<SocketAddr, Failed> {
        Ok(self.sockets.local_address(Socket(socket))?)
    }

    fn read(&mut self, socket: u32, out: &mut [u8], peek: bool) -> Result<usize, Failed> {
        let socket = Socket(socket);
        Ok(match peek {
            true => self.sockets.peek(self.now, socket, out)?,
            false => self.sockets.read(self.now, socket, out)?,
        })
    }

    fn write(&mut self, socket: u32, bytes: &[u8]) -> Result<usize, Failed> {
        Ok(self.sockets.write(self.now, Socket(socket), bytes)?)
    }

    fn shutdown(&mut self, socket: u32, how: How) -> Result<(), Failed> {
        Ok(self.sockets.shutdown(self.now, Socket(socket), how)?)
    }

    fn close(&mut self, socket: u32) -> Result<(), Failed> {
        Ok(self.sockets.close(self.now, Socket(socket))?)
    }

    fn options(&self, socket: u32) -> Result<Options, Failed> {
        Ok(self.sockets.options(Socket(socket))?)
    }

    fn set_options(&mut self, socket: u32, options: Options) -> Result<(), Failed> {
        Ok(self.sockets.set_options(self.now, Socket(socket), options)?)
    }

    fn take_error(&mut self, socket: u32) -> Result<Option<Errno>, Failed> {
        Ok(self.sockets.take_error(Socket(socket))?)
    }

    fn state(&self, socket: u32) -> Result<&'static str, Failed> {
        let info = self.sockets.info(Socket(socket));
        if info == Err(Errno::NotConnected) {
            return Ok("LISTEN");
        }
        Ok(match info?.state {
            State::SynSent => "SYN_SENT",
            State::SynReceived => "SYN_RECEIVED",
            State::Established => "ESTABLISHED",
            State::FinWait1 => "FIN_WAIT_1",
            State::FinWait2 => "FIN_WAIT_2",
            State::Closing => "CLOSING",
            State::TimeWait => "TIME_WAIT",
            State::CloseWait => "CLOSE_WAIT",
            State::LastAck => "LAST_ACK",
            State::Closed => "CLOSED",
        })
    }

    fn profile(&self, socket: u32) -> Result<Profile, Failed> {
        let Options { connect_within, .. } = self.sockets.options(Socket(socket))?;
        let profile = *self.sockets.host().profile();
        Ok(Profile { attempt: connect_within.unwrap_or(profile.attempt), ..profile })
    }

    fn is_plain(&self, socket: u32) -> Result<bool, Failed> {
        let info = self.sockets.info(Socket(socket))?;
        Ok(!(info.scale || info.sack || info.timestamps))
    }

    fn poll(&self, socket: u32) -> Result<Readiness, Failed> {
        Ok(self.sockets.readiness(Socket(socket))?)
    }

    fn create_set(&mut self) -> Result<u32, Failed> {
        Ok(self.sockets.create_set(Bits::Together).0)
    }

    fn close_set(&mut self, set: u32) -> Result<(), Failed> {
        Ok(self.sockets.close_set(Set(set))?)
    }

    fn watch(&mut self, set: u32, socket: u32, change: Watch, data: u64) -> Result<(), Failed> {
        let (set, socket) = (Set(set), Socket(socket));
        match change {
            Watch::Add(wanted, trigger) => self.sockets.add(set, socket, wanted, trigger, data)?,
            Watch::Modify(wanted, trigger) => self.sockets.modify(set, socket, wanted, trigger, data)?,
            Watch::Remove => self.sockets.remove(set, socket)?,
        }
        Ok(())
    }

    fn wait(&mut self, set: u32, most: usize) -> Result<Vec<(Readiness, u64)>, Failed> {
        let mut notices = vec![Notice::default(); most];
        let count = self.sockets.wait(Set(set), &mut notices)?;
        Ok(notices[..count].iter().map(|notice| (notice.readiness, notice.data)).collect())
    }
}
