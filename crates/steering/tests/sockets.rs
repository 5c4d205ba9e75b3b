//! Steering of real connections. Packets over loopback are handled on the CPU that sends them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::process::Command;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use steering::{AWAY_MAX, BEHIND_MAX, Inherited, JoinError, Slot, SlowPath, Steering};
use sys::bpf::WordArray;
use testkit::process;
use testkit::skip::{self, Skipped};

/// Steering and two CPUs, or why there is none.
fn steering(slow_path: SlowPath) -> Result<(Steering, [u32; 2]), Skipped> {
    let &[one, other, ..] = &process::cpus()[..] else { return Err(Skipped::because("needs two CPUs")) };
    let steering = Steering::new(slow_path).map_err(|error| Skipped::because(error.to_string()))?;
    Ok((steering, [one, other]))
}

macro_rules! or_skip {
    ($test:literal, $needed:expr) => {
        match $needed {
            Ok(needed) => needed,
            Err(skipped) => return skip::record($test, &skipped),
        }
    };
}

fn listener(address: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.bind(&address.into()).unwrap();
    socket.listen(512).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn address_of(socket: &Socket) -> SocketAddr {
    socket.local_addr().unwrap().as_socket().unwrap()
}

/// A socket, its place, and how it is accepted from.
struct Member<'a> {
    socket: Socket,
    steering: &'a Steering,
    slot: Slot,
}

