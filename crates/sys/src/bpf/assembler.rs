//! Instructions of the BPF virtual machine (kernel: Documentation/bpf/standardization/instruction-set.rst).

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A register. R0 has results, R1 to R5 are arguments and do not survive a call, R6 to R9 do, and
/// R10 is the end of the stack frame of 512 bytes. At the start R1 is the program's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// How much a load or store moves; loads of less than 64 bits clear the rest of the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Size {
    /// 32 bits.
    Word = 0x00,
    /// 8 bits.
    Byte = 0x10,
    /// 64 bits.
    Double = 0x18,
}

/// The second operand of most instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The value of a register.
    Register(Register),
    /// A constant, sign-extended to 64 bits.
    Immediate(i32),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Operand {
        Operand::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(value: i32) -> Operand {
        Operand::Immediate(value)
    }
}

/// What a 64-bit instruction does with its destination and its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Arithmetic {
    Add = 0x00,
    Subtract = 0x10,
    And = 0x50,
    ShiftLeft = 0x60,
    /// Unsigned; by zero leaves the destination as it is.
    Modulo = 0x90,
    Move = 0xb0,
}

/// When a jump is taken: a comparison of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Condition {
    Equal = 0x10,
    NotEqual = 0x50,
    SignedGreater = 0x60,
    /// Unsigned.
    Less = 0xa0,
}

/// A function of the kernel that a program may call (bpf-helpers(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Helper {
    /// `bpf_map_lookup_elem(map, key)`: the address of a value, or 0.
    MapLookup = 1,
    /// `bpf_ktime_get_ns()`: CLOCK_MONOTONIC.
    MonotonicTime = 5,
    /// `bpf_get_prandom_u32()`.
    Random = 7,
    /// `bpf_get_smp_processor_id()`.
    Cpu = 8,
    /// `bpf_sk_select_reuseport(context, sockets, key, 0)`: 0 if the entry has a socket of the group.
    SelectReuseport = 82,
    /// `bpf_get_ns_current_pid_tgid(device, inode, result, 8)`: 0 if the caller is in that pid namespace.
    NamespacePid = 120,
}

/// A place in the code to jump to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Why code could not be assembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    /// A jump to a label without a place.
    #[error("the jump at instruction {at} leads to a label that has no place")]
    NoPlace {
        /// The instruction's number.
        at: usize,
    },
    /// Jumps reach 32,767 instructions.
    #[error("the jump at instruction {at} is too long")]
    TooFar {
        /// The instruction's number.
        at: usize,
    },
}

/// Instructions that a kernel may verify. They name maps by descriptor, hence the lifetime.
#[derive(Clone, Debug)]
pub struct Code<'maps> {
    pub(super) instructions: Vec<Instruction>,
    maps: PhantomData<BorrowedFd<'maps>>,
}

/// `struct bpf_insn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    /// Destination in the half that `struct bpf_insn` declares first.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Puts instructions one behind the other, and jumps to their labels.
#[derive(Debug, Default)]
pub struct Assembler<'maps> {
    instructions: Vec<Instruction>,
    /// Where each label's place is.
    places: Vec<Option<usize>>,
    /// Jumps, by their instructions' numbers.
    jumps: Vec<(usize, Label)>,
    maps: PhantomData<BorrowedFd<'maps>>,
}

impl<'maps> Assembler<'maps> {
    /// Without an instruction.
    pub fn new() -> Self {
        Self::default()
    }

    /// A label, whose place is given by [`Self::place`].
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// The next instruction is where jumps to `label` lead.
    pub fn place(&mut self, label: Label) -> &mut Self {
        self.places[label.0] = Some(self.instructions.len());
        self
    }

    /// `destination = operand`.
    pub fn set(&mut self, destination: Register, operand: impl Into<Operand>) -> &mut Self {
        self.arithmetic(Arithmetic::Move, destination, operand)
    }

    /// `destination = destination (operation) operand`, 64 bits wide.
    pub fn arithmetic(
        &mut self,
        operation: Arithmetic,
        destination: Register,
        operand: impl Into<Operand>,
    ) -> &mut Self {
        self.push_with_operand(ARITHMETIC_64 | operation as u8, destination, 0, operand.into())
    }

    /// `destination = *(base + offset)`.
    pub fn load(&mut self, size: Size, destination: Register, base: Register, offset: i16) -> &mut Self {
        self.push(LOAD | MEMORY | size as u8, destination, base, offset, 0)
    }

    /// `*(base + offset) = operand`.
    pub fn store(
        &mut self,
        size: Size,
        base: Register,
        offset: i16,
        operand: impl Into<Operand>,
    ) -> &mut Self {
        match operand.into() {
            Operand::Register(source) => {
                self.push(STORE_REGISTER | MEMORY | size as u8, base, source, offset, 0)
            }
            Operand::Immediate(value) => {
                self.push(STORE | MEMORY | size as u8, base, Register::R0, offset, value)
            }
        }
    }

