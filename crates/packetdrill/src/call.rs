//! Calls of a script, and the state that it asserts.

use std::time::Duration;

use tcp::Marking;
use tcp::sockets::{Errno, How, Options};

use crate::parse::{Call, split};
use crate::run::{Run, differs};
use crate::segment::number;
use crate::system::{CLOSED, Failed, System};
use crate::{Cause, code, freebsd};

/// What a call returned.
pub(crate) struct Outcome {
    result: i64,
    errno: Option<Errno>,
}

impl Outcome {
    /// What a call that blocks has returned, if it was tried before: a `connect` has succeeded once
    /// the socket is connected.
    pub(crate) fn of_try(self, again: bool) -> Outcome {
        match self.errno {
            Some(Errno::IsConnected) if again => Outcome { result: 0, errno: None },
            _ => self,
        }
    }

    /// Whether a call that blocks would not have returned.
    pub(crate) fn would_block(&self, call: &Call) -> bool {
        match self.errno {
            Some(Errno::WouldBlock | Errno::InProgress | Errno::Already) => true,
            Some(_) => false,
            None => self.result == 0 && matches!(call.name.as_str(), "poll" | "epoll_wait"),
        }
    }
}

impl<S: System> Run<S> {
    /// Makes a call, and compares what it returns.
    pub(crate) fn call(&mut self, call: &Call) -> Result<(), Cause> {
        let outcome = self.make(call)?;
        self.compare(call, outcome)
    }

    pub(crate) fn compare(&self, call: &Call, seen: Outcome) -> Result<(), Cause> {
        // The two names of one error.
        let wanted = call.errno.as_deref().map(|name| if name == "EWOULDBLOCK" { "EAGAIN" } else { name });
        let print = |(result, errno): (i64, Option<&str>)| match errno {
            Some(errno) => format!("{}() = {result} {errno}", call.name),
            None => format!("{}() = {result}", call.name),
        };
        let seen = (seen.result, seen.errno.map(Errno::name));
        if seen == (call.result, wanted) {
            Ok(())
        } else {
            Err(differs(print((call.result, wanted)), print(seen)))
        }
    }

    pub(crate) fn make(&mut self, call: &Call) -> Result<Outcome, Cause> {
        match self.attempt(call) {
            Ok(result) => Ok(Outcome { result, errno: None }),
            Err(Failed::Errno(errno)) => Ok(Outcome { result: -1, errno: Some(errno) }),
            Err(Failed::Cause(cause)) => Err(cause),
        }
    }

    fn attempt(&mut self, call: &Call) -> Result<i64, Failed> {
        let unsupported = || unsupported(call);
        match call.name.as_str() {
            "socket" => {
                let socket = self.system.socket(self.local.is_ipv6())?;
                return Ok(self.number(call.result, socket));
            }
            "poll" => return self.poll(call),
            "epoll_create" | "epoll_create1" => return self.create_set(call),
            "epoll_ctl" => return self.change_set(call),
            "epoll_wait" => return self.wait(call),
            _ => {}
        }
        let number: i64 = call.number(0)?;
        if let ("close", Some(set)) = (call.name.as_str(), self.sets.remove(&number)) {
            self.system.close_set(set)?;
            return Ok(0);
        }
        let socket = *self.sockets.get(&number).ok_or(Errno::BadDescriptor)?;
        match call.name.as_str() {
            "bind" => self.system.bind(socket, self.local)?,
            "listen" => {
                self.system.listen(socket, call.number(1)?)?;
                self.last = Some(socket);
            }
            "accept" => {
                let accepted = self.system.accept(socket)?;
                self.last = Some(accepted);
                return Ok(self.number(call.result, accepted));
            }
            "connect" => {
                let begun = self.system.connect(socket, self.server());
                if let Err(Failed::Errno(Errno::InProgress)) = begun {
                    (self.local, self.remote) = (self.system.local_address(socket)?, self.server());
                    self.last = Some(socket);
                }
                begun?;
            }
            "read" | "recv" | "readv" | "recvmsg" => {
                let mut bytes = vec![0; call.size()?];
                let flags = call.argument(if call.name == "recvmsg" { 2 } else { 3 });
                return Ok(self.system.read(socket, &mut bytes, flags == "MSG_PEEK")? as i64);
            }
            "write" | "send" | "writev" | "sendmsg" => {
                let bytes = vec![7; call.size()?];
                return Ok(self.system.write(socket, &bytes)? as i64);
            }
            "shutdown" => {
                let how = match call.argument(1) {
                    "SHUT_RD" => How::Read,
                    "SHUT_WR" => How::Write,
                    "SHUT_RDWR" => How::Both,
                    _ => return Err(unsupported()),
                };
                self.system.shutdown(socket, how)?;
            }
            "close" => {
                self.sockets.remove(&number);
                self.system.close(socket)?;
            }
            // Whether a call blocks is in the time that it is given.
            "fcntl" => return Ok(call.result),
            "setsockopt" => {
                let options = self.system.options(socket)?;
                let options = changed(options, call).ok_or_else(unsupported)?;
                self.system.set_options(socket, options)?;
            }
            "getsockopt" => self.get_option(socket, call)?,
            _ => return Err(unsupported()),
        }
        Ok(0)
    }

