//! Partitioned listeners: who gets which connection, while members come and go.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use megapipe::{
    AcceptAs, AcceptCount, Channel, ControlError, CpuSet, Event, Handle, PartitionError, RegisterError,
};
use socket2::{Domain, Socket, Type};

use crate::confine;
use crate::conformance::Fixture;
use crate::driver::{Driver, GLANCE, WATCHDOG};
use crate::net;
use crate::process::{self, Fosterling};
use crate::skip::{Skipped, Verdict};
use crate::threads::SetAtEnd;

/// Two CPUs that this process may use.
fn two_cpus() -> Result<[u32; 2], Skipped> {
    match process::cpus()[..] {
        [one, other, ..] => Ok([one, other]),
        _ => Err(Skipped::because("needs two CPUs")),
    }
}

/// A bound socket that can be shared.
pub(super) fn shared_socket(address: SocketAddr) -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&address.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

pub(super) struct Member {
    pub(super) driver: Driver,
    pub(super) listener: Handle,
}

pub(super) fn join(fixture: &Fixture, socket: &impl AsFd, mask: &CpuSet) -> Member {
    let mut driver = fixture.driver();
    let listener = driver.register_partitioned(socket.as_fd(), 0, mask).unwrap();
    driver.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket).unwrap();
    driver.flush().unwrap();
    Member { driver, listener }
}

impl Member {
    /// Connections that wait for this member; they are closed.
    pub(super) fn count(&mut self) -> usize {
        let mut count = 0;
        while let Some(completion) = self.driver.next_within(GLANCE) {
            let Event::Accept { result, more: true } = completion.event else { panic!("{completion:?}") };
            drop(result.unwrap());
            count += 1;
        }
        count
    }
}

/// Connections that do not make a member count as behind, even all of them: the masks alone decide.
const FEW: usize = 3;
const MORE: usize = 4;
const _: () = assert!(FEW + MORE < steering::BEHIND_MAX as usize);

/// Connects `count` times from one CPU, when no channel of this thread counts as awake any more: all
/// members are equal then.
pub(super) fn connect_from(cpu: u32, address: SocketAddr, count: usize) -> Vec<TcpStream> {
    std::thread::sleep(2 * steering::AWAY_MAX);
    std::thread::spawn(move || {
        assert!(process::pin_to(cpu), "the CPU was there a moment ago");
        (0..count).map(|_| net::connect_to(address)).collect()
    })
    .join()
    .unwrap()
}

pub fn masks_steer_by_cpu(fixture: &mut Fixture) -> Verdict {
    let [a, b] = two_cpus()?;
    let mut addresses = vec![net::v4()];
    if net::listener_v6().is_ok() {
        addresses.push(net::v6());
    }
    for address in addresses {
        let (socket, address) = shared_socket(address);
        let mut first = join(fixture, &socket, &CpuSet::of(a));
        let mut second = join(fixture, &socket, &CpuSet::of(b));
        drop(socket);
        for _ in 0..3 {
            let _peers = (connect_from(a, address, FEW), connect_from(b, address, MORE));
            assert_eq!((first.count(), second.count()), (FEW, MORE));
        }
    }
    // A listener that nobody meant to share, which has a connection already.
    let alone = net::listener();
    let address = alone.local_addr().unwrap();
    let _earlier = net::connect_to(address);
    let mut first = join(fixture, &alone, &CpuSet::of(a));
    assert_eq!(first.count(), 1);
    let mut second = join(fixture, &alone, &CpuSet::of(b));
    let _peers = (connect_from(a, address, FEW), connect_from(b, address, MORE));
    assert_eq!((first.count(), second.count()), (FEW, MORE));
    // What cannot be shared is refused, with its reason.
    let mut driver = fixture.driver();
    let (unix, _peer) = net::unix_pair(Type::STREAM);
    let refused = driver.register_partitioned(unix.as_fd(), 0, &CpuSet::of(a));
    assert!(matches!(refused, Err(RegisterError::Partition(PartitionError::NotTcp))));
    let handle = driver.register(net::listener(), 0).unwrap();
    let Err(ControlError::Io(error)) = driver.set_cpu_mask(handle, &CpuSet::of(a)) else { panic!() };
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    Ok(())
}

