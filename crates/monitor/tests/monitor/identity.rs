//! Which sockets are the two endpoints of one connection.

use std::io::{self, BufRead, BufReader, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::Duration;

use promote::{Client, Reason};
use socket2::{Domain, Socket, Type};
use testkit::process::{self, Fosterling};
use testkit::skip::{self, Skipped};

use crate::support::*;

/// A connection between ports 5001 and 5002, which the kernel does not assign, of an
/// address that no other program uses.
fn connection_at(address: Ipv4Addr) -> (TcpStream, TcpStream) {
    // A program that another test starts just now has the sockets of the previous one
    // until its exec.
    process::until("free ports", || match try_connection_at(address) {
        Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) => None,
        connection => Some(connection.unwrap()),
    })
}

fn try_connection_at(address: Ipv4Addr) -> io::Result<(TcpStream, TcpStream)> {
    let at = |port: u16| SocketAddr::from((address, port));
    let socket = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        io::Result::Ok(socket)
    };
    let listener = socket()?;
    listener.bind(&at(5002).into())?;
    listener.listen(1)?;
    let client = socket()?;
    client.bind(&at(5001).into())?;
    client.connect(&at(5002).into())?;
    Ok((client.into(), TcpListener::from(listener).accept()?.0))
}

/// Ends a connection without a trace (RST, no TIME_WAIT), so that its ports are free at once.
fn vanish((near, far): (TcpStream, TcpStream)) {
    for end in [near, far] {
        Socket::from(end).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

#[test]
fn a_successor_on_the_same_ports_is_not_its_predecessor() {
    let (running, mut a) = Running::start(&format!("{SHARE}[limits]\noffer_expires_ms = 600000\n"));
    let mut b = running.client("b");
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 77, high, low);
    let pair = connection_at(address);
    offer(&mut a, 1, &pair.0);
    await_metric(&running.place, "waiting_offers", 1);
    vanish(pair);
    let successor = connection_at(address);
    // The other endpoint of the successor mirrors the waiting offer, but the socket of
    // that one is gone.
    offer(&mut b, 1, &successor.1);
    assert_eq!(refused(&mut a), (token(1), Reason::ClosedEarly));
    offer(&mut a, 2, &successor.0);
    assert_eq!(granted(&mut a).token, token(2));
    assert_eq!(granted(&mut b).token, token(1));

    // The same with the same endpoint of both.
    vanish(successor);
    let pair = connection_at(address);
    offer(&mut a, 3, &pair.0);
    await_metric(&running.place, "waiting_offers", 1);
    vanish(pair);
    let successor = connection_at(address);
    offer(&mut b, 3, &successor.0);
    assert_eq!(refused(&mut a), (token(3), Reason::ClosedEarly));
    offer(&mut a, 4, &successor.1);
    granted(&mut a);
    granted(&mut b);
    drop((a, b));
    running.end();
}

#[test]
fn one_endpoint_is_promoted_once() {
    let (running, mut a) = Running::start(SHARE);
    let mut b = running.client("b");
    let (near, far) = connection("127.0.0.1", "127.0.0.1");
    offer(&mut a, 1, &near);
    await_metric(&running.place, "waiting_offers", 1);
    // Another holder of the same socket.
    offer(&mut b, 1, &near.try_clone().unwrap());
    assert_eq!(refused(&mut b), (token(1), Reason::NoPeer));
    offer(&mut b, 2, &far);
    granted(&mut a);
    granted(&mut b);
    offer(&mut b, 3, &near);
    assert_eq!(refused(&mut b), (token(3), Reason::ClosedEarly));
    drop((a, b));
    running.end();
}

/// A connection in a network namespace of its own, always with the same addresses.
fn connection_elsewhere() -> std::io::Result<(TcpStream, TcpStream)> {
    let thread = std::thread::spawn(|| {
        process::enter_own_network()?;
        Ok(connection_at(Ipv4Addr::LOCALHOST))
    });
    thread.join().unwrap()
}

#[test]
fn the_same_addresses_in_two_namespaces_do_not_match() {
    let (one, other) = match (connection_elsewhere(), connection_elsewhere()) {
        (Ok(one), Ok(other)) => (one, other),
        (Err(error), _) | (_, Err(error)) => {
            let reason = Skipped::because(format!("no network namespace can be made: {error}"));
            return skip::record("the_same_addresses_in_two_namespaces_do_not_match", &reason);
        }
    };
    let limits = "[limits]\nforeign_offer_expires_ms = 600000\nforeign_waiting_per_user = 2\n";
    let (running, mut a) = Running::start(&format!("{SHARE}{limits}"));
    let mut b = running.client("b");
    offer(&mut a, 1, &one.0);
    offer(&mut b, 2, &other.1);
    await_metric(&running.place, "waiting_offers", 2);
    // Each keeps a descriptor in the monitor, of which there is a bound.
    let third = connection_elsewhere().unwrap();
    offer(&mut b, 3, &third.0);
    assert_eq!(refused(&mut b), (token(3), Reason::Quota));
    offer(&mut b, 1, &one.1);
    assert_eq!(granted(&mut a).token, token(1));
    assert_eq!(granted(&mut b).token, token(1));
    offer(&mut a, 2, &other.0);
    assert_eq!(granted(&mut a).token, token(2));
    assert_eq!(granted(&mut b).token, token(2));

    // None of the descriptors is kept: a socket that is dropped here is closed.
    use std::io::Read;
    drop(one.0);
    let mut far = one.1;
    far.set_read_timeout(Some(WATCHDOG)).unwrap();
    assert_eq!(far.read(&mut [0]).unwrap(), 0);

    // Here the descriptor itself is verified again: a connection that ended does not
    // match.
    offer(&mut a, 5, &third.0);
    await_metric(&running.place, "waiting_offers", 1);
    third.0.shutdown(std::net::Shutdown::Write).unwrap();
    let mut far = third.1;
    far.set_read_timeout(Some(WATCHDOG)).unwrap();
    assert_eq!(far.read(&mut [0]).unwrap(), 0);
    offer(&mut b, 5, &far);
    assert_eq!(refused(&mut b), (token(5), Reason::ClosedEarly));
    drop((a, b));
    running.end();
}

/// Offers one endpoint from a process that is killed before the other is offered.
#[test]
fn a_client_that_is_killed_takes_its_offers_along() {
    const NAME: &str = "identity::a_client_that_is_killed_takes_its_offers_along";
    if let Some(role) = process::role() {
        let (socket, port) = role.split_once(' ').unwrap();
        let options = promote::client::Options {
            socket: Some(socket.into()),
            ..promote::client::Options::from_environment("victim")
        };
        let mut client = Client::connect(&options).unwrap();
        let near = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().unwrap())).unwrap();
        client.offer(token(1), near.as_fd()).unwrap();
        println!("offered");
        std::thread::sleep(WATCHDOG);
        return;
    }
    let (running, mut a) = Running::start(&format!("{SHARE}[limits]\noffer_expires_ms = 600000\n"));
    let mut b = running.client("b");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let role = format!("{} {port}", running.place.join("socket").display());
    let mut victim = Fosterling::start(process::this_test_as(NAME, &role).stdout(Stdio::piped()));
    let mut said = BufReader::new(victim.child().stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("offered")));
    let far = listener.accept().unwrap().0;
    await_metric(&running.place, "waiting_offers", 1);
    victim.kill();
    await_metric(&running.place, "waiting_offers", 0);
    // The monitor had the victim's socket, too, and closes it on another thread.
    testkit::net::bounded(&far);
    assert_eq!(far.peek(&mut [0]).unwrap(), 0);
    offer(&mut a, 1, &far);
    assert_eq!(refused(&mut a), (token(1), Reason::ClosedEarly));
    promote(&mut a, &mut b, 2);
    drop((a, b));
    running.end();
}

