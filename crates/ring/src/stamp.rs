//! Publication times, by a clock that all CPUs share and that a program reads without a
//! system call. A receiver uses them to report connections in the order in which their
//! peers wrote.

/// Ticks since an arbitrary time: on x86 the invariant time-stamp counter (Intel SDM
/// volume 3, 19.17), on Arm the virtual counter (Arm ARM, D13.8). Other architectures
/// return 0.
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
        // SAFETY: as above; Linux permits user space to read this register.
        unsafe {
            std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
        };
        ticks
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    0
}
