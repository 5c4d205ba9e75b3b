//! vfork(2), which returns twice on the stack of who calls it: nothing of ours may lie there then, so its name is a
//! jump to the next function of that name.

use std::arch::naked_asm;

use interpose::calls::next_vfork;

macro_rules! names {
    ($($name:ident)*) => {$(
        /// As the C function of its name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() -> libc::pid_t {
            #[cfg(target_arch = "x86_64")]
            naked_asm!("sub rsp, 8", "call {}", "add rsp, 8", "jmp rax", sym next_vfork);
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-16]!",
                "bl {}",
                "ldp x29, x30, [sp], #16",
                "mov x16, x0",
                "br x16",
                sym next_vfork
            );
        }
    )*};
}

names! { vfork __vfork }
