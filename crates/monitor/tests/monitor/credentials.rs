//! Each message counts as its sender's: the rights of a client that has changed its user.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use monitor::{Listener, Monitor, OnDemand, Options};
use promote::{Answer, Client, Reason};
use sys::packet;
use testkit::netns;
use testkit::process::{self, Fosterling};

use crate::support::*;

/// Another user.
const NOBODY: u32 = 65_534;
/// A place in a region that the monitor leaves 0.
const PLACE: usize = 4096;

/// What a process does after its first connection was promoted: whether its next message ends
/// its connection to the monitor, and whether the second connection is promoted.
const CHANGES: &[(&str, bool, bool)] = &[
    ("nothing", false, true),
    ("setuid", true, false),
    ("setgid", true, true),
    // It can change back, and is another user all the same.
    ("setresuid", true, false),
    // As a daemon does for the time of one request.
    ("seteuid", false, true),
    ("setegid", false, true),
    // A child on its parent's connection, which stays the same user, or does not.
    ("fork", true, true),
    ("fork setuid", true, false),
];

fn change(how: &str) {
    let keep = u32::MAX;
    // SAFETY: numbers only; the C library changes all threads.
    let status = unsafe {
        match how {
            "setuid" => libc::setuid(NOBODY),
            "setgid" => libc::setgid(NOBODY),
            "setresuid" => libc::setresuid(NOBODY, NOBODY, keep),
            "seteuid" => libc::seteuid(NOBODY),
            "setegid" => libc::setegid(NOBODY),
            _ => 0,
        }
    };
    assert_eq!(status, 0, "{how}: {}", std::io::Error::last_os_error());
}

