//! One endpoint works while its peer writes arbitrary values into its own region and
//! page. Driven by a byte string: from the fuzzer, and from a test with random strings.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use ring::layout::{LOOP_PAGE_SIZE, MIN_SIZE, format_loop_page, format_region};
use ring::{Corrupt, DemotionStep, Endpoint, Path, PeerLoop, PeerRegion, Ready, Region, WakeUp};

/// Zeroed memory that begins with `head`.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    fn new(size: usize, head: &[u8]) -> Memory {
        let layout = Layout::from_size_align(size, 4096).expect("a power of two");
        // SAFETY: the size is not 0, and `head` is shorter.
        let start = unsafe {
            let start = NonNull::new(alloc_zeroed(layout)).unwrap_or_else(|| handle_alloc_error(layout));
            start.as_ptr().copy_from_nonoverlapping(head.as_ptr(), head.len());
            start
        };
        Memory { start, layout }
    }

    /// Writes a word at a time, as another process would.
    fn poke(&self, offset: usize, value: u32) {
        assert!(offset + 4 <= self.layout.size() && offset.is_multiple_of(4));
        // SAFETY: inside the allocation; no references to it exist.
        unsafe { self.start.as_ptr().add(offset).cast::<u32>().write(value) };
    }

    fn word(&self, offset: usize) -> u32 {
        assert!(offset + 4 <= self.layout.size() && offset.is_multiple_of(4));
        // SAFETY: as above.
        unsafe { self.start.as_ptr().add(offset).cast::<u32>().read() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: with the layout of its allocation; the endpoints were dropped before.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Words of a region that its peer reads: aware, armed, ended, runs, records, tail, base,
/// head.
const WORDS: [usize; 14] = [12, 64, 68, 128, 132, 192, 196, 200, 204, 1024, 1028, 1032, 1040, 1044];
/// Those of a demotion: demoted, at_kernel, owes, returned, returned_accepted.
const DEMOTION: [usize; 5] = [76, 96, 100, 112, 120];
/// The `owes` of an endpoint that requests the return of all unread bytes.
const WANTS_RETURN: u32 = u32::MAX - 1;

struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    fn size(&mut self) -> Option<usize> {
        Some(usize::from(self.byte()?) * usize::from(self.byte()?))
    }
}

/// Runs one script; returns how the connection ended, if it did.
pub(crate) fn run(script: &[u8]) -> Option<Corrupt> {
    let regions = [(); 2].map(|()| Memory::new(MIN_SIZE, &format_region(MIN_SIZE).expect("a size")));
    let page = Memory::new(LOOP_PAGE_SIZE, &format_loop_page());
    // SAFETY: the memory is dropped after its users, since it was declared before.
    let (own, peer, mut peer_loop) = unsafe {
        (
            Region::new(regions[0].start, MIN_SIZE).expect("formatted"),
            PeerRegion::new(regions[1].start, MIN_SIZE).expect("formatted"),
            PeerLoop::new(page.start).expect("formatted"),
        )
    };
    let mut endpoint = match Endpoint::new(own, peer) {
        Ok(endpoint) => endpoint,
        Err(corrupt) => return Some(corrupt),
    };
    let mut script = Script(script);
    let mut buffer = vec![0; 1 << 16];
    // At most one step for each byte.
    while let Some(step) = script.byte() {
        if let Err(corrupt) =
            self::step(&mut endpoint, &mut peer_loop, step, &mut script, &mut buffer, &regions[1], &page)
        {
            return Some(corrupt);
        }
    }
    None
}

fn step(
    endpoint: &mut Endpoint,
    peer_loop: &mut PeerLoop,
    step: u8,
    script: &mut Script<'_>,
    buffer: &mut [u8],
    theirs: &Memory,
    page: &Memory,
) -> Result<(), Corrupt> {
    let size = script.size().unwrap_or(1);
    let (sender, receiver) = (&mut endpoint.sender, &mut endpoint.receiver);
    match step % 24 {
        // Near the valid values, and arbitrary ones.
        0..=5 => {
            let offset = WORDS[size % WORDS.len()];
            theirs.poke(offset, theirs.word(offset).wrapping_add(u32::from(step / 24)));
        }
        6 => theirs.poke(WORDS[size % WORDS.len()], (size as u32).wrapping_mul(0x9e37_79b9)),
        7 => theirs.poke(WORDS[size % WORDS.len()], u32::MAX),
        8 => page.poke(64, size as u32),
        9 => assert!(sender.write([&buffer[..size]], usize::MAX, None)? <= size),
        10 => assert!(endpoint.write([&buffer[..size], &buffer[..7]], size)? <= size),
        11 => drop(sender.open_ring()?),
        12 => drop(sender.open_tcp()?),
        13 => {
            if sender.wants_tcp_wake_up(peer_loop) {
                sender.woke_peer(peer_loop, size.is_multiple_of(2));
            }
        }
        14 => sender.sent_over_tcp(size as u64),
        15 => drop(sender.drained()?),
        16 => {
            let ready = receiver.poll()?;
            let consumed = receiver.read(&mut buffer[..size])?;
            if let Ready::Ring(here) = ready {
                assert_eq!(consumed, here.min(size));
            }
        }
        17 => drop(receiver.peek(size / 2, &mut buffer[..size])?),
        18 => assert!(receiver.skip(size)? <= size),
        19 => drop(receiver.tcp(size as u64)?),
        20 => receiver.consumed_tcp(size as u64),
        21 => drop(receiver.arm(WakeUp::Tcp)?),
        22 => {
            receiver.save();
            receiver.resume()?;
            sender.resume();
        }
        _ if step >= 216 => theirs.poke(DEMOTION[size % DEMOTION.len()], (size / DEMOTION.len()) as u32),
        _ if step >= 192 => theirs.poke(DEMOTION[2], WANTS_RETURN),
        _ if step >= 144 => {
            receiver.demote();
            if receiver.demotion_step()? == DemotionStep::Return
                && receiver.is_return_wanted() == Some(true)
                && receiver.left_to_consume() == 0
            {
                assert!(sender.return_bytes(&buffer[..size])? <= size);
                receiver.returned_all();
            }
        }
        _ if step >= 96 => {
            let left = sender.about_to_send_over_tcp();
            if sender.wants_return()? {
                let mut back = Vec::new();
                sender.accept_returned(&mut back)?;
                assert!(back.len() <= sender.ring_length());
            } else {
                let count = sender.peek_owed(&mut buffer[..size])?;
                assert!(count <= size && (left || !sender.peer_is_demoted()));
                sender.resent(count)?;
            }
        }
        _ => {
            for ahead in receiver.ahead(size as u64)? {
                if ahead.path == Path::Ring {
                    assert!(receiver.copy_ahead(ahead.skip, &mut buffer[..size]) <= size);
                }
            }
            let _ = (receiver.is_at_end_of_ring()?, sender.peer_ended(), sender.free(size)?);
        }
    }
    Ok(())
}
