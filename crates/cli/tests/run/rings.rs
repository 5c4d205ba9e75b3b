//! Programs with an io_uring that is not followed, MariaDB among them: the summary says what is in the way, and what it advises helps.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use promote::summary::RingObstacle;
use testkit::process::{Fosterling, until};
use testkit::programs::{Program, find};

use crate::promotion::until_promoted;
use crate::support::{Place, clean, output, text};

const SOURCE: &str = include_str!("rings.c");
/// The kernel has no such ring.
const MISSING: i32 = 77;
/// Both ends of the connection.
const ENDS: u32 = 2;

/// What the summary says with a ring of this form; `None`: there is none.
fn said(place: &Place, program: &Path, form: &str, options: &[&str]) -> Option<String> {
    let mut command = place.run();
    command.args(["--promote", "eager", "--stats"]).args(options).arg(program).arg(form);
    let ended = output(&mut command);
    let said = text(&ended.stderr);
    assert!([Some(0), Some(MISSING)].contains(&ended.status.code()), "{form}: {said}");
    ended.status.success().then_some(said)
}

/// `library`: where rings of another library are made. `files_help`: what is advised is `--io-uring files`, too.
fn keeps_on_tcp(name: &str, form: &str, obstacle: RingObstacle, library: bool, files_help: bool) {
    let place = Place::new();
    let _monitor = place.monitor();
    let mut flags = Vec::new();
    if library {
        place.compile("liburing.so.2", SOURCE, &["-shared", "-fPIC", "-DLIBRARY"]).expect("a C compiler");
        let folder = place.path().display();
        flags = vec!["-DWITH_LIBRARY".into(), format!("{folder}/liburing.so.2")];
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let program = place.compile("rings", SOURCE, &flags).expect("a C compiler");
    let Some(first) = said(&place, &program, form, &[]) else {
        println!("SKIPPED {name}: this kernel has no such io_uring, or permits none");
        return;
    };
    assert!(first.contains("2 connections, 0 promoted, 2 io_uring\n"), "{first}");
    assert!(first.contains(obstacle.advice()), "{first}");
    assert_eq!(obstacle.advice().contains("--io-uring files"), files_help);
    let with_option = || said(&place, &program, form, &["--io-uring", "files"]).expect("it was there");
    if files_help {
        let said = until_promoted(ENDS, with_option);
        assert!(!said.contains("io_uring"), "{said}");
    } else {
        // The library has seen what the ring does.
        let said = with_option();
        assert!(said.contains("0 promoted, 2 io_uring\n"), "{said}");
    }
    // Without it, as each of them advises; one that is followed is no matter either.
    for other in ["none", "plain"] {
        until_promoted(ENDS, || said(&place, &program, other, &[]).expect("a ring"));
    }
}

#[test]
fn a_ring_of_liburings_is_named_with_what_helps() {
    keeps_on_tcp("liburing", "library", RingObstacle::Liburing, true, true);
}

#[test]
fn a_ring_of_the_programs_own_system_calls_is_named_with_what_helps() {
    keeps_on_tcp("unseen", "unseen", RingObstacle::Unseen, false, true);
}

#[test]
fn a_ring_that_a_thread_of_the_kernel_polls_is_named_with_what_helps() {
    keeps_on_tcp("polled", "polled", RingObstacle::Polled, false, true);
}

#[test]
fn a_ring_of_another_form_is_named_with_what_helps() {
    keeps_on_tcp("form", "form", RingObstacle::Form, false, true);
}

#[test]
fn too_many_rings_are_named_with_what_helps() {
    keeps_on_tcp("many", "many", RingObstacle::Many, false, true);
}

#[test]
fn a_ring_whose_use_is_not_followed_is_named_with_what_helps() {
    keeps_on_tcp("use", "use", RingObstacle::Use, false, false);
}

/// The client's word is `no-peer`, and its summary says that the server keeps a ring.
#[test]
fn the_summary_of_the_peer_names_the_ring() {
    let place = Place::new();
    let _monitor = place.monitor();
    let program = place.compile("rings", SOURCE, &[]).expect("a C compiler");
    let mut command = place.run();
    let command = command.args(["--promote", "eager", "--stats"]).arg(program).args(["unseen", "apart"]);
    let ended = output(command);
    let said = text(&ended.stderr);
    if ended.status.code() == Some(MISSING) {
        println!(
            "SKIPPED the_summary_of_the_peer_names_the_ring: this kernel has no io_uring, or permits none"
        );
        return;
    }
    assert!(ended.status.success(), "{said}");
    assert!(said.contains("1 connections, 0 promoted, 1 io_uring\n"), "{said}");
    assert!(said.contains("1 connections, 0 promoted, 1 no-peer\n"), "{said}");
    assert!(said.contains("): no-peer: the program at the other end keeps an io_uring;"), "{said}");
}

/// MariaDB under `megapipe run`, and a client that asks many times. Returns what both summaries say.
fn ask_mariadb(place: &Place, folder: &Path, options: &[&str]) -> [String; 2] {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let program = Program::new("mariadb", folder, port, &[]).unwrap();
    let log = place.file("log");
    let mut command = place.run();
    command.args(["--promote", "eager", "--stats", "--log"]).arg(&log).args(options);
    command.arg("--").arg(find("mariadbd").unwrap()).args(&program.command[1..]).args(&program.tcp);
    command.args(own_user()).stderr(Stdio::null());
    let mut server = Fosterling::start(&mut command);
    until("MariaDB serves", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    let ask = "select 1;".repeat(200) + "select repeat('x', 300000);";
    let client = || {
        let mut command = place.run();
        command.args(["--promote", "eager", "--stats", "--"]).arg(find("mariadb").unwrap());
        command.args(["--no-defaults", "-h127.0.0.1", "-uroot", "-N"]);
        let ended = output(command.arg(format!("-P{port}")).args(["-e", &ask]));
        let said = text(&ended.stderr);
        assert!(ended.status.success(), "{said}");
        assert_eq!(text(&ended.stdout), "1\n".repeat(200) + &"x".repeat(300_000) + "\n");
        said
    };
    let said = if options.is_empty() { client() } else { until_promoted(1, client) };
    let pid = rustix::process::Pid::from_child(server.child());
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.child().wait().unwrap().success());
    let server = fs::read_to_string(&log).unwrap();
    fs::remove_file(log).unwrap();
    [server, said]
}

/// It does not run as root.
fn own_user() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() { &["--user=mysql"] } else { &[] }
}

