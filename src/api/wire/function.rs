//! The functions of the interface that take a JSON document and return one.

/// A function that takes a JSON document and returns one. (Loads, the status, polls and cancels have methods of their own.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// Generates a completion.
    Complete,
    /// Decides questions.
    Decide,
    /// Queues a request.
    Submit,
    /// Prepares a request that may come.
    Prepare,
    /// The tokens of a text.
    Tokenize,
    /// The text of tokens.
    Detokenize,
    /// The prompt of messages.
    ApplyTemplate,
    /// The loaded models' metadata.
    ModelInfo,
    /// The embedding of a text.
    Embed,
    /// The scores of documents for a query.
    Rerank,
    /// Saves a slot.
    SessionSave,
    /// Restores a slot.
    SessionLoad,
    /// Empties a slot.
    SessionErase,
    /// The conversations by name.
    Conversation,
    /// The n-gram caches of a running engine.
    LookupCache,
    /// Creates an n-gram cache file.
    LookupCreate,
    /// Adds up n-gram cache files.
    LookupMerge,
    /// Measures n-gram caches.
    LookupStats,
}

impl Function {
    /// Every function, with its name.
    const ALL: [(Function, &str); 18] = [
        (Function::Complete, "complete"),
        (Function::Decide, "decide"),
        (Function::Submit, "submit"),
        (Function::Prepare, "prepare"),
        (Function::Tokenize, "tokenize"),
        (Function::Detokenize, "detokenize"),
        (Function::ApplyTemplate, "apply_template"),
        (Function::ModelInfo, "model_info"),
        (Function::Embed, "embed"),
        (Function::Rerank, "rerank"),
        (Function::SessionSave, "session_save"),
        (Function::SessionLoad, "session_load"),
        (Function::SessionErase, "session_erase"),
        (Function::Conversation, "conversation"),
        (Function::LookupCache, "lookup_cache"),
        (Function::LookupCreate, "lookup_create"),
        (Function::LookupMerge, "lookup_merge"),
        (Function::LookupStats, "lookup_stats"),
    ];

    /// The function's name.
    pub fn name(self) -> &'static str {
        Function::ALL.iter().find(|(function, _)| *function == self).map_or("", |(_, name)| name)
    }

    /// The function of a name.
    pub fn named(name: &str) -> Option<Function> {
        Function::ALL.iter().find(|(_, known)| *known == name).map(|(function, _)| *function)
    }

    /// Whether the function waits for the engine, so that a callback must not call it.
    pub fn waits(self) -> bool {
        matches!(
            self,
            Function::Complete
                | Function::Decide
                | Function::Embed
                | Function::Rerank
                | Function::SessionSave
                | Function::SessionLoad
                | Function::SessionErase
                | Function::Conversation
        )
    }

    /// Whether the calling thread may write files.
    pub fn writes_files(self) -> bool {
        matches!(
            self,
            Function::SessionSave
                | Function::Conversation
                | Function::LookupCache
                | Function::LookupCreate
                | Function::LookupMerge
                | Function::LookupStats
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_a_name_of_its_own() {
        for (function, name) in Function::ALL {
            assert_eq!((Function::named(name), function.name()), (Some(function), name));
        }
    }
}