    /// `*(base + offset) += source`, atomically; of 64 bits.
    pub fn atomic_add(&mut self, base: Register, offset: i16, source: Register) -> &mut Self {
        self.push(STORE_REGISTER | ATOMIC | Size::Double as u8, base, source, offset, 0)
    }

    /// A constant of 64 bits.
    pub fn set_wide(&mut self, destination: Register, value: u64) -> &mut Self {
        self.wide(destination, 0, value)
    }

    /// The map that a helper takes as its argument.
    pub fn set_map(&mut self, destination: Register, map: BorrowedFd<'maps>) -> &mut Self {
        self.wide(destination, PSEUDO_MAP_FD, map.as_raw_fd() as u64)
    }

    /// Calls a helper: arguments in R1 to R5, result in R0.
    pub fn call(&mut self, helper: Helper) -> &mut Self {
        self.push(JUMP | CALL, Register::R0, Register::R0, 0, helper as i32)
    }

    /// Goes on at `label`.
    pub fn jump(&mut self, label: Label) -> &mut Self {
        self.jumps.push((self.instructions.len(), label));
        self.push(JUMP, Register::R0, Register::R0, 0, 0)
    }

    /// Goes on at `label` if the condition holds.
    pub fn jump_if(
        &mut self,
        condition: Condition,
        left: Register,
        right: impl Into<Operand>,
        label: Label,
    ) -> &mut Self {
        self.jumps.push((self.instructions.len(), label));
        self.push_with_operand(JUMP | condition as u8, left, 0, right.into())
    }

    /// Ends the program with R0 as its result.
    pub fn exit(&mut self) -> &mut Self {
        self.push(JUMP | EXIT, Register::R0, Register::R0, 0, 0)
    }

    /// The instructions with their jumps.
    ///
    /// # Errors
    ///
    /// [`AssembleError`].
    pub fn finish(&mut self) -> Result<Code<'maps>, AssembleError> {
        for &(at, Label(label)) in &self.jumps {
            let place = self.places[label].ok_or(AssembleError::NoPlace { at })?;
            let distance = place as i64 - (at as i64 + 1);
            self.instructions[at].offset =
                i16::try_from(distance).map_err(|_| AssembleError::TooFar { at })?;
        }
        Ok(Code { instructions: std::mem::take(&mut self.instructions), maps: PhantomData })
    }

    fn push_with_operand(&mut self, code: u8, left: Register, offset: i16, right: Operand) -> &mut Self {
        match right {
            Operand::Register(source) => self.push(code | FROM_REGISTER, left, source, offset, 0),
            Operand::Immediate(value) => self.push(code, left, Register::R0, offset, value),
        }
    }

    /// The one instruction that is two long.
    fn wide(&mut self, destination: Register, kind: u8, value: u64) -> &mut Self {
        let registers = registers(destination as u8, kind);
        let code = LOAD_IMMEDIATE | Size::Double as u8;
        self.instructions.push(Instruction { code, registers, offset: 0, immediate: value as i32 });
        self.push(0, Register::R0, Register::R0, 0, (value >> 32) as i32)
    }

    fn push(
        &mut self,
        code: u8,
        destination: Register,
        source: Register,
        offset: i16,
        immediate: i32,
    ) -> &mut Self {
        let registers = registers(destination as u8, source as u8);
        self.instructions.push(Instruction { code, registers, offset, immediate });
        self
    }
}

/// Two bit fields of four bits: the first is the low half on little-endian machines.
fn registers(destination: u8, source: u8) -> u8 {
    if cfg!(target_endian = "little") { source << 4 | destination } else { destination << 4 | source }
}

// Classes, modes and codes of instructions (linux/bpf.h and linux/bpf_common.h).
const LOAD_IMMEDIATE: u8 = 0x00;
const LOAD: u8 = 0x01;
const STORE: u8 = 0x02;
const STORE_REGISTER: u8 = 0x03;
const JUMP: u8 = 0x05;
const ARITHMETIC_64: u8 = 0x07;
const MEMORY: u8 = 0x60;
const ATOMIC: u8 = 0xc0;
const FROM_REGISTER: u8 = 0x08;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
const PSEUDO_MAP_FD: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use Register::{R0, R1};

    #[test]
    fn a_jump_needs_a_place_within_reach() {
        let mut assembler = Assembler::new();
        let nowhere = assembler.label();
        assembler.set(R0, 0).jump(nowhere).exit();
        assert_eq!(assembler.finish().unwrap_err(), AssembleError::NoPlace { at: 1 });

        for (between, fits) in [(i16::MAX as usize, true), (i16::MAX as usize + 1, false)] {
            let mut assembler = Assembler::new();
            let end = assembler.label();
            assembler.jump_if(Condition::Equal, R1, 0, end);
            for _ in 0..between {
                assembler.set(R0, R1);
            }
            assembler.place(end).exit();
            assert_eq!(assembler.finish().is_ok(), fits, "{between} instructions between");
        }
    }
}
