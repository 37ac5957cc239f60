//! The README's examples run.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::toolchain::{STRICT, compiler, folder, have, library_folder, root, run};

/// The first code block in `language` of a README.
fn block_of(readme: &str, language: &str) -> String {
    let readme = std::fs::read_to_string(root().join(readme)).expect("a README");
    let (_, code) = readme.split_once(&format!("```{language}\n")).expect("a block");
    code.split_once("```").expect("its end").0.to_owned()
}

/// The README's first code block in `language`.
fn block(language: &str) -> String {
    block_of("README.md", language)
}

/// Writes the block to a file.
fn written(language: &str, name: &str) -> PathBuf {
    let file = folder("readme").join(name);
    std::fs::write(&file, block(language)).expect("target/ is writable");
    file
}

/// Runs an example, which must print the completion of its prompt; the C example prints the whole answer.
fn prints(command: &mut Command) {
    let printed = run(command, "");
    let text = match serde_json::from_str::<serde_json::Value>(&printed) {
        Ok(answer) => answer["content"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned(),
        Err(_) => printed,
    };
    assert!(text.trim().len() > 20, "{text:?}");
}

/// The README's commands: its indented lines, without what a comment says.
fn commands() -> Vec<String> {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let prose: Vec<&str> = readme.split("```").step_by(2).collect();
    let lines = prose.iter().flat_map(|part| part.lines()).filter_map(|line| line.strip_prefix("    "));
    lines.map(|line| line.split("  #").next().unwrap_or_default().trim_end().to_owned()).collect()
}

/// Runs the README's command that begins with `compiler`, as it stands there, on the program in `language`.
fn runs_by_its_command(language: &str, name: &str, compiler: &str) {
    let commands = commands();
    let command = commands.iter().find(|command| command.starts_with(compiler)).expect("a command");
    let folder = folder("readme").join(language);
    std::fs::create_dir_all(folder.join("target")).expect("target/ is writable");
    for part in ["include", "csharp", "models"] {
        install_link(&folder, part, &root().join(part));
    }
    install_link(&folder.join("target"), "release", &library_folder());
    std::fs::write(folder.join(name), block(language)).expect("target/ is writable");
    prints(Command::new("sh").args(["-ec", &format!("cd '{}' && {command}", folder.display())]));
}

#[test]
fn readme_examples_of_compilers_run_by_the_readmes_commands() {
    if have("cc", &["--version"], "the README's command for C") {
        runs_by_its_command("c", "hello.c", "cc ");
    }
    let mono = have("mcs", &["--version"], "the README's C#") && have("mono", &["--version"], "the README's C#");
    if mono {
        runs_by_its_command("csharp", "hello.cs", "mcs ");
    }
}

/// Commands that take minutes or a network are those that `scripts/release.sh` and `make test` run; here only that they are there.
#[test]
fn readme_commands_lead_to_targets_and_packages() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("Makefile");
    let mut targets = Vec::new();
    for command in commands() {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["make", target, ..] => targets.push((*target).to_owned()),
            ["pip", "install", package] => assert!(root().join(package).join("pyproject.toml").exists(), "{command}"),
            ["cc" | "mcs", ..] => {} // run above
            _ => panic!("no test knows this command: {command}"),
        }
    }
    let missing: Vec<&String> = targets.iter().filter(|it| !makefile.contains(&format!("\n{it}:"))).collect();
    assert!(missing.is_empty() && targets.len() >= 6, "{missing:?} of {targets:?}");
}

#[test]
fn readme_example_in_c_compiles_without_a_warning() {
    if have(&compiler("c"), &["--version"], "the README's C") {
        let (source, object) = (written("c", "hello.c"), folder("readme").join("hello.o"));
        let mut build = Command::new(compiler("c"));
        build.args(STRICT).arg("-std=c99").arg("-Iinclude").arg("-c").arg(&source).arg("-o").arg(&object);
        run(&mut build, "");
    }
}

#[test]
fn readme_example_in_python_runs() {
    if have("python3", &["-c", "import ctypes"], "the README's Python") {
        prints(Command::new("python3").env("PYTHONPATH", root().join("python/src")).arg(written("python", "hello.py")));
    }
}

