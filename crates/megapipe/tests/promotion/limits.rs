//! Promotions that fail for want of something: memory, descriptors, quota. Connections stay on TCP
//! unharmed, and later ones move again.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use testkit::process;
use testkit::skip::{self, Skipped};

use crate::support::{
    Folder, MonitorProcess, SHARE, Two, engines, own_monitor, pair, pattern, play_monitor, start_monitor,
};

/// Sends something each way on the last connection, and checks that it arrives.
fn exchange(two: &mut Two) {
    let cookie = two.connections - 1;
    let lens = [0, 1].map(|side| two.sides[side].seen(cookie).got.len());
    let sent = [pattern(7, 50_000), pattern(9, 20_000)];
    for side in [0, 1] {
        two.send(side, &sent[side]);
    }
    two.until("bytes", |two| {
        [0, 1].iter().all(|&side| two.sides[side].seen(cookie).got.len() >= lens[side] + sent[1 - side].len())
    });
    for side in [0, 1] {
        let seen = two.sides[side].seen(cookie);
        assert!(seen.got[lens[side]..] == sent[1 - side], "other bytes at side {side}");
        assert!(seen.errors == [vec![], vec![]]);
    }
}

fn counts(two: &Two) -> [(u64, u64); 2] {
    two.sides.each_ref().map(|side| (side.channel.stats().promoted, side.channel.stats().promotions_refused))
}

/// A connection that both sides are refused, while its bytes are under way.
fn stays_on_tcp(two: &mut Two) {
    is_refused(two, 2);
}

/// The same if at least this many sides are refused.
fn is_refused(two: &mut Two, ends: usize) {
    let before = counts(two);
    two.add(pair());
    two.read_streams();
    two.send(0, b"under way");
    two.until("refusals", |two| {
        [0, 1].iter().filter(|&&side| counts(two)[side].1 > before[side].1).count() >= ends
    });
    exchange(two);
    assert_eq!(counts(two).map(|count| count.0), before.map(|count| count.0));
}

/// A connection that is promoted.
fn moves(two: &mut Two) {
    let before = counts(two);
    two.add(pair());
    two.read_streams();
    two.until("promotion", |two| [0, 1].iter().all(|&side| counts(two)[side].0 > before[side].0));
    exchange(two);
}

#[test]
fn a_monitor_without_memory_or_descriptors_leaves_connections_on_tcp() {
    const NAME: &str = "limits::a_monitor_without_memory_or_descriptors_leaves_connections_on_tcp";
    const UNLIMITED: u64 = MonitorProcess::UNLIMITED;
    play_monitor();
    let folder = Folder::new("poor");
    let mut monitor = MonitorProcess::start(NAME, &folder);
    for engines in engines() {
        let mut two = Two::new(engines, &folder);
        moves(&mut two);
        // A region is a file: a limit on the size of files acts as a full disk. A loop
        // page is within the limit, a region is not.
        monitor.limit(UNLIMITED, 8192);
        stays_on_tcp(&mut two);
        monitor.limit(UNLIMITED, UNLIMITED);
        moves(&mut two);
        // Two regions take four.
        for spare in (0..4).rev() {
            monitor.limit(spare, UNLIMITED);
            // With one, the second offer is lost unless the socket of the first is closed by
            // then; the first one waits for another.
            is_refused(&mut two, if spare == 1 { 1 } else { 2 });
        }
        monitor.limit(UNLIMITED, UNLIMITED);
        moves(&mut two);
    }
    monitor.kill();
}

#[test]
fn a_program_without_descriptors_leaves_connections_on_tcp() {
    const NAME: &str = "limits::a_program_without_descriptors_leaves_connections_on_tcp";
    play_monitor();
    process::isolated(NAME, || {
        let folder = Folder::new("spare");
        let _monitor = MonitorProcess::start(NAME, &folder);
        for engines in engines() {
            let mut promoted = [0; 2];
            for spare in 0..12 {
                process::limit_descriptors(u64::MAX);
                let mut two = Two::new(engines, &folder);
                moves(&mut two);
                let before = counts(&two);
                // From the offer on, which may need some itself, to the grant, which brings three.
                two.add(pair());
                two.read_streams();
                process::leave_descriptors(spare);
                two.until("an answer to one endpoint", |two| counts(two) != before);
                exchange(&mut two);
                // A refusal leaves no descriptors behind.
                for side in [0, 1] {
                    promoted[side] += counts(&two)[side].0 - before[side].0;
                }
                process::limit_descriptors(u64::MAX);
                moves(&mut two);
            }
            assert!(promoted.iter().all(|&count| (1..12).contains(&count)), "{promoted:?}");
        }
    });
}

#[test]
fn a_user_at_the_quota_stays_on_tcp_until_something_ends() {
    for engines in engines() {
        let folder = Folder::new("quota");
        // Both ends of two connections.
        start_monitor(&folder, &format!("{SHARE}segment_size = 8192\nbytes_per_user = 32768\n"));
        let mut two = Two::new(engines, &folder);
        moves(&mut two);
        let first = two.handles;
        moves(&mut two);
        stays_on_tcp(&mut two);
        for (side, handle) in two.sides.iter_mut().zip(first) {
            side.channel.close(handle).unwrap();
            side.channel.flush().unwrap();
        }
        // The monitor reads the closes before the next offers.
        moves(&mut two);
        stays_on_tcp(&mut two);
    }
}

/// A connection in a network namespace of its own, with the same addresses every time.
fn connection_elsewhere() -> std::io::Result<(TcpStream, TcpStream)> {
    let thread = std::thread::spawn(|| {
        process::enter_own_network()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 4000))?;
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.bind(&std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 4001)).into())?;
        socket.connect(&listener.local_addr()?.into())?;
        Ok((socket.into(), listener.accept()?.0))
    });
    thread.join().unwrap()
}

#[test]
fn the_same_addresses_in_two_namespaces_stay_apart() {
    let folder = own_monitor("namespaces");
    for engines in engines() {
        let connections = [connection_elsewhere(), connection_elsewhere()];
        let [Ok((a, b)), Ok((c, d))] = connections else {
            let reason = Skipped::because("no network namespace can be made");
            return skip::record("the_same_addresses_in_two_namespaces_stay_apart", &reason);
        };
        let mut two = Two::new(engines, &folder);
        // Crosswise: a match by addresses alone would join an endpoint of one to one of
        // the other.
        let one = two.sides[0].channel.register(a, 0).unwrap();
        let other = two.sides[1].channel.register(d, 1).unwrap();
        for _ in 0..20 {
            two.sides.iter_mut().for_each(|side| _ = side.step(Duration::from_millis(1)));
        }
        assert_eq!(counts(&two), [(0, 0); 2]);
        let handles = [
            [one, two.sides[1].channel.register(b, 0).unwrap()],
            [two.sides[0].channel.register(c, 1).unwrap(), other],
        ];
        for handles in handles {
            two.handles = handles;
            two.read_streams();
        }
        two.connections = 2;
        two.promoted();
        for (cookie, handles) in (0..).zip(handles) {
            two.handles = handles;
            for side in [0, 1] {
                two.send(side, &pattern(cookie as usize * 5 + side, 30_000));
            }
        }
        two.until("bytes", |two| {
            two.sides
                .iter_mut()
                .all(|side| [0, 1].iter().all(|&cookie| side.seen(cookie).got.len() == 30_000))
        });
        for side in [0, 1] {
            for cookie in [0, 1] {
                assert!(two.sides[side].seen(cookie).got == pattern(cookie as usize * 5 + 1 - side, 30_000));
            }
        }
    }
}