/// Processes that are matched as fast as possible are killed at any point.
#[test]
fn clients_that_are_killed_anywhere_leave_nothing() {
    const NAME: &str = "identity::clients_that_are_killed_anywhere_leave_nothing";
    const KILLS: u64 = 40;
    if let Some(socket) = process::role() {
        let options = promote::client::Options {
            socket: Some(socket.into()),
            ..promote::client::Options::from_environment("victim")
        };
        loop {
            let mut client = Client::connect(&options).unwrap();
            for number in 1..20 {
                let (near, far) = connection("127.0.0.1", "127.0.0.1");
                client.offer(token(2 * number), near.as_fd()).unwrap();
                client.offer(token(2 * number + 1), far.as_fd()).unwrap();
                if number % 2 == 0 {
                    // The first answer is the welcome.
                    receive(&mut client);
                    receive(&mut client);
                }
            }
        }
    }
    let (running, mut a) = Running::start(SHARE);
    let mut b = running.client("b");
    let role = running.place.join("socket").display().to_string();
    let mut matches = 0;
    for kill in 0..KILLS {
        let mut victim = Fosterling::start(process::this_test_as(NAME, &role).stdout(Stdio::null()));
        // After its first match it is in the midst of this; where exactly is chance.
        await_beyond(&running.place, "matches_total", matches + kill % 7);
        victim.kill();
        await_metric(&running.place, "clients", 2);
        assert_eq!(metric(&running.place, "waiting_offers"), 0);
        assert_eq!(metric(&running.place, "segment_bytes"), 0);
        promote(&mut a, &mut b, 1 + kill);
        await_metric(&running.place, "promoted_ends", 0);
        matches = metric(&running.place, "matches_total");
    }
    drop((a, b));
    running.end();
}
