//! The head of an ELF file (elf(5)). The file may be anybody's: every number is checked
//! against a bound, and whatever does not hold together reads as absent.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use object::elf::{
    DataEncoding, ELFCLASS64, ELFDATA2LSB, ELFDATA2MSB, ELFMAG, FileClass, FileHeader64, Ident, Machine,
    PT_INTERP, ProgramHeader64, SectionHeader64,
};
use object::{NativeEndian, pod};

type Header = FileHeader64<NativeEndian>;
type Segment = ProgramHeader64<NativeEndian>;
type Section = SectionHeader64<NativeEndian>;

/// Which processors run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    class: FileClass,
    byte_order: DataEncoding,
    machine: Machine,
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

const HEAD: usize = size_of::<Header>();
/// The most of each that are read, and of the bytes of a name.
const MOST_SEGMENTS: u16 = 256;
const MOST_SECTIONS: u16 = 1024;
const LONGEST_PATH: u64 = 4096;
const MOST_NAMES: u64 = 1 << 16;

fn parse(file: &File, head: &[u8; HEAD]) -> Option<Elf> {
    let (header, _) = pod::from_bytes::<Header>(head).ok()?;
    let Ident { magic, class, data, .. } = header.e_ident;
    if magic != ELFMAG {
        return None;
    }
    let kind = Kind { class, byte_order: data, machine: header.e_machine.get(NativeEndian) };
    let native = if cfg!(target_endian = "little") { ELFDATA2LSB } else { ELFDATA2MSB };
    if class != ELFCLASS64 || data != native {
        return Some(Elf { kind, loader: None, is_go: false, is_megapipe: false });
    }
    let names = section_names(file, header).unwrap_or_default();
    let has = |wanted: &[u8]| names.split(|byte| *byte == 0).any(|name| name == wanted);
    let is_go = has(b".go.buildinfo") || has(b".note.go.buildid");
    Some(Elf { kind, loader: loader(file, header), is_go, is_megapipe: has(b".megapipe") })
}

fn loader(file: &File, header: &Header) -> Option<PathBuf> {
    let count = header.e_phnum.get(NativeEndian).min(MOST_SEGMENTS);
    if usize::from(header.e_phentsize.get(NativeEndian)) != size_of::<Segment>() {
        return None;
    }
    let segments =
        bytes(file, header.e_phoff.get(NativeEndian), u64::from(count) * size_of::<Segment>() as u64)?;
    let (segments, _) = pod::slice_from_bytes::<Segment>(&segments, count.into()).ok()?;
    let segment = segments.iter().find(|segment| segment.p_type.get(NativeEndian) == PT_INTERP)?;
    let size = segment.p_filesz.get(NativeEndian).min(LONGEST_PATH);
    let text = bytes(file, segment.p_offset.get(NativeEndian), size)?;
    let path = text.split(|byte| *byte == 0).next()?;
    Some(Path::new(std::ffi::OsStr::from_bytes(path)).to_owned())
}

/// The names of all sections, each ended by 0. Stripped programs keep them, but for few.
fn section_names(file: &File, header: &Header) -> Option<Vec<u8>> {
    let (count, names) = (header.e_shnum.get(NativeEndian), header.e_shstrndx.get(NativeEndian).0);
    let size = header.e_shentsize.get(NativeEndian);
    if usize::from(size) != size_of::<Section>() || names >= count || count > MOST_SECTIONS {
        return None;
    }
    let offset = header.e_shoff.get(NativeEndian).checked_add(u64::from(names) * u64::from(size))?;
    let section = bytes(file, offset, size.into())?;
    let (section, _) = pod::from_bytes::<Section>(&section).ok()?;
    bytes(file, section.sh_offset.get(NativeEndian), section.sh_size.get(NativeEndian).min(MOST_NAMES))
}

fn bytes(file: &File, offset: u64, count: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(count).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}
