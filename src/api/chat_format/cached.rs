//! Formats that llama.cpp has found, so that it finds the format of a template, tools and settings once.
//!
//! llama.cpp renders a template a few dozen times for each format, without limits. What it finds depends on the messages only through the
//! role of the last one and the text that `add_generation_prompt` adds after them. The renderer, which has limits, says which text that is.
//! (`formats_of_real_templates_depend_on_messages_by_the_generation_prompt_only`)

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::applied::{AppliedFormat, Capabilities, read};
use crate::api::chat::named_template;
use crate::error::Result;
use crate::llama::FormatTemplate;

/// The maximum number of formats that are kept for a template.
const MAX_FORMATS: usize = 16;
/// The maximum number of requests' templates that are kept for a model.
const MAX_TEMPLATES: usize = 4;
/// The longest request, in bytes, for which a format is kept.
const MAX_KEY: usize = 256 << 10;

/// Values by text, the most recently used one last.
#[derive(Debug)]
struct Recent<V> {
    values: Mutex<VecDeque<(String, Arc<V>)>>,
    most: usize,
}

impl<V> Recent<V> {
    fn new(most: usize) -> Recent<V> {
        Recent { values: Mutex::new(VecDeque::new()), most }
    }

    /// The value of `key`, or what `make` makes. Several threads may make the same value at once.
    fn get_or_make(&self, key: &str, make: impl FnOnce() -> Result<V>) -> Result<Arc<V>> {
        let known = |values: &mut VecDeque<(String, Arc<V>)>| {
            let at = values.iter().position(|(text, _)| text == key)?;
            let (text, value) = values.remove(at)?;
            values.push_back((text, Arc::clone(&value)));
            Some(value)
        };
        if let Some(value) = known(&mut self.values.lock()) {
            return Ok(value);
        }
        let value = Arc::new(make()?);
        let mut values = self.values.lock();
        if known(&mut values).is_none() {
            values.push_back((key.to_owned(), Arc::clone(&value)));
            let n_old = values.len().saturating_sub(self.most);
            values.drain(..n_old);
        }
        Ok(value)
    }
}

/// A template that llama.cpp has parsed, with the formats that it has found.
#[derive(Debug)]
pub(in crate::api) struct TemplateFormat {
    template: FormatTemplate,
    formats: Recent<AppliedFormat>,
}

impl TemplateFormat {
    /// Parses a template's source, or the template with this name. The renderer must have accepted it.
    ///
    /// # Errors
    /// llama.cpp cannot parse it.
    pub(in crate::api) fn parse(source: &str, bos: &str, eos: &str) -> Result<TemplateFormat> {
        let template = FormatTemplate::parse(&named_template(source)?, bos, eos)?;
        Ok(TemplateFormat { template, formats: Recent::new(MAX_FORMATS) })
    }

    pub(super) fn capabilities(&self) -> Result<Capabilities> {
        read(&self.template.capabilities()?)
    }

    /// The format of a request. `generation_prompt`: the text that `add_generation_prompt` adds after the request's messages; `None`: it is
    /// unknown, or the format depends on the messages otherwise.
    ///
    /// # Errors
    /// The template fails, or llama.cpp cannot find its format.
    pub(super) fn apply(&self, request: &Value, generation_prompt: Option<&str>) -> Result<Arc<AppliedFormat>> {
        let find = || read(&self.template.apply(&request.to_string())?);
        let key = generation_prompt.and_then(|text| {
            let last = request
                .get("messages")
                .and_then(Value::as_array)
                .and_then(|messages| messages.last()?.get("role").cloned());
            // Without the messages, which may be long.
            let settings = request.as_object()?.iter().filter(|(key, _)| *key != "messages");
            let mut settings: Map<String, Value> = settings.map(|(key, value)| (key.clone(), value.clone())).collect();
            settings.insert("messages".to_owned(), json!([last, text]));
            Some(Value::Object(settings).to_string()).filter(|key| key.len() <= MAX_KEY)
        });
        match key {
            Some(key) => self.formats.get_or_make(&key, find),
            None => find().map(Arc::new),
        }
    }

    /// The number of formats that are kept.
    #[cfg(test)]
    pub(super) fn n_kept(&self) -> usize {
        self.formats.values.lock().len()
    }
}

/// The templates of requests, by source.
#[derive(Debug)]
pub(in crate::api) struct RequestTemplates(Recent<TemplateFormat>);

impl Default for RequestTemplates {
    fn default() -> Self {
        RequestTemplates(Recent::new(MAX_TEMPLATES))
    }
}

impl RequestTemplates {
    /// The template with this source, or this name. The renderer must have accepted it.
    ///
    /// # Errors
    /// llama.cpp cannot parse it.
    pub(in crate::api) fn get(&self, source: &str, bos: &str, eos: &str) -> Result<Arc<TemplateFormat>> {
        self.0.get_or_make(source, || TemplateFormat::parse(source, bos, eos))
    }
}
