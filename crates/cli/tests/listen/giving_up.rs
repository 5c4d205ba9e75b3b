//! Workers whose listener cannot have queues of its own, or cannot keep them.

use crate::support::Lab;

#[test]
fn listeners_of_one_address_are_left_to_the_program() {
    let name = "listeners_of_one_address_are_left_to_the_program";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    lab.passes(
        "first = listen(group=True)
sets = [wait_for(first), wait_for(first)]
assert rows() == 3, 'each set has a queue'
queued = fill(sets)
second = listen(group=True)
assert rows() == 2, 'none has'
sets += [wait_for(second), wait_for(second)]
assert rows() == 2
clients = [socket.create_connection(ADDRESS) for _ in range(64)]
def accepted(listener):
    count = 0
    try:
        while True:
            listener.accept()[0].close()
            count += 1
    except BlockingIOError:
        return count
counts = [accepted(first), accepted(second)]
assert sum(counts) == len(queued) + 64 and min(counts) > 0, (counts, len(queued))
",
    );
    assert_eq!(lab.lines("shared queue: group"), 2);
}

#[test]
fn what_fails_for_good_is_tried_once() {
    let Some(lab) = Lab::new("what_fails_for_good_is_tried_once", &["python3"]) else { return };
    lab.passes(
        "listener = listen()
def worker():
    first = wait_for(listener)
    assert rows() == 2
    # By the C library itself: nothing is prepared for another user.
    assert ctypes.CDLL('libc.so.6').setuid(65534) == 0
    others = [wait_for(listener) for _ in range(5)]
    assert rows() == 1, 'the first set has none, either'
    assert is_answered(listener, first) and is_answered(listener, others[0])
assert in_child(worker) == 0
",
    );
    assert_eq!(lab.lines("shared queue: user"), 1);
}

#[test]
fn a_listener_that_blocks_may_have_queues_later() {
    let name = "a_listener_that_blocks_may_have_queues_later";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    lab.passes(
        "listener = listen()
def worker():
    listener.setblocking(True)
    for _ in range(5):
        wait_for(listener).close()
    assert rows() == 1
assert in_child(worker) == 0
def waits_by_turns():
    poll = select.epoll()
    for _ in range(5):
        poll.register(listener, select.EPOLLIN | select.EPOLLONESHOT)
        poll.unregister(listener)
    assert rows() == 1
    poll.register(listener, select.EPOLLIN)
    assert rows() == 2
    assert is_answered(listener, poll)
listener.setblocking(False)
assert in_child(waits_by_turns) == 0
listener.setblocking(True)
assert in_child(lambda: listener.setblocking(False)) == 0
def waits_as_another_has_set_it():
    poll = wait_for(listener)
    assert rows() == 2
assert in_child(waits_as_another_has_set_it) == 0
",
    );
    assert_eq!((lab.lines("shared queue: waits"), lab.queues()), (2, 2));
}

#[test]
fn a_listener_that_is_polled_has_no_queues() {
    let Some(lab) = Lab::new("a_listener_that_is_polled_has_no_queues", &["python3"]) else { return };
    lab.passes(
        "listener = listen()
# Its queue is that of this CPU.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def worker(accept):
    poll = wait_for(listener)
    assert rows() == 2
    for _ in fill([poll]):
        accept()
    assert queues() == [0]
def polled():
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    assert poll.poll(60000)
    listener.accept()
def selected():
    assert select.select([listener], [], [], 60)[0]
    listener.accept()
def with_a_timeout():
    # By poll(2), and without blocking.
    listener.settimeout(60)
    listener.accept()
assert in_child(lambda: worker(polled)) == 0
assert in_child(lambda: worker(selected)) == 0
assert in_child(lambda: worker(with_a_timeout)) == 0
",
    );
    assert_eq!((lab.lines("shared queue: waits"), lab.queues()), (3, 3));
}

#[test]
fn a_child_has_nothing_of_what_another_thread_began() {
    let name = "a_child_has_nothing_of_what_another_thread_began";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    lab.passes(
        "listener = listen()
sets = [wait_for(listener), wait_for(listener)]
ends = threading.Event()
def come_and_go():
    while not ends.is_set():
        wait_for(listener).close()
threads = [threading.Thread(target=come_and_go) for _ in range(2)]
[thread.start() for thread in threads]
def child():
    # The steering program and its maps; no sockets.
    sockets = [fd for fd in high() if os.readlink(f'/proc/self/fd/{fd}').startswith('socket:')]
    assert len(high()) == 4 and not sockets, (high(), sockets)
    poll = wait_for(listener)
    assert len(high()) == 5
try:
    for turn in range(40):
        assert in_child(child) == 0, turn
finally:
    ends.set()
    [thread.join() for thread in threads]
",
    );
}

