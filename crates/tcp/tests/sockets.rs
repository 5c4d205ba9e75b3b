//! Sockets over a link in memory: calls, errors, readiness by level and by edge.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use packet::{Batch, Capabilities, Device, link};
use tcp::sockets::{Bits, Errno, How, Notice, Options, Readiness, Socket, Sockets, Trigger};
use tcp::{Config, Host, Prefix, State, Time};

const PORT: u16 = 80;

/// Bytes that a connection holds each way.
const BUFFER: usize = 64 << 10;

struct Pair {
    sides: [(Sockets, link::Link); 2],
    now: Time,
    batch: Batch,
}

fn address(side: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, side + 1)), port)
}

impl Pair {
    fn new() -> Pair {
        let capabilities = Capabilities { mtu: 1500, checksum: true, segment: 0 };
        let (left, right) = link::pair(capabilities, 4096);
        let sockets = |side| {
            let mut config = Config::new(vec![Prefix::one(address(side, 0).ip())], capabilities);
            config.limits.send_buffer = BUFFER as u32;
            config.limits.receive_buffer = BUFFER as u32;
            Sockets::new(Host::new(config, [side; 32]), 8)
        };
        let now = Time::from_micros(1_000_000);
        Pair { sides: [(sockets(0), left), (sockets(1), right)], now, batch: Batch::new(1 << 18) }
    }

    /// Moves packets until there are none.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut moved = 0;
            for (sockets, link) in &mut self.sides {
                self.batch.clear();
                moved += link.receive(&mut self.batch).expect("a link");
                sockets.input(self.now, self.batch.frames());
                let mut more = true;
                while more {
                    self.batch.clear();
                    more = sockets.output(self.now, &mut self.batch);
                    moved += link.send(&mut self.batch).expect("a link");
                }
            }
            if moved == 0 {
                return;
            }
        }
        panic!("packets without end");
    }

    /// Time passes.
    fn pass(&mut self, time: Duration) {
        let until = self.now.after(time);
        for _ in 0..100_000 {
            self.settle();
            let due = self.sides.iter().filter_map(|(sockets, _)| sockets.deadline()).min();
            let Some(due) = due.filter(|&due| due <= until) else { break };
            self.now = self.now.max(due);
            for (sockets, _) in &mut self.sides {
                sockets.advance(self.now);
            }
        }
        self.now = until;
    }

    fn client(&mut self) -> (&mut Sockets, Time) {
        (&mut self.sides[0].0, self.now)
    }

    fn server(&mut self) -> (&mut Sockets, Time) {
        (&mut self.sides[1].0, self.now)
    }

    fn listener(&mut self) -> Socket {
        let (server, _) = self.server();
        let listener = server.socket().expect("a socket");
        assert_eq!(server.listen(listener, 4), Err(Errno::Invalid));
        assert_eq!(server.bind(listener, address(0, PORT)), Err(Errno::NotAvailable));
        server.bind(listener, address(1, PORT)).expect("an own address");
        server.listen(listener, 4).expect("a listener");
        listener
    }

    /// Client's and server's socket of a connection, and the listener.
    fn connected(&mut self) -> (Socket, Socket, Socket) {
        let listener = self.listener();
        let (client, now) = self.client();
        let socket = client.socket().expect("a socket");
        assert_eq!(client.connect(now, socket, address(1, PORT)), Err(Errno::InProgress));
        assert_eq!(client.connect(now, socket, address(1, PORT)), Err(Errno::Already));
        assert_eq!(client.write(now, socket, b"early"), Err(Errno::WouldBlock));
        assert_eq!(client.readiness(socket), Ok(Readiness::NONE));
        self.settle();
        let (client, now) = self.client();
        assert_eq!(client.connect(now, socket, address(1, PORT)), Err(Errno::IsConnected));
        assert_eq!(client.readiness(socket), Ok(Readiness::WRITABLE));
        let (server, now) = self.server();
        assert_eq!(server.readiness(listener), Ok(Readiness::READABLE));
        let accepted = server.accept(now, listener).expect("a connection");
        assert_eq!(server.readiness(listener), Ok(Readiness::NONE));
        assert_eq!(server.accept(now, listener), Err(Errno::WouldBlock));
        (socket, accepted, listener)
    }
}

