use super::*;
use crate::tree::{Mark, TreeBuilder};

/// A vocabulary with these tokens, of which 0 ends a completion and 1 is a control token. Tokenizes nothing.
#[derive(Debug)]
struct Words(Vec<&'static str>);

impl Vocabulary for Words {
    fn n_tokens(&self) -> usize {
        self.0.len()
    }

    fn piece(&self, token: Token) -> &[u8] {
        self.0[token as usize].as_bytes()
    }

    fn text(&self, token: Token) -> &[u8] {
        if token < 2 { &[] } else { self.piece(token) }
    }

    fn is_eog(&self, token: Token) -> bool {
        token == 0
    }

    fn newline(&self) -> Option<Token> {
        None
    }

    fn tokenize(&self, _: &[u8], _: bool) -> Result<Vec<Token>> {
        Ok(Vec::new())
    }
}

fn vocabulary() -> Arc<Words> {
    let words = ["</s>", "<call>", "a", "<ca", "ll>", "ll>x", "{", "}", "<think>", "</think>", "stop", "ll>{", "\n"];
    Arc::new(Words(words.to_vec()))
}

const GRAMMAR: &str = "root ::= \"<call>\" \"{\" \"a\"* \"}\"";

/// A constraint, and the names of the tokens that it allows after `accepted`.
fn allowed_after(constraint: &OutputConstraint, accepted: &[&str]) -> Vec<&'static str> {
    let words = &vocabulary().0;
    let number = |word: &str| words.iter().position(|known| *known == word).unwrap() as Token;
    let mut constraint = constraint.clone();
    for word in accepted {
        assert!(constraint.allows(number(word)).unwrap(), "{word} of {accepted:?}");
        constraint.accept(number(word)).unwrap();
    }
    let mut candidates: Vec<TokenData> =
        (0..words.len()).map(|id| TokenData { id: id as Token, logit: 0.0, p: 0.0 }).collect();
    constraint.filter(&mut candidates).unwrap();
    let allowed = candidates.iter().filter(|candidate| candidate.logit == 0.0);
    allowed.map(|candidate| words[candidate.id as usize]).collect()
}

fn lazy(preserved: &[Token], triggers: &[Trigger]) -> OutputConstraint {
    let vocabulary = Arc::new(PreservingVocabulary::new(vocabulary(), preserved.into()));
    OutputConstraint::from(Grammar::new(&vocabulary, GRAMMAR, &foredraft_base::work::Work::unlimited()).unwrap())
        .with_triggers(triggers)
        .unwrap()
}

fn call_word() -> Trigger {
    Trigger::Word("<call>".to_owned())
}

fn think(budget: Option<u32>) -> ReasoningRules {
    let ends = vec!["</think>".to_owned()];
    ReasoningRules { start: "<think>".to_owned(), ends, budget, forced: vec![10, 9] }
}

#[test]
fn lazy_grammar_begins_with_its_trigger() {
    let constraint = lazy(&[], &[call_word()]);
    let all = vocabulary().0.len();
    assert_eq!(allowed_after(&constraint, &["a", "{", "}"]).len(), all);
    assert_eq!(allowed_after(&constraint, &["a", "<ca", "ll>"]), ["{"]);
    assert_eq!(allowed_after(&constraint, &["<ca", "ll>", "{", "a"]), ["a", "}"]);
    assert_eq!(allowed_after(&constraint, &["<ca", "ll>{", "}"]), ["</s>"]);
}

#[test]
fn token_that_begins_the_grammar_wrongly_is_forbidden() {
    let constraint = lazy(&[], &[call_word()]);
    let allowed = allowed_after(&constraint, &["<ca"]);
    assert!(!allowed.contains(&"ll>x") && allowed.contains(&"ll>") && allowed.contains(&"ll>{"), "{allowed:?}");
}

