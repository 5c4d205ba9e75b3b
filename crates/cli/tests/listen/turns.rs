//! From which queue a worker accepts, and with how many system calls.

use std::fs;

use crate::support::{Lab, python};
use crate::traces::traced;

/// A worker is stopped in its wait while clients connect. It then accepts at most so many
/// of them after each wait.
fn accepts_of_one_stopped(clients: usize, each: usize) -> String {
    format!(
        "listener = listen()
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
ready, told = os.pipe()
def worker():
    poll = wait_for(listener)
    assert rows() == 2
    ports = []
    while len(ports) < {clients}:
        # Stopped in the first of these waits.
        poll.poll()
        try:
            for _ in range({each}):
                connection, (_, port) = listener.accept()
                ports.append(port)
                connection.close()
        except BlockingIOError:
            pass
    os.write(told, struct.pack('{clients}H', *ports))
child = os.fork()
if child == 0:
    worker()
    os._exit(0)
while rows() < 2 or not sleeps(child):
    pass
os.kill(child, signal.SIGSTOP)
clients = [socket.create_connection(ADDRESS) for _ in range({clients})]
os.kill(child, signal.SIGCONT)
accepted = struct.unpack('{clients}H', os.read(ready, 2 * {clients}))
assert os.waitpid(child, 0)[1] == 0
# So many may be behind; the others came by the shared queue.
own, shared = [[client.getsockname()[1] for client in part] for part in (clients[:8], clients[8:])]
assert set(accepted) == {{*own, *shared}}
turns = [port in shared for port in accepted]
assert not turns[0] and sum(turns[:8]) == 1, turns
"
    )
}

#[test]
fn neither_queue_starves() {
    let Some(lab) = Lab::new("neither_queue_starves", &["python3"]) else { return };
    lab.passes(&accepts_of_one_stopped(11, 1));
}

#[test]
fn neither_queue_starves_between_two_waits() {
    let Some(lab) = Lab::new("neither_queue_starves_between_two_waits", &["python3"]) else { return };
    let script = accepts_of_one_stopped(100, 100);
    lab.passes(&(script + "assert not all(turns[8:16]), turns\n"));
}

#[test]
fn what_edges_report_is_accepted_at_once() {
    let Some(lab) = Lab::new("what_edges_report_is_accepted_at_once", &["python3"]) else { return };
    lab.passes(
        "listener = listen()
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
ready, go = os.pipe()
def worker():
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN | select.EPOLLET)
    assert rows() == 2
    for turn in range(50):
        # Own and shared queue, by how long this has been away from its wait.
        clients = []
        for _ in range(1 + turn % 12):
            clients.append(connect())
        while clients:
            assert poll.poll(60), (turn, len(clients))
            try:
                while True:
                    listener.accept()[0].close()
                    clients.pop().close()
            except BlockingIOError:
                pass
assert in_child(worker) == 0
",
    );
    assert_eq!(lab.queues(), 1);
}

#[test]
fn a_sibling_gets_nothing_before_the_first_wait() {
    let Some(lab) = Lab::new("a_sibling_gets_nothing_before_the_first_wait", &["python3"]) else { return };
    lab.passes(
        "listener = listen()
# Of the shared queue alone.
accept = ctypes.CDLL('libc.so.6').accept
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def worker():
    for turn in range(50):
        poll = wait_for(listener)
        client = connect()
        assert rows() == 2
        accepted = accept(listener.fileno(), None, None)
        assert accepted >= 0, turn
        os.close(accepted)
        poll.close()
assert in_child(worker) == 0
",
    );
}

#[test]
fn no_error_of_a_sibling_is_reported() {
    let Some(lab) = Lab::new("no_error_of_a_sibling_is_reported", &["python3"]) else { return };
    lab.passes(
        "listener = listen()
# As another thread may have closed it a moment ago, and the number may have another file by now.
libc = ctypes.CDLL('libc.so.6')
def worker(lose):
    poll = wait_for(listener)
    [sibling] = [fd for fd in high() if os.readlink(f'/proc/self/fd/{fd}').startswith('socket:')]
    # Of the thread that waits, and of one that does not.
    for _ in range(2):
        assert lose(sibling) >= 0
        try:
            listener.accept()
            assert False, 'nobody has connected'
        except BlockingIOError:
            pass
        poll.poll(0)
assert in_child(lambda: worker(lambda sibling: libc.dup2(0, sibling))) == 0
assert in_child(lambda: worker(lambda sibling: libc.dup2(0, sibling) + libc.close(sibling))) == 0
",
    );
}

