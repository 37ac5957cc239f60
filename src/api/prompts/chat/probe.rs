//! Finds out by rendering what form of messages a template expects: whether a text in it arrives in the prompt.

use foredraft_jinja::{FaultKind, MAX_DEPTH, RenderLimits, StopSignal, TemplateResult};
use serde_json::{Value as Json, json};

use super::shape::{ContentForm, ContentForms, MessageShape};
use super::tool_shape::ToolShape;
use super::values::{MEMORY, PROBE_OUTPUT, PROBE_STEPS, failure, json_text};
use super::{ChatTemplate, FUNCTIONS, RenderInput, defaults};
use crate::error::Result;

/// Texts in the probe messages that do not occur in any template.
const MARKS: [&str; 3] = ["probe-content-71c3", "probe_key_71c3", "probe-value-71c3"];
/// The maximum number of steps of a rendering that finds out how a template writes calls. The probes have tools and calls.
const FORMAT_STEPS: u64 = 400_000;
/// The text of a second part, and of a second message of the system. Some templates print the first one only.
const SECOND_MARK: &str = "probe-second-71c3";

impl ChatTemplate {
    /// The prompt of a conversation that shows how a template writes messages. `None`: the template refuses it, it takes too long, or
    /// `input` interrupts it.
    pub(in crate::api) fn render_probe(&self, input: &RenderInput) -> Option<String> {
        let (variables, seconds) = self.variables(input).ok()?;
        self.run(&variables, seconds, &probe_limits(FORMAT_STEPS, input.interrupt)).ok()?.ok()
    }

    /// Renders probe conversations, and sets the form of messages from the marks that appear in the output.
    ///
    /// # Errors
    /// A rendering exceeds a limit, so that real messages would too, or is interrupted.
    pub(super) fn probe(&mut self, interrupt: Option<&StopSignal>) -> Result<()> {
        self.shape = Prober { template: self, interrupt }.shape()?;
        Ok(())
    }
}

/// Renders probe messages with a template.
struct Prober<'a> {
    template: &'a ChatTemplate,
    interrupt: Option<&'a StopSignal>,
}

