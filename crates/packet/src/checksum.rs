//! The Internet checksum (RFC 1071).

/// A sum in progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds bytes. All parts but the last must be of even length.
    ///
    /// Sums 32-bit words of the machine's byte order: the ones' complement sum does not depend on
    /// the order, so one swap at the end replaces one for each word (RFC 1071, section 2).
    #[must_use]
    #[inline]
    pub fn with(self, bytes: &[u8]) -> Sum {
        let (words, rest) = bytes.as_chunks::<4>();
        let mut sum: u64 = words.iter().map(|&word| u64::from(u32::from_ne_bytes(word))).sum();
        if !rest.is_empty() {
            let mut tail = [0; 4];
            tail[..rest.len()].copy_from_slice(rest);
            sum += u64::from(u32::from_ne_bytes(tail));
        }
        self.plus(sum)
    }

    /// Adds words of a packet, as numbers.
    #[must_use]
    #[inline]
    pub fn with_words<const WORDS: usize>(self, words: [u32; WORDS]) -> Sum {
        self.plus(words.iter().map(|word| u64::from(word.to_be())).sum())
    }

    /// The sum, folded to 16 bits, not complemented: what a partial checksum field holds.
    ///
    /// A number and its halves exchanged, added, have in the upper half the sum of both halves, and the carry
    /// that belongs to it has come from the lower one.
    #[inline]
    pub fn folded(self) -> u16 {
        let half = (self.0.wrapping_add(self.0.rotate_left(32)) >> 32) as u32;
        let quarter = (half.wrapping_add(half.rotate_left(16)) >> 16) as u16;
        u16::from_be(quarter)
    }

    /// The checksum field: the complement of the sum.
    #[inline]
    pub fn finish(self) -> u16 {
        !self.folded()
    }

    /// Whether bytes that contain their own checksum are intact.
    #[inline]
    pub fn is_valid(self) -> bool {
        self.folded() == 0xffff
    }

    /// Adds, and the carry at the other end.
    #[inline]
    fn plus(self, sum: u64) -> Sum {
        let (sum, carry) = self.0.overflowing_add(sum);
        Sum(sum + u64::from(carry))
    }
}

/// Sum of the pseudo-header of IPv4 (RFC 9293, 3.1) or IPv6 (RFC 8200, 8.1): addresses in the
/// packet's byte order, the protocol, the length of transport header and payload.
#[inline]
pub fn pseudo_header(source: &[u8], destination: &[u8], protocol: u8, len: usize) -> Sum {
    // Protocol and length are 16-bit words of their own, and so is their sum.
    Sum::default().with(source).with(destination).with_words([len as u32 + u32::from(protocol)])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Word by word, as RFC 1071 defines it.
    fn by_definition(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    proptest! {
        #[test]
        fn equals_the_definition(bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 0usize..400) {
            let cut = cut.min(bytes.len()) & !1;
            let ours = Sum::default().with(&bytes[..cut]).with(&bytes[cut..]).finish();
            prop_assert_eq!(ours, by_definition(&bytes));
        }

        #[test]
        fn words_are_bytes(words: [u32; 5]) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            prop_assert_eq!(Sum::default().with_words(words).finish(), by_definition(&bytes));
        }
    }
}
