//! An echo server on several threads with one listener between them: `multicore
//! [ADDRESS [THREADS]]`. The kernel gives each thread the connections whose packets its CPU
//! handles.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::thread;

use megapipe::{AcceptAs, AcceptCount, Channel, Config, CpuSet, Event, ReadData};
use socket2::{Domain, Socket, Type};

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address: SocketAddr = arguments.next().unwrap_or_else(|| "127.0.0.1:7777".into()).parse()?;
    let cpus = thread::available_parallelism()?.get();
    let threads = arguments.next().map_or(Ok(cpus), |count| count.parse())?;

    // Bound, and shared: each channel makes a listening socket of its own from it.
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;

    thread::scope(|scope| {
        let socket = &socket;
        let workers: Vec<_> = (0..threads as u32)
            .map(|cpu| scope.spawn(move || serve(socket, cpu).map_err(|error| error.to_string())))
            .collect();
        for worker in workers {
            match worker.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => eprintln!("a worker ended: {error}"),
                Err(_) => eprintln!("a worker died"),
            }
        }
    });
    Ok(())
}

/// One thread: a channel, and the connections of one CPU. (A real server would pin the
/// thread to that CPU, too.)
fn serve(socket: &Socket, cpu: u32) -> anyhow::Result<()> {
    let mut channel = Channel::new(Config::default())?;
    let listener = channel.register_partitioned(socket.as_fd(), 0, &CpuSet::of(cpu))?;
    channel.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket)?;
    channel.flush()?;
    if let Some(address) = channel.local_address(listener)?.as_socket() {
        println!("listening on {address} for CPU {cpu}");
    }
    channel.run(|channel, completion| {
        match completion.event {
            Event::Accept { result: Ok(accepted), .. } => {
                let connection = channel.register(accepted.socket, 0)?;
                channel.read_stream(connection)?;
            }
            Event::Accept { result: Err(error), .. } => eprintln!("{error}"),
            Event::Read { result: Ok(1..), data: ReadData::Buffer(buffer), .. } => {
                if let Err(refused) = channel.write_quiet(completion.handle, buffer) {
                    eprintln!("{refused}");
                    // A reset needs a descriptor for a moment, and there may be none.
                    channel.reset(completion.handle).or_else(|_| channel.close(completion.handle))?;
                }
            }
            Event::Read { more: false, .. } => channel.close(completion.handle)?,
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    })
}
