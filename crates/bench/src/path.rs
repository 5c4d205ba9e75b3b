//! User-level TCP over paths with a round trip, beside the kernel's on the same path.
//!
//! Two network namespaces are joined by a [relay](Relay): it delays, loses, reorders, joins and limits what it
//! carries. Losses follow from a seed, and each sender of a round meets the same. The sender is in the first
//! namespace, the receiver in the second; each is the kernel's TCP or a host of crate `tcp` on a TUN device of
//! its own. The relay counts what is sent again, so that it counts alike for all.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Reason;
use crate::child::Child;
use crate::clock;
use crate::names::names;
use crate::network::{self, Namespace};
use crate::options::{seconds, this_program};
use crate::part::Part;
use crate::record::Record;
use crate::run::{Run, RunError, Scenario, Unusable, in_turn};

mod endpoint;
mod ours;
mod relay;
mod row;

pub use endpoint::Endpoint;
pub use relay::Relay;

use relay::Counts;
use row::{Path, Row};

names! {
    /// A TCP: the kernel's with a congestion control, or ours.
    Tcp {
        /// Linux with Reno.
        Reno = "reno",
        /// Linux with CUBIC, its default.
        Cubic = "cubic",
        /// Linux with BBR.
        Bbr = "bbr",
        /// A host of crate `tcp`.
        Ours = "ours",
    }
}

/// A sender and a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ends {
    sends: Tcp,
    receives: Tcp,
}

/// The default; what has no receiver's name is received by Linux with CUBIC.
const ENDS: &[&str] = &["reno", "cubic", "bbr", "ours", "cubic-ours", "ours-ours"];

impl FromStr for Ends {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let (sends, receives) = name.split_once('-').unwrap_or((name, Tcp::Cubic.name()));
        let [sends, receives] = [sends, receives].map(|name| Tcp::from_str(name, false));
        Ok(Self { sends: sends?, receives: receives? })
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.receives {
            Tcp::Cubic => write!(f, "{}", self.sends),
            receives => write!(f, "{}-{receives}", self.sends),
        }
    }
}

/// Bytes of the transfers of a measurement, one after the other, each on a connection of its own.
const SIZES: [(&str, u64); 3] = [("10k", 10_000), ("1m", 1_000_000), ("10m", 10_000_000)];

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Paths: a round trip (20ms; us: as fast as this machine is), and behind hyphens Mbit/s (100 unless named),
    /// loss and percents, late (2 % by 3 ms), gro (segments are joined), plain (ours hands single segments to its device),
    /// with and another sender (cubic, reno, ours) at the same bottleneck, flood and thousands of SYNs a second (10k)
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_values = row::ROWS)]
    rows: Vec<Row>,
    /// Senders (Linux with reno, cubic or bbr; ours), and behind a hyphen receivers (cubic unless named)
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_values = ENDS)]
    ends: Vec<Ends>,
    /// How long two connections share a bottleneck
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    share: Duration,
    /// What losses follow from, beside the round
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    seed: u64,
}

impl Plan {
    /// The ends of a row: what shares a bottleneck has its receiver in the kernel.
    fn ends_of(&self, row: &Row) -> Vec<Ends> {
        let fits = |ends: &Ends| match row.path.flood {
            0 => row.rival.is_none() || ends.receives != Tcp::Ours,
            _ => *ends == Ends { sends: Tcp::Ours, receives: Tcp::Cubic },
        };
        self.ends.iter().copied().filter(fits).collect()
    }
}

impl Scenario for Plan {
    fn prepare(&mut self, rounds: u32) -> Result<usize, Reason> {
        // Before there is a second thread, which could not follow.
        network::enter_own()?;
        relay::forward().map_err(|error| Unusable(format!("cannot forward packets: {error}")))?;
        Ok(self.rows.iter().map(|row| self.ends_of(row).len()).sum::<usize>() * rounds as usize)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<(), RunError> {
        run.header(
            json!({ "scenario": "tcp-path", "seconds": self.share.as_secs_f64(), "seed": self.seed }),
        )?;
        let mut network = 0;
        for round in 1..=run.rounds {
            for row in &self.rows {
                for ends in in_turn(&self.ends_of(row), round) {
                    network = network % 200 + 1;
                    let turn = Turn { plan: self, row, ends, round, network };
                    let place = json!({ "row": row.name, "ends": ends.to_string() });
                    run.measure(round, format!("{}, {ends}", row.name), place, || turn.measure())?;
                }
            }
        }
        Ok(())
    }
}

/// A sender and a receiver on a path, in one round.
struct Turn<'plan> {
    plan: &'plan Plan,
    row: &'plan Row,
    ends: Ends,
    round: u32,
    /// Devices have other names each time: the last ones may still be on their way out.
    network: u8,
}

/// What a receiver is asked for, in a line: it prints an [`Answer`] for each connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    /// A connection to each of these, at the same time.
    from: Vec<SocketAddr>,
    /// Bytes of each; without, as many as come in `seconds`.
    bytes: Option<u64>,
    seconds: f64,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Answer {
    bytes: u64,
    /// From the connection's begin on.
    seconds: f64,
}

