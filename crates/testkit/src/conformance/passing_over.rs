//! Partitioned listeners of channels that do not accept: others get their connections.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::Duration;

use megapipe::{AcceptAs, AcceptCount, CpuSet};
use socket2::{Domain, SockFilter, Socket, Type};

use super::partition::{Member, answer, ask, connect_from, join, serve, shared_socket};
use super::sharing::needs_deferral;
use crate::conformance::Fixture;
use crate::driver::GLANCE;
use crate::net;
use crate::process;
use crate::skip::{Skipped, Verdict};
use crate::threads::SetAtEnd;

/// Skips what needs more than steering by CPU.
fn needs_awareness() -> Verdict {
    steering::Steering::new(steering::SlowPath::OtherMember)
        .map(drop)
        .map_err(|error| Skipped::because(error.to_string()))
}

pub fn a_channel_that_cannot_accept_is_passed_over(fixture: &mut Fixture) -> Verdict {
    needs_awareness()?;
    // Without an accept; with one that was cancelled.
    for cancelled in [false, true] {
        let (socket, address) = shared_socket(net::v4());
        let over = AtomicBool::new(false);
        let fixture = &*fixture;
        let mut able = join(fixture, &socket, &CpuSet::empty());
        std::thread::scope(|scope| {
            let (over, socket, end) = (&over, &socket, SetAtEnd(&over));
            let (joined, has_joined) = mpsc::channel();
            let unable = scope.spawn(move || {
                let mut driver = fixture.driver();
                let all = CpuSet::from_iter(process::cpus());
                let listener = driver.register_partitioned(socket.as_fd(), 0, &all).unwrap();
                if cancelled {
                    let op = driver.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket).unwrap();
                    driver.cancel(op).unwrap();
                    driver.next();
                }
                assert!(driver.next_within(GLANCE).is_none());
                joined.send(()).unwrap();
                serve(&mut Member { driver, listener }, over)
            });
            has_joined.recv().expect("the other channel joins");
            let mut served = 0;
            let mut peers: Vec<_> = (0..100).map(|_| net::connect_to(address)).collect();
            able.driver.drive_while(
                || peers.iter_mut().for_each(|peer| ask(peer).expect("somebody serves every connection")),
                |channel, completion| served += usize::from(answer(channel, completion)),
            );
            drop(end);
            assert_eq!((served, unable.join().unwrap()), (100, 0));
        });
    }
    Ok(())
}

/// A channel hangs, and then ends, while another one waits.
pub fn a_channel_that_hangs_is_passed_over(fixture: &mut Fixture) -> Verdict {
    needs_awareness()?;
    let (socket, address) = shared_socket(net::v4());
    let mut hung = join(fixture, &socket, &CpuSet::from_iter(process::cpus()));
    let fixture = &*fixture;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (over, socket, end) = (&over, &socket, SetAtEnd(&over));
        let (joined, has_joined) = mpsc::channel();
        let (go, may_serve) = mpsc::channel();
        let awake = scope.spawn(move || {
            let mut member = join(fixture, socket, &CpuSet::empty());
            // Nobody is awake: the connections wait for the one that hangs, whose CPUs all are.
            joined.send(()).unwrap();
            may_serve.recv().unwrap();
            serve(&mut member, over)
        });
        has_joined.recv().expect("the other channel joins");
        assert_eq!(hung.count(), 0);
        let mut peers = connect_from(process::cpus()[0], address, 20);
        go.send(()).expect("the other channel serves");
        // Now the other one waits, but may be descheduled for long, hence the repetitions.
        let mut asked = Vec::new();
        process::until("an answer of the channel that is awake", || {
            let mut peer = net::connect_to(address);
            peer.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let answered = ask(&mut peer).is_ok();
            if answered {
                peers.push(peer)
            } else {
                asked.push(peer)
            }
            answered.then_some(())
        });
        // The first ends without having accepted one: no connection is lost.
        drop(hung);
        for peer in &mut peers {
            net::bounded(peer);
            ask(peer).expect("no connection is reset");
        }
        for peer in &mut asked {
            net::bounded(peer);
            peer.read_exact(&mut [0]).expect("no connection is reset");
        }
        drop(end);
        assert_eq!(awake.join().unwrap(), peers.len() + asked.len());
    });
    Ok(())
}

