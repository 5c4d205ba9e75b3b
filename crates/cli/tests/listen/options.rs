//! Options of a listener, which its connections inherit.

use crate::support::Lab;

/// A listener for options of the kernel by their numbers, and values of some kinds.
const OPTIONS: &str = r"SOCKET, IP, TCP, IPV6 = 1, 0, 6, 41
NUMBERS = (1, 0, 2, 5, 8, 100, 5000, 40000, socket.htonl(1))
VALUES = [struct.pack('i', number) for number in NUMBERS]
VALUES += [struct.pack('ii', 1, 3), struct.pack('qq', 2, 0), b'reno\0', b'lo\0', bytes(32)]
ADDRESSES = {socket.AF_INET: ('127.0.0.1', 8080), socket.AF_INET6: ('::1', 8080)}
def value(of, option):
    try:
        return of.getsockopt(*option, 32)
    except OSError:
        return None
def takes(to, option, value):
    try:
        to.setsockopt(*option, value)
        return True
    except OSError:
        return False
def changed(to, option):
    before = value(to, option)
    return any(takes(to, option, wanted) and value(to, option) != before for wanted in VALUES)
def opened(family):
    listener = socket.socket(family)
    listener.setsockopt(SOCKET, socket.SO_REUSEADDR, 1)
    return listener
def begin(listener):
    listener.bind(ADDRESSES[listener.family])
    listener.listen(128)
    listener.setblocking(False)
";

#[test]
fn connections_inherit_the_same_from_each_queue() {
    let Some(lab) = Lab::with_ipv6("connections_inherit_the_same_from_each_queue", &["python3"]) else {
        return;
    };
    let script = "# Filters; what decides which socket gets a connection, when, and on which CPU; what is not inherited.
APART = [(SOCKET, number) for number in (2, 15, 26, 44, 49, 50, 51, 52, 70)] + [(TCP, 9), (TCP, 19), (IP, 4)]
APART += [(IPV6, number) for number in (1, 6, 24, 26, 50, 54, 55, 57, 59)]
# Its queue is that of this CPU.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def worker(listener, options):
    poll = wait_for(listener)
    assert rows() == 2, options
    clients = fill([poll])
    inherited = set()
    for _ in clients:
        poll.poll()
        connection, _ = listener.accept()
        inherited.add(tuple((*option, value(connection, option)) for option in options))
    assert len(inherited) == 1, [set(some) - set(other) for some in inherited for other in inherited]
for family, levels, least in (socket.AF_INET, [SOCKET, TCP, IP], 30), (socket.AF_INET6, [SOCKET, TCP, IP, IPV6], 50):
    ADDRESS, count = ADDRESSES[family], 0
    # Some undo each other, as those of time stamps.
    for part in range(8):
        listener = opened(family)
        options = [(level, number) for level in levels for number in range(part, 96, 8)]
        options = [option for option in options if option not in APART and changed(listener, option)]
        begin(listener)
        assert in_child(lambda: worker(listener, options)) == 0
        listener.close()
        count += len(options)
    assert count > least, count
";
    lab.passes(&[OPTIONS, script].concat());
}

#[test]
fn options_that_cannot_be_copied_leave_the_queue_shared() {
    let name = "options_that_cannot_be_copied_leave_the_queue_shared";
    let Some(lab) = Lab::with_ipv6(name, &["python3"]) else { return };
    let script = "HEADER = bytes([0, 0, 1, 4, 0, 0, 0, 0])
SO_LOCK_FILTER, SO_BUSY_POLL_BUDGET, IPV6_MTU = (SOCKET, 44), (SOCKET, 70), (IPV6, 24)
IPV6_PKTINFO, IPV6_DSTOPTS = (IPV6, 50), (IPV6, 59)
def worker(listener, option):
    poll = wait_for(listener)
    assert rows() == 1, option
for option, wanted in (SO_LOCK_FILTER, 1), (SO_BUSY_POLL_BUDGET, 4), (IPV6_MTU, 1400), (IPV6_PKTINFO, bytes(20)), \\
        (IPV6_DSTOPTS, HEADER):
    listener = opened(socket.AF_INET6)
    if not takes(listener, option, wanted):
        assert option == SO_BUSY_POLL_BUDGET, option
        continue
    begin(listener)
    assert in_child(lambda: worker(listener, option)) == 0
    listener.close()
";
    lab.passes(&[OPTIONS, script].concat());
    assert!((4..=5).contains(&lab.lines("shared queue: option")), "SO_BUSY_POLL_BUDGET came with Linux 5.11");
}
