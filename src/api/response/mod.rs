//! Answers: the engine's events and results as JSON.

mod answer;
mod completion;
mod parts;

pub use self::answer::error_json;
pub(super) use self::answer::{ratio, success};
pub(super) use self::completion::{event_updates, final_response, log_answer};
pub(super) use self::parts::{pending_prompt_stats, prompt_stats, restored_session, saved_session};
