//! Listeners and epoll sets that have several descriptors.

use testkit::process::descriptors_max;

use crate::support::Lab;

#[test]
fn a_set_is_the_same_by_each_of_its_names() {
    let Some(lab) = Lab::new("a_set_is_the_same_by_each_of_its_names", &["python3"]) else { return };
    lab.passes(
        "listener = listen()
# Its queue is that of this CPU.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def another(poll):
    return select.epoll.fromfd(os.dup(poll.fileno()))
def worker():
    poll = select.epoll()
    before = another(poll)
    before.register(listener, select.EPOLLIN)
    after = another(poll)
    for name in (poll, before, after):
        name.modify(listener, select.EPOLLIN)
    assert rows() == 2
    # Connections come to the queue of a set that is waited for by another name than it was changed by.
    clients = fill([poll])
    before.close()
    for _ in clients:
        poll.poll()
        listener.accept()
    clients = fill([after])
    poll.unregister(listener)
    assert not after.poll(0) and rows() == 1, 'by one name it waits no more'
    after.register(listener, select.EPOLLIN)
    assert rows() == 2
    def child():
        # Of its own sets, no number is its parent's.
        select.epoll.fromfd(after.fileno()).close()
        after_fork = wait_for(listener)
        assert rows() == 3
        after_fork.close()
        assert rows() == 2
    assert in_child(child) == 0
    poll.close()
    assert rows() == 2
    after.close()
    assert rows() == 1
assert in_child(worker) == 0
",
    );
}

#[test]
fn a_set_with_a_high_number_has_no_queue() {
    let Some(lab) = Lab::new("a_set_with_a_high_number_has_no_queue", &["python3"]) else { return };
    if descriptors_max() < 8192 {
        println!("SKIPPED a_set_with_a_high_number_has_no_queue: RLIMIT_NOFILE below 8192");
        return;
    }
    lab.passes(
        "import fcntl, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
listener = listen()
def worker():
    poll = wait_for(listener)
    assert rows() == 2
    high = select.epoll.fromfd(fcntl.fcntl(poll, fcntl.F_DUPFD, 5000))
    assert rows() == 1
    high.unregister(listener)
    client = socket.create_connection(ADDRESS)
    assert not poll.poll(0)
def named_before():
    poll = select.epoll()
    high = select.epoll.fromfd(fcntl.fcntl(poll, fcntl.F_DUPFD, 5000))
    poll.register(listener, select.EPOLLIN)
    assert rows() == 1
assert in_child(worker) == 0
assert in_child(named_before) == 0
",
    );
    assert_eq!(lab.lines("shared queue: descriptors"), 2);
}

#[test]
fn the_number_of_a_closed_queue_is_not_used_at_once() {
    // A thread may be about to accept from it.
    let name = "the_number_of_a_closed_queue_is_not_used_at_once";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    lab.passes(
        "listener = listen()
def worker():
    seen = set()
    for _ in range(100):
        before = set(high())
        poll = wait_for(listener)
        number, = set(high()) - before
        assert number not in seen
        seen.add(number)
        poll.close()
assert in_child(worker) == 0
def many():
    for _ in range(1500):
        poll = wait_for(listener)
        assert len(high()) == 5, 'numbers begin anew after the last one'
        poll.close()
assert in_child(many) == 0
",
    );
}

#[test]
fn an_option_that_cannot_be_copied_is_found_by_each_name() {
    let name = "an_option_that_cannot_be_copied_is_found_by_each_name";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    lab.passes(
        "first = socket.socket()
first.bind(ADDRESS)
SO_ATTACH_FILTER, ALL = 26, ctypes.create_string_buffer(struct.pack('HBBI', 0x06, 0, 0, 0xFFFFFFFF), 8)
first.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack('HxxxxxxQ', 1, ctypes.addressof(ALL)))
listener = first.dup()
listener.listen()
listener.setblocking(False)
def worker():
    poll = wait_for(listener)
    assert rows() == 1
assert in_child(worker) == 0
",
    );
    assert_eq!(lab.lines("shared queue: option"), 1);
}
