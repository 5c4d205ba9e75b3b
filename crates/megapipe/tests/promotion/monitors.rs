//! Channels with monitors that are busy, or are replaced.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use megapipe::EngineKind;
use promote::Place;
use promote::viewer::Viewer;
use promote::wire::ClientMessage;
use sys::packet;
use testkit::process::{self, Fosterling};

use crate::support::{
    self, Folder, MonitorProcess, PATIENCE, Side, Two, config, engines, pair, pattern, start_monitor,
};

/// The role of a process that is a monitor until it is killed.
fn play_monitor(path: &str) -> ! {
    let folder = Folder::at(path.into());
    start_monitor(&folder, "same_user = true\n");
    println!("\nlistening");
    loop {
        std::thread::park();
    }
}

/// Endpoints of promoted connections that the monitor counts.
fn counted(folder: &Folder) -> u64 {
    Viewer::connect(&Place::chosen(folder.socket()), "test").unwrap().query().unwrap().totals.promoted
}

#[test]
fn a_new_monitor_counts_live_connections() {
    if process::role().as_deref() == Some("monitor") {
        play_monitor(&std::env::var("MONITOR_FOLDER").unwrap());
    }
    let folder = Folder::new("registers");
    let start = || {
        let mut command = process::this_test_as("monitors::a_new_monitor_counts_live_connections", "monitor");
        command.env("MONITOR_FOLDER", folder.path()).stdout(Stdio::piped());
        let mut monitor = Fosterling::start(&mut command);
        let output = BufReader::new(monitor.child().stdout.take().unwrap());
        assert!(output.lines().any(|line| line.unwrap() == "listening"));
        monitor
    };
    const MANY: u64 = 5;
    for engines in engines() {
        let mut monitor = start();
        let mut two = Two::new(engines, &folder);
        let mut handles = Vec::new();
        let mut sent = 0;
        let exchange = |two: &mut Two, sent: &mut usize| {
            two.send(0, &pattern(*sent, 700));
            *sent += 700;
            let last = two.connections - 1;
            let want = *sent;
            two.until("bytes", |two| two.sides[1].seen(last).got.len() == want);
        };
        for _ in 0..MANY {
            two.add(pair());
            two.read_streams();
            two.promoted();
            handles.push(two.handles);
        }
        for _ in 0..2 {
            monitor.kill();
            for _ in 0..50 {
                exchange(&mut two, &mut sent);
            }
            monitor = start();
            // Nothing is offered: the channels try to connect by themselves, in the midst
            // of their work.
            let begin = Instant::now();
            while counted(&folder) < 2 * MANY {
                assert!(begin.elapsed() < PATIENCE, "{} of {}", counted(&folder), 2 * MANY);
                exchange(&mut two, &mut sent);
            }
        }
        assert_eq!(counted(&folder), 2 * MANY);
        let last = two.connections - 1;
        assert!(two.sides[1].seen(last).got == pattern(0, sent));
        // The new monitor is sent the end of what it did not promote, and promotes more.
        for (side, handle) in handles[0].into_iter().enumerate() {
            two.sides[side].channel.close(handle).unwrap();
        }
        two.until("the end", |_| counted(&folder) == 2 * MANY - 2);
        two.add(pair());
        two.read_streams();
        two.promoted();
        two.until("one more", |_| counted(&folder) == 2 * MANY);
        monitor.kill();
    }
}

#[test]
fn offers_that_find_no_room_are_repeated() {
    // More than a socket accepts before it is read.
    const MANY: usize = 1000;
    for engine in [EngineKind::Uring, EngineKind::Epoll] {
        let folder = Folder::new("full");
        let listener = packet::listen(&folder.socket(), 16).unwrap();
        let mut side = Side::new(config(engine, &folder.socket()));
        let connection = packet::accept(listener.as_fd()).unwrap();
        let mut peers = Vec::new();
        let mut offered = HashSet::new();
        for cookie in 0..MANY as u64 {
            let (a, b) = pair();
            peers.push(b);
            let handle = side.channel.register(a, cookie).unwrap();
            side.channel.read_stream(handle).unwrap();
            side.step(Duration::ZERO);
        }
        let calls = side.channel.stats().system_calls;
        for _ in 0..100 {
            side.step(Duration::ZERO);
        }
        assert!(side.channel.stats().system_calls - calls <= 200, "it tries again all the time");
        assert_eq!(side.channel.stats().promotions_refused, 0);
        let begin = Instant::now();
        let mut bytes = [0; 256];
        let mut most = 0;
        while offered.len() < MANY {
            assert!(begin.elapsed() < PATIENCE, "{} of {MANY} offers came", offered.len());
            let mut heard = 0;
            while let Ok(received) = packet::receive(connection.as_fd(), &mut bytes) {
                heard += 1;
                if let ClientMessage::Offer { token } = ClientMessage::decode(&bytes[..received.len]).unwrap()
                {
                    assert!(offered.insert(token.get()), "offered twice");
                }
            }
            most = most.max(heard);
            // Nothing wakes it but its own clock.
            side.step(Duration::from_millis(300));
        }
        assert!(most < MANY, "the socket took everything at once");
        assert_eq!(side.channel.stats().promotions_refused, 0);
        std::fs::remove_file(folder.socket()).unwrap();
    }
}

/// The monitor accepts no message of a channel whose process became another user: the
/// channel connects anew, registers its live connections, and goes on.
#[test]
fn channels_go_on_as_another_user() {
    const NAME: &str = "monitors::channels_go_on_as_another_user";
    const OTHER: u32 = 64_001;
    support::play_monitor();
    if sys::process::sole_user() != Some(0) {
        return println!("SKIPPED {NAME}: only root can become another user");
    }
    let become_user = |user: u32| {
        // SAFETY: numbers only; the C library changes all threads.
        assert_eq!(unsafe { libc::setresuid(user, user, 0) }, 0);
    };
    // The monitor is the test's, which stays root: another user could not end it.
    let folder = match process::role() {
        Some(_) => {
            let parent = std::os::unix::process::parent_id();
            Folder::at(std::env::temp_dir().join(format!("megapipe-users-{parent}")))
        }
        None => Folder::new("users"),
    };
    let _monitor = process::role().is_none().then(|| MonitorProcess::start(NAME, &folder));
    process::isolated(NAME, || {
        for engines in engines() {
            let mut two = Two::connected(engines, &folder);
            let first = two.handles;
            for (round, user) in [OTHER, 0].into_iter().enumerate() {
                become_user(user);
                two.add(pair());
                two.read_streams();
                two.promoted();
                // What was promoted before goes on.
                two.handles = first;
                two.send(0, &pattern(round * 1000, 1000));
                two.until("bytes", |two| two.sides[1].seen(0).got.len() == (round + 1) * 1000);
            }
            assert!(two.sides[1].seen(0).got == pattern(0, 2000));
            two.until("what lives", |_| counted(&folder) == 6);
            drop(two);
            process::until("what has ended", || (counted(&folder) == 0).then_some(()));
        }
    });
}