#[test]
fn preserved_control_token_has_text() {
    // The control token adds no text, so it begins nothing.
    assert_eq!(allowed_after(&lazy(&[], &[call_word()]), &["<call>"]).len(), vocabulary().0.len());
    assert_eq!(allowed_after(&lazy(&[1], &[call_word()]), &["<call>"]), ["{"]);
    assert_eq!(allowed_after(&lazy(&[1], &[Trigger::Token(1)]), &["a", "<call>"]), ["{"]);
    assert_eq!(allowed_after(&lazy(&[1], &[Trigger::Token(1)]), &["<ca", "ll>"]).len(), vocabulary().0.len());
}

#[test]
fn triggers_do_not_count_inside_of_reasoning() {
    let constraint = lazy(&[1], &[call_word()]).with_reasoning(think(None), "assistant <think>");
    let all = vocabulary().0.len();
    assert_eq!(allowed_after(&constraint, &["<call>", "a"]).len(), all);
    assert_eq!(allowed_after(&constraint, &["<call>", "</think>"]).len(), all);
    assert_eq!(allowed_after(&constraint, &["</think>", "<call>"]), ["{"]);
    assert_eq!(allowed_after(&constraint, &["</think>", "<think>", "<call>", "a"]).len(), all);
}

#[test]
fn text_that_ends_reasoning_can_be_a_trigger() {
    let rules = ReasoningRules { ends: vec!["</think>".to_owned(), "<call>".to_owned()], ..think(None) };
    let constraint = lazy(&[1], &[call_word()]).with_reasoning(rules, "<think>");
    assert_eq!(allowed_after(&constraint, &["a", "<call>"]), ["{"]);
    assert_eq!(allowed_after(&constraint, &["a", "<ca", "ll>{"]), ["a", "}"]);
}

/// A tree of reasoning, in which a call may begin at the end, and what follows.
fn marked(budget: Option<u32>) -> OutputConstraint {
    let tree = TreeBuilder::new();
    let (thought, call, rest) = (tree.free_text(&["</think>"]), tree.text("<call>"), tree.text("{"));
    let (end, letter, close, text) = (tree.text("</think>"), tree.text("a"), tree.text("}"), tree.free_text(&[]));
    let (called, ended) = (tree.seq(&[thought, call]), tree.seq(&[thought, end]));
    let (called, ended) = (tree.mark(Mark::ReasoningBlock, called), tree.mark(Mark::ReasoningBlock, ended));
    let letters = tree.repeat(letter, 0, None);
    let (called, ended) = (tree.seq(&[called, rest, letters, close]), tree.seq(&[ended, text]));
    let root = tree.alt(&[called, ended]);
    let vocabulary = Arc::new(PreservingVocabulary::new(vocabulary(), [1].into()));
    let work = foredraft_base::work::Work::unlimited();
    OutputConstraint::from(Grammar::from_tree(vocabulary, tree, root, &work).unwrap()).with_reasoning(think(budget), "")
}

#[test]
fn budget_of_reasoning_waits_for_a_begun_call() {
    let all = vocabulary().0.len();
    // Behind the call nothing else is left than its end, or more reasoning, which then ends.
    assert!(allowed_after(&marked(Some(3)), &["a", "<call>", "{"]).contains(&"}"));
    assert!(allowed_after(&marked(Some(3)), &["a", "<call>", "{", "a", "}"]).contains(&"</s>"));
    assert_eq!(allowed_after(&marked(Some(3)), &["a", "<call>", "{", "a", "{"]), ["stop"]);
    // A text that is no call does not delay the end of reasoning.
    assert_eq!(allowed_after(&marked(Some(3)), &["<call>", "a", "a"]), ["stop"]);
    assert_eq!(allowed_after(&marked(Some(2)), &["a", "a", "stop", "</think>"]).len(), all);
    let mut ended = marked(None);
    ended.accept(1).unwrap();
    assert!(ended.end_reasoning());
    assert!(allowed_after(&ended, &["{", "a"]).contains(&"}"));
    assert_eq!(allowed_after(&ended, &["a"]), ["stop"]);
}