/// Writes the first program of a package's README to a file, with the shipped model in the place of its `model.gguf`.
fn package_program(readme: &str, language: &str, name: &str) -> PathBuf {
    let file = folder("readme-package").join(name);
    let program = block_of(readme, language);
    let whole = program.replace("model.gguf", "models/stories-target.gguf");
    assert_ne!(program, whole, "{readme}");
    std::fs::write(&file, whole).expect("target/ is writable");
    file
}

#[test]
fn examples_in_the_readmes_of_packages_run() {
    if have("python3", &["-c", "import ctypes"], "the package's Python") {
        let file = package_program("python/README.md", "python", "hello.py");
        prints(Command::new("python3").env("PYTHONPATH", root().join("python/src")).arg(file));
    }
    if have("node", &["-e", "import('koffi').catch(() => process.exit(1))"], "the package's JavaScript") {
        let file = package_program("node/README.md", "js", "hello.mjs");
        node_modules(&folder("readme-package"));
        prints(Command::new("node").arg("--preserve-symlinks").arg(file));
    }
    let file = package_program("csharp/README.md", "csharp", "hello.cs");
    if let Some(mut program) = crate::guide::csharp("readme-package.cs", &file) {
        prints(program.env("LC_ALL", "C.UTF-8"));
    }
}

#[test]
fn readme_example_in_node_runs() {
    if have("node", &["-e", "import('koffi').catch(() => process.exit(1))"], "the README's JavaScript") {
        let file = written("js", "hello.mjs");
        node_modules(&folder("readme"));
        // The package is used from the repository, whose folder has no koffi of its own.
        prints(Command::new("node").arg("--preserve-symlinks").arg(file));
    }
}

/// A Rust program of another package: it gets nothing of `build.rs`'s arguments for the linker, and our kernels all the same.
#[test]
fn readme_example_in_rust_gets_our_kernels_and_the_librarys_text() {
    let source = std::fs::read_to_string(root().join("examples/rust/src/main.rs")).expect("the program");
    let (_, shown) = source.split_once("    // ANCHOR: readme\n").expect("its lines");
    let (shown, _) = shown.split_once("    // ANCHOR_END: readme\n").expect("their end");
    let shown: String = shown.lines().map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n").collect();
    assert_eq!(block("rust"), format!("use foredraft::{{Config, Engine, Request}};\n\n{shown}"));
    // `cargo build` and `cargo test` of the whole workspace have made it; a test alone makes it here, of the same library.
    let mut build = Command::new(env!("CARGO"));
    run(build.args(["build", "--release", "--quiet", "--offline", "--package", "foredraft-hello"]), "");
    let printed = run(&mut Command::new(library_folder().with_file_name("foredraft-hello")), "");
    let lines: Vec<&str> = printed.trim_end().lines().collect();
    let [.., kernels] = lines.as_slice() else { panic!("{printed}") };
    let kernels: serde_json::Value = serde_json::from_str(kernels).unwrap_or_else(|error| panic!("{printed}: {error}"));
    assert_eq!((&kernels["matmul"], &kernels["attention"]), (&"foredraft".into(), &"foredraft".into()), "{kernels}");
    let request = serde_json::json!({"prompt": "Once upon a time", "n_predict": 60, "temperature": 0});
    let expected = crate::examples::plain(&request);
    assert!(printed.contains(&format!("\n{expected}\n")), "{printed}\n{expected}");
}

/// Makes a folder's programs find the Node package of this repository, and what it needs.
pub fn node_modules(folder: &Path) {
    let modules = folder.join("node_modules");
    for (name, target) in [
        ("foredraft", "node"),
        ("koffi", "examples/node_modules/koffi"),
        ("@koromix", "examples/node_modules/@koromix"),
    ] {
        install_link(&modules, name, &root().join(target));
    }
}

/// Makes `modules/name` a link to a package.
fn install_link(modules: &Path, name: &str, package: &Path) {
    std::fs::create_dir_all(modules).expect("target/ is writable");
    let link = modules.join(name);
    // Tests that run at the same time make the same link.
    if !link.exists()
        && let Err(error) = std::os::unix::fs::symlink(package, &link)
    {
        assert!(link.exists(), "{}: {error}", link.display());
    }
}
