//! The conformance suite, on both engines.

mod uring {
    testkit::conformance_suite!(Uring, Kernel);
}

mod epoll {
    testkit::conformance_suite!(Epoll, Kernel);
}
