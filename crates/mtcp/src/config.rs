//! The configuration file, and what mtcp_getconf and mtcp_setconf exchange.

use std::time::Duration;

use libc::c_int;
use packet::TunNetwork;
use tcp::{Limits, Profile};

/// Names the device in place of the file's `port`.
pub(crate) const NETWORK_VARIABLE: &str = "MEGAPIPE_STACK";

/// Says in place of the file's `stack_thread` where stacks run.
pub(crate) const THREAD_VARIABLE: &str = "MEGAPIPE_STACK_THREAD";

/// Where the stacks of contexts run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// In a thread on the context's CPU, as mTCP's.
    Own,
    /// In a thread on a CPU that no context has.
    Other,
    /// Inside the program's calls.
    None,
}

impl Placement {
    fn named(name: &str) -> Option<Placement> {
        match name {
            "own" => Some(Placement::Own),
            "other" => Some(Placement::Other),
            "none" => Some(Placement::None),
            _ => None,
        }
    }
}

/// `struct mtcp_conf`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conf {
    /// Contexts, and queues of the device.
    pub num_cores: c_int,
    /// Connections of a context.
    pub max_concurrency: c_int,
    /// Connections with unread or unacknowledged bytes.
    pub max_num_buffers: c_int,
    /// Unread bytes of a connection.
    pub rcvbuf_size: c_int,
    /// Unacknowledged bytes of a connection.
    pub sndbuf_size: c_int,
    /// Seconds of TIME_WAIT.
    pub tcp_timewait: c_int,
    /// Seconds after which an idle connection ends; -1 for never.
    pub tcp_timeout: c_int,
}

/// What a process has configured.
pub(crate) struct Settings {
    pub(crate) conf: Conf,
    pub(crate) network: Option<TunNetwork>,
    pub(crate) thread: Placement,
}

impl Settings {
    pub(crate) const fn new() -> Settings {
        let conf = Conf {
            num_cores: 0,
            max_concurrency: 10_000,
            max_num_buffers: 10_000,
            rcvbuf_size: 256 << 10,
            sndbuf_size: 256 << 10,
            tcp_timewait: 60,
            tcp_timeout: 30,
        };
        Settings { conf, network: None, thread: Placement::Own }
    }

    /// Takes the settings of a file, and what the environment names: the network, and where stacks run.
    pub(crate) fn read(
        &mut self,
        text: &str,
        network: Option<&str>,
        thread: Option<&str>,
    ) -> Result<(), String> {
        let (mut io, mut port) = (None, None);
        let (mut receive, mut send) = (None, None);
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = || format!("line {}: `{line}` is not KEY = VALUE with a fitting value", number + 1);
            // mTCP reads no further than the first word of a value, and needs no `=`.
            let mut words = line.split([' ', '\t', '=']).filter(|word| !word.is_empty());
            let (Some(key), Some(value)) = (words.next(), words.next()) else { return Err(wrong()) };
            let count = |least: c_int| value.parse().ok().filter(|&n| n >= least).ok_or_else(wrong);
            match key {
                "num_cores" => self.conf.num_cores = count(1)?,
                "max_concurrency" => self.conf.max_concurrency = count(1)?,
                "max_num_buffers" => self.conf.max_num_buffers = count(1)?,
                "rcvbuf" => receive = Some(count(64)?),
                "sndbuf" => send = Some(count(64)?),
                "tcp_timewait" => self.conf.tcp_timewait = count(0)?,
                "tcp_timeout" => self.conf.tcp_timeout = count(c_int::MIN)?.max(-1),
                "stack_thread" => self.thread = Placement::named(value).ok_or_else(wrong)?,
                "io" => io = Some(value),
                "port" => port = Some(value),
                // Of devices, statistics and controllers that are not here.
                _ => {}
            }
        }
        if let Some(thread) = thread {
            let wrong = || format!("{THREAD_VARIABLE}={thread} is none of own, other, none");
            self.thread = Placement::named(thread).ok_or_else(wrong)?;
        }
        // As in mTCP, one buffer's size stands for both.
        if let Some(size) = receive.or(send) {
            self.conf.rcvbuf_size = size;
            self.conf.sndbuf_size = send.unwrap_or(size);
        }
        let named = network.or(port.filter(|_| io == Some("tun")));
        let Some(named) = named else {
            let needed = "`io = tun` with `port = tun:NAME,ADDRESS/PREFIX`";
            return Err(format!("no device: set {NETWORK_VARIABLE}=tun:NAME,ADDRESS/PREFIX, or {needed}"));
        };
        self.network = Some(named.parse().map_err(|error| format!("{error}"))?);
        Ok(())
    }
}

