//! Endpoints that sleep and are woken by doorbells: wake-ups send no byte on the TCP
//! connection.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use megapipe::{Config, EngineKind, Handle, Spin, Stats};
use promote::client::{Options, SharedMapping};
use promote::wire::{Name, Token};
use promote::{Answer, Client, Connection, Doorbells, OtherLoop};
use ring::WakeUp;
use rustix::io::Errno;
use testkit::process::{self, Fosterling};
use testkit::skip::{self, Skipped};

use crate::support::{
    Folder, PATIENCE, Patience, SHARE, Side, Two, config, crowd_out_doorbells, engines, own_monitor, pair,
    start_monitor,
};

const MESSAGE: [u8; 8] = [7; 8];

/// A channel that sleeps at once when there is nothing to do.
fn sleeping(engine: EngineKind, folder: &Folder) -> Config {
    Config { spin: Spin::Off, ..config(engine, &folder.socket()) }
}

fn await_promotion(side: &mut Side) {
    let mut patience = Patience::new();
    while side.channel.stats().promoted == 0 {
        assert!(!patience.is_over(), "promotion: {:?}", side.channel.stats());
        side.step(Duration::from_millis(1));
    }
}

/// The next message, which only a wake-up brings in time.
fn receive(side: &mut Side) -> bool {
    let mut patience = Patience::new();
    while side.seen(0).got.len() < MESSAGE.len() && !side.seen(0).ended {
        assert!(!patience.is_over(), "a message: {:?}", side.channel.stats());
        side.step(PATIENCE / 2);
    }
    !std::mem::take(&mut side.seen(0).got).is_empty()
}

/// Sends `times` messages to a peer that answers each, and sleeps for each answer. The
/// pauses are too short for either connection to turn cold.
fn ask(side: &mut Side, handle: Handle, times: usize) {
    for _ in 0..times {
        side.channel.write_quiet(handle, MESSAGE.to_vec()).unwrap();
        assert!(receive(side), "the peer has ended");
    }
}

/// Bytes that this endpoint has sent on the kernel's connection.
fn sent_over_tcp(socket: &TcpStream) -> u64 {
    process::until("the kernel's positions", || sys::tcp::positions(socket.as_fd()).ok().flatten()).written
}

/// Answers each message until the connection ends.
fn echo(config: Config, stream: TcpStream) -> Stats {
    let mut side = Side::new(config);
    let handle = side.channel.register(stream, 0).unwrap();
    side.channel.read_stream(handle).unwrap();
    await_promotion(&mut side);
    while receive(&mut side) {
        side.channel.write_quiet(handle, MESSAGE.to_vec()).unwrap();
    }
    side.channel.stats()
}

/// Sends messages to a peer that answers, once both have used their rings: nothing goes
/// over TCP.
fn ask_without_tcp(config: Config, stream: TcpStream) {
    let socket = stream.try_clone().unwrap();
    let mut side = Side::new(config);
    let handle = side.channel.register(stream, 0).unwrap();
    side.channel.read_stream(handle).unwrap();
    await_promotion(&mut side);
    ask(&mut side, handle, 10);
    doorbells_alone_wake(side, handle, socket);
}

/// Sends more messages, and closes.
fn doorbells_alone_wake(mut side: Side, handle: Handle, socket: TcpStream) {
    let before = (side.channel.stats(), sent_over_tcp(&socket));
    ask(&mut side, handle, 300);
    let after = side.channel.stats();
    assert!(after.doorbells - before.0.doorbells > 100, "{after:?}");
    assert_eq!((after.bells, sent_over_tcp(&socket)), (before.0.bells, before.1), "{after:?}");
    drop(socket);
    side.channel.close(handle).unwrap();
    side.channel.flush().unwrap();
}

#[test]
fn channels_that_sleep_wake_each_other() {
    let folder = own_monitor("asleep");
    for engines in engines() {
        let (near, far) = pair();
        let their_config = sleeping(engines[1], &folder);
        let echo = std::thread::spawn(move || echo(their_config, far));
        ask_without_tcp(sleeping(engines[0], &folder), near);
        let theirs = echo.join().unwrap();
        assert!(theirs.doorbells > 100 && theirs.bells <= 10, "{theirs:?}");
    }
}

/// Why two users have no doorbells here.
fn reason_without_queues() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root to become another user");
    }
    (!sys::doorbell::may_use_queues()).then_some("there is a seccomp filter")
}

