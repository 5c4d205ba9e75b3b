//! Steering whose descriptors were inherited over execve(2).

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use sys::bpf::Info;

use crate::steering::{MEMBERS, PLACES, PROGRAM, SOCKETS};

/// A program and its maps, found by their names alone: they may be of any size and content.
#[derive(Clone, Copy, Debug)]
pub struct Inherited<'fd>(pub(crate) [BorrowedFd<'fd>; 4]);

impl<'fd> Inherited<'fd> {
    /// All that are complete among descriptors of any kind.
    pub fn among(descriptors: impl Iterator<Item = BorrowedFd<'fd>>) -> Vec<Inherited<'fd>> {
        let all: Vec<_> = descriptors.filter_map(|fd| Some((fd, Info::of(fd).ok()??))).collect();
        let with_maps = |(program, info): &(_, Info)| {
            let map = |name| all.iter().find(|(_, map)| map.is_map_of(info, name)).map(|(fd, _)| *fd);
            Some(Inherited([*program, map(MEMBERS)?, map(PLACES)?, map(SOCKETS)?]))
        };
        all.iter().filter(|(_, info)| info.is_program(PROGRAM)).filter_map(with_maps).collect()
    }

    /// Its descriptors.
    pub fn descriptors(&self) -> [RawFd; 4] {
        self.0.map(|fd| fd.as_raw_fd())
    }
}
