//! Texts, and how they are made.

use std::ops::Deref;
use std::rc::Rc;

use crate::error::TemplateResult;
use crate::meter::{Held, Meter};

/// A text, immutable.
pub struct Text {
    text: String,
    _held: Held,
}

impl Text {
    /// The memory of a text besides its bytes.
    pub(crate) const OVERHEAD: usize = 64;
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// A text that grows. All text that a template makes is made with it.
pub(crate) struct TextBuilder {
    text: String,
    held: Held,
}

impl TextBuilder {
    pub(crate) fn new(meter: &Rc<Meter>) -> TemplateResult<TextBuilder> {
        Ok(TextBuilder { text: String::new(), held: Held::new(meter, Text::OVERHEAD)? })
    }

    pub(crate) fn push_str(&mut self, text: &str) -> TemplateResult<()> {
        self.held.meter().read(text.len())?;
        self.held.grow(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    pub(crate) fn push(&mut self, c: char) -> TemplateResult<()> {
        self.push_str(c.encode_utf8(&mut [0; 4]))
    }

    /// Appends a text several times.
    pub(crate) fn repeat(&mut self, text: &str, times: usize) -> TemplateResult<()> {
        let bytes = text.len().saturating_mul(times);
        self.held.meter().read(bytes)?;
        self.held.grow(bytes)?;
        self.text.extend(std::iter::repeat_n(text, times));
        Ok(())
    }

    pub(crate) fn meter(&self) -> &Rc<Meter> {
        self.held.meter()
    }

    /// The finished text.
    pub(crate) fn into_text(self) -> Text {
        Text { text: self.text, _held: self.held }
    }

    /// The text alone; its memory is no longer counted.
    pub(crate) fn into_string(self) -> String {
        self.text
    }
}

impl Deref for TextBuilder {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}
