//! Templates with their formats, each found once.

use std::collections::VecDeque;
use std::sync::Arc;

use foredraft_chat::ChatFormat;
use foredraft_jinja::{StopSignal, stop_after};
use parking_lot::Mutex;
use serde_json::Map;

use crate::api::prompts::chat::{ChatTemplate, RenderInput};
use crate::error::{Code, Error, Result};

/// The maximum number of requests' templates whose formats are kept for a model.
const MAX_TEMPLATES: usize = 4;

/// The maximum number of steps of all renderings that find the format of a template. The known templates need less than a tenth of it.
const MAX_STEPS: u64 = 1_000_000;

/// A template, and the format of the answers to its prompts.
#[derive(Debug)]
pub struct KnownTemplate {
    pub(in crate::api) template: ChatTemplate,
    pub(in crate::api) format: ChatFormat,
}

impl KnownTemplate {
    /// Parses a template, and finds its format by rendering a few conversations. `source` is its source or name. `bos` and `eos` are the
    /// texts of these tokens, or "".
    ///
    /// # Errors
    /// Those of [`ChatTemplate::parse`].
    pub(in crate::api) fn find(
        source: &str,
        [bos, eos]: &[String; 2],
        interrupt: &StopSignal,
    ) -> Result<KnownTemplate> {
        let template = ChatTemplate::parse(source, Some(interrupt))?;
        let (kwargs, is_enough, asked) = (Map::new(), stop_after(MAX_STEPS), Arc::clone(interrupt));
        let stop: StopSignal = Arc::new(move || is_enough() || asked());
        let format = foredraft_chat::detect(&template.texts(), &|conversation| {
            template.render_probe(&RenderInput {
                messages: conversation.messages,
                add_generation_prompt: conversation.add_generation_prompt,
                bos_token: bos,
                eos_token: eos,
                tools: conversation.tools,
                kwargs: &kwargs,
                now: std::time::UNIX_EPOCH,
                interrupt: Some(&stop),
            })
        });
        // An interrupted rendering looks like a template that refuses a conversation.
        if interrupt() {
            return Err(Error::new(Code::Cancelled, "chat_template: was interrupted"));
        }
        Ok(KnownTemplate { template, format })
    }
}

/// Requests' templates by source, the most recently used one last.
#[derive(Debug, Default)]
pub(in crate::api) struct RequestTemplates(Mutex<VecDeque<(String, Arc<KnownTemplate>)>>);

impl RequestTemplates {
    /// The template with this source, or what `find` finds. Several threads may find the same one at once.
    ///
    /// # Errors
    /// As `find`.
    pub(in crate::api) fn get(
        &self,
        source: &str,
        find: impl FnOnce() -> Result<KnownTemplate>,
    ) -> Result<Arc<KnownTemplate>> {
        let known = |templates: &mut VecDeque<(String, Arc<KnownTemplate>)>| {
            let at = templates.iter().position(|(text, _)| text == source)?;
            let (text, found) = templates.remove(at)?;
            templates.push_back((text, Arc::clone(&found)));
            Some(found)
        };
        if let Some(found) = known(&mut self.0.lock()) {
            return Ok(found);
        }
        let found = Arc::new(find()?);
        let mut templates = self.0.lock();
        if known(&mut templates).is_none() {
            templates.push_back((source.to_owned(), Arc::clone(&found)));
            let n_old = templates.len().saturating_sub(MAX_TEMPLATES);
            templates.drain(..n_old);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A search for a format renders some thirty conversations, so that one of them asks.
    #[test]
    fn an_interrupt_ends_the_search_for_a_format_at_every_question() {
        let slow = "{% for i in range(9000) %}{% endfor %}{{ messages[0].content }}";
        let n_asked = |most: usize| {
            let asked = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&asked);
            let interrupt: StopSignal = Arc::new(move || counted.fetch_add(1, Ordering::Relaxed) >= most);
            let found = KnownTemplate::find(slow, &Default::default(), &interrupt);
            (asked.load(Ordering::Relaxed), found.err().map(|error| error.code()))
        };
        let (all, failure) = n_asked(usize::MAX);
        assert!(all > 100 && failure.is_none(), "{all} {failure:?}");
        for most in (0..all).step_by(all / 50) {
            // A refused conversation is asked for again without tools, and the search ends with the question whether it was interrupted.
            let (asked, failure) = n_asked(most);
            assert!(failure == Some(Code::Cancelled) && asked < most + 50, "{asked} {most} {failure:?}");
        }
    }
}
