//! The conformance suite, on both engines.

mod uring {
    testkit::conformance_suite!(Uring);
}

mod epoll {
    testkit::conformance_suite!(Epoll);
}
