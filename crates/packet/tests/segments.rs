//! Cutting, joining and overlapping, checked by the parser of another project.
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use packet::link::Packet;
use packet::{Batch, Capabilities, Checksum, Device, Direction, Faults, Faulty, Offload, link, segment};
use proptest::prelude::*;
use std::time::Duration;

/// A TCP segment with valid checksums.
fn tcp(v6: bool, seq: u32, payload: &[u8]) -> Packet {
    let builder = if v6 {
        PacketBuilder::ipv6([1; 16], [2; 16], 64)
    } else {
        PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
    };
    let builder = builder.tcp(80, 1234, seq, 1000).ack(7).psh();
    let mut bytes = Vec::new();
    builder.write(&mut bytes, payload).expect("a packet");
    Packet::complete(bytes)
}

/// Sequence number and payload, after both checksums were found right.
fn parse(packet: &Packet) -> (u32, Vec<u8>, bool) {
    let sliced = SlicedPacket::from_ip(&packet.bytes).expect("an IP packet");
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!("no TCP segment") };
    let sum = match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
            tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()).expect("a sum")
        }
        Some(NetSlice::Ipv6(ip)) => {
            tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()).expect("a sum")
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(tcp.checksum(), sum);
    (tcp.sequence_number(), tcp.payload().to_vec(), tcp.psh())
}

proptest! {
    /// The pieces of a frame are the frame: in order, without gaps, each with right checksums,
    /// and only the last is pushed.
    #[test]
    fn pieces_make_up_the_frame(
        v6: bool,
        seq: u32,
        payload in prop::collection::vec(any::<u8>(), 1..5000),
        size in 1u16..2000,
    ) {
        let mut whole = tcp(v6, seq, &payload);
        whole.offload = Offload {
            checksum: Checksum::Partial { start: if v6 { 40 } else { 20 }, field: 16 },
            segment: size,
        };
        let pieces = segment::split(whole.frame());
        prop_assert_eq!(pieces.len(), payload.len().div_ceil(usize::from(size)));
        let mut joined = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            let (at, bytes, pushed) = parse(piece);
            prop_assert_eq!(at, seq.wrapping_add(joined.len() as u32));
            prop_assert_eq!(pushed, index + 1 == pieces.len());
            joined.extend(bytes);
        }
        prop_assert_eq!(joined, payload);
    }

    /// Two consecutive segments join into what one segment would have been, and an overlapping
    /// second one repeats the end of the first.
    #[test]
    fn joined_and_overlapping(v6: bool, seq: u32, cut in 1usize..99, back in 1usize..200) {
        let payload: Vec<u8> = (0..100).collect();
        let first = tcp(v6, seq, &payload[..cut]);
        let second = tcp(v6, seq.wrapping_add(cut as u32), &payload[cut..]);
        let joined = segment::join(&first, &second).expect("they follow each other");
        prop_assert_eq!(parse(&joined).1, &payload[..]);
        prop_assert!(segment::join(&second, &first).is_none());
        let longer = segment::overlap(&first, &second, back).expect("they follow each other");
        let (at, bytes, _) = parse(&longer);
        let from = at.wrapping_sub(seq) as usize;
        prop_assert!(from <= cut);
        prop_assert_eq!(&bytes[..], &payload[from..]);
    }
}

/// The same seed gives the same packets at the same times; faults of each kind happen.
#[test]
fn faults_repeat_with_their_seed() {
    let run = |seed: u64| {
        let capabilities = Capabilities { mtu: 1500, checksum: true, segment: 65_535 };
        let (left, mut right) = link::pair(capabilities, 10_000);
        let mut left = Faulty::new(left, seed);
        left.set(
            Direction::Sent,
            Faults {
                loss: 0.1,
                duplicate: 0.1,
                reorder: 0.1,
                reorder_by: Duration::from_millis(3),
                delay: Duration::from_millis(1),
                corrupt: 0.1,
                rate: 1_000_000,
                cut: 0.1,
                join: 0.1,
                overlap: 0.1,
                ..Faults::default()
            },
        );
        let mut seen = Vec::new();
        let (mut out, mut into) = (Batch::new(1 << 16), Batch::new(1 << 16));
        for step in 0..400u32 {
            if step < 200 {
                out.push(tcp(false, step * 500, &[step as u8; 500]).frame()).expect("room");
                left.send(&mut out).expect("sent");
            }
            left.advance(Duration::from_micros(u64::from(step) * 700)).expect("advanced");
            into.clear();
            right.receive(&mut into).expect("received");
            seen.extend(into.frames().map(|frame| (step, frame.bytes.to_vec())));
        }
        (seen, left.deadline())
    };
    let (first, pending) = run(1);
    assert_eq!(pending, None, "nothing is held for ever");
    assert_eq!(first, run(1).0);
    assert_ne!(first, run(2).0);
    assert!(first.iter().any(|(_, bytes)| bytes.len() > 540), "none was joined or overlaps");
    assert!(first.iter().any(|(_, bytes)| bytes.len() < 540), "none was cut");
}
