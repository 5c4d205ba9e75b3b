//! Scripts run on the kernel's own sockets, over a TUN device and by the machine's clock.
//!
//! The interpreter is graded here: what Linux does is known, and a script that it does not pass is one
//! that the interpreter reads wrongly, or has `#ifdef Linux` for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use packet::tun::{OpenError, Tun};
use packet::{Batch, Device, Frame, Offload, Protocol, View, segment};
use rustix::event::{self, PollFd, PollFlags, Timespec, epoll};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};
use socket2::SockRef;
use tcp::sockets::{Errno, How, Options, Readiness, Trigger};
use tcp::{Marking, Profile, Time};

use crate::parse::Script;
use crate::run::{Run, at, differs};
use crate::settings::Settings;
use crate::system::{CLOSED, Failed, Sent, System, Watch};
use crate::{Cause, Error};

/// How late packets may be seen whatever caused them: other programs want the processor, too.
const LATENESS: Duration = Duration::from_millis(150);
/// Timers of the kernel are late by up to this part of their time (its timer wheel), and by a tick.
const TIMER_STEP: u32 = 8;
/// A receive buffer for which the kernel offers the largest window that fits into a header.
const RECEIVE_BUFFER: usize = 256 << 10;

/// Runs a script on the kernel's sockets, on a device of its own. Needs the right to make one: a
/// network namespace of its own.
pub fn run_on_kernel(script: &Script) -> Result<Result<(), Error>, OpenError> {
    static DEVICES: AtomicU16 = AtomicU16::new(0);
    let number = DEVICES.fetch_add(1, Ordering::Relaxed);
    let [high, low] = number.to_be_bytes();
    let address = |last: u8| match script.v6 {
        false => IpAddr::V4(Ipv4Addr::new(10, high, low, last)),
        true => IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, number, 0, 0, 0, last.into())),
    };
    let tun = Tun::open("script%d", script.mtu as u16)?;
    tun.bring_up()?;
    tun.add_kernel_address(address(1), if script.v6 { 64 } else { 24 })?;
    let (into, out) = (Batch::new(1 << 20), Batch::new(1 << 20));
    let system = Kernel { tun, origin: Instant::now(), into, out, sockets: Vec::new(), sets: Vec::new() };
    Ok(Run::new(script, system, address(1), address(2)).all(script))
}

struct Kernel {
    tun: Tun,
    /// The script's time 0.
    origin: Instant,
    into: Batch,
    out: Batch,
    sockets: Vec<Option<Socket>>,
    sets: Vec<Option<OwnedFd>>,
}

struct Socket {
    fd: OwnedFd,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
}

impl Kernel {
    fn get(&self, socket: u32) -> Result<&Socket, Failed> {
        let socket = self.sockets.get(socket as usize).and_then(Option::as_ref);
        socket.ok_or(Failed::Errno(Errno::BadDescriptor))
    }

    fn get_mut(&mut self, socket: u32) -> Result<&mut Socket, Failed> {
        let socket = self.sockets.get_mut(socket as usize).and_then(Option::as_mut);
        socket.ok_or(Failed::Errno(Errno::BadDescriptor))
    }

    fn set(&self, set: u32) -> Result<&OwnedFd, Failed> {
        let set = self.sets.get(set as usize).and_then(Option::as_ref);
        set.ok_or(Failed::Errno(Errno::BadDescriptor))
    }

    fn add(&mut self, socket: Socket) -> u32 {
        self.sockets.push(Some(socket));
        self.sockets.len() as u32 - 1
    }

