//! The description of a turn: [`ChatFormat`] and its parts.

use foredraft_schema::GEMMA_QUOTE;

/// The form of a model's turn under a template. Grammar, parser and the prompt's end follow from it.
///
/// A turn is a sequence of reasoning, content and calls. White space around texts of the format is not significant to the parser; the
/// grammar writes it as the template does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatFormat {
    /// The tags around reasoning, if the model reasons.
    pub reasoning: Option<Block>,
    /// The tags around content. `None`: content has nothing around it.
    pub content: Option<Block>,
    /// The ways to write calls. The template prints the first one.
    pub calls: Vec<Calls>,
    /// The texts before the name of a recipient that is no tool of the request. Such messages are neither content nor calls.
    pub foreign: Vec<String>,
    /// Texts between parts of the turn that belong to neither, such as a header that is repeated.
    pub between: Vec<String>,
    /// The text between the end of reasoning and a call.
    pub before_calls: String,
    /// The text between the end of reasoning and content, without the beginning of the content's block.
    pub before_content: String,
    /// The text after the last call, before the token that ends the turn. The model may leave it out.
    pub turn_end: String,
    /// The template shows tools to the model.
    pub shows_tools: bool,
    /// The template's way to write calls is unknown, so they are JSON.
    pub is_generic: bool,
    /// Reasoning is a part of the content, with its tags.
    pub is_reasoning_content: bool,
}

/// A part of the turn between a beginning and an end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Block {
    /// The texts that begin it. The template prints the first one.
    pub begins: Vec<String>,
    /// The texts that end it; none: it lasts until another part begins. The template prints the first one.
    pub ends: Vec<String>,
}

impl Block {
    /// A block with one beginning and one end.
    #[must_use]
    pub fn new(begin: &str, end: &str) -> Block {
        let texts = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty()).into_iter().collect();
        Block { begins: texts(begin), ends: texts(end) }
    }

    /// The beginning that the template prints.
    #[must_use]
    pub fn begin(&self) -> &str {
        self.begins.first().map_or("", String::as_str)
    }

    /// The end that the template prints.
    #[must_use]
    pub fn end(&self) -> &str {
        self.ends.first().map_or("", String::as_str)
    }
}

/// A way to write calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calls {
    /// The text before all calls.
    pub begin: String,
    /// The text between two calls.
    pub separator: String,
    /// The text after all calls.
    pub end: String,
    /// The template leaves out the end after a single call.
    pub end_is_optional: bool,
    /// One call.
    pub call: Vec<CallPart>,
    /// The turn has one call at most.
    pub is_single: bool,
    /// Calls begin the content, or there are none.
    pub is_anchored: bool,
}

/// A part of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallPart {
    /// A fixed text.
    Text(String),
    /// One of these texts. The template prints the first one.
    AnyText(Vec<String>),
    /// The tool's name, without quotes. It can occur twice.
    Name,
    /// The call's id, without quotes.
    Id,
    /// The number of the call, which means nothing.
    Number,
    /// The tool's name and the number of the call, which together are its id: `functions.get_time:0`.
    NumberedName {
        /// The text before the name.
        prefix: String,
        /// The text before the number.
        separator: String,
    },
    /// Name, arguments and id in a JSON object.
    Object(CallObject),
    /// The arguments alone.
    Arguments(CallArguments),
}

/// A call as a JSON object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallObject {
    /// The key of the name. `None`: the name is the key of the arguments.
    pub name: Option<String>,
    /// The key of the arguments.
    pub arguments: String,
    /// The key of the id, and whether it comes first; otherwise it comes last.
    pub id: Option<(String, bool)>,
    /// The key of an object inside of the call that has the name and the arguments.
    pub wrapper: Option<String>,
    /// Arguments come before the name.
    pub arguments_first: bool,
    /// `"type": "function"` may come first.
    pub may_have_type: bool,
}

/// How arguments are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallArguments {
    /// A JSON object.
    Json,
    /// Each argument between texts.
    Tags(Tags),
    /// An object with bare keys, and strings between the token `<|"|>`.
    Gemma,
}

