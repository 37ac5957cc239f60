//! Five tasks for real chat models: a question, a story, code, rewriting, and editing a file of about 600 tokens.

use super::{Prompt, Text};

/// The file to edit.
const FILE: &str = include_str!("inventory.py");
const LETTER: &str = "hey tom, sorry i didn't write back sooner. the new job keeps me really busy and the kids were sick all week. we would \
    love to come over on saturday but our car is broken, so could you maybe pick us up at the station around four? i'll bring the cake \
    that your mother likes and the books you lent me last summer. also please tell anna that i found her blue scarf, it was under the \
    sofa the whole time. let me know if that works for you, and say hi to everyone.";
const NEWS: &str = "The town council voted on Tuesday evening to close the old bridge over the river from the first of March. Engineers had found \
    cracks in two of its five pillars. Repairs will take eight months and cost about four million. Until then all traffic goes over the \
    new bridge in the north, where a third lane will be opened for buses. Shop owners on the west bank fear that they will lose customers.";

/// Greedy, and with a typical temperature for chats.
const TEMPERATURES: &[f64] = &[0.0, 0.7];

/// The five tasks.
pub fn texts() -> Vec<Text> {
    let ask = |questions: &[&str]| questions.iter().map(|text| Prompt::Message((*text).to_owned())).collect();
    let task = |name, prompts| Text {
        name,
        prompts,
        temperatures: TEMPERATURES,
        from_draft: true,
        repetitive: false,
        endless: false,
    };
    let repetitive = |name, prompts| Text { repetitive: true, ..task(name, prompts) };
    let rewrite = |how: &str, text: &str| Prompt::Message(format!("{how}\n\n{text}"));
    let edit = |what: &str| {
        Prompt::Message(format!("{what} Answer with the whole file and nothing else.\n\n```python\n{FILE}```"))
    };
    vec![
        task(
            "question",
            ask(&[
                "Why does the moon change its shape during a month?",
                "What is the difference between a virus and a bacterium?",
                "How do I keep tomatoes from splitting in wet weather?",
            ]),
        ),
        task(
            "story",
            ask(&[
                "Tell me a short story about a lighthouse keeper who finds a letter.",
                "Tell me a story about two sisters who build a boat.",
                "Write the beginning of a novel that is set in a train station at night.",
            ]),
        ),
        task(
            "code",
            ask(&[
                "Write a Python function that returns the median of a list of numbers, with a docstring and three tests.",
                "Write a C program that counts the lines, words and characters of a file.",
                "Write a JavaScript class for a queue with push, pop and size, and show how to use it.",
            ]),
        ),
        repetitive(
            "rewrite",
            vec![
                rewrite("Rewrite this letter in a formal tone, and keep everything that it says.", LETTER),
                rewrite(
                    "Correct the spelling and the capital letters of this letter, and change nothing else.",
                    LETTER,
                ),
                rewrite("Repeat this article word for word, then summarize it in one sentence.", NEWS),
            ],
        ),
        repetitive(
            "edit",
            vec![
                edit("Rename the method `total` to `total_value` everywhere in this file."),
                edit("Add the field `supplier: str = \"\"` to the class `Item` in this file."),
                edit("Make `sell` in this file return nothing when `count` is 0."),
            ],
        ),
    ]
}