/// It awaits the answer before it accepts again.
#[test]
fn a_worker_that_calls_its_own_server_is_answered_by_others() {
    let name = "a_worker_that_calls_its_own_server_is_answered_by_others";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    lab.passes(
        "listener = listen()
# Of the shared queue alone.
accept = ctypes.CDLL('libc.so.6').accept
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def fast_open():
    client = socket.socket()
    client.sendto(b'.', socket.MSG_FASTOPEN, ADDRESS)
    return client
def fast_open_by_message():
    client = socket.socket()
    client.sendmsg([b'.'], [], socket.MSG_FASTOPEN, ADDRESS)
    return client
def worker():
    poll = wait_for(listener)
    for call in (lambda: socket.create_connection(ADDRESS), fast_open, fast_open_by_message):
        for turn in range(20):
            poll.poll(0)
            client = call()
            accepted = accept(listener.fileno(), None, None)
            assert accepted >= 0, turn
            os.close(accepted)
    # Awake again.
    fill([poll])
assert in_child(worker) == 0
",
    );
    assert_eq!(lab.queues(), 1);
}

/// A proxy may have the same port on both sides.
#[test]
fn a_worker_that_connects_elsewhere_keeps_its_queue() {
    let name = "a_worker_that_connects_elsewhere_keeps_its_queue";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    lab.passes(
        "libc = ctypes.CDLL('libc.so.6')
address = struct.pack('=H', socket.AF_INET) + struct.pack('!H', 8080) + socket.inet_aton('127.0.0.1') + bytes(8)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def connects(host, kind=socket.SOCK_STREAM):
    def call():
        with socket.socket(type=kind) as client:
            client.setblocking(False)
            client.connect_ex((host, 8080))
    return call
def worker(listener, elsewhere, own):
    poll = wait_for(listener)
    def came_to_own_queue(call):
        client = socket.socket()
        poll.poll(0)
        call()
        # By the C library itself, as of another process.
        assert libc.connect(client.fileno(), address, len(address)) == 0
        while not sum(queues()):
            pass
        accepted = libc.accept(listener.fileno(), None, None)
        if accepted >= 0:
            os.close(accepted)
            return False
        assert poll.poll(0)
        listener.accept()[0].close()
        return True
    for call in elsewhere:
        # Not where this took 0.5 ms from the wait on.
        assert any(came_to_own_queue(call) for _ in range(1000))
    for call in own:
        for _ in range(10):
            poll.poll(0)
            call()
            client = socket.socket()
            assert libc.connect(client.fileno(), address, len(address)) == 0
            while not sum(queues()):
                pass
            # Both are in the shared queue, or the first one was refused.
            while sum(queues()):
                accepted = libc.accept(listener.fileno(), None, None)
                assert accepted >= 0
                os.close(accepted)
datagrams = connects('127.0.0.1', socket.SOCK_DGRAM)
listener = listen()
bound = [connects('127.0.0.1'), connects('0.0.0.0')]
assert in_child(lambda: worker(listener, [connects('127.9.9.9'), datagrams], bound)) == 0
listener.close()
ADDRESS = ('0.0.0.0', 8080)
everywhere = listen()
own = [connects('127.0.0.2'), connects('0.0.0.0')]
assert in_child(lambda: worker(everywhere, [connects('192.0.2.1'), datagrams], own)) == 0
",
    );
    assert_eq!(lab.queues(), 2);
}

/// The program may free what an event's data points to as it gets the first one.
#[test]
fn a_listener_is_reported_once_in_a_wait() {
    let Some(lab) = Lab::new("a_listener_is_reported_once_in_a_wait", &["python3"]) else { return };
    lab.passes(
        "listener = listen()
libc = ctypes.CDLL(None)
def worker():
    poll = wait_for(listener)
    clients = fill([poll])
    pipes = [os.pipe() for _ in range(3)]
    for readable, writable in pipes:
        poll.register(readable, select.EPOLLIN)
        os.write(writable, b'.')
    wanted = sorted((fd, select.EPOLLIN) for fd in (listener.fileno(), *(pipe[0] for pipe in pipes)))
    assert sorted(poll.poll()) == wanted, (poll.poll(), wanted)
    events = ctypes.create_string_buffer(16 * 16)
    nothing = ctypes.c_void_p()
    for wait in ('epoll_wait', 'epoll_pwait', 'epoll_pwait2'):
        if hasattr(libc, wait):
            timeout = nothing if wait == 'epoll_pwait2' else -1
            assert getattr(libc, wait)(poll.fileno(), events, 16, timeout, nothing) == len(wanted), wait
    for _ in clients:
        listener.accept()
    wanted.remove((listener.fileno(), select.EPOLLIN))
    assert sorted(poll.poll()) == wanted
assert in_child(worker) == 0
",
    );
    assert_eq!(lab.queues(), 1);
}