    /// The state of a connection, as `/proc/net/tcp` has it. A socket that is not there is closed.
    fn state(&self, socket: u32) -> Result<i64, Failed> {
        let &Socket { local: Some(local), remote, .. } = self.get(socket)? else { return Ok(CLOSED) };
        let file = if local.is_ipv6() { "/proc/net/tcp6" } else { "/proc/net/tcp" };
        let table = std::fs::read_to_string(file).unwrap_or_default();
        let remote = remote.unwrap_or_else(|| match local {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        });
        let (local, remote) = (in_table(local), in_table(remote));
        let state = table.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
            [_, here, there, state, ..] if here == local && there == remote => Some(state.to_string()),
            _ => None,
        });
        Ok(state.and_then(|state| i64::from_str_radix(&state, 16).ok()).unwrap_or(CLOSED))
    }

    /// Takes what the kernel has sent: TCP, a packet a segment.
    fn collect(&mut self, sent: &mut Sent) {
        loop {
            self.into.clear();
            if self.tun.receive(&mut self.into).expect("the device") == 0 {
                return;
            }
            let now = self.now();
            let packets = self.into.frames().flat_map(segment::split).map(|packet| packet.bytes);
            let is_tcp = |bytes: &Vec<u8>| View::of(bytes).is_some_and(|view| view.protocol == Protocol::TCP);
            sent.extend(packets.filter(is_tcp).map(|bytes| (now, bytes)));
        }
    }
}

/// Errors of calls that a script can name.
const ERRORS: [Errno; 19] = [
    Errno::BadDescriptor,
    Errno::WouldBlock,
    Errno::InProgress,
    Errno::Already,
    Errno::IsConnected,
    Errno::NotConnected,
    Errno::InUse,
    Errno::NotAvailable,
    Errno::Invalid,
    Errno::NotSupported,
    Errno::Pipe,
    Errno::Refused,
    Errno::Reset,
    Errno::TimedOut,
    Errno::Unreachable,
    Errno::TooMany,
    Errno::NoBuffers,
    Errno::Exists,
    Errno::NotFound,
];

fn named(errno: rustix::io::Errno) -> Option<Errno> {
    ERRORS.into_iter().find(|known| known.number() == errno.raw_os_error())
}

/// An error of a call, by its number.
fn failed(error: std::io::Error) -> Failed {
    rustix::io::Errno::from_io_error(&error)
        .map_or_else(|| Failed::Cause(differs("an error of a call", &error)), Failed::from)
}

impl From<rustix::io::Errno> for Failed {
    fn from(errno: rustix::io::Errno) -> Failed {
        match named(errno) {
            Some(errno) => Failed::Errno(errno),
            None => Failed::Cause(differs("a known error", errno)),
        }
    }
}

impl System for Kernel {
    fn now(&self) -> Time {
        at(self.origin.elapsed().as_micros() as u64)
    }

    /// Nothing: those are not its names.
    fn configure(&mut self, _settings: &Settings) {}

    fn runs_by_itself(&self) -> bool {
        true
    }

    fn lateness(&self, wait: Duration) -> Duration {
        LATENESS + wait / TIMER_STEP
    }

    fn pass(&mut self, until: Time, stop: bool, sent: &mut Sent) {
        loop {
            self.collect(sent);
            let left = until.since(self.now());
            if left.is_zero() || stop && !sent.is_empty() {
                return;
            }
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            // An interrupted wait is as good as one that is over.
            let _ = event::poll(&mut [PollFd::new(&self.tun, PollFlags::IN)], Some(&timeout));
        }
    }

    fn input(&mut self, packet: &[u8]) {
        self.out.clear();
        self.out.push(Frame { bytes: packet, offload: Offload::default() }).expect("an empty batch");
        self.tun.send(&mut self.out).expect("the device");
    }

