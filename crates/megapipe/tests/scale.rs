//! Many connections that are busy at the same time: every byte of each comes back, in order and
//! on its own connection.
//!
//! `MEGAPIPE_SCALE_SECONDS=N` runs 20,000 connections, or as many as RLIMIT_NOFILE's hard limit
//! has room for, for N seconds, instead of few for a moment.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use megapipe::{AcceptAs, AcceptCount, Config, Event, ReadData};
use testkit::conformance::Fixture;
use testkit::driver::Driver;
use testkit::process::{self, Fosterling};
use testkit::skip::Verdict;
use testkit::{net, one_test_per_engine};

one_test_per_engine! { busy_connections_keep_every_byte }

const FEW: usize = 500;
const MANY: usize = 20_000;

/// Descriptors that a process needs beside its connections.
const OTHER_DESCRIPTORS: u64 = 64;

/// Client threads, each with an address of the server's to itself: one address has fewer ports
/// than the connections need.
const GROUPS: usize = 4;

/// The longest message; several of them fit into any socket buffer.
const MESSAGE_MAX: u64 = 1500;

const SECONDS: &str = "MEGAPIPE_SCALE_SECONDS";
const COUNT: &str = "MEGAPIPE_TEST_COUNT";
const ADDRESSES: &str = "MEGAPIPE_TEST_ADDRESSES";

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

fn busy_connections_keep_every_byte(fixture: &mut Fixture) -> Verdict {
    if process::role().as_deref() == Some("clients") {
        be_the_clients();
        return Ok(());
    }
    let (config, name) = (fixture.config(), fixture.name().to_owned());
    let engine = fixture.engine().name();
    process::isolated(&name, || {
        let wanted = if number(SECONDS).is_some() { MANY } else { FEW };
        let room = process::descriptors_max().saturating_sub(OTHER_DESCRIPTORS);
        let count = wanted.min(usize::try_from(room).unwrap_or(MANY)) / GROUPS * GROUPS;
        println!(
            "{engine}: {count} connections of {wanted} (the hard limit of open files is {})",
            process::descriptors_max()
        );
        process::limit_descriptors(u64::MAX);
        let mut driver = Driver::new(Config {
            operations_max: 1 << 17,
            handles_max: 1 << 16,
            lwsockets_max: count as u32,
            read_buffers: 1024,
            ..config
        });
        let mut addresses = Vec::new();
        for group in 0..GROUPS {
            let address = Ipv4Addr::new(127, 0, 0, 1 + group as u8);
            let listener = TcpListener::bind((address, 0)).unwrap();
            addresses.push(listener.local_addr().unwrap().to_string());
            let accepting = driver.register(listener, 0).unwrap();
            // Half of each: the table of lightweight sockets has fewer places than the limit allows.
            let kind = if group % 2 == 0 { AcceptAs::LwSocket } else { AcceptAs::Fd };
            driver.accept(accepting, AcceptCount::Unlimited, kind).unwrap();
        }
        driver.flush().unwrap();
        let mut command = process::this_test_as(&name, "clients");
        command.env(ADDRESSES, addresses.join(",")).env(COUNT, (count / GROUPS).to_string());
        let mut clients = Fosterling::start(command.stdin(Stdio::null()));
        let bytes = echo_until_all_ended(&mut driver, count);
        let stats = driver.stats();
        println!(
            "{engine}: {bytes} bytes echoed in {} completions, {} turns",
            stats.completions, stats.turns
        );
        assert!(clients.child().wait().unwrap().success(), "the clients met another byte than they sent");
    });
    Ok(())
}

/// Echoes on `count` connections until each has ended; returns how many bytes that were.
fn echo_until_all_ended(driver: &mut Driver, count: usize) -> u64 {
    let (mut ended, mut bytes) = (0, 0);
    while ended < count {
        let completion = driver.next();
        match completion.event {
            Event::Accept { result, .. } => {
                let connection = driver.register(result.unwrap().socket, 0).unwrap();
                driver.read_stream(connection).unwrap();
            }
            Event::Read { result: Ok(0), .. } => {
                driver.close(completion.handle).unwrap();
                ended += 1;
            }
            Event::Read { result: Ok(read), data: ReadData::Buffer(buffer), more: true } => {
                bytes += read as u64;
                driver.write_quiet(completion.handle, buffer).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    // The last close waits in the queue.
    driver.flush().unwrap();
    bytes
}

fn be_the_clients() {
    process::limit_descriptors(u64::MAX);
    let count = number(COUNT).unwrap();
    let time = Duration::from_secs(number(SECONDS).unwrap_or(2));
    let addresses = std::env::var(ADDRESSES).unwrap();
    let connected = Barrier::new(GROUPS);
    let begin = Instant::now();
    let totals = std::thread::scope(|scope| {
        let clients: Vec<_> = addresses
            .split(',')
            .enumerate()
            .map(|(group, address)| {
                let address: SocketAddr = address.parse().unwrap();
                let (first, connected) = (group as u64 * count, &connected);
                scope.spawn(move || {
                    let mut clients: Vec<_> =
                        (first..first + count).map(|number| Client::connect(address, number)).collect();
                    connected.wait();
                    talk(&mut clients, time)
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    let messages: u64 = totals.iter().map(|(messages, _)| messages).sum();
    let bytes: u64 = totals.iter().map(|(_, bytes)| bytes).sum();
    println!("clients: {messages} messages, {bytes} bytes, each compared, in {:?}", begin.elapsed());
}

/// One end of a stream whose byte at each offset follows from that and the connection's number.
struct Client {
    peer: TcpStream,
    number: u64,
    sent: u64,
    received: u64,
}

impl Client {
    fn connect(address: SocketAddr, number: u64) -> Client {
        Client { peer: net::connect_to(address), number, sent: 0, received: 0 }
    }

    fn byte(&self, offset: u64) -> u8 {
        mix(self.number << 40 | offset >> 3).to_ne_bytes()[offset as usize & 7]
    }

    fn send(&mut self, message: &mut [u8]) {
        for (byte, offset) in message.iter_mut().zip(self.sent..) {
            *byte = self.byte(offset);
        }
        self.peer.write_all(message).unwrap();
        self.sent += message.len() as u64;
    }

    /// Receives all that was sent.
    fn receive(&mut self, bytes: &mut [u8]) {
        let bytes = &mut bytes[..(self.sent - self.received) as usize];
        self.peer.read_exact(bytes).unwrap_or_else(|error| {
            panic!("connection {} at {} of {}: {error}", self.number, self.received, self.sent)
        });
        for (byte, offset) in bytes.iter().zip(self.received..) {
            assert_eq!(*byte, self.byte(offset), "connection {} at {offset}", self.number);
        }
        self.received = self.sent;
    }
}

/// Messages on all connections at once, again and again. How many, and of how many bytes.
fn talk(clients: &mut [Client], time: Duration) -> (u64, u64) {
    let mut bytes = [0; MESSAGE_MAX as usize];
    let end = Instant::now() + time;
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < end {
        rounds += 1;
        for client in &mut *clients {
            let length = 1 + mix(client.number ^ client.sent << 20) % MESSAGE_MAX;
            client.send(&mut bytes[..length as usize]);
        }
        clients.iter_mut().for_each(|client| client.receive(&mut bytes));
    }
    for client in &mut *clients {
        client.peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.peer.read(&mut bytes).unwrap(), 0, "connection {} has more", client.number);
    }
    (rounds * clients.len() as u64, clients.iter().map(|client| client.received).sum())
}

/// splitmix64.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
