//! The formats of templates, each found once.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Map;

use crate::api::chat::{ChatTemplate, RenderInput};
use crate::error::Result;

/// The maximum number of requests' templates whose formats are kept for a model.
const MAX_TEMPLATES: usize = 4;

/// The maximum number of steps of all renderings that find the format of a template. The known templates need less than a tenth of it.
const MAX_STEPS: u64 = 1_000_000;

/// The format of a template.
#[derive(Debug)]
pub(in crate::api) struct TemplateFormat(pub(super) foredraft_chat::ChatFormat);

impl TemplateFormat {
    /// Finds the format by rendering a few conversations. `source` is the template's source or name. `bos` and `eos` are the texts of
    /// these tokens, or "".
    ///
    /// # Errors
    /// `source` is an unknown name.
    pub(in crate::api) fn find(template: &ChatTemplate, source: &str, bos: &str, eos: &str) -> Result<TemplateFormat> {
        let source = crate::api::chat::named_template(source)?;
        let (kwargs, interrupt) = (Map::new(), foredraft_jinja::stop_after(MAX_STEPS));
        Ok(TemplateFormat(foredraft_chat::detect(&source, &|conversation| {
            template.render_probe(&RenderInput {
                messages: conversation.messages,
                add_generation_prompt: conversation.add_generation_prompt,
                bos_token: bos,
                eos_token: eos,
                tools: conversation.tools,
                kwargs: &kwargs,
                now: std::time::UNIX_EPOCH,
                interrupt: Some(&interrupt),
            })
        })))
    }
}

/// The formats of requests' templates by source, the most recently used one last.
#[derive(Debug, Default)]
pub(in crate::api) struct RequestTemplates(Mutex<VecDeque<(String, Arc<TemplateFormat>)>>);

impl RequestTemplates {
    /// The format of the template with this source, or what `find` finds. Several threads may find the same one at once.
    ///
    /// # Errors
    /// As `find`.
    pub(in crate::api) fn get(
        &self,
        source: &str,
        find: impl FnOnce() -> Result<TemplateFormat>,
    ) -> Result<Arc<TemplateFormat>> {
        let known = |formats: &mut VecDeque<(String, Arc<TemplateFormat>)>| {
            let at = formats.iter().position(|(text, _)| text == source)?;
            let (text, format) = formats.remove(at)?;
            formats.push_back((text, Arc::clone(&format)));
            Some(format)
        };
        if let Some(format) = known(&mut self.0.lock()) {
            return Ok(format);
        }
        let format = Arc::new(find()?);
        let mut formats = self.0.lock();
        if known(&mut formats).is_none() {
            formats.push_back((source.to_owned(), Arc::clone(&format)));
            let n_old = formats.len().saturating_sub(MAX_TEMPLATES);
            formats.drain(..n_old);
        }
        Ok(format)
    }
}