#[test]
fn channels_of_two_users_wake_each_other() {
    const NAME: &str = "doorbells::channels_of_two_users_wake_each_other";
    const USER: u32 = 65534;
    if let Some(reason) = reason_without_queues() {
        return skip::record(NAME, &Skipped::because(reason));
    }
    if let Some(role) = process::role() {
        let (folder, port) = role.split_once(' ').unwrap();
        let folder = std::mem::ManuallyDrop::new(Folder::at(folder.into()));
        process::leave_root(USER);
        let stream = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
        let stats = echo(sleeping(EngineKind::Epoll, &folder), stream);
        assert!(stats.doorbells > 100 && stats.bells <= 10, "{stats:?}");
        return;
    }
    let folder = Folder::new("two-users");
    let rule = format!("[[allow]]\none = {{ uid = [0] }}\nother = {{ uid = [{USER}], gid = [0] }}\n");
    start_monitor(&folder, &format!("{SHARE}{rule}"));
    for engine in [EngineKind::Uring, EngineKind::Epoll] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let role = format!("{} {}", folder.path().display(), listener.local_addr().unwrap().port());
        let mut other = Fosterling::start(process::this_test_as(NAME, &role).stdout(Stdio::null()));
        let mut side = Side::new(sleeping(engine, &folder));
        let handle = side.channel.register(listener.accept().unwrap().0, 0).unwrap();
        side.channel.read_stream(handle).unwrap();
        await_promotion(&mut side);
        ask(&mut side, handle, 300);
        let stats = side.channel.stats();
        assert!(stats.doorbells > 100 && stats.bells <= 10, "{stats:?}");
        side.channel.close(handle).unwrap();
        side.channel.flush().unwrap();
        assert!(other.child().wait().unwrap().success());
    }
}

/// A quiet connection asks for a wake-up of its own.
#[test]
fn a_cold_connection_is_woken_by_its_doorbell() {
    let folder = own_monitor("cold");
    for engines in engines() {
        let mut two = Two::with(engines.map(|engine| sleeping(engine, &folder)));
        for _ in 0..3 {
            two.add(pair());
            two.read_streams();
        }
        two.promoted();
        for number in 1..=20 {
            // More sleeps than those after which a connection turns cold.
            for _ in 0..8 {
                two.sides.iter_mut().for_each(|side| _ = side.step(Duration::from_micros(100)));
            }
            for side in [0, 1] {
                two.send(side, &MESSAGE);
                two.sides[side].channel.flush().unwrap();
                let stats = two.sides[side].channel.stats();
                assert_eq!((stats.doorbells, stats.bells), (number, 0), "{stats:?}");
                assert!(two.sides[1 - side].step(2 * PATIENCE));
                assert_eq!(std::mem::take(&mut two.sides[1 - side].seen(2).got), MESSAGE);
            }
        }
    }
}

/// The role of an unmodified program that answers each message.
fn play_echo(port: &str) -> ! {
    let mut stream = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut message = [0; MESSAGE.len()];
    while stream.read_exact(&mut message).is_ok() {
        stream.write_all(&message).unwrap();
    }
    std::process::exit(0);
}

#[test]
fn a_channel_and_an_unmodified_program_wake_each_other() {
    const NAME: &str = "doorbells::a_channel_and_an_unmodified_program_wake_each_other";
    if let Some(port) = process::role() {
        play_echo(&port);
    }
    let folder = own_monitor("unmodified");
    for engine in [EngineKind::Uring, EngineKind::Epoll] {
        wakes_a_program(engine, &folder, |role| process::this_test_as(NAME, role)).expect("it runs");
    }
}

#[test]
fn a_channel_and_a_program_of_another_user_wake_each_other() {
    const NAME: &str = "doorbells::a_channel_and_a_program_of_another_user_wake_each_other";
    const USER: u32 = 65534;
    if let Some(port) = process::role() {
        play_echo(&port);
    }
    if let Some(reason) = reason_without_queues() {
        return skip::record(NAME, &Skipped::because(reason));
    }
    let folder = Folder::new("unmodified-other");
    let rule = format!("[[allow]]\none = {{ uid = [0] }}\nother = {{ uid = [{USER}] }}\n");
    start_monitor(&folder, &format!("{SHARE}{rule}"));
    for engine in [EngineKind::Uring, EngineKind::Epoll] {
        let as_other = |role: &str| {
            let mut command = process::this_test_as(NAME, role);
            command.uid(USER);
            command
        };
        if let Err(error) = wakes_a_program(engine, &folder, as_other) {
            let reason = format!("another user cannot run this test program: {error}");
            return skip::record(NAME, &Skipped::because(reason));
        }
    }
}

