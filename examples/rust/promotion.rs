//! Two programs of one host whose TCP connection moves to shared memory: `promotion serve [ADDRESS]` in one terminal,
//! `promotion ask [ADDRESS]` in another, by default at 127.0.0.1:7777. A monitor has to allow it: `megapipe monitor`,
//! or one that is started for the user by itself. `megapipe top` shows the connection.

use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::time::Instant;

use megapipe::{AcceptAs, AcceptCount, Channel, Config, Event, Promotion, ReadData};

const QUESTION: &[u8] = b"how are you?";
/// Round trips that are enough to move a connection, if anybody lets it, and those that are timed afterwards.
const ENOUGH: u32 = 200_000;
const TIMED: u32 = 1000;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let part = arguments.next().unwrap_or_default();
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:7777".into());
    // All there is to it, at both ends: a connection that proves to be worth it is moved. The calls stay the same.
    let channel = Channel::new(Config { promotion: Promotion::Auto, ..Config::default() })?;
    match part.as_str() {
        "serve" => serve(channel, TcpListener::bind(address)?),
        "ask" => ask(channel, TcpStream::connect(address)?),
        _ => anyhow::bail!("say `promotion serve [ADDRESS]` or `promotion ask [ADDRESS]`"),
    }
}

/// Sends back what comes.
fn serve(mut channel: Channel, listener: TcpListener) -> anyhow::Result<()> {
    println!("listening on {}", listener.local_addr()?);
    let listener = channel.register(listener, 0)?;
    channel.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket)?;
    channel.run(|channel, completion| {
        match completion.event {
            Event::Accept { result: Ok(accepted), .. } => {
                let connection = channel.register(accepted.socket, 0)?;
                channel.read(connection)?;
            }
            Event::Accept { result: Err(error), .. } => eprintln!("{error}"),
            Event::Read { result: Ok(1..), data: ReadData::Buffer(buffer), .. } => {
                channel.write(completion.handle, buffer)?;
            }
            Event::Write { result: Ok(_), .. } => {
                channel.read(completion.handle)?;
            }
            Event::Read { .. } | Event::Write { .. } => channel.close(completion.handle)?,
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Asks again and again, first over TCP, then through shared memory, and says what a round trip takes.
fn ask(mut channel: Channel, stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let server = channel.register(stream, 0)?;
    channel.read_stream(server)?;
    channel.write_copy(server, QUESTION)?;
    let (mut answers, mut received) = (0, 0);
    let (mut since, mut promoted) = (Instant::now(), false);
    channel.run(|channel, completion| {
        match completion.event {
            Event::Read { result: Ok(1..), data: ReadData::Buffer(buffer), .. } => received += buffer.len(),
            Event::Read { result, .. } => anyhow::bail!("the server has ended: {result:?}"),
            _ => {}
        }
        if received < QUESTION.len() {
            return Ok(ControlFlow::Continue(()));
        }
        (answers, received) = (answers + 1, 0);
        let now_promoted = channel.stats().promoted > 0;
        let done = if promoted { answers == TIMED } else { now_promoted || answers == ENOUGH };
        if done {
            let each = since.elapsed() / answers;
            match (promoted, now_promoted) {
                (false, true) => println!("over TCP: {answers} round trips of {each:?}"),
                (false, false) => {
                    anyhow::bail!("it stayed on TCP: is there a monitor? `megapipe doctor`");
                }
                (true, _) => println!("promoted: {answers} round trips of {each:?}"),
            }
            if promoted {
                return Ok(ControlFlow::Break(()));
            }
            (promoted, answers, since) = (true, 0, Instant::now());
        }
        channel.write_copy(server, QUESTION)?;
        Ok(ControlFlow::Continue(()))
    })
}
