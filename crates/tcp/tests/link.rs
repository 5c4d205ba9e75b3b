//! Two hosts over a memory link: open, talk, close.
mod common;

use std::time::Duration;

use common::{Net, OFFLOADS, PLAIN};
use tcp::{Read, State};

const MOMENT: Duration = Duration::from_millis(1);

/// Both families, with and without offloads: a question, an answer, and both ways to close.
#[test]
fn handshake_echo_close() {
    for capabilities in [OFFLOADS, PLAIN] {
        for v6 in [false, true] {
            let mut net = Net::plain(capabilities);
            let (client, server) = net.connect(v6);
            let now = net.now;
            assert_eq!(net.host(0).write(now, client, b"question"), Ok(8));
            net.run(MOMENT);
            assert_eq!(net.read_all(1, server), (b"question".to_vec(), Read::Empty));
            let now = net.now;
            assert_eq!(net.host(1).write(now, server, b"answer"), Ok(6));
            net.run(MOMENT);
            assert_eq!(net.read_all(0, client), (b"answer".to_vec(), Read::Empty));

            let now = net.now;
            net.host(0).shutdown(now, client);
            net.run(MOMENT);
            assert_eq!(net.read_all(1, server), (vec![], Read::End));
            assert_eq!(net.host(1).info(server).expect("a flow").state, State::CloseWait);
            // Half-closed: the server can still send (RFC 9293, 3.6, MUST-17 of RFC 1122, 4.2.2.13).
            let now = net.now;
            assert_eq!(net.host(1).write(now, server, b"last words"), Ok(10));
            net.host(1).close(now, server);
            net.run(MOMENT);
            assert_eq!(net.read_all(0, client), (b"last words".to_vec(), Read::End));
            let now = net.now;
            net.host(0).close(now, client);
            net.run(Duration::from_secs(120));
            assert_eq!(net.host(0).live_flows().count() + net.host(1).live_flows().count(), 0);
            assert_eq!(net.next(), None, "nothing is owed");
        }
    }
}

/// Many bytes each way at once, larger than every buffer.
#[test]
fn a_megabyte_each_way() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
    //# The window size MUST be treated as an unsigned number, or else large window sizes will appear like
    //# negative windows and TCP will not work (MUST-1).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
    //# It is RECOMMENDED that implementations will reserve 32-bit fields for the send and receive window
    //# sizes in the connection record and do all window computations with 32 bits (REC- 1).
    for capabilities in [OFFLOADS, PLAIN] {
        let mut net = Net::plain(capabilities);
        let (client, server) = net.connect(true);
        let bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let flows = [client, server];
        let mut sent = [0, 0];
        let mut received = [vec![], vec![]];
        for _ in 0..10_000 {
            for side in 0..2 {
                let now = net.now;
                sent[side] += net.host(side).write(now, flows[side], &bytes[sent[side]..]).expect("open");
                let (more, _) = net.read_all(side, flows[side]);
                received[side].extend(more);
            }
            if received.iter().all(|all| all.len() == bytes.len()) {
                break;
            }
            net.run(Duration::from_micros(100));
        }
        assert!(received[0] == bytes && received[1] == bytes);
    }
}

/// A port without a listener answers with RST (RFC 9293, 3.10.7.1).
#[test]
fn nobody_listens() {
    let mut net = Net::plain(PLAIN);
    let now = net.now;
    let remote = std::net::SocketAddr::new(common::address(1, false), 9);
    let flow = net.host(0).connect(now, None, None, remote).expect("a flow");
    net.run(MOMENT);
    let now = net.now;
    let error = net.host(0).read(now, flow, &mut [0; 8]);
    assert_eq!(error, Err(tcp::ReadError::Failed(tcp::Failure::Refused)));
    net.host(0).close(now, flow);
    net.run(MOMENT);
    assert_eq!(net.next(), None);
}
