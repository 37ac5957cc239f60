//! The texts of the benchmarks: tasks for real chat models, prompts for the shipped models, and a corpus of their training data.
#![allow(dead_code)] // each benchmark uses a part

pub mod corpus;
mod tasks;

use serde_json::{Value, json};

use super::host::{Host, Result};

/// A prompt of the benchmarks.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// Text in which ChatML's tokens are parsed.
    Text(String),
    /// A user message, rendered with the model's chat template.
    Message(String),
    /// Token ids.
    Ids(Vec<i32>),
}

/// Prompts of one kind.
#[derive(Debug, Clone)]
pub struct Text {
    pub name: &'static str,
    pub prompts: Vec<Prompt>,
    /// The temperatures.
    pub temperatures: &'static [f64],
    /// Whether the draft model is measured on it.
    pub from_draft: bool,
    /// Whether the completion repeats much of its context, so that history drafters pay.
    pub repetitive: bool,
    /// Whether EOS is ignored.
    pub endless: bool,
}

/// A story in ChatML.
pub const STORY: &str =
    "<|im_start|>user\nTell me a story about a child who lost a ring.<|im_end|>\n<|im_start|>assistant\n";
/// Another story.
pub const SNAIL: &str = "<|im_start|>user\nTell me a story about Tom and a snail.<|im_end|>\n<|im_start|>assistant\n";
/// Facts to convert to a JSON record.
pub const RECORD: &str = "<|im_start|>user\nWrite this as JSON. Mia was 7 years old and lived near the river. She carried a \
     new red kite. It was windy. Mia met a fox. They ate soup. In the end Mia was proud.<|im_end|>\n\
     <|im_start|>assistant\n";

/// ChatML: user messages and answers, and the beginning of the last answer.
fn chat(turns: &[(&str, &str)], last: &str) -> Prompt {
    let turn = |(user, answer): &(&str, &str)| {
        format!("<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n")
    };
    let before: String = turns.iter().map(turn).collect();
    Prompt::Text(format!("{before}<|im_start|>user\n{last}<|im_end|>\n<|im_start|>assistant\n"))
}

/// `n` random token ids, the same for the same seed. None is a control token of the shipped vocabulary (ids 0..=2) or beyond its end.
pub fn random(n: usize, seed: u64) -> Vec<i32> {
    let mut state = seed;
    let mut next = || {
        // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        3 + i32::try_from((x ^ (x >> 31)) % 1500).unwrap_or(0)
    };
    (0..n).map(|_| next()).collect()
}

/// The ids twice, and then the first ones again.
fn again(ids: &[i32]) -> Prompt {
    Prompt::Ids([ids, ids, ids.get(..6).unwrap_or(ids)].concat())
}

const MIA: (&str, &str) = (
    "Mia was 7 years old and lived near the river. She carried a new red kite. It was windy. Mia met a fox. They ate \
     soup. In the end Mia was proud.",
    r#"{"name": "Mia", "age": 7, "place": "river", "thing": "red kite", "animal": "fox", "food": "soup", "feeling": "proud"}"#,
);
const BEN: (&str, &str) = (
    "Ben was 9 years old and lived near the mill. He carried an old golden flute. It was cold. Ben met a duck. They ate \
     plums. In the end Ben was calm.",
    r#"{"name": "Ben", "age": 9, "place": "mill", "thing": "golden flute", "animal": "duck", "food": "plums", "feeling": "calm"}"#,
);
const RUTH: (&str, &str) = (
    "Ruth was 5 years old and lived near the school. She carried a big blue button. It was snowy. Ruth met an owl. They \
     ate carrots. In the end Ruth was happy.",
    r#"{"name": "Ruth", "age": 5, "place": "school", "thing": "blue button", "animal": "owl", "food": "carrots", "feeling": "happy"}"#,
);

/// The texts for the loaded target: the five tasks, or the shipped models' texts if it has their small vocabulary.
pub fn texts(host: &Host) -> Result<Vec<Text>> {
    // The shipped models have no token with this id.
    let is_shipped = host.call("detokenize", &json!({ "tokens": [SHIPPED_VOCABULARY] })).is_err();
    Ok(if is_shipped { stories() } else { tasks::texts() })
}

const SHIPPED_VOCABULARY: i32 = 1536;

