//! Root's monitor without a policy, and those who are root elsewhere.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use monitor::{Access, Listener, Monitor, Options};
use promote::{Answer, Client, Reason};
use testkit::process::{self, Fosterling};

use crate::support::*;

/// A process of this test's that is root of a user namespace of its own, which has root of this
/// one as its root: the kernel's number of it is 0 here, too. `None` where none can be made.
fn contained(command: &Command) -> Option<Command> {
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user"]);
    let works = unshare.arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user"]).arg(command.get_program()).args(command.get_args());
    let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    works.then(|| {
        unshare.envs(variables);
        unshare
    })
}

/// Whether a process of root, here or contained, and this one share a connection.
fn are_matched(policy: &str, command: impl FnOnce(&str) -> Command) -> bool {
    let (running, mut a) = Running::start(policy);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let role = format!("{} {port}", running.place.join("socket").display());
    let mut child = Fosterling::start(command(&role).stdout(Stdio::null()));
    let far = listener.accept().unwrap().0;
    offer(&mut a, 1, &far);
    let met = match receive(&mut a) {
        Answer::Granted { .. } => true,
        Answer::Refused { reason: Reason::Policy | Reason::Namespace, .. } => false,
        answer => panic!("{answer:?}"),
    };
    assert!(child.child().wait().unwrap().success());
    drop(a);
    running.end();
    met
}

#[test]
fn root_of_a_container_is_not_root_of_the_host() {
    const NAME: &str = "root::root_of_a_container_is_not_root_of_the_host";
    if let Some(role) = process::role() {
        let (socket, port) = role.split_once(' ').unwrap();
        assert!(rustix::process::geteuid().is_root());
        let mut client = Client::connect(&options_at(socket)).unwrap();
        assert!(matches!(receive(&mut client), Answer::Welcome { .. }));
        let near = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().unwrap())).unwrap();
        offer(&mut client, 1, &near);
        receive(&mut client);
        return;
    }
    if lacks_root(NAME) {
        return;
    }
    const PATIENT: &str = "[limits]\noffer_expires_ms = 600000\n";
    let shares = format!("{SHARE}{PATIENT}");
    let plain = |role: &str| process::this_test_as(NAME, role);
    assert!(are_matched(PATIENT, plain), "root shares with root");
    assert!(!are_matched(&format!("same_user = false\n{PATIENT}"), plain), "unless the policy forbids it");

    // The same addresses in a network namespace that is not the monitor's.
    for (policy, met) in [(PATIENT, false), (&shares, true)] {
        let elsewhere = std::thread::spawn(|| {
            process::enter_own_network().unwrap();
            connection("127.0.0.1", "127.0.0.1")
        });
        let (near, far) = elsewhere.join().unwrap();
        let (running, mut a) = Running::start(&format!("{policy}foreign_offer_expires_ms = 600000\n"));
        let mut b = running.client("b");
        offer(&mut a, 1, &near);
        offer(&mut b, 1, &far);
        for client in [&mut a, &mut b] {
            match receive(client) {
                Answer::Granted { .. } => assert!(met),
                Answer::Refused { reason, .. } => assert!(!met && reason == Reason::Namespace, "{reason}"),
                answer => panic!("{answer:?}"),
            }
        }
        drop((a, b));
        running.end();
    }

    if contained(&Command::new("true")).is_none() {
        println!("SKIPPED {NAME}: no user namespace can be made");
        return;
    }
    let contained = |role: &str| contained(&process::this_test_as(NAME, role)).unwrap();
    assert!(!are_matched(PATIENT, contained), "root of another user namespace is somebody else");
    assert!(are_matched(&shares, contained), "unless the policy says that all of one user share");
}

/// A monitor in a user namespace sees all users that this lacks as one, which owns
/// nothing.
#[test]
fn users_that_the_namespace_lacks_do_not_share() {
    const NAME: &str = "root::users_that_the_namespace_lacks_do_not_share";
    const STRANGERS: [u32; 2] = [64_001, 64_002];
    if let Some(role) = process::role() {
        let (part, role) = role.split_once(' ').unwrap();
        let (socket, rest) = role.split_once(' ').unwrap();
        let end = match part {
            "monitor" => {
                let listener = Listener::bind(socket.as_ref(), Access::Everybody).unwrap();
                let options = Options { policy: Some(rest.into()), ..Options::default() };
                return Monitor::new(listener, options).unwrap().run().unwrap();
            }
            "server" => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                println!("\nport {}", listener.local_addr().unwrap().port());
                listener.accept().unwrap().0
            }
            _ => TcpStream::connect((Ipv4Addr::LOCALHOST, rest.parse().unwrap())).unwrap(),
        };
        let mut client = Client::connect(&options_at(socket)).unwrap();
        let mut shares = matches!(try_receive(&mut client), Ok(Answer::Welcome { .. }));
        if shares {
            offer(&mut client, 1, &end);
            shares = matches!(receive(&mut client), Answer::Granted { .. });
        }
        return println!("\nshares {shares}");
    }
    if lacks_root(NAME) {
        return;
    }
    let place = Scratch::new();
    let (socket, policy) = (place.join("socket"), place.join("policy.toml"));
    std::fs::write(&policy, SHARE).unwrap();
    let role = format!("monitor {} {}", socket.display(), policy.display());
    let Some(mut monitor) = contained(&process::this_test_as(NAME, &role)) else {
        return println!("SKIPPED {NAME}: no user namespace can be made");
    };
    let _monitor = Fosterling::start(monitor.stdout(Stdio::null()));
    let mode = || Some(std::fs::metadata(&socket).ok()?.permissions().mode() & 0o777);
    process::until("everybody may connect", || (mode() == Some(0o666)).then_some(()));

    let start = |user: u32, part: &str, rest: &str| {
        let role = format!("{part} {} {rest}", socket.display());
        let mut command = process::this_test_as(NAME, &role);
        let mut child = Fosterling::start(command.uid(user).gid(user).stdout(Stdio::piped()));
        let lines = BufReader::new(child.child().stdout.take().unwrap()).lines().map(Result::unwrap);
        (child, lines)
    };
    // Root is in both; the others are not the same for being unknown.
    for (users, expected) in [([0, 0], "true"), (STRANGERS, "false")] {
        let (_server, mut server_says) = start(users[0], "server", "");
        let said = |mut lines: &mut dyn Iterator<Item = String>, word: &str| {
            (&mut lines).find_map(|line| Some(line.strip_prefix(word)?.to_owned())).unwrap()
        };
        let port = said(&mut server_says, "port ");
        let (_client, mut client_says) = start(users[1], "client", &port);
        assert_eq!(said(&mut client_says, "shares "), expected, "{users:?}");
        assert_eq!(said(&mut server_says, "shares "), expected, "{users:?}");
    }
}