impl<'a> Member<'a> {
    fn join(steering: &'a Steering, address: SocketAddr, cpus: &[u32]) -> Member<'a> {
        let socket = listener(address);
        let slot = steering.join(socket.as_fd(), cpus.iter().copied()).unwrap();
        steering.owner(slot).waits();
        Member { socket, steering, slot }
    }

    /// Accepts all that waits; each gets a byte.
    fn serve(&self) -> usize {
        let count = serve(&self.socket, || self.steering.owner(self.slot).accepted());
        self.steering.owner(self.slot).found_queue_empty();
        count
    }

    fn is_away_for(&self, time: Duration) {
        self.steering.owner(self.slot).is_away_since(sys::clock::monotonic() - time.as_nanos() as u64);
    }
}

fn serve(socket: &Socket, each: impl Fn()) -> usize {
    let mut count = 0;
    loop {
        match socket.accept() {
            Ok((mut connection, _)) => connection.write_all(b"!").unwrap(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return count,
            Err(error) => panic!("{error}"),
        }
        each();
        count += 1;
    }
}

/// Connects from one CPU, with `between` after each.
fn connect(cpu: u32, address: SocketAddr, count: usize, mut between: impl FnMut()) -> Vec<TcpStream> {
    let connect = || {
        assert!(process::pin_to(cpu), "the CPU was there a moment ago");
        TcpStream::connect(address).unwrap()
    };
    (0..count)
        .map(|_| {
            let stream = std::thread::scope(|scope| scope.spawn(connect).join().unwrap());
            between();
            stream
        })
        .collect()
}

/// Connections that wait at the listeners of an IPv4 address, in all: their `rx_queue` (proc(5)).
fn queued(address: SocketAddr) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{:04X}", address.port());
    let listens = |fields: &Vec<&str>| fields.len() > 4 && fields[1].ends_with(&port) && fields[3] == "0A";
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(listens).map(|fields| usize::from_str_radix(&fields[4][9..], 16).unwrap()).sum()
}

fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

#[test]
fn connections_go_to_the_members_of_their_cpus() {
    let (steering, [a, b]) =
        or_skip!("connections_go_to_the_members_of_their_cpus", steering(SlowPath::OtherMember));
    let mut addresses = vec![loopback()];
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    if std::net::TcpListener::bind(v6).is_ok() {
        addresses.push(v6);
    }
    for address in addresses {
        let steering = match address.is_ipv4() {
            true => &steering,
            false => &Steering::new(SlowPath::OtherMember).unwrap(),
        };
        let first = Member::join(steering, address, &[a]);
        let address = address_of(&first.socket);
        let second = Member::join(steering, address, &[b]);
        for _ in 0..3 {
            let (mut one, mut other) = (0, 0);
            let _peers = connect(a, address, 20, || one += first.serve());
            let _others = connect(b, address, 30, || other += second.serve());
            assert_eq!((one, other), (20, 30));
        }
        // More members than CPUs share one.
        let third = Member::join(steering, address, &[a]);
        let (mut one, mut other) = (0, 0);
        let _peers = connect(a, address, 200, || (one, other) = (one + first.serve(), other + third.serve()));
        assert_eq!((one + other, second.serve()), (200, 0));
        // Fewer than 40 of 200 fair coins: once in 10^17 runs.
        assert!(one >= 40 && other >= 40, "{one} and {other}");
        steering.set_cpus(third.slot, [b].into_iter());
        let mut one = 0;
        let _peers = connect(a, address, 20, || one += first.serve());
        assert_eq!(one, 20);
    }
}

/// The first bound: an owner that is stopped in its wait, which it cannot say.
#[test]
fn one_that_does_not_accept_gets_as_many_as_it_may_be_behind() {
    let (steering, [a, b]) = or_skip!(
        "one_that_does_not_accept_gets_as_many_as_it_may_be_behind",
        steering(SlowPath::OtherMember)
    );
    let stopped = Member::join(&steering, loopback(), &[a]);
    let address = address_of(&stopped.socket);
    let awake = Member::join(&steering, address, &[b]);
    let mut served = 0;
    let _peers = connect(a, address, 100, || served += awake.serve());
    assert_eq!((stopped.serve(), served), (BEHIND_MAX as usize, 100 - BEHIND_MAX as usize));
    // Once it has accepted, its connections are its own again.
    let owner = steering.owner(stopped.slot);
    assert_eq!(owner.behind(), 0);
    let _peers = connect(a, address, 20, || {
        assert_eq!(owner.behind(), 1);
        served = stopped.serve();
    });
    assert_eq!(served, 1);
}

/// The second bound.
#[test]
fn one_that_is_away_for_too_long_gets_none() {
    let (steering, [a, b]) =
        or_skip!("one_that_is_away_for_too_long_gets_none", steering(SlowPath::OtherMember));
    let away = Member::join(&steering, loopback(), &[a]);
    let address = address_of(&away.socket);
    let awake = Member::join(&steering, address, &[b]);
    let count = |time: Option<Duration>| {
        let (mut own, mut other) = (0, 0);
        let _peers = connect(a, address, 20, || {
            (own, other) = (own + away.serve(), other + awake.serve());
            if let Some(time) = time {
                away.is_away_for(time);
            }
        });
        (own, other)
    };
    away.is_away_for(AWAY_MAX);
    assert_eq!(count(Some(AWAY_MAX)), (0, 20));
    // Away since a moment that is still to come, so that this test may be slow.
    let soon = sys::clock::monotonic() + 3_600_000_000_000;
    steering.owner(away.slot).is_away_since(soon);
    assert_eq!(count(None), (20, 0));
    // Nobody else is there either: rather its own than any.
    away.is_away_for(AWAY_MAX);
    awake.is_away_for(AWAY_MAX);
    assert_eq!(count(None), (20, 0));
}

#[test]
fn a_member_that_closes_leaves_its_connections_to_others() {
    let (steering, [a, b]) =
        or_skip!("a_member_that_closes_leaves_its_connections_to_others", steering(SlowPath::OtherMember));
    let closed = Member::join(&steering, loopback(), &[a]);
    let address = address_of(&closed.socket);
    let open = Member::join(&steering, address, &[b]);
    let closed_too = Member::join(&steering, address, &[]);
    let mut peers = connect(a, address, 5, || ());
    // A busy kernel takes the last ACK later than connect(2) returns, and a handshake that ends while
    // its listener closes may be reset.
    process::until("all to wait at listeners", || (queued(address) == 5).then_some(()));
    steering.owner(closed.slot).cannot_accept();
    drop(closed.socket);
    drop(closed_too.socket);
    // They are queued with the one that is left, which is behind and away besides.
    open.is_away_for(AWAY_MAX);
    assert_eq!(open.serve(), 5);
    for peer in &mut peers {
        peer.read_exact(&mut [0]).expect("no connection is reset");
    }
    // Its place is free for another, which is away, too, but not unable to accept as it was.
    let socket = listener(address);
    let slot = steering.join(socket.as_fd(), [a].into_iter()).unwrap();
    assert_eq!(slot, closed.slot);
    let late = Member { socket, steering: &steering, slot };
    open.is_away_for(AWAY_MAX);
    let mut served = 0;
    let _peers = connect(a, address, 20, || served += late.serve());
    assert_eq!(served, 20);
}

#[test]
fn the_shared_socket_takes_what_members_do_not() {
    let (steering, [a, b]) =
        or_skip!("the_shared_socket_takes_what_members_do_not", steering(SlowPath::SharedSocket));
    let shared = listener(loopback());
    let address = address_of(&shared);
    steering.share(shared.as_fd()).unwrap();
    let member = Member::join(&steering, address, &[a]);
    let _other = Member::join(&steering, address, &[]);
    let mut served = 0;
    // A CPU without a member; a member that is behind; one that is away.
    let _peers = connect(b, address, 20, || ());
    assert_eq!(serve(&shared, || ()), 20);
    let _peers = connect(a, address, 100, || served += serve(&shared, || ()));
    assert_eq!((member.serve(), served), (BEHIND_MAX as usize, 100 - BEHIND_MAX as usize));
    member.is_away_for(AWAY_MAX);
    let _peers = connect(a, address, 20, || ());
    assert_eq!((member.serve(), serve(&shared, || ())), (0, 20));
    // One that closes: what waits there, and what comes later.
    steering.owner(member.slot).waits();
    let mut peers = connect(a, address, 5, || ());
    drop(member.socket);
    peers.extend(connect(a, address, 5, || ()));
    assert_eq!(serve(&shared, || ()), 10);
    for peer in &mut peers {
        peer.read_exact(&mut [0]).expect("no connection is reset");
    }
}

#[test]
fn what_cannot_be_steered_to_is_refused() {
    let (steering, [a, _]) =
        or_skip!("what_cannot_be_steered_to_is_refused", steering(SlowPath::OtherMember));
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&loopback().into()).unwrap();
    socket.listen(1).unwrap();
    let refused = steering.join(socket.as_fd(), [a].into_iter());
    assert!(matches!(refused, Err(JoinError::Io(error)) if error.kind() == ErrorKind::InvalidInput));
    // A CPU that no machine has is none.
    let member = Member::join(&steering, loopback(), &[1 << 20]);
    let address = address_of(&member.socket);
    let _peers = connect(a, address, 3, || ());
    assert_eq!(member.serve(), 3);
}