#[test]
fn peeked_bytes_are_read_again() {
    let mut pair = Pair::new();
    let (client, server, _) = pair.connected();
    let mut buffer = [0; 8];
    let (sockets, now) = pair.server();
    assert_eq!(sockets.peek(now, server, &mut buffer), Err(Errno::WouldBlock));
    let (sockets, now) = pair.client();
    assert_eq!(sockets.write(now, client, b"twice"), Ok(5));
    sockets.shutdown(now, client, How::Write).expect("connected");
    pair.settle();
    let (sockets, now) = pair.server();
    for _ in 0..2 {
        assert_eq!(sockets.peek(now, server, &mut buffer[..3]), Ok(3));
        assert_eq!(&buffer[..3], b"twi");
        assert_eq!(sockets.unread(server), Ok(5));
    }
    assert_eq!(sockets.read(now, server, &mut buffer), Ok(5));
    assert_eq!(&buffer[..5], b"twice");
    assert_eq!(sockets.peek(now, server, &mut buffer), Ok(0));
    assert_eq!(sockets.read(now, server, &mut buffer), Ok(0));
}

#[test]
fn connect_echo_half_close_close() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6
    //# If the local TCP connection is closed by the remote side due to a FIN or RST received from the remote
    //# side, then the local application MUST be informed whether it closed normally or was aborted (MUST-12).
    let mut pair = Pair::new();
    let (client, server, listener) = pair.connected();
    let (sockets, now) = pair.client();
    assert_eq!(sockets.peer_address(client), Ok(address(1, PORT)));
    assert_eq!(sockets.write(now, client, b"question"), Ok(8));
    sockets.shutdown(now, client, How::Write).expect("connected");
    assert_eq!(sockets.write(now, client, b"more"), Err(Errno::Pipe));
    pair.settle();
    let (sockets, now) = pair.server();
    let mut bytes = [0; 64];
    assert_eq!(sockets.unread(server), Ok(8));
    assert_eq!(sockets.read(now, server, &mut bytes), Ok(8));
    assert_eq!(&bytes[..8], b"question");
    assert_eq!(sockets.read(now, server, &mut bytes), Ok(0));
    let ready = sockets.readiness(server).expect("open");
    assert!(ready.has(Readiness::READABLE.with(Readiness::READ_HANGUP)), "{ready:?}");
    assert!(!ready.has(Readiness::HANGUP), "{ready:?}");
    assert_eq!(sockets.write(now, server, b"answer"), Ok(6));
    sockets.close(now, server).expect("open");
    assert_eq!(sockets.close(now, server), Err(Errno::BadDescriptor));
    assert_eq!(sockets.close(now, listener), Ok(()));
    pair.settle();
    let (sockets, now) = pair.client();
    assert_eq!(sockets.read(now, client, &mut bytes), Ok(6));
    assert_eq!(sockets.read(now, client, &mut bytes), Ok(0));
    assert_eq!(sockets.info(client).map(|info| info.state), Ok(State::TimeWait));
    sockets.close(now, client).expect("open");
    // The lowest free number comes first.
    assert_eq!(sockets.socket(), Ok(client));
}

#[test]
fn refused_and_reset_are_reported_once() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6
    //# If the local TCP connection is closed by the remote side due to a FIN or RST received from the remote
    //# side, then the local application MUST be informed whether it closed normally or was aborted (MUST-12).
    let mut pair = Pair::new();
    let (sockets, now) = pair.client();
    let socket = sockets.socket().expect("a socket");
    assert_eq!(sockets.connect(now, socket, address(1, 9)), Err(Errno::InProgress));
    pair.settle();
    let (sockets, now) = pair.client();
    let ready = sockets.readiness(socket).expect("open");
    assert!(ready.has(Readiness::ERROR.with(Readiness::WRITABLE).with(Readiness::HANGUP)), "{ready:?}");
    assert_eq!(sockets.take_error(socket), Ok(Some(Errno::Refused)));
    assert_eq!(sockets.take_error(socket), Ok(None));
    assert_eq!(sockets.read(now, socket, &mut [0; 8]), Ok(0));
    assert_eq!(sockets.write(now, socket, b"x"), Err(Errno::Pipe));
    sockets.close(now, socket).expect("open");

    let (client, server, _) = pair.connected();
    let (sockets, now) = pair.client();
    sockets.write(now, client, b"last").expect("room");
    let linger = Options { linger: Some(Duration::ZERO), ..Options::default() };
    sockets.set_options(now, client, linger).expect("open");
    pair.settle();
    let (sockets, now) = pair.client();
    sockets.close(now, client).expect("open");
    pair.settle();
    let (sockets, now) = pair.server();
    let mut bytes = [0; 8];
    assert_eq!(sockets.read(now, server, &mut bytes), Ok(4));
    assert_eq!(sockets.read(now, server, &mut bytes), Err(Errno::Reset));
    assert_eq!(sockets.read(now, server, &mut bytes), Ok(0));
}

