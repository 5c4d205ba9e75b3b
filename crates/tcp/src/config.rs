//! What a host is told once: addresses, bounds, times.

use std::time::Duration;

use packet::{Capabilities, Prefix};

/// How a host is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// The addresses that it answers for.
    pub addresses: Vec<Prefix>,
    /// What the device below it can do.
    pub capabilities: Capabilities,
    /// Bounds on memory.
    pub limits: Limits,
    /// Times.
    pub profile: Profile,
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2
    //# Time to Live (TTL): The TTL value used to send TCP segments MUST be configurable (MUST-49).
    /// Time to live, or hop limit, of what is sent.
    pub hop_limit: u8,
    /// Where sequence numbers and timestamps begin.
    pub initial: Initial,
    /// Options of its SYNs.
    pub offers: Offers,
    /// An ICMP error that says that nobody is there, or that the way is closed, ends a connection
    /// attempt (RFC 1122, 4.2.3.9). Anybody on the way can forge one (RFC 5927).
    pub icmp_ends_attempts: bool,
}

impl Config {
    /// For these addresses on this device, with default bounds and the profile for the Internet.
    pub fn new(addresses: Vec<Prefix>, capabilities: Capabilities) -> Config {
        Config {
            addresses,
            capabilities,
            limits: Limits::default(),
            profile: Profile::wan(),
            hop_limit: 64,
            initial: Initial::Keyed,
            offers: Offers::default(),
            icmp_ends_attempts: true,
        }
    }
}

/// Bounds. Memory for records is reserved when the host is made; a full table is an answer to
/// the caller or to the peer, never growth.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections.
    pub flows: usize,
    /// Connections with unacknowledged or out-of-order data at the same time.
    pub active: usize,
    /// Half-open connections to listeners. When full, the oldest gives way.
    pub half_open: usize,
    /// Connections in TIME_WAIT. When full, the oldest ends early.
    pub time_wait: usize,
    /// Listeners.
    pub listeners: usize,
    /// Pages of 4 KB for received bytes that the program has not read.
    pub receive_pages: usize,
    /// Pages of 4 KB for bytes that the peer has not acknowledged.
    pub send_pages: usize,
    /// Unread bytes of one connection at most: the largest window that is offered.
    pub receive_buffer: u32,
    /// Unread bytes of a new connection, at least one in 32,768 of the most. They double each time the
    /// program reads a quarter of them within a round trip, while half of all pages are free.
    pub first_receive_buffer: u32,
    /// Unacknowledged and unsent bytes of one connection at most.
    pub send_buffer: u32,
    /// Unacknowledged and unsent bytes of a new connection. Beyond them it has twice the congestion
    /// window, but at most a quarter of what all connections leave free.
    pub first_send_buffer: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            flows: 4096,
            active: 4096,
            half_open: 1024,
            time_wait: 4096,
            listeners: 64,
            receive_pages: 8192,
            send_pages: 8192,
            receive_buffer: 8 << 20,
            first_receive_buffer: 256 << 10,
            send_buffer: 8 << 20,
            first_send_buffer: 256 << 10,
        }
    }
}

/// Options that a host sends with a SYN, and uses if the peer sends them, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    /// The largest segment that it takes (RFC 9293, SHLD-5). Without it peers send 536 bytes, or
    /// 1,220 over IPv6.
    pub mss: bool,
    /// Window scaling (RFC 7323, 2): else windows have at most 64 KB.
    pub scale: bool,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Timestamps (RFC 7323, 3).
    pub timestamps: bool,
    /// How many SYNs of a connection that begins here ask for explicit congestion notification (RFC 3168):
    /// 0 for none, 1 as with Linux, or more; further ones do not, for something on the way may drop those
    /// that ask. Peers that ask for it get it in any case. Routers then mark packets that they would have
    /// dropped.
    pub ecn: u8,
    /// A SYN that is repeated for this time, or a later one, has the first of these alone: something
    /// on the way may drop SYNs for their options.
    pub plain_repeat: u8,
}

impl Default for Offers {
    fn default() -> Offers {
        Offers { mss: true, scale: true, sack: true, timestamps: true, ecn: 0, plain_repeat: u8::MAX }
    }
}

/// The longest time that a timer of a connection is set to.
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// How a silent peer is probed (RFC 9293, 3.8.4). Both times are between a millisecond and a day, and
/// there is one probe at least: what is set outside has the effect of the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between unanswered probes.
    pub interval: Duration,
    /// Unanswered probes that end the connection.
    pub probes: u8,
}

