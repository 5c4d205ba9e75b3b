//! Several threads, each with a stack on a queue of one device.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use megapipe::packet::group::Queue;
use megapipe::packet::tun::Tun;
use megapipe::tcp::Prefix;
use megapipe::{AcceptAs, AcceptCount, Event, Stack, Stats, TunNetwork};
use rustix::thread::{self, CapabilitySet};
use testkit::conformance::Fixture;
use testkit::driver::Driver;
use testkit::net;
use testkit::netns;
use testkit::skip::{Skipped, Verdict};

testkit::one_test_per_engine!(
    two_stacks_share_the_clients
    packets_find_the_stack_of_their_connection
    path_mtus_are_found_by_the_right_stack
    answers_come_to_the_stack_that_connects
    without_raw_sockets_answers_are_passed_on
    without_raw_sockets_no_port_is_of_two_stacks
    a_thread_that_ends_leaves_its_queue
    a_thread_that_panics_leaves_its_queue
);

const PORT: u16 = 7;
const BOUND: Duration = Duration::from_secs(300);

/// Cookies.
const LISTENER: u64 = 1;
const SERVER: u64 = 2;

/// After this time without a packet the kernel knows nothing of a flow any more (tun.c: 3 s, checked each 3 s,
/// rounded up).
const SILENCE: Duration = Duration::from_secs(6);

/// What a connection gets at first is the number of its thread.
const GREETING: usize = 1;

/// Of a network, 78 or 79, the kernel's address (1) or that of stacks (2).
fn address(network: u16, last: u16, v6: bool) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00 | network, 0, 0, 0, 0, 0, 0, last))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, network as u8, 0, last as u8))
    }
}

fn at(v6: bool) -> SocketAddr {
    SocketAddr::new(address(if v6 { 0x78 } else { 78 }, 2, v6), PORT)
}

fn network() -> TunNetwork {
    "tun:mp%d,10.78.0.2/24,fd78::2/64".parse().expect("a network")
}

/// What ends a serving thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Return,
    Panic,
}

/// Servers on the queues of one device.
#[derive(Default)]
struct Servers<'scope> {
    threads: Vec<Option<ScopedJoinHandle<'scope, (usize, Stats)>>>,
    stops: Vec<mpsc::Sender<End>>,
}

impl<'scope> Servers<'scope> {
    /// Has a thread serve on the queue: it greets, sends `first`, and echoes. Returns when it listens.
    fn start<'env>(
        &mut self,
        scope: &'scope Scope<'scope, 'env>,
        fixture: &'env Fixture,
        queue: Queue,
        first: &'env [u8],
    ) {
        let number = self.threads.len() as u8;
        let (stop, stopped) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel();
        self.threads.push(Some(scope.spawn(move || {
            let mut driver = fixture.driver();
            driver.attach(Stack::on_queue(queue, network().networks().to_vec())).expect("a stack");
            for v6 in [false, true] {
                let listener = driver.listen_on(at(v6), 1024, LISTENER).expect("a listener");
                driver.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket).expect("accepting");
            }
            ready.send(()).expect("somebody waits");
            let served = serve(&mut driver, number, first, &stopped);
            (served, driver.stats())
        })));
        self.stops.push(stop);
        is_ready.recv().expect("a server");
    }

    /// Ends the thread, and waits until it is gone.
    fn end(&mut self, number: usize, how: End) -> Option<(usize, Stats)> {
        self.stops[number].send(how).expect("a server");
        let thread = self.threads[number].take().expect("a thread that was not ended");
        let ended = thread.join();
        assert_eq!(ended.is_err(), how == End::Panic);
        ended.ok()
    }

    /// Lets the others end, once their clients are gone.
    fn finish(mut self) -> Vec<(usize, Stats)> {
        let left: Vec<usize> = (0..self.threads.len()).filter(|&it| self.threads[it].is_some()).collect();
        left.into_iter().filter_map(|number| self.end(number, End::Return)).collect()
    }
}

/// Serves until `stopped` has a word. Returns the
/// connections that it has accepted.
fn serve(driver: &mut Driver, number: u8, first: &[u8], stopped: &mpsc::Receiver<End>) -> usize {
    let mut served = 0;
    loop {
        let completion = driver.next_within(Duration::from_millis(20));
        match stopped.try_recv() {
            // The hook of panics would print it as a failure.
            Ok(End::Panic) => std::panic::resume_unwind(Box::new("the end of this test")),
            Ok(End::Return) => return served,
            Err(_) => {}
        }
        let Some(completion) = completion else { continue };
        match completion.event {
            Event::Accept { result, .. } => {
                let socket = result.expect("a connection").socket;
                let server = driver.register(socket, SERVER).expect("room for a handle");
                driver.write_copy(server, &[&[number], first].concat()).expect("room in the queue");
                driver.read_stream(server).expect("reading");
                served += 1;
            }
            Event::Read { result: Ok(1..), data, .. } => {
                driver.write_copy(completion.handle, data.bytes()).expect("room in the queue");
            }
            Event::Read { .. } => driver.close(completion.handle).expect("an open handle"),
            other => panic!("{other:?}"),
        }
    }
}

