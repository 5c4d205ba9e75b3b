//! nginx: reloads, upgrades, and workers that stop or die.

use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Stdio;

use testkit::process::{Fosterling, cpus, pin_to, until};

use crate::support::{
    Lab, Load, Server, answer, ask, asleep, children, clean, find, get, listeners, listening, nginx, signal,
    start,
};

const PORT: u16 = 8080;
/// Connections that may wait for a worker that is stopped in its wait.
const BEHIND: usize = 8;

fn address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, PORT).into()
}

/// nginx with two workers, each with a queue of its own.
fn with_two_workers(lab: &Lab) -> (Server, Vec<u32>) {
    let mut server = start(lab.local("nginx").args(nginx(&lab.path(""), &[])), PORT);
    until("both workers have a queue", || (lab.queues() == 2).then_some(()));
    let workers = server.workers();
    (server, workers)
}

/// The worker that answered.
fn worker(answer: &str) -> u32 {
    let line = answer.lines().find_map(|line| line.strip_prefix("X-Worker: ")).expect("the worker's number");
    line.parse().expect("a number")
}

#[test]
fn a_connection_is_accepted_on_the_cpu_of_its_syn() {
    let Some(lab) = Lab::new("a_connection_is_accepted_on_the_cpu_of_its_syn", &["nginx"]) else { return };
    let (_server, workers) = with_two_workers(&lab);
    if cpus().len() < 2 {
        println!("SKIPPED a_connection_is_accepted_on_the_cpu_of_its_syn: one CPU");
    }
    accept_locally(&workers);
}

/// The workers, two in all, each have a queue, and accept connections on the CPU of their
/// SYN, where there are two.
fn accept_locally(workers: &[u32]) {
    assert_eq!(listeners(PORT), 3);
    let cpus = cpus();
    let turns = if cpus.len() < 2 { 0 } else { 100 };
    for turn in 0..turns {
        let cpu = cpus[turn % 2];
        pin_to(cpu);
        workers.iter().for_each(|worker| asleep(*worker));
        let local = workers.iter().find(|pid| allowed(**pid) == cpu.to_string());
        assert_eq!(Some(&worker(&get(address()))), local, "connection {turn}");
    }
}

/// The CPUs that a process may run on.
fn allowed(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    line.trim().to_owned()
}

#[test]
fn connections_pass_a_stopped_worker_by() {
    let Some(lab) = Lab::new("connections_pass_a_stopped_worker_by", &["nginx"]) else { return };
    let (_server, workers) = with_two_workers(&lab);
    stop(workers[0]);
    let waiting = beside_stopped();
    signal(workers[0], libc::SIGCONT);
    waiting.into_iter().for_each(|socket| drop(answer(socket).expect("an answer")));
}

#[test]
fn nothing_is_reset_when_a_stopped_worker_is_killed() {
    let Some(lab) = Lab::new("nothing_is_reset_when_a_stopped_worker_is_killed", &["nginx"]) else { return };
    let (_server, workers) = with_two_workers(&lab);
    stop(workers[0]);
    let waiting = beside_stopped();
    signal(workers[0], libc::SIGKILL);
    waiting.into_iter().for_each(|socket| drop(answer(socket).expect("an answer")));
}

fn stop(worker: u32) {
    asleep(worker);
    signal(worker, libc::SIGSTOP);
}

/// A hundred connections from each CPU. Returns those that are not answered: few.
fn beside_stopped() -> Vec<std::net::TcpStream> {
    let mut sockets = Vec::new();
    for cpu in cpus() {
        pin_to(cpu);
        sockets.extend((0..100).map(|_| ask(address()).expect("a connection")));
    }
    let many = sockets.len();
    until("all but a few are answered", || {
        sockets.retain(|socket| {
            let mut byte = [0];
            socket.set_nonblocking(true).unwrap();
            let waits =
                socket.peek(&mut byte).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
            socket.set_nonblocking(false).unwrap();
            waits
        });
        (sockets.len() <= BEHIND).then_some(())
    });
    assert!(sockets.len() < many);
    sockets
}

