//! How the map or program of a descriptor was made (BPF_OBJ_GET_INFO_BY_FD).

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::command::{self, InfoByFd, MapInfo, NAME, ProgramInfo};

/// A map or a program.
#[derive(Clone, Debug)]
pub struct Info {
    make: Make,
    /// Numbers of the program's maps, or that of the map.
    maps: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Make {
    name: [u8; NAME],
    kind: u32,
    /// Of a map: sizes of key and value, entries, flags.
    sizes: [u32; 4],
    /// Of a program: a hash of its instructions.
    tag: Option<[u8; 8]>,
}

impl Info {
    /// `None`: it is neither.
    ///
    /// # Errors
    ///
    /// As of bpf(2), and where /proc is not mounted.
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Option<Info>> {
        // The command does not report which of them it describes.
        let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        match link.to_str() {
            Some("anon_inode:bpf-map") => map(fd).map(Some),
            Some("anon_inode:bpf-prog") => program(fd).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether it is a program of this name.
    pub fn is_program(&self, name: &str) -> bool {
        self.make.tag.is_some() && self.make.name == command::name(name)
    }

    /// Whether it is one of `program`'s maps, of this name.
    pub fn is_map_of(&self, program: &Info, name: &str) -> bool {
        let is_used = self.maps.iter().all(|map| program.maps.contains(map));
        self.make.tag.is_none() && is_used && self.make.name == command::name(name)
    }
}

/// Another descriptor of `fd`, if that is of the same make as `own`, name and instructions included.
pub(super) fn same_make(own: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    match (Info::of(own)?, Info::of(fd)?) {
        (Some(own), Some(other)) if own.make == other.make => fd.try_clone_to_owned(),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

fn map(fd: BorrowedFd<'_>) -> io::Result<Info> {
    let mut info = MapInfo::default();
    get(fd, &mut info)?;
    let make = Make { name: info.name, kind: info.kind, sizes: info.sizes, tag: None };
    Ok(Info { make, maps: vec![info.id] })
}

fn program(fd: BorrowedFd<'_>) -> io::Result<Info> {
    const MAPS_MAX: u32 = 8; // more than any of ours has
    let mut maps = vec![0; MAPS_MAX as usize];
    let mut info = ProgramInfo { map_count: MAPS_MAX, maps: maps.as_mut_ptr() as u64, ..Default::default() };
    get(fd, &mut info)?;
    maps.truncate(info.map_count as usize);
    let make = Make { name: info.name, kind: info.kind, sizes: [0; 4], tag: Some(info.tag) };
    Ok(Info { make, maps })
}

fn get<T>(fd: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    let length = size_of::<T>() as u32;
    let mut attributes = InfoByFd { fd: fd.as_raw_fd() as u32, length, info: &raw mut *info as u64 };
    // SAFETY: the kernel writes at most `length` bytes of a live struct of integers, and to what that
    // points to as many numbers as it says there is room for.
    unsafe { command::call(command::OBJ_GET_INFO_BY_FD, &mut attributes) }.map(drop)
}
