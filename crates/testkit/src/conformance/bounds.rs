//! Every bound: hitting it is a result, and what waits goes on when there is room.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use megapipe::{
    AcceptAs, AcceptCount, AcceptError, Channel, Config, ControlError, CreateError, Event, Handle, OpId,
    ReadData, RegisterError, Source, SubmitError, WriteData,
};

use crate::conformance::Fixture;
use crate::driver::{Driver, Form, GLANCE, WATCHDOG};
use crate::net::{self, End};
use crate::process;
use crate::skip::Verdict;

pub fn the_table_of_operations(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver_with(|config| config.operations_max = 4);
    let (socket, mut peer) = net::tcp_pair();
    let handle = driver.register(socket, 0).unwrap();
    for _ in 0..3 {
        let reads: Vec<_> = (0..3).map(|_| driver.read(handle).unwrap()).collect();
        let timer = driver.timer(Duration::from_secs(60), 0).unwrap();
        let full = SubmitError::OperationsFull;
        assert_eq!(driver.read(handle).unwrap_err(), full);
        assert_eq!(driver.timer(Duration::ZERO, 0).unwrap_err(), full);
        let refused = driver.write(handle, vec![1; 5]).unwrap_err();
        assert!(refused.reason == full && refused.into_data().len() == 5);
        let refused = driver.read_into(handle, Vec::with_capacity(77)).unwrap_err();
        assert!(matches!(refused.into_data(), ReadData::Vec(room) if room.capacity() >= 77));
        assert_eq!(driver.disconnect(handle).unwrap_err(), full);
        driver.cancel(timer).unwrap();
        assert_eq!(driver.next().op, timer);
        for read in reads {
            peer.write_all(b"x").unwrap();
            assert_eq!(driver.expect_read(read).0.unwrap(), b"x");
        }
    }
    Ok(())
}

pub fn the_table_of_handles(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver_with(|config| config.handles_max = 3);
    let mut handles = Vec::new();
    for _ in 0..3 {
        handles.push(driver.register(net::tcp_pair().0, 0).unwrap());
    }
    let (socket, mut peer) = net::tcp_pair();
    assert!(matches!(driver.register(socket, 0), Err(RegisterError::HandlesFull)));
    assert_eq!(driver.quietly_while(|| net::read_to_end(&mut peer)).1, End::Finished, "it is closed then");
    let (socket, mut peer) = net::tcp_pair();
    let socket = driver.to_lwsocket(socket).unwrap();
    assert!(matches!(driver.register(socket, 0), Err(RegisterError::HandlesFull)));
    assert_eq!(driver.quietly_while(|| net::read_to_end(&mut peer)).1, End::Finished, "so is this");
    driver.close(handles[1]).unwrap();
    driver.expect_silence();
    driver.register(net::tcp_pair().0, 0).unwrap();
    Ok(())
}

pub fn the_table_of_lwsockets(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver_with(|config| config.lwsockets_max = 5);
    let listener = net::listener();
    let address = listener.local_addr().unwrap();
    let accepting = driver.register(listener, 0).unwrap();
    let op = driver.accept(accepting, AcceptCount::Unlimited, AcceptAs::LwSocket).unwrap();
    driver.flush().unwrap();
    const CROWD: usize = 40;
    let mut peers: Vec<TcpStream> = (0..CROWD).map(|_| net::connect_to(address)).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        peer.write_all(&[number as u8]).unwrap();
    }
    let mut open: Vec<Handle> = Vec::new();
    let mut served = 0;
    let (mut full, mut rested) = (0, false);
    while served < CROWD {
        match driver.next_within(GLANCE) {
            Some(completion) => {
                assert_eq!(completion.op, op);
                let Event::Accept { result, more } = completion.event else { panic!() };
                assert!(more);
                match result {
                    Ok(accepted) => {
                        open.push(driver.register(accepted.socket, 0).unwrap());
                        assert!(open.len() <= 5, "more lightweight sockets than allowed");
                    }
                    Err(AcceptError::TableFull) => full += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            None => {
                // Paused: it costs nothing, and the bound holds for conversions too.
                assert!(!open.is_empty(), "accepting stopped for good after {served}");
                if open.len() == 5 && !std::mem::replace(&mut rested, true) {
                    expect_rest(&mut driver);
                    assert!(matches!(driver.to_lwsocket(net::tcp_pair().0), Err(ControlError::TableFull)));
                }
                let handle = open.remove(0);
                let read = driver.read(handle).unwrap();
                loop {
                    let completion = driver.next();
                    match completion.event {
                        Event::Read { result, data, .. } => {
                            assert_eq!((completion.op, result.unwrap()), (read, 1));
                            assert_eq!(data.bytes(), [served as u8], "a connection was lost");
                            break;
                        }
                        Event::Accept { result: Err(AcceptError::TableFull), more: true } => full += 1,
                        other => panic!("{other:?}"),
                    }
                }
                driver.close(handle).unwrap();
                served += 1;
            }
        }
    }
    assert!(rested && full > 0 && driver.stats().accepts_paused > 0);
    for peer in &mut peers {
        assert_eq!(driver.quietly_while(|| net::read_to_end(peer)).1, End::Finished);
    }
    // As good as new.
    let _peer = net::connect_to(address);
    assert!(matches!(driver.next().event, Event::Accept { result: Ok(_), more: true }));
    Ok(())
}

/// A channel that waits for something does so asleep.
fn expect_rest(driver: &mut Driver) {
    rests(driver, |driver| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(100) {
            if let Some(completion) = driver.next_within(Duration::from_millis(100)) {
                assert!(matches!(completion.event, Event::Accept { result: Err(_), .. }), "{completion:?}");
            }
        }
    });
}