/// Texts for the shipped models: from easy to impossible to draft, then repetitive ones.
fn stories() -> Vec<Text> {
    let text = |prompt: &str| Prompt::Text(prompt.to_owned());
    let both: &[f64] = &[0.0, 1.0];
    let json_of = |facts: &str| format!("Write this as JSON. {facts}");
    let repeat = |facts: &str| format!("Repeat after me: {facts}");
    let kind =
        |name, prompts| Text { name, prompts, temperatures: both, from_draft: true, repetitive: false, endless: false };
    let twice = |name, prompts| Text { from_draft: false, repetitive: true, ..kind(name, prompts) };
    vec![
        kind("story", vec![text(STORY), text("Once upon a time there was a child named Tom."), text(SNAIL)]),
        kind(
            "chat",
            vec![
                chat(&[], "Tell me a story about Karl and a badger."),
                chat(
                    &[(&format!("{} Who did Mia meet?", MIA.0), "Mia met a fox.")],
                    "Can you tell me a story about the mill?",
                ),
                chat(&[], "Please tell me a story about a duck and a golden kite."),
            ],
        ),
        kind("json", [MIA, BEN, RUTH].iter().map(|facts| chat(&[], &json_of(facts.0))).collect()),
        Text { endless: true, ..kind("random", (1..=3).map(|seed| Prompt::Ids(random(64, seed))).collect()) },
        // At temperature 5 the target's output is almost random.
        Text { temperatures: &[5.0], endless: true, ..kind("noise", vec![text(SNAIL)]) },
        // The target copies random tokens well; it would not copy language exactly.
        Text { endless: true, ..twice("rewrite", (4..=6).map(|seed| again(&random(64, seed))).collect()) },
        twice(
            "code",
            vec![
                text("# Python\ndef add_kite(items):"),
                text("# Python\nclass Ring:"),
                text("# Python\nfor x in range(7):\n    y = x + 3\n    print(x, y)\n\ndef add_bell(items):"),
            ],
        ),
        twice(
            "records",
            vec![
                chat(&[(&json_of(MIA.0), MIA.1), (&json_of(BEN.0), BEN.1)], &json_of(RUTH.0)),
                chat(&[(&json_of(BEN.0), BEN.1), (&json_of(RUTH.0), RUTH.1)], &json_of(MIA.0)),
                chat(&[(&json_of(RUTH.0), RUTH.1), (&json_of(MIA.0), MIA.1)], &json_of(BEN.0)),
            ],
        ),
        twice(
            "quotes",
            vec![
                chat(&[(&repeat(MIA.0), MIA.0)], &repeat(MIA.0)),
                chat(&[(&repeat(BEN.0), BEN.0)], &repeat(BEN.0)),
                chat(&[(STORY_ASKED, STORY_TOLD)], "Tell me a story about Karl and a badger."),
            ],
        ),
    ]
}

const STORY_ASKED: &str = "Tell me a story about Karl and an otter.";
const STORY_TOLD: &str = "Once upon a time there was a child named Karl. Karl lived near the bridge. Karl carried a heavy \
     white hat in his bag. It was a cloudy day, so Karl went for a walk.\n\nOn the way he met an otter. \"Hello,\" said the \
     otter. \"Where are you going?\" \"I am going to the beach,\" said Karl. \"Do you want to come with me?\"";

impl Text {
    /// The tokens of its first `n` prompts, tokenized by the target of `host`.
    pub fn ids(&self, n: usize, host: &Host) -> Result<Vec<Vec<i32>>> {
        self.prompts.iter().take(n).map(|prompt| prompt.ids(host)).collect()
    }
}

impl Prompt {
    /// Its tokens.
    fn ids(&self, host: &Host) -> Result<Vec<i32>> {
        match self {
            Prompt::Ids(ids) => Ok(ids.clone()),
            Prompt::Text(text) => tokenize(host, text, true),
            Prompt::Message(text) => {
                let messages = json!({"messages": [{"role": "user", "content": text}]});
                let prompt = host.call("apply_template", &messages)?["prompt"].clone();
                tokenize(host, prompt.as_str().unwrap_or_default(), true)
            }
        }
    }
}

/// The tokens of a text. `whole`: with BOS, if the model requires it.
fn tokenize(host: &Host, text: &str, whole: bool) -> Result<Vec<i32>> {
    let answer: Value = host.call("tokenize", &json!({ "text": text, "add_special": whole }))?;
    Ok(serde_json::from_value(answer["ids"].clone())?)
}
