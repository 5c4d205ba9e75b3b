//! The forwarder of the examples, between the kernel's own sockets.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use testkit::netns;
use testkit::skip::{Skipped, record};

#[path = "../examples/forwarder.rs"]
#[expect(dead_code, reason = "its main function")]
mod forwarder;

const BOUND: Duration = Duration::from_secs(60);

/// Streams in both directions at once, their ends, datagrams and their answers, and a port that nobody has.
#[test]
fn bytes_and_datagrams_pass_the_forwarder() {
    const TEST: &str = "bytes_and_datagrams_pass_the_forwarder";
    if !netns::enter(TEST, BOUND) {
        return;
    }
    match Command::new("ip").args(["link", "set", "lo", "up"]).status() {
        Ok(status) if status.success() => {}
        outcome => return record(TEST, &Skipped::because(format!("`ip link set lo up`: {outcome:?}"))),
    }
    let network = "tun:mp%d,10.78.0.2/16".parse().expect("a network");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || panic!("the forwarder: {:?}", forwarder::serve(&network)));
    let echo = move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            std::thread::spawn(move || std::io::copy(&mut stream.try_clone().expect("a clone"), &mut stream));
        }
    };
    std::thread::spawn(echo);

    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let exchange = |address: &str| {
        let mut stream = connect((address, port));
        let mut writer = stream.try_clone().expect("a clone");
        let mut echoed = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                writer.write_all(&content).expect("bytes that go in");
                writer.shutdown(std::net::Shutdown::Write).expect("an end that goes in");
            });
            stream.read_to_end(&mut echoed).expect("bytes that come back, and their end");
        });
        assert!(echoed == content, "{address}: {} of {} bytes", echoed.len(), content.len());
    };
    std::thread::scope(|scope| {
        for address in ["10.78.0.2", "10.78.3.4", "10.78.255.1"] {
            scope.spawn(move || exchange(address));
        }
    });

    let server = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let client = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    client.set_read_timeout(Some(BOUND)).expect("a timeout");
    client.connect(("10.78.5.6", server.local_addr().expect("its address").port())).expect("a route");
    let mut bytes = [0; 100];
    for question in [&b"a question"[..], b"another"] {
        client.send(question).expect("a datagram");
        let (len, from) = server.recv_from(&mut bytes).expect("the question");
        assert_eq!(&bytes[..len], question);
        server.send_to(b"its answer", from).expect("a datagram");
        let len = client.recv(&mut bytes).expect("the answer, from the address that was asked");
        assert_eq!(&bytes[..len], b"its answer");
    }

    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
    let refused = TcpStream::connect(("10.78.3.4", free)).expect_err("nobody listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

/// Tries until the device is there.
fn connect(to: (&str, u16)) -> TcpStream {
    let deadline = std::time::Instant::now() + BOUND;
    loop {
        match TcpStream::connect_timeout(&format!("{}:{}", to.0, to.1).parse().expect("an address"), BOUND) {
            Ok(stream) => return stream,
            Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
