//! Bells that race with what ends a connection, FIN and close, and hostile bytes that race with
//! reads.

use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use megapipe::{EngineKind, Handle};

use testkit::process;

use crate::support::{
    Folder, Patience, Random, Side, config, engines, own_monitor, pair, pattern, with_and_without_doorbells,
};

/// How the answering end ends a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    /// FIN behind what it sent.
    Shutdown,
    /// The same, and it reads no more.
    Close,
}

const CONNECTIONS: usize = 600;

/// One end of each connection, promoted, with a stream of reads.
struct End {
    side: Side,
    handles: Vec<Handle>,
    random: Random,
}

impl End {
    fn new(engine: EngineKind, folder: &Folder, sockets: Vec<TcpStream>, seed: u64) -> End {
        let mut side = Side::new(config(engine, &folder.socket()));
        let mut handles = Vec::new();
        for (cookie, socket) in (0..).zip(sockets) {
            let handle = side.channel.register(socket, cookie).unwrap();
            side.channel.read_stream(handle).unwrap();
            handles.push(handle);
            // Few at a time: a grant to an end that has no time to read it is none.
            let mut patience = Patience::new();
            while handles.len() % 50 == 0 && side.channel.stats().promoted < handles.len() as u64 {
                assert!(!patience.is_over(), "promotion: {:?}", side.channel.stats());
                side.step(Duration::from_millis(1));
            }
        }
        End { side, handles, random: Random(seed) }
    }

    /// One look: none that waits, a short one, or a sleep that only a bell or FIN ends in time.
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
fn play_answerer(mut end: End, ending: Ending) {
    let mut answered = 0;
    let mut patience = Patience::new();
    while answered < CONNECTIONS {
        assert!(!patience.is_over(), "{answered} questions came");
        end.step();
        // Questions come in the connections' order; each may come in parts.
        while answered < CONNECTIONS {
            let seen = end.side.seen(answered as u64);
            if seen.got.len() < question(answered).len() {
                break;
            }
            assert!(seen.got == question(answered), "connection {answered}");
            assert!(seen.errors[0].is_empty(), "connection {answered}: {:?}", seen.errors);
            let (channel, handle) = (&mut end.side.channel, end.handles[answered]);
            channel.write_quiet(handle, answer(answered)).unwrap();
            match ending {
                Ending::Shutdown => drop(channel.shutdown(handle, Shutdown::Write).unwrap()),
                Ending::Close => channel.close(handle).unwrap(),
            }
            answered += 1;
            patience = Patience::new();
        }
    }
    // The other end still has to hear of it; a shut one waits for its FIN.
    let mut patience = Patience::new();
    while ending == Ending::Shutdown && !(0..CONNECTIONS).all(|at| end.side.seen(at as u64).ended) {
        assert!(!patience.is_over(), "no FIN");
        end.step();
    }
    end.side.channel.flush().unwrap();
}

/// `eager`: FIN follows each question at once, with the bell for it on its way.
fn race(engines: [EngineKind; 2], ending: Ending, eager: bool) {
    let folder = own_monitor(&format!("race-{ending:?}-{eager}"));
    // These are there before a channel raises it.
    sys::file::raise_open_files(4 * CONNECTIONS as u64).unwrap();
    let (near, far): (Vec<_>, Vec<_>) = (0..CONNECTIONS).map(|_| pair()).unzip();
    let answerer = {
        let socket = Folder::at(folder.path().into());
        std::thread::spawn(move || {
            let end = End::new(engines[1], &socket, far, 77);
            std::mem::forget(socket);
            play_answerer(end, ending);
        })
    };
    let mut end = End::new(engines[0], &folder, near, 4242);
    for connection in 0..CONNECTIONS {
        let (channel, handle) = (&mut end.side.channel, end.handles[connection]);
        channel.write_quiet(handle, question(connection)).unwrap();
        if end.random.below(2) == 0 {
            channel.flush().unwrap();
        }
        if eager {
            channel.shutdown(handle, Shutdown::Write).unwrap();
        }
        let mut patience = Patience::new();
        while !end.side.seen(connection as u64).ended {
            assert!(!patience.is_over(), "connection {connection}: {:?}", end.side.channel.stats());
            end.step();
            let seen = end.side.seen(connection as u64);
            assert!(
                seen.errors == [vec![], vec![]],
                "connection {connection}: {:?} after {} of {} bytes",
                seen.errors,
                seen.got.len(),
                answer(connection).len()
            );
        }
        let got = std::mem::take(&mut end.side.seen(connection as u64).got);
        assert!(got == answer(connection), "connection {connection}");
        if !eager {
            end.side.channel.close(handle).unwrap();
        }
    }
    end.side.channel.flush().unwrap();
    answerer.join().unwrap();
    let stats = end.side.channel.stats();
    let by_doorbell = process::role().is_none();
    assert!(if by_doorbell { stats.doorbells } else { stats.bells } > 0, "{stats:?}");
}

#[test]
fn a_bell_may_race_with_the_fin_behind_it() {
    with_and_without_doorbells("bells::a_bell_may_race_with_the_fin_behind_it", || {
        for engines in engines() {
            race(engines, Ending::Shutdown, true);
            race(engines, Ending::Close, true);
        }
    });
}

#[test]
fn a_bell_may_race_with_the_fin_of_its_receiver() {
    with_and_without_doorbells("bells::a_bell_may_race_with_the_fin_of_its_receiver", || {
        for engines in engines() {
            race(engines, Ending::Shutdown, false);
        }
    });
}

#[test]
fn a_bell_may_race_with_the_close_of_its_receiver() {
    with_and_without_doorbells("bells::a_bell_may_race_with_the_close_of_its_receiver", || {
        for engines in engines() {
            race(engines, Ending::Close, false);
        }
    });
}
