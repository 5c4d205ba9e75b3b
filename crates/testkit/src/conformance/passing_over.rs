//! Partitioned listeners of channels that do not accept: others get their connections.

use std::io::Read;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use megapipe::{AcceptAs, AcceptCount, CpuSet, Event};

use super::partition::{Member, answer, ask, connect_from, echo, join, serve, shared_socket};
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

/// Clients connect without end while a channel hangs, and then ends without having accepted what was
/// steered to it. It ends without connections of its own, so that every reset would be of one that
/// waited.
pub fn a_channel_that_ends_under_load_resets_nothing(fixture: &mut Fixture) -> Verdict {
    const CLIENTS: usize = 6;
    const PAUSE: Duration = Duration::from_millis(2);
    const HANGS: Duration = Duration::from_millis(100);
    const MEANWHILE: usize = 300;
    needs_awareness()?;
    // Where no setting moves connections: net.ipv4.tcp_migrate_req is 0 in a new network.
    process::enter_own_network().map_err(|error| Skipped::because(error.to_string()))?;
    assert_eq!(std::fs::read_to_string("/proc/sys/net/ipv4/tcp_migrate_req").unwrap().trim(), "0");
    let (socket, address) = shared_socket(net::v4());
    let [over, hangs, idle] = [false; 3].map(AtomicBool::new);
    let answered = AtomicUsize::new(0);
    let fixture = &*fixture;
    std::thread::scope(|scope| {
        let (over, hangs, idle, answered, socket) = (&over, &hangs, &idle, &answered, &socket);
        let (end, _hangs_at_end) = (SetAtEnd(over), SetAtEnd(hangs));
        let (joined, has_joined) = mpsc::channel();
        let (hung, has_hung) = mpsc::channel();
        let (go, may_end) = mpsc::channel::<()>();
        let ends = {
            let joined = joined.clone();
            scope.spawn(move || {
                let mut member = join(fixture, socket, &CpuSet::from_iter(process::cpus()));
                joined.send(()).unwrap();
                serve_until_idle(&mut member, hangs);
                idle.store(true, Ordering::Relaxed);
                hung.send(()).unwrap();
                may_end.recv().unwrap();
            })
        };
        let stays = scope.spawn(move || {
            let mut member = join(fixture, socket, &CpuSet::empty());
            joined.send(()).unwrap();
            serve(&mut member, over)
        });
        (0..2).for_each(|_| has_joined.recv().expect("both channels join"));
        let client = |cpu: u32| {
            assert!(process::pin_to(cpu), "the CPU was there a moment ago");
            while !over.load(Ordering::Relaxed) {
                // A busy machine would otherwise never leave the channel without a connection.
                if hangs.load(Ordering::Relaxed) && !idle.load(Ordering::Relaxed) {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                let mut peer = net::connect_to(address);
                net::bounded(&peer);
                ask(&mut peer).expect("every connection is answered");
                answered.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
        };
        let clients: Vec<_> = process::cpus()
            .into_iter()
            .cycle()
            .take(CLIENTS)
            .map(|cpu| scope.spawn(move || client(cpu)))
            .collect();
        let await_answers = |what: &str| {
            let before = answered.load(Ordering::Relaxed);
            process::until(what, || (answered.load(Ordering::Relaxed) >= before + MEANWHILE).then_some(()));
        };
        await_answers("answers while both serve");
        hangs.store(true, Ordering::Relaxed);
        has_hung.recv().expect("the first channel hangs");
        std::thread::sleep(HANGS);
        go.send(()).expect("the first channel ends");
        ends.join().unwrap();
        await_answers("answers after its end");
        drop(end);
        clients.into_iter().for_each(|client| client.join().expect("no connection is reset"));
        assert!(stays.join().unwrap() > 0);
    });
    Ok(())
}

/// Serves until `idle` is set and no connection is left.
fn serve_until_idle(member: &mut Member, idle: &AtomicBool) {
    let mut open = 0;
    loop {
        let ends = idle.load(Ordering::Relaxed);
        let within = if ends { Duration::ZERO } else { Duration::from_millis(5) };
        let Some(completion) = member.driver.next_within(within) else {
            if ends && open == 0 {
                return;
            }
            continue;
        };
        let closes = matches!(completion.event, Event::Read { result: Ok(0) | Err(_), .. });
        open += usize::from(echo(&mut member.driver, completion));
        open -= usize::from(closes);
    }
}
