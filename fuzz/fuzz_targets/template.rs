//! Parses any text as a chat template, and renders it within limits. The list `l` and the dictionary `d` are long, so that `f(*l, **d)` has
//! many arguments.
#![no_main]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex};

use foredraft_jinja::{MAX_DEPTH, RenderLimits, Run, Template, TemplateResult, Value, stack};
use libfuzzer_sys::fuzz_target;

const STEPS: u64 = 20_000;
const MEMORY: usize = 1 << 20;
/// The items of `l`, and the pairs of `d`.
const LONG: i128 = 1000;

fn render(source: &str) {
    let Ok(template) = Template::parse(source) else { return };
    let run = Run::new(RenderLimits { steps: STEPS, memory: MEMORY, output: MEMORY, depth: MAX_DEPTH, interrupt: None, mark: None });
    let pair = |key: &str, value: &str| -> TemplateResult<(Value, Value)> { Ok((run.text(key)?, run.text(value)?)) };
    let message = |role: &str, content: &str| run.dict([pair("role", role)?, pair("content", content)?]);
    let messages: TemplateResult<Vec<Value>> =
        [("system", "Be brief."), ("user", "Hi")].into_iter().map(|(role, content)| message(role, content)).collect();
    let Ok(messages) = messages.and_then(|messages| run.list(messages)) else { return };
    let list = run.list((0..LONG).map(Value::Int).collect()).expect("the list fits");
    let names = (0..LONG).map(|at| (run.text(&format!("a{at}")).expect("the names fit"), Value::Int(at)));
    let dict = run.dict(names.collect::<Vec<_>>()).expect("the dictionary fits");
    let rendered = template.render(&run, vec![("messages", messages), ("l", list), ("d", dict)], 0);
    assert_eq!(run.memory(), 0, "every value is freed");
    if let Ok(rendered) = rendered {
        assert!(rendered.len() <= MEMORY);
    }
}

/// Renders on a thread with a large stack: sends it a source, and gets an answer when it is done. A panic ends the process there, too.
static RENDERER: LazyLock<Mutex<(Sender<String>, Receiver<()>)>> = LazyLock::new(|| {
    let (sources, received) = channel::<String>();
    let (done, rendered) = channel();
    let work = move || received.iter().for_each(|source| done.send(render(&source)).expect("the target waits"));
    std::thread::Builder::new().stack_size(2 * stack(MAX_DEPTH)).spawn(work).expect("a thread");
    Mutex::new((sources, rendered))
});

fuzz_target!(|bytes: &[u8]| {
    let renderer = RENDERER.lock().expect("one thread fuzzes");
    renderer.0.send(String::from_utf8_lossy(bytes).into_owned()).expect("the thread runs");
    renderer.1.recv().expect("no panic");
});
