//! What an attacker off the path must not guess: sequence numbers, ports, timestamps, the
//! places in the index.

use siphasher::sip::SipHasher13;

use super::seq::Seq;
use super::tuple::Tuple;
use crate::config::Initial;
use crate::time::Time;

/// Keyed functions of one stack.
pub(crate) struct Secret {
    index: SipHasher13,
    sequence: SipHasher13,
    timestamp: SipHasher13,
    random: SipHasher13,
    cookie: SipHasher13,
    drawn: u64,
    initial: Initial,
}

impl Secret {
    pub(crate) fn new(seed: [u8; 32], initial: Initial) -> Secret {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| seed[at * 8 + i]));
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.4.1
        //# F() MUST NOT be computable from the outside (MUST-9), or an attacker could still guess at sequence
        //# numbers from the ISN used for some other connection.
        // One key for each purpose, derived by the same function (RFC 6528, 3: the key must not
        // be computable from what is sent).
        let key = |purpose: u64| {
            let derive = SipHasher13::new_with_keys(word(0), word(1));
            let half =
                |which: u64| derive.hash(&[purpose, which, word(2), word(3)].map(u64::to_le_bytes).concat());
            SipHasher13::new_with_keys(half(0), half(1))
        };
        Secret {
            index: key(1),
            sequence: key(2),
            timestamp: key(3),
            random: key(4),
            cookie: key(5),
            drawn: 0,
            initial,
        }
    }

    /// Place of a tuple in the index.
    pub(crate) fn hash(&self, tuple: &Tuple) -> u64 {
        match tuple.bytes_v4() {
            Some(bytes) => self.index.hash(&bytes),
            None => self.index.hash(&tuple.bytes()),
        }
    }

    /// Initial sequence number (RFC 6528, 3; RFC 9293, MUST-8): a clock of 4 us and a keyed
    /// function of the tuple.
    pub(crate) fn initial_sequence(&self, now: Time, tuple: &Tuple) -> Seq {
        match self.initial {
            Initial::Fixed { sequence, .. } => Seq(sequence),
            Initial::Keyed => {
                //= https://www.rfc-editor.org/rfc/rfc9293#section-3.4.1
                //# A TCP implementation MUST use the above type of "clock" for clock- driven selection of
                //# initial sequence numbers (MUST-8), and SHOULD generate its initial sequence numbers with
                //# the expression:
                let clock = (now.micros() / 4) as u32;
                Seq((self.sequence.hash(&tuple.bytes()) as u32).wrapping_add(clock))
            }
        }
    }

    /// Offset of the timestamp clock for this pair of addresses (RFC 7323, 5.4). Without the
    /// ports, so that the clock of a pair never goes back between connections (RFC 6191).
    pub(crate) fn timestamp_offset(&self, tuple: &Tuple) -> u32 {
        match self.initial {
            Initial::Fixed { timestamp, .. } => timestamp,
            Initial::Keyed => self.timestamp.hash(&tuple.bytes()[..32]) as u32,
        }
    }

    /// What a SYN cookie proves: that its bearer received our answer to this SYN.
    pub(crate) fn cookie(&self, tuple: &Tuple, irs: u32, size: u32, period: u64) -> u32 {
        let mut bytes = [0; 52];
        bytes[..36].copy_from_slice(&tuple.bytes());
        bytes[36..40].copy_from_slice(&irs.to_le_bytes());
        bytes[40..44].copy_from_slice(&size.to_le_bytes());
        bytes[44..].copy_from_slice(&period.to_le_bytes());
        self.cookie.hash(&bytes) as u32
    }

    /// A number that nobody can predict.
    pub(crate) fn random(&mut self) -> u64 {
        self.drawn += 1;
        self.random.hash(&self.drawn.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn tuple(port: u16) -> Tuple {
        let address = |port| SocketAddr::from(([10, 0, 0, 1], port));
        Tuple::new(address(7), address(port))
    }

    /// RFC 6528, 3: every tuple has numbers of its own, which advance by one in 4 us; other keys
    /// give others.
    #[test]
    fn numbers_differ_and_advance() {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.4.1
        //= type=test
        //# A TCP implementation MUST use the above type of "clock" for clock- driven selection of initial
        //# sequence numbers (MUST-8), and SHOULD generate its initial sequence numbers with the expression:
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.4.1
        //= type=test
        //# F() MUST NOT be computable from the outside (MUST-9), or an attacker could still guess at sequence
        //# numbers from the ISN used for some other connection.
        let secret = Secret::new([1; 32], Initial::Keyed);
        let (start, later) = (Time::from_micros(1_000), Time::from_micros(5_000));
        let first = secret.initial_sequence(start, &tuple(1));
        assert_eq!(secret.initial_sequence(later, &tuple(1)) - first, 1_000);
        let others: std::collections::HashSet<u32> =
            (0..1000).map(|port| secret.initial_sequence(start, &tuple(port)).0).collect();
        assert_eq!(others.len(), 1000);
        let other = Secret::new([2; 32], Initial::Keyed);
        assert_ne!(other.initial_sequence(start, &tuple(1)), first);
        assert_ne!(other.hash(&tuple(1)), secret.hash(&tuple(1)));
        // RFC 6191: one timestamp clock for each pair of addresses.
        assert_eq!(secret.timestamp_offset(&tuple(1)), secret.timestamp_offset(&tuple(2)));
    }
}