impl Prober<'_> {
    fn shape(&self) -> Result<MessageShape> {
        let [mark, ..] = MARKS;
        let user_form = self.form(|content| json!([{"role": "user", "content": content}]))?;
        let user = || written("user", user_form.unwrap_or_default());
        let of_system = |role: &str, content: Json| json!([{"role": role, "content": content}, {"role": "user", "content": user()}]);
        let system_form = self.form(|content| of_system("system", content))?;
        let assistant_form = self.form(|content| {
            json!([{"role": "user", "content": user()}, {"role": "assistant", "content": content},
                {"role": "user", "content": user()}])
        })?;
        // A role whose content never arrives gets the user's form.
        let or_user = |form: Option<ContentForm>| form.or(user_form).unwrap_or_default();
        let mut forms = ContentForms {
            user: or_user(None),
            system: or_user(system_form),
            assistant: or_user(assistant_form),
            tool: or_user(None),
        };
        let knows_developer = self.template.literals.iter().any(|literal| literal.contains("developer"))
            && self.tells_apart(["developer", "developer0"], |role| of_system(role, written(mark, forms.system)))?;
        let no_system = user_form.is_some() && system_form.is_none();
        let second = if knows_developer { "developer" } else { "system" };
        let two = self.probe_prompt(json!([
            {"role": "system", "content": written(mark, forms.system)},
            {"role": second, "content": written(SECOND_MARK, forms.system)},
            {"role": "user", "content": user()},
        ]))?;
        let one_system = system_form.is_some() && !(two.contains(mark) && two.contains(SECOND_MARK));
        let (arguments_object, null_content) = self.probe_calls(forms)?;
        let tool = |content: Json| calls(forms, Json::from("{}"), null_content, content, arguments_object);
        forms.tool = or_user(self.form(tool)?);
        let tools = self.probe_tools(user());
        Ok(MessageShape {
            forms,
            developer: knows_developer,
            one_system,
            no_system,
            arguments_object,
            null_content,
            tools,
        })
    }

    /// The form of a content whose messages are made by `messages`. None: its text never arrives.
    fn form(&self, messages: impl Fn(Json) -> Json) -> Result<Option<ContentForm>> {
        let [mark, ..] = MARKS;
        let text = self.prints(mark, messages(written(mark, ContentForm::Text)))?;
        let parts = |texts: &[&str]| -> Result<bool> {
            let parts = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
            let prompt = self.probe_prompt(messages(parts))?;
            // A template for strings prints the parts as objects, with their keys.
            let is_printed = !prompt.contains("'text'") && !prompt.contains("\"text\"");
            Ok(is_printed && texts.iter().all(|text| prompt.contains(text)))
        };
        Ok(match (text, parts(&[mark, SECOND_MARK])?) {
            (true, true) => Some(ContentForm::Any),
            (false, true) => Some(ContentForm::Parts),
            (true, false) => Some(ContentForm::Text),
            (false, false) => parts(&[mark])?.then_some(ContentForm::OnePart),
        })
    }

    /// Whether the template prints the mark in the messages of the first role, and treats this role otherwise than the second one, which no
    /// template knows. A role that is only printed by its name is not known, and a word in a literal may have another meaning.
    fn tells_apart(&self, roles: [&str; 2], messages: impl Fn(&str) -> Json) -> Result<bool> {
        let [mark, ..] = MARKS;
        let [known, unknown] = roles;
        let prompt = self.probe_prompt(messages(known))?;
        Ok(prompt.contains(mark) && self.probe_prompt(messages(unknown))?.replace(unknown, known) != prompt)
    }

    /// The form of a call's arguments, and whether calls are printed only if the content is null.
    fn probe_calls(&self, forms: ContentForms) -> Result<(Option<bool>, bool)> {
        let [_, key, value] = MARKS;
        let json_text = format!("{{\"{key}\": \"{value}\"}}");
        for null_content in [false, true] {
            let render = |arguments: Json| {
                self.probe_prompt(calls(forms, arguments, null_content, written("answer", forms.tool), None))
            };
            // An object is supported if it is not printed in Python's notation, a string if it is printed unquoted.
            let object = render(json!({key: value}))?;
            let object = object.contains(key) && object.contains(value) && !object.contains(&format!("'{key}'"));
            let string = render(json!(json_text))?.contains(&json_text);
            if object || string {
                return Ok((Some(object), null_content));
            }
        }
        Ok((None, false))
    }

    /// Finds the template's needs in tools, before a user's message with this content.
    fn probe_tools(&self, user: Json) -> ToolShape {
        if !["tools", FUNCTIONS].iter().any(|name| self.template.uses(name)) {
            return ToolShape::default();
        }
        let messages = json!([{"role": "user", "content": user}]);
        ToolShape::find(|tools| {
            let Ok(text) = json_text(tools) else { return false };
            let more = [("tools", tools.clone()), (FUNCTIONS, text.into())];
            self.run_probe(messages.clone(), more).is_ok_and(|prompt| prompt.is_ok())
        })
    }

    fn prints(&self, mark: &str, messages: Json) -> Result<bool> {
        Ok(self.probe_prompt(messages)?.contains(mark))
    }

    /// The prompt of probe messages. "" if the template refuses them.
    fn probe_prompt(&self, messages: Json) -> Result<String> {
        match self.run_probe(messages, [])? {
            Err(fault) if matches!(fault.kind, FaultKind::Limit | FaultKind::Depth | FaultKind::Interrupted) => {
                Err(failure(&fault))
            }
            prompt => Ok(prompt.unwrap_or_default()),
        }
    }

    /// Renders probe messages. `more`: further variables.
    fn run_probe<const N: usize>(&self, messages: Json, more: [(&str, Json); N]) -> Result<TemplateResult<String>> {
        let own = [("messages", messages), ("add_generation_prompt", true.into())];
        let mut variables = defaults("", "", 0);
        variables.extend(own.into_iter().chain(more).map(|(name, value)| (name.to_owned(), value)));
        self.template.run(&variables, 0, &probe_limits(PROBE_STEPS, self.interrupt))
    }
}

/// The limits of a rendering that probes a template.
fn probe_limits(steps: u64, interrupt: Option<&StopSignal>) -> RenderLimits {
    RenderLimits {
        steps,
        memory: MEMORY,
        output: PROBE_OUTPUT,
        depth: MAX_DEPTH,
        interrupt: interrupt.cloned(),
        mark: None,
    }
}

/// A text in that form.
fn written(text: &str, form: ContentForm) -> Json {
    match form {
        ContentForm::Parts | ContentForm::OnePart => json!([{"type": "text", "text": text}]),
        ContentForm::Text | ContentForm::Any => json!(text),
    }
}

/// A conversation with a tool call. Arguments are given in the form that is known, if one is.
fn calls(forms: ContentForms, arguments: Json, null_content: bool, answer: Json, object: Option<bool>) -> Json {
    let content = if null_content { Json::Null } else { written("", forms.assistant) };
    let arguments = if object == Some(true) { json!({}) } else { arguments };
    json!([
        {"role": "user", "content": written("user", forms.user)},
        {"role": "assistant", "content": content, "tool_calls": [{"id": "call00001", "type": "function",
            "function": {"name": "tool1", "arguments": arguments}}]},
        {"role": "tool", "content": answer, "tool_call_id": "call00001", "name": "tool1"},
        {"role": "assistant", "content": written("so", forms.assistant)},
        {"role": "user", "content": written("user", forms.user)},
    ])
}
