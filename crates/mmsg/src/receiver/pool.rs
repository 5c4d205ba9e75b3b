//! Buffers that messages are received into.

use std::cell::RefCell;
use std::io;
use std::mem;
use std::rc::Rc;

use sys::mapping::Mapping;

/// Bytes of control messages that a buffer has room for: a GRO segment size.
const CONTROL: usize = 64;

/// From one buffer to the next: small messages at the beginning of buffers whose size is a power
/// of two would share few lines of the cache.
const fn stride(size: usize) -> usize {
    size.next_multiple_of(CACHE_LINE) + CACHE_LINE
}

const CACHE_LINE: usize = 64;

/// Equal buffers, each with a message header that points into it.
pub(crate) struct Pool {
    memory: Mapping,
    slots: Mapping,
    count: usize,
    size: usize,
    free: RefCell<Vec<u32>>,
}

/// A buffer's header and what lies beside its data.
#[repr(C)]
struct Slot {
    header: libc::mmsghdr,
    piece: libc::iovec,
    name: libc::sockaddr_storage,
    control: [u64; CONTROL / 8],
}

/// What the kernel is to tell with each message.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) addresses: bool,
    pub(crate) gro: bool,
}

impl Pool {
    pub(crate) fn new(count: usize, size: usize) -> io::Result<Rc<Pool>> {
        let bytes = count.checked_mul(stride(size)).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Mapping::anonymous(bytes)?;
        let slots = Mapping::anonymous(count * mem::size_of::<Slot>())?;
        for at in 0..count {
            // SAFETY: both mappings are new, zeroed, and hold `count` elements; zero is a value
            // of everything in a slot.
            unsafe {
                let slot = slots.address().cast::<Slot>().add(at);
                (*slot).piece.iov_base = memory.address().add(at * stride(size)).cast();
                (*slot).piece.iov_len = size;
                (*slot).header.msg_hdr.msg_iov = &raw mut (*slot).piece;
                (*slot).header.msg_hdr.msg_iovlen = 1;
            }
        }
        // The lowest is taken first, and a freed one next: what is used stays in the cache.
        let free = RefCell::new((0..count as u32).rev().collect());
        Ok(Rc::new(Pool { memory, slots, count, size, free }))
    }

    pub(crate) fn available(&self) -> usize {
        self.free.borrow().len()
    }

    pub(crate) fn take(&self) -> Option<u32> {
        self.free.borrow_mut().pop()
    }

    pub(crate) fn give_back(&self, buffer: u32) {
        self.free.borrow_mut().push(buffer);
    }

    /// Where the data goes, and how much there is room for.
    #[inline]
    pub(crate) fn room(&self, buffer: u32) -> (*mut u8, usize) {
        debug_assert!((buffer as usize) < self.count);
        // SAFETY: buffers are numbered below the count, for which the mapping has room.
        (unsafe { self.memory.address().add(buffer as usize * stride(self.size)) }, self.size)
    }

    /// The header, ready for recvmsg(2).
    pub(crate) fn header(&self, buffer: u32, wanted: Wanted) -> *mut libc::mmsghdr {
        let slot = self.slot(buffer);
        // SAFETY: the slot is within the mapping, and its buffer is in nobody else's hands.
        unsafe {
            let header = &raw mut (*slot).header.msg_hdr;
            if wanted.addresses {
                (*header).msg_name = (&raw mut (*slot).name).cast();
                (*header).msg_namelen = mem::size_of::<libc::sockaddr_storage>() as u32;
            }
            if wanted.gro {
                (*header).msg_control = (&raw mut (*slot).control).cast();
                (*header).msg_controllen = CONTROL as _;
            }
            &raw mut (*slot).header
        }
    }

    /// The sender's address in the header of a received message; none if it has none.
    pub(crate) fn name(&self, buffer: u32) -> &[u8] {
        let slot = self.slot(buffer);
        // SAFETY: the slot is within the mapping; the kernel wrote so many bytes of the name at
        // most, and writes no more while the message is out.
        unsafe {
            let len = (*slot).header.msg_hdr.msg_namelen as usize;
            let name = (&raw const (*slot).name).cast::<u8>();
            std::slice::from_raw_parts(name, len.min(mem::size_of::<libc::sockaddr_storage>()))
        }
    }

    /// Length of a message received with others (recvmmsg(2)).
    pub(crate) fn len_of(&self, buffer: u32) -> usize {
        // SAFETY: the slot is within the mapping.
        unsafe { (*self.slot(buffer)).header.msg_len as usize }
    }

    /// The length of the datagrams in a train (UDP_GRO); none for a single one.
    pub(crate) fn segment(&self, buffer: u32) -> Option<usize> {
        let slot = self.slot(buffer);
        // SAFETY: the kernel wrote whole control messages into the slot's aligned room and their
        // length into the header.
        unsafe {
            let header = &raw const (*slot).header.msg_hdr;
            let mut at = libc::CMSG_FIRSTHDR(header);
            while !at.is_null() {
                if (*at).cmsg_level == libc::SOL_UDP && (*at).cmsg_type == libc::UDP_GRO {
                    let size = libc::CMSG_DATA(at).cast::<libc::c_int>().read_unaligned();
                    return usize::try_from(size).ok();
                }
                at = libc::CMSG_NXTHDR(header, at);
            }
        }
        None
    }

    #[inline]
    fn slot(&self, buffer: u32) -> *mut Slot {
        debug_assert!((buffer as usize) < self.count);
        // SAFETY: buffers are numbered below the count, which is the number of slots mapped.
        unsafe { self.slots.address().cast::<Slot>().add(buffer as usize) }
    }
}