/// A wait for nothing takes few turns, and next to no CPU time.
fn rests(driver: &mut Driver, wait: impl FnOnce(&mut Driver)) {
    let (cpu, turns, start) = (process::thread_cpu_time(), driver.stats().turns, Instant::now());
    wait(driver);
    let turns = driver.stats().turns - turns;
    let cpu = process::thread_cpu_time() - cpu;
    assert!(turns < 30, "{turns} turns while there was nothing to do");
    assert!(cpu < start.elapsed() / 2, "{cpu:?} of CPU time while there was nothing to do");
}

pub fn the_write_queue(fixture: &mut Fixture) -> Verdict {
    for form in Form::ALL {
        let mut driver = fixture.driver_with(|config| config.write_queue_max = 3);
        let (socket, mut peer) = net::tight_tcp_pair();
        let handle = driver.add(socket, form, 0);
        let head = driver.write(handle, vec![1; 300_000]).unwrap();
        driver.expect_silence();
        driver.write_quiet(handle, vec![2; 10]).unwrap();
        let tail = driver.write(handle, vec![3; 10]).unwrap();
        let refused = driver.write(handle, vec![4; 10]).unwrap_err();
        assert!(refused.reason == SubmitError::QueueFull && refused.into_data().len() == 10);
        assert_eq!(driver.write_quiet(handle, vec![4; 10]).unwrap_err().reason, SubmitError::QueueFull);
        // Another handle has a queue of its own.
        let (socket, mut other_peer) = net::tcp_pair();
        let other = driver.add(socket, form, 0);
        driver.write_quiet(other, vec![5; 10]).unwrap();
        let (bytes, mut seen) = driver.while_peer(|| net::read_exactly(&mut peer, 300_020));
        assert_eq!(net::read_exactly(&mut other_peer, 10), [5; 10]);
        assert!(bytes[300_000..] == [[2; 10], [3; 10]].concat());
        while seen.len() < 3 {
            seen.push(driver.next());
        }
        // Two refusals, and one word of room.
        let room = seen.iter().position(|one| matches!(one.event, Event::Writable)).expect("room is told");
        assert_eq!(seen.remove(room).handle, handle);
        assert!(seen[0].op == head && seen[1].op == tail);
        let op = driver.write(handle, vec![4; 10]).unwrap();
        assert_eq!(driver.expect_write(op).unwrap(), 10);
    }
    Ok(())
}

