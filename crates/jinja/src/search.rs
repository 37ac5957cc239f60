//! Searches in texts, which pass over the [mark](crate::RenderLimits::mark).

use std::borrow::Cow;
use std::ops::Range;
use std::rc::Rc;

use crate::error::TemplateResult;
use crate::meter::{Held, Meter};

/// A text in which something is sought. A mark belongs to the character before it.
pub(crate) struct Searched<'t> {
    original: &'t str,
    /// The text without marks.
    plain: Cow<'t, str>,
    /// The offsets in `plain` at which a mark was, ascending.
    marks: Vec<usize>,
    mark_length: usize,
    _held: Held,
}

impl<'t> Searched<'t> {
    pub(crate) fn new(meter: &Rc<Meter>, original: &'t str) -> TemplateResult<Searched<'t>> {
        meter.read(original.len())?;
        let held = Held::new(meter, 0)?;
        let mut searched =
            Searched { original, plain: original.into(), marks: Vec::new(), mark_length: 0, _held: held };
        if let Some(mark) = meter.mark()
            && original.contains(mark)
        {
            searched.mark_length = mark.len_utf8();
            let n_marks = original.matches(mark).count();
            searched._held.grow(original.len() + n_marks * size_of::<usize>())?;
            let mut plain = String::with_capacity(original.len());
            searched.marks.reserve_exact(n_marks);
            for (index, part) in original.split(mark).enumerate() {
                if index > 0 {
                    searched.marks.push(plain.len());
                }
                plain.push_str(part);
            }
            searched.plain = plain.into();
        }
        Ok(searched)
    }

    /// The occurrences from the left.
    pub(crate) fn matches<'s>(&'s self, sought: &'s str) -> impl Iterator<Item = Range<usize>> + 's {
        self.plain.match_indices(sought).map(|(at, found)| self.range(at, found.len()))
    }

    /// The occurrences from the right.
    pub(crate) fn matches_from_right<'s>(&'s self, sought: &'s str) -> impl Iterator<Item = Range<usize>> + 's {
        self.plain.rmatch_indices(sought).map(|(at, found)| self.range(at, found.len()))
    }

    pub(crate) fn contains(&self, sought: &str) -> bool {
        self.plain.contains(sought)
    }

    /// The part behind this beginning.
    pub(crate) fn without_prefix(&self, prefix: &str) -> Option<&'t str> {
        self.plain.starts_with(prefix).then(|| self.original.get(self.range(0, prefix.len()).end..).unwrap_or_default())
    }

    /// The part before this end.
    pub(crate) fn without_suffix(&self, suffix: &str) -> Option<&'t str> {
        let at = self.plain.strip_suffix(suffix)?.len();
        self.original.get(..self.range(at, suffix.len()).start)
    }

    /// The original's range of `length` bytes at `at` of the plain text, with the marks after its characters.
    fn range(&self, at: usize, length: usize) -> Range<usize> {
        let original = |at: usize| at + self.mark_length * self.marks.partition_point(|mark| *mark <= at);
        if length == 0 { original(at)..original(at) } else { original(at)..original(at + length) }
    }
}
