//! Turns the bytes of tokens into text that may be sent: whole UTF-8, and no part of a stop string.

/// The generated text of one request.
///
/// Bytes come in token by token. Text goes out as soon as it can be neither part of a stop string nor an unfinished character.
/// The pieces that go out make the same text however often they are taken.
#[derive(Debug, Clone)]
pub struct TextStream {
    stops: Vec<String>,
    longest_stop: usize,
    bytes: Vec<u8>,
    /// Bytes taken so far.
    sent: usize,
    /// Where the text ends, once a stop string has appeared.
    end: Option<usize>,
    /// Whether a stop string that has only begun is cut off when nothing more comes.
    cuts_begun_stop: bool,
}

impl TextStream {
    /// An empty text that ends at the first of `stops`, none of which is empty.
    pub fn new(stops: Vec<String>) -> TextStream {
        let longest_stop = stops.iter().map(String::len).max().unwrap_or(0);
        TextStream { stops, longest_stop, bytes: Vec::new(), sent: 0, end: None, cuts_begun_stop: false }
    }

    /// The same, but a stop string that has only begun when nothing more comes is cut off.
    pub fn cutting_begun_stop(self, cuts_begun_stop: bool) -> TextStream {
        TextStream { cuts_begun_stop, ..self }
    }

    /// Bytes so far, those after a stop string included.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of the text that was taken.
    pub fn sent(&self) -> usize {
        self.sent
    }

    /// Where the completion ends, in bytes: before the stop string that appeared, else at the end of all bytes.
    pub fn end(&self) -> usize {
        self.end.unwrap_or(self.bytes.len())
    }

    /// Adds the bytes of a token. Returns the stop string that it completes: the one that begins first and, of those
    /// that begin together, the one given first.
    pub fn push(&mut self, piece: &[u8]) -> Option<&str> {
        let end = self.stop_in(piece, 0).map(|(end, stop)| (end, stop.to_owned()));
        self.append(piece);
        let (end, stop) = end?;
        self.end_at(end);
        self.stops.iter().find(|known| **known == stop).map(String::as_str)
    }

    /// The stop string that bytes `added` after the text complete, as in [`TextStream::push`], and where the text then ends. The
    /// first `n_checked` of these bytes are known to complete none.
    pub fn stop_in(&self, added: &[u8], n_checked: usize) -> Option<(usize, &str)> {
        if self.end.is_some() || self.stops.is_empty() {
            return None;
        }
        let len = self.bytes.len();
        let from = (len + n_checked).saturating_sub(self.longest_stop.saturating_sub(1)).max(self.sent);
        let byte = |at: usize| if at < len { self.bytes.get(at) } else { added.get(at - len) };
        let begins =
            |at: usize, stop: &str| (at..).zip(stop.as_bytes()).all(|(at, expected)| byte(at) == Some(expected));
        (from..len + added.len()).find_map(|at| Some((at, self.stops.iter().find(|stop| begins(at, stop))?.as_str())))
    }

    /// Adds bytes in which there is no stop string, or behind the end.
    pub fn append(&mut self, added: &[u8]) {
        self.bytes.extend_from_slice(added);
    }

    /// Ends the text before a stop string, which begins at this byte.
    pub fn end_at(&mut self, end: usize) {
        self.end.get_or_insert(end);
    }

    /// The text that may be sent now and was not taken before.
    pub fn take(&mut self) -> String {
        let mut end = self.end();
        if self.end.is_none() {
            end -= self.held_back();
        }
        self.take_to(end)
    }

    /// The rest, when nothing more comes. An unfinished character is left out.
    pub fn finish(&mut self) -> String {
        if self.cuts_begun_stop {
            let end = self.bytes.len() - self.held_back();
            self.end_at(end);
        }
        self.take_to(self.end())
    }

    /// How many bytes at the end may become a stop string.
    fn held_back(&self) -> usize {
        let unsent = self.bytes.get(self.sent..).unwrap_or(&[]);
        let most = self.longest_stop.saturating_sub(1).min(unsent.len());
        (1..=most)
            .rev()
            .find(|len| {
                let tail = unsent.get(unsent.len() - len..).unwrap_or(&[]);
                self.stops.iter().any(|stop| stop.len() > *len && stop.as_bytes().starts_with(tail))
            })
            .unwrap_or(0)
    }