pub fn room_in_a_write_queue(fixture: &mut Fixture) -> Verdict {
    const MAX: u32 = 8;
    for form in Form::ALL {
        let mut driver = fixture.driver_with(|config| config.write_queue_max = MAX);
        let (socket, mut peer) = net::tight_tcp_pair();
        let handle = driver.add(socket, form, 77);
        let message = vec![9; 200_000];
        let mut taken = 0;
        // Each time the program writes until it is refused, and goes on when there is room.
        for _ in 0..5 {
            let mut refused = false;
            while !refused {
                refused = driver.write_quiet(handle, message.clone()).is_err();
                taken += usize::from(!refused);
            }
            driver.expect_silence();
            // An engine may send the queue in one piece: the peer reads all of it.
            let bytes = std::mem::take(&mut taken) * message.len();
            let (_, seen) = driver.while_peer(|| net::read_exactly(&mut peer, bytes));
            let mut seen = seen.into_iter();
            let room = seen.next().unwrap_or_else(|| driver.next());
            assert!(matches!(room.event, Event::Writable) && seen.next().is_none(), "{room:?}");
            assert_eq!((room.handle, room.cookie, room.op), (handle, 77, OpId::NONE));
            for _ in 0..MAX / 2 {
                driver.write_quiet(handle, message.clone()).unwrap();
                taken += 1;
            }
        }
        // A write that fits says nothing of room, nor does a closed handle.
        while driver.write_quiet(handle, message.clone()).is_ok() {}
        driver.close(handle).unwrap();
        let (_, seen) = driver.while_peer(|| net::read_to_end(&mut peer));
        assert!(seen.is_empty(), "{seen:?}");
    }
    Ok(())
}

pub fn a_dry_pool_starves_nobody(fixture: &mut Fixture) -> Verdict {
    const CONNECTIONS: usize = 50;
    const BYTES: usize = 10_000;
    for form in Form::ALL {
        let mut driver = fixture.driver_with(|config| {
            config.read_buffers = 2;
            config.buffer_size = 256;
        });
        let mut got = vec![Vec::new(); CONNECTIONS];
        let mut peers = Vec::new();
        for number in 0..CONNECTIONS {
            let (socket, peer) = net::tcp_pair();
            let handle = driver.add(socket, form, number as u64);
            if number % 2 == 0 {
                driver.read_stream(handle).unwrap();
            } else {
                driver.read(handle).unwrap();
            }
            peers.push(peer);
        }
        driver.flush().unwrap();
        for (number, peer) in peers.iter_mut().enumerate() {
            peer.write_all(&net::pattern(BYTES, number as u64)).unwrap();
        }
        // One of the two buffers is always in the user's hands.
        let mut held = std::collections::VecDeque::new();
        let start = Instant::now();
        let mut first_round = 0;
        while got.iter().any(|bytes| bytes.len() < BYTES) {
            assert!(start.elapsed() < WATCHDOG, "{:?}", got.iter().map(Vec::len).collect::<Vec<_>>());
            let Some(completion) =
                driver.next_within(if held.is_empty() { WATCHDOG } else { Duration::ZERO })
            else {
                held.pop_front();
                continue;
            };
            let number = completion.cookie as usize;
            let Event::Read { result, data, more } = completion.event else { panic!() };
            let count = result.unwrap();
            assert!(count > 0 && more == number.is_multiple_of(2));
            if got[number].is_empty() {
                first_round += 1;
            }
            got[number].extend_from_slice(data.bytes());
            if first_round < CONNECTIONS {
                let most = got.iter().map(Vec::len).max().unwrap_or(0);
                assert!(
                    most <= BYTES / 2,
                    "one connection got {most} bytes while {} others got none",
                    CONNECTIONS - first_round
                );
            }
            if number % 2 == 1 && got[number].len() < BYTES {
                driver.read(completion.handle).unwrap();
            }
            held.push_back(data);
            if held.len() == 2 {
                held.pop_front();
            }
        }
        for (number, bytes) in got.iter().enumerate() {
            assert!(*bytes == net::pattern(BYTES, number as u64), "other bytes on connection {number}");
        }
        assert!(driver.stats().pool_dry > 0);
        held.clear();
        driver.expect_silence();
    }
    Ok(())
}

