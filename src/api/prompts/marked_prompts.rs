//! The prompts of encoders of decisions, which have a score for a mark before each option, as in llama.cpp's server.

use super::interrupt::PromptInterrupt;
use super::native_decision::{DecisionSubject, DecisionTemplate, check_options};
use super::serving_model::ServingModel;
use crate::api::wire::request::{AskedQuestion, DecisionModel, Inputs, MAX_LABELS};
use crate::error::{Error, Result};
use crate::llama::Token;

/// The most tokens of an option's text, with which llama.cpp's type was trained.
const MAX_OPTION: usize = 48;
/// The tokens that options leave to the question.
const MIN_HEAD: usize = 16;
/// The tokens that an option keeps with its mark, however many there are, and those that a question keeps.
const KEPT: (usize, usize) = (4, 8);

/// A question's prompt, with the places of its options' marks in it.
#[derive(Debug, PartialEq)]
pub struct MarkedPrompt {
    pub tokens: Vec<Token>,
    pub marks: Vec<usize>,
}

/// Renders and tokenizes the prompts of questions, which are cut to the length that the model was trained with.
///
/// # Errors
/// The file lacks the template, a token or a number that they need, the template has another layout, or the inputs are no state.
pub fn marked_prompts(
    model: DecisionModel,
    questions: &[AskedQuestion],
    inputs: &Inputs,
    serving: &ServingModel,
    interrupt: &PromptInterrupt,
) -> Result<Vec<MarkedPrompt>> {
    check_options(questions, MAX_LABELS)?;
    let missing = |what| Error::invalid(format!("questions: the decision model's file has no {what}"));
    let mark = serving.vocab().mask().ok_or_else(|| missing("mask token"))?;
    let separator = serving.vocab().sep().ok_or_else(|| missing("separator token"))?;
    let most = serving.model.metadata_of_kind("decision.max_head_tokens").and_then(|most| most.parse().ok());
    let most: usize = most.filter(|most| *most > 0).ok_or_else(|| missing("decision.max_head_tokens"))?;
    let template = DecisionTemplate::new(model, &DecisionSubject::of(inputs)?, None, serving, interrupt)?;
    let prompt = |question: &AskedQuestion| {
        let tokens = template.tokens(question.variables(&[], false))?;
        let prompt = fitted(&tokens, mark, separator, most).filter(|prompt| prompt.marks.len() == question.n_options());
        let other = || Error::invalid(format!("{}: the template's prompt has another layout", question.name()));
        prompt.ok_or_else(other)
    };
    questions.iter().map(prompt).collect()
}

/// Cuts the options and the question of a prompt `[first] question [separator] ([mark] option)* [separator] state [separator]` so that they
/// have `most` tokens. `None`: it has another layout.
fn fitted(tokens: &[Token], mark: Token, separator: Token, most: usize) -> Option<MarkedPrompt> {
    let first_mark = tokens.iter().position(|token| *token == mark)?;
    let (question, rest) = tokens.split_at_checked(first_mark)?;
    let (first, question) = question.split_first()?;
    let (end, question) = question.split_last()?;
    let n_options_tokens = rest.iter().position(|token| *token == separator)?;
    let (options, state) = rest.split_at_checked(n_options_tokens)?;
    if *end != separator || state.len() < 2 || state.last() != Some(&separator) || state.contains(&mark) {
        return None;
    }
    let options: Vec<&[Token]> = options.split(|token| *token == mark).skip(1).collect();
    let n_cut = |most: usize| options.iter().map(|option| (option.len() + 1).min(most)).sum::<usize>();
    let mut most_option = MAX_OPTION + 1;
    if n_cut(most_option) + MIN_HEAD > most {
        most_option = KEPT.0.max(most.saturating_sub(MIN_HEAD) / options.len()).min(most_option);
    }
    let most_question = KEPT.1.max(most.saturating_sub(n_cut(most_option)));
    let question = question.get(..most_question).unwrap_or(question);
    let mut prompt = MarkedPrompt { tokens: [&[*first], question, &[separator]].concat(), marks: Vec::new() };
    for option in options {
        prompt.marks.push(prompt.tokens.len());
        prompt.tokens.push(mark);
        prompt.tokens.extend_from_slice(option.get(..most_option - 1).unwrap_or(option));
    }
    prompt.tokens.extend_from_slice(state);
    Some(prompt)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Token = 100;
    const END: Token = 101;

    /// A prompt with a question and options of these lengths, whose tokens count from 1.
    fn prompt(question: usize, options: &[usize]) -> Vec<Token> {
        let text = |n: usize| (1..).take(n).collect::<Vec<Token>>();
        let options = options.iter().flat_map(|n| [vec![MARK], text(*n)].concat());
        [vec![0], text(question), vec![END], options.collect(), vec![END, 7, 8, END]].concat()
    }

    #[test]
    fn long_questions_and_options_are_cut_evenly() {
        let fit = |tokens: &[Token], most| fitted(tokens, MARK, END, most);
        let short = prompt(3, &[2, 0]);
        assert_eq!(fit(&short, 64), Some(MarkedPrompt { tokens: short, marks: vec![5, 8] }), "nothing is cut");
        assert_eq!(fit(&prompt(3, &[60, 2]), 128).expect("a prompt").tokens, prompt(3, &[48, 2]));
        assert_eq!(fit(&prompt(70, &[20, 2]), 64).expect("a prompt").tokens, prompt(40, &[20, 2]), "64 - 21 - 3");
        // 60 and 16 are too many of 64, so each option has (64 - 16) / 2 tokens with its mark.
        assert_eq!(fit(&prompt(70, &[30, 28]), 64).expect("a prompt").tokens, prompt(16, &[23, 23]));
        assert_eq!(fit(&prompt(70, &[30; 20]), 32).expect("a prompt").tokens, prompt(8, &[3; 20]), "the least");
    }

    #[test]
    fn other_layouts_are_no_prompts() {
        let whole = prompt(3, &[2, 2]);
        let n = whole.len();
        assert!(fitted(&whole, MARK, END, 64).is_some());
        for bad in [&whole[..4], &whole[..n - 1], &whole[..n - 3], &whole[4..], &[MARK], &[]] {
            assert_eq!(fitted(bad, MARK, END, 64), None, "{bad:?}");
        }
        let in_state = [&whole[..n - 1], &[MARK, END]].concat();
        assert_eq!(fitted(&in_state, MARK, END, 64), None, "a mark in the state");
    }
}