/// The program's own patience, not the stack's.
#[test]
fn a_connection_is_timed_out_by_the_program() {
    let mut pair = Pair::new();
    let (client, server, _) = pair.connected();
    let (sockets, now) = pair.client();
    sockets.time_out(client).expect("a connection");
    assert!(sockets.readiness(client).expect("open").has(Readiness::ERROR));
    assert_eq!(sockets.read(now, client, &mut [0; 8]), Err(Errno::TimedOut));
    // It is over: nothing more to time out.
    sockets.time_out(client).expect("open");
    assert_eq!(sockets.take_error(client), Ok(None));
    pair.settle();
    let (sockets, now) = pair.server();
    assert_eq!(sockets.read(now, server, &mut [0; 8]), Err(Errno::Reset));
}

#[test]
fn a_full_buffer_blocks_and_room_is_an_edge() {
    let mut pair = Pair::new();
    let (client, server, _) = pair.connected();
    let (sockets, now) = pair.client();
    let set = sockets.create_set(Bits::Together);
    sockets.add(set, client, Readiness::WRITABLE, Trigger::Edge, 7).expect("a place");
    assert_eq!(sockets.add(set, client, Readiness::WRITABLE, Trigger::Edge, 7), Err(Errno::Exists));
    let mut notices = [Notice::default(); 4];
    assert_eq!(sockets.wait(set, &mut notices), Ok(1));
    assert_eq!(notices[0], Notice { readiness: Readiness::WRITABLE, data: 7 });
    assert_eq!(sockets.wait(set, &mut notices), Ok(0));

    // Bytes that fit, and their acknowledgement, are no edge.
    sockets.write(now, client, &[1; 100]).expect("room");
    pair.pass(Duration::from_millis(100));
    let (sockets, _) = pair.client();
    assert_eq!(sockets.wait(set, &mut notices), Ok(0));

    let mut written = 100;
    for _ in 0..1000 {
        let (sockets, now) = pair.client();
        match sockets.write(now, client, &[1; 10_000]) {
            Ok(len) => written += len,
            Err(error) => {
                assert_eq!(error, Errno::WouldBlock);
                break;
            }
        }
        pair.settle();
    }
    pair.pass(Duration::from_millis(100));
    let (sockets, now) = pair.client();
    let _ = sockets.wait(set, &mut notices);
    while sockets.write(now, client, &[1; 10_000]).is_ok_and(|len| {
        written += len;
        true
    }) {}
    assert_eq!(sockets.readiness(client), Ok(Readiness::NONE));
    let mut read = 0;
    let mut edges = 0;
    for _ in 0..1000 {
        let (sockets, now) = pair.server();
        let mut bytes = [0; 8000];
        while let Ok(len @ 1..) = sockets.read(now, server, &mut bytes) {
            read += len;
        }
        pair.pass(Duration::from_millis(50));
        let (sockets, _) = pair.client();
        edges += sockets.wait(set, &mut notices).expect("a set");
        if read == written {
            break;
        }
    }
    assert_eq!((read, edges), (written, 1));
}