pub fn a_hoarded_pool_pauses_and_resumes(fixture: &mut Fixture) -> Verdict {
    for form in Form::ALL {
        let mut driver = fixture.driver_with(|config| config.read_buffers = 2);
        let mut peers = Vec::new();
        let mut handles = Vec::new();
        for number in 0..6 {
            let (socket, peer) = net::tcp_pair();
            let handle = driver.add(socket, form, number);
            driver.read_stream(handle).unwrap();
            handles.push(handle);
            peers.push(peer);
        }
        driver.flush().unwrap();
        for peer in &mut peers {
            peer.write_all(b"some").unwrap();
        }
        let mut hoard = vec![driver.next(), driver.next()];
        // Nobody gets anything, and waiting costs nothing.
        expect_rest_dry(&mut driver);
        // Reads into own memory and the peers' ends need no buffer of the pool.
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 99);
        let op = driver.read_into(handle, Vec::with_capacity(8)).unwrap();
        peer.write_all(b"own").unwrap();
        assert_eq!(driver.expect_read(op).0.unwrap(), b"own");
        // A starved read can be cancelled, its handle closed.
        let starved: Vec<_> =
            (0..6).filter(|number| hoard.iter().all(|completion| completion.cookie != *number)).collect();
        driver.close(handles[starved[0] as usize]).unwrap();
        let mut all: Vec<u64> = hoard.iter().map(|completion| completion.cookie).collect();
        for _ in 0..3 {
            drop(hoard.pop());
            let completion = driver.next();
            all.push(completion.cookie);
            assert!(matches!(completion.event, Event::Read { result: Ok(4), .. }));
            hoard.push(completion);
        }
        all.push(starved[0]);
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5]);
        // Its four bytes were never read: a close may then send RST (RFC 1122, 4.2.2.13).
        driver.quietly_while(|| net::read_to_end(&mut peers[starved[0] as usize]));
        hoard.clear();
        driver.expect_silence();
        // All of it is back.
        for (number, peer) in peers.iter_mut().enumerate().filter(|(number, _)| *number as u64 != starved[0])
        {
            peer.write_all(b"again").unwrap();
            let completion = driver.next();
            assert_eq!(completion.cookie, number as u64);
            assert!(matches!(completion.event, Event::Read { result: Ok(5), .. }));
        }
    }
    Ok(())
}

pub fn an_idle_starved_reader_holds_up_nobody(fixture: &mut Fixture) -> Verdict {
    for form in Form::ALL {
        for stream in [false, true] {
            let mut driver = fixture.driver_with(|config| config.read_buffers = 2);
            let (socket, mut hoarder) = net::tcp_pair();
            let hoarding = driver.add(socket, form, 0);
            let op = driver.read_stream(hoarding).unwrap();
            let mut hoard = Vec::new();
            for _ in 0..2 {
                hoarder.write_all(b"x").unwrap();
                let completion = driver.next();
                assert_eq!(completion.op, op);
                hoard.push(completion);
            }
            let mut peers = Vec::new();
            for number in 1..10 {
                let (socket, peer) = net::tcp_pair();
                let handle = driver.add(socket, form, number);
                if stream { driver.read_stream(handle) } else { driver.read(handle) }.unwrap();
                peers.push(peer);
            }
            driver.expect_silence();
            // One buffer comes back, and only the last in line has something to read.
            peers[8].write_all(b"busy").unwrap();
            driver.expect_silence();
            hoard.pop();
            let completion = driver.next();
            assert_eq!(completion.cookie, 9);
            assert!(matches!(completion.event, Event::Read { result: Ok(4), .. }));
            expect_rest_dry(&mut driver);
            drop(completion);
            peers[3].write_all(b"next").unwrap();
            assert_eq!(driver.next().cookie, 4);
        }
    }
    Ok(())
}

