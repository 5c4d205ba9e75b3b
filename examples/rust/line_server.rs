//! A server that answers each line with the line in upper case: `line_server [ADDRESS [IDLE_SECONDS]]`, by default
//! 127.0.0.1:7777 and 60 seconds. A client that for so long (or twice) sends no whole line and takes no answer is
//! disconnected. On SIGTERM the server accepts and reads no more, and ends when its clients have taken their answers.

use std::collections::HashMap;
use std::net::{Shutdown, TcpListener};
use std::ops::ControlFlow::{Break, Continue};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use megapipe::{AcceptAs, AcceptCount, Channel, Completion, Config, Event, Handle, SubmitError};

const LINE_MAX: usize = 4096;
/// With more than `HIGH` answers that wait for it a client is not read from, until `LOW` are left.
const HIGH: usize = 8;
const LOW: usize = 2;
const END_WITHIN: Duration = Duration::from_secs(10);
/// Cookies of the timers.
const IDLE: u64 = 0;
const END: u64 = 1;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let listener = TcpListener::bind(arguments.next().unwrap_or_else(|| "127.0.0.1:7777".into()))?;
    let idle = Duration::from_secs(arguments.next().map_or(Ok(60), |seconds| seconds.parse())?);
    let (signals, sender) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, sender)?;
    println!("listening on {}", listener.local_addr()?);

    let mut channel = Channel::new(Config::default())?;
    let (listener, signals) = (channel.register(listener, 0)?, channel.register(signals, 0)?);
    channel.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket)?;
    channel.read(signals)?;
    channel.timer(idle, IDLE)?;
    let mut clients: HashMap<Handle, Client> = HashMap::new();
    let mut stopping = false;
    channel.run(|channel, Completion { handle, cookie, event, .. }| {
        match event {
            Event::Accept { result: Ok(accepted), .. } => {
                let handle = channel.register(accepted.socket, 0)?;
                channel.read(handle)?;
                clients.insert(handle, Client { reading: true, active: true, ..Client::default() });
            }
            // Out of descriptors, for example: accepting pauses, and goes on by itself.
            Event::Accept { result: Err(error), more: true } => eprintln!("{error}"),
            Event::Accept { result: Err(error), more: false } => return Err(error.into()),
            Event::Timer(_) if cookie == IDLE => {
                clients.retain(|&handle, client| {
                    // Not closed: that would wait for answers which it does not take.
                    std::mem::take(&mut client.active) || channel.reset(handle).is_err()
                });
                channel.timer(idle, IDLE)?;
            }
            Event::Timer(_) => return Ok(Break(())),
            Event::Read { .. } if handle == signals => {
                stopping = true;
                channel.close(listener)?;
                channel.timer(END_WITHIN, END)?;
                for (&handle, client) in &mut clients {
                    channel.shutdown(handle, Shutdown::Write)?; // behind its answers
                    client.finishing = true;
                }
            }
            // An error of a client ends that client only.
            event => {
                let client = clients.get_mut(&handle);
                if client.is_some_and(|client| client.serve(channel, handle, event) != Ok(true)) {
                    clients.remove(&handle);
                    channel.close(handle)?;
                }
            }
        }
        Ok(if stopping && clients.is_empty() { Break(()) } else { Continue(()) })
    })
}

#[derive(Default)]
struct Client {
    /// The beginning of a line.
    partial: Vec<u8>,
    /// Answers that the kernel has not taken.
    queued: usize,
    overloaded: bool,
    reading: bool,
    active: bool,
    /// It has sent its last byte.
    ended: bool,
    /// It has been sent its last answer; what it still sends is dropped, up to its end.
    finishing: bool,
}

impl Client {
    /// False: it is to be closed.
    fn serve(&mut self, channel: &mut Channel, handle: Handle, event: Event) -> Result<bool, SubmitError> {
        match event {
            Event::Read { result: Ok(length), data, .. } => {
                (self.reading, self.ended) = (false, length == 0);
                self.partial.extend_from_slice(data.bytes());
                let whole = self.partial.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
                let lines: Vec<u8> = self.partial.drain(..whole).collect();
                if whole > 0 && !self.finishing {
                    let answers =
                        lines.split_inclusive(|&byte| byte == b'\n').flat_map(<[u8]>::to_ascii_uppercase);
                    channel.write(handle, answers.collect::<Vec<u8>>())?;
                    (self.queued, self.active) = (self.queued + 1, true);
                }
            }
            Event::Write { result: Ok(_), .. } => (self.queued, self.active) = (self.queued - 1, true),
            Event::Disconnect(Ok(())) => {}
            _ => return Ok(false),
        }
        self.overloaded = self.queued > if self.overloaded { LOW } else { HIGH };
        if !self.reading && !self.ended && !self.overloaded {
            channel.read(handle)?;
            self.reading = true;
        }
        Ok(self.partial.len() <= LINE_MAX && !(self.ended && self.queued == 0))
    }
}
