//! Enums of names that users write and records carry.

/// Makes an enum with a name for each variant.
macro_rules! names {
    ($(#[$meta:meta])* $enum:ident { $($(#[$attribute:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $enum {
            $($(#[$attribute])* #[serde(rename = $name)] $variant,)+
        }

        impl $enum {
            /// All, in the order in which they are measured.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name that users write and records carry.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl std::fmt::Display for $enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl clap::ValueEnum for $enum {
            fn value_variants<'all>() -> &'all [Self] {
                Self::ALL
            }

            fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
                Some(clap::builder::PossibleValue::new(self.name()))
            }
        }
    };
}

pub(crate) use names;
