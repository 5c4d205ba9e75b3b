//! Steering within a SO_REUSEPORT group by a classic BPF program (socket(7),
//! SO_ATTACH_REUSEPORT_CBPF).

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Instructions the kernel takes (BPF_MAXINSNS).
pub const PROGRAM_MAX: usize = 4096;

/// A result no group has a member for: the kernel then chooses by hash.
const BY_HASH: u32 = u32::MAX;

/// `SKF_AD_OFF + SKF_AD_CPU`: the CPU that handles the packet.
const CPU: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_CPU) as u32;
/// `SKF_AD_OFF + SKF_AD_RANDOM`.
const RANDOM: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;

const LOAD_ABSOLUTE: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const MODULO: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// A program that sends a connection to the member in whose mask its CPU is; to one of
/// them at random if there are several, by hash if there is none. `masks[i]` are the CPUs
/// of member `i`.
pub fn steer_by_cpu(masks: &[Vec<u32>]) -> Vec<libc::sock_filter> {
    let instruction = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let unless = |k, skip| libc::sock_filter { code: JUMP_IF_EQUAL, jt: 0, jf: skip, k };
    let mut cpus: Vec<u32> = masks.iter().flatten().copied().collect();
    cpus.sort_unstable();
    cpus.dedup();
    let mut program = vec![instruction(LOAD_ABSOLUTE, CPU)];
    for cpu in cpus {
        let members = (0u32..).zip(masks).filter(|(_, mask)| mask.contains(&cpu)).map(|(member, _)| member);
        // A conditional jump reaches 255 instructions: more sharers than that of one CPU
        // gain nothing, so the rest of them is left to other CPUs.
        let members: Vec<u32> = members.take(120).collect();
        if let [only] = members[..] {
            program.push(unless(cpu, 1));
            program.push(instruction(RETURN, only));
            continue;
        }
        program.push(unless(cpu, 2 + 2 * members.len() as u8));
        program.push(instruction(LOAD_ABSOLUTE, RANDOM));
        program.push(instruction(MODULO, members.len() as u32));
        for (place, member) in (0u32..).zip(&members) {
            program.push(unless(place, 1));
            program.push(instruction(RETURN, *member));
        }
    }
    program.push(instruction(RETURN, BY_HASH));
    program
}

/// Makes `program` the one of the whole group that `member` belongs to.
pub fn attach(member: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: program.len().try_into().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads `len` instructions from a live slice, and copies them.
    let status = unsafe {
        libc::setsockopt(
            member.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const filter).cast(),
            mem::size_of_val(&filter) as libc::socklen_t,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program returns on `cpu`, with `random` as its random word.
    fn run(program: &[libc::sock_filter], cpu: u32, random: u32) -> u32 {
        let (mut at, mut a) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            match step.code {
                LOAD_ABSOLUTE => a = if step.k == CPU { cpu } else { random },
                JUMP_IF_EQUAL => at += usize::from(if a == step.k { step.jt } else { step.jf }),
                MODULO => a %= step.k,
                RETURN => return step.k,
                other => panic!("unknown instruction {other}"),
            }
        }
    }

    #[test]
    fn each_cpu_reaches_its_members() {
        let program = steer_by_cpu(&[vec![0, 1], vec![2], vec![1, 700], vec![]]);
        assert_eq!(run(&program, 0, 9), 0);
        assert_eq!(run(&program, 2, 9), 1);
        assert_eq!(run(&program, 700, 9), 2);
        assert_eq!(run(&program, 1, 0), 0);
        assert_eq!(run(&program, 1, 1), 2);
        assert_eq!(run(&program, 3, 1), BY_HASH);
    }
}