/// As another program finds them, which got the descriptors alone.
fn inherited(descriptors: &[RawFd]) -> Vec<Inherited<'_>> {
    // SAFETY: descriptors of steering that lives as long.
    let borrow = |fd: &RawFd| unsafe { BorrowedFd::borrow_raw(*fd) };
    Inherited::among(descriptors.iter().map(borrow))
}

#[test]
fn members_go_on_with_inherited_steering() {
    let (steering, [a, b]) =
        or_skip!("members_go_on_with_inherited_steering", steering(SlowPath::SharedSocket));
    let shared = listener(loopback());
    let address = address_of(&shared);
    steering.share(shared.as_fd()).unwrap();
    let old = Member::join(&steering, address, &[a]);
    let other = Steering::new(SlowPath::SharedSocket).unwrap();
    let descriptors = [other.descriptors(), steering.descriptors()].concat();
    let cookie = shared.cookie().unwrap();
    let new = Steering::new(SlowPath::SharedSocket).unwrap();
    let anew = new.or_inherited(&inherited(&descriptors), cookie);
    assert!(anew.is_shared_by(cookie));
    let new = Member::join(&anew, address, &[b]);
    assert_ne!(new.slot, old.slot);
    for (cpu, counts) in [(a, (20, 0)), (b, (0, 20))] {
        let (mut one, mut other) = (0, 0);
        let _peers = connect(cpu, address, 20, || (one, other) = (one + old.serve(), other + new.serve()));
        assert_eq!((one, other), counts);
    }
    // What waits at one that closes is accepted by others, and its place is free again.
    let mut peers = connect(a, address, 5, || ());
    let slot = old.slot;
    drop(old);
    drop(steering);
    assert_eq!(serve(&shared, || ()) + new.serve(), 5);
    for peer in &mut peers {
        peer.read_exact(&mut [0]).expect("no connection is reset");
    }
    assert_eq!(Member::join(&anew, address, &[a]).slot, slot);
}

