//! Other servers whose processes or threads wait for one listener by epoll.

use std::net::{Ipv4Addr, SocketAddr};

use testkit::process::{cpus, until};

use crate::support::{Lab, Load, asleep, get, listeners, signal, start};

const PORT: u16 = 8080;

fn address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, PORT).into()
}

#[test]
fn threads_of_haproxy_have_queues_and_reload() {
    let name = "threads_of_haproxy_have_queues_and_reload";
    let Some(lab) = Lab::new(name, &["haproxy"]) else { return };
    if cpus().len() < 2 {
        println!("SKIPPED {name}: one CPU");
        return;
    }
    let serve = || lab.server("haproxy", PORT, &[("main", "user www-data")]);
    let mut server = start(&mut serve(), PORT);
    until("both threads have a queue", || (lab.queues() == 2).then_some(()));
    let load = Load::start(address());
    for reload in 2..=4 {
        let old = server.pid().to_string();
        let next = start(serve().args(["-sf", &old]), PORT);
        until("the old one has ended", || server.ended());
        until("the new threads have their queues", || (lab.queues() == 2 * reload).then_some(()));
        server = next;
    }
    load.end();
    assert_eq!(listeners(PORT), 3);
}

#[test]
fn shards_of_haproxy_are_left_alone() {
    let Some(lab) = Lab::new("shards_of_haproxy_are_left_alone", &["haproxy"]) else { return };
    let values = [("main", "user www-data"), ("threads", "4"), ("bind", "127.0.0.1:8080 shards 2")];
    let mut server = start(&mut lab.server("haproxy", PORT, &values), PORT);
    let load = Load::start(address());
    for _ in 0..20 {
        get(address());
    }
    load.end();
    assert!(server.ended().is_none());
    assert_eq!((listeners(PORT), lab.queues(), lab.lines("shared queue: group")), (2, 0, 2));
}

#[test]
fn workers_of_gunicorn_have_queues_and_come_and_go() {
    let name = "workers_of_gunicorn_have_queues_and_come_and_go";
    let Some(lab) = Lab::new(name, &["gunicorn"]) else { return };
    let mut command = lab.server("gunicorn", PORT, &[]);
    let mut server = start(command.args(["-w", "2", "-k", "gthread", "--threads", "4"]), PORT);
    until("both workers have a queue", || (lab.queues() == 2).then_some(()));
    let load = Load::start(address());
    signal(server.pid(), libc::SIGHUP);
    until("the new workers have their queues", || (lab.queues() == 4 && listeners(PORT) == 3).then_some(()));
    signal(server.pid(), libc::SIGTTOU);
    until("one worker is left", || (listeners(PORT) == 2).then_some(()));
    load.end();
    get(address());
}

#[test]
fn workers_of_apache_have_queues() {
    let Some(lab) = Lab::new("workers_of_apache_have_queues", &["apache2"]) else { return };
    let Some(mut command) = apache(&lab, "event") else { return };
    let mut server = start(&mut command, PORT);
    until("both workers have a queue", || (lab.queues() == 2).then_some(()));
    let load = Load::start(address());
    for _ in 0..20 {
        get(address());
    }
    load.end();
    assert_eq!((server.workers().len(), listeners(PORT)), (2, 3));
}

#[test]
fn no_connection_is_lost_over_graceful_restarts_of_apache() {
    let name = "no_connection_is_lost_over_graceful_restarts_of_apache";
    let Some(lab) = Lab::new(name, &["apache2"]) else { return };
    let Some(mut command) = apache(&lab, "event") else { return };
    let mut server = start(&mut command, PORT);
    until("both workers have a queue", || (lab.queues() == 2).then_some(()));
    let load = Load::start(address());
    for restart in 1..=4 {
        let old = server.workers();
        signal(server.pid(), libc::SIGUSR1);
        until("new workers in place of the old ones", || {
            let new = server.workers();
            (new.len() == 2 && !new.iter().any(|worker| old.contains(worker))).then_some(())
        });
        until("the new workers have their queues", || (lab.queues() == 2 * (1 + restart)).then_some(()));
    }
    load.end();
    assert_eq!(listeners(PORT), 3);
}

/// Apache with two worker processes; `None`: it lacks the module.
pub(crate) fn apache(lab: &Lab, module: &str) -> Option<std::process::Command> {
    let modules = "/usr/lib/apache2/modules";
    if !std::path::Path::new(modules).join(format!("mod_mpm_{module}.so")).exists() {
        println!("SKIPPED apache with mpm_{module}: no such module");
        return None;
    }
    let sizes = match module {
        // After a graceful restart Apache starts only as many workers as the spare threads need: two here.
        "event" => "ThreadsPerChild 8\nMaxRequestWorkers 16\nMinSpareThreads 9\nMaxSpareThreads 17\n",
        _ => "MaxRequestWorkers 2\nMinSpareServers 1\nMaxSpareServers 2\n",
    };
    std::fs::create_dir(lab.path("www")).unwrap();
    lab.write("www/index.html", "hello");
    let more = "Mutex pthread\nUser www-data\nGroup www-data\nStartServers 2\nServerLimit 2\n";
    Some(lab.server("apache", PORT, &[("mpm", module), ("more", &[more, sizes].concat())]))
}

#[test]
fn one_worker_alone_waits_for_both_queues() {
    // Connections of the other CPUs come by the shared queue.
    let Some(lab) = Lab::with_ipv6("one_worker_alone_waits_for_both_queues", &["gunicorn"]) else { return };
    let mut command = lab.server("gunicorn", PORT, &[("bind", "[::1]:8080")]);
    let mut server = start(command.args(["-w", "1", "-k", "gthread", "--threads", "2"]), PORT);
    until("it has a queue", || (lab.queues() == 1).then_some(()));
    server.workers().into_iter().for_each(asleep);
    let load = Load::start((std::net::Ipv6Addr::LOCALHOST, PORT).into());
    for _ in 0..20 {
        get((std::net::Ipv6Addr::LOCALHOST, PORT));
    }
    load.end();
    assert_eq!(listeners(PORT), 2);
}
