//! The conformance suite over a stack on a TUN device, beside both engines.

mod uring {
    testkit::conformance_suite!(Uring, Stack);
}

mod epoll {
    testkit::conformance_suite!(Epoll, Stack);
}