    fn take_to(&mut self, end: usize) -> String {
        let mut text = String::new();
        let mut rest = self.bytes.get(self.sent..end).unwrap_or(&[]);
        while !rest.is_empty() {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                }
                Err(error) => {
                    let (valid, broken) = rest.split_at_checked(error.valid_up_to()).unwrap_or((rest, &[]));
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = broken;
                    match error.error_len() {
                        Some(len) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = broken.get(len..).unwrap_or(&[]);
                        }
                        None => break, // the rest of the character is still to come
                    }
                }
            }
        }
        self.sent = end.max(self.sent) - rest.len();
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Where `needle`, not empty, first appears.
    fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
        haystack.windows(needle.len()).position(|window| window == needle)
    }

    /// Feeds `pieces`, taking after each whose index is in `takes` (all when empty); stops at a stop string.
    fn run(stops: &[&str], pieces: &[&[u8]], takes: &[usize]) -> (Vec<String>, Option<String>) {
        let mut stream = TextStream::new(stops.iter().map(|stop| stop.to_string()).collect());
        let mut parts = Vec::new();
        let mut word = None;
        for (index, piece) in pieces.iter().enumerate() {
            word = stream.push(piece).map(str::to_owned);
            if word.is_some() {
                break;
            }
            if takes.is_empty() || takes.contains(&index) {
                parts.push(stream.take());
            }
        }
        parts.push(stream.finish());
        (parts, word)
    }

    #[test]
    fn text_before_a_stop_string_is_sent() {
        type Case<'a> = (&'a [&'a str], &'a [&'a [u8]], &'a str, Option<&'a str>);
        let cases: &[Case] = &[
            (&[], &[b"Once", b" upon"], "Once upon", None),
            (&["\n"], &[b"a", b"b\nc"], "ab", Some("\n")),
            (&["END"], &[b"xE", b"N", b"D"], "x", Some("END")),
            (&["END"], &[b"xE", b"N", b"Dx"], "x", Some("END")),
            (&["END"], &[b"xE", b"N", b"x"], "xENx", None),
            (&["END"], &[b"xEN"], "xEN", None),
            (&["aab"], &[b"a", b"a", b"a", b"b"], "a", Some("aab")),
            (&["abcd", "bc"], &[b"a", b"b", b"c"], "a", Some("bc")),
            (&["ab", "abc"], &[b"xabc"], "x", Some("ab")),
            (&["abc", "ab"], &[b"xabc"], "x", Some("abc")),
            (&["abc", "ab"], &[b"xa", b"b"], "x", Some("ab")),
            (&["é!"], &["cafÃ".as_bytes(), "é".as_bytes(), b"!"], "cafÃ", Some("é!")),
            (&["\u{1F600}"], &[b"a\xF0\x9F", b"\x98", b"\x80b"], "a", Some("\u{1F600}")),
            (&["\u{1F601}"], &[b"a\xF0\x9F", b"\x98", b"\x80b"], "a\u{1F600}b", None),
            (&[], &[b"a\xF0\x9F", b"x"], "a\u{FFFD}x", None),
            (&[], &[b"a\xF0\x9F"], "a", None),
            (&[], &[b"\xFF\xFEa"], "\u{FFFD}\u{FFFD}a", None),
        ];
        for (stops, pieces, text, word) in cases {
            let (parts, stopped) = run(stops, pieces, &[]);
            assert_eq!((parts.concat().as_str(), stopped.as_deref()), (*text, *word), "{stops:?} {pieces:?}");
        }
    }

    #[test]
    fn text_is_withheld_only_for_a_possible_stop_string() {
        assert_eq!(run(&["END"], &[b"a", b"E", b"N", b"x"], &[]).0, ["a", "", "", "ENx", ""]);
        assert_eq!(run(&[], &[b"\xC3", b"\xA9"], &[]).0, ["", "é", ""]);
    }

    #[test]
    fn stop_string_that_has_begun_can_be_cut_off() {
        for (stops, bytes, kept) in [
            (&["END"][..], &b"xEN"[..], "x"),
            (&["END"], b"xE", "x"),
            (&["END"], b"xEx", "xEx"),
            (&["END", "xEND"], b"axEN", "a"),
            (&["E\u{1F600}"], b"xE\xF0\x9F", "x"),
            (&["\u{1F600}"], b"x\xF0\x9F", "x"),
            (&[], b"xEN", "xEN"),
            (&["aab"], b"aaa", "a"),
        ] {
            let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
            for takes in [false, true] {
                let mut stream = TextStream::new(stops.clone()).cutting_begun_stop(true);
                let mut text = String::new();
                for byte in bytes {
                    assert_eq!(stream.push(&[*byte]), None);
                    text += &if takes { stream.take() } else { String::new() };
                }
                text += &stream.finish();
                assert_eq!((text.as_str(), stream.end()), (kept, kept.len()), "{stops:?} {bytes:?}");
            }
        }
    }

    proptest! {
        /// Whatever the tokens' borders and the rhythm of taking, the text is the part before the first stop string
        /// to be completed, and no part of it is sent.
        #[test]
        fn stop_strings_work_for_any_token_borders_and_polls(
            text in "[abé\u{1F600}]{0,24}",
            stops in prop::collection::vec("[abé\u{1F600}]{1,4}", 0..4),
            cuts in prop::collection::vec(0_usize..64, 0..12),
            takes in prop::collection::vec(0_usize..16, 0..8),
        ) {
            let bytes = text.as_bytes();
            let mut borders: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
            borders.extend([0, bytes.len()]);
            borders.sort();
            borders.dedup();
            let pieces: Vec<&[u8]> = borders.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();

            // Independently: the first token border at which the text so far contains a stop string.
            let seen = borders.iter().find_map(|&border| {
                let so_far = &bytes[..border];
                stops.iter().filter_map(|stop| find(so_far, stop.as_bytes())).min()
            });
            let expected = &text[..seen.unwrap_or(text.len())];

            // Looking ahead of the text finds the same as adding token by token.
            let (mut stream, mut added) = (TextStream::new(stops.iter().map(|stop| stop.to_string()).collect()), Vec::new());
            let ends = pieces.iter().find_map(|piece| {
                let n_checked = added.len();
                added.extend_from_slice(piece);
                stream.stop_in(&added, n_checked).map(|(end, stop)| (end, stop.to_owned()))
            });
            prop_assert_eq!(ends.as_ref().map(|(end, _)| *end), seen);
            let found = pieces.iter().find_map(|piece| stream.push(piece).map(str::to_owned));
            prop_assert_eq!(ends.map(|(_, stop)| stop), found);

            let takes = if takes.is_empty() { vec![usize::MAX] } else { takes };
            let (parts, stopped) = run(&stops, &pieces, &takes);
            prop_assert_eq!(parts.concat(), expected);
            prop_assert_eq!(stopped.is_some(), seen.is_some());
        }
    }
}
