//! The kernel's TUN device, with checksum and segmentation offload in both directions.
//!
//! The kernel hands over up to 64 KB of a TCP stream as one frame and takes the same. A user
//! without privileges can have one in a user namespace of its own, where `/dev/net/tun` is open
//! to all (udev's default).

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::{Batch, Capabilities, Device, Offload, sys, vnet};

/// Longest frame: an IP packet's length field has 16 bits, and IPv6 does not count its header.
pub const FRAME_MAX: usize = 65_535 + 40;

/// How long an address may take to become usable: the kernel has one thread for that, which waits for network namespaces
/// that end meanwhile.
const ADDRESS_WAIT: Duration = Duration::from_secs(30);

/// Why there is no TUN device.
#[derive(Debug)]
pub enum OpenError {
    /// There is no `/dev/net/tun`.
    Missing(io::Error),
    /// This user may not open `/dev/net/tun`.
    Denied(io::Error),
    /// It may not make interfaces in this network namespace.
    NotAdmin(io::Error),
    /// There is an interface of this name that cannot be joined: another process has it, or it
    /// is no TUN device of this user with as many queues.
    Exists {
        /// Its name.
        name: String,
        /// EBUSY, or why it could not be joined.
        cause: io::Error,
    },
    /// Anything else.
    Io(io::Error),
}

