//! The texts of the benchmarks: prompts for the shipped models, and a corpus of their training data.
#![allow(dead_code)] // each benchmark uses a part

pub mod corpus;

/// A story in ChatML.
pub const STORY: &str =
    "<|im_start|>user\nTell me a story about a child who lost a ring.<|im_end|>\n<|im_start|>assistant\n";
/// Another story.
pub const SNAIL: &str = "<|im_start|>user\nTell me a story about Tom and a snail.<|im_end|>\n<|im_start|>assistant\n";
/// Facts to convert to a JSON record.
pub const RECORD: &str = "<|im_start|>user\nWrite this as JSON. Mia was 7 years old and lived near the river. She carried a \
     new red kite. It was windy. Mia met a fox. They ate soup. In the end Mia was proud.<|im_end|>\n\
     <|im_start|>assistant\n";
