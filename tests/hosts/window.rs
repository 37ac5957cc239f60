//! The window of examples/window under Xvfb, with the shipped models.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::examples::{plain, printed};
use crate::toolchain::{STRICT, compiler, folder, have, library_folder, run, run_failing};

const FONT: &str = "/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf";

/// An X server without a screen, which ends with the test.
struct Display {
    server: Child,
    name: String,
}

impl Display {
    fn new() -> Display {
        // The server chooses a free number and writes it to its stdout.
        let mut server = Command::new("Xvfb")
            .args(["-displayfd", "1", "-screen", "0", "1024x768x24", "-nolisten", "tcp", "-noreset"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("Xvfb starts");
        let mut number = String::new();
        BufReader::new(server.stdout.as_mut().expect("piped")).read_line(&mut number).expect("a number");
        assert!(!number.trim().is_empty(), "Xvfb ended");
        Display { server, name: format!(":{}", number.trim()) }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The compiled window. `None` if something that it needs is missing.
fn built() -> Option<PathBuf> {
    let what = "examples/window";
    let found = have(&compiler("c++"), &["--version"], what)
        && have("pkg-config", &["--exists", "sdl2", "SDL2_ttf"], what)
        && have("sh", &["-c", "command -v Xvfb"], what)
        && have("test", &["-e", FONT], what);
    if !found {
        return None;
    }
    let (libraries, program) = (library_folder(), folder("window").join("window"));
    let sdl = run(Command::new("pkg-config").args(["--cflags", "--libs", "sdl2", "SDL2_ttf"]), "");
    let mut command = Command::new(compiler("c++"));
    command.args(["-std=c++17", "-O1", "-Iinclude", "examples/window/window.cpp"]).args(STRICT);
    command.arg("-L").arg(&libraries).arg("-lforedraft").arg(format!("-Wl,-rpath,{}", libraries.display()));
    run(command.args(sdl.split_whitespace()).arg("-o").arg(&program), "");
    Some(program)
}

/// An `answer: ` line of the report.
struct Answer {
    stop_type: String,
    speculates: bool,
    n_drafted: f64,
    text: String,
}

impl Answer {
    fn parse(line: &str) -> Answer {
        let (figures, text) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        let figures: Vec<&str> = figures.split(", ").collect();
        let [stop_type, _, _, speculation, drafted, _] = figures[..] else { panic!("{line}") };
        Answer {
            stop_type: stop_type.to_owned(),
            speculates: speculation == "speculation on",
            n_drafted: drafted.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{line}")),
            text: serde_json::from_str(text).unwrap_or_else(|error| panic!("{line}: {error}")),
        }
    }
}

/// The colours of a BMP file with 24 bits a pixel, and its size.
fn colors(file: &Path) -> (HashSet<[u8; 3]>, (usize, usize)) {
    let bytes = std::fs::read(file).expect("a screenshot");
    let number = |at: usize| {
        let four = bytes[at..at + 4].try_into().expect("four bytes");
        usize::try_from(i32::from_le_bytes(four).unsigned_abs()).expect("a number")
    };
    let (pixels, width, height) = (number(10), number(18), number(22));
    assert_eq!((&bytes[..2], bytes[28]), (&b"BM"[..], 24));
    let rows = bytes[pixels..].chunks_exact((3 * width).next_multiple_of(4));
    let colors = rows.flat_map(|row| row[..3 * width].chunks_exact(3).map(|bgr| [bgr[2], bgr[1], bgr[0]])).collect();
    (colors, (width, height))
}

#[test]
fn window_shows_answers_and_obeys_its_keys() {
    let Some(program) = built() else { return };
    let display = Display::new();
    let window = || {
        let mut command = Command::new(&program);
        command.env("DISPLAY", &display.name).env("SDL_VIDEODRIVER", "x11").arg("--report");
        command
    };
    let shot = folder("window").join("shot.bmp");
    let questions =
        ["Count from 1 to 5.", "Tell me a story about Zoë and a crow.", "Count from 3 to 9.", "Count from 1 to 5."];
    let mut command = window();
    for question in questions {
        command.args(["--ask", question]);
    }
    // The budget makes answers so slow that the second one runs when Escape comes.
    command
        .args(["--press", "2:3:Escape", "--press", "3:0:Tab", "--turns", "4", "--budget", "1:40", "--screenshot"])
        .arg(&shot);
    command.args(["models/stories-target.gguf", "models/stories-draft.gguf"]);
    let report = printed(&mut command, "");
    println!("{report}");

    let answers: Vec<Answer> =
        report.lines().filter_map(|line| line.strip_prefix("answer: ")).map(Answer::parse).collect();
    let seen: Vec<_> = answers.iter().map(|answer| (answer.stop_type.as_str(), answer.speculates)).collect();
    assert_eq!(seen, [("eos", true), ("cancelled", true), ("eos", true), ("eos", false)]);
    assert_eq!(answers[3].n_drafted, 0.0);
    let mut messages: Vec<Value> = Vec::new();
    for (question, answer) in questions.iter().zip(&answers) {
        messages.push(json!({ "role": "user", "content": question }));
        let whole = plain(&json!({ "messages": messages, "temperature": 0, "n_predict": 200 }));
        if answer.stop_type == "cancelled" {
            assert!(whole.starts_with(&answer.text) && whole != answer.text && !answer.text.is_empty(), "{whole}");
        } else {
            assert_eq!(whole, answer.text);
        }
        messages.push(json!({ "role": "assistant", "content": answer.text }));
    }
    for line in ["loading: ", "loaded: ", "loaded: calls of the library in a frame: median "] {
        assert!(report.lines().any(|printed| printed.starts_with(line)), "{line} {report}");
    }
    let (colors, size) = colors(&shot);
    assert_eq!(size, (960, 600));
    assert!(colors.len() > 50, "antialiased text has many colours, not {}", colors.len());
    for (what, color) in [("the box", [236, 196, 90]), ("a bar", [64, 100, 72]), ("the background", [24, 26, 32])] {
        assert!(colors.contains(&color), "{what}");
    }

    let frames = printed(window().args(["--frames", "30", "models/stories-target.gguf"]), "");
    assert!(frames.lines().any(|line| line.starts_with("loaded: 30 frames: median ")), "{frames}");
    let sees = ["--mmproj", "models/stories-vision.gguf", "--turns", "2"];
    let asks = ["--ask", "What is on this screen?", "--ask", "What do you see?", "models/stories-target.gguf"];
    let seen = printed(window().args(sees).args(asks), "");
    let answers: Vec<Answer> =
        seen.lines().filter_map(|line| line.strip_prefix("answer: ")).map(Answer::parse).collect();
    assert!(answers.len() == 2 && answers.iter().all(|answer| !answer.text.is_empty()), "{seen}");
    let village = printed(
        window().args(["--village", "--ask", "Tell me a story.", "--thoughts", "11", "models/stories-target.gguf"]),
        "",
    );
    let meter = village.lines().find_map(|line| line.strip_prefix("village: ")).expect("a meter");
    let n_thoughts = meter.split_once(" thoughts, ").and_then(|(number, _)| number.parse::<u32>().ok());
    assert!(n_thoughts >= Some(11), "{meter}");
    let errors = run_failing(window().arg("models/missing.gguf"));
    assert!(errors.lines().any(|line| line.starts_with("window: ") && line.contains("missing.gguf")), "{errors}");
}
