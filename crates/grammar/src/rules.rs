//! The rules of GBNF while it is parsed, and the checks of their references that llama.cpp also makes.

use super::scanner::ParseError;
use super::tree::NodeId;

/// An element of a rule's body, as far as the checks need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RuleReference {
    /// The end of an alternative that is followed by another one.
    Or,
    /// A reference to a rule.
    Rule(u32),
    /// Characters or a token.
    Terminal,
}

/// A rule while it is parsed. A group in parentheses and a repetition are rules of their own.
pub(super) struct RuleDefinition<'a> {
    /// Its name, or for an internal rule the name of the rule that contains it.
    pub(super) name: &'a str,
    /// Byte offset of its first mention.
    pub(super) at: usize,
    /// Its node in the tree. Internal rules are not mentioned by it.
    pub(super) node: NodeId,
    /// `None` until it is defined.
    pub(super) body: Option<Vec<RuleReference>>,
}

impl RuleDefinition<'_> {
    fn alternatives(&self) -> impl Iterator<Item = &[RuleReference]> {
        self.body.iter().flat_map(|body| body.split(|reference| *reference == RuleReference::Or))
    }
}

/// Checks that all rules are defined, without left recursion, as llama.cpp does. Returns the node of the rule `root`.
pub(super) fn check(definitions: &[RuleDefinition<'_>]) -> Result<NodeId, ParseError> {
    let error = |definition: &RuleDefinition<'_>, message: String| Err(ParseError { at: definition.at, message });
    // Rules mentioned after the last definition may stay undefined if no defined rule mentions them.
    let n_defined = definitions.iter().rposition(|definition| definition.body.is_some()).map_or(0, |last| last + 1);
    let (definitions, later) = definitions.split_at_checked(n_defined).unwrap_or((definitions, &[]));
    let undefined =
        |definition: &RuleDefinition<'_>| error(definition, format!("undefined rule '{}'", definition.name));
    if let Some(definition) = definitions.iter().find(|definition| definition.body.is_none()) {
        return undefined(definition);
    }
    let Some(root) = definitions.iter().find(|definition| definition.name == "root") else {
        let message = "the grammar does not contain a 'root' rule";
        return Err(ParseError { at: 0, message: message.into() });
    };
    for reference in definitions.iter().flat_map(|definition| definition.body.iter().flatten()) {
        if let RuleReference::Rule(rule) = reference
            && let Some(definition) = (*rule as usize).checked_sub(n_defined).and_then(|rule| later.get(rule))
        {
            return undefined(definition);
        }
    }
    match left_recursive(definitions) {
        Some(rule) => error(rule, format!("left recursion in the rule '{}', which is not supported", rule.name)),
        None => Ok(root.node),
    }
}

/// A left-recursive rule, if there is one, by llama.cpp's definition: only rules with an explicitly empty alternative are
/// skipped, so `(x*)*` is valid. The automaton's limits catch the remaining cases.
fn left_recursive<'a, 'b>(definitions: &'a [RuleDefinition<'b>]) -> Option<&'a RuleDefinition<'b>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Visit {
        New,
        Open,
        Done,
    }
    let may_be_empty: Vec<bool> =
        definitions.iter().map(|definition| definition.alternatives().any(<[RuleReference]>::is_empty)).collect();
    // The rules that a rule may begin with.
    let beginnings = |definition: &RuleDefinition<'_>| {
        let mut rules = Vec::new();
        for alternative in definition.alternatives() {
            for reference in alternative {
                let RuleReference::Rule(first) = *reference else { break };
                rules.push(first as usize);
                if may_be_empty.get(first as usize) == Some(&false) {
                    break;
                }
            }
        }
        rules
    };
    let mut visits = vec![Visit::New; definitions.len()];
    for start in 0..definitions.len() {
        // The path of rules being visited, each with the rules it may begin with that are still to visit.
        let mut open: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut next = Some(start);
        loop {
            match next.and_then(|rule| visits.get_mut(rule).zip(definitions.get(rule)).zip(Some(rule))) {
                Some(((Visit::Open, definition), _)) => return Some(definition),
                Some(((visit @ Visit::New, definition), rule)) => {
                    *visit = Visit::Open;
                    open.push((rule, beginnings(definition)));
                }
                Some(((Visit::Done, _), _)) | None => {}
            }
            let Some((rule, to_visit)) = open.last_mut() else { break };
            next = to_visit.pop();
            if next.is_none() {
                visits.get_mut(*rule).into_iter().for_each(|visit| *visit = Visit::Done);
                open.pop();
            }
        }
    }
    None
}
