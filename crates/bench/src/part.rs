//! Processes of this program that are part of a measurement. What each is to do travels as JSON.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{apps, floor, listen, load, mmsg, pair, peer, tcp};

/// The hidden verb under which the program is one of them.
pub const VERB: &str = "part";

/// What such a process does. Servers end when their standard input closes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// A server of `rpc`.
    Peer(peer::Options),
    /// The server of the floor measurement; obeys standard input.
    Floor {
        /// Where it runs.
        cpu: usize,
        /// Bytes of a message.
        size: usize,
    },
    /// One of two processes that exchange messages.
    Side {
        /// What it does.
        task: pair::Task,
        /// Its end of the transport, which it inherits.
        descriptors: Vec<RawFd>,
    },
    /// Uses a CPU.
    Busy {
        /// Which one.
        cpu: usize,
        /// For how long.
        time: Duration,
    },
    /// Asks a server of another program.
    AppLoad(load::Options),
    /// Times calls on descriptors that are no sockets.
    AppCalls,
    /// The server of `mmsg`; takes turns with its controller.
    MmsgServer(mmsg::Task),
    /// A server of `tcp`.
    TcpServer(tcp::Task),
    /// The load of `listen`.
    ListenLoad(listen::load::Task),
    /// A server of `listen` whose requests can block it.
    ListenServer(listen::server::Task),
    /// A server of `listen` on channels.
    ListenChannels(listen::channels::Task),
    /// Asks that server of `listen` what it has accepted.
    ListenCounts(SocketAddr),
}

impl Part {
    /// The command that makes a process of `program` this part.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(self.arguments());
        command
    }

    /// The arguments of that command.
    pub fn arguments(&self) -> [String; 2] {
        [VERB.to_owned(), serde_json::to_string(self).expect("numbers and names are JSON")]
    }

    /// Does it. What the controller waits for is printed as JSON.
    pub fn run(self) -> Result<(), Box<dyn Error>> {
        match self {
            Part::Peer(options) => match peer::serve(&options)? {},
            Part::Floor { cpu, size } => Ok(floor::serve(cpu, size)?),
            Part::Side { task, descriptors } => Ok(pair::run_side(&task, &descriptors)?),
            Part::Busy { cpu, time } => Ok(pair::keep_busy(cpu, time)?),
            Part::AppLoad(options) => print(&apps::run_load(&options)?),
            Part::AppCalls => print(&apps::time_calls()?),
            Part::MmsgServer(task) => Ok(mmsg::serve(&task)?),
            Part::TcpServer(task) => match tcp::serve(&task)? {},
            Part::ListenLoad(task) => print(&listen::load::run(&task)?),
            Part::ListenServer(task) => Ok(listen::server::serve(&task)?),
            Part::ListenChannels(task) => Ok(listen::channels::serve(&task)?),
            Part::ListenCounts(server) => {
                println!("{}", listen::get(server, "/counts")?);
                Ok(())
            }
        }
    }
}

fn print(report: &impl Serialize) -> Result<(), Box<dyn Error>> {
    println!("{}", serde_json::to_string(report)?);
    io::Write::flush(&mut io::stdout())?;
    Ok(())
}
