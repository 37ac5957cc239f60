//! Pictures and sounds as input of a model: llama.cpp's mtmd. A [`Projector`](projector::Projector) cuts a [`Bitmap`](bitmap::Bitmap) into pieces and
//! encodes them to rows of embeddings, which [`Batch::push_rows`](crate::Batch::push_rows) gives to a decode in place of tokens.

pub(super) mod bitmap;
pub(super) mod cache;
mod encode;
mod header;
mod inflated;
pub(super) mod projector;
mod sound_file;
