//! Closes, half-closes and resets of promoted connections.

use std::net::Shutdown;
use std::time::Duration;

use megapipe::UnregisterError;
use testkit::process::until;

use crate::support::{PATIENCE, Two, engines, own_monitor, pattern, with_and_without_doorbells};

/// More than a ring and the kernel accept.
const MUCH: usize = 8 << 20;

#[test]
fn a_close_over_unread_ring_bytes_is_a_reset() {
    let folder = own_monitor("unread");
    for engines in engines() {
        let mut two = Two::connected(engines, &folder);
        two.send(0, b"seen");
        two.until("the first bytes", |two| two.sides[1].seen(0).got == b"seen");
        two.send(0, b"never read");
        let handle = two.handles[1];
        two.sides[1].channel.close(handle).unwrap();
        two.until("a reset", |two| !two.sides[0].seen(0).errors[0].is_empty());
        assert_eq!(two.sides[0].seen(0).errors[0], [libc::ECONNRESET]);
    }
}

#[test]
fn a_half_close_lets_ring_bytes_through() {
    let folder = own_monitor("half");
    for engines in engines() {
        let mut two = Two::connected(engines, &folder);
        let bytes = pattern(0, 20_000);
        two.send(0, &bytes);
        let handle = two.handles[0];
        two.sides[0].channel.shutdown(handle, Shutdown::Write).unwrap();
        // Behind a FIN there is nothing, in the ring as little as in the kernel.
        two.send(0, b"too late");
        two.until("the end of stream", |two| two.sides[1].seen(0).ended);
        assert!(two.sides[1].seen(0).got == bytes, "{} bytes", two.sides[1].seen(0).got.len());
        two.until("the refusal", |two| two.sides[0].seen(0).errors[1] == [libc::EPIPE]);
        // The other direction goes on, as much as is wanted.
        let back = pattern(7, 500_000);
        two.send(1, &back);
        two.until("bytes back", |two| two.sides[0].seen(0).got.len() == back.len());
        assert!(two.sides[0].seen(0).got == back);
        let handle = two.handles[1];
        two.sides[1].channel.close(handle).unwrap();
        two.until("the other end of stream", |two| two.sides[0].seen(0).ended);
        assert!(two.sides[0].seen(0).errors[0].is_empty());
    }
}

#[test]
fn unread_wake_ups_are_no_unread_bytes() {
    let name = "closing::unread_wake_ups_are_no_unread_bytes";
    with_and_without_doorbells(name, leave_wake_ups_unread);
}

fn leave_wake_ups_unread() {
    let folder = own_monitor("wake-ups");
    for engines in engines() {
        let mut two = Two::new(engines, &folder);
        for round in 0..20 {
            two.add(crate::support::pair());
            let handle = two.handles[0];
            two.sides[0].channel.read_stream(handle).unwrap();
            two.promoted();
            // The peer does not read: the wake-up stays unread.
            two.send(0, b"question");
            two.sides[0].channel.flush().unwrap();
            let handle = two.handles[1];
            two.sides[1].channel.read(handle).unwrap();
            two.sides[1].step(PATIENCE);
            assert_eq!(two.sides[1].seen(round).got, b"question");
            // It is closed behind an answer of which most waits in the kernel too.
            let answer = pattern(0, 300_000);
            two.send(1, &answer);
            let handle = two.handles[1];
            two.sides[1].channel.close(handle).unwrap();
            two.until("the end", |two| {
                two.sides[0].seen(round).ended || !two.sides[0].seen(round).errors[0].is_empty()
            });
            let seen = two.sides[0].seen(round);
            assert!(seen.got == answer, "{} bytes of the answer, {:?}", seen.got.len(), seen.errors);
            assert!(seen.errors[0].is_empty());
        }
        let stats = two.sides[0].channel.stats();
        assert!(stats.bells + stats.doorbells > 0, "{stats:?}");
    }
}

