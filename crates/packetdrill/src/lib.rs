//! Runs scripts in packetdrill's language: over [`tcp::sockets`], under virtual time ([`run`]), and
//! over the kernel's own sockets and a TUN device, in real time ([`run_on_kernel`]).
//!
//! A script injects packets, makes calls, and names the packets that have to be sent, and when. The
//! kernel grades the interpreter: it passes the scripts that our stack passes, and none of them with
//! an expected packet altered.
//!
//! For tests only; no crate depends on it. Both kinds of sockets implement `system::System`: `simulated`
//! are ours, `kernel` the kernel's. `parse` reads a script, `run` carries it out, `call` makes its calls,
//! `segment` and `icmp` write and compare packets, and `alter` makes the scripts that have to fail.
//!
//! # The part of the language that is there
//! - times `0.1`, `+0.1`, `+0.1~+0.3` and `*`; `--ip_version`, `--mtu`, `--tolerance_usecs`; comments;
//!   `#ifdef`, `#else`, `#endif`;
//! - TCP packets: flags of `SFRP.EW`, sequence numbers (`...` for a SYN's), `ack`, also without the
//!   flag, `win`, and the options `mss`, `wscale`, `sackOK`, `TS val ecr`, `sack`, `nop`, `eol`;
//!   `<...>` stands for any options; in front of the flags `(ttl 4)`, `(hlim 4)`, `(tos 0x20)` or
//!   `(class 0x20)`, or `[noecn]`, `[ect0]`, `[ect1]`, `[ce]`;
//! - ICMP errors that arrive: `< icmp unreachable port_unreachable [0:0(0)]`;
//! - the calls, over several lines, too, `socket`, `bind`, `listen`, `accept`, `connect`, `read`, `readv`, `recv`
//!   and `recvmsg` (with `MSG_PEEK`), `write`, `writev`, `send`, `sendmsg`, `shutdown`, `close`, `fcntl`, `poll`, `epoll_create`, `epoll_ctl`,
//!   `epoll_wait`, and `getsockopt` and `setsockopt` of SO_ERROR, SO_KEEPALIVE, SO_REUSEADDR,
//!   SO_LINGER, TCP_NODELAY, TCP_CORK, TCP_MAXSEG, TCP_USER_TIMEOUT, TCP_NOOPT (of the host), TCP_KEEPINIT, IP_TTL, IP_TOS,
//!   IPV6_UNICAST_HOPS, IPV6_TCLASS, and `getsockopt` of
//!   TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT. A call with a time like `+0...0.3` blocks, and returns at the second
//!   one; no other call blocks, also without O_NONBLOCK;
//! - `sysctl -w` of the settings that `settings.rs` lists, FreeBSD's, which hold for what is opened
//!   when nothing else is open; `sockstat` and `tcpdrop` are skipped;
//! - code blocks with assertions, `%{ assert tcpi_snd_cwnd == 10 and tcpi_options & TCPI_OPT_SACK }%`, on the
//!   fields of TCP_INFO that `System::info` has.
//!
//! All else is [`Cause::Unsupported`], with its line.
//!
//! # What is not compared
//! - Order and padding of options.
//! - PSH of a segment without payload.
//! - Where an RST numbered 0 on the wire counts from: it is 0 in the script, too.
//! - A window that the script does not give, and the payload: only its length counts.
//! - Our timestamps count from the first that was sent, within the tolerance.
//!
//! Packets that no line expects are errors, also at the end: packetdrill does not check them there.
//!
//! # What is compared less in scripts for FreeBSD ([`Dialect`])
//! - The size of a buffer, which it rounds, and the scale that it takes for it, unless the script
//!   sets `maxsockbuf`.
//! - Windows that differ by less than a segment.
//! - Our timestamps may be later than the script's: packetdrill compares them with
//!   `--tcp_ts_tick_usecs` alone, which no script has.
//! - What is sent behind the last packet that the script names: packetdrill does not check it.
//! - A repeated SYN may come 200 ms earlier: FreeBSD adds `rexmit_slop` to its timeout.
//! - Its right edge is further to the right than what it offered: a number there is moved to the same
//!   place at our edge.
//! - Where it sends its FIN again in CLOSING, an ACK behind the FIN will do.
//! - The TTL and TOS of an RST are not compared: its RST for a port that is bound and nothing more has
//!   those of the socket.
//! - ECONNREFUSED for a prohibited packet is EHOSTUNREACH here.
//!
//! They also run with a profile that delays acknowledgements from the first one on.
#![forbid(unsafe_code)]

mod alter;
mod blocking;
mod call;
mod code;
mod freebsd;
mod icmp;
mod kernel;
mod parse;
mod poll;
mod run;
mod segment;
mod settings;
mod simulated;
mod system;

pub use alter::alterations;
pub use kernel::run_on_kernel;
pub use parse::{Dialect, Script, parse};
pub use run::run;

/// What a script failed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {cause}")]
pub struct Error {
    /// The script.
    pub file: String,
    /// Its line, from 1.
    pub line: usize,
    /// What happened there.
    pub cause: Cause,
}

/// Why a script failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// Not in the language.
    #[error("cannot read {0:?}")]
    Syntax(String),
    /// In the language, but not in this interpreter.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The stack did something else.
    #[error("expected {expected}, seen {seen}")]
    Differs {
        /// What the script has.
        expected: String,
        /// What the stack did.
        seen: String,
    },
}
