//! Options of a listener, which its connections inherit.

use crate::support::Lab;

#[test]
fn connections_inherit_the_same_from_each_queue() {
    let Some(lab) = Lab::new("connections_inherit_the_same_from_each_queue", &["python3"]) else { return };
    lab.passes(
        "listener = listen()
SOCKET, IP, TCP = socket.SOL_SOCKET, socket.IPPROTO_IP, socket.IPPROTO_TCP
# Its queue is that of this CPU.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
# Numbers and values that the kernel takes; an old one has not all.
OPTIONS = [(SOCKET, number, 1) for number in (5, 9, 10, 12, 29, 36, 37, 46, 60, 69)]
OPTIONS += [(SOCKET, number, 100000) for number in (7, 8)] + [(SOCKET, 18, 3)]
OPTIONS += [(IP, 1, 4), (IP, 2, 9), (IP, 10, 1), (IP, 11, 1), (IP, 15, 1), (IP, 21, 5)]
OPTIONS += [(TCP, number, 1) for number in (1, 3, 16, 27, 36, 37)]
OPTIONS += [(TCP, 2, 500), (TCP, 4, 100), (TCP, 5, 7), (TCP, 6, 4), (TCP, 7, 3), (TCP, 8, 9), (TCP, 10, 9000)]
OPTIONS += [(TCP, 12, 0), (TCP, 18, 4000), (TCP, 25, 10000), (TCP, 44, 5000), (TCP, 45, 8000), (TCP, 46, 8000)]
def value(of, level, option):
    try:
        return of.getsockopt(level, option, 32)
    except OSError:
        return None
def changed():
    for level, option, wanted in OPTIONS:
        before = value(listener, level, option)
        try:
            listener.setsockopt(level, option, wanted)
        except OSError:
            continue
        if value(listener, level, option) != before:
            yield level, option
before = list(changed())
assert len(before) > 25, before
def worker():
    poll = wait_for(listener)
    assert rows() == 2
    clients = fill([poll])
    inherited = set()
    for _ in clients:
        poll.poll()
        connection, _ = listener.accept()
        inherited.add(tuple((*option, value(connection, *option)) for option in before))
    assert len(inherited) == 1, [set(some) - set(other) for some in inherited for other in inherited]
assert in_child(worker) == 0
",
    );
}
