//! Mixed texts, of strings and token ids, to tokens.

use super::request::Piece;
use crate::error::{Error, Result};
use crate::llama::{Token, Vocab};

/// The tokens of all pieces; messages call them `name`. The special tokens at the beginning of a text go before a piece
/// that is the first one and text.
pub(super) fn of_pieces(
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
                    "{name}[{index}]: {token} is not in the vocabulary of {} tokens",
                    vocab.n_tokens()
                )));
            }
        }
    }
    Ok(tokens)
}
