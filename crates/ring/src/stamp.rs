//! When bytes were published, by the one clock of all processors that a program reads without a call: what lets a
//! receiver report connections in the order in which their peers wrote.

/// Ticks since some time: on x86 an invariant time-stamp counter (Intel SDM volume 3, 19.17), on Arm the virtual counter
/// (Arm ARM, D13.8). Other machines have none, and 0.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) fn now() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction reads a counter and nothing else.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let ticks;
        // SAFETY: as above; Linux lets programs read this register.
        unsafe {
            std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
        };
        ticks
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    0
}
