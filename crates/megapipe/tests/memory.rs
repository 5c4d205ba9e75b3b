//! What a channel takes from the heap: nothing per transaction, little per connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use megapipe::{
    AcceptAs, AcceptCount, Channel, Completion, Config, CreateError, EngineKind, Event, ReadData,
};
use testkit::allocations::{self, CountingAllocator};
use testkit::conformance::Fixture;
use testkit::driver::{Driver, Form};
use testkit::process::{self, Fosterling};
use testkit::skip::{self, Skipped, Verdict};
use testkit::{confine, net, netns, one_test_per_engine, stack};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

one_test_per_engine! {
    transactions_on_streams_take_nothing_from_the_heap
    transactions_of_single_reads_and_writes_take_nothing_from_the_heap
    transactions_of_filled_buffers_take_nothing_from_the_heap
    transactions_of_datagrams_take_nothing_from_the_heap
    ten_thousand_idle_connections_take_little
    transactions_over_a_stack_take_nothing_from_the_heap
    ten_thousand_idle_connections_of_a_stack_take_little
    channels_come_up_one_after_the_other
}

const CONNECTIONS: usize = 16;
const TRANSACTIONS: usize = 10_000;

/// No fallback to a slower engine: the error names the limit and what to do.
#[test]
fn a_limit_without_room_for_a_ring_is_named() {
    const NAME: &str = "a_limit_without_room_for_a_ring_is_named";
    const USER: u32 = 64_322;
    // No room for any ring; room for that of the probe, not for a channel's.
    for bytes in [0, 64 << 10] {
        let mut program = process::this_test_as(NAME, "isolated");
        confine::with_locked_memory(program.env_remove("MEGAPIPE_ENGINE"), bytes);
        process::isolated_as(program, || {
            process::leave_root(USER);
            for engine in [None, Some(EngineKind::Uring)] {
                let error = match Channel::new(Config { engine, ..Config::default() }) {
                    Err(CreateError::RingUnavailable(cause)) => {
                        return skip::record(NAME, &Skipped::because(cause.to_string()));
                    }
                    Ok(_) => {
                        let why = "this kernel does not count rings against RLIMIT_MEMLOCK";
                        return skip::record(NAME, &Skipped::because(why));
                    }
                    Err(error) => error,
                };
                assert!(matches!(error, CreateError::LockedMemory(_)), "{error:?}");
                let said = error.to_string();
                for part in [
                    "RLIMIT_MEMLOCK",
                    " KiB; ",
                    "192 KiB",
                    "ulimit -l",
                    "`megapipe doctor`",
                    "MEGAPIPE_ENGINE=epoll",
                ] {
                    assert!(said.contains(part), "{part}: {said}");
                }
            }
            let epoll = Config { engine: Some(EngineKind::Epoll), ..Config::default() };
            assert!(Channel::new(epoll).is_ok(), "epoll locks nothing");
        });
    }
}

/// Echoes in rounds over all connections; `answer` deals with what was read. Asserts that
/// after some rounds no more memory is taken.
fn echo(fixture: &Fixture, start: fn(&mut Channel, Completion), answer: fn(&mut Channel, Completion)) {
    for form in Form::ALL {
        let mut driver = fixture.driver();
        let mut peers = Vec::new();
        for cookie in 0..CONNECTIONS as u64 {
            let (socket, peer) = net::tcp_pair();
            let handle = driver.add(socket, form, cookie);
            let begin = Event::Timer(Ok(()));
            let op = megapipe::OpId::NONE;
            start(&mut driver, Completion { handle, cookie, op, event: begin });
            peers.push(peer);
        }
        driver.flush().unwrap();
        let mut before = 0;
        let warm_up = 200;
        for round in 0..warm_up + TRANSACTIONS / CONNECTIONS {
            if round == warm_up {
                before = allocations::calls();
            }
            for peer in &mut peers {
                peer.write_all(&[round as u8; 64]).unwrap();
            }
            let mut answered = 0;
            while answered < CONNECTIONS {
                let completion = driver.next();
                if matches!(completion.event, Event::Read { .. }) {
                    answered += 1;
                }
                answer(&mut driver, completion);
            }
            driver.flush().unwrap();
            let mut got = [0; 64];
            for peer in &mut peers {
                peer.read_exact(&mut got).unwrap();
                assert_eq!(got, [round as u8; 64]);
            }
        }
        let calls = allocations::calls() - before;
        assert_eq!(calls, 0, "{calls} allocations in {TRANSACTIONS} transactions ({form:?})");
    }
}

