//! EPOLLONESHOT across a promotion: what the kernel told before counts.

use crate::support::{Place, output, python, text};

/// Each event is read for while in small pieces, with more arriving all the time: no other may come before
/// the interest is named again. Then some is read before any event, which must not keep it from coming.
const SHOTS: &str = r#"
import select, socket, subprocess, sys, time
if len(sys.argv) > 1:
    client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        while True:
            client.sendall(b"message!")
            try:
                client.recv(100, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            time.sleep(0.0005)
    except OSError:
        sys.exit()

def taste(server, size):
    try:
        server.recv(size, socket.MSG_DONTWAIT)
    except BlockingIOError:
        pass

SHOT = select.EPOLLIN | select.EPOLLONESHOT
listener = socket.create_server(("127.0.0.1", 0))
for early in (False, True):
    client = subprocess.Popen([sys.executable, "-c", PROGRAM, str(listener.getsockname()[1])])
    server, _ = listener.accept()
    epoll = select.epoll()
    epoll.register(server, SHOT)
    for number in range(80):
        if early:
            taste(server, 4)
        assert epoll.poll(10) == [(server.fileno(), select.EPOLLIN)], number
        for size in (4096, 4096, 4096, 12, 4):
            taste(server, size)
            time.sleep(0.001)
        told = epoll.poll(0)
        assert told == [], (early, number, told)
        server.sendall(b"reply")
        epoll.modify(server, SHOT)
    epoll.close()
    server.close()
    client.wait()
"#;

/// In one of so many, no call is under way when the memory comes.
const RUNS: u32 = 5;

#[test]
fn a_single_shot_before_a_promotion_stays_used_up() {
    need_python!("a_single_shot_before_a_promotion_stays_used_up");
    let place = Place::new();
    let _monitor = place.monitor();
    let program = format!("PROGRAM = {SHOTS:?}\nexec(PROGRAM)");
    let promoted = (0..RUNS).any(|_| {
        let mut command = place.run();
        command.args(["--stats", "--promote", "auto"]).arg(python().unwrap()).args(["-c", &program]);
        let ended = output(&mut command);
        let said = text(&ended.stderr);
        assert!(ended.status.success(), "{said}");
        said.contains(": 2 connections, 2 promoted")
    });
    assert!(promoted, "both are promoted in one of the runs");
}
