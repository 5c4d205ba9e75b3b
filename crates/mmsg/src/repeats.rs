//! Entries that name a socket again: they are served one after the other.

use std::collections::HashMap;

use crate::Mmep;

/// Which descriptors a call has named, without clearing between calls.
#[derive(Default)]
pub(crate) struct Repeats {
    /// A power of two of places: the call that used it last, and the descriptor.
    seen: Vec<(u32, i32)>,
    call: u32,
}

impl Repeats {
    /// Whether some descriptor comes twice.
    pub(crate) fn any(&mut self, eps: &[Mmep]) -> bool {
        let places = (2 * eps.len()).next_power_of_two();
        if self.seen.len() < places || self.call == u32::MAX {
            self.seen = vec![(0, 0); places.max(self.seen.len())];
            self.call = 0;
        }
        self.call += 1;
        let mask = self.seen.len() - 1;
        eps.iter().any(|ep| {
            // Descriptors are small and dense: the lowest bits spread them best.
            let mut at = ep.sockfd as usize & mask;
            loop {
                let place = &mut self.seen[at];
                if place.0 != self.call {
                    *place = (self.call, ep.sockfd);
                    return false;
                }
                if place.1 == ep.sockfd {
                    return true;
                }
                at = (at + 1) & mask;
            }
        })
    }
}

/// How often each entry's descriptor came before.
pub(crate) fn ranks(eps: &[Mmep]) -> Vec<u32> {
    let mut counts = HashMap::new();
    eps.iter()
        .map(|ep| {
            let count = counts.entry(ep.sockfd).or_insert(0);
            *count += 1;
            *count - 1
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eps(fds: &[i32]) -> Vec<Mmep> {
        fds.iter().map(|&sockfd| Mmep { sockfd, num: 0, offset: 0 }).collect()
    }

    #[test]
    fn repeats_are_found_in_this_call_alone() {
        let mut repeats = Repeats::default();
        for _ in 0..3 {
            assert!(!repeats.any(&eps(&[3, 4, 12, -1, i32::MAX, i32::MIN])));
            assert!(repeats.any(&eps(&[3, 11, 19, 27, 3])));
            assert!(!repeats.any(&eps(&[])));
        }
        repeats.call = u32::MAX;
        assert!(!repeats.any(&eps(&[0])));
    }

    #[test]
    fn ranks_count_what_came_before() {
        assert_eq!(ranks(&eps(&[5, 6, 5, 5, 6])), [0, 0, 1, 2, 1]);
    }
}
