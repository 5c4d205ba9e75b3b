//! Names for handles and operations: an index with a generation, so that a name that
//! outlived its object never denotes the object's successor.

macro_rules! generational {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name {
            pub(crate) index: u32,
            pub(crate) generation: u32,
        }

        impl $name {
            /// The name of nothing; every call refuses it.
            pub const NONE: $name = $name { index: u32::MAX, generation: u32::MAX };

            /// The name as one number, for interfaces that have no other place for it.
            pub const fn to_bits(self) -> u64 {
                (self.generation as u64) << 32 | self.index as u64
            }

            /// The name that [`Self::to_bits`] gave. Any number is safe to use: one that
            /// names nothing is refused as stale.
            pub const fn from_bits(bits: u64) -> $name {
                $name { index: bits as u32, generation: (bits >> 32) as u32 }
            }
        }
    };
}

generational! {
    /// A file registered with a channel (paper, section 3.2). Valid in that channel
    /// only, until it is closed or unregistered; stale afterwards, for ever.
    Handle
}

generational! {
    /// One operation of a channel, as [`crate::Channel::cancel`] wants it. Stale once its
    /// last completion was handed out.
    OpId
}
