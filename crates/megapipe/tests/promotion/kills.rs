//! Peers and monitors that are killed at any step of a promotion, under load: what
//! arrived is the beginning of the stream, and the remaining processes go on.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use megapipe::EngineKind;
use testkit::process::{self, Fosterling};

use crate::support::{
    Folder, MonitorProcess, Patience, Random, Side, Two, config, engines, own_monitor, pair, pattern,
    play_monitor,
};

fn engine_of(number: usize) -> EngineKind {
    if number.is_multiple_of(2) { EngineKind::Uring } else { EngineKind::Epoll }
}

/// Sends the next piece of the pattern, if there is room.
fn send(side: &mut Side, handle: megapipe::Handle, sent: &mut usize) {
    let count = 1 + *sent % 4093;
    if side.channel.write_quiet(handle, pattern(*sent, count)).is_ok() {
        *sent += count;
    }
}

/// The role of a process that sends a pattern, and reads one, until it is killed.
fn play_victim() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let address: SocketAddr = variable("VICTIM_ADDRESS").parse().unwrap();
    let monitor = PathBuf::from(variable("VICTIM_MONITOR"));
    let mut side = Side::new(config(engine_of(variable("VICTIM_ENGINE").parse().unwrap()), &monitor));
    let handle = side.channel.register(TcpStream::connect(address).unwrap(), 0).unwrap();
    side.channel.read_stream(handle).unwrap();
    let mut sent = 0;
    loop {
        send(&mut side, handle, &mut sent);
        side.step(Duration::from_micros(50));
        side.seen(0).got.clear();
    }
}

#[test]
fn a_peer_may_be_killed_at_any_step_of_its_promotion() {
    if process::role().as_deref() == Some("victim") {
        play_victim();
    }
    let folder = own_monitor("victims");
    let mut random = Random(815);
    let (mut promoted, mut plain) = (0, 0);
    for round in 0..96 {
        // How many of the first are promoted depends on what else the machine does.
        if round >= 48 && promoted > 5 && plain > 5 {
            break;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut command =
            process::this_test_as("kills::a_peer_may_be_killed_at_any_step_of_its_promotion", "victim");
        command
            .env("VICTIM_ADDRESS", listener.local_addr().unwrap().to_string())
            .env("VICTIM_ENGINE", round.to_string())
            .env("VICTIM_MONITOR", folder.socket())
            .stdout(Stdio::null());
        let mut victim = Fosterling::start(&mut command);
        let mut side = Side::new(config(engine_of(round / 2), &folder.socket()));
        let handle = side.channel.register(listener.accept().unwrap().0, 0).unwrap();
        side.channel.read_stream(handle).unwrap();
        let mut sent = 0;
        // This many dispatches from the offer on. Most promotions take a few.
        for _ in 0..random.below(if round % 3 == 0 { 4 } else { 60 }) {
            send(&mut side, handle, &mut sent);
            side.step(Duration::from_micros(50));
        }
        let was_promoted = side.channel.stats().promoted;
        promoted += was_promoted;
        plain += 1 - was_promoted;
        victim.kill();
        let mut patience = Patience::new();
        while !side.seen(0).ended && side.seen(0).errors[0].is_empty() {
            assert!(!patience.is_over(), "no end of stream in round {round}: {:?}", side.channel.stats());
            side.step(Duration::from_millis(10));
        }
        let seen = side.seen(0);
        assert!(seen.got == pattern(0, seen.got.len()), "other bytes in round {round}");
        assert!(seen.errors[0].iter().all(|error| *error == libc::ECONNRESET), "{:?}", seen.errors);
        // Writes without a peer fail at some time, as on TCP.
        let mut patience = Patience::new();
        while side.seen(0).errors[1].is_empty() {
            assert!(!patience.is_over(), "writes without a peer go on in round {round}");
            send(&mut side, handle, &mut sent);
            side.step(Duration::from_millis(1));
        }
    }
    assert!(promoted > 5 && plain > 5, "{promoted} were promoted, {plain} were not");
}

#[test]
fn a_monitor_may_be_killed_at_any_step_of_a_promotion() {
    const NAME: &str = "kills::a_monitor_may_be_killed_at_any_step_of_a_promotion";
    play_monitor();
    let folder = Folder::new("regicide");
    let mut random = Random(1066);
    let (mut promoted, mut ends) = (0, 0);
    for round in 0..24 {
        let mut monitor = MonitorProcess::start(NAME, &folder);
        let mut two = Two::new(engines()[round % 3], &folder);
        let mut connections = Vec::new();
        for _ in 0..20 {
            two.add(pair());
            two.read_streams();
            connections.push((two.handles, [0; 2]));
        }
        // Some of them are promoted by then, some at one endpoint only, and some not.
        let kill = random.below(80);
        for step in 0..160 {
            if step == kill {
                monitor.kill();
            }
            let at = random.below(connections.len());
            let (handles, sent) = &mut connections[at];
            for side in [0, 1] {
                let count = 1 + random.below(2000);
                let bytes = pattern(sent[side] + side, count);
                if two.sides[side].channel.write_quiet(handles[side], bytes).is_ok() {
                    sent[side] += count;
                }
                two.sides[side].step(Duration::from_micros(20));
            }
        }
        two.until("all bytes", |two| {
            (0..).zip(&connections).all(|(cookie, (_, sent))| {
                [0, 1].iter().all(|&side| two.sides[1 - side].seen(cookie).got.len() == sent[side])
            })
        });
        for (cookie, (_, sent)) in (0..).zip(&connections) {
            for side in [0, 1] {
                let seen = two.sides[1 - side].seen(cookie);
                assert!(seen.got == pattern(side, sent[side]), "connection {cookie} in round {round}");
                assert!(seen.errors == [vec![], vec![]] && !seen.ended);
            }
        }
        promoted += two.sides.iter().map(|side| side.channel.stats().promoted).sum::<u64>();
        ends += 2 * connections.len() as u64;
    }
    assert!((1..ends).contains(&promoted), "{promoted} of {ends} were promoted");
}
