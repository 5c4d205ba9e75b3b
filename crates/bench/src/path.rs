//! User-level TCP over paths with a round trip, beside the kernel's on the same path.
//!
//! Two network namespaces are joined by a [relay](Relay): it delays, loses, reorders, repeats and limits what it
//! carries. Losses follow from a seed, and each sender of a round meets the same. The sender is in the first
//! namespace, the receiver in the second; each is the kernel's TCP or a host of crate `tcp` on a TUN device of
//! its own. The relay counts what is sent again, so that it counts alike for all.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Reason;
use crate::child::Child;
use crate::names::names;
use crate::network;
use crate::options::{seconds, this_program};
use crate::part::Part;
use crate::record::Record;
use crate::run::{Run, RunError, Scenario, Unusable, in_turn};

mod endpoint;
mod ours;
mod relay;
mod row;
mod view;

pub use endpoint::Endpoint;
pub use relay::Relay;
pub use row::{Path, Row};
pub use view::{FLOODED_PATH, PATH, SHARED_PATH};

use relay::Counts;

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

names! {
    /// A sender and a receiver.
    Ends {
        /// Linux with Reno to Linux.
        Reno = "reno",
        /// Linux with CUBIC to Linux.
        Cubic = "cubic",
        /// Linux with BBR to Linux.
        Bbr = "bbr",
        /// Ours to Linux.
        Ours = "ours",
        /// Linux with CUBIC to ours.
        CubicToOurs = "cubic-ours",
        /// Ours to ours.
        OursToOurs = "ours-ours",
    }
}

impl Ends {
    /// Sender and receiver.
    fn ends(self) -> (Tcp, Tcp) {
        match self {
            Ends::Reno => (Tcp::Reno, Tcp::Cubic),
            Ends::Cubic => (Tcp::Cubic, Tcp::Cubic),
            Ends::Bbr => (Tcp::Bbr, Tcp::Cubic),
            Ends::Ours => (Tcp::Ours, Tcp::Cubic),
            Ends::CubicToOurs => (Tcp::Cubic, Tcp::Ours),
            Ends::OursToOurs => (Tcp::Ours, Tcp::Ours),
        }
    }
}

/// Bytes of the transfers of a measurement, one after the other, each on a connection of its own.
const SIZES: [(&str, u64); 3] = [("10k", 10_000), ("1m", 1_000_000), ("10m", 10_000_000)];

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Paths
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_values_t = Row::ALL.to_vec())]
    rows: Vec<Row>,
    /// Senders and receivers
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_values_t = Ends::ALL.to_vec())]
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
    fn ends_of(&self, row: Row) -> Vec<Ends> {
        let shares = row.rival().is_some();
        let fits = |ends: &Ends| match row.path().flood {
            0 => !shares || ends.ends().1 != Tcp::Ours,
            _ => *ends == Ends::Ours,
        };
        self.ends.iter().copied().filter(fits).collect()
    }
}

