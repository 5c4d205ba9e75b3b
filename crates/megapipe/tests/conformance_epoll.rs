//! The conformance suite on epoll.

testkit::conformance_suite!(Epoll, Kernel);