#[test]
fn mariadb_is_promoted_if_its_rings_are_said_to_be_for_files() {
    let missing = ["mariadb-install-db", "mariadbd", "mariadb"].into_iter().find(|name| find(name).is_none());
    if let Some(name) = missing {
        println!("SKIPPED mariadb_is_promoted_if_its_rings_are_said_to_be_for_files: no {name}");
        return;
    }
    let place = Place::new();
    // The server may be another user's than the client.
    let _monitor = place.monitor_with("socket", "allow = [{ one = {}, other = {} }]\n");
    let folder = place.file("mariadb");
    fs::create_dir(&folder).unwrap();
    if !own_user().is_empty() {
        let user = sys::user::number("mysql").unwrap().expect("the package makes this user");
        std::os::unix::fs::chown(&folder, Some(user), None).unwrap();
    }
    let prepare = Program::new("mariadb", &folder, 0, &[]).unwrap().prepare;
    let mut made = clean(find(&prepare[0]).unwrap());
    let made = output(made.args(&prepare[1..]).args(own_user()));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let [server, client] = ask_mariadb(&place, &folder, &[]);
    if !server.contains("io_uring") {
        println!(
            "SKIPPED mariadb_is_promoted_if_its_rings_are_said_to_be_for_files: this MariaDB has no io_uring"
        );
        return;
    }
    assert!(server.contains(RingObstacle::Liburing.advice()) && server.contains(", 0 promoted"), "{server}");
    assert!(client.contains("1 connections, 0 promoted"), "{client}");
    let [server, _] = ask_mariadb(&place, &folder, &["--io-uring", "files"]);
    assert!(!server.contains(", 0 promoted") && !server.contains("io_uring"), "{server}");
}