impl Conf {
    /// Cores that contexts can be made for.
    pub(crate) fn cores(&self) -> usize {
        usize::try_from(self.num_cores).ok().filter(|&cores| cores > 0).unwrap_or_else(online)
    }

    /// Numbers of a context: connections, listeners, epoll sets and pipes.
    pub(crate) fn descriptors(&self) -> usize {
        positive(self.max_concurrency)
    }

    pub(crate) fn limits(&self) -> Limits {
        let open = self.descriptors();
        // Those that the program has closed and its peers have not, such as epwget's.
        let flows = open + open.max(4096);
        let active = positive(self.max_num_buffers).min(open);
        let (receive, send) = (positive(self.rcvbuf_size), positive(self.sndbuf_size));
        // All of them at once have a page, and one in eight its whole buffer.
        let pages = |buffer: usize| active + (active * buffer.div_ceil(4096)).div_ceil(8).max(1024);
        Limits {
            flows,
            active,
            receive_pages: pages(receive).min(1 << 18),
            send_pages: pages(send).min(1 << 18),
            receive_buffer: receive as u32,
            send_buffer: send as u32,
            ..Limits::default()
        }
    }

    pub(crate) fn profile(&self) -> Profile {
        let time_wait = Duration::from_secs(u64::try_from(self.tcp_timewait).unwrap_or(0));
        Profile { time_wait, ..Profile::wan() }
    }
}

fn positive(number: c_int) -> usize {
    usize::try_from(number).unwrap_or(1).clamp(1, 1 << 20)
}

/// CPUs that this process may use.
pub(crate) fn online() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_mtcp_are_read() {
        let mut settings = Settings::new();
        let text = "# a comment\nio = dpdk\nnum_mem_ch = 4\nport = dpdk0 dpdk1\nrcvbuf = 8192 bytes # so many\n\
                    stack_thread = other\ntcp_timeout = -2\nnum_cores=2\n\tmax_concurrency\t100\r\n";
        settings.read(text, Some("tun:m0,10.1.0.2/24"), None).expect("a network from the environment");
        assert_eq!(settings.thread, Placement::Other);
        let Conf { num_cores, max_concurrency, rcvbuf_size, sndbuf_size, tcp_timeout, .. } = settings.conf;
        assert_eq!((num_cores, max_concurrency, rcvbuf_size, sndbuf_size), (2, 100, 8192, 8192));
        assert_eq!(tcp_timeout, -1);
        assert!(settings.network.is_some());
        let own = Settings::new().read("io = tun\nport = tun:m0,10.1.0.2/24\n", None, None);
        own.expect("a network from the file");
        settings.read("", Some("tun:m0,10.1.0.2/24"), Some("none")).expect("both from the environment");
        assert_eq!(settings.thread, Placement::None);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let network = Some("tun:m0,10.1.0.2/24");
        for text in ["rcvbuf", "rcvbuf = much", "rcvbuf = 0", "num_cores = 0", "sndbuf =", "stack_thread = 1"]
        {
            let error = Settings::new().read(text, network, None).expect_err(text);
            assert!(error.starts_with("line 1:"), "{error}");
        }
        for (text, network) in [("io = dpdk\nport = dpdk0", None), ("", None), ("", Some("tun:m0"))] {
            assert!(Settings::new().read(text, network, None).is_err(), "{text}");
        }
        let error = Settings::new().read("", network, Some("")).expect_err("no name");
        assert!(error.starts_with(THREAD_VARIABLE), "{error}");
    }
}
