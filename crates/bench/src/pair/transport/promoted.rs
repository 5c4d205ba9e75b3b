//! A TCP connection between two channels that has moved to shared memory.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use channel::{Buffer, Channel, Completion, Config, Event, Handle, Promotion, ReadData};
use monitor::{Listener, Monitor, Options};

use super::socket::Tcp;
use super::{End, Settings, Side, exactly};

/// One end: a channel of its own.
pub(super) struct Promoted {
    channel: Channel,
    handle: Handle,
    /// What was read and not asked for yet.
    rest: VecDeque<Buffer>,
}

/// How long two ends may take to meet.
const PATIENCE: Duration = Duration::from_secs(10);

impl End for Promoted {
    fn pair(settings: &Settings) -> io::Result<[Vec<OwnedFd>; 2]> {
        let [mut first, mut second] = Tcp::pair(settings)?;
        let folder = monitor_folder()?;
        for end in [&mut first, &mut second] {
            end.push(std::fs::File::open(&folder)?.into());
        }
        Ok([first, second])
    }

    fn attach(_: Side, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [socket, folder] = exactly(descriptors)?;
        let config = Config {
            promotion: Promotion::Eager,
            monitor: Some(PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()))),
            buffer_size: 64 << 10,
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
                Err(channel::SubmitError::QueueFull) => self.fetch(Some(Duration::from_millis(1)))?,
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    /// Hands a bell, or what goes through the kernel, over.
    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        self.channel.flush().map_err(io::Error::other)
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        if self.rest.is_empty()
            && let Some(data) = self.next()?
        {
            // The usual case: this message, the whole of it, and nothing else.
            if data.len() == message.len() {
                message.copy_from_slice(&data);
                return Ok(());
            }
            self.rest.push_back(data);
        }
        let mut received = 0;
        loop {
            while received < message.len()
                && let Some(rest) = self.rest.front_mut()
            {
                let here = rest.len().min(message.len() - received);
                message[received..received + here].copy_from_slice(&rest[..here]);
                received += here;
                rest.advance(here);
                if rest.is_empty() {
                    self.rest.pop_front();
                }
            }
            if received == message.len() {
                return Ok(());
            }
            self.fetch(None)?;
        }
    }

    #[inline]
    fn take(&mut self, message: &mut [u8]) -> io::Result<()> {
        let mut left = message.len();
        loop {
            while left > 0
                && let Some(rest) = self.rest.front_mut()
            {
                let here = rest.len().min(left);
                rest.advance(here);
                left -= here;
                if rest.is_empty() {
                    self.rest.pop_front();
                }
            }
            if left == 0 {
                return Ok(());
            }
            self.fetch(None)?;
        }
    }
}

impl Promoted {
    /// What the next completion brought.
    #[inline]
    fn next(&mut self) -> io::Result<Option<Buffer>> {
        let completion = self.channel.dispatch(None).map_err(io::Error::other)?;
        Self::bytes_of(completion)
    }

    #[inline]
    fn fetch(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let completion = self.channel.dispatch(timeout).map_err(io::Error::other)?;
        self.rest.extend(Self::bytes_of(completion)?);
        Ok(())
    }

    #[inline]
    fn bytes_of(completion: Option<Completion>) -> io::Result<Option<Buffer>> {
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

const SOCKET: &str = "monitor.sock";

/// Where a monitor of this process's own listens, which every user's two processes may meet at.
fn monitor_folder() -> io::Result<PathBuf> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOLDER
        .get_or_init(|| start_monitor().map_err(|error| error.to_string()))
        .clone()
        .map_err(io::Error::other)
}

fn start_monitor() -> io::Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("megapipe-bench-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let policy = folder.join("policy.toml");
    std::fs::write(&policy, "same_user = true\n")?;
    let listener = Listener::bind(&folder.join(SOCKET)).map_err(io::Error::other)?;
    let options = Options { policy: Some(policy), ..Options::default() };
    std::thread::Builder::new().name("monitor".into()).spawn(move || {
        if let Err(error) = Monitor::new(listener, options).and_then(Monitor::run) {
            eprintln!("the monitor ended: {error}");
        }
    })?;
    Ok(folder)
}
