//! `foredraft_conversation`: the conversations of an engine by name.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::api::loaded::local_engine::LocalEngine;
use crate::api::wire::answer::{success, with_fields};
use crate::api::wire::fields::{Fields, parse_object};
use crate::api::wire::request::conversation_name;
use crate::engine::{ConversationAction, ConversationEntry, ConversationPlace, Rewind};
use crate::error::{Error, Result};

/// The actions, as messages list them.
const ACTIONS: &str = "list, drop, fork, pin, unpin, rewind, save or load";

impl LocalEngine {
    /// `foredraft_conversation`. Waits for the step of the engine that runs, and for no request.
    ///
    /// # Errors
    /// The request is invalid, there is no such conversation, or there is no room for its copy.
    pub fn conversation(&self, request: &[u8]) -> Result<Value> {
        const FUNCTION: &str = "conversation";
        let worker = self.worker()?;
        if !worker.generates() {
            return Err(Error::invalid(format!("{FUNCTION}: the model generates no text")));
        }
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let action = fields.c_text("action")?;
        let action = action.ok_or_else(|| Error::invalid(format!("action: expected {ACTIONS}, got nothing")))?;
        let name = conversation_name(&mut fields, "conversation")?;
        let named = || name.as_deref().ok_or_else(|| Error::invalid("conversation: expected a name, got nothing"));
        let one = |found: Vec<ConversationEntry>| found.into_iter().next().map_or_else(|| json!({}), described);
        let answer = match &*action {
            "list" => {
                let found = worker.conversations(name.as_deref(), ConversationAction::List)?;
                json!({"conversations": found.into_iter().map(described).collect::<Vec<_>>()})
            }
            "save" | "load" => {
                let path = fields.c_text("filename")?;
                let path = path.ok_or_else(|| Error::invalid("filename: expected a path, got nothing"))?;
                let (name, path) = (named()?, PathBuf::from(path));
                let (found, saved) = match &*action {
                    "save" => worker.save_conversation(name, &path).map(|(found, saved)| (found, Some(saved)))?,
                    _ => (worker.load_conversation(name, &path)?, None),
                };
                with_fields(one(found), saved.map(|saved| ("n_written", saved.n_bytes.into())))
            }
            _ => {
                let action = read_action(&action, &mut fields)?;
                one(worker.conversations(Some(named()?), action)?)
            }
        };
        Ok(success(answer, fields.finish()))
    }
}

fn read_action(action: &str, fields: &mut Fields) -> Result<ConversationAction> {
    Ok(match action {
        "drop" => ConversationAction::Drop,
        "fork" => {
            let to = conversation_name(fields, "to")?;
            ConversationAction::Fork(to.ok_or_else(|| Error::invalid("to: expected a name, got nothing"))?.to_string())
        }
        "pin" | "unpin" => ConversationAction::Pin(action == "pin"),
        "rewind" => {
            let turn = fields.int("turn", 0..=i64::from(i32::MAX))?;
            match (turn, fields.int("token", 0..=i64::from(i32::MAX))?) {
                (Some(turn), None) => ConversationAction::Rewind(Rewind::Turn(turn)),
                (None, Some(token)) => ConversationAction::Rewind(Rewind::Token(token)),
                _ => return Err(Error::invalid("turn: expected either turn or token")),
            }
        }
        _ => return Err(Error::invalid(format!("action: expected {ACTIONS}, got {action:?}"))),
    })
}

fn described(info: ConversationEntry) -> Value {
    let ConversationEntry { name, place, n_tokens, n_turns, n_bytes, is_pinned, is_running } = info;
    let (place, slot) = match place {
        ConversationPlace::Slot(slot) => ("slot", Some(slot)),
        ConversationPlace::Preempted => ("preempted", None),
        ConversationPlace::Memory => ("memory", None),
        ConversationPlace::Disk => ("disk", None),
    };
    json!({
        "conversation": name, "place": place, "id_slot": slot, "n_tokens": n_tokens, "n_turns": n_turns, "bytes": n_bytes,
        "pinned": is_pinned, "running": is_running,
    })
}