/// Arguments that are written one by one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tags {
    /// The text before an argument's name.
    pub before_key: String,
    /// The forms of values. The template prints the first one that suits the value.
    pub values: Vec<TaggedValue>,
    /// The text between two arguments.
    pub separator: String,
    /// Values are literals of Python, also texts, which are in quotes.
    pub is_python: bool,
    /// The template prints objects and arrays as literals of Python. Models write these, or JSON.
    pub prints_python: bool,
    /// Objects and arrays are elements inside of the argument's element: with the key as its name, and `item` for each item.
    pub has_elements: bool,
}

/// A value between two texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaggedValue {
    /// The text between the name and the value.
    pub open: String,
    /// The text after the value. [`KEY`] stands for the argument's name.
    pub close: String,
    /// The values that are written so.
    pub kind: TagKind,
}

/// Stands for the argument's name in [`TaggedValue::close`].
pub const KEY: char = '\u{0}';

/// Which values a form is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagKind {
    /// Strings are texts without quotes, other values are JSON: the tool's schema tells which.
    BySchema,
    /// Strings, as texts without quotes.
    Text,
    /// JSON of the type with this name. An empty name: values that are no strings.
    Json(&'static str),
}

impl Calls {
    /// The text with which calls begin, without the space at its end. Empty: there is none.
    #[must_use]
    pub fn begin_text(&self) -> &str {
        match self.call.first() {
            _ if !self.begin.trim().is_empty() => self.begin.trim_end(),
            Some(CallPart::Text(text)) => text.trim_end(),
            _ => "",
        }
    }

    /// All texts around calls.
    pub(crate) fn texts(&self) -> Vec<String> {
        let around = [&self.begin, &self.separator, &self.end].map(String::clone);
        around.into_iter().chain(self.call.iter().flat_map(CallPart::texts)).collect()
    }

    /// Whether the model writes ids.
    #[must_use]
    pub fn has_ids(&self) -> bool {
        self.call.iter().any(|part| match part {
            CallPart::Id | CallPart::NumberedName { .. } => true,
            CallPart::Object(object) => object.id.is_some(),
            _ => false,
        })
    }
}

impl CallPart {
    /// The texts around names and values.
    fn texts(&self) -> Vec<String> {
        match self {
            CallPart::Text(text) => vec![text.clone()],
            CallPart::AnyText(texts) => texts.clone(),
            CallPart::NumberedName { prefix, separator } => vec![prefix.clone(), separator.clone()],
            CallPart::Arguments(CallArguments::Gemma) => vec![GEMMA_QUOTE.to_owned()],
            CallPart::Arguments(CallArguments::Tags(tags)) => {
                let values = tags.values.iter().flat_map(|value| [value.open.clone(), value.close.clone()]);
                values.chain([tags.before_key.clone(), tags.separator.clone()]).collect()
            }
            CallPart::Name
            | CallPart::Id
            | CallPart::Number
            | CallPart::Object(_)
            | CallPart::Arguments(CallArguments::Json) => Vec::new(),
        }
    }
}

/// The tags in a text: `<...>`, `[...]` and the like.
fn tags_in(text: &str) -> Vec<&str> {
    let mut tags = Vec::new();
    let mut at = 0;
    while let Some(open) = text.get(at..).and_then(|rest| rest.find(['<', '[', ']'])).map(|open| at + open) {
        let rest = text.get(open..).unwrap_or_default();
        let close = if rest.starts_with('<') { '>' } else { ']' };
        let end = rest.char_indices().skip(1).find(|(_, char)| *char == close || char.is_whitespace());
        match end {
            Some((end, char)) if char == close => {
                tags.extend(rest.get(..=end).filter(|tag| tag.len() > 2));
                at = open + end + 1;
            }
            _ => at = open + 1,
        }
    }
    tags
}

/// Where a turn is after the prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnStart {
    /// The end of the prompt that belongs to the turn's format: a beginning of reasoning, for instance.
    pub opened: String,
}