/// Offers until the answer is a grant or refusal of the connection; also returns whether
/// the connection to the monitor ended meanwhile.
fn offer_again(client: &mut Client, number: u64, socket: &TcpStream) -> (bool, Answer) {
    let (mut lost, start) = (false, Instant::now());
    offer(client, number, socket);
    loop {
        match try_receive(client) {
            Ok(Answer::Welcome { .. }) => offer(client, number, socket),
            Ok(answer) => return (lost, answer),
            Err(_) => {
                lost = true;
                while !client.reconnect_due(Instant::now()).unwrap() {
                    assert!(start.elapsed() < WATCHDOG, "no monitor is found again");
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            }
        }
    }
}

fn play(socket: &str, port: u16, how: &str) {
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut client = Client::connect(&options_at(socket)).unwrap();
    assert!(matches!(receive(&mut client), Answer::Welcome { .. }));
    let near = connect();
    offer(&mut client, 1, &near);
    let first = granted(&mut client);
    let mut later = || {
        let mut steps = how.split(' ').filter(|step| *step != "fork");
        change(steps.next().unwrap_or("nothing"));
        let near = connect();
        let (lost, answer) = offer_again(&mut client, 2, &near);
        let outcome = match answer {
            Answer::Granted { .. } => "granted".to_owned(),
            Answer::Refused { reason, .. } => reason.to_string(),
            answer => panic!("{answer:?}"),
        };
        set_word(&first.own, PLACE, 77);
        println!("\nlost {lost} {outcome}");
        0
    };
    if how.starts_with("fork") {
        assert_eq!(process::in_forked_child(later), 0);
    } else {
        later();
    }
}

#[test]
fn a_message_counts_as_its_senders() {
    const NAME: &str = "credentials::a_message_counts_as_its_senders";
    if let Some(role) = process::role() {
        let mut words = role.splitn(3, ' ');
        let mut word = || words.next().unwrap();
        return play(word(), word().parse().unwrap(), word());
    }
    if lacks_root(NAME) {
        return;
    }
    for (how, lost, shares) in CHANGES {
        let (running, mut a) = Running::start(&format!("{SHARE}[limits]\noffer_expires_ms = 600000\n"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let role = format!("{} {port} {how}", running.place.join("socket").display());
        let mut program = process::this_test_as(NAME, &role);
        let mut child = Fosterling::start(program.stdout(Stdio::piped()));
        let first = listener.accept().unwrap().0;
        offer(&mut a, 1, &first);
        let earlier = granted(&mut a);
        let second = listener.accept().unwrap().0;
        offer(&mut a, 2, &second);
        match receive(&mut a) {
            Answer::Granted { .. } => assert!(shares, "{how} still shares"),
            Answer::Refused { reason, .. } => {
                assert!(!shares && reason == Reason::OtherUser, "{how}: {reason}")
            }
            answer => panic!("{answer:?}"),
        }
        let mut said = BufReader::new(child.child().stdout.take().unwrap()).lines();
        let said = said.find_map(|line| line.ok().filter(|line| line.starts_with("lost "))).expect(how);
        let outcome = if *shares { "granted".to_owned() } else { Reason::OtherUser.to_string() };
        assert_eq!(said, format!("lost {lost} {outcome}"), "{how}");
        // What was promoted before goes on.
        assert_eq!(word(&earlier.peer, PLACE), 77, "{how}");
        assert!(child.child().wait().unwrap().success(), "{how}");
        drop(a);
        running.end();
    }
}

/// A server that is another user for a while does not offer its connections to this
/// user's monitor, which would keep them.
#[test]
fn a_process_that_may_become_root_again_trusts_no_user() {
    const NAME: &str = "credentials::a_process_that_may_become_root_again_trusts_no_user";
    if let Some(role) = process::role() {
        let (how, runtime) = role.split_once(' ').unwrap();
        let runtime = PathBuf::from(runtime);
        if how == "monitor" {
            let _listener = packet::listen(&runtime.join("megapipe/monitor.sock"), 16).unwrap();
            println!("\nlistens");
            std::thread::sleep(WATCHDOG);
            return;
        }
        change(how);
        let options = promote::client::Options {
            socket: None,
            runtime_directory: Some(runtime),
            ..promote::client::Options::from_environment("server")
        };
        // The reason why it does not connect does not matter.
        let found = Client::connect(&options).is_ok_and(|client| client.fd().is_some());
        return println!("\nfound {found}");
    }
    if !netns::enter_own_run(NAME, 5 * WATCHDOG) {
        return;
    }
    let place = Scratch::new();
    let runtime = place.join("runtime");
    std::fs::create_dir_all(runtime.join("megapipe")).unwrap();
    for directory in [&runtime, &runtime.join("megapipe")] {
        std::os::unix::fs::chown(directory, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let start = |how: &str, user: u32| {
        let role = format!("{how} {}", runtime.display());
        let mut command = process::this_test_as(NAME, &role);
        let mut child = Fosterling::start(command.uid(user).gid(user).stdout(Stdio::piped()));
        let lines = BufReader::new(child.child().stdout.take().unwrap()).lines().map(Result::unwrap);
        (child, lines)
    };
    let (_monitor, mut says) = start("monitor", NOBODY);
    assert!(says.any(|line| line == "listens"));
    for (how, trusts) in [("nothing", false), ("seteuid", false), ("setresuid", false), ("setuid", true)] {
        let (_server, mut says) = start(how, 0);
        let said = says.find(|line| line.starts_with("found ")).expect(how);
        assert_eq!(said, format!("found {trusts}"), "{how}");
    }
}

/// A process whose real and effective user differ is neither of them, and is admitted
/// once they are equal again.
#[test]
fn a_process_that_is_two_users_is_none() {
    const NAME: &str = "credentials::a_process_that_is_two_users_is_none";
    if let Some(role) = process::role() {
        change("seteuid");
        let mut client = Client::connect(&options_at(&role)).unwrap();
        assert!(try_receive(&mut client).is_err(), "welcome with two users");
        // SAFETY: a number.
        assert_eq!(unsafe { libc::seteuid(0) }, 0);
        let start = Instant::now();
        while !client.reconnect_due(Instant::now()).unwrap() {
            assert!(start.elapsed() < WATCHDOG, "no monitor is found again");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(matches!(receive(&mut client), Answer::Welcome { .. }));
        return;
    }
    if lacks_root(NAME) {
        return;
    }
    let (running, a) = Running::start(SHARE);
    let role = running.place.join("socket").display().to_string();
    let status = process::this_test_as(NAME, &role).stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{status}");
    drop(a);
    running.end();
}

/// The socket of a service manager that passes no credentials: Linux 6.16 and later keep
/// no sender of messages from before the monitor, which such clients send again.
#[test]
fn a_client_that_was_there_before_its_monitor_is_served() {
    let place = Scratch::new();
    for passes in [true, false] {
        let path = place.join(if passes { "passes" } else { "plain" });
        let socket = packet::listen(&path, 16).unwrap();
        rustix::net::sockopt::set_socket_passcred(&socket, passes).unwrap();
        let mut client = Client::connect(&options_at(path.to_str().unwrap())).unwrap();
        let listener = Listener::inherited(socket).unwrap();
        let linger = Duration::from_millis(200);
        let options =
            Options { on_demand: Some(OnDemand { linger, gives_way_to: None }), ..Options::default() };
        let thread = std::thread::spawn(move || Monitor::new(listener, options)?.run());
        let mut answer = try_receive(&mut client);
        assert!(answer.is_ok() || !passes, "{answer:?}");
        if answer.is_err() {
            process::until("the monitor", || client.reconnect_due(Instant::now()).unwrap().then_some(()));
            answer = try_receive(&mut client);
        }
        assert!(matches!(answer, Ok(Answer::Welcome { .. })), "{answer:?}");
        drop(client);
        thread.join().unwrap().unwrap();
    }
}
