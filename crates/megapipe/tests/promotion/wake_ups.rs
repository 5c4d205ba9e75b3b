//! Wake-ups that race with the FIN or the close of a connection, and hostile bytes that
//! race with reads.

use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use megapipe::{EngineKind, Handle};

use testkit::process;

use crate::support::{
    Folder, Patience, Random, Side, config, engines, own_monitor, pair, pattern, with_and_without_doorbells,
};

/// How the answering endpoint ends a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    /// FIN behind what it sent.
    Shutdown,
    /// The same, and it reads no more.
    Close,
}

const CONNECTIONS: usize = 600;

/// One endpoint of each connection, promoted, with a stream of reads.
struct Endpoint {
    side: Side,
    handles: Vec<Handle>,
    random: Random,
}

impl Endpoint {
    fn new(engine: EngineKind, folder: &Folder, sockets: Vec<TcpStream>, seed: u64) -> Endpoint {
        let mut side = Side::new(config(engine, &folder.socket()));
        let mut handles = Vec::new();
        for (cookie, socket) in (0..).zip(sockets) {
            let handle = side.channel.register(socket, cookie).unwrap();
            side.channel.read_stream(handle).unwrap();
            handles.push(handle);
            // Few at a time: a channel that has no time to read its grants loses them.
            let mut patience = Patience::new();
            while handles.len() % 50 == 0 && side.channel.stats().promoted < handles.len() as u64 {
                assert!(!patience.is_over(), "promotion: {:?}", side.channel.stats());
                side.step(Duration::from_millis(1));
            }
        }
        Endpoint { side, handles, random: Random(seed) }
    }

    /// One dispatch: without waiting, with a short wait, or with a sleep that only a
    /// wake-up or FIN ends in time.
    fn step(&mut self) {
        let wait = [0, 1, 30, 200, 50_000][self.random.below(5)];
        self.side.step(Duration::from_micros(wait));
    }
}

fn question(connection: usize) -> Vec<u8> {
    pattern(connection, 1 + connection * 7 % 500)
}

fn answer(connection: usize) -> Vec<u8> {
    pattern(connection * 3, 1 + connection * 131 % 3000)
}

/// Answers every question, and ends its connection at once.
fn play_answerer(mut endpoint: Endpoint, ending: Ending) {
    let mut answered = 0;
    let mut patience = Patience::new();
    while answered < CONNECTIONS {
        assert!(!patience.is_over(), "{answered} questions came");
        endpoint.step();
        // Questions come in the order of the connections; each may come in pieces.
        while answered < CONNECTIONS {
            let seen = endpoint.side.seen(answered as u64);
            if seen.got.len() < question(answered).len() {
                break;
            }
            assert!(seen.got == question(answered), "connection {answered}");
            assert!(seen.errors[0].is_empty(), "connection {answered}: {:?}", seen.errors);
            let (channel, handle) = (&mut endpoint.side.channel, endpoint.handles[answered]);
            channel.write_quiet(handle, answer(answered)).unwrap();
            match ending {
                Ending::Shutdown => drop(channel.shutdown(handle, Shutdown::Write).unwrap()),
                Ending::Close => channel.close(handle).unwrap(),
            }
            answered += 1;
            patience = Patience::new();
        }
    }
    // The peer still has to receive it; a shut-down endpoint waits for its FIN.
    let mut patience = Patience::new();
    while ending == Ending::Shutdown && !(0..CONNECTIONS).all(|at| endpoint.side.seen(at as u64).ended) {
        assert!(!patience.is_over(), "no FIN");
        endpoint.step();
    }
    endpoint.side.channel.flush().unwrap();
}

/// `eager`: FIN follows each question at once, with the wake-up for it on its way.
fn race(engines: [EngineKind; 2], ending: Ending, eager: bool) {
    let folder = own_monitor(&format!("race-{ending:?}-{eager}"));
    // The sockets exist before a channel raises the limit.
    sys::file::raise_open_files(4 * CONNECTIONS as u64).unwrap();
    let (near, far): (Vec<_>, Vec<_>) = (0..CONNECTIONS).map(|_| pair()).unzip();
    let answerer = {
        let socket = Folder::at(folder.path().into());
        std::thread::spawn(move || {
            let endpoint = Endpoint::new(engines[1], &socket, far, 77);
            std::mem::forget(socket);
            play_answerer(endpoint, ending);
        })
    };
    let mut endpoint = Endpoint::new(engines[0], &folder, near, 4242);
    for connection in 0..CONNECTIONS {
        let (channel, handle) = (&mut endpoint.side.channel, endpoint.handles[connection]);
        channel.write_quiet(handle, question(connection)).unwrap();
        if endpoint.random.below(2) == 0 {
            channel.flush().unwrap();
        }
        if eager {
            channel.shutdown(handle, Shutdown::Write).unwrap();
        }
        let mut patience = Patience::new();
        while !endpoint.side.seen(connection as u64).ended {
            assert!(!patience.is_over(), "connection {connection}: {:?}", endpoint.side.channel.stats());
            endpoint.step();
            let seen = endpoint.side.seen(connection as u64);
            assert!(
                seen.errors == [vec![], vec![]],
                "connection {connection}: {:?} after {} of {} bytes",
                seen.errors,
                seen.got.len(),
                answer(connection).len()
            );
        }
        let got = std::mem::take(&mut endpoint.side.seen(connection as u64).got);
        assert!(got == answer(connection), "connection {connection}");
        if !eager {
            endpoint.side.channel.close(handle).unwrap();
        }
    }
    endpoint.side.channel.flush().unwrap();
    answerer.join().unwrap();
    let stats = endpoint.side.channel.stats();
    let by_doorbell = process::role().is_none();
    assert!(if by_doorbell { stats.doorbells } else { stats.bells } > 0, "{stats:?}");
}

#[test]
fn a_wake_up_may_race_with_the_fin_behind_it() {
    with_and_without_doorbells("wake_ups::a_wake_up_may_race_with_the_fin_behind_it", || {
        for engines in engines() {
            race(engines, Ending::Shutdown, true);
            race(engines, Ending::Close, true);
        }
    });
}

#[test]
fn a_wake_up_may_race_with_the_fin_of_its_receiver() {
    with_and_without_doorbells("wake_ups::a_wake_up_may_race_with_the_fin_of_its_receiver", || {
        for engines in engines() {
            race(engines, Ending::Shutdown, false);
        }
    });
}

#[test]
fn a_wake_up_may_race_with_the_close_of_its_receiver() {
    with_and_without_doorbells("wake_ups::a_wake_up_may_race_with_the_close_of_its_receiver", || {
        for engines in engines() {
            race(engines, Ending::Close, false);
        }
    });
}
