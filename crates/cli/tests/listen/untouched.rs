//! Programs that are left as they are: those that wait for their listener in one place, or without epoll, and all
//! programs without the option.

use std::fs;
use std::process::Command;

use testkit::process::until;
use testkit::programs::Program;

use crate::servers::apache;
use crate::support::{Lab, children, clean, find, get, listeners, python, start};
use crate::traces::{calls, difference, traced, traced_apart, traces};

/// Calls of this feature, and no other's.
const OURS: [&str; 4] = ["SO_REUSEPORT", "bpf(", "SO_DOMAIN", "SHUT_RD)"];

/// Lines of the trace after the program's first fork, that are calls of this feature.
fn ours_after_fork(lab: &Lab) -> Vec<String> {
    let trace = fs::read_to_string(lab.path("trace")).unwrap();
    let listened = trace.lines().skip_while(|line| !line.contains("listen("));
    let forked = listened.skip_while(|line| !line.contains("clone(") && !line.contains("fork("));
    let lines: Vec<&str> = forked.collect();
    assert!(!lines.is_empty(), "no fork in the trace");
    lines
        .iter()
        .filter(|line| OURS.iter().any(|call| line.contains(call)))
        .map(|line| line.to_string())
        .collect()
}

#[test]
fn redis_forks_as_without() {
    let Some(lab) = Lab::new("redis_forks_as_without", &["redis-server", "redis-cli", "strace"]) else {
        return;
    };
    let _server = start(&mut traced(&lab, &lab.server("redis", 6379, &[])), 6379);
    let asked = |words: &[&str]| {
        let output = Command::new(find("redis-cli").unwrap()).args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    until("redis answers", || asked(&["ping"]).contains("PONG").then_some(()));
    asked(&["bgsave"]);
    until("it has saved", || {
        asked(&["info", "persistence"]).contains("rdb_bgsave_in_progress:0").then_some(())
    });
    assert_eq!((listeners(6379), lab.queues()), (1, 0));
    assert_eq!(ours_after_fork(&lab), [""; 0]);
}

#[test]
fn memcached_keeps_one_listener() {
    let Some(lab) = Lab::new("memcached_keeps_one_listener", &["memcached"]) else { return };
    let values = [("user", "nobody"), ("threads", "4")];
    let _server = start(&mut lab.server("memcached", 11211, &values), 11211);
    let mut socket = std::net::TcpStream::connect("127.0.0.1:11211").unwrap();
    std::io::Write::write_all(&mut socket, b"version\r\nquit\r\n").unwrap();
    let answer = std::io::read_to_string(socket).unwrap();
    assert!(answer.starts_with("VERSION"), "{answer}");
    assert_eq!((listeners(11211), lab.queues()), (1, 0));
}

#[test]
fn postgresql_forks_as_without() {
    let name = "postgresql_forks_as_without";
    let Some(lab) = Lab::new(name, &["setpriv", "strace", "initdb", "postgres", "psql"]) else { return };
    let as_postgres = |program: &str| {
        let mut command = clean(find("setpriv").unwrap());
        command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]);
        command.arg(find(program).unwrap());
        command.current_dir(lab.path(""));
        command
    };
    let prepare = Program::new("postgres", &lab.path(""), 5432, &[]).unwrap().prepare;
    assert!(as_postgres(&prepare[0]).args(&prepare[1..]).status().unwrap().success());
    // Capabilities stay, so that the steering program could be loaded.
    let postgres = lab.server("postgres", 5432, &[]);
    let mut command = clean(find("setpriv").unwrap());
    command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]);
    command.args(["--inh-caps", "+bpf,+net_admin", "--ambient-caps", "+bpf,+net_admin"]);
    command.arg(postgres.get_program()).args(postgres.get_args());
    let _server = start(&mut traced(&lab, &command), 5432);
    until("it answers", || {
        let query = ["-h", "127.0.0.1", "-U", "postgres", "-c", "select 1"];
        as_postgres("psql").args(query).status().unwrap().success().then_some(())
    });
    assert_eq!((listeners(5432), lab.queues()), (1, 0));
    assert_eq!(ours_after_fork(&lab), [""; 0]);
}

#[test]
fn workers_without_epoll_share_the_queue() {
    let name = "workers_without_epoll_share_the_queue";
    let Some(lab) = Lab::new(name, &["gunicorn", "strace"]) else { return };
    let mut command = lab.server("gunicorn", 8080, &[]);
    let mut server = start(&mut traced(&lab, command.args(["-w", "2", "-k", "sync"])), 8080);
    get((std::net::Ipv4Addr::LOCALHOST, 8080));
    assert!(server.ended().is_none());
    assert_eq!((listeners(8080), lab.queues()), (1, 0));
    assert_eq!(ours_after_fork(&lab), [""; 0]);
}

