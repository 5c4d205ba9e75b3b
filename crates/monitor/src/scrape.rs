//! Serves the metrics: a few short HTTP answers, on a UNIX socket or a loopback port.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::net::SocketType;

use crate::http::{self, Question};
use crate::place::{Place, Taken};

/// Clients at one time; more wait in the backlog.
const MOST_ASKERS: usize = 16;
/// Bytes of a request.
const LONGEST_QUESTION: usize = 8192;
/// How long a client may take for all of it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The address of the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A port of a loopback address.
    Port(SocketAddr),
    /// A UNIX stream socket.
    Path(PathBuf),
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<MetricsAddress, String> {
        if text.contains('/') {
            return Ok(MetricsAddress::Path(text.into()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(MetricsAddress::Port(address)),
            Ok(_) => Err("only loopback addresses are allowed, as anybody who reaches it is answered: \
                          use 127.0.0.1:PORT, or the path of a UNIX socket"
                .into()),
            Err(_) => Err("neither a path such as /run/megapipe/metrics.sock nor an address such as \
                           127.0.0.1:9464"
                .into()),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsAddress::Port(address) => address.fmt(formatter),
            MetricsAddress::Path(path) => path.display().fmt(formatter),
        }
    }
}

enum Listening {
    Port(TcpListener),
    Path(UnixListener),
}

/// A connection of either kind.
trait Stream: Read + Write + AsFd {}
impl<S: Read + Write + AsFd> Stream for S {}

struct Asker {
    stream: Box<dyn Stream>,
    until: Instant,
    question: Vec<u8>,
    answer: Vec<u8>,
    written: usize,
}

/// The listener and its clients.
pub(crate) struct Scrape {
    listening: Listening,
    /// Of a UNIX socket; removed with this.
    _place: Option<Place>,
    askers: HashMap<u64, Asker>,
    next: u64,
}

impl Scrape {
    /// Listens.
    pub(crate) fn listen(address: &MetricsAddress) -> io::Result<Scrape> {
        let (listening, place) = match address {
            MetricsAddress::Port(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                (Listening::Port(listener), None)
            }
            MetricsAddress::Path(path) => {
                let bound = Place::bind(path, SocketType::STREAM, || UnixListener::bind(path));
                let (place, listener) = bound.map_err(|taken| match taken {
                    Taken::System(cause) => cause,
                    taken => io::Error::new(io::ErrorKind::AddrInUse, taken),
                })?;
                listener.set_nonblocking(true)?;
                (Listening::Path(listener), Some(place))
            }
        };
        Ok(Scrape { listening, _place: place, askers: HashMap::new(), next: 0 })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match &self.listening {
            Listening::Port(listener) => listener.as_fd(),
            Listening::Path(listener) => listener.as_fd(),
        }
    }

    /// Accepts one client: its number and descriptor, to be waited for. `None` if there
    /// is none, or no room: the oldest ones make room in time.
    pub(crate) fn accept(&mut self, now: Instant) -> io::Result<Option<(u64, BorrowedFd<'_>)>> {
        let accepted = match &self.listening {
            Listening::Port(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            }),
            Listening::Path(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            }),
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.askers.len() >= MOST_ASKERS
            && let Some(oldest) = self.askers.iter().min_by_key(|(_, asker)| asker.until).map(|(key, _)| *key)
        {
            self.askers.remove(&oldest);
        }
        let number = self.next;
        self.next += 1;
        let asker =
            Asker { stream, until: now + PATIENCE, question: Vec::new(), answer: Vec::new(), written: 0 };
        let asker = self.askers.entry(number).or_insert(asker);
        Ok(Some((number, asker.stream.as_fd())))
    }

    /// Serves one client; `text` is called at the end of its request. Returns its
    /// descriptor if it has to be waited for until it has room.
    pub(crate) fn go_on(&mut self, number: u64, text: impl FnOnce() -> String) -> Option<BorrowedFd<'_>> {
        let asker = self.askers.get_mut(&number)?;
        match asker.go_on(text) {
            Ok(false) => {
                let waits = !asker.answer.is_empty();
                self.askers.get(&number).filter(|_| waits).map(|asker| asker.stream.as_fd())
            }
            Ok(true) | Err(_) => {
                self.askers.remove(&number);
                None
            }
        }
    }

    /// Drops clients that take too long; returns when to call again.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Instant> {
        self.askers.retain(|_, asker| asker.until > now);
        self.askers.values().map(|asker| asker.until).min()
    }
}

impl Asker {
    /// True if all is written.
    fn go_on(&mut self, text: impl FnOnce() -> String) -> io::Result<bool> {
        let waits = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        if self.answer.is_empty() {
            let mut bytes = [0; 1024];
            self.answer = loop {
                let count = match self.stream.read(&mut bytes) {
                    Ok(count) => count,
                    Err(error) if waits(&error) => return Ok(false),
                    Err(error) => return Err(error),
                };
                self.question.extend_from_slice(&bytes[..count]);
                let ended = count == 0 || self.question.len() > LONGEST_QUESTION;
                match http::read(&self.question) {
                    _ if self.question.is_empty() => return Ok(true),
                    Question::Unfinished if ended => break http::answer(Question::Malformed, text),
                    Question::Unfinished => {}
                    question => break http::answer(question, text),
                }
            };
        }
        while self.written < self.answer.len() {
            match self.stream.write(&self.answer[self.written..]) {
                Ok(0) => return Ok(true),
                Ok(count) => self.written += count,
                Err(error) if waits(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
