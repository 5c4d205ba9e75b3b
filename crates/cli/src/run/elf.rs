//! What the head of an ELF file tells (elf(5)). The file may be anybody's: every number is checked against a bound, and
//! whatever does not hold together reads as absent.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Which processors run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// 32 or 64 bits.
    class: u8,
    byte_order: u8,
    machine: u16,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Elf {
    pub(super) kind: Kind,
    /// The loader that it asks for; `None`: it is linked statically, or is of another kind than this program.
    pub(super) loader: Option<PathBuf>,
    /// Go's linker made it.
    pub(super) is_go: bool,
    /// It is the library that Megapipe puts into programs.
    pub(super) is_megapipe: bool,
}

impl Elf {
    /// `Ok(None)`: no ELF file.
    pub(super) fn read(path: &Path) -> io::Result<Option<Elf>> {
        let file = File::open(path)?;
        let mut head = [0; HEAD];
        match file.read_exact_at(&mut head, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            outcome => outcome?,
        }
        Ok(parse(&file, &head))
    }
}

/// Bytes of a 64-bit header, of one of its program headers, and of one of its section headers.
const HEAD: usize = 64;
const SEGMENT: usize = 56;
const SECTION: usize = 64;
/// The most of each that are looked at, and of the bytes of a name.
const MOST_SEGMENTS: usize = 256;
const MOST_SECTIONS: usize = 1024;
const LONGEST_PATH: u64 = 4096;
const MOST_NAMES: u64 = 1 << 16;

const CLASS_64: u8 = 2;
const PT_INTERP: u32 = 3;

fn parse(file: &File, head: &[u8; HEAD]) -> Option<Elf> {
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    let kind = Kind { class: head[4], byte_order: head[5], machine: u16_at(head, 18)? };
    let native = if cfg!(target_endian = "little") { 1 } else { 2 };
    if kind.class != CLASS_64 || kind.byte_order != native {
        return Some(Elf { kind, loader: None, is_go: false, is_megapipe: false });
    }
    let names = section_names(file, head).unwrap_or_default();
    let has = |wanted: &[u8]| names.split(|byte| *byte == 0).any(|name| name == wanted);
    let is_go = has(b".go.buildinfo") || has(b".note.go.buildid");
    Some(Elf { kind, loader: loader(file, head), is_go, is_megapipe: has(b".megapipe") })
}

fn loader(file: &File, head: &[u8]) -> Option<PathBuf> {
    let (offset, size, count) = (u64_at(head, 32)?, u16_at(head, 54)?, u16_at(head, 56)?);
    if usize::from(size) != SEGMENT {
        return None;
    }
    let mut segments = vec![0; SEGMENT * usize::from(count).min(MOST_SEGMENTS)];
    file.read_exact_at(&mut segments, offset).ok()?;
    let segment = segments.chunks_exact(SEGMENT).find(|segment| u32_at(segment, 0) == Some(PT_INTERP))?;
    let text = bytes(file, u64_at(segment, 8)?, u64_at(segment, 32)?.min(LONGEST_PATH))?;
    let path = text.split(|byte| *byte == 0).next()?;
    Some(Path::new(std::ffi::OsStr::from_bytes(path)).to_owned())
}

/// The names of all sections, each ended by 0. Stripped programs keep them, but for few.
fn section_names(file: &File, head: &[u8]) -> Option<Vec<u8>> {
    let (offset, size, count, names) =
        (u64_at(head, 40)?, u16_at(head, 58)?, u16_at(head, 60)?, u16_at(head, 62)?);
    if usize::from(size) != SECTION || names >= count || usize::from(count) > MOST_SECTIONS {
        return None;
    }
    let section = bytes(file, offset.checked_add(u64::from(names) * SECTION as u64)?, SECTION as u64)?;
    bytes(file, u64_at(&section, 24)?, u64_at(&section, 32)?.min(MOST_NAMES))
}

fn bytes(file: &File, offset: u64, count: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(count).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
}