pub fn a_changed_mask_steers_at_once(fixture: &mut Fixture) -> Verdict {
    let [a, b] = two_cpus()?;
    let (socket, address) = shared_socket(net::v4());
    let mut first = join(fixture, &socket, &CpuSet::of(a));
    let mut second = join(fixture, &socket, &CpuSet::of(b));
    for round in 0..4 {
        let (one, other) = if round % 2 == 0 { (b, a) } else { (a, b) };
        first.driver.set_cpu_mask(first.listener, &CpuSet::of(one)).unwrap();
        second.driver.set_cpu_mask(second.listener, &CpuSet::of(other)).unwrap();
        let _peers = (connect_from(one, address, FEW), connect_from(other, address, MORE));
        assert_eq!((first.count(), second.count()), (FEW, MORE));
    }
    // All to one.
    first.driver.set_cpu_mask(first.listener, &CpuSet::from_iter([a, b])).unwrap();
    second.driver.set_cpu_mask(second.listener, &CpuSet::empty()).unwrap();
    let _peers = (connect_from(a, address, FEW), connect_from(b, address, MORE));
    assert_eq!((first.count(), second.count()), (FEW + MORE, 0));
    Ok(())
}

pub fn a_shared_cpu_is_shared(fixture: &mut Fixture) -> Verdict {
    let [a, b] = two_cpus()?;
    let (socket, address) = shared_socket(net::v4());
    let mut first = join(fixture, &socket, &CpuSet::from_iter([a, b]));
    let mut second = join(fixture, &socket, &CpuSet::of(b));
    let _peers = connect_from(a, address, FEW);
    assert_eq!((first.count(), second.count()), (FEW, 0));
    let (mut one, mut other) = (0, 0);
    for _ in 0..40 {
        let _peers = connect_from(b, address, 5);
        (one, other) = (one + first.count(), other + second.count());
    }
    assert_eq!(one + other, 200, "a connection was lost");
    // Fewer than 40 of 200 fair coins: once in 10^17 runs.
    assert!(one >= 40 && other >= 40, "{one} and {other}");
    Ok(())
}

pub fn leavers_and_late_joiners(fixture: &mut Fixture) -> Verdict {
    let [a, b] = two_cpus()?;
    let (socket, address) = shared_socket(net::v4());
    let mut leaver = join(fixture, &socket, &CpuSet::empty());
    let mut first = join(fixture, &socket, &CpuSet::of(a));
    let mut second = join(fixture, &socket, &CpuSet::of(b));
    let check = |first: &mut Member, second: &mut Member| {
        let _peers = (connect_from(a, address, FEW), connect_from(b, address, MORE));
        assert_eq!((first.count(), second.count()), (FEW, MORE));
    };
    check(&mut first, &mut second);
    // The last member moves into its place.
    leaver.driver.close(leaver.listener).unwrap();
    leaver.driver.expect_silence();
    check(&mut first, &mut second);
    // It comes back, as does another; the first goes by unregistering.
    let mut third = join(fixture, &socket, &CpuSet::empty());
    check(&mut first, &mut second);
    assert_eq!(third.count(), 0);
    drop(first.driver.unregister(first.listener).unwrap());
    third.driver.set_cpu_mask(third.listener, &CpuSet::of(a)).unwrap();
    check(&mut third, &mut second);
    // A dropped channel leaves, too.
    drop(second);
    drop(first);
    let mut late = join(fixture, &socket, &CpuSet::of(b));
    check(&mut third, &mut late);
    drop((third, late));
    // The address is free again.
    drop(socket);
    process::until("a free address", || std::net::TcpListener::bind(address).ok());
    Ok(())
}

/// A socket that listens already is shared, not taken: it outlives the channel that shared it,
/// and the others' masks hold while it is there and when it goes.
pub fn a_listener_of_the_callers_lives_on(fixture: &mut Fixture) -> Verdict {
    let [a, b] = two_cpus()?;
    let (socket, address) = shared_socket(net::v4());
    socket.listen(100).unwrap();
    net::bounded(&socket);
    for round in 0..2 {
        // What waited already is accepted, too.
        let _peers = connect_from(a, address, 5);
        let mut first = join(fixture, &socket, &CpuSet::of(a));
        assert_eq!(first.count(), 5, "round {round}");
        let mut second = join(fixture, &socket, &CpuSet::of(b));
        let mut third = join(fixture, &socket, &CpuSet::empty());
        let _peers = (connect_from(a, address, FEW), connect_from(b, address, MORE));
        assert_eq!((first.count(), second.count(), third.count()), (FEW, MORE, 0));
        match round {
            0 => {
                first.driver.close(first.listener).unwrap();
                first.driver.expect_silence();
            }
            _ => drop(first),
        }
        third.driver.set_cpu_mask(third.listener, &CpuSet::of(a)).unwrap();
        let _peers = (connect_from(a, address, FEW), connect_from(b, address, MORE));
        assert_eq!((third.count(), second.count()), (FEW, MORE));
        drop((second, third));
        // The caller alone.
        let peer = connect_from(a, address, 1).remove(0);
        let accepted = process::until("a connection for the caller", || socket.accept().ok());
        assert_eq!(accepted.1.as_socket(), Some(peer.local_addr().unwrap()));
    }
    // It is closed before its place is taken by others.
    let first = join(fixture, &socket, &CpuSet::of(a));
    let mut second = join(fixture, &socket, &CpuSet::of(b));
    let mut third = join(fixture, &socket, &CpuSet::empty());
    drop(first);
    drop(socket);
    let mut steered = || {
        third.driver.set_cpu_mask(third.listener, &CpuSet::of(a)).unwrap();
        let _peers = (connect_from(a, address, FEW), connect_from(b, address, MORE));
        (third.count(), second.count()) == (FEW, MORE)
    };
    process::until("steering without it", || steered().then_some(()));
    Ok(())
}

