//! Where in the shared message vector each socket's messages go.

use crate::Mmep;

/// The part of the message vector that one entry has, and how far it is filled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) done: u32,
}

impl Room {
    pub(crate) fn left(&self) -> usize {
        (self.len - self.done) as usize
    }

    /// The place of the next message.
    pub(crate) fn next(&self) -> usize {
        (self.start + self.done) as usize
    }
}

/// Gives each entry room for as many messages as `most` says, side by side, as far as the vector goes. An entry without
/// room gets its error in `num`: EINVAL for a limit below 1, ENOBUFS behind the end of the vector.
pub(crate) fn side_by_side(
    eps: &mut [Mmep],
    vlen: usize,
    most: impl Fn(&Mmep) -> i32,
    rooms: &mut Vec<Room>,
) {
    let mut used = 0;
    rooms.clear();
    rooms.extend(eps.iter_mut().map(|ep| {
        let most = most(ep);
        let len = usize::try_from(most).unwrap_or(0).min(vlen - used);
        let room = Room { start: used as u32, len: len as u32, done: 0 };
        ep.offset = used as i32;
        ep.num = match len {
            1.. => 0,
            _ if most < 1 => -libc::EINVAL,
            _ => -libc::ENOBUFS,
        };
        used += len;
        room
    }));
}

/// The messages that an entry names, if they lie in the vector.
#[inline]
pub(crate) fn asked(ep: &Mmep, vlen: usize) -> Option<Room> {
    let (start, len) = (u32::try_from(ep.offset).ok()?, u32::try_from(ep.num).ok()?);
    let end = start as usize + len as usize;
    (end <= vlen).then_some(Room { start, len, done: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_kept_as_far_as_the_vector_goes() {
        let nums = [3, 0, i32::MIN, 1, i32::MAX, 2, -1];
        let mut eps = nums.map(|num| Mmep { sockfd: 0, num, offset: -7 });
        let mut rooms = Vec::new();
        side_by_side(&mut eps, 8, |ep| ep.num, &mut rooms);
        let spans: Vec<_> = rooms.iter().map(|room| (room.start, room.len)).collect();
        assert_eq!(spans, [(0, 3), (3, 0), (3, 0), (3, 1), (4, 4), (8, 0), (8, 0)]);
        let (refused, none) = (-libc::EINVAL, -libc::ENOBUFS);
        assert_eq!(eps.map(|ep| ep.num), [0, refused, refused, 0, 0, none, refused]);
        assert_eq!(eps.map(|ep| ep.offset), [0, 3, 3, 3, 4, 8, 8]);
    }
}
