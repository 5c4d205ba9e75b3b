//! Stacks in user space beside the kernel's files, in one channel.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use megapipe::packet::link;
use megapipe::packet::{Batch, Capabilities, Device};
use megapipe::tcp::Prefix;
use megapipe::{
    AcceptAs, AcceptCount, Channel, Completion, ControlError, Event, Handle, KeepAlive, OpenError, ReadData,
    Shutdown, Source, Stack, SubmitError, TunNetwork,
};
use socket2::Type;
use testkit::confine;
use testkit::conformance::Fixture;
use testkit::driver::Driver;
use testkit::net;
use testkit::netns;
use testkit::process;
use testkit::skip::Verdict;

testkit::one_test_per_engine!(
    echo_over_a_memory_link
    kernel_and_stack_in_one_loop
    a_channel_that_is_dropped_sends_what_was_written
    a_dropped_channel_resets_a_peer_that_does_not_read
    deadlines_end_sleeps_and_cost_no_spinning
    a_dropped_channel_lets_its_device_go
    sockets_of_a_stack_take_no_descriptor
    answers_carry_the_acknowledgements
    a_descriptor_is_refused
    keep_alive_of_a_connection
    keep_alive_set_before_there_is_a_connection
    a_user_timeout_bounds_an_attempt
    a_user_timeout_that_is_taken_back_bounds_no_attempt
);

const PORT: u16 = 7;
const BOUND: Duration = Duration::from_secs(300);

/// Cookies.
const LISTENER: u64 = 1;
const SERVER: u64 = 2;
const CLIENT: u64 = 3;
const PIPE: u64 = 4;
const TIMER: u64 = 5;

fn address(last: u16, v6: bool) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, last))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 78, 0, last as u8))
    }
}

/// Both addresses of a host, on networks that it shares with the other.
fn networks(last: u16) -> Vec<Prefix> {
    let network = |v6| Prefix { address: address(last, v6), bits: if v6 { 64 } else { 24 } };
    vec![network(false), network(true)]
}

/// A channel with two stacks that a memory link joins.
fn linked(fixture: &Fixture) -> Driver {
    let mut driver = fixture.driver();
    let capabilities = Capabilities { mtu: 1500, checksum: true, segment: 65_535 };
    let (left, right) = link::pair(capabilities, 256);
    driver.attach(Stack::polled(left, networks(1))).expect("a stack");
    driver.attach(Stack::polled(right, networks(2))).expect("a stack");
    driver
}

/// Runs an echo server on `listener` and a client that writes `bytes` there and reads them back.
fn echo(driver: &mut Driver, listener: Handle, to: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    driver.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket).expect("accepting");
    let client = driver.connect_to(to, 1).expect("a socket");
    driver.write(client, bytes.to_vec()).expect("room in the queue");
    driver.shutdown(client, Shutdown::Write).expect("room in the queue");
    driver.read_stream(client).expect("reading");
    let mut answer = Vec::new();
    let mut ended = false;
    let mut connected = false;
    while !ended {
        let completion = driver.next();
        match (completion.event, completion.cookie) {
            (Event::Accept { result, .. }, _) => {
                let socket = result.expect("a connection").socket;
                let server = driver.register(socket, 2).expect("room for a handle");
                driver.read_stream(server).expect("reading");
            }
            (Event::Connect(result), 1) => connected = result.is_ok(),
            (Event::Read { result, data, more }, 2) => {
                if result.expect("no failure") > 0 {
                    driver.write(completion.handle, data.bytes().to_vec()).expect("room in the queue");
                } else {
                    assert!(!more);
                    driver.close(completion.handle).expect("an open handle");
                }
            }
            (Event::Read { result, data, .. }, 1) => {
                ended = result.expect("no failure") == 0;
                answer.extend_from_slice(data.bytes());
            }
            (Event::Write { result, .. }, _) => assert!(result.is_ok()),
            (Event::Disconnect(result), 1) => result.expect("no failure"),
            other => panic!("{other:?}"),
        }
    }
    assert!(connected);
    driver.close(client).expect("an open handle");
    driver.close(listener).expect("an open handle");
    answer
}

fn echo_over_a_memory_link(fixture: &mut Fixture) -> Verdict {
    for v6 in [false, true] {
        for len in [1, 1_000, 1_000_000] {
            let mut driver = linked(fixture);
            let listener =
                driver.listen_on(SocketAddr::new(address(2, v6), PORT), 16, 0).expect("a listener");
            let bytes = net::pattern(len, 5);
            let answer = echo(&mut driver, listener, SocketAddr::new(address(2, v6), PORT), &bytes);
            assert!(answer == bytes, "{} of {len} bytes came back", answer.len());
            driver.expect_silence();
        }
    }
    Ok(())
}