pub fn datagrams_and_streams_share_a_dry_pool(fixture: &mut Fixture) -> Verdict {
    for stream in [false, true] {
        let mut driver = fixture.driver_with(|config| config.read_buffers = 4);
        let read = |driver: &mut Driver, handle| {
            if stream { driver.read_stream(handle) } else { driver.read(handle) }.unwrap()
        };
        let mut unix_peers = Vec::new();
        let mut tcp_peers = Vec::new();
        for cookie in 0..10 {
            let handle = if cookie % 2 == 0 {
                let (socket, peer) = net::unix_pair(socket2::Type::DGRAM);
                unix_peers.push(peer);
                driver.register(socket, cookie).unwrap()
            } else {
                let (socket, peer) = net::tcp_pair();
                tcp_peers.push(peer);
                driver.register(socket, cookie).unwrap()
            };
            read(&mut driver, handle);
        }
        driver.flush().unwrap();
        for (unix, tcp) in unix_peers.iter_mut().zip(&mut tcp_peers) {
            unix.send(b"message").unwrap();
            tcp.write_all(b"message").unwrap();
        }
        // Whoever gets them, some are left without; and they wait asleep.
        let mut hoard = Vec::new();
        while let Some(completion) = driver.next_within(GLANCE) {
            assert!(matches!(completion.event, Event::Read { result: Ok(7), .. }));
            hoard.push(completion);
        }
        assert!(!hoard.is_empty());
        expect_rest_dry(&mut driver);
        let mut cookies: Vec<_> = hoard.iter().map(|completion| completion.cookie).collect();
        hoard.clear();
        while cookies.len() < 10 {
            cookies.push(driver.next().cookie);
        }
        cookies.sort_unstable();
        assert_eq!(cookies, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
    Ok(())
}

fn expect_rest_dry(driver: &mut Driver) {
    rests(driver, |driver| assert!(driver.next_within(Duration::from_millis(100)).is_none()));
}

pub fn the_write_pool(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver_with(|config| config.write_buffers = 2);
    let (socket, mut peer) = net::tcp_pair();
    let handle = driver.register(socket, 0).unwrap();
    for round in 0..10u8 {
        let mut one = driver.buffer().unwrap();
        let mut two = driver.buffer().unwrap();
        assert!(driver.buffer().is_err());
        assert!(one.is_empty() && two.is_empty(), "a buffer is not empty");
        one.extend_from_slice(&[round; 6]);
        two.extend_from_slice(&[round; 4]);
        two.advance(1);
        two.truncate(2);
        driver.write_quiet(handle, one).unwrap();
        driver.write_quiet(handle, two).unwrap();
        assert!(driver.buffer().is_err(), "buffers on their way are in use");
        driver.flush().unwrap();
        assert_eq!(net::read_exactly(&mut peer, 8), [round; 8]);
        driver.drive_until(|channel| channel.buffer().is_ok(), |_, completion| panic!("{completion:?}"));
    }
    Ok(())
}

pub fn descriptors_exhausted(fixture: &mut Fixture) -> Verdict {
    const CROWD: usize = 12;
    let config = fixture.config();
    process::isolated(fixture.name(), || {
        for kind in [AcceptAs::Fd, AcceptAs::LwSocket] {
            let mut driver = Driver::new(Config { lwsockets_max: 64, ..config.clone() });
            let listener = net::listener();
            let mut peers: Vec<TcpStream> = (0..CROWD).map(|_| net::connect(&listener)).collect();
            let accepting = driver.register(listener, 0).unwrap();
            let op = driver.accept(accepting, AcceptCount::Unlimited, kind).unwrap();
            process::leave_descriptors(4);
            let mut held: Vec<Source> = Vec::new();
            let (mut served, mut rested) = (0, false);
            while served < CROWD {
                let completion = driver.next();
                assert_eq!(completion.op, op);
                let Event::Accept { result, more: true } = completion.event else { panic!() };
                match result {
                    Ok(accepted) => {
                        held.push(accepted.socket);
                        served += 1;
                    }
                    Err(AcceptError::Exhausted(error)) => {
                        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
                        if !std::mem::replace(&mut rested, true) {
                            expect_rest(&mut driver);
                        }
                        // Descriptors are freed where the channel does not see it.
                        held.clear();
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            // Sockets outside the descriptor table know no such limit.
            let outside = kind == AcceptAs::LwSocket && driver.engine() == megapipe::EngineKind::Uring;
            assert!(rested || outside, "the limit was never met");
            process::limit_descriptors(4096);
            held.clear();
            for peer in &mut peers {
                let ((_, end), seen) = driver.while_peer(|| net::read_to_end(peer));
                assert_eq!(end, End::Finished, "a connection was lost");
                // accept(2) wants a free number before it looks for a connection: with the
                // last one given away, the want may be told though nobody waits.
                for completion in seen {
                    let Event::Accept { result: Err(AcceptError::Exhausted(_)), more: true } =
                        completion.event
                    else {
                        panic!("nothing else should surface, but {completion:?} did");
                    };
                }
            }
        }
    });
    Ok(())
}

/// Peers that do not read what they are sent keep no buffer of the pool from others.
pub fn a_blocked_write_leaves_the_pool(fixture: &mut Fixture) -> Verdict {
    const BUFFERS: u16 = 8;
    for form in Form::ALL {
        for blocked_already in [false, true] {
            let mut driver = fixture.driver_with(|config| config.read_buffers = BUFFERS);
            let (socket, mut peer) = net::tight_tcp_pair();
            let blocked = driver.add(socket, form, 0);
            let (socket, mut sender) = net::tcp_pair();
            let source = driver.add(socket, form, 1);
            let mut read = |driver: &mut Driver, byte: u8| {
                sender.write_all(&[byte; 100]).unwrap();
                let op = driver.read(source).unwrap();
                let completion = driver.next();
                assert_eq!(completion.op, op);
                let Event::Read { result: Ok(100), data: ReadData::Buffer(data), .. } = completion.event
                else {
                    panic!("{:?}", completion.event)
                };
                data
            };
            // The whole pool, queued in one batch, or one by one behind a write that waits.
            let fill = vec![0; 1 << 20];
            if blocked_already {
                driver.write_quiet(blocked, fill).unwrap();
                driver.expect_silence();
                for round in 0..3 * BUFFERS {
                    let data = read(&mut driver, round as u8 + 1);
                    let whole =
                        if round % 2 == 0 { data.into() } else { WriteData::Vectored(vec![data.into()]) };
                    driver.write_quiet(blocked, whole).unwrap();
                }
            } else {
                let all: Vec<_> = (1..=BUFFERS).map(|byte| read(&mut driver, byte as u8)).collect();
                driver.write_quiet(blocked, fill).unwrap();
                for data in all {
                    driver.write_quiet(blocked, data).unwrap();
                }
            }
            // All of the pool is there for others.
            let all: Vec<_> = (0..BUFFERS).map(|_| read(&mut driver, 9)).collect();
            drop(all);
            // And nothing was lost.
            let count = usize::from(if blocked_already { 3 * BUFFERS } else { BUFFERS });
            let got = driver.quietly_while(|| net::read_exactly(&mut peer, (1 << 20) + 100 * count));
            let want: Vec<u8> = (1..=count).flat_map(|byte| [byte as u8; 100]).collect();
            assert!(got[1 << 20..] == want);
        }
    }
    Ok(())
}

/// A shell's `ulimit -n` is a soft limit, 1024 as a rule: no bound for a channel.
pub fn a_low_soft_limit_of_descriptors_is_raised(fixture: &mut Fixture) -> Verdict {
    const CROWD: u32 = 100;
    let config = fixture.config();
    process::isolated(fixture.name(), || {
        for kind in [AcceptAs::LwSocket, AcceptAs::Fd] {
            let listener = net::listener();
            let _peers: Vec<TcpStream> = (0..CROWD).map(|_| net::connect(&listener)).collect();
            process::leave_descriptors(12);
            let mut driver = Driver::new(config.clone());
            let listening = driver.register(listener, 0).unwrap();
            driver.accept(listening, AcceptCount::Exactly(CROWD), kind).unwrap();
            let mut accepted = Vec::new();
            for _ in 0..CROWD {
                let Event::Accept { result, .. } = driver.next().event else { panic!() };
                accepted.push(result.expect("there is room").socket);
            }
        }
    });
    Ok(())
}

pub fn bad_settings_are_refused(fixture: &mut Fixture) -> Verdict {
    type Change = fn(&mut Config);
    let changes: [(&str, Change); 10] = [
        ("read_buffers", |config| config.read_buffers = 0),
        ("read_buffers", |config| config.read_buffers = 3),
        ("buffer_size", |config| config.buffer_size = 1),
        ("buffer_size", |config| config.buffer_size = u32::MAX),
        ("write_buffers", |config| config.write_buffers = 0),
        ("batch_threshold", |config| config.batch_threshold = 0),
        ("operations_max", |config| config.operations_max = 0),
        ("handles_max", |config| config.handles_max = u32::MAX),
        ("lwsockets_max", |config| config.lwsockets_max = 0),
        ("write_queue_max", |config| config.write_queue_max = 0),
    ];
    for (name, change) in changes {
        let mut config = fixture.config();
        change(&mut config);
        match Channel::new(config) {
            Err(CreateError::Setting { setting, .. }) => assert_eq!(setting, name),
            Err(error) => panic!("{name}: {error}"),
            Ok(_) => panic!("{name} was taken"),
        }
    }
    Ok(())
}