fn transactions_on_streams_take_nothing_from_the_heap(fixture: &mut Fixture) -> Verdict {
    echo(
        fixture,
        |channel, begin| _ = channel.read_stream(begin.handle).unwrap(),
        |channel, completion| match completion.event {
            Event::Read { result: Ok(64), data: ReadData::Buffer(buffer), more: true } => {
                channel.write_quiet(completion.handle, buffer).unwrap();
            }
            other => panic!("{other:?}"),
        },
    );
    Ok(())
}

fn transactions_of_single_reads_and_writes_take_nothing_from_the_heap(fixture: &mut Fixture) -> Verdict {
    echo(
        fixture,
        |channel, begin| {
            channel.read_into(begin.handle, Vec::with_capacity(64)).unwrap();
        },
        |channel, completion| match completion.event {
            Event::Read { result: Ok(64), data: ReadData::Vec(bytes), more: false } => {
                channel.write(completion.handle, bytes).unwrap();
            }
            // The same memory goes round.
            Event::Write { result: Ok(64), data: megapipe::WriteData::Vec(bytes) } => {
                channel.read_into(completion.handle, bytes).unwrap();
            }
            other => panic!("{other:?}"),
        },
    );
    Ok(())
}

fn transactions_of_filled_buffers_take_nothing_from_the_heap(fixture: &mut Fixture) -> Verdict {
    echo(
        fixture,
        |channel, begin| _ = channel.read(begin.handle).unwrap(),
        |channel, completion| match completion.event {
            Event::Read { result: Ok(64), data, more: false } => {
                let mut buffer = channel.buffer().unwrap();
                assert_eq!(buffer.extend_from_slice(data.bytes()), 64);
                channel.write_quiet(completion.handle, buffer).unwrap();
                channel.read(completion.handle).unwrap();
            }
            other => panic!("{other:?}"),
        },
    );
    Ok(())
}

fn transactions_of_datagrams_take_nothing_from_the_heap(fixture: &mut Fixture) -> Verdict {
    for stream in [false, true] {
        let mut driver = fixture.driver();
        let socket = std::net::UdpSocket::bind(net::v4()).unwrap();
        let ours = socket.local_addr().unwrap();
        let handle = driver.register(socket, 0).unwrap();
        let peer = std::net::UdpSocket::bind(net::v4()).unwrap();
        net::bounded(&peer);
        if stream {
            driver.read_stream(handle).unwrap();
        }
        let mut before = 0;
        for round in 0..TRANSACTIONS {
            if round == 500 {
                before = allocations::calls();
            }
            peer.send_to(&[round as u8; 64], ours).unwrap();
            if !stream {
                driver.read(handle).unwrap();
            }
            loop {
                match driver.next().event {
                    Event::Read { result: Ok(64), data: ReadData::Buffer(buffer), .. } => {
                        let sender = buffer.sender().unwrap();
                        driver.send_to(handle, buffer, &sender).unwrap();
                    }
                    Event::Write { result: Ok(64), .. } => break,
                    other => panic!("{other:?}"),
                }
            }
            let mut got = [0; 64];
            assert_eq!(peer.recv(&mut got).unwrap(), 64);
            assert_eq!(got, [round as u8; 64]);
        }
        let calls = allocations::calls() - before;
        assert_eq!(calls, 0, "{calls} allocations in {TRANSACTIONS} transactions");
    }
    Ok(())
}

/// Runs a test with sockets of a stack.
fn over_stack(fixture: &mut Fixture, test: fn(&mut Fixture) -> Verdict) -> Verdict {
    const BOUND: Duration = Duration::from_secs(300);
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    stack::turn_on();
    test(fixture)
}

fn transactions_over_a_stack_take_nothing_from_the_heap(fixture: &mut Fixture) -> Verdict {
    over_stack(fixture, transactions_on_streams_take_nothing_from_the_heap)
}

/// What the stack itself has for a connection was reserved when it was made.
fn ten_thousand_idle_connections_of_a_stack_take_little(fixture: &mut Fixture) -> Verdict {
    over_stack(fixture, ten_thousand_idle_connections_take_little)
}

