//! Structs of equal words: what the kernel side and user space exchange through maps and globals.

/// Declares a `repr(C)` struct whose fields all have one integer type, with its conversion to and
/// from an array of words: user space needs no `unsafe` to read or write it.
macro_rules! words {
    ($(#[$doc:meta])* pub struct $name:ident: $word:ty { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $word,)*
        }

        impl $name {
            /// Number of words.
            pub const WORDS: usize = [$(stringify!($field)),*].len();

            /// The words in the order of memory.
            #[must_use]
            pub const fn to_words(&self) -> [$word; Self::WORDS] {
                [$(self.$field),*]
            }

            /// From the words in the order of memory.
            #[must_use]
            pub const fn from_words(words: [$word; Self::WORDS]) -> Self {
                let [$($field),*] = words;
                Self { $($field),* }
            }
        }

        const _: () = assert!(size_of::<$name>() == size_of::<$word>() * $name::WORDS);
    };
}

pub(crate) use words;
