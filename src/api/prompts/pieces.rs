//! Tokenizes prompts that mix strings and token ids.

use crate::api::request::Piece;
use crate::error::{Error, Result};
use crate::llama::{Token, Vocab};

/// Tokenizes the pieces and concatenates the tokens. Error messages call the pieces `name`. With `add_special`, the special tokens
/// at the beginning of a text (BOS) are added if the first piece is text.
///
/// # Errors
/// A text is too long, or a token is not in the vocabulary.
pub(in crate::api) fn tokenize_pieces(
    vocab: &Vocab,
    name: &str,
    pieces: &[Piece],
    add_special: bool,
    parse_special: bool,
) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Text(text) => {
                let (text, add_special) = (text.as_bytes(), add_special && index == 0);
                tokens.extend(match parse_special {
                    true => vocab.tokenize(text, add_special, true)?,
                    false => vocab.tokenize_data(text, add_special)?,
                });
            }
            Piece::Token(token) if vocab.contains(*token) => tokens.push(*token),
            Piece::Token(token) => {
                return Err(Error::invalid(format!(
                    "{name}[{index}]: token {token} is not in the vocabulary of {} tokens",
                    vocab.n_tokens()
                )));
            }
        }
    }
    Ok(tokens)
}
