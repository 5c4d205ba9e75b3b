//! What may happen in a sequence, and how often.

use proptest::prelude::*;
use testkit::driver::Form;

use crate::CONNECTIONS;

/// What may happen. Places and picks are taken modulo what is there.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Open { place: usize, socket: SocketKind },
    PeerSends { place: usize, len: usize },
    PeerReads { place: usize, most: usize },
    PeerEnds { place: usize },
    PeerResets { place: usize },
    Read { place: usize, kind: ReadKind },
    Write { place: usize, len: usize, kind: WriteKind },
    Cancel { pick: usize },
    Disconnect { place: usize },
    Close { place: usize },
    Reset { place: usize },
    Reregister { place: usize },
    Timer { millis: u64 },
    Hoard(bool),
    Flush,
    Dispatch { most: usize },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SocketKind {
    Accepted { lightweight: bool, tight: bool },
    Unix(Form),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadKind {
    Pooled,
    Own(usize),
    Vectored,
    Stream,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum WriteKind {
    Spoken,
    Quiet,
    Vectored,
    Buffer,
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = 0..CONNECTIONS;
    let socket = prop_oneof![
        3 => (any::<bool>(), any::<bool>())
            .prop_map(|(lightweight, tight)| SocketKind::Accepted { lightweight, tight }),
        1 => prop_oneof![Just(Form::Descriptor), Just(Form::Lightweight)].prop_map(SocketKind::Unix),
    ];
    let len = || prop_oneof![1..300usize, 1..20_000usize];
    let read = prop_oneof![
        Just(ReadKind::Pooled),
        (1..1000usize).prop_map(ReadKind::Own),
        Just(ReadKind::Vectored),
        Just(ReadKind::Stream),
        Just(ReadKind::Stream),
    ];
    let write = prop_oneof![
        Just(WriteKind::Spoken),
        Just(WriteKind::Quiet),
        Just(WriteKind::Quiet),
        Just(WriteKind::Vectored),
        Just(WriteKind::Buffer),
    ];
    let step = prop_oneof![
        4 => (place.clone(), socket).prop_map(|(place, socket)| Step::Open { place, socket }),
        8 => (place.clone(), len()).prop_map(|(place, len)| Step::PeerSends { place, len }),
        6 => (place.clone(), len()).prop_map(|(place, most)| Step::PeerReads { place, most }),
        1 => place.clone().prop_map(|place| Step::PeerEnds { place }),
        1 => place.clone().prop_map(|place| Step::PeerResets { place }),
        8 => (place.clone(), read).prop_map(|(place, kind)| Step::Read { place, kind }),
        8 => (place.clone(), len(), write).prop_map(|(place, len, kind)| Step::Write { place, len, kind }),
        4 => any::<usize>().prop_map(|pick| Step::Cancel { pick }),
        1 => place.clone().prop_map(|place| Step::Disconnect { place }),
        2 => place.clone().prop_map(|place| Step::Close { place }),
        1 => place.clone().prop_map(|place| Step::Reset { place }),
        1 => place.prop_map(|place| Step::Reregister { place }),
        1 => (0..3u64).prop_map(|millis| Step::Timer { millis }),
        2 => any::<bool>().prop_map(Step::Hoard),
        3 => Just(Step::Flush),
        10 => (1..12usize).prop_map(|most| Step::Dispatch { most }),
    ];
    prop::collection::vec(step, 1..160)
}
