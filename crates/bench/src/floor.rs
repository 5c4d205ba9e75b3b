//! What the kernel's own calls cost on the server's CPU: the floor under every engine.
//!
//! One thread is client and server in turn, each on its own CPU. The client fills the accept queue with connections
//! in each of which a request waits. The server then makes all accepts, all receives, all sends, and, once the client
//! has reset the connections, all closes, and reads its CPU clock between. Nothing ever waits, so there is no wake-up,
//! no readiness call and no cold start in these figures.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use socket2::{Domain, Protocol, Socket, Type};
use testkit::process::thread_cpu_time;

use crate::cpu::{self, CpuSet};
use crate::record::Record;

/// Nanoseconds of CPU time of each call on the server's CPU.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Floor {
    /// Bytes of a message.
    pub size: usize,
    /// accept4(2) of a connection that waits.
    pub accept_ns: f64,
    /// recv(2) of the first message on a connection, which waits already.
    pub first_recv_ns: f64,
    /// send(2) of the first message on a connection, with its delivery to the client's socket.
    pub first_send_ns: f64,
    /// recv(2) of a later message.
    pub recv_ns: f64,
    /// send(2) of a later message.
    pub send_ns: f64,
    /// close(2) of a connection that its peer has reset.
    pub close_ns: f64,
    /// Entering and leaving the kernel (getppid(2)); part of each of the above.
    pub entry_ns: f64,
}

/// Measures on server CPU `server`, with messages of `size` bytes; the thread, which must be the only one, ends on the
/// client's CPUs. Takes well under a second.
pub fn measure(server: usize, client: &CpuSet, size: usize) -> io::Result<Floor> {
    let sides = Sides { server, client };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let entry_ns = sides.timed(0..ENTRIES, enter)?;
    let mut floor = Floor { size, entry_ns, ..Floor::default() };
    let mut bytes = vec![0; size];
    for batch in 0..=BATCHES {
        let share = if batch == 0 { 0.0 } else { 1.0 / f64::from(BATCHES) }; // the first batch warms up
        let mut clients = (0..BATCH).map(|_| connect(address)).collect::<io::Result<Vec<_>>>()?;
        let mut connections = Vec::with_capacity(clients.len());
        for transaction in 0..TRANSACTIONS {
            for client in &mut clients {
                client.write_all(&bytes)?;
            }
            if transaction == 0 {
                let accept = sides.timed(0..BATCH, |_| {
                    connections.push(listener.accept()?.0);
                    Ok(())
                })?;
                floor.accept_ns += accept * share;
            }
            let recv = sides.timed(&mut connections, |connection| connection.read_exact(&mut bytes))?;
            let send = sides.timed(&mut connections, |connection| connection.write_all(&bytes))?;
            if transaction == 0 {
                floor.first_recv_ns += recv * share;
                floor.first_send_ns += send * share;
            } else {
                let share = share / f64::from(TRANSACTIONS - 1);
                floor.recv_ns += recv * share;
                floor.send_ns += send * share;
            }
            for client in &mut clients {
                client.read_exact(&mut bytes)?;
            }
        }
        drop(clients); // with RST
        let close = |connection| {
            drop::<TcpStream>(connection);
            Ok(())
        };
        floor.close_ns += share * sides.timed(connections, close)?;
    }
    Ok(floor)
}

impl Floor {
    /// Nanoseconds per transaction if entering the kernel cost nothing, which is the bound for batching, and if each
    /// call enters it. Accept, the first receive and send, and close happen once for a connection, and spread over its
    /// transactions.
    fn per_transaction(&self, transactions: f64) -> [f64; 2] {
        let once = self.accept_ns + self.first_recv_ns + self.first_send_ns + self.close_ns;
        let with = (once + (transactions - 1.0) * (self.recv_ns + self.send_ns)) / transactions;
        [with - (2.0 / transactions + 2.0) * self.entry_ns, with]
    }
}

/// The floor under each measurement, as measurements of `floor` and `floor+entries` at the same point.
pub(crate) fn at_points(records: &[Record]) -> Vec<Record> {
    let under = |record: &Record| {
        let transactions = record.number("transactions")?;
        let is_its = |floor: &&Record| {
            floor.kind() == "floor"
                && ["size", "round"].iter().all(|name| floor.field(name) == record.field(name))
        };
        let [without, with] = records.iter().find(is_its)?.read::<Floor>()?.per_transaction(transactions);
        let of = |engine: &str, ns: f64| {
            let point = ["transactions", "size", "connections", "server_cpus", "rate", "round"];
            let point = point.map(|name| (name, record.field(name)));
            Record::new("measurement", BTreeMap::from(point))
                .with(json!({ "engine": engine, "server_cpu_ns_per_transaction": ns }))
        };
        Some([of("floor", without), of("floor+entries", with)])
    };
    records.iter().filter_map(under).flatten().collect()
}

/// The CPUs of both.
struct Sides<'cpus> {
    server: usize,
    client: &'cpus CpuSet,
}

impl Sides<'_> {
    /// Nanoseconds of CPU time of a call by the server, which makes one for each item.
    fn timed<I: IntoIterator>(
        &self,
        items: I,
        mut call: impl FnMut(I::Item) -> io::Result<()>,
    ) -> io::Result<f64> {
        cpu::pin(&[self.server])?;
        let (before, mut count) = (thread_cpu_time(), 0);
        for item in items {
            call(item)?;
            count += 1;
        }
        let spent = thread_cpu_time() - before;
        cpu::pin(self.client.as_slice())?;
        Ok(spent.as_nanos() as f64 / f64::from(count))
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    socket.connect(&address.into())?;
    Ok(socket.into())
}

/// The cheapest system call.
fn enter(_: u32) -> io::Result<()> {
    std::hint::black_box(rustix::process::getppid());
    Ok(())
}

/// Connections that wait at once; within the default accept queue of a TcpListener.
const BATCH: u32 = 100;

/// Batches that count.
const BATCHES: u32 = 20;

/// Transactions on each connection.
const TRANSACTIONS: u32 = 8;

/// Calls that the cost of entering the kernel is averaged over.
const ENTRIES: u32 = 100_000;
