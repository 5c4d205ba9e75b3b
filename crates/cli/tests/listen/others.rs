//! A listener that another thread or another process changes than the one that waits for it.

use crate::support::Lab;

#[test]
fn a_queue_moves_while_its_thread_sleeps() {
    let Some(lab) = Lab::new("a_queue_moves_while_its_thread_sleeps", &["python3"]) else { return };
    lab.passes(
        "listener = listen()
# Handshakes end with the first byte.
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 60)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sets = [wait_for(listener), wait_for(listener)]
assert rows() == 3
returned = threading.Event()
thread = threading.Thread(target=lambda: (sets[0].poll(), returned.set()), daemon=True)
thread.start()
while not waits(thread.native_id):
    pass
clients = [connect() for _ in range(6)]
sets[0].unregister(listener)
assert rows() == 2, 'the sibling has left the group'
[client.send(b'.') for client in clients]
for _ in clients:
    assert sets[1].poll(60)
    listener.accept()[0].close()
assert not returned.is_set()
sets[0].register(listener, select.EPOLLIN)
assert rows() == 3
client = connect()
client.send(b'.')
assert sets[1].poll(0) or returned.wait(60)
",
    );
}

#[test]
fn queues_end_when_another_process_shuts_their_listener_down() {
    let name = "queues_end_when_another_process_shuts_their_listener_down";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    lab.passes(
        "listener = listen()
ready, told = os.pipe()
def worker():
    poll = wait_for(listener)
    os.write(told, b'.')
    while True:
        poll.poll()
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            pass
        except OSError as error:
            os.write(told, struct.pack('B', error.errno))
            signal.pause()
workers = []
for _ in range(2):
    workers.append(os.fork())
    if workers[-1] == 0:
        signal.alarm(60)
        worker()
while os.read(ready, 1) and rows() < 3:
    pass
listener.shutdown(socket.SHUT_RDWR)
try:
    while True:
        socket.create_connection(ADDRESS, 60).close()
except (ConnectionRefusedError, ConnectionResetError):
    pass
EINVAL = b'\\x16'
said = b''
while said.count(EINVAL) < 2:
    said += os.read(ready, 1)
assert said.replace(b'.', b'') == 2 * EINVAL
assert rows() == 0
[os.kill(worker, signal.SIGKILL) for worker in workers]
",
    );
}

#[test]
fn a_listener_that_another_process_passed_stays_shared() {
    let name = "a_listener_that_another_process_passed_stays_shared";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    lab.passes(
        "ours, theirs = socket.socketpair()
def server():
    listener = socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0])
    sets = [wait_for(listener), wait_for(listener)]
    assert rows() == 1
    assert is_answered(listener, sets[0])
child = os.fork()
if child == 0:
    signal.alarm(60)
    server()
    os._exit(0)
listener = listen()
socket.send_fds(ours, [b'.'], [listener.fileno()])
assert os.waitpid(child, 0)[1] == 0
",
    );
    assert_eq!(lab.lines("shared queue: received"), 1);
}