impl OpenError {
    /// What the kernel said.
    pub fn cause(&self) -> &io::Error {
        match self {
            OpenError::Missing(cause)
            | OpenError::Denied(cause)
            | OpenError::NotAdmin(cause)
            | OpenError::Exists { cause, .. }
            | OpenError::Io(cause) => cause,
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = self.cause();
        match self {
            OpenError::Missing(_) => {
                write!(f, "there is no /dev/net/tun ({cause}); load the kernel module tun")
            }
            OpenError::Denied(_) => {
                write!(
                    f,
                    "no permission on the device /dev/net/tun ({cause}); as udev makes it, its mode is 0666"
                )
            }
            OpenError::NotAdmin(_) => write!(
                f,
                "not allowed to make a TUN device in this network namespace ({cause}); `unshare -Urn` gives a user \
                 one of its own"
            ),
            OpenError::Exists { name, .. } => write!(
                f,
                "there is a device {name} already, which cannot be used ({cause}); choose another name, or end the \
                 program that has it"
            ),
            OpenError::Io(_) => write!(f, "the TUN device cannot be used: {cause}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.cause())
    }
}

impl From<io::Error> for OpenError {
    fn from(cause: io::Error) -> OpenError {
        OpenError::Io(cause)
    }
}

/// Opens `/dev/net/tun`, which makes no device yet: succeeds if this user may.
pub fn open_node() -> Result<File, OpenError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    options.open("/dev/net/tun").map_err(|cause| match cause.raw_os_error() {
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => OpenError::Missing(cause),
        Some(libc::EACCES | libc::EPERM) => OpenError::Denied(cause),
        _ => OpenError::Io(cause),
    })
}

/// A TUN device, or one queue of it.
pub struct Tun {
    file: File,
    name: String,
    mtu: u16,
    offloads: bool,
}

impl Tun {
    /// Makes a device, or opens a persistent one that was made for this user
    /// (`ip tuntap add NAME mode tun user USER`). `%d` in the name becomes the first free number.
    ///
    /// # Errors
    ///
    /// [`OpenError::Exists`] if another process made a device of this name, and others.
    pub fn open(name: &str, mtu: u16) -> Result<Tun, OpenError> {
        Tun::make_or_join(name, mtu, 0)
    }

    /// As [`open`](Tun::open), with this many queues, at least one. The kernel sends the packets
    /// of a flow to the queue on which it was last answered, and new flows by a hash. Several
    /// processes share the queues of a device only if it is persistent, with `multi_queue`.
    pub fn open_queues(name: &str, mtu: u16, queues: usize) -> Result<Vec<Tun>, OpenError> {
        let flags = if queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
        let mut opened = vec![Tun::make_or_join(name, mtu, flags)?];
        for _ in 1..queues {
            opened.push(Tun::attach(opened[0].name(), mtu, flags)?);
        }
        Ok(opened)
    }

    /// The first queue. Without IFF_TUN_EXCL the kernel would add it to a device of the same user,
    /// and a second program of the same name would get part of the first one's flows.
    fn make_or_join(name: &str, mtu: u16, flags: libc::c_int) -> Result<Tun, OpenError> {
        let exists = |cause| OpenError::Exists { name: name.to_owned(), cause };
        let busy = match Tun::attach(name, mtu, flags | libc::IFF_TUN_EXCL) {
            Err(OpenError::Io(cause)) if cause.raw_os_error() == Some(libc::EBUSY) => cause,
            made => return made,
        };
        match Tun::set_interface(name, flags) {
            Ok((file, name)) if sys::is_persistent(&file)? => Ok(Tun::attached(file, name, mtu)),
            Ok(_) => Err(exists(busy)),
            Err(OpenError::NotAdmin(cause) | OpenError::Io(cause)) => Err(exists(cause)),
            Err(error) => Err(error),
        }
    }

    fn attach(name: &str, mtu: u16, flags: libc::c_int) -> Result<Tun, OpenError> {
        let (file, name) = Tun::set_interface(name, flags)?;
        Ok(Tun::attached(file, name, mtu))
    }

    /// A queue of the device, which stays as it is.
    fn set_interface(name: &str, flags: libc::c_int) -> Result<(File, String), OpenError> {
        let file = open_node()?;
        let flags = flags | libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        let name = sys::set_interface(&file, name, flags).map_err(|cause| match cause.raw_os_error() {
            Some(libc::EPERM) => OpenError::NotAdmin(cause),
            _ => OpenError::Io(cause),
        })?;
        Ok((file, name))
    }

    fn attached(file: File, name: String, mtu: u16) -> Tun {
        // Without offloads it works, a segment at a time.
        let offloads = sys::set_offloads(&file).is_ok();
        Tun { file, name, mtu, offloads }
    }

    /// Gives the kernel's endpoint an address, and so a route to the addresses of its prefix.
    /// The device has to be up. Returns once sockets can use the address.
    pub fn add_kernel_address(&self, address: IpAddr, prefix: u8) -> io::Result<()> {
        sys::add_address(&self.name, address, prefix)?;
        // An IPv6 address is tentative until a kernel thread has looked at it (RFC 4862, 5.4).
        let deadline = Instant::now() + ADDRESS_WAIT;
        loop {
            match UdpSocket::bind((address, 0)) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrNotAvailable && Instant::now() < deadline =>
                {
                    thread::sleep(Duration::from_millis(1));
                }
                result => return result.map(drop),
            }
        }
    }

    /// Sets the MTU and the length of the queues, and brings the kernel's endpoint up.
    pub fn bring_up(&self) -> io::Result<()> {
        // Where the kernel refuses that, larger bursts lose packets, as with any TUN device.
        let _ = sys::lengthen_queues(&self.name);
        sys::bring_up(&self.name, self.mtu)
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// As of a [`Device`]; the kernel orders what several threads do.
impl Tun {
    pub(crate) fn receive_frames(&self, batch: &mut Batch) -> io::Result<usize> {
        let longest = if self.offloads { FRAME_MAX } else { usize::from(self.mtu) };
        let mut count = 0;
        while let Ok(room) = batch.room_behind::<{ vnet::LEN }>(longest) {
            match rustix::io::read(&self.file, &mut *room) {
                Ok(len) if len > vnet::LEN => {
                    let offload =
                        room.first_chunk().map_or(Offload::default(), |header| vnet::decode(*header));
                    batch.commit(len - vnet::LEN, offload);
                    count += 1;
                }
                Ok(_) | Err(Errno::WOULDBLOCK) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(count)
    }

    pub(crate) fn send_frames(&self, batch: &mut Batch) -> io::Result<usize> {
        let mut count = 0;
        while let Some(frame) = batch.first() {
            let header = vnet::encode(frame.bytes, frame.offload);
            let Some(bytes) = batch.first_behind(header) else { break };
            match rustix::io::write(&self.file, bytes) {
                Err(Errno::WOULDBLOCK) => break,
                Err(Errno::INTR) => continue,
                // The kernel refuses this packet, not the device: it is lost.
                Ok(_) | Err(Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
            batch.remove_first();
            count += 1;
        }
        Ok(count)
    }
}

impl Device for Tun {
    fn capabilities(&self) -> Capabilities {
        let segment = if self.offloads { 65_535 } else { 0 };
        Capabilities { mtu: usize::from(self.mtu), checksum: self.offloads, segment }
    }

    fn receive(&mut self, batch: &mut Batch) -> io::Result<usize> {
        self.receive_frames(batch)
    }

    fn send(&mut self, batch: &mut Batch) -> io::Result<usize> {
        self.send_frames(batch)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use testkit::netns;

    use super::*;
    use crate::{Protocol, View};

    /// Offloads belong to the device: with them, its owner would get datagrams whose checksum is not filled in.
    #[test]
    fn a_device_that_is_refused_keeps_its_offloads() {
        const BOUND: Duration = Duration::from_secs(60);
        if !netns::enter("tun::tests::a_device_that_is_refused_keeps_its_offloads", BOUND) {
            return;
        }
        let (file, name) = Tun::set_interface("mp0", libc::IFF_MULTI_QUEUE).expect("a TUN device");
        let owner = Tun { file, name, mtu: 1500, offloads: false };
        owner.bring_up().expect("up");
        owner.add_kernel_address(Ipv4Addr::new(10, 77, 0, 1).into(), 24).expect("an address");
        assert!(matches!(Tun::open_queues("mp0", 1500, 2), Err(OpenError::Exists { .. })));

        let socket = UdpSocket::bind("10.77.0.1:0").expect("bind");
        socket.send_to(b"whole", "10.77.0.2:9").expect("send");
        let deadline = Instant::now() + BOUND;
        let mut batch = Batch::new(1 << 16);
        loop {
            assert!(Instant::now() < deadline, "the datagram did not arrive");
            batch.clear();
            owner.receive_frames(&mut batch).expect("frames");
            let is_udp = |bytes| View::of(bytes).is_some_and(|view| view.protocol == Protocol::UDP);
            if let Some(datagram) = batch.frames().find(|frame| is_udp(frame.bytes)) {
                assert_eq!(datagram.offload, Offload::default());
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}
