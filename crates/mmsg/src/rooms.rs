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

/// Which places of the message vector entries have claimed.
#[derive(Default)]
pub(crate) struct Planner {
    taken: Vec<bool>,
}

impl Planner {
    /// Gives each entry its room to receive into: the claimed ones first, what is left in
    /// equal parts to the entries with `num` 0, whose `offset` becomes an output. An entry
    /// without a room gets its error in `num` and a room of length 0.
    ///
    /// `turn` decides who goes without where there are fewer places than entries.
    pub(crate) fn receive(&mut self, eps: &mut [Mmep], vlen: usize, turn: usize, rooms: &mut Vec<Room>) {
        rooms.clear();
        if claim_in_order(eps, vlen, rooms) {
            return;
        }
        rooms.clear();
        rooms.resize(eps.len(), Room::default());
        let sharing = eps.iter().filter(|ep| ep.num == 0).count();
        if sharing < eps.len() {
            self.taken.clear();
            self.taken.resize(vlen, false);
            for (ep, room) in eps.iter_mut().zip(&mut *rooms).filter(|(ep, _)| ep.num != 0) {
                match self.claim(ep, vlen) {
                    Some(claimed) => *room = claimed,
                    None => ep.num = -libc::EINVAL,
                }
            }
        }
        let whole = sharing == eps.len();
        let free = if whole { vlen } else { self.taken.iter().filter(|&&taken| !taken).count() };
        // The place in the vector of the free place `rank`; ranks only grow.
        let mut walked = (0, 0);
        let sharers = eps.iter_mut().zip(rooms).filter(|(ep, _)| ep.num == 0);
        for (share, (ep, room)) in sharers.enumerate() {
            let (first, end) = part(free, sharing, share, turn);
            if first == end {
                ep.num = -libc::ENOBUFS;
                continue;
            }
            let start = if whole { first } else { self.place(first, &mut walked) };
            let most = end - first;
            let len = if whole { most } else { self.run(start, most) };
            *room = Room { start: start as u32, len: len as u32, done: 0 };
            ep.offset = start as i32;
        }
    }

    /// The room that an entry asks for, if it lies in the vector and nobody has any of it.
    fn claim(&mut self, ep: &Mmep, vlen: usize) -> Option<Room> {
        let room = asked(ep, vlen)?;
        let places = &mut self.taken[room.start as usize..(room.start + room.len) as usize];
        if places.iter().any(|&taken| taken) {
            return None;
        }
        places.fill(true);
        Some(room)
    }

    fn place(&self, rank: usize, walked: &mut (usize, usize)) -> usize {
        let (mut place, mut seen) = *walked;
        while place < self.taken.len() && (self.taken[place] || seen < rank) {
            seen += usize::from(!self.taken[place]);
            place += 1;
        }
        *walked = (place, seen);
        place
    }

    /// How many free places lie side by side from here on, up to `most`.
    fn run(&self, start: usize, most: usize) -> usize {
        self.taken[start..].iter().take(most).take_while(|&&taken| !taken).count()
    }
}

/// The usual call: each entry claims places behind those of the one before it. False if it is
/// another.
fn claim_in_order(eps: &[Mmep], vlen: usize, rooms: &mut Vec<Room>) -> bool {
    let mut end = 0;
    rooms.extend(eps.iter().map_while(|ep| {
        let room = asked(ep, vlen).filter(|room| room.len > 0 && room.start >= end)?;
        end = room.start + room.len;
        Some(room)
    }));
    rooms.len() == eps.len()
}

/// The messages that an entry names, if they lie in the vector.
#[inline]
pub(crate) fn asked(ep: &Mmep, vlen: usize) -> Option<Room> {
    let (start, len) = (u32::try_from(ep.offset).ok()?, u32::try_from(ep.num).ok()?);
    let end = start as usize + len as usize;
    (end <= vlen).then_some(Room { start, len, done: 0 })
}

/// The free places of share `index` of `shares`. With fewer places than shares the turn
/// rotates who has one.
fn part(free: usize, shares: usize, index: usize, turn: usize) -> (usize, usize) {
    if free >= shares {
        return (free * index / shares, free * (index + 1) / shares);
    }
    // Shares turn, turn + 1, ... (modulo shares) have a place each; places keep the order of entries.
    let first = if free == 0 { 0 } else { turn * free % shares };
    let has = |index: usize| (index + shares - first) % shares < free;
    if !has(index) {
        return (0, 0);
    }
    let wrapped = (first + free).saturating_sub(shares);
    let rank = if index >= first { wrapped + index - first } else { index };
    (rank, rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(entries: &[(i32, i32)], vlen: usize, turn: usize) -> (Vec<Mmep>, Vec<Room>) {
        let mut eps: Vec<_> = entries.iter().map(|&(num, offset)| Mmep { sockfd: 0, num, offset }).collect();
        let mut rooms = Vec::new();
        Planner::default().receive(&mut eps, vlen, turn, &mut rooms);
        (eps, rooms)
    }

    fn spans(rooms: &[Room]) -> Vec<(u32, u32)> {
        rooms.iter().map(|room| (room.start, room.len)).collect()
    }

    #[test]
    fn what_is_left_is_shared_evenly() {
        assert_eq!(spans(&plan(&[(0, 0); 3], 8, 0).1), [(0, 2), (2, 3), (5, 3)]);
        assert_eq!(spans(&plan(&[(0, 9), (2, 1), (0, 9)], 8, 0).1), [(0, 1), (1, 2), (5, 3)]);
    }

    #[test]
    fn a_share_never_reaches_over_a_claimed_place() {
        let (eps, rooms) = plan(&[(1, 4), (0, 0), (1, 1), (0, 0)], 8, 0);
        assert_eq!(spans(&rooms), [(4, 1), (0, 1), (1, 1), (5, 3)]);
        assert_eq!(eps[3].offset, 5);
    }

    #[test]
    fn what_is_outside_or_taken_is_refused() {
        let (eps, rooms) = plan(&[(2, 7), (-1, 0), (2, -1), (3, 2), (1, 4), (i32::MAX, i32::MAX)], 8, 0);
        let nums: Vec<_> = eps.iter().map(|ep| ep.num).collect();
        let refused = -libc::EINVAL;
        assert_eq!(nums, [refused, refused, refused, 3, refused, refused]);
        assert_eq!(rooms.iter().map(|room| room.len).sum::<u32>(), 3);
    }

    #[test]
    fn everybody_gets_a_turn_where_places_are_few() {
        for (entries, vlen) in [(5, 2), (7, 3), (4, 4), (3, 1), (2, 0), (9, 6)] {
            let mut turns = vec![0; entries];
            for turn in 0..entries {
                let (eps, rooms) = plan(&vec![(0, 0); entries], vlen, turn);
                let mut starts = Vec::new();
                for (at, room) in rooms.iter().enumerate() {
                    turns[at] += room.len as usize;
                    assert_eq!(room.len == 0, eps[at].num == -libc::ENOBUFS);
                    starts.extend((room.len > 0).then_some(room.start));
                }
                assert_eq!(starts, (0..vlen as u32).collect::<Vec<_>>());
            }
            assert!(turns.iter().all(|&places| places == vlen), "{entries} {vlen}: {turns:?}");
        }
    }
}
