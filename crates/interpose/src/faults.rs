//! Memory of the program that may not be mapped.
//!
//! For such memory the kernel returns EFAULT. A copy by the library would crash the program, so the
//! library first touches a byte of each page, by instructions that [`recovers`] recognizes: a fault
//! there becomes a return value.
#![allow(unsafe_code)] // instructions that may fault, and the frame of the signal that they bring

use std::arch::global_asm;

use libc::ucontext_t;

/// The functions below, in a processor's instructions: load a byte from the first address, store it
/// there, continue with the next page up to the last address, and return.
macro_rules! touches {
    ($load:literal, $store:literal, [$($go_on:literal),+], $answer:literal) => {
        global_asm!(
            ".pushsection .text.megapipe_touch,\"ax\",%progbits",
            ".hidden megapipe_touch_to_read",
            ".globl megapipe_touch_to_read",
            ".type megapipe_touch_to_read, %function",
            "megapipe_touch_to_read:",
            "2:",
            $load,
            $($go_on,)+
            concat!($answer, "0"),
            "ret",
            ".hidden megapipe_touch_to_write",
            ".globl megapipe_touch_to_write",
            ".type megapipe_touch_to_write, %function",
            "megapipe_touch_to_write:",
            "2:",
            $load,
            $store,
            $($go_on,)+
            concat!($answer, "0"),
            "ret",
            ".hidden megapipe_touch_failed",
            ".globl megapipe_touch_failed",
            "megapipe_touch_failed:",
            concat!($answer, "1"),
            "ret",
            ".popsection",
        );
    };
}

#[cfg(target_arch = "x86_64")]
touches!(
    "movzx eax, byte ptr [rdi]",
    "mov byte ptr [rdi], al",
    ["and rdi, -4096", "add rdi, 4096", "cmp rdi, rsi", "jbe 2b"],
    "mov eax, "
);
#[cfg(target_arch = "aarch64")]
touches!(
    "ldrb w2, [x0]",
    "strb w2, [x0]",
    ["and x0, x0, #-4096", "add x0, x0, #4096", "cmp x0, x1", "b.ls 2b"],
    "mov x0, #"
);

// Each takes the first and the last byte of a nonempty range, and returns 0, or 1 if a page faults.
// The bytes stay as they are.
unsafe extern "C" {
    fn megapipe_touch_to_read(first: *const u8, last: *const u8) -> usize;
    fn megapipe_touch_to_write(first: *mut u8, last: *mut u8) -> usize;
    fn megapipe_touch_failed();
}

/// Whether all pages of the range can be read; its end must not exceed the address space.
#[inline]
pub(crate) fn can_be_read(start: *const u8, length: usize) -> bool {
    // SAFETY: it only reads, and a fault becomes its return value.
    length == 0 || unsafe { megapipe_touch_to_read(start, start.wrapping_add(length - 1)) } == 0
}

/// Whether they can be written. The call owns the range, as a call of the kernel would: each byte
/// touched is written as it was read.
#[inline]
pub(crate) fn can_be_written(start: *mut u8, length: usize) -> bool {
    // SAFETY: bytes that the call may change stay what they are, and a fault becomes its return
    // value.
    length == 0 || unsafe { megapipe_touch_to_write(start, start.wrapping_add(length - 1)) } == 0
}

/// Whether one of the instructions above caused the signal: the thread continues with their return
/// value.
///
/// # Safety
///
/// `context` is the frame of a signal of this thread.
pub(crate) unsafe fn recovers(context: *mut ucontext_t) -> bool {
    let (first, failed) =
        ((megapipe_touch_to_read as *const ()).addr(), (megapipe_touch_failed as *const ()).addr());
    // SAFETY: the caller's promise; sigreturn(2) continues at the address stored there.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        let place = &raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
        #[cfg(target_arch = "aarch64")]
        let place = &raw mut (*context).uc_mcontext.pc;
        let touched = (first..failed).contains(&(*place as usize));
        if touched {
            *place = failed as _;
        }
        touched
    }
}
