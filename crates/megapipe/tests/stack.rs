//! Stacks in user space beside the kernel's files, in one channel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use megapipe::packet::Capabilities;
use megapipe::packet::link;
use megapipe::tcp::Prefix;
use megapipe::{AcceptAs, AcceptCount, Event, Handle, Shutdown, Stack};
use testkit::conformance::Fixture;
use testkit::driver::Driver;
use testkit::net;
use testkit::skip::Verdict;

testkit::one_test_per_engine!(echo_over_a_memory_link);

const PORT: u16 = 7;

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
