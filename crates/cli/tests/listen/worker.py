"""What the scripts of these tests begin with."""
import ctypes, functools, os, select, signal, socket, struct, sys, threading, time

signal.alarm(60)
ADDRESS = ('127.0.0.1', 8080)


def listen(group=False):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if group:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(ADDRESS)
    listener.listen(128)
    listener.setblocking(False)
    return listener


def wait_for(listener):
    """An epoll set that waits for it."""
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    return poll


def rows():
    """How many sockets listen at the address."""
    return len(queues())


def queues():
    """The connections that each of them has in its queue."""
    tables = [row for table in ('tcp', 'tcp6') for row in open(f'/proc/net/{table}')]
    listening = [row.split() for row in tables if ':1F90 ' in row]
    return [int(row[4].split(':')[1], 16) for row in listening if row[3] == '0A']


def prepare():
    """A client's socket, and its connect(2) as of another process: by the C library itself."""
    host, port = ADDRESS[:2]
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    client = socket.socket(family)
    address = struct.pack('=H', family) + struct.pack('!H', port)
    address += bytes(4 * (':' in host)) + socket.inet_pton(family, host) + bytes(8)
    connect = ctypes.CDLL('libc.so.6').connect
    return client, functools.partial(connect, client.fileno(), address, len(address))


def connect():
    """Such a connection."""
    client, connect = prepare()
    assert connect() == 0
    return client


def fill(sets):
    """Connects until one of the sets' siblings has a connection, and the shared queue, too."""
    signal.alarm(60)
    clients, cpus = [], sorted(os.sched_getaffinity(0))
    while sum(queue > 0 for queue in queues()) < 2:
        # A sibling gets the connections of one CPU.
        os.sched_setaffinity(0, {cpus[len(clients) % len(cpus)]})
        client, connect = prepare()
        # Nobody has just waited as the first one comes. A sibling gets no connection 0.5 ms after a wait.
        [poll.poll(0) for poll in sets[:len(clients)]]
        assert connect() == 0
        clients.append(client)
    os.sched_setaffinity(0, cpus)
    return clients


def high():
    """The library's own descriptors: above three quarters of the limit."""
    limit = min(os.sysconf('SC_OPEN_MAX'), 4096)
    return sorted(fd for fd in map(int, os.listdir('/proc/self/fd')) if fd >= limit // 4 * 3)


def is_answered(listener, poll):
    """A client's connection is accepted."""
    with socket.socket() as client:
        client.connect(ADDRESS)
        for _ in range(100):
            poll.poll(1)
            try:
                listener.accept()[0].close()
                return True
            except BlockingIOError:
                pass


def sleeps(pid):
    """Whether a process waits."""
    return open(f'/proc/{pid}/stat').read().rsplit(') ')[1][0] == 'S'


def waits(thread):
    """Whether a thread of this process is in epoll_wait(2), epoll_pwait(2) or epoll_pwait2(2): x86_64 and aarch64."""
    return open(f'/proc/self/task/{thread}/syscall').read().split()[0] in ('232', '281', '441', '22')


def in_child(run):
    """Runs it in a child; how that ended."""
    signal.alarm(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            run()
            os._exit(0)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# x86_64 and aarch64.
NUMBERS = {'bpf': (321, 280), 'listen': (50, 201), 'bind': (49, 200), 'shutdown': (48, 210), 'setsockopt': (54, 208)}
KILL, PERMISSION = 0x80000000, 0x00050001


def restrict(libc, actions):
    """Has the kernel answer system calls by a filter (seccomp(2)), which `libc` is asked for."""
    machine = ['x86_64', 'aarch64'].index(os.uname().machine)
    code = [(0x20, 0, 0, 0)]
    for name, action in actions.items():
        code += [(0x15, 0, 1, NUMBERS[name][machine]), (0x06, 0, 0, action)]
    code += [(0x06, 0, 0, 0x7FFF0000)]
    filter = b''.join(struct.pack('HBBI', *instruction) for instruction in code)
    place = ctypes.create_string_buffer(filter, len(filter))
    program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(code), ctypes.addressof(place)))
    PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
    arguments = [ctypes.c_ulong(value) for value in (SECCOMP_MODE_FILTER, ctypes.addressof(program), 0, 0)]
    assert libc.prctl(PR_SET_SECCOMP, *arguments) == 0
