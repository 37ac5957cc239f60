//! Drops the oldest turns of a chat that does not fit into the context.
//!
//! A turn is a user message with all messages up to the next one. After the last user message, a tool call with its results is one
//! unit. System messages and the last user message are never dropped.
//!
//! The completion needs space, too. Otherwise the context would become full, and a context shift would drop the beginning of the
//! prompt. `n_predict` tokens are reserved, but at most half of the context, because hosts often set a limit that they do not expect
//! to reach. Without a limit, a quarter of the context is reserved.
//!
//! Turns are dropped in blocks of about a quarter of the space for the prompt. If only the minimum were dropped, a growing chat
//! would lose one more turn in each request, and no prompt could reuse the KV cache of the previous one. With blocks, most
//! requests begin with the same turn as the previous request.

use serde_json::Value;

use crate::error::{Error, Result};

/// A chat that fits.
pub(in crate::api) struct FittedChat<T> {
    /// The prompt of the remaining messages.
    pub(in crate::api) prompt: T,
    /// The numbers of the dropped messages, ascending.
    pub(in crate::api) dropped: Vec<usize>,
    /// The request's warning about them.
    pub(in crate::api) warning: Option<String>,
}

/// The number of tokens reserved for the completion.
fn reserved(n_predict: Option<usize>, n_ctx: usize) -> usize {
    n_predict.map_or(n_ctx / 4, |n_predict| n_predict.min(n_ctx / 2))
}

/// The indices of the messages that can be dropped, grouped by turn, the oldest turn first.
fn groups(messages: &[Value]) -> Vec<Vec<usize>> {
    let role = |message: &Value| message.get("role").and_then(Value::as_str).unwrap_or_default().to_owned();
    let roles: Vec<String> = messages.iter().map(role).collect();
    let last_user = roles.iter().rposition(|role| role == "user");
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, role) in roles.iter().enumerate() {
        match role.as_str() {
            "system" | "developer" => continue,
            "user" => groups.push(Vec::new()),
            "assistant" if last_user.is_none_or(|last_user| index > last_user) => groups.push(Vec::new()),
            _ if groups.is_empty() => groups.push(Vec::new()),
            _ => {}
        }
        groups.last_mut().into_iter().for_each(|group| group.push(index));
    }
    // The completion continues the last turn.
    groups.pop();
    groups.retain(|group| last_user.is_none_or(|last_user| !group.contains(&last_user)));
    groups
}

/// Drops the oldest turns until the prompt fits. `make` renders messages to a prompt, `len` is the number of tokens of a prompt.
///
/// # Errors
/// Those of `make`; [`Code::ContextFull`](crate::error::Code::ContextFull): the messages that must stay do not fit.
pub(in crate::api) fn drop_turns<T>(
    messages: &[Value],
    n_predict: Option<usize>,
    n_ctx: usize,
    make: impl Fn(&[Value]) -> Result<T>,
    len: impl Fn(&T) -> usize,
) -> Result<FittedChat<T>> {
    let reserved = reserved(n_predict, n_ctx);
    // At least one more token must fit.
    let limit = n_ctx.saturating_sub(reserved.max(1));
    let whole = make(messages)?;
    let n_whole = len(&whole);
    let groups = groups(messages);
    if n_whole <= limit || (groups.is_empty() && n_whole < n_ctx) {
        return Ok(FittedChat { prompt: whole, dropped: Vec::new(), warning: None });
    }
    let without = |n_groups: usize| {
        let dropped: Vec<usize> = groups.iter().take(n_groups).flatten().copied().collect();
        let left: Vec<Value> = without_dropped(messages, &dropped).map(|(_, message)| message.clone()).collect();
        Ok(ShorterChat { prompt: make(&left)?, n_groups, dropped })
    };
    // Binary search for the smallest number of dropped turns that leaves at most `limit` tokens.
    let fewest = |limit: usize| -> Result<Option<ShorterChat<T>>> {
        let (mut low, mut high, mut found) = (1, groups.len(), None);
        while low <= high {
            let middle = low.midpoint(high);
            let shortened = without(middle)?;
            if len(&shortened.prompt) <= limit {
                found = Some(shortened);
                high = middle - 1;
            } else {
                low = middle + 1;
            }
        }
        Ok(found)
    };
    let block = (limit / 4).max(1);
    let by_blocks = (n_whole - limit).div_ceil(block).saturating_mul(block);
    let shortened = match fewest(n_whole.saturating_sub(by_blocks))? {
        Some(shortened) => shortened,
        None => match fewest(limit)? {
            Some(shortened) => shortened,
            None => without(groups.len())?,
        },
    };
    let ShorterChat { prompt, n_groups, dropped } = shortened;
    let n_dropped = dropped.len();
    let n_left = len(&prompt);
    if n_left >= n_ctx {
        let kept = "the system message and the last turn";
        let message = format!("messages: {kept} have {n_left} tokens and do not fit into the context of {n_ctx}");
        return Err(Error::context_full(message, n_left, n_ctx));
    }
    let warning = format!(
        "messages: {n_dropped} of {} were dropped (the oldest {n_groups} turns): all messages have {n_whole} tokens, and {limit} \
         of the context's {n_ctx} tokens are available for the prompt",
        messages.len()
    );
    Ok(FittedChat { prompt, dropped, warning: Some(warning) })
}