#[test]
fn prefork_workers_of_apache_share_the_queue() {
    let name = "prefork_workers_of_apache_share_the_queue";
    let Some(lab) = Lab::new(name, &["apache2", "strace"]) else { return };
    let Some(command) = apache(&lab, "prefork") else { return };
    let mut plain = clean(command.get_args().skip_while(|word| *word != "--").nth(1).unwrap());
    plain.args(command.get_args().skip_while(|word| *word != "--").skip(2));
    let workers = |command: &Command| {
        until("none listens yet", || (listeners(8080) == 0).then_some(()));
        // Of a server that was killed, and may not have been waited for.
        let _ = fs::remove_file(lab.path("apache.pid"));
        let mut server = start(&mut traced_apart(&lab, command), 8080);
        let is_wait = |call: &String| call.starts_with("epoll_ctl(");
        let workers = until("both workers wait", || {
            let workers = children(*server.workers().first()?);
            // strace(1) begins its file of a process after the fork.
            let traced = traces(&lab);
            let wait =
                workers.iter().all(|pid| traced.contains(pid) && calls(&lab, *pid).iter().any(is_wait));
            (workers.len() == 2 && wait).then_some(workers)
        });
        get((std::net::Ipv4Addr::LOCALHOST, 8080));
        assert_eq!((listeners(8080), lab.queues()), (1, 0));
        // From the fork until the worker waits, which sets its user.
        let begin = |pid: &u32| calls(&lab, *pid).into_iter().take_while(|call| !is_wait(call)).collect();
        workers.iter().map(begin).collect::<Vec<Vec<_>>>()
    };
    let plain = workers(&plain);
    assert!(plain.iter().all(|calls| calls.iter().any(|call| call.starts_with("setuid("))));
    let mut ours = workers(&command);
    for calls in &mut ours {
        // Whether the listener blocks.
        let changes_user = calls.iter().position(|call| call.starts_with("setuid(")).unwrap();
        let asks = calls.remove(changes_user - 1);
        assert!(asks.starts_with("fcntl(") && asks.contains(", F_GETFL)"), "{asks}");
    }
    assert_eq!(difference(&ours, &plain), None);
}

/// A worker whose listener has a queue of its own, until it is made blocking, or shut down.
const GIVES_UP: &str = "import os, select, signal, socket, sys
address = ('127.0.0.1', 8080)
listener = socket.create_server(address)
listener.setblocking(False)
def rows():
    listening = [row.split()[3] for row in open('/proc/net/tcp') if ':1F90 ' in row]
    return listening.count('0A')
if os.fork() == 0:
    signal.alarm(60)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    assert rows() == 2, 'claimed'
    if sys.argv[1] == 'block':
        listener.setblocking(True)
        for _ in range(50):
            client = socket.create_connection(address)
            listener.accept()
    else:
        listener.shutdown(socket.SHUT_RD)
        assert rows() == 0
        try:
            socket.create_connection(address)
            os._exit(1)
        except ConnectionRefusedError:
            pass
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
";

#[test]
fn a_listener_that_blocks_or_is_shut_down_has_no_queues() {
    let name = "a_listener_that_blocks_or_is_shut_down_has_no_queues";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    let script = lab.write("gives_up.py", GIVES_UP);
    for how in ["block", "shut"] {
        assert!(lab.run(&python()).arg(&script).arg(how).status().unwrap().success(), "{how}");
    }
}

/// A server and its client in one: it listens, forks, waits by epoll, accepts, and changes its user.
const SERVER: &str = "listener = listen()
def worker():
    poll = wait_for(listener)
    client = socket.socket()
    client.connect(ADDRESS)
    poll.poll()
    accepted, _ = listener.accept()
    poll.unregister(listener)
    listener.shutdown(socket.SHUT_RD)
    os.dup2(accepted.fileno(), listener.fileno())
    listener.close()
    os.setuid(65534)
assert in_child(worker) == 0
";

#[test]
fn without_the_option_no_system_call_is_changed() {
    let name = "without_the_option_no_system_call_is_changed";
    let Some(lab) = Lab::new(name, &["python3", "strace"]) else { return };
    let script = lab.script(SERVER);
    // Of the server from its listener on, and of its child.
    let sequences = |environment: &[(&str, &str)]| {
        let mut command = clean("env");
        command.args(environment.iter().map(|(name, value)| format!("{name}={value}")));
        command.arg(python()).arg(&script);
        assert!(traced_apart(&lab, &command).status().unwrap().success());
        let [server, child] = traces(&lab)[..] else { panic!("two processes") };
        let is_before = |call: &String| !call.starts_with("socket(AF_INET");
        [calls(&lab, server).into_iter().skip_while(is_before).collect::<Vec<_>>(), calls(&lab, child)]
    };
    let plain = sequences(&[]);
    assert!(plain[1].iter().any(|call| call.starts_with("accept4(")));
    let library = testkit::process::preload_library().display().to_string();
    let off = [("LD_PRELOAD", library.as_str()), ("MEGAPIPE_PROMOTE", "off")];
    assert_eq!(difference(&sequences(&off), &plain), None);
    let on = [off[0], off[1], ("MEGAPIPE_LOCAL_LISTEN", "1")];
    assert_ne!(difference(&sequences(&on), &plain), None);
}