#[test]
fn no_connection_is_lost_over_reloads() {
    let Some(lab) = Lab::new("no_connection_is_lost_over_reloads", &["nginx"]) else { return };
    let (mut server, _) = with_two_workers(&lab);
    let load = Load::start(address());
    for reload in 1..=8 {
        signal(server.pid(), libc::SIGHUP);
        until("the new workers have their queues", || (lab.queues() == 2 * (1 + reload)).then_some(()));
    }
    load.end();
    until("the old workers have ended", || (listeners(PORT) == 3).then_some(()));
}

#[test]
fn queues_and_connections_stay_over_upgrades() {
    let Some(lab) = Lab::with_ipv6("queues_and_connections_stay_over_upgrades", &["nginx"]) else { return };
    let listen = ["127.0.0.1:8080", "[::1]:8081"];
    let mut master = Daemon::start(&lab, &listen);
    for _ in 0..3 {
        let load = Load::start(address());
        let new = master.upgrade(&lab, listen.len());
        master.end_workers();
        signal(master.0, libc::SIGQUIT);
        until("the old master has ended", || (!exists(master.0)).then_some(()));
        load.end();
        master = new;
        accept_locally(&children(master.0));
        get((Ipv6Addr::LOCALHOST, 8081));
        assert_eq!(
            (listeners(8081), steering(master.0)),
            (3, 4 * listen.len()),
            "no descriptor is left over"
        );
    }
    assert_eq!(lab.lines("stays on its shared queue"), 0);
}

#[test]
fn an_upgrade_may_be_taken_back() {
    let Some(lab) = Lab::new("an_upgrade_may_be_taken_back", &["nginx"]) else { return };
    let old = Daemon::start(&lab, &["127.0.0.1:8080"]);
    for _ in 0..2 {
        let load = Load::start(address());
        let new = old.upgrade(&lab, 1);
        old.end_workers();
        // New workers of the old master, beside those of the new one.
        let before = lab.queues();
        signal(old.0, libc::SIGHUP);
        until("the old one's have their queues", || (lab.queues() == before + 2).then_some(()));
        signal(new.0, libc::SIGQUIT);
        until("the new master has ended", || (!exists(new.0)).then_some(()));
        load.end();
        accept_locally(&children(old.0));
    }
    assert_eq!(lab.lines("stays on its shared queue"), 0);
}

/// How many BPF programs and maps a process has open.
fn steering(pid: u32) -> usize {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("anon_inode:bpf-")).count()
}

fn exists(pid: u32) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap()
}

/// A master that is no child of the test's, and its workers; ended when dropped.
struct Daemon(u32);

impl Daemon {
    /// nginx with two workers, which has no parent: one that waits for it keeps it from an upgrade.
    fn start(lab: &Lab, listen: &[&str]) -> Daemon {
        let arguments = nginx(&lab.path(""), &[("daemon", "on"), ("listen", &listening(listen))]);
        assert!(lab.local("nginx").args(arguments).status().unwrap().success());
        let master = Daemon(until("the master runs", || master(lab)));
        until("both workers have their queues", || (lab.queues() == 2 * listen.len()).then_some(()));
        master
    }

    /// The new master, whose workers have a queue of each listener.
    fn upgrade(&self, lab: &Lab, listeners: usize) -> Daemon {
        let before = lab.queues();
        signal(self.0, libc::SIGUSR2);
        let new = until("the new master runs", || {
            master(lab).filter(|pid| *pid != self.0 && children(*pid).len() == 2).map(Daemon)
        });
        until("its workers have their queues", || (lab.queues() == before + 2 * listeners).then_some(()));
        new
    }