/// Exchanges wake-ups with the program that `program` makes from the port that it
/// connects to.
fn wakes_a_program(
    engine: EngineKind,
    folder: &Folder,
    program: impl FnOnce(&str) -> Command,
) -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = program(&listener.local_addr().unwrap().port().to_string());
    command.env("LD_PRELOAD", process::preload_library());
    command.env("MEGAPIPE_MONITOR", folder.socket());
    // From the first message on, and without spinning.
    command.env("MEGAPIPE_PROMOTE", "eager").env("MEGAPIPE_SPIN", "0").stdout(Stdio::null());
    let mut echo = Fosterling::try_start(&mut command)?;
    let stream = listener.accept().unwrap().0;
    let socket = stream.try_clone().unwrap();
    let mut side = Side::new(sleeping(engine, folder));
    let handle = side.channel.register(stream, 0).unwrap();
    side.channel.read_stream(handle).unwrap();
    let mut patience = Patience::new();
    while side.channel.stats().promoted == 0 {
        assert!(!patience.is_over(), "promotion: {:?}", side.channel.stats());
        ask(&mut side, handle, 1);
    }
    // By then the library has seen its blocking calls.
    ask(&mut side, handle, 200);
    doorbells_alone_wake(side, handle, socket);
    assert!(echo.child().wait()?.success());
    Ok(())
}

/// A peer of a channel, made by the test itself.
struct TestPeer {
    client: Client,
    connection: Connection,
    doorbells: Doorbells,
    other: OtherLoop,
    stream: TcpStream,
}

impl TestPeer {
    fn connect(side: &mut Side, folder: &Folder) -> (TestPeer, Handle) {
        let (near, far) = pair();
        let mut options = Options::from_environment("stranger");
        options.name = Name::new("stranger");
        options.socket = Some(folder.socket());
        options.doorbells = true;
        let mut client = Client::connect(&options).unwrap();
        let handle = side.channel.register(near, 0).unwrap();
        side.channel.read_stream(handle).unwrap();
        client.offer(Token::new(1).unwrap(), far.as_fd()).unwrap();
        far.set_nonblocking(true).unwrap();
        let mut patience = Patience::new();
        let (own, peer, peer_loop, doorbells): (SharedMapping, SharedMapping, _, _) = loop {
            assert!(!patience.is_over(), "no grant");
            side.step(Duration::from_micros(200));
            if let Some(Answer::Granted { own, peer, peer_loop, doorbells, .. }) = client.receive().unwrap() {
                break (own, peer, peer_loop, doorbells);
            }
        };
        let connection = Connection::new(own, peer, 0, 0).unwrap();
        await_promotion(side);
        let other = OtherLoop::new(peer_loop).unwrap();
        (TestPeer { client, connection, doorbells: doorbells.unwrap(), other, stream: far }, handle)
    }

    /// Asks for its doorbell; the channel sends a message then.
    fn is_sent_to(&mut self, side: &mut Side, handle: Handle) {
        assert!(!self.connection.arm(WakeUp::Doorbell).unwrap());
        side.channel.write_quiet(handle, MESSAGE.to_vec()).unwrap();
        side.channel.flush().unwrap();
        // A wake-up that its doorbell had no room for goes with the next turn.
        side.step(Duration::ZERO);
        let mut message = MESSAGE;
        assert!(self.connection.poll().unwrap());
        assert_eq!(self.connection.read_ring(&mut message).unwrap(), MESSAGE.len());
    }
}

#[test]
fn a_peer_whose_doorbell_is_full_is_woken_over_tcp() {
    let folder = own_monitor("full");
    for engine in [EngineKind::Uring, EngineKind::Epoll] {
        let mut side = Side::new(sleeping(engine, &folder));
        let (mut peer, handle) = TestPeer::connect(&mut side, &folder);
        let woken = |side: &Side| (side.channel.stats().doorbells, side.channel.stats().bells);
        peer.is_sent_to(&mut side, handle);
        assert_eq!(woken(&side), (1, 0));
        while rustix::io::write(&peer.doorbells.own, &[0]) != Err(Errno::AGAIN) {}
        peer.is_sent_to(&mut side, handle);
        assert_eq!(woken(&side), (1, 1));
        let mut bytes = [1; 16];
        assert_eq!(process::until("a byte", || peer.stream.read(&mut bytes).ok()), 1);
        assert_eq!(bytes[0], 0);
        peer.connection.kernel_delivered(1);
        sys::doorbell::empty(peer.doorbells.own.as_fd(), peer.doorbells.kind);
        peer.is_sent_to(&mut side, handle);
        assert_eq!(woken(&side), (2, 1));
        // A doorbell that its owner closed accepts bytes: the channel can read it, too.
        let TestPeer { client, mut connection, doorbells, stream, .. } = peer;
        drop(doorbells);
        assert!(!connection.arm(WakeUp::Doorbell).unwrap());
        side.channel.write_quiet(handle, MESSAGE.to_vec()).unwrap();
        side.channel.flush().unwrap();
        assert_eq!(woken(&side), (3, 1));
        drop((client, stream));
    }
}