/// A connection, and the number of the thread that serves it.
fn connect(v6: bool) -> (TcpStream, u8) {
    let mut stream = TcpStream::connect(at(v6)).expect("connect");
    net::bounded(&stream);
    let greeting = net::read_exactly(&mut stream, GREETING);
    (stream, greeting[0])
}

fn ask(stream: &mut TcpStream) {
    stream.write_all(b"ping").expect("writing");
    assert_eq!(net::read_exactly(stream, 4), b"ping");
}

/// Each of two threads has a stack with the same address on a queue of its own. Each gets half of
/// the connections, and no segment comes to the wrong one: not at once, and not after a silence.
fn two_stacks_share_the_clients(fixture: &mut Fixture) -> Verdict {
    const SHORT: usize = 2_000;
    const KEPT: usize = 300;
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    let queues = network().open_queues(2).expect("a TUN device");
    let fixture = &*fixture;
    let served = std::thread::scope(|scope| {
        let mut servers = Servers::default();
        queues.into_iter().for_each(|queue| servers.start(scope, fixture, queue, &[]));
        let mut kept: Vec<_> = (0..KEPT).map(|_| connect(false).0).collect();
        let asleep = Instant::now();
        (0..SHORT).for_each(|_| ask(&mut connect(false).0));
        std::thread::sleep(SILENCE.saturating_sub(asleep.elapsed()));
        kept.iter_mut().for_each(ask);
        drop(kept);
        servers.finish()
    });
    let all: usize = served.iter().map(|(connections, _)| connections).sum();
    assert_eq!(all, SHORT + KEPT);
    for (connections, stats) in served {
        assert!((all * 45 / 100..=all * 55 / 100).contains(&connections), "{connections} of {all}");
        let lost = (stats.segments_unowned, stats.foreign_sent, stats.foreign_received);
        assert_eq!(lost, (0, 0, 0), "segments came to the wrong stack");
    }
    Ok(())
}

/// A thread that comes later takes its queue back from the one that read it meanwhile. When the
/// kernel has forgotten the flows, half of them arrive there, and still find their stack.
fn packets_find_the_stack_of_their_connection(fixture: &mut Fixture) -> Verdict {
    const CLIENTS: usize = 100;
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    let mut queues = network().open_queues(2).expect("a TUN device");
    let fixture = &*fixture;
    let served = std::thread::scope(|scope| {
        let mut servers = Servers::default();
        let later = queues.pop().expect("two queues");
        servers.start(scope, fixture, queues.pop().expect("two queues"), &[]);
        let mut clients: Vec<_> = (0..CLIENTS).map(|at| connect(at % 2 == 1)).collect();
        servers.start(scope, fixture, later, &[]);
        assert!(clients.iter().all(|&(_, thread)| thread == 0));
        std::thread::sleep(SILENCE);
        clients.iter_mut().for_each(|(stream, _)| ask(stream));
        let others = (0..CLIENTS).filter(|_| connect(false).1 == 1).count();
        assert!(others > CLIENTS / 4, "the later thread serves {others} of {CLIENTS}");
        // Both ends of each stream, before the servers look at their counters.
        for (stream, _) in &mut clients {
            stream.shutdown(std::net::Shutdown::Write).expect("shutdown");
            assert_eq!(net::read_to_end(stream).0, b"");
        }
        servers.finish()
    });
    let [(_, first), (_, later)] = served[..] else { panic!("two servers") };
    assert!(later.foreign_sent > 0, "no packet was passed on");
    assert_eq!(later.foreign_sent, first.foreign_received);
    assert_eq!(first.foreign_dropped + later.foreign_dropped, 0);
    assert_eq!(first.segments_unowned + later.segments_unowned, 0, "connections were reset");
    Ok(())
}

