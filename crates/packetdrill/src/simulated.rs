//! Scripts run on a host of ours, under virtual time.

use std::net::SocketAddr;
use std::time::Duration;

use packet::{Batch, Capabilities, Frame, Offload};
use tcp::sockets::{Bits, Errno, How, Notice, Options, Readiness, Set, Socket, Sockets};
use tcp::{Config, Host, Initial, Prefix, Profile, State, Time};

use crate::parse::Script;
use crate::settings::Settings;
use crate::system::{CLOSED, Failed, LISTEN, OPTIONS, Sent, System, Watch};

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

    fn segment_size(&self, socket: u32) -> Result<u32, Failed> {
        Ok(self.sockets.segment_size(Socket(socket))?.into())
    }

    fn take_error(&mut self, socket: u32) -> Result<Option<Errno>, Failed> {
        Ok(self.sockets.take_error(Socket(socket))?)
    }

    fn info(&self, socket: u32, field: &str) -> Result<Option<i64>, Failed> {
        let info = self.sockets.info(Socket(socket));
        if field == "tcpi_state" && info == Err(Errno::NotConnected) {
            return Ok(Some(LISTEN));
        }
        let info = info?;
        let segments = |bytes: u32| i64::from(bytes / u32::from(info.mss).max(1));
        Ok(Some(match field {
            "tcpi_state" => match info.state {
                State::Established => 1,
                State::SynSent => 2,
                State::SynReceived => 3,
                State::FinWait1 => 4,
                State::FinWait2 => 5,
                State::TimeWait => 6,
                State::Closed => CLOSED,
                State::CloseWait => 8,
                State::LastAck => 9,
                State::Closing => 11,
            },
            "tcpi_options" => {
                let used = [info.timestamps, info.sack, info.scale, info.ecn];
                OPTIONS.iter().zip(used).filter(|(_, used)| *used).map(|((_, bit), _)| bit).sum()
            }
            "tcpi_rto" => info.timeout_micros as i64,
            "tcpi_rtt" => info.round_trip_micros.into(),
            "tcpi_rttvar" => info.round_trip_variation_micros.into(),
            "tcpi_min_rtt" => info.least_round_trip_micros.into(),
            "tcpi_snd_mss" => info.mss.into(),
            "tcpi_snd_cwnd" => segments(info.congestion_window),
            "tcpi_snd_ssthresh" => segments(info.slow_start_threshold),
            "tcpi_total_retrans" => info.segments_again.into(),
            "tcpi_bytes_retrans" => info.bytes_again as i64,
            "tcpi_notsent_bytes" => info.unsent.into(),
            "tcpi_delivery_rate" => info.delivery_rate.into(),
            _ => return Ok(None),
        }))
    }

    fn profile(&self, socket: u32) -> Result<Profile, Failed> {
        let Options { connect_within, .. } = self.sockets.options(Socket(socket))?;
        let profile = *self.sockets.host().profile();
        Ok(Profile { attempt: connect_within.unwrap_or(profile.attempt), ..profile })
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
