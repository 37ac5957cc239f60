//! Parts that replace llama.cpp's own, compared with it call by call.

mod grammar;
mod sampling;
mod vocabularies;
#[path = "../common/vocabulary.rs"]
mod vocabulary;