#[test]
fn steering_of_another_make_is_not_inherited() {
    let (steering, _) =
        or_skip!("steering_of_another_make_is_not_inherited", steering(SlowPath::SharedSocket));
    let shared = listener(loopback());
    steering.share(shared.as_fd()).unwrap();
    let cookie = shared.cookie().unwrap();
    let is_inherited = |descriptors: &[RawFd], cookie: u64, slow_path: SlowPath| {
        let new = Steering::new(slow_path).unwrap();
        new.or_inherited(&inherited(descriptors), cookie).is_shared_by(cookie)
    };
    let all = steering.descriptors();
    assert!(is_inherited(&all, cookie, SlowPath::SharedSocket));
    assert!(!is_inherited(&all, cookie, SlowPath::OtherMember), "another program");
    assert!(!is_inherited(&all, cookie + 1, SlowPath::SharedSocket), "another listener");
    let [program, members, places, sockets] = all;
    let other = Steering::new(SlowPath::SharedSocket).unwrap();
    let mut some = vec![shared.as_raw_fd(), 0];
    for fd in other.descriptors().into_iter().chain(all) {
        assert!(!is_inherited(&some, cookie, SlowPath::SharedSocket), "{some:?}");
        some.push(fd);
    }
    assert!(is_inherited(&some, cookie, SlowPath::SharedSocket));
    // Maps by the same names that are none of the program's, or made otherwise.
    let [others_program, ..] = other.descriptors();
    let wrong = WordArray::new("members", 1, 1).unwrap();
    for descriptors in [
        [others_program, members, places, sockets],
        [program, wrong.as_fd().as_raw_fd(), places, sockets],
        [program, sockets, places, program],
    ] {
        assert!(!is_inherited(&descriptors, cookie, SlowPath::SharedSocket), "{descriptors:?} of {all:?}");
    }
}

/// Without CAP_PERFMON the verifier follows more ways through a program, and without
/// CAP_NET_ADMIN it allows fewer kinds.
#[test]
fn cap_bpf_is_enough() {
    const TEST: &str = "cap_bpf_is_enough";
    if let Err(skipped) = steering(SlowPath::OtherMember) {
        return skip::record(TEST, &skipped);
    }
    let restricted = || {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-all,+bpf", "--inh-caps=-all"]);
        command
    };
    let can_restrict = || restricted().arg("true").status().is_ok_and(|status| status.success());
    if process::role().is_none() && !can_restrict() {
        return skip::record(TEST, &Skipped::because("needs setpriv(1) and CAP_SETPCAP"));
    }
    let this = process::this_test_as(TEST, "isolated");
    let mut program = restricted();
    program.arg(this.get_program()).args(this.get_args());
    program.envs(this.get_envs().filter_map(|(name, value)| Some((name, value?))));
    process::isolated_as(program, || {
        for slow_path in [SlowPath::OtherMember, SlowPath::SharedSocket] {
            Steering::new(slow_path).expect("CAP_BPF is there");
        }
        connections_go_to_the_members_of_their_cpus();
        a_member_that_closes_leaves_its_connections_to_others();
    });
}

#[test]
fn without_privileges_there_is_an_error_that_names_them() {
    const TEST: &str = "without_privileges_there_is_an_error_that_names_them";
    if !testkit::netns::enter_without_tun(TEST, Duration::from_secs(60)) {
        return;
    }
    let refused = Steering::new(SlowPath::OtherMember).expect_err("a user namespace gives no BPF");
    assert!(refused.to_string().contains("CAP_BPF"), "{refused}");
}
