//! Processes that become another user's before they wait for their listener. Programs in
//! C: Python makes an epoll set as it imports `selectors`, and counts as one that waits
//! by epoll.

use crate::support::Lab;

/// A listener that is made, and left blocking or not, by the server, and changed by a
/// process that it forks; the server then becomes another user's, and waits by epoll.
/// Ends with the count of descriptors it got as it did so.
const SERVER: &str = r#"#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 4096; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

int main(int count, char **arguments) {
    int before = atoi(arguments[1]), after = atoi(arguments[2]);
    struct sockaddr_in address = {AF_INET, htons(8080), {htonl(INADDR_LOOPBACK)}};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 8))
        return 100;
    fcntl(listener, F_SETFL, before);
    if (fork() == 0)
        _exit(fcntl(listener, F_SETFL, after) != 0);
    wait(NULL);
    if (fork() == 0) {
        int made = -descriptors();
        if (setuid(65534))
            _exit(101);
        made += descriptors();
        int set = epoll_create1(0);
        struct epoll_event event = {EPOLLIN, {0}};
        _exit(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) ? 102 : made);
    }
    int status;
    wait(&status);
    return WEXITSTATUS(status);
}
"#;

#[test]
fn queues_are_made_as_the_kernel_has_the_listener() {
    let name = "queues_are_made_as_the_kernel_has_the_listener";
    let Some(lab) = Lab::new(name, &["cc"]) else { return };
    let server = lab.compiled("server", SERVER);
    let made = |before: libc::c_int, after: libc::c_int| {
        let status = lab.run(&server).args([before, after].map(|flags| flags.to_string())).status().unwrap();
        status.code().unwrap()
    };
    let queues = testkit::process::cpus().len().min(16) as i32;
    assert_eq!((made(0, 0), lab.queues()), (0, 0));
    assert_eq!((made(libc::O_NONBLOCK, 0), lab.queues()), (0, 0), "another process has made it block");
    assert_eq!((made(0, libc::O_NONBLOCK), lab.queues()), (queues, 1), "another process has it not block");
    assert_eq!(lab.lines("shared queue: user"), 0);
}