    /// Gives a new socket the script's number.
    fn number(&mut self, number: i64, socket: u32) -> i64 {
        self.sockets.insert(number, socket);
        number
    }

    /// Compares an option with the value that the script expects.
    fn get_option(&mut self, socket: u32, call: &Call) -> Result<(), Failed> {
        let value = |on: bool| if on { "1" } else { "0" };
        let wanted = call.argument(3).trim_matches(['[', ']']).to_string();
        let options = self.system.options(socket)?;
        let number;
        let seen = match call.argument(2) {
            "SO_ERROR" => self.system.take_error(socket)?.map_or("0", Errno::name),
            "SO_RCVBUF" if self.dialect.is_freebsds() => return Ok(()),
            "SO_KEEPALIVE" => value(options.keep_alive),
            "TCP_NODELAY" => value(options.no_delay),
            "TCP_CORK" => value(options.cork),
            "TCP_USER_TIMEOUT" => {
                number = options.user_timeout.map_or(0, |time| time.as_millis()).to_string();
                &number
            }
            "TCP_MAXSEG" => {
                number = self.system.segment_size(socket)?.to_string();
                &number
            }
            name => {
                let profile = self.system.profile(socket)?;
                let seconds = match name {
                    "TCP_KEEPINIT" => profile.attempt.as_secs(),
                    "TCP_KEEPIDLE" => profile.keep_alive.as_secs(),
                    "TCP_KEEPINTVL" => profile.keep_alive_interval.as_secs(),
                    "TCP_KEEPCNT" => profile.probes.into(),
                    _ => return Err(unsupported(call)),
                };
                number = seconds.to_string();
                &number
            }
        };
        let name = call.argument(2);
        if wanted == seen || self.dialect.is_freebsds() && freebsd::is_same_error(&wanted, seen) {
            return Ok(());
        }
        Err(Failed::Cause(differs(format!("{name} of {wanted}"), format!("{name} of {seen}"))))
    }

    /// A condition on the connection or listener that was used last.
    pub(crate) fn check(&self, condition: &str) -> Result<(), Cause> {
        code::check(condition, &mut |field| {
            let value = self.last.map(|socket| self.system.info(socket, field));
            match (value, field) {
                (Some(Ok(Some(value))), _) => Ok(value),
                (Some(Err(Failed::Cause(cause))), _) => Err(cause),
                (Some(Err(Failed::Errno(_))) | None, "tcpi_state") => Ok(CLOSED),
                (Some(Err(Failed::Errno(_))) | None, _) => Err(differs(field, "no connection")),
                (Some(Ok(None)), _) => Err(Cause::Unsupported(field.to_string())),
            }
        })
    }
}

pub(crate) fn unsupported(call: &Call) -> Failed {
    Failed::Cause(Cause::Unsupported(format!("{}({})", call.name, call.arguments.join(", "))))
}

impl Call {
    pub(crate) fn argument(&self, at: usize) -> &str {
        self.arguments.get(at).map_or("", String::as_str)
    }

