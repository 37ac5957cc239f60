//! Our own grammars, samplers and tokenizer calls give the same results as llama.cpp's.

mod grammar;
mod sampling;
mod vocabularies;
#[path = "../common/vocabulary.rs"]
mod vocabulary;