#[test]
fn a_peer_that_wakes_without_end_keeps_no_channel_awake() {
    let folder = own_monitor("hog");
    for engine in [EngineKind::Uring, EngineKind::Epoll] {
        let mut side = Side::new(sleeping(engine, &folder));
        let (mut peer, _) = TestPeer::connect(&mut side, &folder);
        for round in 0..50 {
            while rustix::io::write(&peer.doorbells.peer, &[0]) != Err(Errno::AGAIN) {}
            let before = side.channel.stats().turns;
            assert!(!side.step(Duration::from_millis(1)));
            let turns = side.channel.stats().turns - before;
            assert!(turns < 10, "{turns} turns in round {round}");
            // It may wake over TCP, too, though the channel asked for its doorbell.
            let wanted = peer.connection.send([&MESSAGE[..]], MESSAGE.len(), true).unwrap();
            assert_eq!(wanted, MESSAGE.len());
            if peer.connection.wants_wake_up_by(&peer.other, false) == Some(WakeUp::Tcp) {
                assert_eq!(peer.stream.write(&[0]).unwrap(), 1);
                peer.connection.wake_up_was_accepted();
            }
            assert!(side.step(2 * PATIENCE));
            assert_eq!(std::mem::take(&mut side.seen(0).got), MESSAGE);
        }
    }
}

#[test]
fn doorbells_are_two_descriptors_until_the_close() {
    process::isolated("doorbells::doorbells_are_two_descriptors_until_the_close", || {
        const CONNECTIONS: usize = 20;
        let folder = own_monitor("descriptors");
        for engines in engines() {
            let mut two = Two::with(engines.map(|engine| sleeping(engine, &folder)));
            let before = descriptors_of_none(&mut two);
            for _ in 0..3 {
                let handles: Vec<_> = (0..CONNECTIONS).map(|_| promoted(&mut two)).collect();
                // The sockets of both endpoints, and two doorbells at each; the monitor
                // may have more.
                assert!(process::open_descriptors() >= before + 6 * CONNECTIONS);
                handles.into_iter().for_each(|handles| close(&mut two, handles));
                two.until("closed descriptors", |_| process::open_descriptors() == before);
            }
        }
    });
}

/// How many descriptors are open without any connection.
fn descriptors_of_none(two: &mut Two) -> usize {
    // From here on the monitor has both of its sockets.
    let handles = promoted(two);
    close(two, handles);
    for side in &mut two.sides {
        side.channel.flush().unwrap();
        while side.step(Duration::from_millis(5)) {}
    }
    process::await_closes();
    process::open_descriptors()
}

/// One more promoted connection.
fn promoted(two: &mut Two) -> [Handle; 2] {
    two.add(pair());
    two.read_streams();
    two.promoted();
    two.handles
}

fn close(two: &mut Two, handles: [Handle; 2]) {
    for (side, handle) in two.sides.iter_mut().zip(handles) {
        side.channel.close(handle).unwrap();
    }
}

#[test]
fn without_descriptors_wake_ups_come_over_tcp() {
    process::isolated("doorbells::without_descriptors_wake_ups_come_over_tcp", || {
        crowd_out_doorbells();
        let folder = own_monitor("crowd");
        for engines in engines() {
            let mut two = Two::with(engines.map(|engine| sleeping(engine, &folder)));
            let before = descriptors_of_none(&mut two);
            promoted(&mut two);
            two.until("two sockets", |_| process::open_descriptors() == before + 2);
            for number in 1..=20 {
                for _ in 0..8 {
                    two.sides.iter_mut().for_each(|side| _ = side.step(Duration::from_micros(100)));
                }
                two.send(0, &MESSAGE);
                two.sides[0].channel.flush().unwrap();
                let stats = two.sides[0].channel.stats();
                assert_eq!((stats.doorbells, stats.bells), (0, number), "{stats:?}");
                two.until("a message", |two| !two.sides[1].seen(1).got.is_empty());
                two.sides[1].seen(1).got.clear();
            }
        }
    });
}