#[test]
fn a_close_that_waits_for_its_writes_does_not_spin() {
    let folder = own_monitor("draining");
    for engines in engines() {
        let mut two = Two::new(engines, &folder);
        two.add(crate::support::pair());
        // The peer does not read, so that the close has to wait.
        let handle = two.handles[0];
        two.sides[0].channel.read_stream(handle).unwrap();
        two.promoted();
        for piece in pattern(0, MUCH).chunks(1 << 20) {
            two.send(0, piece);
        }
        let [handle, other] = two.handles;
        two.sides[0].channel.close(handle).unwrap();
        two.sides[1].channel.write_quiet(other, vec![1; 100]).unwrap();
        let before = two.sides[0].channel.stats();
        for _ in 0..10 {
            two.sides[0].step(Duration::from_millis(2));
        }
        let turns = two.sides[0].channel.stats().turns - before.turns;
        assert!(turns < 100, "{turns} turns in ten waits");
        two.sides[1].channel.read_stream(other).unwrap();
        two.until("all bytes", |two| two.sides[1].seen(0).got.len() == MUCH);
        assert!(two.sides[1].seen(0).got == pattern(0, MUCH));
    }
}

#[test]
fn a_close_that_waits_for_its_writes_reads_nothing() {
    /// More than the ring, the socket buffers and the writer's queue hold together.
    const FLOOD: usize = 64 << 20;
    let folder = own_monitor("draining-flood");
    for engines in engines() {
        let mut two = Two::new(engines, &folder);
        two.add(crate::support::pair());
        let [handle, other] = two.handles;
        two.sides[0].channel.read_stream(handle).unwrap();
        two.promoted();
        for piece in pattern(0, MUCH).chunks(1 << 20) {
            two.send(0, piece);
        }
        two.sides[0].channel.close(handle).unwrap();
        let (mut sent, mut refused) = (0, 0);
        while sent < FLOOD && refused < 50 {
            match two.sides[1].channel.write_quiet(other, vec![1; 64 << 10]) {
                Ok(()) => (sent, refused) = (sent + (64 << 10), 0),
                Err(_) => refused += 1,
            }
            two.sides[0].step(Duration::from_millis(1));
            two.sides[1].step(Duration::ZERO);
        }
        assert!(sent < FLOOD, "{sent} bytes were accepted after the close");
    }
}

#[test]
fn a_promoted_connection_cannot_be_unregistered() {
    let folder = own_monitor("unregister");
    for engines in engines() {
        let mut two = Two::connected(engines, &folder);
        let handle = two.handles[0];
        assert_eq!(two.sides[0].channel.unregister(handle).unwrap_err(), UnregisterError::Promoted);
        two.send(0, b"still here");
        two.until("its bytes", |two| two.sides[1].seen(0).got == b"still here");
    }
}

/// Whether a connection between these ports is, at either endpoint (proc_pid_net(5)).
fn is_in_time_wait(ports: [u16; 2]) -> bool {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let has = |one: usize, other: usize| {
            fields[1].ends_with(&format!(":{:04X}", ports[one]))
                && fields[2].ends_with(&format!(":{:04X}", ports[other]))
        };
        // TCP_TIME_WAIT of net/tcp_states.h.
        fields[3] == "06" && (has(0, 1) || has(1, 0))
    })
}

#[test]
fn ports_are_used_again_right_after_a_close() {
    let folder = own_monitor("ports");
    for engines in engines() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut two = Two::new(engines, &folder);
        let mut port = 0;
        for round in 0..10 {
            let local = std::net::SocketAddr::from(([127, 0, 0, 1], port));
            let client = until("the ports", || {
                let socket =
                    socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
                socket.set_reuse_address(true).unwrap();
                socket.bind(&local.into()).unwrap();
                match socket.connect(&address.into()) {
                    // A program that another test starts just now has both sockets until
                    // its exec.
                    Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {
                        assert!(!is_in_time_wait([port, address.port()]), "it left a TIME_WAIT behind");
                        None
                    }
                    connected => Some(connected.map(|()| std::net::TcpStream::from(socket)).unwrap()),
                }
            });
            port = client.local_addr().unwrap().port();
            two.add((client, listener.accept().unwrap().0));
            two.read_streams();
            two.promoted();
            let bytes = pattern(round as usize, 3000);
            two.send(0, &bytes);
            two.until("bytes", |two| two.sides[1].seen(round).got == bytes);
            // A reset leaves no TIME_WAIT behind.
            for (side, handle) in two.sides.iter_mut().zip(two.handles) {
                side.channel.reset(handle).unwrap();
                side.channel.flush().unwrap();
            }
            while two.sides[0].step(Duration::from_millis(1)) || two.sides[1].step(Duration::from_millis(1)) {
            }
        }
    }
}
