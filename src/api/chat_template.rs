//! stub, being replaced
#![allow(missing_docs)]
use crate::error::{Error, Result};
pub struct ChatTemplate;
impl ChatTemplate {
    pub fn parse(_: &str) -> Result<ChatTemplate> { Ok(ChatTemplate) }
    pub fn render(&self, _: &RenderInput) -> Result<String> { Err(Error::invalid("stub")) }
}
pub struct RenderInput<'a> { pub messages: &'a [serde_json::Value], pub add_generation_prompt: bool, pub bos_token: &'a str, pub eos_token: &'a str,
   pub tools: Option<&'a serde_json::Value>, pub kwargs: &'a serde_json::Map<String, serde_json::Value> }