/// The messages that stay, with their numbers. `dropped`: the numbers of the others, ascending.
pub(in crate::api) fn without_dropped<'a>(
    messages: &'a [Value],
    dropped: &[usize],
) -> impl Iterator<Item = (usize, &'a Value)> {
    messages.iter().enumerate().filter(|(index, _)| dropped.binary_search(index).is_err())
}

/// A chat without its oldest turns.
struct ShorterChat<T> {
    prompt: T,
    n_groups: usize,
    dropped: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::Code;

    /// Messages by the first letters of their roles.
    fn chat(roles: &str) -> Vec<Value> {
        let role = |letter| match letter {
            's' => "system",
            'd' => "developer",
            'u' => "user",
            'a' => "assistant",
            _ => "tool",
        };
        (0..).zip(roles.chars()).map(|(id, letter)| json!({"role": role(letter), "content": "", "id": id})).collect()
    }

    #[test]
    fn whole_turns_go_and_what_must_stay_is_in_no_group() {
        for (roles, expected) in [
            ("", vec![]),
            ("u", vec![]),
            ("su", vec![]),
            ("suau", vec![vec![1, 2]]),
            ("duatatau", vec![vec![1, 2, 3, 4, 5, 6]]),
            ("sauaua", vec![vec![1], vec![2, 3]]),
            ("uasuau", vec![vec![0, 1], vec![3, 4]]),
            // After the last user's message: calls with their results, but not the last ones.
            ("suauatatt", vec![vec![1, 2], vec![4, 5]]),
            ("uatatat", vec![vec![1, 2], vec![3, 4]]),
            ("ua", vec![]),
            ("aaa", vec![vec![0], vec![1]]),
            ("utat", vec![]),
        ] {
            assert_eq!(groups(&chat(roles)), expected, "{roles}");
        }
    }

    /// The rest of a chat in which each message has `each` tokens, by the places of its messages.
    fn left(roles: &str, each: usize, n_predict: Option<usize>, n_ctx: usize) -> Result<(Vec<u64>, usize, bool)> {
        let make = |messages: &[Value]| Ok(messages.iter().filter_map(|message| message["id"].as_u64()).collect());
        let fitted = drop_turns(&chat(roles), n_predict, n_ctx, make, |left: &Vec<u64>| left.len() * each)?;
        Ok((fitted.prompt, fitted.dropped.len(), fitted.warning.is_some()))
    }

    #[test]
    fn a_chat_that_fits_beside_its_answer_stays_whole() {
        assert_eq!(left("suau", 10, Some(10), 50).unwrap(), (vec![0, 1, 2, 3], 0, false));
        assert_eq!(left("suau", 10, Some(11), 50).unwrap(), (vec![0, 3], 2, true));
        // No more than half of the context is reserved, and without a limit a quarter.
        assert_eq!(left("suau", 10, Some(1000), 80).unwrap().1, 0);
        assert_eq!(left("suau", 10, Some(1000), 78).unwrap().1, 2);
        assert_eq!(left("suau", 10, None, 53).unwrap().1, 0);
        assert_eq!(left("suau", 10, None, 52).unwrap().1, 2);
        // Messages that must stay may take the answer's space, but not all.
        assert_eq!(left("su", 10, None, 21).unwrap(), (vec![0, 1], 0, false));
        assert_eq!(left("suau", 10, None, 21).unwrap(), (vec![0, 3], 2, true));
        for roles in ["su", "suau"] {
            let error = left(roles, 10, None, 20).unwrap_err();
            assert_eq!(error.code(), Code::ContextFull, "{error}");
        }
    }

    /// Takes minutes if each message is looked for among all dropped ones.
    #[test]
    fn many_turns_are_dropped() {
        let roles = "ua".repeat(100_000) + "u";
        let (left, n_dropped, _) = left(&roles, 1, Some(10), 100).unwrap();
        assert_eq!((left.len() + n_dropped, left.last()), (200_001, Some(&200_000)));
    }

    #[test]
    fn a_growing_chat_begins_with_the_same_turn_for_a_while() {
        let (mut begins, mut last) = (Vec::new(), 0);
        for n_turns in 1..200 {
            let roles = format!("s{}u", "ua".repeat(n_turns));
            let (left, n_dropped, warned) = left(&roles, 10, Some(100), 1000).unwrap();
            assert_eq!(left.first(), Some(&0), "the system message stays");
            assert_eq!(left.last(), Some(&(roles.len() as u64 - 1)), "the last message stays");
            assert_eq!((n_dropped + left.len(), warned), (roles.len(), n_dropped > 0));
            let n = 10 * left.len();
            assert!(n <= 900, "{n} tokens");
            assert!(n_dropped == 0 || n > 900 - 225 - 20, "{n} tokens are fewer than need be");
            assert!(n_dropped >= last, "what was left out does not come back");
            last = n_dropped;
            begins.push(n_dropped);
        }
        begins.dedup();
        assert!((5..20).contains(&begins.len()), "{begins:?}");
    }
}
