//! The options of a listener that its sibling gets, and those that cannot be copied.

use std::ffi::c_int;

// From asm-generic/socket.h, linux/tcp.h, linux/in.h and linux/in6.h.
const SO_NO_CHECK: c_int = 11;
const SO_WIFI_STATUS: c_int = 41;
const SO_NOFCS: c_int = 43;
const SO_LOCK_FILTER: c_int = 44;
const SO_SELECT_ERR_QUEUE: c_int = 45;
const SO_TXTIME: c_int = 61;
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;
const SO_PREFER_BUSY_POLL: c_int = 69;
const SO_BUSY_POLL_BUDGET: c_int = 70;
const SO_TXREHASH: c_int = 74;
const SO_RCVMARK: c_int = 75;
const SO_RCVPRIORITY: c_int = 82;
const TCP_TX_DELAY: c_int = 37;
const TCP_AO: [c_int; 3] = [38, 39, 40];
const TCP_RTO_MAX_MS: c_int = 44;
const TCP_RTO_MIN_US: c_int = 45;
const TCP_DELACK_MAX_US: c_int = 46;
const IP_RECVERR_RFC4884: c_int = 26;
const IP_LOCAL_PORT_RANGE: c_int = 51;
const IPV6_MULTICAST_ALL: c_int = 29;
const IPV6_ROUTER_ALERT_ISOLATE: c_int = 30;
const IPV6_RECVERR_RFC4884: c_int = 31;

