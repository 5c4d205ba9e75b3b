//! The names of libc's functions of variable arguments. The linker exports only what Rust defines,
//! and stable Rust defines no such function: each name is a jump to a function in C, which leaves
//! registers and stack to it as they came.

use std::arch::naked_asm;

unsafe extern "C" {
    fn megapipe_execl();
    fn megapipe_execlp();
    fn megapipe_execle();
    fn megapipe_dprintf();
    fn megapipe_dprintf_chk();
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($to:ident) => {
        naked_asm!("jmp {}", sym $to)
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($to:ident) => {
        naked_asm!("b {}", sym $to)
    };
}

macro_rules! names {
    ($($name:ident = $to:ident;)*) => {$(
        /// As the C function of its name; its arguments are whatever that takes.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            jump!($to)
        }
    )*};
}

names! {
    execl = megapipe_execl;
    execlp = megapipe_execlp;
    execle = megapipe_execle;
    dprintf = megapipe_dprintf;
    __dprintf_chk = megapipe_dprintf_chk;
}
