//! Forwards connections and datagrams to any address and port behind a TUN device to the same port of
//! 127.0.0.1, in namespaces of one's own:
//! ```sh
//! unshare -Urn sh
//! ip link set lo up; python3 -m http.server 8000 &
//! cargo run -p megapipe-tcp --example forwarder tun:mp0,10.78.0.2/16 & sleep 1
//! curl http://10.78.12.34:8000/
//! ```

use std::collections::hash_map::{Entry, HashMap};
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream, UdpSocket};
use std::os::fd::AsFd;

use packet::pump::Pump;
use packet::{Datagram, Datagrams, Device, TunNetwork};
use tcp::{Answer, Config, Event, Flow, Host, Pattern, Time};

/// Connections whose handshake goes on; clients of datagrams.
const PENDING_MAX: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let network = std::env::args().nth(1).ok_or("usage: forwarder tun:NAME,ADDRESS/PREFIX")?;
    match serve(&network.parse()?)? {}
}

/// Forwards until the device fails.
pub(crate) fn serve(network: &TunNetwork) -> Result<std::convert::Infallible, Box<dyn Error>> {
    let mut pump = Pump::new(network.open()?);
    let mut seed = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut seed)?;
    // It answers for every address of its prefixes.
    let config = Config::new(network.networks().to_vec(), pump.device().capabilities());
    let mut stack = Datagrams::beside(Host::new(config, seed));
    let listener = stack.endpoint.listen_asking(Pattern { address: None, port: None }, PENDING_MAX)?;
    let (mut asked, mut connections, mut clients) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut bytes = [0; 2048];
    let mut now: Time = pump.now();
    loop {
        let host = &mut stack.endpoint;
        while let Some(event) = host.event() {
            if let Event::Ask { ask, local, remote } = event {
                // On the loopback device it is open or refused at once.
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, local.port()));
                let is_open = server.is_ok() && asked.len() < PENDING_MAX;
                asked.extend(server.ok().filter(|_| is_open).map(|server| ((local, remote), server)));
                host.answer(now, ask, if is_open { Answer::Accept } else { Answer::Refuse });
            }
        }
        while let Some(flow) = host.accept(listener) {
            match host.addresses(flow).and_then(|pair| asked.remove(&pair)) {
                Some(server) => {
                    server.set_nonblocking(true)?;
                    connections
                        .insert(flow, Connection { server, up: Half::default(), down: Half::default() });
                }
                None => host.abort(now, flow),
            }
        }
        connections.retain(|&flow, connection: &mut Connection| {
            let copied = connection.copy(host, now, flow).inspect_err(|_| host.abort(now, flow));
            copied.is_ok_and(|over| !over)
        });
        while let Some(Datagram { source, destination, payload }) = stack.receive() {
            if clients.len() >= PENDING_MAX {
                clients.clear();
            }
            let server = match clients.entry((source, destination)) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(datagrams_to(destination.port())?),
            };
            // One that is refused, or finds a full queue, is lost.
            let _ = server.send(&payload);
        }
        for (&(source, destination), server) in &clients {
            while let Ok(len) = server.recv(&mut bytes) {
                let payload = bytes[..len].to_vec();
                stack.send(&Datagram { source: destination, destination: source, payload });
            }
        }

        let (mut readable, mut writable) =
            (clients.values().map(AsFd::as_fd).collect::<Vec<_>>(), Vec::new());
        for Connection { server, up, down } in connections.values() {
            readable.extend((down.bytes.is_empty() && !down.ended).then_some(server.as_fd()));
            writable.extend((!up.bytes.is_empty()).then_some(server.as_fd()));
        }
        now = pump.wait(&mut stack, &readable, &writable)?;
    }
}

fn datagrams_to(port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect((Ipv4Addr::LOCALHOST, port))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

struct Connection {
    server: TcpStream,
    up: Half,
    down: Half,
}

impl Connection {
    /// Copies in both directions. Returns whether both have ended.
    fn copy(&mut self, host: &mut Host, now: Time, flow: Flow) -> io::Result<bool> {
        let mut client = host.stream(now, flow, |_| Err(ErrorKind::WouldBlock.into()));
        let up = self.up.copy(&mut client, &mut &self.server)?;
        let down = self.down.copy(&mut &self.server, &mut client)?;
        match (up, down) {
            (true, true) => host.close(now, flow),
            // Where both ends are sent already, it fails.
            (true, false) => drop(self.server.shutdown(Shutdown::Write)),
            (false, true) => host.shutdown(now, flow),
            (false, false) => {}
        }
        Ok(up && down)
    }
}

/// One direction: bytes that were read and wait to be written.
#[derive(Default)]
struct Half {
    bytes: Vec<u8>,
    ended: bool,
}

impl Half {
    /// Copies until one side would block. Returns whether all has been copied.
    fn copy(&mut self, from: &mut impl Read, to: &mut impl Write) -> io::Result<bool> {
        let mut chunk = [0; 16 << 10];
        loop {
            let moved = match self.bytes.as_slice() {
                [] if self.ended => return Ok(true),
                [] => from.read(&mut chunk).map(|len| {
                    self.bytes.extend(&chunk[..len]);
                    self.ended = len == 0;
                }),
                bytes => to.write(bytes).map(|len| drop(self.bytes.drain(..len))),
            };
            match moved {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                moved => moved?,
            }
        }
    }
}