/// A write that takes the last room leaves none: the next room is an edge, although no write was short.
#[test]
fn a_buffer_that_was_filled_exactly_has_no_room() {
    let mut pair = Pair::new();
    let (client, server, _) = pair.connected();
    let (sockets, now) = pair.client();
    let set = sockets.create_set(Bits::Together);
    sockets.add(set, client, Readiness::WRITABLE, Trigger::Edge, 7).expect("a place");
    let mut notices = [Notice::default(); 4];
    assert_eq!(sockets.wait(set, &mut notices), Ok(1));
    assert_eq!(sockets.write(now, client, &[1; BUFFER]), Ok(BUFFER));
    assert_eq!(sockets.readiness(client), Ok(Readiness::NONE));
    assert_eq!(sockets.wait(set, &mut notices), Ok(0));
    let mut edges = 0;
    for _ in 0..100 {
        let (sockets, now) = pair.server();
        while let Ok(1..) = sockets.read(now, server, &mut [0; 8000]) {}
        pair.pass(Duration::from_millis(50));
        let (sockets, _) = pair.client();
        edges += sockets.wait(set, &mut notices).expect("a set");
    }
    assert_eq!(edges, 1);
}

#[test]
fn level_repeats_edge_and_once_do_not() {
    let mut pair = Pair::new();
    let (client, server, _) = pair.connected();
    let (sockets, _) = pair.server();
    let sets = [Trigger::Level, Trigger::Edge, Trigger::Once].map(|trigger| {
        let set = sockets.create_set(Bits::Together);
        sockets.add(set, server, Readiness::READABLE, trigger, 1).expect("a place");
        set
    });
    let counts = |pair: &mut Pair| {
        let (sockets, _) = pair.server();
        sets.map(|set| sockets.wait(set, &mut [Notice::default(); 4]).expect("a set"))
    };
    let send = |pair: &mut Pair| {
        let (sockets, now) = pair.client();
        sockets.write(now, client, b"abc").expect("room");
        pair.settle();
    };
    assert_eq!(counts(&mut pair), [0, 0, 0]);
    send(&mut pair);
    assert_eq!(counts(&mut pair), [1, 1, 1]);
    assert_eq!(counts(&mut pair), [1, 0, 0]);
    send(&mut pair);
    assert_eq!(counts(&mut pair), [1, 1, 0]);
    let (sockets, now) = pair.server();
    sockets.modify(sets[2], server, Readiness::READABLE, Trigger::Once, 1).expect("a member");
    assert_eq!(counts(&mut pair), [1, 0, 1]);
    let (sockets, _) = pair.server();
    assert_eq!(sockets.read(now, server, &mut [0; 64]), Ok(6));
    assert_eq!(counts(&mut pair), [0, 0, 0]);
    send(&mut pair);
    let (sockets, now) = pair.server();
    sockets.remove(sets[1], server).expect("a member");
    assert_eq!(sockets.remove(sets[1], server), Err(Errno::NotFound));
    assert_eq!(counts(&mut pair), [1, 0, 0]);
    let (sockets, _) = pair.server();
    sockets.close_set(sets[1]).expect("a set");
    sockets.close(now, server).expect("open");
    // A closed socket leaves its sets.
    assert_eq!(sockets.wait(sets[0], &mut [Notice::default(); 4]), Ok(0));
    assert_eq!(sockets.wait(sets[1], &mut [Notice::default(); 4]), Err(Errno::BadDescriptor));
}

#[test]
fn a_listener_stays_readable_until_all_are_accepted() {
    let mut pair = Pair::new();
    let listener = pair.listener();
    let (sockets, now) = pair.client();
    for _ in 0..3 {
        let socket = sockets.socket().expect("a socket");
        assert_eq!(sockets.connect(now, socket, address(1, PORT)), Err(Errno::InProgress));
    }
    pair.settle();
    let (sockets, now) = pair.server();
    let options = Options { no_delay: true, keep_alive: true, ..Options::default() };
    sockets.set_options(now, listener, options).expect("open");
    let mut accepted = 0;
    while sockets.readiness(listener) == Ok(Readiness::READABLE) {
        let socket = sockets.accept(now, listener).expect("ready");
        assert_eq!(sockets.options(socket), Ok(options));
        accepted += 1;
    }
    assert_eq!(accepted, 3);
    assert_eq!(sockets.read(now, listener, &mut [0; 8]), Err(Errno::NotConnected));
    let other = sockets.socket().expect("a socket");
    sockets.bind(other, address(1, PORT)).expect("an own address");
    assert_eq!(sockets.listen(other, 1), Err(Errno::InUse));
}