/// Connections of the memory test.
const IDLE: usize = 10_000;
/// Bytes of the heap that one of them may take.
const IDLE_BYTES_MAX: usize = 512;

fn ten_thousand_idle_connections_take_little(fixture: &mut Fixture) -> Verdict {
    const ADDRESS: &str = "MEGAPIPE_TEST_ADDRESS";
    if process::role().as_deref() == Some("clients") {
        be_the_clients(std::env::var(ADDRESS).unwrap().parse().unwrap());
        return Ok(());
    }
    let config = fixture.config();
    let (engine, name) = (fixture.engine(), fixture.name().to_owned());
    process::isolated(&name, || {
        process::limit_descriptors(u64::MAX);
        let mut driver = Driver::new(megapipe::Config {
            operations_max: 1 << 20,
            handles_max: 1 << 20,
            lwsockets_max: 1 << 14,
            ..config
        });
        let listener = std::net::TcpListener::bind(net::v4()).unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = driver.register(listener, 0).unwrap();
        driver.accept(accepting, AcceptCount::Unlimited, AcceptAs::LwSocket).unwrap();
        driver.flush().unwrap();
        let before = allocations::live_bytes();
        let mut command = process::this_test_as(&name, "clients");
        command.env(ADDRESS, address.to_string()).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut clients = Fosterling::start(&mut command);
        let (mut connections, mut answered) = (0, 0);
        while answered < IDLE {
            let completion = driver.next();
            match completion.event {
                Event::Accept { result, .. } => {
                    let handle = driver.register(result.unwrap().socket, 0).unwrap();
                    driver.read_stream(handle).unwrap();
                    connections += 1;
                }
                // Each has been active once: what that took counts if it stays.
                Event::Read { result: Ok(1), data: ReadData::Buffer(buffer), .. } => {
                    driver.write_quiet(completion.handle, buffer).unwrap();
                    answered += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        driver.expect_silence();
        assert_eq!(connections, IDLE);
        let taken = usize::try_from(allocations::live_bytes() - before).unwrap_or(0);
        let each = taken / IDLE;
        println!("{} bytes of the heap for each of {IDLE} idle connections on {}", each, engine.name());
        assert!(each <= IDLE_BYTES_MAX, "{each} bytes for each idle connection");
        drop(clients.child().stdin.take());
        // Ten thousand pending reads end in no more than their own time.
        let start = std::time::Instant::now();
        drop(driver);
        assert!(start.elapsed() < testkit::driver::WATCHDOG / 2, "ending took {:?}", start.elapsed());
        clients.child().wait().unwrap();
    });
    Ok(())
}

/// Connects, speaks once on each connection, and holds them until told to end.
fn be_the_clients(address: SocketAddr) {
    process::limit_descriptors(u64::MAX);
    let mut peers: Vec<TcpStream> = Vec::with_capacity(IDLE);
    for _ in 0..IDLE {
        let mut peer = net::connect_to(address);
        peer.write_all(b"x").unwrap();
        peer.read_exact(&mut [0]).unwrap();
        // Ports in TIME_WAIT would run out.
        net::reset_on_drop(&peer);
        peers.push(peer);
    }
    let _ = std::io::stdin().read(&mut [0]);
}

/// The kernel frees the locked memory of a closed ring a little later: a channel made at once after another has to
/// come up within a limit that has room for one of them.
fn channels_come_up_one_after_the_other(fixture: &mut Fixture) -> Verdict {
    /// A user without other rings: the limit is one of all processes of a user.
    const USER: u32 = 64_321;
    /// Bytes.
    const LIMIT: u64 = 2 << 20;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    if limit.maximum.is_some_and(|most| most < LIMIT) {
        return Err(Skipped::because("RLIMIT_MEMLOCK is below 2 MiB"));
    }
    let config = fixture.config();
    let mut program = process::this_test_as(fixture.name(), "isolated");
    confine::with_locked_memory(&mut program, LIMIT);
    process::isolated_as(program, || {
        process::leave_root(USER);
        for _ in 0..50 {
            drop(Channel::new(Config { engine: config.engine, ..Config::default() }).unwrap());
        }
    });
    Ok(())
}