impl Turn<'_> {
    fn measure(&self) -> Result<Record, Reason> {
        let path = self.row.path;
        let seed = self.plan.seed.wrapping_mul(1000).wrapping_add(self.round.into());
        let relay = Relay { path, seed, network: self.network };
        let (mut relay, _) = Child::listening(&mut relay.command(&this_program()))?;
        let Ends { sends, receives } = self.ends;
        let endpoint = |tcp, receives, number| Endpoint {
            tcp,
            receives,
            number,
            network: self.network,
            gso: path.gso,
            lan: path.lan,
        };
        let senders: Vec<Endpoint> = [Some(sends), self.row.rival]
            .into_iter()
            .flatten()
            .zip(0..)
            .map(|(tcp, number)| endpoint(tcp, false, number))
            .collect();
        let from: Vec<SocketAddr> = senders.iter().map(Endpoint::address).collect();
        let senders = senders
            .iter()
            .map(|sender| Child::listening(&mut sender.command(&this_program())))
            .collect::<Result<Vec<_>, _>>()?;
        let mut receiver = endpoint(receives, true, 0).command(&this_program());
        Namespace::of(relay.pid())?.enter(&mut receiver);
        let (mut receiver, _) = Child::listening(&mut receiver)?;
        let mut fields = json!({ "row": self.row.name, "ends": self.ends.to_string() });
        if self.row.rival.is_some() {
            let order = Order { from, bytes: None, seconds: self.plan.share.as_secs_f64() };
            let answers = fetch(&mut receiver, &order)?;
            let bytes = (answers[0].bytes + answers[1].bytes) as f64;
            fields["share"] = json!(answers[0].bytes as f64 / bytes.max(1.0));
            fields["bytes_per_s"] = json!(bytes / answers[0].seconds);
            return Ok(Record::new("shared-path", fields));
        }
        if path.flood > 0 {
            return flooded(fields, [&mut relay, &mut receiver], senders[0].0.pid(), from[0]);
        }
        for (name, bytes) in SIZES {
            let order = Order { from: from.clone(), bytes: Some(bytes), seconds: PATIENCE };
            let answer = fetch(&mut receiver, &order)?[0];
            if answer.bytes < bytes {
                let words = format!("{} of {bytes} bytes in {:.1} s", answer.bytes, answer.seconds);
                return Err(receiver.complaint(&words).into());
            }
            fields[format!("seconds_{name}")] = json!(answer.seconds);
        }
        let Counts { sent, again, lost, .. } = counts(&mut relay)?;
        Ok(Record::new("path", fields).with(json!({ "sent": sent, "again": again, "lost": lost })))
    }
}

/// What a connection carries without a flood, and one that was opened before it under it; of many clients at once, the
/// share of those that get 10 KB within a few seconds.
fn flooded(
    mut fields: Value,
    [relay, receiver]: [&mut Child; 2],
    sender: u32,
    from: SocketAddr,
) -> Result<Record, Reason> {
    let order = Order { from: vec![from], bytes: None, seconds: OPEN_SECONDS };
    let quiet = fetch(receiver, &order)?[0].bytes;
    order_of(receiver, &order)?;
    thread::sleep(OPENING);
    let parts = [relay.pid(), sender];
    let used = || -> io::Result<_> { Ok([clock::of_process(parts[0])?, clock::of_process(parts[1])?]) };
    let (begun, cpus) = (Instant::now(), used()?);
    let before = counts(relay)?;
    let bytes = answers(receiver, &order)?[0].bytes;
    fields["open"] = json!(bytes as f64 / quiet.max(1) as f64);
    let (seconds, spent) = (begun.elapsed().as_secs_f64(), used()?);
    let after = counts(relay)?;
    fields["syns_per_s"] = json!((after.syns - before.syns) as f64 / seconds);
    fields["answered"] = json!(after.answered as f64 / after.syns.max(1) as f64);
    for (name, before, after) in [("relay_cpu", cpus[0], spent[0]), ("sender_cpu", cpus[1], spent[1])] {
        fields[name] = json!((after - before).as_secs_f64() / seconds);
    }
    let order = Order { from: vec![from; CLIENTS], bytes: Some(10_000), seconds: 5.0 };
    let served = fetch(receiver, &order)?.iter().filter(|answer| answer.bytes == 10_000).count();
    fields["served"] = json!(served as f64 / CLIENTS as f64);
    Ok(Record::new("flooded-path", fields))
}

/// What a relay has counted so far. The first time begins a flood.
fn counts(relay: &mut Child) -> Result<Counts, Reason> {
    relay.ask("")?;
    Ok(serde_json::from_str(&relay.line()?)?)
}

/// Has a receiver do as it is asked: an answer for each connection.
fn fetch(receiver: &mut Child, order: &Order) -> Result<Vec<Answer>, Reason> {
    order_of(receiver, order)?;
    answers(receiver, order)
}

fn order_of(receiver: &mut Child, order: &Order) -> Result<(), Reason> {
    receiver.ask(&serde_json::to_string(order)?)?;
    Ok(())
}

fn answers(receiver: &mut Child, order: &Order) -> Result<Vec<Answer>, Reason> {
    order.from.iter().map(|_| Ok(serde_json::from_str(&receiver.line()?)?)).collect()
}

/// Honest clients beside a flood.
const CLIENTS: usize = 100;

/// How long a connection carries what it can, without a flood and under one, and how long before the flood it is
/// opened.
const OPEN_SECONDS: f64 = 5.0;
const OPENING: Duration = Duration::from_millis(500);

/// How long a transfer may take, in seconds.
const PATIENCE: f64 = 120.0;