    fn end_workers(&self) {
        let workers = children(self.0);
        signal(self.0, libc::SIGWINCH);
        until("the old workers have ended", || {
            let left = children(self.0);
            // The new master may be among its children, too.
            workers.iter().all(|pid| !left.contains(pid) || !is_worker(*pid)).then_some(())
        });
    }
}

fn is_worker(pid: u32) -> bool {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.starts_with("nginx: worker")
}

fn master(lab: &Lab) -> Option<u32> {
    fs::read_to_string(lab.path("nginx.pid")).ok()?.trim().parse().ok()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let workers = children(self.0);
        for pid in std::iter::once(self.0).chain(workers).filter(|pid| exists(*pid)) {
            // SAFETY: a process that the test's server started.
            unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
        }
    }
}

#[test]
fn a_second_start_finds_the_address_in_use() {
    let Some(lab) = Lab::new("a_second_start_finds_the_address_in_use", &["nginx"]) else { return };
    let (_server, _) = with_two_workers(&lab);
    let second = lab.path("second");
    fs::create_dir(&second).unwrap();
    let arguments = nginx(&second, &[]);
    for mut command in [lab.local("nginx"), clean(find("nginx").unwrap())] {
        let mut refused = Fosterling::start(command.args(&arguments).stderr(Stdio::piped()));
        let status = until("the second one ends", || refused.child().try_wait().unwrap());
        let mut said = String::new();
        refused.child().stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!status.success() && said.contains("Address already in use"), "{status}: {said}");
    }
    get(address());
}

#[test]
fn listeners_of_both_families_and_more_workers_than_cpus() {
    let Some(lab) = Lab::with_ipv6("listeners_of_both_families_and_more_workers_than_cpus", &["nginx"])
    else {
        return;
    };
    let workers = 2 * cpus().len().min(4) + 1;
    let listen = ["127.0.0.1:8080", "127.0.0.1:8081", "[::1]:8080"];
    let values = [("workers", &*workers.to_string()), ("listen", &listening(&listen))];
    let _server = start(lab.local("nginx").args(nginx(&lab.path(""), &values)), PORT);
    until("all have their queues", || (lab.queues() == workers * listen.len()).then_some(()));
    assert_eq!((listeners(8080), listeners(8081)), (2 * (workers + 1), workers + 1));
    for _ in 0..50 {
        get(address());
        get((Ipv4Addr::LOCALHOST, 8081));
        get((Ipv6Addr::LOCALHOST, 8080));
    }
}

#[test]
fn without_the_capability_the_queue_stays_shared() {
    let name = "without_the_capability_the_queue_stays_shared";
    let Some(lab) = Lab::new(name, &["nginx", "setpriv"]) else { return };
    let local = lab.local("nginx");
    let listen = listening(&["127.0.0.1:8080", "127.0.0.1:8081"]);
    let mut command = clean(find("setpriv").unwrap());
    command.args(["--bounding-set", "-bpf,-sys_admin", "--inh-caps", "-bpf,-sys_admin"]);
    command.arg(local.get_program()).args(local.get_args());
    command.args(nginx(&lab.path(""), &[("listen", &listen)]));
    let mut server = start(&mut command, PORT);
    until("the workers are there", || (server.workers().len() == 2).then_some(()));
    get(address());
    assert_eq!((listeners(PORT), lab.queues(), lab.lines("shared queue: bpf")), (1, 0, 1));
}

#[test]
fn queues_of_the_programs_own_are_left_alone() {
    let Some(lab) = Lab::new("queues_of_the_programs_own_are_left_alone", &["nginx"]) else { return };
    let values = [("listen", "listen 127.0.0.1:8080 reuseport;")];
    let mut server = start(lab.local("nginx").args(nginx(&lab.path(""), &values)), PORT);
    until("the workers are there", || (server.workers().len() == 2).then_some(()));
    server.workers().into_iter().for_each(asleep);
    get(address());
    assert_eq!((listeners(PORT), lab.queues()), (2, 0));
}
