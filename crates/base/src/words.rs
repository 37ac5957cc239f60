//! Enums whose values have words in JSON.

/// Defines an enum, with the word of each value behind it. `WORDS` has all values in their order, `as_str` and `named` go from a value to its
/// word and back.
///
/// ```
/// foredraft_base::words! {
///     /// The answer to a question.
///     #[derive(Debug, Clone, Copy, PartialEq, Eq)]
///     pub enum Reply {
///         /// It is so.
///         Yes => "yes",
///         /// It is not.
///         No => "no",
///     }
/// }
/// assert_eq!((Reply::Yes.as_str(), Reply::named("no"), Reply::WORDS.len()), ("yes", Some(Reply::No), 2));
/// ```
#[macro_export]
macro_rules! words {
    ($(#[$about:meta])* $visible:vis enum $Name:ident {
        $($(#[$meaning:meta])* $Value:ident $(= $number:expr)? => $word:literal,)+
    }) => {
        $(#[$about])*
        $visible enum $Name { $($(#[$meaning])* $Value $(= $number)?,)+ }

        #[allow(dead_code, reason = "some words are only read, and some only written")]
        impl $Name {
            /// All values, each with its word in JSON.
            $visible const WORDS: [(&'static str, $Name); [$($word),+].len()] = [$(($word, $Name::$Value)),+];

            /// The word in JSON.
            #[must_use]
            $visible const fn as_str(self) -> &'static str {
                match self { $($Name::$Value => $word),+ }
            }

            /// The value of a word.
            #[must_use]
            $visible fn named(word: &str) -> Option<$Name> {
                $Name::WORDS.iter().find(|(known, _)| *known == word).map(|(_, value)| *value)
            }
        }
    };
}