/// Behind the kernel, which forwards, the path takes less than both endpoints believe. All errors
/// that say so arrive on one queue; connections of both stacks get their bytes through.
fn path_mtus_are_found_by_the_right_stack(fixture: &mut Fixture) -> Verdict {
    const CLIENTS: usize = 16;
    const PATH_MTU: u16 = 1300;
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    for switch in ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"] {
        if let Err(error) = std::fs::write(switch, "1") {
            return Err(Skipped::because(format!("{switch} cannot be set here: {error}")));
        }
    }
    let queues = network().open_queues(2).expect("a TUN device");
    let far = Tun::open("far%d", PATH_MTU).expect("a TUN device");
    far.bring_up().expect("up");
    far.add_kernel_address(address(79, 1, false), 24).expect("an address");
    far.add_kernel_address(address(0x79, 1, true), 64).expect("an address");
    // Prefixes that reach the servers, too.
    let networks = [(address(79, 2, false), 8), (address(0x79, 2, true), 8)];
    let networks = networks.map(|(address, bits)| Prefix { address, bits });
    let mut far = Stack::new(far, networks.to_vec());
    far.config().capabilities.mtu = 1500;
    let bytes = net::pattern(300_000, 11);
    let (fixture, bytes) = (&*fixture, &bytes);
    let served = std::thread::scope(|scope| {
        let mut servers = Servers::default();
        queues.into_iter().for_each(|queue| servers.start(scope, fixture, queue, bytes));
        let mut driver = fixture.driver();
        driver.attach(far).expect("a stack");
        for client in 0..CLIENTS {
            let handle = driver.connect_to(at(client % 2 == 1), client as u64).expect("a socket");
            driver.read_stream(handle).expect("reading");
        }
        let mut received = vec![Vec::new(); CLIENTS];
        while received.iter().any(|bytes| bytes.len() < GREETING + 300_000) {
            let completion = driver.next();
            match completion.event {
                Event::Connect(result) => result.expect("a connection"),
                Event::Read { result, data, .. } => {
                    assert!(result.expect("no failure") > 0, "the stream ended early");
                    received[completion.cookie as usize].extend_from_slice(data.bytes());
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(received.iter().all(|received| received[GREETING..] == bytes[..]), "other bytes came");
        let of_second = received.iter().filter(|received| received[0] == 1).count();
        assert!(of_second > 0 && of_second < CLIENTS, "one thread served all");
        drop(driver);
        servers.finish()
    });
    let received: u64 = served.iter().map(|(_, stats)| stats.foreign_received).sum();
    assert!(received > 0, "every error came to the right stack");
    assert_eq!(served.iter().map(|(_, stats)| stats.foreign_dropped).sum::<u64>(), 0);
    Ok(())
}

/// Each stack begins connections from ports whose answers come to its own queue.
fn answers_come_to_the_stack_that_connects(fixture: &mut Fixture) -> Verdict {
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    for stats in two_stacks_connect(fixture) {
        let astray = (stats.segments_unowned, stats.foreign_sent, stats.foreign_received);
        assert_eq!(astray, (0, 0, 0), "answers came to the wrong stack");
    }
    Ok(())
}

/// Where queues cannot be learned, answers that come to the other stack still find their connection.
fn without_raw_sockets_answers_are_passed_on(fixture: &mut Fixture) -> Verdict {
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    give_up_raw_sockets();
    let [first, second] = two_stacks_connect(fixture);
    assert!(first.foreign_sent > 0 && second.foreign_sent > 0, "{first:?} {second:?}");
    assert_eq!(first.segments_unowned + second.segments_unowned, 0, "connections were reset");
    Ok(())
}

/// Two connections from one port to one peer would reset each other.
fn without_raw_sockets_no_port_is_of_two_stacks(fixture: &mut Fixture) -> Verdict {
    const EACH: usize = 500;
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    give_up_raw_sockets();
    let queues = network().open_queues(2).expect("a TUN device");
    // Nobody has this address: the connections stay as they are.
    let peer = SocketAddr::new(address(78, 3, false), PORT);
    let mut all = HashSet::new();
    for queue in queues {
        let mut driver = fixture.driver();
        driver.attach(Stack::on_queue(queue, network().networks().to_vec())).expect("a stack");
        let handles: Vec<_> = (0..EACH).map(|_| driver.connect_to(peer, 0).expect("a socket")).collect();
        driver.expect_silence();
        for handle in handles {
            let local = driver.local_address(handle).expect("an address").as_socket();
            assert!(all.insert(local), "two connections from {local:?}");
        }
    }
    Ok(())
}

/// Of this thread, and of those that it begins.
fn give_up_raw_sockets() {
    let mut capabilities = thread::capabilities(None).expect("the capabilities of this thread");
    capabilities.effective.remove(CapabilitySet::NET_RAW);
    capabilities.permitted.remove(CapabilitySet::NET_RAW);
    thread::set_capabilities(None, capabilities).expect("fewer capabilities");
}

/// Two stacks of one device connect to the kernel's listeners, which greet and close.
fn two_stacks_connect(fixture: &Fixture) -> [Stats; 2] {
    const EACH: usize = 150;
    let queues = network().open_queues(2).expect("a TUN device");
    let listeners = [(78, false), (0x78, true)].map(|(number, v6)| {
        let listener = TcpListener::bind((address(number, 1, v6), 0)).expect("a listener");
        let at = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for client in listener.incoming() {
                client.expect("a client").write_all(b"hello").expect("writing");
            }
        });
        at
    });
    // One that fails does not keep the other one.
    let (to_second, from_first) = mpsc::channel();
    let (to_first, from_second) = mpsc::channel();
    let ends = [(to_second, from_second), (to_first, from_first)];
    std::thread::scope(|scope| {
        let stacks: Vec<_> = queues.into_iter().zip(ends).collect();
        let stacks = stacks.into_iter().map(|(queue, (to_other, from_other))| {
            scope.spawn(move || {
                let mut driver = fixture.driver();
                driver.attach(Stack::on_queue(queue, network().networks().to_vec())).expect("a stack");
                assert!(to_other.send(()).is_ok() && from_other.recv().is_ok());
                for client in 0..EACH {
                    let handle = driver.connect_to(listeners[client % 2], client as u64).expect("a socket");
                    driver.read_stream(handle).expect("reading");
                }
                greet_all(&mut driver, EACH);
                // Until the other one is done, too: some of its answers come here.
                let _ = to_other.send(());
                driver.drive_until(
                    |_| from_other.try_recv() != Err(mpsc::TryRecvError::Empty),
                    |_, completion| panic!("{completion:?}"),
                );
                driver.stats()
            })
        });
        let stacks: Vec<_> = stacks.collect();
        let stats: Vec<_> = stacks.into_iter().map(|stack| stack.join().expect("a stack")).collect();
        stats.try_into().expect("two stacks")
    })
}

