//! The conformance suite on io_uring.

testkit::conformance_suite!(Uring, Kernel);
