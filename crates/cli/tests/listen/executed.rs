//! Programs that are executed with a listener, and what they get of its steering.

use crate::support::Lab;

/// A script that executes itself with a listener, in `execute`; `executed` is what it does then.
fn script(execute: &str, executed: &str) -> String {
    format!(
        "def steering():
    paths = [f'/proc/self/fd/{{fd}}' for fd in os.listdir('/proc/self/fd')]
    return [path for path in paths if os.path.islink(path) and os.readlink(path).startswith('anon_inode:bpf-')]
def arguments(listener):
    os.set_inheritable(listener.fileno(), True)
    return [sys.executable, sys.argv[0], str(listener.fileno())]
def execute(listener, **changes):
    environment = {{**os.environ, **changes}}
    os.execve(sys.executable, arguments(listener), environment)
if len(sys.argv) > 1:
    listener = socket.socket(fileno=int(sys.argv[1]))
{executed}
    os._exit(0)
listener = listen()
{execute}"
    )
}

#[test]
fn a_program_executed_anew_gets_queues_beside_those_of_before() {
    let name = "a_program_executed_anew_gets_queues_beside_those_of_before";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    // Of the first, of the second, and in place of the second.
    let executed = "    def worker():
        before = rows()
        poll = wait_for(listener)
        assert rows() == before + 1 and is_answered(listener, poll)
    assert len(steering()) == 4, steering()
    assert in_child(worker) == 0
    turn = int(os.environ.get('TURN', 0))
    if turn < 3:
        execute(listener, TURN=str(turn + 1))
";
    lab.passes(&script(
        "sets = [wait_for(listener), wait_for(listener)]
assert rows() == 3
assert in_child(lambda: execute(listener)) == 0
assert rows() == 3 and is_answered(listener, sets[0])
",
        executed,
    ));
    assert_eq!((lab.queues(), lab.lines("stays on its shared queue")), (6, 0));
}

#[test]
fn steering_goes_with_its_listener_to_this_library_alone() {
    let name = "steering_goes_with_its_listener_to_this_library_alone";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    lab.passes(&script(
        "assert in_child(lambda: execute(listener, COUNT='4')) == 0, 'a group of its own, as nobody had queues'
sets = [wait_for(listener), wait_for(listener)]
assert rows() == 3
assert in_child(lambda: execute(listener, COUNT='0', LD_PRELOAD='')) == 0, 'without the library'
preload = os.environ.pop('LD_PRELOAD')
for value in ('/nonexistent/libother.so', preload + '.1'):
    assert in_child(lambda: execute(listener, COUNT='0', LD_PRELOAD=value)) == 0, value
for value in (preload + ':/nonexistent.so', '/nonexistent.so ' + preload):
    assert in_child(lambda: execute(listener, COUNT='4', LD_PRELOAD=value)) == 0, value
assert in_child(lambda: execute(listener, COUNT='0')) == 0
os.environ['LD_PRELOAD'] = preload
for value in ('', '0', '10'):
    assert in_child(lambda: execute(listener, COUNT='0', MEGAPIPE_LOCAL_LISTEN=value)) == 0, value
def executes_other():
    os.execve('/bin/sh', ['sh', '-c', 'ls -l /proc/self/fd | grep -c bpf- && exit 1; exit 0'], os.environ)
os.set_inheritable(listener.fileno(), False)
assert in_child(executes_other) == 0, 'without the listener'
def executes_without_rights():
    # Of the bounding set: CAP_SYS_ADMIN and CAP_BPF.
    PR_CAPBSET_DROP = 24
    assert [ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) for capability in (21, 39)] == [0, 0]
    execute(listener, COUNT='0')
assert in_child(executes_without_rights) == 0, 'closed, as it can make none of its own'
# By a copy of this process's descriptors alone.
child = os.posix_spawn(sys.executable, arguments(listener), {**os.environ, 'COUNT': '4'})
assert os.waitpid(child, 0)[1] == 0
",
        "    assert len(steering()) == int(os.environ['COUNT']), steering()
",
    ));
}

#[test]
fn steering_stays_here_if_an_exec_fails() {
    let name = "steering_stays_here_if_an_exec_fails";
    let Some(lab) = Lab::new(name, &["python3"]) else { return };
    lab.passes(&script(
        "sets = [wait_for(listener), wait_for(listener)]
os.set_inheritable(listener.fileno(), True)
for call in (lambda: os.execv('/nonexistent', ['it']), lambda: os.execve('/nonexistent', ['it'], os.environ)):
    try:
        call()
    except FileNotFoundError:
        pass
assert len(steering()) == 4 and not any(map(os.get_inheritable, high()))
execve = ctypes.CDLL(None, use_errno=True).execve
for environment in (None, ctypes.c_void_p(-1), (ctypes.c_void_p * 2)(1, 0)):
    assert execve(b'/nonexistent', None, environment) == -1
",
        "",
    ));
}
