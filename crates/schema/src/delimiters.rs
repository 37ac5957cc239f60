//! Text in which no delimiter occurs, by the automaton of Aho and Corasick.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::classes::{class, class_without};
use crate::rules::Rules;

/// The automaton of several delimiters. A state is the longest end of the text that begins a delimiter.
#[derive(Debug, Clone)]
pub(crate) struct Delimiters {
    texts: Vec<Vec<char>>,
    states: Vec<State>,
}

#[derive(Debug, Clone)]
struct State {
    /// The length of the longest delimiter with which the text ends; 0: none.
    found: usize,
    /// The states other than the first one to which characters lead.
    next: BTreeMap<char, usize>,
}

impl Delimiters {
    /// `None` if there are none. Empty delimiters do not count, nor those that never end a text.
    pub(crate) fn new(delimiters: &[&str]) -> Option<Delimiters> {
        let given = delimiters.iter().filter(|text| !text.is_empty());
        // Where another one ends inside of a delimiter, that one comes first.
        let is_reached = |text: &str| {
            let inside = text.chars().next_back().map_or(0, |last| text.len() - last.len_utf8());
            let inside = text.get(..inside).unwrap_or_default();
            !delimiters.iter().any(|other| !other.is_empty() && inside.contains(other))
        };
        let texts: BTreeSet<Vec<char>> =
            given.filter(|text| is_reached(text)).map(|text| text.chars().collect()).collect();
        if texts.is_empty() {
            return None;
        }
        // A tree of the texts. Then each state, by length, gets what its longest other end leads to.
        let mut nodes = vec![State { found: 0, next: BTreeMap::new() }];
        for text in &texts {
            let mut at = 0;
            for char in text {
                let new = nodes.len();
                let next = &mut nodes.get_mut(at)?.next;
                at = *next.entry(*char).or_insert(new);
                if at == new {
                    nodes.push(State { found: 0, next: BTreeMap::new() });
                }
            }
            nodes.get_mut(at)?.found = text.len();
        }
        let mut todo: VecDeque<(usize, usize)> = VecDeque::new();
        todo.extend(nodes.first()?.next.values().map(|child| (*child, 0)));
        while let Some((id, other)) = todo.pop_front() {
            let State { found, next } = nodes.get(other)?.clone();
            let state = nodes.get_mut(id)?;
            state.found = state.found.max(found);
            todo.extend(state.next.iter().map(|(char, child)| (*child, next.get(char).copied().unwrap_or(0))));
            for (char, target) in next {
                state.next.entry(char).or_insert(target);
            }
        }
        let states = nodes;
        Some(Delimiters { texts: texts.into_iter().collect(), states })
    }

    /// The characters with which delimiters begin.
    pub(crate) fn first_chars(&self) -> Vec<(u32, u32)> {
        let firsts: BTreeSet<u32> =
            self.texts.iter().filter_map(|text| text.first()).map(|char| u32::from(*char)).collect();
        firsts.into_iter().map(|code| (code, code)).collect()
    }

    /// The characters of each delimiter.
    pub(crate) fn texts(&self) -> &[Vec<char>] {
        &self.texts
    }

    fn step(&self, state: usize, char: char) -> usize {
        self.states.get(state).and_then(|state| state.next.get(&char)).copied().unwrap_or(0)
    }

    fn found(&self, state: usize) -> usize {
        self.states.get(state).map_or(0, |state| state.found)
    }

    /// Whether the text may end in a state: whichever delimiter follows, it is the first one that occurs.
    fn may_end(&self, state: usize) -> bool {
        self.found(state) == 0
            && self.texts.iter().all(|text| {
                let mut state = state;
                text.iter().enumerate().all(|(i, char)| {
                    state = self.step(state, *char);
                    let found = self.found(state);
                    if i + 1 < text.len() { found == 0 } else { found <= text.len() }
                })
            })
    }

    /// Whether a text has no delimiter, and may be followed by one.
    pub(crate) fn allows(&self, text: &str) -> bool {
        let mut state = 0;
        text.chars().all(|char| {
            state = self.step(state, char);
            self.found(state) == 0
        }) && self.may_end(state)
    }

    /// Adds the rules for text without delimiters. `escape`: GBNF for what counts as a character that no delimiter has; `excluded`:
    /// characters that only `escape` has. `is_closed`: the text does not end with the beginning of a delimiter.
    pub(crate) fn rule(
        &self,
        rules: &mut Rules,
        escape: Option<&str>,
        excluded: &[(u32, u32)],
        is_closed: bool,
    ) -> String {
        let key = format!("{:?} {escape:?} {excluded:?} {is_closed}", self.texts);
        let (first, is_new) = rules.shared(&key, "text");
        if !is_new {
            return first;
        }
        let open = |id: usize| self.found(id) == 0;
        let names: Vec<String> = (0..self.states.len())
            .map(|id| match id {
                0 => first.clone(),
                id if open(id) => rules.declare("text-part"),
                _ => String::new(),
            })
            .collect();
        let name = |id: usize| names.get(id).cloned().unwrap_or_default();
        for (id, state) in self.states.iter().enumerate().filter(|(id, _)| open(*id)) {
            let mut by_target: BTreeMap<usize, Vec<(u32, u32)>> = BTreeMap::new();
            let mut others = excluded.to_vec();
            for (char, next) in &state.next {
                let code = u32::from(*char);
                others.push((code, code));
                let is_plain = !excluded.iter().any(|(first, last)| (*first..=*last).contains(&code));
                if open(*next) && is_plain {
                    by_target.entry(*next).or_default().push((code, code));
                }
            }
            let mut parts = vec![format!("{} {first}", class_without(&others))];
            parts.extend(by_target.iter().map(|(next, chars)| format!("{} {}", class(chars), name(*next))));
            parts.extend(escape.map(|escape| format!("{escape} {first}")));
            if if is_closed { id == 0 } else { self.may_end(id) } {
                parts.push("\"\"".to_owned());
            }
            rules.define(&name(id), parts.join(" | "));
        }
        first
    }
}