/// A channel with a stack on a TUN device, whose other endpoint is the kernel's.
fn on_tun(fixture: &Fixture) -> Driver {
    let network: TunNetwork = "tun:mp%d,10.78.0.2/24,fd78::2/64".parse().expect("a network");
    let tun = network.open().expect("a TUN device");
    let mut driver = fixture.driver();
    driver.attach(Stack::new(tun, network.networks().to_vec())).expect("a stack");
    driver
}

/// Linux connects to a listener of the stack, and the stack to one of Linux, while the same
/// channel serves a kernel socket, a pipe, a file and a timer.
fn kernel_and_stack_in_one_loop(fixture: &mut Fixture) -> Verdict {
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    let mut driver = on_tun(fixture);
    let bytes = net::pattern(300_000, 9);
    for v6 in [false, true] {
        let at = SocketAddr::new(address(2, v6), PORT);
        let listener = driver.listen_on(at, 16, LISTENER).expect("a listener");
        assert_eq!(driver.local_address(listener).expect("an address").as_socket(), Some(at));
        driver.accept_with_peer(listener, AcceptCount::Unlimited, AcceptAs::LwSocket).expect("accepting");
        let linux = TcpListener::bind((address(1, v6), 0)).expect("a listener of the kernel");
        let to = linux.local_addr().expect("an address");
        let ours = driver.connect_to(to, CLIENT).expect("a socket");
        let (pipe, mut pipe_writer) = std::io::pipe().expect("a pipe");
        let pipe = driver.register(pipe, PIPE).expect("room for a handle");
        driver.read_stream(pipe).expect("reading");
        let (unix, mut unix_peer) = net::unix_pair(Type::STREAM);
        let unix = driver.register(unix, SERVER).expect("room for a handle");
        driver.read_stream(unix).expect("reading");
        driver.timer(Duration::from_millis(5), TIMER).expect("room for an operation");
        driver.write(ours, b"question".to_vec()).expect("room in the queue");
        driver.read_stream(ours).expect("reading");

        let (answered, piped, fired) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()), Cell::new(false));
        let serve =
            |channel: &mut Channel, completion: Completion| match (completion.event, completion.cookie) {
                (Event::Accept { result, .. }, LISTENER) => {
                    let accepted = result.expect("a connection");
                    let peer = accepted.peer.expect("its address");
                    assert_eq!(peer.ip(), address(1, v6));
                    let server = channel.register(accepted.socket, SERVER).expect("room for a handle");
                    assert_eq!(channel.peer_address(server).expect("an address").as_socket(), Some(peer));
                    channel.read_stream(server).expect("reading");
                }
                (Event::Connect(result), CLIENT) => result.expect("a connection"),
                (Event::Read { data, .. }, CLIENT) => answered.borrow_mut().extend_from_slice(data.bytes()),
                (Event::Read { data, .. }, PIPE) => piped.borrow_mut().extend_from_slice(data.bytes()),
                (Event::Read { result, data, .. }, SERVER) => match result.expect("no failure") {
                    0 => channel.close(completion.handle).expect("an open handle"),
                    _ => {
                        let ReadData::Buffer(buffer) = data else { panic!("not of the pool") };
                        channel.write_quiet(completion.handle, buffer).expect("room in the queue");
                    }
                },
                (Event::Timer(result), TIMER) => fired.set(result.is_ok()),
                (Event::Write { result, .. }, _) => drop(result.expect("no failure")),
                other => panic!("{other:?}"),
            };
        let echoes = driver.drive_while(
            || {
                let (mut asked, _) = linux.accept().expect("a connection");
                assert_eq!(net::read_exactly(&mut asked, 8), b"question");
                asked.write_all(&bytes).expect("writing");
                drop(asked);
                pipe_writer.write_all(b"piped").expect("writing");
                drop(pipe_writer);
                unix_peer.write_all(b"local").expect("writing");
                let local = net::read_exactly(&mut unix_peer, 5);
                let mut streams: Vec<_> = (0..20).map(|_| TcpStream::connect(at).expect("connect")).collect();
                for stream in &mut streams {
                    net::bounded(stream);
                    stream.write_all(&bytes[..5_000]).expect("writing");
                    stream.shutdown(Shutdown::Write).expect("shutdown");
                }
                let echoes = streams.iter_mut().map(|stream| net::read_to_end(stream).0);
                (local, echoes.collect::<Vec<_>>())
            },
            serve,
        );
        assert_eq!(echoes.0, b"local");
        assert_eq!(echoes.1.len(), 20);
        assert!(echoes.1.iter().all(|echo| *echo == bytes[..5_000]), "other bytes came back");
        driver.drive_until(
            |_| answered.borrow().len() == bytes.len() && piped.borrow().len() == 5 && fired.get(),
            serve,
        );
        assert!(answered.take() == bytes && piped.take() == b"piped");
        for handle in [listener, ours, pipe] {
            driver.close(handle).expect("an open handle");
        }
    }
    Ok(())
}