/// Options that a connection inherits from the socket that accepted it, and those that bind(2)
/// needs. SO_RCVBUF and SO_SNDBUF are separate: the kernel returns other values than were set.
pub(super) const COPIED: &[(c_int, &[c_int])] = &[
    (
        libc::SOL_SOCKET,
        &[
            libc::SO_DEBUG,
            libc::SO_REUSEADDR,
            libc::SO_KEEPALIVE,
            libc::SO_OOBINLINE,
            libc::SO_DONTROUTE,
            libc::SO_BROADCAST,
            SO_NO_CHECK,
            libc::SO_PRIORITY,
            libc::SO_MARK,
            libc::SO_LINGER,
            libc::SO_RCVLOWAT,
            libc::SO_RCVTIMEO,
            libc::SO_SNDTIMEO,
            // The last of these decides how all timestamps are reported, and SO_TIMESTAMPING
            // reports both of its kind.
            libc::SO_TIMESTAMP,
            libc::SO_TIMESTAMPNS,
            SO_TIMESTAMP_NEW,
            SO_TIMESTAMPNS_NEW,
            libc::SO_TIMESTAMPING,
            SO_TIMESTAMPING_NEW,
            libc::SO_RXQ_OVFL,
            SO_WIFI_STATUS,
            libc::SO_PEEK_OFF,
            SO_NOFCS,
            SO_SELECT_ERR_QUEUE,
            libc::SO_BUSY_POLL,
            SO_PREFER_BUSY_POLL,
            libc::SO_ZEROCOPY,
            SO_TXTIME,
            SO_TXREHASH,
            SO_RCVMARK,
            SO_RCVPRIORITY,
            libc::SO_MAX_PACING_RATE,
            libc::SO_BINDTODEVICE,
        ],
    ),
    (
        libc::IPPROTO_TCP,
        &[
            libc::TCP_NODELAY,
            libc::TCP_CORK,
            libc::TCP_MAXSEG,
            libc::TCP_KEEPIDLE,
            libc::TCP_KEEPINTVL,
            libc::TCP_KEEPCNT,
            libc::TCP_SYNCNT,
            libc::TCP_LINGER2,
            libc::TCP_DEFER_ACCEPT,
            libc::TCP_WINDOW_CLAMP,
            libc::TCP_CONGESTION,
            libc::TCP_USER_TIMEOUT,
            libc::TCP_FASTOPEN,
            libc::TCP_FASTOPEN_CONNECT,
            libc::TCP_FASTOPEN_KEY,
            libc::TCP_FASTOPEN_NO_COOKIE,
            libc::TCP_SAVE_SYN,
            libc::TCP_NOTSENT_LOWAT,
            libc::TCP_THIN_LINEAR_TIMEOUTS,
            libc::TCP_INQ,
            TCP_TX_DELAY,
            TCP_RTO_MAX_MS,
            TCP_RTO_MIN_US,
            TCP_DELACK_MAX_US,
        ],
    ),
    (
        libc::IPPROTO_IP,
        &[
            libc::IP_TOS,
            libc::IP_TTL,
            libc::IP_RECVOPTS,
            libc::IP_RETOPTS,
            libc::IP_PKTINFO,
            libc::IP_MTU_DISCOVER,
            libc::IP_RECVERR,
            IP_RECVERR_RFC4884,
            libc::IP_RECVTTL,
            libc::IP_RECVTOS,
            libc::IP_FREEBIND,
            libc::IP_PASSSEC,
            libc::IP_TRANSPARENT,
            libc::IP_RECVORIGDSTADDR,
            libc::IP_MINTTL,
            libc::IP_CHECKSUM,
            libc::IP_BIND_ADDRESS_NO_PORT,
            libc::IP_MULTICAST_LOOP,
            libc::IP_MULTICAST_ALL,
            libc::IP_UNICAST_IF,
            IP_LOCAL_PORT_RANGE,
        ],
    ),
    (
        libc::IPPROTO_IPV6,
        &[
            libc::IPV6_V6ONLY,
            libc::IPV6_TCLASS,
            libc::IPV6_RECVTCLASS,
            libc::IPV6_FLOWINFO,
            libc::IPV6_FLOWINFO_SEND,
            libc::IPV6_AUTOFLOWLABEL,
            libc::IPV6_UNICAST_HOPS,
            libc::IPV6_MINHOPCOUNT,
            libc::IPV6_RECVHOPLIMIT,
            libc::IPV6_2292HOPLIMIT,
            libc::IPV6_RECVPKTINFO,
            libc::IPV6_2292PKTINFO,
            libc::IPV6_RECVHOPOPTS,
            libc::IPV6_2292HOPOPTS,
            libc::IPV6_RECVRTHDR,
            libc::IPV6_2292RTHDR,
            libc::IPV6_RECVDSTOPTS,
            libc::IPV6_2292DSTOPTS,
            libc::IPV6_RECVPATHMTU,
            libc::IPV6_RECVFRAGSIZE,
            libc::IPV6_RECVORIGDSTADDR,
            libc::IPV6_RECVERR,
            IPV6_RECVERR_RFC4884,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_DONTFRAG,
            libc::IPV6_ADDR_PREFERENCES,
            libc::IPV6_MULTICAST_LOOP,
            IPV6_MULTICAST_ALL,
            IPV6_ROUTER_ALERT_ISOLATE,
            libc::IPV6_UNICAST_IF,
            libc::IPV6_FREEBIND,
            libc::IPV6_TRANSPARENT,
        ],
    ),
];

/// Options that cannot be copied: keys and programs, and options that the kernel does not return,
/// or that may have any length.
pub(crate) fn is_unique(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_ATTACH_FILTER
                | libc::SO_ATTACH_BPF
                | libc::SO_ATTACH_REUSEPORT_CBPF
                | libc::SO_ATTACH_REUSEPORT_EBPF
                | SO_LOCK_FILTER
                | SO_BUSY_POLL_BUDGET
        ),
        libc::IPPROTO_TCP => {
            matches!(name, libc::TCP_MD5SIG | libc::TCP_MD5SIG_EXT | libc::TCP_REPAIR)
                || TCP_AO.contains(&name)
        }
        libc::IPPROTO_IP => matches!(name, libc::IP_IPSEC_POLICY | libc::IP_XFRM_POLICY),
        libc::IPPROTO_IPV6 => matches!(
            name,
            libc::IPV6_2292PKTOPTIONS
                | libc::IPV6_MTU
                | libc::IPV6_FLOWLABEL_MGR
                | libc::IPV6_IPSEC_POLICY
                | libc::IPV6_XFRM_POLICY
                | libc::IPV6_PKTINFO
                | libc::IPV6_HOPOPTS
                | libc::IPV6_RTHDRDSTOPTS
                | libc::IPV6_RTHDR
                | libc::IPV6_DSTOPTS
        ),
        _ => false,
    }
}