impl KeepAlive {
    pub(crate) fn within_bounds(self) -> KeepAlive {
        let time = |time: Duration| time.clamp(Duration::from_millis(1), DAY);
        KeepAlive { idle: time(self.idle), interval: time(self.interval), probes: self.probes.max(1) }
    }
}

/// Fields of the IP header of what a connection sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marking {
    /// Differentiated Services field (RFC 2474), upper six bits; the lower two are those of ECN.
    pub traffic_class: u8,
    /// Time to live, or hop limit; that of the host if `None`.
    pub hop_limit: Option<u8>,
}

impl Marking {
    pub(crate) const HOST: Marking = Marking { traffic_class: 0, hop_limit: None };

    /// With ECN's bits as TCP has them, which does not use it.
    pub(crate) fn without_ecn(self) -> Marking {
        Marking { traffic_class: self.traffic_class & !3, ..self }
    }
}

/// Times of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Retransmission timeout before the first round trip was measured (RFC 6298, 2.1).
    pub rto_initial: Duration,
    /// Least time by which the retransmission timeout exceeds the smoothed round-trip time, before it is
    /// backed off.
    pub rto_min: Duration,
    /// Largest one; at least 60 s (RFC 6298, 2.5).
    pub rto_max: Duration,
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.3
    //# A TCP endpoint SHOULD implement a delayed ACK (SHLD-18), but an ACK should not be excessively delayed;
    //# in particular, the delay MUST be less than 0.5 seconds (MUST-40).
    /// How long an acknowledgement waits for data to go with (RFC 9293, MUST-40: below 0.5 s);
    /// zero acknowledges every segment.
    pub delayed_ack: Duration,
    /// Acknowledgements at the start of a connection that are not delayed: the peer is in slow
    /// start, and a delay costs it a round trip. At most 7; 0 delays from the first one on.
    pub quick_acks: u8,
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# In particular, R2 for a SYN segment MUST be set large enough to provide retransmission of the segment for
    //# at least 3 minutes (MUST-23).
    /// How long a connection attempt lasts (RFC 9293, MUST-23: at least three minutes), unless the
    /// program sets another time.
    pub attempt: Duration,
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# The value of R2 SHOULD correspond to at least 100 seconds (SHLD-11).
    /// How long unacknowledged data is sent again before the connection is given up: R2 of
    /// RFC 9293, 3.8.3, at least 100 s.
    pub give_up: Duration,
    /// Twice the maximum segment lifetime: length of TIME_WAIT.
    pub time_wait: Duration,
    /// How long a connection that the program has closed waits for the peer to close, too.
    pub fin_wait: Duration,
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
    //# This interval MUST be configurable (MUST-27) and MUST default to no less than two hours (MUST-28).
    /// Silence before the first keep-alive probe (RFC 9293, MUST-28: at least two hours by
    /// default), on connections that ask for it.
    pub keep_alive: Duration,
    /// Time between unanswered keep-alive probes.
    pub keep_alive_interval: Duration,
    /// Unanswered probes that end a connection.
    pub probes: u8,
    /// How often a SYN-ACK is repeated.
    pub syn_ack_retries: u8,
    /// How long a program may think about a SYN that it is asked about.
    pub ask: Duration,
}

impl Profile {
    /// For connections over the Internet: timeouts as Linux has them.
    pub fn wan() -> Profile {
        Profile {
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(60),
            delayed_ack: Duration::from_millis(40),
            quick_acks: 7,
            attempt: Duration::from_secs(180),
            give_up: Duration::from_secs(600),
            time_wait: Duration::from_secs(60),
            fin_wait: Duration::from_secs(60),
            keep_alive: Duration::from_secs(7200),
            keep_alive_interval: Duration::from_secs(75),
            probes: 9,
            syn_ack_retries: 5,
            ask: Duration::from_secs(10),
        }
    }

    /// For connections inside one site: round trips well below a millisecond, peers that
    /// acknowledge within a few. A SYN is repeated after 100 ms, where RFC 6298, 2.1, waits for a second.
    pub fn lan() -> Profile {
        Profile {
            rto_initial: Duration::from_millis(100),
            // For 25 s.
            syn_ack_retries: 8,
            rto_min: Duration::from_millis(5),
            delayed_ack: Duration::from_millis(1),
            give_up: Duration::from_secs(100),
            ..Profile::wan()
        }
    }
}

/// Where sequence numbers and timestamps begin.
#[derive(Clone, Copy, Debug)]
pub enum Initial {
    /// Where nobody can guess (RFC 6528, RFC 7323).
    Keyed,
    /// Here, for every connection. For tests, in which numbers shall wrap.
    Fixed {
        /// The sequence number of the SYN.
        sequence: u32,
        /// What is added to the milliseconds of the caller's clock.
        timestamp: u32,
    },
}
