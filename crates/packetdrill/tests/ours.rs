//! Scripts of our own, and their negative control.

mod common;

use common::scripts;
use packetdrill::{Cause, Dialect, alterations, parse, run};

#[test]
fn scripts_pass() {
    let failed: Vec<String> = scripts(Dialect::Megapipe)
        .iter()
        .filter_map(|(_, script)| run(script).err())
        .map(|error| error.to_string())
        .collect();
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}

#[test]
fn altered_scripts_fail() {
    let mut passed = Vec::new();
    for (_, script) in scripts(Dialect::Megapipe) {
        for (change, altered) in alterations(&script) {
            match run(&altered) {
                Ok(()) => passed.push(change),
                Err(error) => assert!(matches!(error.cause, Cause::Differs { .. }), "{error}"),
            }
        }
    }
    assert!(passed.is_empty(), "\n{}", passed.join("\n"));
}

#[test]
fn errors_name_file_line_expected_and_seen() {
    let text = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n// a comment\n+0 listen(3, 1) = 0\n";
    let error =
        run(&parse("x.pkt", text, Dialect::Megapipe).expect("a script")).expect_err("it is not bound");
    assert_eq!(error.to_string(), "x.pkt:3: expected listen() = 0, seen listen() = -1 EINVAL");
    let error =
        parse("x.pkt", "\n+0 < S 0:1(0) win 5\n", Dialect::Megapipe).expect_err("numbers that do not fit");
    assert_eq!((error.line, matches!(error.cause, Cause::Syntax(_))), (2, true));
    let error = parse("x.pkt", "+0 `reboot`\n", Dialect::Megapipe).expect_err("a command");
    assert!(matches!(error.cause, Cause::Unsupported(_)), "{error}");
}

/// Conditions, times between two others, an acknowledgement number without its flag, any number of a SYN, and ICMP errors.
#[test]
fn the_rest_of_the_language() {
    let text = "\
#ifdef FreeBSD
0   reboot
#else
0   socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
#endif
+0  fcntl(3, F_SETFL, O_RDWR | O_NONBLOCK) = 0 # a comment
+0  connect(3, ..., ...) = -1 EINPROGRESS (Operation now in progress)
+0  > S ...(0) <...>
+0.9~+1.1 > S ...(0) <...>
+0  < F 5:5(0) ack 1 win 0
+0  < icmp unreachable host_unreachable [0:0(0)]
+0  < icmp unreachable frag_needed mtu 1234 [0:0(0)]
+0  getsockopt(3, SOL_SOCKET, SO_ERROR, [0], [4]) = 0
+0  < icmp unreachable port_unreachable [0:0(0)]
+0  getsockopt(3, SOL_SOCKET, SO_ERROR, [ECONNREFUSED], [4]) = 0
";
    let script = parse("x.pkt", text, Dialect::Megapipe).unwrap_or_else(|error| panic!("{error}"));
    run(&script).unwrap_or_else(|error| panic!("{error}"));
    let error = parse("x.pkt", text, Dialect::FreeBsd).expect_err("its part");
    assert_eq!(error.line, 2);
    let error = parse("x.pkt", "+0 < icmp unreachable nobody [0:0(0)]\n", Dialect::Megapipe);
    assert!(matches!(error.expect_err("no such name").cause, Cause::Unsupported(_)));
}
