//! Reads into memory given by its address: pool buffers, the spare capacity of vectors,
//! memory of C callers.
#![allow(unsafe_code)] // raw addresses go to the kernel

use std::io;
use std::os::fd::BorrowedFd;

use sys::file::Place;
use sys::socket;

use crate::buffer::{DATAGRAM_OFFSET, NAME_OFFSET, NAME_SIZE, Pool, ReadData};
use crate::source::Shape;

/// Reads into the pool's buffer `id`, which the caller took from the free list and keeps
/// to itself. A message is put there with its header and sender, which the count includes.
#[inline]
pub(super) fn read_to_pool(
    fd: BorrowedFd<'_>,
    shape: Shape,
    place: Place,
    pool: &Pool,
    id: u16,
) -> io::Result<usize> {
    let address = pool.address(id);
    let size = pool.buffer_size() as usize;
    match shape {
        // SAFETY: the buffer is `size` bytes of the pool's mapping, and the caller alone
        // holds its id.
        Shape::Stream { .. } | Shape::Listener { .. } => unsafe { socket::receive(fd, address, size) },
        Shape::Datagram { .. } => {
            let payload = address.wrapping_add(DATAGRAM_OFFSET);
            let mut pieces = [piece(payload, size - DATAGRAM_OFFSET)];
            let name = Some((address.wrapping_add(NAME_OFFSET), NAME_SIZE as u32));
            // SAFETY: as above; name and payload are disjoint parts of the buffer, whose
            // size is at least 256 (`Config::check`).
            let received = unsafe { socket::receive_message(fd, &mut pieces, name)? };
            let header = [received.name_len, 0, received.len as u32, received.flags as u32];
            // SAFETY: the header lies before the name; the buffer starts at a multiple of
            // its size, so no alignment is assumed.
            unsafe { address.cast::<[u32; 4]>().write_unaligned(header) };
            Ok(DATAGRAM_OFFSET + received.len)
        }
        // SAFETY: as for a stream.
        Shape::Pipe { .. } | Shape::File => unsafe { sys::file::read(fd, &[piece(address, size)], place) },
    }
}

/// Reads into the caller's memory. `pieces` is scratch space.
pub(super) fn read_to_caller(
    fd: BorrowedFd<'_>,
    shape: Shape,
    place: Place,
    data: &mut ReadData,
    pieces: &mut Vec<libc::iovec>,
) -> io::Result<usize> {
    pieces.clear();
    data.for_each_room(&mut |address, len| pieces.push(piece(address, len)));
    // SAFETY: the rooms are spare capacity that `data` owns and that we borrow mutably, or
    // memory that a C caller promised for the time of the operation (`Foreign::new`).
    unsafe {
        match (shape, &mut pieces[..]) {
            (Shape::Stream { .. } | Shape::Listener { .. } | Shape::Datagram { .. }, [one]) => {
                socket::receive(fd, one.iov_base.cast(), one.iov_len)
            }
            (Shape::Stream { .. } | Shape::Listener { .. } | Shape::Datagram { .. }, pieces) => {
                socket::receive_message(fd, pieces, None).map(|received| received.len)
            }
            (Shape::Pipe { .. } | Shape::File, pieces) => sys::file::read(fd, pieces, place),
        }
    }
}

fn piece(address: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: address.cast(), iov_len: len }
}