/// A server that is about to end accepts until EAGAIN, and closes its listener.
#[test]
fn what_waits_is_accepted_before_the_end() {
    let Some(lab) = Lab::new("what_waits_is_accepted_before_the_end", &["python3"]) else { return };
    lab.passes(
        "listener = listen()
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
ready, told = os.pipe()
filled, go = os.pipe()
def worker():
    poll = wait_for(listener)
    poll.poll()
    accepted = [listener.accept()[0]]
    os.write(told, b'.')
    os.read(filled, 1)
    try:
        while True:
            accepted.append(listener.accept()[0])
    except BlockingIOError:
        pass
    listener.close()
    os.write(told, bytes([len(accepted)]))
child = os.fork()
if child == 0:
    worker()
    os._exit(0)
listener.close()
while rows() < 2 or not sleeps(child):
    pass
clients = [socket.create_connection(ADDRESS)]
os.read(ready, 1)
# By now the worker has been away from its wait for long.
time.sleep(0.01)
clients += [socket.create_connection(ADDRESS) for _ in range(40)]
os.write(go, b'.')
assert os.read(ready, 1)[0] == 41
",
    );
    assert_eq!(lab.queues(), 1);
}

/// A handshake was under way when the sibling's queue was found empty: its connection
/// comes uncounted.
#[test]
fn late_connections_are_accepted_before_the_end() {
    let Some(lab) = Lab::new("late_connections_are_accepted_before_the_end", &["python3"]) else { return };
    lab.passes(
        "listener = listen()
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def accepts():
    accepted = 0
    try:
        while True:
            listener.accept()[0].close()
            accepted += 1
    except BlockingIOError:
        return accepted
def worker():
    poll = wait_for(listener)
    (started, go), (filled, told) = os.pipe(), os.pipe()
    if os.fork() == 0:
        # While the worker waits: the kernel has the first one wait for data.
        while not sleeps(os.getppid()):
            pass
        late, soon = socket.create_connection(ADDRESS), socket.create_connection(ADDRESS)
        soon.send(b'.')
        os.read(started, 1)
        # To the shared queue: the worker has been away from its wait for long.
        time.sleep(0.01)
        other = socket.create_connection(ADDRESS)
        other.send(b'.')
        while sum(queues()) < 1:
            pass
        late.send(b'.')
        while sum(queues()) < 2:
            pass
        os.write(told, b'.')
        os._exit(0)
    assert poll.poll(60)
    assert accepts() == 1
    os.write(go, b'.')
    os.read(filled, 1)
    assert accepts() == 2
assert in_child(worker) == 0
",
    );
    assert_eq!(lab.queues(), 1);
}

/// Accepts of a worker that accepts until there is nothing more, for 400 connections one
/// after the other.
const ONE_BY_ONE: &str = "listener = listen()
def worker():
    poll = wait_for(listener)
    for _ in range(400):
        client = connect()
        answered = False
        while not answered:
            poll.poll()
            try:
                while True:
                    listener.accept()[0].close()
                    answered = True
            except BlockingIOError:
                pass
        client.close()
assert in_child(worker) == 0
";

#[test]
fn accepts_are_hardly_more_than_without() {
    let Some(lab) = Lab::new("accepts_are_hardly_more_than_without", &["python3", "strace"]) else { return };
    let script = lab.script(ONE_BY_ONE);
    let accepts = |command: &mut std::process::Command| {
        let output =
            traced(&lab, command.arg(&script)).stderr(std::process::Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let trace = fs::read_to_string(lab.path("trace")).unwrap();
        trace.lines().filter(|line| line.contains(" accept4(")).count()
    };
    let plain = accepts(&mut std::process::Command::new(python()));
    let ours = accepts(&mut lab.run(&python()));
    assert_eq!(lab.queues(), 1);
    assert!(plain >= 800, "{plain}");
    // Each eighth asks the other queue first.
    assert!(ours <= plain + plain / 8 + 8, "{ours} instead of {plain}");
}
