//! Calls of a script, and the state that it asserts.

use std::time::Duration;

use tcp::State;
use tcp::sockets::{Errno, How, Options, Socket};

use crate::parse::Call;
use crate::run::{Run, differs};
use crate::{Cause, freebsd};

/// What a call returned, or that it cannot be made here.
enum Failed {
    Errno(Errno),
    Cause(Cause),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Failed {
        Failed::Errno(errno)
    }
}

impl Run {
    /// Makes a call, and compares what it returns.
    pub(crate) fn call(&mut self, call: &Call) -> Result<(), Cause> {
        let seen = match self.make(call) {
            Ok(result) => (result, None),
            Err(Failed::Errno(errno)) => (-1, Some(errno.name())),
            Err(Failed::Cause(cause)) => return Err(cause),
        };
        // The two names of one error.
        let wanted = call.errno.as_deref().map(|name| if name == "EWOULDBLOCK" { "EAGAIN" } else { name });
        let print = |(result, errno): (i64, Option<&str>)| match errno {
            Some(errno) => format!("{}() = {result} {errno}", call.name),
            None => format!("{}() = {result}", call.name),
        };
        if seen == (call.result, wanted) {
            Ok(())
        } else {
            Err(differs(print((call.result, wanted)), print(seen)))
        }
    }

    fn make(&mut self, call: &Call) -> Result<i64, Failed> {
        let unsupported =
            || Failed::Cause(Cause::Unsupported(format!("{}({})", call.name, call.arguments.join(", "))));
        let argument = |at: usize| call.arguments.get(at).map_or("", String::as_str);
        let now = self.now;
        if call.name == "socket" {
            let socket = self.sockets.socket()?;
            return Ok(self.number(call.result, socket));
        }
        let number: i64 = argument(0).parse().map_err(|_| unsupported())?;
        let socket = *self.numbers.get(&number).ok_or(Errno::BadDescriptor)?;
        let count = || argument(2).parse::<usize>().map_err(|_| unsupported());
        match call.name.as_str() {
            "bind" => self.sockets.bind(socket, self.local)?,
            "listen" => {
                self.sockets.listen(socket, argument(1).parse().map_err(|_| unsupported())?)?;
                self.last = Some(socket);
            }
            "accept" => {
                let accepted = self.sockets.accept(now, socket)?;
                self.last = Some(accepted);
                return Ok(self.number(call.result, accepted));
            }
            "connect" => {
                let begun = self.sockets.connect(now, socket, self.server());
                if begun == Err(Errno::InProgress) {
                    (self.local, self.remote) = (self.sockets.local_address(socket)?, self.server());
                    self.last = Some(socket);
                }
                begun?;
            }
            "read" | "recv" => {
                let mut bytes = vec![0; count()?];
                if argument(3) == "MSG_PEEK" && self.sockets.unread(socket)? > 0 {
                    return Ok(self.sockets.unread(socket)?.min(bytes.len()) as i64);
                }
                return Ok(self.sockets.read(now, socket, &mut bytes)? as i64);
            }
            "write" | "send" => return Ok(self.sockets.write(now, socket, &vec![7; count()?])? as i64),
            "shutdown" => {
                let how = match argument(1) {
                    "SHUT_RD" => How::Read,
                    "SHUT_WR" => How::Write,
                    "SHUT_RDWR" => How::Both,
                    _ => return Err(unsupported()),
                };
                self.sockets.shutdown(now, socket, how)?;
            }
            "close" => {
                self.numbers.remove(&number);
                self.sockets.close(now, socket)?;
            }
            // All calls are non-blocking.
            "fcntl" => return Ok(call.result),
            "setsockopt" => {
                let options = self.sockets.options(socket)?;
                let options = changed(options, call).ok_or_else(unsupported)?;
                self.sockets.set_options(now, socket, options)?;
            }
            "getsockopt" => self.get_option(socket, call).unwrap_or_else(|| Err(unsupported()))?,
            _ => return Err(unsupported()),
        }
        Ok(0)
    }

    /// Gives a new socket the script's number.
    fn number(&mut self, number: i64, socket: Socket) -> i64 {
        self.numbers.insert(number, socket);
        number
    }

    /// Compares an option with the value that the script expects. `None` if it has none.
    fn get_option(&mut self, socket: Socket, call: &Call) -> Option<Result<(), Failed>> {
        let value = |on: bool| if on { "1" } else { "0" };
        let wanted = call.arguments.get(3)?.trim_matches(['[', ']']).to_string();
        let options = match self.sockets.options(socket) {
            Ok(options) => options,
            Err(errno) => return Some(Err(errno.into())),
        };
        let seen = match call.arguments.get(2)?.as_str() {
            "SO_ERROR" => match self.sockets.take_error(socket) {
                Ok(error) => error.map_or("0", Errno::name),
                Err(errno) => return Some(Err(errno.into())),
            },
            "SO_RCVBUF" if self.foreign => return Some(Ok(())),
            "SO_KEEPALIVE" => value(options.keep_alive),
            "TCP_NODELAY" => value(options.no_delay),
            _ => return None,
        };
        let name = &call.arguments[2];
        let same = wanted == seen || self.foreign && freebsd::is_same_error(&wanted, seen);
        let differ = || Failed::Cause(differs(format!("{name} of {wanted}"), format!("{name} of {seen}")));
        Some(if same { Ok(()) } else { Err(differ()) })
    }

    /// The state of the connection or listener that was used last.
    pub(crate) fn state(&self, wanted: &str) -> Result<(), Cause> {
        let info = self.last.map_or(Err(Errno::BadDescriptor), |socket| self.sockets.info(socket));
        if info == Err(Errno::NotConnected) && wanted == "LISTEN" {
            return Ok(());
        }
        let seen = match info.map_or(State::Closed, |info| info.state) {
            State::SynSent => "SYN_SENT",
            State::SynReceived => "SYN_RECEIVED",
            State::Established => "ESTABLISHED",
            State::FinWait1 => "FIN_WAIT_1",
            State::FinWait2 => "FIN_WAIT_2",
            State::Closing => "CLOSING",
            State::TimeWait => "TIME_WAIT",
            State::CloseWait => "CLOSE_WAIT",
            State::LastAck => "LAST_ACK",
            State::Closed => "CLOSED",
        };
        if wanted == seen { Ok(()) } else { Err(differs(wanted, seen)) }
    }
}

/// Options after a `setsockopt`. `None` if it sets another one.
fn changed(options: Options, call: &Call) -> Option<Options> {
    let name = call.arguments.get(2)?.as_str();
    let value = call.arguments.get(3)?;
    let on = value.trim_matches(['[', ']']) == "1";
    Some(match name {
        // Nothing here keeps an address from being used again.
        "SO_REUSEADDR" => options,
        "SO_KEEPALIVE" => Options { keep_alive: on, ..options },
        "TCP_NODELAY" => Options { no_delay: on, ..options },
        "SO_LINGER" => {
            let field = |text: &str| text.trim_matches(['{', '}']).split_once('=')?.1.parse::<u64>().ok();
            let seconds = field(call.arguments.get(4)?)?;
            let linger = (field(value)? != 0).then(|| Duration::from_secs(seconds));
            Options { linger, ..options }
        }
        _ => return None,
    })
}