/// Serves echo in this channel until `over`; returns how many connections came.
pub(super) fn serve(member: &mut Member, over: &AtomicBool) -> usize {
    let mut served = 0;
    while !over.load(Ordering::Relaxed) {
        if let Some(completion) = member.driver.next_within(Duration::from_millis(5)) {
            served += usize::from(echo(&mut member.driver, completion));
        }
    }
    served
}

/// Echoes on all connections; true if this is a new one.
pub(super) fn echo(driver: &mut Driver, completion: megapipe::Completion) -> bool {
    answer(driver, completion)
}

pub(super) fn answer(channel: &mut Channel, completion: megapipe::Completion) -> bool {
    match completion.event {
        Event::Accept { result, .. } => {
            let handle = channel.register(result.unwrap().socket, 0).unwrap();
            channel.read_stream(handle).unwrap();
            return true;
        }
        Event::Read { result: Ok(1..), data: megapipe::ReadData::Buffer(buffer), .. } => {
            channel.write_quiet(completion.handle, buffer).unwrap();
        }
        Event::Read { .. } => channel.close(completion.handle).unwrap(),
        _ => {}
    }
    false
}

/// One question and its answer on a connection.
pub(super) fn ask(peer: &mut (impl Read + Write)) -> std::io::Result<()> {
    peer.write_all(b"?")?;
    peer.read_exact(&mut [0])
}

pub fn the_death_of_a_thread(fixture: &mut Fixture) -> Verdict {
    let [a, b] = two_cpus()?;
    let (socket, address) = shared_socket(net::v4());
    let over = AtomicBool::new(false);
    let doomed_over = AtomicBool::new(false);
    let fixture = &*fixture;
    std::thread::scope(|scope| {
        let (socket, over, doomed_over) = (&socket, &over, &doomed_over);
        let (end, doomed_end) = (SetAtEnd(over), SetAtEnd(doomed_over));
        let survivor = scope.spawn(move || serve(&mut join(fixture, socket, &CpuSet::of(a)), over));
        let doomed = scope.spawn(move || {
            let mut member = join(fixture, socket, &CpuSet::of(b));
            // Dies with its connections and its accept pending.
            serve(&mut member, doomed_over)
        });
        // Both are there once both answer.
        let start = Instant::now();
        let mut of_survivor = loop {
            assert!(start.elapsed() < WATCHDOG, "the members do not come up");
            if let Ok(peer) = TcpStream::connect(address) {
                break peer;
            }
        };
        net::bounded(&of_survivor);
        ask(&mut of_survivor).unwrap();
        let mut peers = connect_from(a, address, 20);
        peers.extend(connect_from(b, address, 20));
        for peer in &mut peers {
            ask(peer).unwrap();
        }
        drop(doomed_end);
        let dead = doomed.join().unwrap();
        // The connections of the others go on; the dead one's have ended.
        let alive = peers.iter_mut().filter_map(|peer| ask(peer).ok()).count();
        assert!(alive + dead >= 40, "{alive} live on, {dead} died: connections are missing");
        let mut new = connect_from(a, address, 20);
        new.extend(connect_from(b, address, 20));
        for peer in &mut new {
            ask(peer).expect("new connections are served");
        }
        drop(end);
        survivor.join().unwrap();
    });
    Ok(())
}

pub fn the_death_of_a_process(fixture: &mut Fixture) -> Verdict {
    let all = CpuSet::from_iter(process::cpus());
    lose_a_process(fixture, &all, &all)
}

/// Each process programs its own members only, so who gets what is undefined; but somebody
/// does.
pub fn the_death_of_a_process_that_steers(fixture: &mut Fixture) -> Verdict {
    let [a, b] = two_cpus()?;
    lose_a_process(fixture, &CpuSet::of(a), &CpuSet::of(b))
}

