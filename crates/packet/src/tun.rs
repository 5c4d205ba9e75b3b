//! The kernel's TUN device, with checksum and segmentation offload in both directions.
//!
//! The kernel hands over up to 64 KB of a TCP stream as one frame and takes the same. A user
//! without privileges can have one in a user namespace of its own, where `/dev/net/tun` is open
//! to all (udev's default).

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::{Duration, Instant};

use crate::{Batch, Capabilities, Device, sys, vnet};

/// Longest frame: an IP packet's length field has 16 bits, and IPv6 does not count its header.
const FRAME_MAX: usize = 65_535 + 40;

/// How long an address may take to become usable.
const ADDRESS_WAIT: Duration = Duration::from_secs(2);

/// A TUN device, or one queue of it.
pub struct Tun {
    file: File,
    name: String,
    mtu: u16,
    offloads: bool,
}

impl Tun {
    /// Makes a device, or opens one that was made for this user. `%d` in the name becomes the
    /// first free number.
    pub fn open(name: &str, mtu: u16) -> io::Result<Tun> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open("/dev/net/tun")?;
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        let name = sys::set_interface(&file, name, flags)?;
        // Without offloads it works, a segment at a time.
        let offloads = sys::set_offloads(&file).is_ok();
        Ok(Tun { file, name, mtu, offloads })
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

    /// Sets the MTU and brings the kernel's endpoint up.
    pub fn bring_up(&self) -> io::Result<()> {
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

impl Device for Tun {
    fn capabilities(&self) -> Capabilities {
        let segment = if self.offloads { 65_535 } else { 0 };
        Capabilities { mtu: usize::from(self.mtu), checksum: self.offloads, segment }
    }

    fn receive(&mut self, batch: &mut Batch) -> io::Result<usize> {
        let longest = if self.offloads { FRAME_MAX } else { usize::from(self.mtu) };
        let mut count = 0;
        while let Ok(room) = batch.room(longest) {
            let mut header = [0; vnet::LEN];
            let read = self.file.read_vectored(&mut [IoSliceMut::new(&mut header), IoSliceMut::new(room)]);
            match read {
                Ok(len) if len > vnet::LEN => {
                    batch.commit(len - vnet::LEN, vnet::decode(header));
                    count += 1;
                }
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    fn send(&mut self, batch: &mut Batch) -> io::Result<usize> {
        let mut count = 0;
        while let Some(frame) = batch.first() {
            let header = vnet::encode(frame.bytes, frame.offload);
            match self.file.write_vectored(&[IoSlice::new(&header), IoSlice::new(frame.bytes)]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The kernel refuses this packet, not the device: it is lost.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            batch.remove_first();
            count += 1;
        }
        Ok(count)
    }
}