    fn socket(&mut self, v6: bool) -> Result<u32, Failed> {
        let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER)?;
        Ok(self.add(Socket { fd, local: None, remote: None }))
    }

    fn bind(&mut self, socket: u32, local: SocketAddr) -> Result<(), Failed> {
        let socket = self.get_mut(socket)?;
        net::bind(&socket.fd, &local)?;
        socket.local = Some(local);
        Ok(())
    }

    fn listen(&mut self, socket: u32, backlog: usize) -> Result<(), Failed> {
        Ok(net::listen(&self.get(socket)?.fd, backlog as i32)?)
    }

    fn accept(&mut self, socket: u32) -> Result<u32, Failed> {
        let listener = self.get(socket)?;
        let (fd, remote) = net::acceptfrom_with(&listener.fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
        let remote = remote.and_then(|remote| SocketAddr::try_from(remote).ok());
        let local = listener.local;
        Ok(self.add(Socket { fd, local, remote }))
    }

    fn connect(&mut self, socket: u32, remote: SocketAddr) -> Result<(), Failed> {
        let socket = self.get_mut(socket)?;
        socket.remote = Some(remote);
        let begun = net::connect(&socket.fd, &remote);
        socket.local = net::getsockname(&socket.fd).ok().and_then(|local| local.try_into().ok());
        Ok(begun?)
    }

    fn local_address(&self, socket: u32) -> Result<SocketAddr, Failed> {
        Ok(self.get(socket)?.local.ok_or(Errno::Invalid)?)
    }

    fn read(&mut self, socket: u32, out: &mut [u8], peek: bool) -> Result<usize, Failed> {
        let flags = if peek { RecvFlags::PEEK } else { RecvFlags::empty() };
        Ok(net::recv(&self.get(socket)?.fd, out, flags)?.0)
    }

    fn write(&mut self, socket: u32, bytes: &[u8]) -> Result<usize, Failed> {
        Ok(net::send(&self.get(socket)?.fd, bytes, SendFlags::NOSIGNAL)?)
    }

    fn shutdown(&mut self, socket: u32, how: How) -> Result<(), Failed> {
        let how = match how {
            How::Read => Shutdown::Read,
            How::Write => Shutdown::Write,
            How::Both => Shutdown::Both,
        };
        Ok(net::shutdown(&self.get(socket)?.fd, how)?)
    }

    fn close(&mut self, socket: u32) -> Result<(), Failed> {
        let socket = self.sockets.get_mut(socket as usize).and_then(Option::take);
        socket.map(drop).ok_or(Failed::Errno(Errno::BadDescriptor))
    }

    fn options(&self, socket: u32) -> Result<Options, Failed> {
        let fd = &self.get(socket)?.fd;
        Ok(Options {
            no_delay: sockopt::tcp_nodelay(fd)?,
            cork: sockopt::tcp_cork(fd)?,
            keep_alive: sockopt::socket_keepalive(fd)?,
            linger: sockopt::socket_linger(fd)?,
            user_timeout: Some(sockopt::tcp_user_timeout(fd)?)
                .filter(|&millis| millis > 0)
                .map(|millis| Duration::from_millis(millis.into())),
            ..Options::default()
        })
    }

    fn set_options(&mut self, socket: u32, options: Options) -> Result<(), Failed> {
        let fd = &self.get(socket)?.fd;
        sockopt::set_tcp_nodelay(fd, options.no_delay)?;
        sockopt::set_tcp_cork(fd, options.cork)?;
        if let Some(most) = options.max_segment {
            SockRef::from(fd).set_tcp_mss(most.into()).map_err(failed)?;
        }
        sockopt::set_socket_keepalive(fd, options.keep_alive)?;
        let user_timeout = options.user_timeout.map_or(0, |time| time.as_millis() as u32);
        sockopt::set_tcp_user_timeout(fd, user_timeout)?;
        let Marking { traffic_class, hop_limit } = options.marking;
        let v6 = sockopt::socket_domain(fd)? == AddressFamily::INET6;
        match (v6, hop_limit) {
            (_, None) => {}
            (false, Some(hops)) => sockopt::set_ip_ttl(fd, hops.into())?,
            (true, Some(hops)) => sockopt::set_ipv6_unicast_hops(fd, Some(hops))?,
        }
        match (v6, traffic_class) {
            (_, 0) => {}
            (false, class) => sockopt::set_ip_tos(fd, class)?,
            (true, class) => sockopt::set_ipv6_tclass(fd, class.into())?,
        }
        Ok(sockopt::set_socket_linger(fd, options.linger)?)
    }

    fn segment_size(&self, socket: u32) -> Result<u32, Failed> {
        SockRef::from(&self.get(socket)?.fd).tcp_mss().map_err(failed)
    }

    fn take_error(&mut self, socket: u32) -> Result<Option<Errno>, Failed> {
        match sockopt::socket_error(&self.get(socket)?.fd)? {
            Ok(()) => Ok(None),
            Err(errno) => named(errno).map(Some).ok_or_else(|| Failed::from(errno)),
        }
    }

    fn info(&self, socket: u32, field: &str) -> Result<Option<i64>, Failed> {
        if field == "tcpi_state" {
            return self.state(socket).map(Some);
        }
        let info = sys::tcp::info(self.get(socket)?.fd.as_fd());
        let info = info.map_err(|error| Failed::Cause(differs("TCP_INFO", error)))?;
        Ok(match field {
            "tcpi_rto" => Some(info.rto.as_micros() as i64),
            "tcpi_rtt" => Some(info.rtt.as_micros() as i64),
            "tcpi_rttvar" => Some(info.rtt_variation.as_micros() as i64),
            "tcpi_snd_mss" => Some(info.segment_size.into()),
            "tcpi_snd_cwnd" => Some(info.congestion_window.into()),
            "tcpi_bytes_retrans" => Some(info.bytes_retransmitted as i64),
            _ => None,
        })
    }

    fn profile(&self, _socket: u32) -> Result<Profile, Failed> {
        Err(Failed::Cause(Cause::Unsupported("the times of a socket".into())))
    }

    fn poll(&self, socket: u32) -> Result<Readiness, Failed> {
        let wanted = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
        let mut fds = [PollFd::new(&self.get(socket)?.fd, wanted)];
        event::poll(&mut fds, Some(&Timespec::default()))?;
        Ok(readiness(fds[0].revents().bits().into()))
    }

    fn create_set(&mut self) -> Result<u32, Failed> {
        self.sets.push(Some(epoll::create(epoll::CreateFlags::CLOEXEC)?));
        Ok(self.sets.len() as u32 - 1)
    }

    fn close_set(&mut self, set: u32) -> Result<(), Failed> {
        let set = self.sets.get_mut(set as usize).and_then(Option::take);
        set.map(drop).ok_or(Failed::Errno(Errno::BadDescriptor))
    }

    fn watch(&mut self, set: u32, socket: u32, change: Watch, data: u64) -> Result<(), Failed> {
        let (set, socket) = (self.set(set)?, &self.get(socket)?.fd);
        let data = epoll::EventData::new_u64(data);
        match change {
            Watch::Add(wanted, trigger) => epoll::add(set, socket, data, flags(wanted, trigger))?,
            Watch::Modify(wanted, trigger) => epoll::modify(set, socket, data, flags(wanted, trigger))?,
            Watch::Remove => epoll::delete(set, socket)?,
        }
        Ok(())
    }

    fn wait(&mut self, set: u32, most: usize) -> Result<Vec<(Readiness, u64)>, Failed> {
        let mut events = Vec::with_capacity(most);
        epoll::wait(self.set(set)?, rustix::buffer::spare_capacity(&mut events), Some(&Timespec::default()))?;
        let notice = |event: epoll::Event| {
            let flags = event.flags;
            (readiness(flags.bits()), event.data.u64())
        };
        Ok(events.into_iter().map(notice).collect())
    }
}