    /// Bytes of the buffer that a call on bytes has, or of all its buffers.
    fn size(&self) -> Result<usize, Failed> {
        let buffers = match self.name.as_str() {
            "sendmsg" | "recvmsg" => field(self.argument(1), "msg_iov").ok_or_else(|| unsupported(self))?,
            "writev" | "readv" => self.argument(1),
            _ => return self.number(2),
        };
        let buffers = buffers.strip_prefix('[').and_then(|buffers| buffers.strip_suffix(']'));
        let size =
            |buffer: &str| buffer.trim_end_matches('}').rsplit(',').next()?.trim().parse::<usize>().ok();
        let sizes = buffers.and_then(|buffers| split(buffers).into_iter().map(size).sum::<Option<usize>>());
        sizes.ok_or_else(|| unsupported(self))
    }

    pub(crate) fn number<N: std::str::FromStr>(&self, at: usize) -> Result<N, Failed> {
        self.argument(at).parse().map_err(|_| unsupported(self))
    }
}

/// The value of a field of `{name=value, ...}`, or of `{name(count)=value, ...}`.
pub(crate) fn field<'a>(structure: &'a str, name: &str) -> Option<&'a str> {
    let fields = split(structure.trim_start_matches('{').trim_end_matches('}'));
    let pairs = fields.into_iter().filter_map(|field| field.split_once('='));
    pairs
        .into_iter()
        .find(|(known, _)| known.split('(').next().map(str::trim) == Some(name))
        .map(|(_, value)| value.trim())
}

/// Options after a `setsockopt`. `None` if it sets another one.
fn changed(options: Options, call: &Call) -> Option<Options> {
    let value = call.argument(3);
    let on = value.trim_matches(['[', ']']) == "1";
    Some(match call.argument(2) {
        // Nothing here keeps an address from being used again.
        "SO_REUSEADDR" => options,
        "SO_KEEPALIVE" => Options { keep_alive: on, ..options },
        "TCP_NODELAY" => Options { no_delay: on, ..options },
        "TCP_CORK" => Options { cork: on, ..options },
        "TCP_MAXSEG" => {
            let most: u32 = value.trim_matches(['[', ']']).parse().ok()?;
            // What does not fit is too large in any case.
            let most = u16::try_from(most).unwrap_or(u16::MAX);
            Options { max_segment: Some(most).filter(|&most| most > 0), ..options }
        }
        "TCP_USER_TIMEOUT" => {
            let millis = value.trim_matches(['[', ']']).parse().ok()?;
            let user_timeout = Some(Duration::from_millis(millis)).filter(|time| !time.is_zero());
            Options { user_timeout, ..options }
        }
        // Of the host: see `Settings`.
        "TCP_NOOPT" => options,
        // FreeBSD's.
        "TCP_KEEPINIT" => {
            let seconds = value.trim_matches(['[', ']']).parse().ok()?;
            Options { connect_within: Some(Duration::from_secs(seconds)), ..options }
        }
        "IP_TTL" | "IPV6_UNICAST_HOPS" => {
            let hop_limit = Some(number(value.trim_matches(['[', ']']))?);
            Options { marking: Marking { hop_limit, ..options.marking }, ..options }
        }
        "IP_TOS" | "IPV6_TCLASS" => {
            let traffic_class = class(value.trim_matches(['[', ']']))?;
            Options { marking: Marking { traffic_class, ..options.marking }, ..options }
        }
        "SO_LINGER" => {
            let seconds = field(value, "linger")?.parse().ok()?;
            let linger = (field(value, "onoff")? != "0").then(|| Duration::from_secs(seconds));
            Options { linger, ..options }
        }
        _ => return None,
    })
}

/// A type of service: a number, or the name of a class selector (RFC 2474, 4.2.2).
fn class(text: &str) -> Option<u8> {
    match text.strip_prefix("IPTOS_DSCP_CS") {
        Some(selector) => selector.parse::<u8>().ok().filter(|&selector| selector < 8).map(|cs| cs << 5),
        None => number(text),
    }
}
