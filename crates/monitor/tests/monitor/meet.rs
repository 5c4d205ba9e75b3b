//! Two ends meet, and get memory that each can write and the other only read.

use crate::support::*;

/// Offers both ends, by two clients, and checks what both get.
fn meets(listen: &str, connect: &str) {
    let (running, mut a) = Running::start(SHARE);
    let mut b = running.client("b");
    let (near, far) = connection(listen, connect);
    offer(&mut a, 7, &near);
    offer(&mut b, 9, &far);
    let (one, other) = (granted(&mut a), granted(&mut b));
    assert_eq!((one.token, other.token), (token(7), token(9)));
    for (grant, counterpart) in [(&one, &other), (&other, &one)] {
        assert_eq!(grant.own.number(), counterpart.peer.number());
        assert!(grant.own.is_writable() && !grant.peer.is_writable() && !grant.peer_loop.page.is_writable());
        assert_eq!(word(&grant.own, 0), 0x3152_504d);
        assert_eq!(word(&grant.own, 4), 1);
        assert_eq!(word(&grant.own, 8) as usize, grant.own.len());
        assert_eq!((word(&grant.peer_loop.page, 0), word(&grant.peer_loop.page, 4)), (0x314c_504d, 1));
        set_word(&grant.own, 12, 1);
        assert_eq!(word(&counterpart.peer, 12), 1);
    }
    drop((a, b));
    running.end();
}

#[test]
fn over_ipv4() {
    meets("127.0.0.1", "127.0.0.1");
}

#[test]
fn over_ipv6() {
    meets("::1", "::1");
}

#[test]
fn over_ipv4_with_one_end_in_ipv6() {
    meets("::", "127.0.0.1");
}