/// Until every connection has read its greeting and the end. All stay open: a late copy of an answer
/// still has its owner.
fn greet_all(driver: &mut Driver, count: usize) {
    let mut greetings = vec![Vec::new(); count];
    let mut open = count;
    while open > 0 {
        let completion = driver.next();
        match completion.event {
            Event::Connect(result) => result.expect("a connection"),
            Event::Read { result: Ok(0), .. } => open -= 1,
            Event::Read { result, data, .. } => {
                result.expect("no failure");
                greetings[completion.cookie as usize].extend_from_slice(data.bytes());
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(greetings.iter().all(|greeting| greeting == b"hello"));
}

fn a_thread_that_ends_leaves_its_queue(fixture: &mut Fixture) -> Verdict {
    one_of_two_ends(fixture, End::Return)
}

fn a_thread_that_panics_leaves_its_queue(fixture: &mut Fixture) -> Verdict {
    one_of_two_ends(fixture, End::Panic)
}

/// One of two threads ends while clients of both are busy. Those of the other one lose nothing, and
/// all clients that come later are served, also those that the kernel sends to the queue of the
/// thread that is gone.
fn one_of_two_ends(fixture: &mut Fixture, how: End) -> Verdict {
    const BUSY: usize = 40;
    const LATER: usize = 200;
    if !netns::enter(fixture.name(), BOUND) {
        return Ok(());
    }
    let queues = network().open_queues(2).expect("a TUN device");
    let (fixture, done) = (&*fixture, AtomicBool::new(false));
    let served = std::thread::scope(|scope| {
        let mut servers = Servers::default();
        queues.into_iter().for_each(|queue| servers.start(scope, fixture, queue, &[]));
        let clients: Vec<_> = (0..BUSY).map(|at| connect(at % 2 == 1)).collect();
        let survivors = clients.iter().filter(|&&(_, thread)| thread == 0).count();
        assert!(survivors > 0 && survivors < BUSY, "one thread serves all");
        let busy: Vec<_> = clients
            .into_iter()
            .map(|(mut stream, thread)| {
                let done = &done;
                scope.spawn(move || match thread {
                    0 => {
                        while !done.load(Ordering::Relaxed) {
                            ask(&mut stream);
                        }
                        ask(&mut stream);
                    }
                    _ => echo_until_it_ends(&mut stream),
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        servers.end(1, how);
        for client in 0..LATER {
            let (mut stream, thread) = connect(client % 2 == 1);
            assert_eq!(thread, 0);
            ask(&mut stream);
        }
        done.store(true, Ordering::Relaxed);
        busy.into_iter().for_each(|client| client.join().expect("a client"));
        servers.finish()
    });
    assert!(served[0].0 > LATER);
    Ok(())
}

/// Until the server is gone: by then every byte that came was right.
fn echo_until_it_ends(stream: &mut TcpStream) {
    let mut answer = [0; 4];
    while stream.write_all(b"ping").is_ok() && stream.read_exact(&mut answer).is_ok() {
        assert_eq!(&answer, b"ping");
    }
}