#[test]
fn a_fork_runs_handlers_that_change_listeners() {
    let name = "a_fork_runs_handlers_that_change_listeners";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    lab.passes(
        "listener = listen()
sets = [wait_for(listener), wait_for(listener)]
ran = []
def changes():
    # The child has no alarm of its own yet.
    signal.alarm(60)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setblocking(False)
    os.close(os.dup(listener.fileno()))
    ran.append(listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT))
def closes():
    changes()
    sets.pop().close()
handlers = [ctypes.CFUNCTYPE(None)(run) for run in (changes, changes, closes)]
# pthread_atfork(3) is in the static part of the C library.
assert ctypes.CDLL(None)['__register_atfork'](*handlers, None) == 0
def child():
    # The steering program and its maps; no sockets.
    assert (ran, len(sets), len(high())) == ([0, 0], 1, 4)
    poll = wait_for(listener)
    assert len(high()) == 5
assert in_child(child) == 0
assert (ran, rows()) == ([0, 0], 3), 'the child closed what is its own alone'
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2][-1:])
# Connections still come to the second one.
fill(sets[1:])
",
    );
}

#[test]
fn numbers_that_the_program_takes_are_its_own() {
    let Some(lab) = Lab::new("numbers_that_the_program_takes_are_its_own", &["python3"]) else { return };
    lab.passes(
        "listener = listen()
def take(numbers):
    for number in numbers:
        os.dup2(0, number)
    assert rows() == 1, 'none has a queue'
    for number in numbers:
        os.close(number)
def worker(order):
    poll = wait_for(listener)
    assert rows() == 2 and len(high()) == 5
    take(order(high()))
    assert not high()
    assert is_answered(listener, poll)
assert in_child(lambda: worker(sorted)) == 0
assert in_child(lambda: worker(lambda numbers: numbers[::-1])) == 0
assert in_child(lambda: worker(lambda numbers: numbers[:1])) == 0
",
    );
}

#[test]
fn a_process_that_restricts_itself_makes_no_calls_of_ours() {
    let name = "a_process_that_restricts_itself_makes_no_calls_of_ours";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    lab.passes(
        "listener = listen()
def restricted(then):
    poll, other = wait_for(listener), wait_for(listener)
    assert rows() == 3
    numbers = high()
    restrict(ctypes.CDLL(None), dict.fromkeys(NUMBERS, KILL))
    then(poll, other, numbers)
def goes_on(poll, other, numbers):
    assert rows() == 1
    poll.unregister(listener)
    poll.poll(0)
    poll.register(listener, select.EPOLLIN)
    assert is_answered(listener, poll) and is_answered(listener, other)
    [os.dup2(0, number) for number in numbers]
    other.close()
    listener.close()
def calls(poll, other, numbers):
    ctypes.CDLL(None).shutdown(listener.fileno(), 0)
assert in_child(lambda: restricted(goes_on)) == 0
assert in_child(lambda: restricted(calls)) == -signal.SIGSYS, 'the filter works'
",
    );
    assert_eq!(lab.lines("shared queue: confined"), 2);
}

#[test]
fn a_worker_that_may_not_use_maps_makes_no_queue() {
    // As before Linux 5.19 without CAP_BPF; a queue that listened for a moment would reset its connections.
    let name = "a_worker_that_may_not_use_maps_makes_no_queue";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    lab.passes(
        "listener = listen()
def worker():
    restrict(ctypes.CDLL('libc.so.6'), {'bpf': PERMISSION, 'listen': KILL})
    poll = wait_for(listener)
    assert rows() == 1
    assert is_answered(listener, poll)
assert in_child(worker) == 0
",
    );
    assert_eq!(lab.lines("shared queue: bpf"), 1);
}

#[test]
fn a_listener_whose_accepts_are_not_seen_has_no_queues() {
    let Some(lab) = Lab::new("a_listener_whose_accepts_are_not_seen_has_no_queues", &["python3"]) else {
        return;
    };
    lab.passes(
        "listener = listen()
# Its queue is that of this CPU.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
# Of the shared queue alone.
accept = ctypes.CDLL('libc.so.6').accept
def worker():
    poll = wait_for(listener)
    clients = fill([poll])
    accepted = 0
    while accepted < len(clients):
        assert poll.poll(60)
        accepted += accept(listener.fileno(), None, None) >= 0
    assert rows() == 1
def patient():
    poll = wait_for(listener)
    clients = fill([poll])
    for _ in clients:
        for _ in range(50):
            assert poll.poll(60)
        listener.accept()
    assert rows() == 2
def idle():
    poll = wait_for(listener)
    fill([poll])
    reported = [len(poll.poll(0)) for _ in range(70)]
    assert reported == [1] * 70, 'once a wait, also in the one that gives the queue up'
    assert rows() == 1
assert in_child(worker) == 0
assert in_child(patient) == 0
assert in_child(idle) == 0
",
    );
    assert_eq!(lab.lines("shared queue: accepts"), 2);
}