/// Bits of poll(2) and epoll(7): they have the same ones.
const BITS: [(u32, Readiness); 5] = [
    (epoll::EventFlags::IN.bits(), Readiness::READABLE),
    (epoll::EventFlags::OUT.bits(), Readiness::WRITABLE),
    (epoll::EventFlags::ERR.bits(), Readiness::ERROR),
    (epoll::EventFlags::HUP.bits(), Readiness::HANGUP),
    (epoll::EventFlags::RDHUP.bits(), Readiness::READ_HANGUP),
];

fn readiness(bits: u32) -> Readiness {
    let set = BITS.iter().filter(|(bit, _)| bits & bit != 0);
    set.fold(Readiness::NONE, |all, (_, one)| all.with(*one))
}

fn flags(wanted: Readiness, trigger: Trigger) -> epoll::EventFlags {
    let set = BITS.iter().filter(|(_, one)| wanted.has(*one));
    let bits = set.fold(0, |all, (bit, _)| all | bit);
    epoll::EventFlags::from_bits_retain(bits)
        | match trigger {
            Trigger::Level => epoll::EventFlags::empty(),
            Trigger::Edge => epoll::EventFlags::ET,
            Trigger::Once => epoll::EventFlags::ONESHOT,
        }
}

/// An address as `/proc/net/tcp` prints it: words in the machine's order.
fn in_table(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    let words: String = words.map(|word| format!("{word:08X}")).collect();
    format!("{words}:{:04X}", address.port())
}