#[test]
fn tags_of_reasoning_in_a_call_are_text() {
    let grammar =
        Grammar::new(&vocabulary(), "root ::= \"<call>\" [^}]* \"}\"", &foredraft_base::work::Work::unlimited())
            .unwrap();
    let constraint = OutputConstraint::from(grammar).with_triggers(&[call_word()]).unwrap();
    let constraint = constraint.with_reasoning(think(Some(1)), "");
    let allowed = allowed_after(&constraint, &["<ca", "ll>", "<think>", "a", "a"]);
    assert!(allowed.contains(&"a") && allowed.contains(&"}"), "{allowed:?}");
}

#[test]
fn grammar_behind_reasoning_applies_when_it_ends() {
    let behind = |budget| {
        let work = foredraft_base::work::Work::unlimited();
        let (mut tree, root) = Grammar::read(vocabulary().as_ref(), GRAMMAR, &work).unwrap();
        let root = tree.behind_reasoning(&["</think>"], root);
        let grammar = Grammar::from_tree(vocabulary(), tree, root, &work).unwrap();
        OutputConstraint::from(grammar).with_reasoning(think(budget), "<think>")
    };
    let open = behind(None);
    // The answer is not left out, and the control token has no text.
    let others = vocabulary().0.len() - 2;
    assert_eq!(allowed_after(&open, &["a"]).len(), others);
    assert_eq!(allowed_after(&open, &["<ca", "ll>{", "}"]).len(), others);
    assert_eq!(allowed_after(&open, &["a", "</think>"]), ["<ca", "\n"]);
    assert_eq!(allowed_after(&open, &["a", "</think>", "\n", "<ca", "ll>{"]), ["a", "}"]);
    assert_eq!(allowed_after(&open, &["a", "</think>", "<ca", "ll>{"]), ["a", "}"]);
    assert_eq!(allowed_after(&behind(Some(1)), &["a", "stop", "</think>"]), ["<ca", "\n"]);
}

#[test]
fn budget_forces_its_tokens_once() {
    let constraint = OutputConstraint::none(vocabulary()).with_reasoning(think(Some(2)), "<think>");
    assert_eq!(allowed_after(&constraint, &["a"]).len(), vocabulary().0.len());
    assert_eq!(allowed_after(&constraint, &["a", "a"]), ["stop"]);
    assert_eq!(allowed_after(&constraint, &["a", "a", "stop"]), ["</think>"]);
    assert_eq!(allowed_after(&constraint, &["a", "a", "stop", "</think>"]).len(), vocabulary().0.len());
}

#[test]
fn reasoning_ends_on_command() {
    let mut constraint = OutputConstraint::none(vocabulary()).with_reasoning(think(None), "");
    assert!(!constraint.end_reasoning());
    constraint.accept(8).unwrap();
    assert!(constraint.end_reasoning());
    assert_eq!(allowed_after(&constraint, &[]), ["stop"]);
    assert!(!constraint.end_reasoning());
}

#[test]
fn grammar_of_the_whole_completion_wins_over_the_budget() {
    let grammar = Grammar::new(
        &vocabulary(),
        "root ::= \"<think>\" \"a\"* \"</think>\"",
        &foredraft_base::work::Work::unlimited(),
    )
    .unwrap();
    let constraint = OutputConstraint::from(grammar).with_reasoning(think(Some(1)), "");
    assert_eq!(allowed_after(&constraint, &["<think>", "a"]), ["a", "</think>"]);
}

#[test]
fn prefix_is_part_of_a_grammar() {
    let mut grammar = Grammar::new(&vocabulary(), GRAMMAR, &foredraft_base::work::Work::unlimited()).unwrap();
    assert!(!grammar.allows_text(b"<calm").unwrap());
    grammar.accept_text(b"<call").unwrap();
    grammar.accept_text(b">{").unwrap();
    assert_eq!(allowed_after(&grammar.into(), &[]), ["a", "}"]);
}