/// A channel that hangs ends while connections wait in its queue, and others are amid their handshake.
/// The other channel has begun to accept before, or does so after.
pub fn a_channel_that_ends_loses_no_connection_that_waits(fixture: &mut Fixture) -> Verdict {
    const OF_EACH_CPU: usize = 20;
    const HANDSHAKES: usize = 10;
    needs_awareness()?;
    needs_deferral(fixture)?;
    // Where no setting moves connections: net.ipv4.tcp_migrate_req is 0 in a new network.
    process::enter_own_network().map_err(|error| Skipped::because(error.to_string()))?;
    assert_eq!(std::fs::read_to_string("/proc/sys/net/ipv4/tcp_migrate_req").unwrap().trim(), "0");
    let fixture = &*fixture;
    for accepts_before in [true, false] {
        let (socket, address) = shared_socket(net::v4());
        let hung = join(fixture, &socket, &CpuSet::from_iter(process::cpus()));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (socket, over, end) = (&socket, &over, SetAtEnd(&over));
            let (step_done, is_done) = mpsc::channel();
            let (go, may_accept) = mpsc::channel();
            let other = scope.spawn(move || {
                let mut driver = fixture.driver();
                let listener = driver.register_partitioned(socket.as_fd(), 0, &CpuSet::empty()).unwrap();
                // It cannot accept: everything is steered to the one that hangs.
                assert!(driver.next_within(GLANCE).is_none());
                step_done.send(()).unwrap();
                may_accept.recv().unwrap();
                driver.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket).unwrap();
                driver.flush().unwrap();
                step_done.send(()).unwrap();
                serve(&mut Member { driver, listener }, over)
            });
            is_done.recv().expect("the other channel joins");
            let mut peers: Vec<TcpStream> =
                process::cpus().into_iter().flat_map(|cpu| connect_from(cpu, address, OF_EACH_CPU)).collect();
            let half_open: Vec<Socket> = (0..HANDSHAKES).map(|_| begin_handshake(address)).collect();
            let waiting = peers.len();
            let found = || {
                let (mut queues, handshakes) = waiting_at(address);
                queues.sort_unstable();
                (queues, handshakes)
            };
            let expected = (vec![0, waiting], HANDSHAKES);
            // The last steps of handshakes may still be on their way.
            process::until("connections and handshakes", || (found() == expected).then_some(()));
            let accept_now = || {
                go.send(()).expect("the other channel is there");
                is_done.recv().expect("the other channel accepts");
            };
            if accepts_before {
                accept_now();
                assert_eq!(found(), expected);
            }
            drop(hung);
            if !accepts_before {
                accept_now();
            }
            peers.extend(half_open.into_iter().map(end_handshake));
            for peer in &mut peers {
                ask(peer).expect("no connection is reset");
            }
            drop(end);
            assert_eq!(other.join().unwrap(), peers.len());
        });
    }
    Ok(())
}

/// A connection whose SYN the kernel has answered, and that has dropped the answer.
fn begin_handshake(address: SocketAddr) -> Socket {
    // BPF_RET of no bytes.
    let nothing = SockFilter::new(0x06, 0, 0, 0);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.attach_filter(&[nothing]).unwrap();
    socket.set_nonblocking(true).unwrap();
    let begun = socket.connect(&address.into()).unwrap_err();
    assert_eq!(begun.raw_os_error(), Some(libc::EINPROGRESS));
    socket
}

/// The same, which takes the next answer: after a second.
fn end_handshake(socket: Socket) -> TcpStream {
    socket.detach_filter().unwrap();
    socket.set_nonblocking(false).unwrap();
    net::bounded(&socket);
    socket.into()
}

/// What waits at a port of the calling thread's network: how many connections for each socket that
/// listens there, and how many amid their handshake.
fn waiting_at(address: SocketAddr) -> (Vec<usize>, usize) {
    let port = format!(":{:04X}", address.port());
    // States are those of net/tcp_states.h; the second part of a listener's queues is its connections.
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp").expect("proc is mounted");
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let (mut queues, mut handshakes) = (Vec::new(), 0);
    for row in rows.filter(|row| row[1].ends_with(&port)) {
        match row[3] {
            "0A" => queues.push(usize::from_str_radix(row[4].split_once(':').unwrap().1, 16).unwrap()),
            "03" => handshakes += 1,
            _ => {}
        }
    }
    (queues, handshakes)
}
