use super::*;

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

#[test]
fn budget_of_reasoning_leaves_a_begun_call_whole() {
    let constraint = |budget| lazy(&[1], &[call_word()]).with_reasoning(think(budget), "<think>");
    let all = vocabulary().0.len();
    // The budget is used up inside of the call, which goes on as the grammar says, without tags of reasoning.
    assert_eq!(allowed_after(&constraint(Some(3)), &["a", "<call>", "{"]), ["a", "}"]);
    assert_eq!(allowed_after(&constraint(Some(3)), &["a", "<ca", "ll>{", "a", "}"]), ["</s>"]);
    assert_eq!(allowed_after(&constraint(Some(4)), &["<call>", "{", "a", "}"]), ["</s>"]);
    // A text that is no call does not delay the end of reasoning.
    assert_eq!(allowed_after(&constraint(Some(3)), &["<call>", "a", "a"]), ["stop"]);
    assert_eq!(allowed_after(&constraint(Some(2)), &["a", "<ca"]), ["stop"]);
    assert_eq!(allowed_after(&constraint(Some(5)), &["<call>", "{", "}", "a", "a"]), ["stop"]);
    assert_eq!(allowed_after(&constraint(Some(5)), &["<call>", "a", "<call>", "{", "a"]), ["a", "}"]);
    // Before the budget is used up, it is reasoning.
    assert_eq!(allowed_after(&constraint(Some(9)), &["<call>", "{", "a"]).len(), all);
    let mut ended = constraint(None);
    for token in [1, 6] {
        ended.accept(token).unwrap();
    }
    assert!(ended.end_reasoning());
    assert_eq!(allowed_after(&ended, &["a"]), ["a", "}"]);
    assert!(!ended.end_reasoning());
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
    let grammar = || {
        OutputConstraint::from(Grammar::new(&vocabulary(), GRAMMAR, &foredraft_base::work::Work::unlimited()).unwrap())
    };
    let open = grammar().with_reasoning(think(None), "<think>").behind_reasoning();
    let all = vocabulary().0.len();
    // The answer is not left out.
    assert_eq!(allowed_after(&open, &["a"]).len(), all - 1);
    assert_eq!(allowed_after(&open, &["<ca", "ll>{", "}"]).len(), all - 1);
    assert_eq!(allowed_after(&open, &["a", "</think>"]), ["<ca", "\n"]);
    assert_eq!(allowed_after(&open, &["a", "</think>", "\n", "\n"]), ["<ca", "\n"]);
    assert_eq!(allowed_after(&open, &["a", "</think>", "\n", "\n", "\n", "\n"]), ["<ca"]);
    assert_eq!(allowed_after(&open, &["a", "</think>", "\n", "<ca", "ll>{"]), ["a", "}"]);
    assert_eq!(allowed_after(&open, &["a", "</think>", "<ca", "ll>{"]), ["a", "}"]);
    let limited = grammar().with_reasoning(think(Some(1)), "<think>").behind_reasoning();
    assert_eq!(allowed_after(&limited, &["a", "stop", "</think>"]), ["<ca", "\n"]);
    // Without open reasoning it applies at once.
    assert_eq!(allowed_after(&grammar().with_reasoning(think(None), "").behind_reasoning(), &[]), ["<ca"]);
    // With triggers, a call inside of reasoning is an answer.
    let calls = grammar().with_triggers(&[call_word()]).unwrap();
    let calls = calls.with_reasoning(think(None), "<think>").behind_reasoning();
    assert_eq!(allowed_after(&calls, &["<ca", "ll>{"]).len(), all - 1);
    assert_eq!(allowed_after(&calls, &["<ca", "ll>{", "}"]).len(), all);
    assert_eq!(allowed_after(&calls, &["<ca", "ll>{", "}", "a"]).len(), all - 1);
    assert_eq!(allowed_after(&calls, &["</think>"]), ["<ca", "\n"]);
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
