//! The `megapipe-bench` command: measures Megapipe beside what people use today.

use std::process::ExitCode;

use bench::part::{self, Part};
use bench::run::{RunError, Unusable};
use bench::{Reason, apps, listen, load, mmsg, pair, path, peer, rpc, tcp, with_causes};
use clap::{Parser, Subcommand};

mod report;

use report::Measure;

/// Measure Megapipe beside what people use today
#[derive(Parser)]
#[command(name = "megapipe-bench", version)]
struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    /// Small requests and responses over TCP, after the MegaPipe paper (OSDI 2012, Figure 1)
    ///
    /// Measures every combination of --transactions, --sizes, --connections and --server-cpus, each
    /// engine in turn, and prints medians over the rounds.
    Rpc(Measure<rpc::Plan>),
    /// Round trips between two processes of this host: promoted, TCP, UNIX socket, bare memory
    ///
    /// Measures every combination of --placements and --sizes, each transport in turn, and prints
    /// medians over the rounds.
    Pingpong(Measure<pair::Plan>),
    /// Streams between two processes of this host: promoted, TCP, UNIX socket, bare copies
    ///
    /// Measures every combination of --placements and --sizes, each transport in turn, and prints
    /// medians over the rounds. Sender and receiver call once for each message.
    Stream(Measure<pair::Plan>),
    /// Programs that people run, plain and under `megapipe run`: Redis, nginx, PostgreSQL, clients in Python, others
    ///
    /// Starts a monitor and, for each measurement anew, the server, both in a private folder that is removed; measures
    /// each combination of --placements, --apps, --operations and --connections over TCP, over Megapipe, and over the
    /// server's UNIX socket where it has one, in turn, and prints medians over the rounds. Programs that
    /// are not installed are named and left out. Fails if nothing was promoted where it should be.
    Apps(Measure<apps::Plan>),
    /// Many sockets with a small message each: recvmsg, recvmmsg, recvmmmsg and a receiver with registered sockets
    ///
    /// The workload of the recvmmmsg proposal (netdev 0x13, 2019). Load and server take turns, each on a CPU of its own,
    /// so that exactly --ready sockets have a message whenever the server looks. Prints system calls and server time per
    /// message and how long messages wait.
    Mmsg(Measure<mmsg::Plan>),
    /// User-level TCP on a TUN device beside the kernel's over veth and beside smoltcp
    ///
    /// Measures each of --rows with every server that it compares, in turn, and prints medians over the rounds: the CPU time of the server and of both sides, rates, packets for each wake-up. Everything happens in
    /// network namespaces of its own, which a user without privileges may have, too.
    Tcp(Measure<tcp::Plan>),
    /// User-level TCP over paths with a round trip, losses and reordering, beside Linux' TCP on the same path
    ///
    /// Measures each of --ends on each of --rows, in turn, and prints medians over the rounds: how long 10 KB, 1 MB and
    /// 10 MB take, what is sent again, and how a bottleneck is shared. Packets go through a relay of this program between
    /// two network namespaces of its own, which a user without privileges may have, too.
    TcpPath(Measure<path::Plan>),
    /// Listen queues of servers: shared, one for each worker (SO_REUSEPORT), and `megapipe run --local-listen`
    ///
    /// Makes two network namespaces and starts each server anew for every measurement: as many short connections as nginx
    /// and HAProxy can serve, where connections are accepted, and what the others notice of a worker that blocks, is
    /// stopped, or killed; the last two also for a server on channels, where `reuseport` steers by the CPU alone and
    /// `local` are partitioned listeners. The shared queue is measured twice. Needs root, ip(8), and those servers.
    Listen(Measure<listen::Plan>),
    /// Tables and plots of the records of an earlier run
    Show(report::Show),
    /// A process that is part of a measurement
    #[command(hide = true)]
    Part { name: String, task: String },
}

fn main() -> ExitCode {
    let mut speaker = "megapipe-bench: ";
    let ended = match Arguments::parse().scenario {
        Scenario::Rpc(arguments) => arguments.run(),
        Scenario::Pingpong(arguments) => arguments.run(),
        Scenario::Stream(mut arguments) => {
            arguments.scenario.scenario = pair::Scenario::Stream;
            arguments.run()
        }
        Scenario::Apps(arguments) => arguments.run(),
        Scenario::Mmsg(arguments) => arguments.run(),
        Scenario::Tcp(arguments) => arguments.run(),
        Scenario::TcpPath(arguments) => arguments.run(),
        Scenario::Listen(arguments) => arguments.run(),
        Scenario::Show(arguments) => arguments.run(),
        Scenario::Part { name, task } => {
            speaker = ""; // its controller says whose words these are
            part(&name, &task).map(|()| true)
        }
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE, // the table has said why
        Err(error) if matches!(error.downcast_ref(), Some(RunError::Stopped)) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            eprintln!("{speaker}{}", with_causes(error.as_ref()));
            if error.is::<Unusable>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn part(name: &str, task: &str) -> Result<(), Reason> {
    let run = match name {
        apps::Calls::NAME => part::run::<apps::Calls>,
        apps::Tokio::NAME => part::run::<apps::Tokio>,
        apps::Waits::NAME => part::run::<apps::Waits>,
        listen::channels::Task::NAME => part::run::<listen::channels::Task>,
        listen::server::Task::NAME => part::run::<listen::server::Task>,
        load::Options::NAME => part::run::<load::Options>,
        mmsg::Task::NAME => part::run::<mmsg::Task>,
        pair::Busy::NAME => part::run::<pair::Busy>,
        pair::Exchange::NAME => part::run::<pair::Exchange>,
        path::Endpoint::NAME => part::run::<path::Endpoint>,
        path::Relay::NAME => part::run::<path::Relay>,
        peer::Options::NAME => part::run::<peer::Options>,
        tcp::Task::NAME => part::run::<tcp::Task>,
        _ => return Err(format!("{name} is no part of a measurement").into()),
    };
    run(task)
}

/// The exit status of a run ended by Ctrl-C: 128 and the number of SIGINT, as shells report it.
const INTERRUPTED: u8 = 130;