/// What was written is with the peer before a dropped channel is gone; a connection whose peer does
/// not read is reset after a while.
fn a_channel_that_is_dropped_sends_what_was_written(fixture: &mut Fixture) -> Verdict {
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    let mut driver = on_tun(fixture);
    let linux = TcpListener::bind((address(1, false), 0)).expect("a listener of the kernel");
    let ours = driver.connect_to(linux.local_addr().expect("an address"), CLIENT).expect("a socket");
    let bytes = net::pattern(200_000, 3);
    driver.write(ours, bytes.clone()).expect("room in the queue");
    let mut peer = None;
    let mut written = false;
    linux.set_nonblocking(true).expect("a mode");
    driver.drive_until(
        |_| {
            peer = peer.take().or_else(|| linux.accept().ok());
            peer.is_some()
        },
        |_, completion| written |= matches!(completion.event, Event::Write { .. }),
    );
    let (mut peer, _) = peer.expect("a connection");
    peer.set_nonblocking(false).expect("a mode");
    net::bounded(&peer);
    let reader = std::thread::spawn(move || net::read_to_end(&mut peer));
    while !written {
        written |= matches!(driver.next().event, Event::Write { .. });
    }
    drop(driver);
    let (received, end) = reader.join().expect("the reader");
    assert!(received == bytes, "{} bytes", received.len());
    assert_eq!(end, net::End::Finished);
    Ok(())
}

/// The peer of a connection that the channel has begun.
fn connected_peer(driver: &mut Driver) -> (Handle, TcpStream) {
    let linux = TcpListener::bind((address(1, false), 0)).expect("a listener of the kernel");
    let ours = driver.connect_to(linux.local_addr().expect("an address"), CLIENT).expect("a socket");
    assert!(matches!(driver.next().event, Event::Connect(Ok(()))));
    // The handshake ends with the first packet after that.
    driver.expect_silence();
    let (peer, _) = linux.accept().expect("a connection");
    net::bounded(&peer);
    (ours, peer)
}

fn a_dropped_channel_resets_a_peer_that_does_not_read(fixture: &mut Fixture) -> Verdict {
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    let mut driver = on_tun(fixture);
    let (ours, mut peer) = connected_peer(&mut driver);
    // More than both sides have room for.
    driver.write(ours, vec![7; 64 << 20]).expect("room in the queue");
    driver.expect_silence();
    let begin = Instant::now();
    drop(driver);
    assert!(begin.elapsed() < Duration::from_secs(20), "it takes a second");
    assert_eq!(net::read_to_end(&mut peer).1, net::End::Reset);
    Ok(())
}

/// Nobody answers: each SYN costs a turn or two, and the channel sleeps in between.
fn deadlines_end_sleeps_and_cost_no_spinning(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let capabilities = Capabilities { mtu: 1500, checksum: true, segment: 65_535 };
    let (left, mut silent) = link::pair(capabilities, 256);
    let mut stack = Stack::polled(left, networks(1));
    // At 0, 20, 60, 140 and 300 ms, on a machine in time.
    stack.config().profile.rto_initial = Duration::from_millis(20);
    stack.config().profile.attempt = Duration::from_millis(500);
    driver.attach(stack).expect("a stack");
    driver.connect_to(SocketAddr::new(address(2, false), PORT), CLIENT).expect("a socket");
    let before = driver.stats().turns;
    let Event::Connect(Err(error)) = driver.next().event else { panic!("not the end of the attempt") };
    assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
    let turns = driver.stats().turns - before;
    let mut received = Batch::new(1 << 16);
    let packets = silent.receive(&mut received).expect("a link") as u64;
    assert!((1..=5).contains(&packets), "{packets} packets");
    assert!(turns <= 2 * packets + 4, "{turns} turns for {packets} packets");
    Ok(())
}