impl Scenario for Plan {
    fn prepare(&mut self, rounds: u32) -> Result<usize, Reason> {
        // Before there is a second thread, which could not follow.
        network::enter_own()?;
        relay::forward().map_err(|error| Unusable(format!("cannot forward packets: {error}")))?;
        Ok(self.rows.iter().map(|&row| self.ends_of(row).len()).sum::<usize>() * rounds as usize)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<(), RunError> {
        run.header(
            json!({ "scenario": "tcp-path", "seconds": self.share.as_secs_f64(), "seed": self.seed }),
        )?;
        let mut network = 0;
        for round in 1..=run.rounds {
            for &row in &self.rows {
                for ends in in_turn(&self.ends_of(row), round) {
                    network = network % 200 + 1;
                    let turn = Turn { plan: self, row, ends, round, network };
                    let place = json!({ "row": row, "ends": ends });
                    run.measure(round, format!("{row}, {ends}"), place, || turn.measure())?;
                }
            }
        }
        Ok(())
    }
}

/// A sender and a receiver on a path, in one round.
struct Turn<'plan> {
    plan: &'plan Plan,
    row: Row,
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
        let path = self.row.path();
        let seed = self.plan.seed.wrapping_mul(1000).wrapping_add(self.round.into());
        let mut relay = start(&Relay { path, seed, network: self.network })?;
        let (sends, receives) = self.ends.ends();
        let endpoint = |tcp, far: bool, number| Endpoint {
            tcp,
            namespace: far.then(|| relay.pid()),
            number,
            network: self.network,
            gso: path.gso,
            lan: path.lan,
        };
        let sender = endpoint(sends, false, 0);
        let rival = self.row.rival().map(|tcp| endpoint(tcp, false, 1));
        let receiver = endpoint(receives, true, 0);
        let from: Vec<SocketAddr> =
            [Some(&sender), rival.as_ref()].into_iter().flatten().map(Endpoint::address).collect();
        let _sender = start(&sender)?;
        let _rival = rival.as_ref().map(start).transpose()?;
        let mut receiver = start(&receiver)?;
        let place = json!({ "row": self.row, "ends": self.ends, "round": self.round });
        if self.row.rival().is_some() {
            let [own, others] = self.share(&mut receiver, from)?;
            let share = own.bytes as f64 / (own.bytes + others.bytes).max(1) as f64;
            let rate = (own.bytes + others.bytes) as f64 / own.seconds;
            return Ok(Record::new("shared-path", place).with(json!({ "share": share, "bytes_per_s": rate })));
        }
        if path.flood > 0 {
            let served = self.crowd(&mut receiver, from[0])?;
            return Ok(Record::new("flooded-path", place).with(json!({ "served": served })));
        }
        let mut record = Record::new("path", place);
        for (name, bytes) in SIZES {
            let order = Order { from: from.clone(), bytes: Some(bytes), seconds: PATIENCE };
            receiver.ask(&serde_json::to_string(&order).expect("numbers and addresses"))?;
            let answer: Answer = self.answer(&mut receiver)?;
            if answer.bytes < bytes {
                let words = format!("{} of {bytes} bytes in {:.1} s", answer.bytes, answer.seconds);
                return Err(receiver.complaint(&words).into());
            }
            let field = format!("seconds_{name}");
            record = record.with(serde_json::Map::from_iter([(field, answer.seconds.into())]));
        }
        relay.ask("")?;
        let counts: Counts = serde_json::from_str(&relay.line()?).map_err(std::io::Error::other)?;
        Ok(record.with(counts))
    }

    fn share(&self, receiver: &mut Child, from: Vec<SocketAddr>) -> Result<[Answer; 2], Reason> {
        let order = Order { from, bytes: None, seconds: self.plan.share.as_secs_f64() };
        receiver.ask(&serde_json::to_string(&order).expect("numbers and addresses"))?;
        Ok([self.answer(receiver)?, self.answer(receiver)?])
    }

    /// Of many clients at once, the share of those that get 10 KB within a few seconds.
    fn crowd(&self, receiver: &mut Child, from: SocketAddr) -> Result<f64, Reason> {
        let order = Order { from: vec![from; CLIENTS], bytes: Some(10_000), seconds: 5.0 };
        receiver.ask(&serde_json::to_string(&order).expect("numbers and addresses"))?;
        let answers = (0..CLIENTS).map(|_| self.answer(receiver)).collect::<Result<Vec<_>, _>>()?;
        Ok(answers.iter().filter(|answer| answer.bytes == 10_000).count() as f64 / CLIENTS as f64)
    }

    fn answer(&self, receiver: &mut Child) -> Result<Answer, Reason> {
        let line = receiver.line()?;
        serde_json::from_str(&line).map_err(|_| format!("the receiver said {line:?}").into())
    }
}

/// Starts a part, and waits until it is ready.
fn start<P: Part>(part: &P) -> Result<Child, Reason> {
    let mut served = Child::start(&mut part.command(&this_program()))?;
    match served.line()?.as_str() {
        "ready" => Ok(served),
        word => Err(format!("{} said {word:?}", P::NAME).into()),
    }
}

/// Honest clients beside a flood.
const CLIENTS: usize = 100;

/// How long a transfer may take.
const PATIENCE: f64 = 120.0;
