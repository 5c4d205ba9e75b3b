//! `megapipe-echo`.

use crate::client::{Client, transcript};
use crate::on_both_engines;
use crate::server::{Server, Verdict};

on_both_engines!(what_is_sent_comes_back, a_reader_that_stops_gets_everything_later);

fn what_is_sent_comes_back(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "echo", &[])?;
    let mut client = Client::connect(server.address);
    client.ask("hello", "hello");
    client.ask([0, 255, 13, 10], [0, 255, 13, 10]);
    let long: Vec<u8> = (0..3_000_000u32).map(|index| (index % 251) as u8).collect();
    assert!(transcript(server.address, long.chunks(10_007)) == long);
    Ok(())
}

fn a_reader_that_stops_gets_everything_later(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "echo", &["--threads", "1"])?;
    let mut client = Client::connect(server.address);
    let sent = crate::hostile::fill(&mut client, b"0123456789abcdef");
    let mut other = Client::connect(server.address);
    other.ask("still here", "still here");
    let mut answer = vec![0; sent];
    std::io::Read::read_exact(&mut client.stream, &mut answer).expect("everything comes back");
    assert!(answer.iter().zip(b"0123456789abcdef".iter().cycle()).all(|(got, sent)| got == sent));
    Ok(())
}