impl ChatFormat {
    /// Finds the end of the prompt that belongs to the turn. `generation_prompt` is what the template adds for the assistant's turn.
    #[must_use]
    pub fn turn_start(&self, generation_prompt: &str) -> TurnStart {
        let mut start = generation_prompt.len();
        let blocks = [&self.reasoning, &self.content];
        for begin in blocks.into_iter().flatten().flat_map(|block| &block.begins).map(|begin| begin.trim()) {
            if let Some(at) = generation_prompt.rfind(begin).filter(|_| !begin.is_empty()) {
                start = start.min(at);
            }
        }
        // A beginning that parts share, such as `>>>`.
        let shared = self.calls.first().map_or("", Calls::begin_text);
        if !shared.is_empty() && generation_prompt.ends_with(shared) {
            start = start.min(generation_prompt.len() - shared.len());
        }
        TurnStart { opened: generation_prompt.get(start..).unwrap_or_default().to_owned() }
    }

    /// The tags in the texts of the format. Some are control tokens, whose text a completion must keep.
    #[must_use]
    pub fn tags(&self) -> Vec<String> {
        let blocks = [&self.reasoning, &self.content].into_iter().flatten();
        let mut texts: Vec<String> = blocks.flat_map(|block| block.begins.iter().chain(&block.ends).cloned()).collect();
        texts.extend(self.between.iter().chain([&self.before_calls, &self.before_content, &self.turn_end]).cloned());
        texts.extend(self.calls.iter().flat_map(Calls::texts));
        let mut tags: Vec<String> = texts.iter().flat_map(|text| tags_in(text)).map(str::to_owned).collect();
        tags.sort_unstable();
        tags.dedup();
        tags
    }

    /// The assistant's turn up to where a message goes on. `generation_prompt` is what the template adds for the turn.
    #[must_use]
    pub fn continued(&self, generation_prompt: &str, reasoning: &str, content: Option<&str>) -> String {
        let opened = self.turn_start(generation_prompt).opened;
        let mut turn = generation_prompt.strip_suffix(opened.as_str()).unwrap_or(generation_prompt).to_owned();
        // Where the model can reason, it has done so before the content.
        if let Some(block) = self.reasoning.as_ref().filter(|_| !reasoning.is_empty() || content.is_some()) {
            turn += block.begin();
            turn += reasoning;
            if content.is_some() {
                turn += block.end();
                turn += &self.before_content;
            }
        }
        if let Some(content) = content {
            turn += self.content.as_ref().map_or("", Block::begin);
            turn += content;
        }
        turn
    }

    /// Leaves reasoning in the content, with its tags.
    pub fn keep_reasoning_in_content(&mut self) {
        self.is_reasoning_content = true;
        let Some(block) = &self.reasoning else { return };
        let is_tag = |text: &str| block.begins.iter().chain(&block.ends).any(|tag| tag.contains(text));
        self.between.retain(|text| !is_tag(text));
    }

    /// The texts that end reasoning. The template prints the first one.
    #[must_use]
    pub fn reasoning_ends(&self) -> Vec<String> {
        let ends = self.reasoning.iter().flat_map(|block| &block.ends).map(|end| end.trim().to_owned());
        ends.filter(|end| !end.is_empty()).collect()
    }

    /// Whether the prompt begins reasoning with the text that begins it in completions.
    #[must_use]
    pub fn opens_reasoning(&self, start: &TurnStart) -> bool {
        let begins = |block: &Block| !block.begin().trim().is_empty() && start.opened.contains(block.begin().trim());
        self.is_reasoning(start) && self.reasoning.as_ref().is_some_and(begins)
    }

    /// Whether the prompt's end is inside of reasoning.
    #[must_use]
    pub fn is_reasoning(&self, start: &TurnStart) -> bool {
        let Some(block) = &self.reasoning else { return false };
        let last = |texts: &[String]| texts.iter().filter_map(|text| start.opened.rfind(text.trim())).max();
        last(&block.begins).is_some_and(|begin| last(&block.ends).is_none_or(|end| end < begin))
    }
}