/// The device of a stack is gone with its channel: nothing keeps a queue that another stack would
/// have to share the packets with.
fn a_dropped_channel_lets_its_device_go(fixture: &mut Fixture) -> Verdict {
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    let network: TunNetwork = "tun:mp0,10.78.0.2/24".parse().expect("a network");
    for _ in 0..20 {
        let mut driver = fixture.driver();
        // Busy as long as someone has it open.
        driver.attach(Stack::new(network.open().expect("the device"), networks(2))).expect("a stack");
        driver.expect_silence();
    }
    Ok(())
}

/// RLIMIT_NOFILE bounds the kernel's lightweight sockets, and no others.
fn sockets_of_a_stack_take_no_descriptor(fixture: &mut Fixture) -> Verdict {
    const DESCRIPTORS: u64 = 128;
    const CLIENTS: usize = 300;
    let mut program = process::this_test_as(fixture.name(), "isolated");
    confine::with_open_files(&mut program, DESCRIPTORS);
    process::isolated_as(program, || {
        let mut driver = linked(fixture);
        let at = SocketAddr::new(address(2, false), PORT);
        let listener = driver.listen_on(at, 2 * CLIENTS as u32, LISTENER).expect("a listener");
        driver.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket).expect("accepting");
        for _ in 0..CLIENTS {
            driver.connect_to(at, CLIENT).expect("a socket");
        }
        let (mut servers, mut connected) = (Vec::new(), 0);
        while servers.len() < CLIENTS || connected < CLIENTS {
            match driver.next().event {
                Event::Accept { result, .. } => servers.push(result.expect("a connection").socket),
                Event::Connect(result) => {
                    result.expect("a connection");
                    connected += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(driver.stats().accepts_paused, 0);
    });
    Ok(())
}

/// More requests wait than one batch of packets holds, and each is answered in one packet: none is
/// acknowledged before the program had its turn.
fn answers_carry_the_acknowledgements(fixture: &mut Fixture) -> Verdict {
    const CLIENTS: usize = 150;
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    let mut driver = on_tun(fixture);
    let pairs: Vec<(Handle, TcpStream)> = (0..CLIENTS).map(|_| connected_peer(&mut driver)).collect();
    for (ours, peer) in &pairs {
        driver.read_stream(*ours).expect("reading");
        let mut peer: &TcpStream = peer;
        peer.write_all(b"request").expect("room in the socket");
    }
    let before = driver.stats().packets_sent;
    for _ in 0..CLIENTS {
        let completion = driver.next();
        assert!(matches!(completion.event, Event::Read { result: Ok(7), .. }), "{completion:?}");
        driver.write_quiet(completion.handle, b"answer".to_vec()).expect("room in the queue");
    }
    driver.expect_silence();
    assert_eq!(driver.stats().packets_sent - before, CLIENTS as u64);
    Ok(())
}

/// A stack's sockets have no descriptor, and no call makes one.
fn a_descriptor_is_refused(fixture: &mut Fixture) -> Verdict {
    let mut driver = linked(fixture);
    let channel: &mut Channel = &mut driver;
    let at = SocketAddr::new(address(2, false), PORT);
    let listener = channel.listen_on(at, 16, LISTENER).expect("a listener");
    let refused = channel.accept(listener, AcceptCount::Unlimited, AcceptAs::Fd);
    assert_eq!(refused, Err(SubmitError::Unsupported));
    let error = channel.control(listener, |_| Ok(())).expect_err("no descriptor");
    assert!(matches!(error, ControlError::Io(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP)));
    let Ok(Source::LwSocket(socket)) = channel.unregister(listener) else { panic!("no lightweight socket") };
    assert!(channel.to_fd(socket).is_err());
    // It is closed then, and its port is free.
    assert!(channel.dispatch(Some(Duration::ZERO)).expect("no failure").is_none());
    let listener = channel.listen_on(at, 16, LISTENER).expect("a listener");
    let used = channel.listen_on(at, 16, LISTENER).expect_err("the port is taken");
    assert!(matches!(used, OpenError::Io(error) if error.raw_os_error() == Some(libc::EADDRINUSE)));
    channel.close(listener).expect("an open handle");
    Ok(())
}

/// Probes go out after the times of the connection, not the two hours of its stack.
fn keep_alive_of_a_connection(fixture: &mut Fixture) -> Verdict {
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    let mut driver = on_tun(fixture);
    let (handle, _peer) = connected_peer(&mut driver);
    let second = Duration::from_secs(1);
    let probes = KeepAlive { idle: second, interval: second, probes: 3 };
    let wrong = [
        KeepAlive { probes: 0, ..probes },
        KeepAlive { idle: Duration::ZERO, ..probes },
        KeepAlive { interval: 40_000 * second, ..probes },
    ];
    for wrong in wrong {
        let refused = driver.set_keepalive(handle, Some(wrong));
        let einval =
            matches!(&refused, Err(ControlError::Io(error)) if error.raw_os_error() == Some(libc::EINVAL));
        assert!(einval, "{wrong:?}: {refused:?}");
    }
    driver.set_keepalive(handle, Some(probes)).expect("times");
    expect_probes(&mut driver);
    driver.set_keepalive(handle, None).expect("none");
    Ok(())
}

/// Each second probes an idle connection; its kernel answers, so that it stays.
fn expect_probes(driver: &mut Driver) {
    let before = driver.stats().packets_sent;
    let probed = (0..60).any(|_| {
        driver.timer(Duration::from_secs(1), TIMER).expect("a timer");
        let event = driver.next().event;
        assert!(matches!(event, Event::Timer(Ok(()))), "{event:?}");
        driver.stats().packets_sent > before + 3
    });
    assert!(probed, "no probes in a minute");
}

/// As setsockopt(2) before connect(2), and on a socket that listens.
fn keep_alive_set_before_there_is_a_connection(fixture: &mut Fixture) -> Verdict {
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    let mut driver = on_tun(fixture);
    let second = Duration::from_secs(1);
    let probes = KeepAlive { idle: second, interval: second, probes: 3 };
    let linux = TcpListener::bind((address(1, false), 0)).expect("a listener of the kernel");
    let ours = driver.connect_to(linux.local_addr().expect("an address"), CLIENT).expect("a socket");
    driver.set_keepalive(ours, Some(probes)).expect("times");
    assert!(matches!(driver.next().event, Event::Connect(Ok(()))));
    // The handshake ends with the first packet after that.
    driver.expect_silence();
    let _peer = linux.accept().expect("a connection");
    expect_probes(&mut driver);
    driver.set_keepalive(ours, None).expect("none");

    let at = SocketAddr::new(address(2, false), PORT);
    let listener = driver.listen_on(at, 16, LISTENER).expect("a listener");
    driver.set_keepalive(listener, Some(probes)).expect("times");
    driver.accept(listener, AcceptCount::Exactly(1), AcceptAs::LwSocket).expect("accepting");
    let client = std::thread::spawn(move || TcpStream::connect(at).expect("connect"));
    let Event::Accept { result, .. } = driver.next().event else { panic!("no connection") };
    let _accepted = result.expect("a connection");
    let _client = client.join().expect("a client");
    expect_probes(&mut driver);
    Ok(())
}

/// As with the kernel's TCP; without one, an attempt takes three minutes.
fn a_user_timeout_bounds_an_attempt(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (device, _silent) = link::pair(Capabilities { mtu: 1500, checksum: true, segment: 0 }, 256);
    driver.attach(Stack::polled(device, networks(1))).expect("a stack");
    let begin = Instant::now();
    let handle = driver.connect_to(SocketAddr::new(address(2, false), PORT), CLIENT).expect("a socket");
    driver.set_user_timeout(handle, Some(Duration::from_secs(1))).expect("a timeout");
    let Event::Connect(Err(error)) = driver.next().event else { panic!("no failure") };
    assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
    assert!(begin.elapsed() < Duration::from_secs(60));
    Ok(())
}

/// Of two attempts only the one that still has a short time ends.
fn a_user_timeout_that_is_taken_back_bounds_no_attempt(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (device, _silent) = link::pair(Capabilities { mtu: 1500, checksum: true, segment: 0 }, 256);
    driver.attach(Stack::polled(device, networks(1))).expect("a stack");
    let peer = SocketAddr::new(address(2, false), PORT);
    let [free, longer, short] =
        [CLIENT, PIPE, SERVER].map(|cookie| driver.connect_to(peer, cookie).expect("a socket"));
    // The attempts have begun then.
    driver.expect_silence();
    let second = Duration::from_secs(1);
    let mut set = |handle, time| driver.set_user_timeout(handle, time).expect("a timeout");
    set(free, Some(second));
    set(free, None);
    set(longer, Some(second));
    set(longer, Some(100 * second));
    set(short, Some(2 * second));
    let completion = driver.next();
    assert_eq!(completion.cookie, SERVER);
    assert!(matches!(completion.event, Event::Connect(Err(_))));
    Ok(())
}
