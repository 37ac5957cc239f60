//! The functions of the interface that take a JSON document and return one.

foredraft_base::words! {
    /// A function that takes a JSON document and returns one. (Loads, the status, polls and cancels have methods of their own.)
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Function {
        /// Generates a completion.
        Complete => "complete",
        /// Decides questions.
        Decide => "decide",
        /// Queues a request.
        Submit => "submit",
        /// Prepares a request that may come.
        Prepare => "prepare",
        /// The tokens of a text.
        Tokenize => "tokenize",
        /// The text of tokens.
        Detokenize => "detokenize",
        /// The prompt of messages.
        ApplyTemplate => "apply_template",
        /// The loaded models' metadata.
        ModelInfo => "model_info",
        /// The embedding of a text.
        Embed => "embed",
        /// The scores of documents for a query.
        Rerank => "rerank",
        /// Saves a slot.
        SessionSave => "session_save",
        /// Restores a slot.
        SessionLoad => "session_load",
        /// Empties a slot.
        SessionErase => "session_erase",
        /// The conversations by name.
        Conversation => "conversation",
        /// The n-gram caches of a running engine.
        LookupCache => "lookup_cache",
        /// Creates an n-gram cache file.
        LookupCreate => "lookup_create",
        /// Adds up n-gram cache files.
        LookupMerge => "lookup_merge",
        /// Measures n-gram caches.
        LookupStats => "lookup_stats",
    }
}

impl Function {
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
        for (name, function) in Function::WORDS {
            assert_eq!((Function::named(name), function.as_str()), (Some(function), name));
        }
    }
}