/// TCP sockets that listen on this port (proc_net(5): state 0A).
fn listening_sockets(address: SocketAddr) -> usize {
    let port = format!(":{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("proc is mounted");
    let listens = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some("0A")
    };
    table.lines().filter(listens).count()
}

fn lose_a_process(fixture: &Fixture, survivors: &CpuSet, childs: &CpuSet) -> Verdict {
    const ADDRESS: &str = "MEGAPIPE_TEST_ADDRESS";
    if process::role().as_deref() == Some("member") {
        let address: SocketAddr = std::env::var(ADDRESS).unwrap().parse().unwrap();
        let (socket, _) = shared_socket(address);
        let mut member = join(fixture, &socket, childs);
        println!("joined");
        // Until it is killed; or its parent is gone, should that die first.
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = std::io::stdin().read(&mut [0]);
                over.store(true, Ordering::Relaxed);
            });
            serve(&mut member, &over);
        });
        return Ok(());
    }
    let (socket, address) = shared_socket(net::v4());
    let mut member = join(fixture, &socket, survivors);
    let mut command = process::this_test_as(fixture.name(), "member");
    command.env(ADDRESS, address.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Fosterling::start(&mut command);
    let mut output = std::io::BufReader::new(child.child().stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("joined") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut output, &mut line).unwrap() > 0, "the child did not join");
    }
    // The child's program steers by the numbers of its own group.
    let over = AtomicBool::new(false);
    let clients = || {
        let mut child = child;
        let mut peers: Vec<TcpStream> = Vec::new();
        let cpus = process::cpus();
        for round in 0..400 {
            assert!(!over.load(Ordering::Relaxed), "the member has failed");
            assert!(process::pin_to(cpus[round % cpus.len()]), "the CPU was there a moment ago");
            if round == 200 {
                child.kill();
                // The kernel takes a dead process's rings, and what they hold, apart later.
                let start = Instant::now();
                while listening_sockets(address) > 1 {
                    assert!(start.elapsed() < WATCHDOG, "the dead one's listener stays");
                    std::thread::yield_now();
                }
            }
            let Ok(mut peer) = TcpStream::connect(address) else { continue };
            net::bounded(&peer);
            match ask(&mut peer) {
                Ok(()) => peers.push(peer),
                // In the dead one's queue when it died.
                Err(_) => assert!(round < 200, "connection {round} was not served after the death"),
            }
        }
        let alive = peers.iter_mut().filter_map(|peer| ask(peer).ok()).count();
        (peers.len(), alive)
    };
    let mut served = 0;
    let (total, alive) = std::thread::scope(|scope| {
        let _end = SetAtEnd(&over);
        let clients = scope.spawn(clients);
        while !clients.is_finished() {
            if let Some(completion) = member.driver.next_within(Duration::from_millis(5)) {
                served += usize::from(echo(&mut member.driver, completion));
            }
        }
        clients.join().unwrap()
    });
    assert_eq!(total, 400, "connections failed while a member died");
    assert_eq!(alive, served, "the survivor's connections go on");
    assert!(served >= 200);
    Ok(())
}

pub fn a_forked_child_leaves_the_steering_alone(fixture: &mut Fixture) -> Verdict {
    let [a, b] = two_cpus()?;
    let fixture = &*fixture;
    process::isolated(fixture.name(), || {
        let (socket, address) = shared_socket(net::v4());
        let mut members =
            vec![join(fixture, &socket, &CpuSet::of(a)), join(fixture, &socket, &CpuSet::of(b))];
        for _ in 0..2 {
            let status = process::in_forked_child(|| {
                let Member { driver, listener } = &mut members[0];
                let refused = driver.set_cpu_mask(*listener, &CpuSet::from_iter([a, b])).is_err()
                    && driver.close(*listener).is_err();
                members.clear();
                i32::from(!refused)
            });
            assert_eq!(status, 0, "a forked child changed its parent's listener");
            let _peers = (connect_from(a, address, FEW), connect_from(b, address, MORE));
            assert_eq!((members[0].count(), members[1].count()), (FEW, MORE));
        }
    });
    Ok(())
}

pub fn without_bpf_the_cpu_alone_decides(fixture: &mut Fixture) -> Verdict {
    two_cpus()?;
    let mut program = process::this_test_as(fixture.name(), "isolated");
    confine::without_bpf(&mut program);
    let mut verdict = Ok(());
    process::isolated_as(program, || {
        for case in [
            masks_steer_by_cpu,
            a_changed_mask_steers_at_once,
            a_shared_cpu_is_shared,
            leavers_and_late_joiners,
        ] {
            verdict = verdict.clone().and_then(|()| case(fixture));
        }
    });
    verdict
}
