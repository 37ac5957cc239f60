//! The log of drafts at the debug level, in the form of llama.cpp's `speculative.cpp`.

use super::plan::SlotPlan;
use super::verify::SlotOutcome;
use foredraft_llama::log::{self, Level};
use foredraft_llama::{Token, Vocab};

/// Logs what was drafted for the request `id`, and what became of each token.
pub(super) fn log_draft(id: u64, plan: &SlotPlan, outcome: &SlotOutcome, vocab: &Vocab) {
    if plan.draft.kind.is_none() || !log::is_enabled(Level::Debug) {
        return;
    }
    let write = |line: String| log::write(Level::Debug, &format!("request {id}: {line}"));
    let text = |token: Token| on_one_line(&String::from_utf8_lossy(vocab.piece(token)));
    let name = |token: Token| format!("{token}, '{}'", text(token));
    let pieces: Vec<String> = plan.draft.tokens.iter().map(|token| format!("'{}':{token}", text(*token))).collect();
    write(format!("drafted: [ {} ]", pieces.join(", ")));
    let n_accepted = outcome.draft.n_accepted;
    let mut node = 0;
    for (index, generated) in outcome.tokens.iter().enumerate() {
        if index < n_accepted {
            let token = name(generated.token);
            write(format!("the sampled target token matches the {index}th drafted token ({token}) - accepted"));
            node = plan.child(node, generated.token).unwrap_or(node);
            continue;
        }
        let mut others = plan.tree.children(node).filter_map(|child| plan.drafted(child)).peekable();
        if others.peek().is_none() {
            write("out of drafted tokens".to_owned());
        }
        for other in others {
            let (drafted, sampled) = (name(other), name(generated.token));
            write(format!(
                "the {index}th drafted token ({drafted}) does not match the sampled target token ({sampled}) - rejected"
            ));
        }
    }
}

/// The text with its control characters escaped, so that a line of the log stays one line.
fn on_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() {
            line.extend(letter.escape_default());
        } else {
            line.push(letter);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_with_line_breaks_stay_on_the_line() {
        assert_eq!(on_one_line("a\n\r\tb\u{7f}\u{85}\u{FFFD} ß'"), "a\\n\\r\\tb\\u{7f}\\u{85}\u{FFFD} ß'");
    }
}
