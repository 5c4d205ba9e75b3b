//! A TCP connection between two channels that has moved to shared memory.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use megapipe::{Buffer, Channel, Config, Event, Handle, Promotion, ReadData, Spin};
use monitor::{Access, Listener, Monitor, Options};

use super::{End, Side, Tcp, exactly};

/// One end: a channel of its own, which sleeps at once where it does not spin.
pub(super) struct Promoted<const SPINS: bool> {
    channel: Channel,
    handle: Handle,
    /// What was read and not asked for yet.
    rest: VecDeque<Buffer>,
}

/// How long two ends may take to meet.
const PATIENCE: Duration = Duration::from_secs(10);

impl<const SPINS: bool> End for Promoted<SPINS> {
    fn pair() -> io::Result<[Vec<OwnedFd>; 2]> {
        let [mut first, mut second] = Tcp::pair()?;
        let monitor = monitor()?;
        for end in [&mut first, &mut second] {
            end.push(monitor.try_clone()?.into());
        }
        Ok([first, second])
    }

    fn attach(_: Side, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [socket, monitor] = exactly(descriptors)?;
        let config = Config {
            promotion: Promotion::Eager,
            monitor: Some(PathBuf::from(format!("/proc/self/fd/{}", monitor.as_raw_fd()))),
            buffer_size: 64 << 10,
            spin: if SPINS { Spin::Auto } else { Spin::Off },
            ..Config::default()
        };
        let mut channel = Channel::new(config).map_err(io::Error::other)?;
        let handle = channel.register(socket, 0).map_err(io::Error::other)?;
        channel.read_stream(handle).map_err(io::Error::other)?;
        let mut end = Self { channel, handle, rest: VecDeque::new() };
        let deadline = Instant::now() + PATIENCE;
        while end.channel.stats().promoted == 0 {
            if Instant::now() > deadline || end.channel.stats().promotions_refused > 0 {
                return Err(io::Error::other("the connection was not promoted"));
            }
            // The other side may have begun, over TCP.
            end.fetch(Some(Duration::from_millis(1)))?;
        }
        Ok(end)
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        loop {
            match self.channel.write_copy(self.handle, message) {
                Ok(()) => return Ok(()),
                // Behind a full ring the kernel's queue is full too: its owner sees to it.
                Err(megapipe::SubmitError::QueueFull) => self.fetch(Some(Duration::from_millis(1)))?,
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    /// Submits a wake-up, and what goes through the kernel, until that has it all.
    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        self.channel.flush().map_err(io::Error::other)?;
        while self.channel.writes_queued(self.handle).map_err(io::Error::other)? > 0 {
            self.fetch(Some(Duration::from_millis(1)))?;
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        if self.rest.is_empty()
            && let Some(data) = self.next(None)?
        {
            // The usual case: this message, the whole of it, and nothing else.
            if data.len() == message.len() {
                message.copy_from_slice(&data);
                return Ok(());
            }
            self.rest.push_back(data);
        }
        self.pass(message.len(), |received, bytes| {
            message[received..received + bytes.len()].copy_from_slice(bytes);
        })
    }

    #[inline]
    fn take(&mut self, message: &mut [u8]) -> io::Result<()> {
        self.pass(message.len(), |_, _| {})
    }
}

impl<const SPINS: bool> Promoted<SPINS> {
    /// Shows so many bytes as they come, each time with how many went before.
    #[inline]
    fn pass(&mut self, count: usize, mut show: impl FnMut(usize, &[u8])) -> io::Result<()> {
        let mut passed = 0;
        loop {
            while passed < count
                && let Some(rest) = self.rest.front_mut()
            {
                let here = rest.len().min(count - passed);
                show(passed, &rest[..here]);
                passed += here;
                rest.advance(here);
                if rest.is_empty() {
                    self.rest.pop_front();
                }
            }
            if passed == count {
                return Ok(());
            }
            self.fetch(None)?;
        }
    }

    #[inline]
    fn fetch(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let data = self.next(timeout)?;
        self.rest.extend(data);
        Ok(())
    }

    /// What the next completion brought.
    #[inline]
    fn next(&mut self, timeout: Option<Duration>) -> io::Result<Option<Buffer>> {
        let completion = self.channel.dispatch(timeout).map_err(io::Error::other)?;
        match completion.map(|completion| completion.event) {
            Some(Event::Read { result: Ok(1..), data: ReadData::Buffer(data), .. }) => Ok(Some(data)),
            Some(Event::Read { result: Ok(_), .. }) => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(Event::Read { result: Err(error), .. } | Event::Write { result: Err(error), .. }) => {
                Err(error)
            }
            _ => Ok(None),
        }
    }
}

/// The socket of a monitor on a thread of this process, at which every user's two processes may meet: a descriptor that
/// stands for its place (O_PATH, open(2)), by which it is found after it has lost its name.
fn monitor() -> io::Result<&'static File> {
    static MONITOR: OnceLock<Result<File, String>> = OnceLock::new();
    let monitor = MONITOR.get_or_init(|| start_monitor().map_err(|error| error.to_string()));
    monitor.as_ref().map_err(|error| io::Error::other(error.as_str()))
}

fn start_monitor() -> io::Result<File> {
    // What has a name is gone before anything is measured: no end of this process can leave it behind.
    let folder = tempfile::Builder::new().prefix("megapipe-bench-").tempdir()?;
    let policy = folder.path().join("policy.toml");
    fs::write(&policy, "same_user = true\n")?;
    let path = folder.path().join("monitor.sock");
    let listener = Listener::bind(&path, Access::User).map_err(io::Error::other)?;
    let socket = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&path)?;
    let options = Options { policy: Some(policy), ..Options::default() };
    let (started, start) = mpsc::sync_channel(1);
    std::thread::Builder::new().name("monitor".into()).spawn(move || {
        let monitor = match Monitor::new(listener, options) {
            Ok(monitor) => monitor,
            Err(error) => return drop(started.send(Err(error))),
        };
        // The one who started it waits for this.
        let _ = started.send(Ok(()));
        if let Err(error) = monitor.run() {
            eprintln!("the monitor ended: {error}");
        }
    })?;
    start.recv().map_err(io::Error::other)?.map_err(io::Error::other)?;
    folder.close()?;
    Ok(socket)
}
