//! The sampler table in docs/reference.md matches the code, and the README's examples run.

use std::path::Path;
use std::process::Command;

use crate::toolchain::{STRICT, compiler, folder, have, library_folder, root, run};
use foredraft::api::CompletionRequest;

const BEGIN: &str =
    "<!-- samplers: made by `CompletionRequest::sampler_table`, compared by tests/hosts/readme.rs -->\n";
const END: &str = "<!-- /samplers -->";

/// Set UPDATE_README to write the table instead of comparing it.
#[test]
fn sampler_table_in_the_reference_matches_the_code() {
    let path = root().join("docs/reference.md");
    let reference = std::fs::read_to_string(&path).expect("docs/reference.md");
    let (before, rest) = reference.split_once(BEGIN).expect("the table's begin");
    let (_, after) = rest.split_once(END).expect("the table's end");
    let made = format!("{before}{BEGIN}\n{}\n{END}{after}", CompletionRequest::sampler_table().trim());
    if std::env::var_os("UPDATE_README").is_some() {
        std::fs::write(&path, &made).expect("docs/reference.md is writable");
        return;
    }
    assert!(reference == made, "docs/reference.md is out of date: UPDATE_README=1 cargo test --release --test hosts");
}

/// The README's first code block in `language`.
fn block(language: &str) -> String {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let (_, code) = readme.split_once(&format!("```{language}\n")).expect("a block");
    code.split_once("```").expect("its end").0.to_owned()
}

/// Writes the block to a file, with the library's real path.
fn written(language: &str, name: &str) -> std::path::PathBuf {
    let library = crate::host::library_path().expect("the library");
    let code = block(language).replace("target/release/libforedraft.so", &library.to_string_lossy());
    let file = folder("readme").join(name);
    std::fs::write(&file, code).expect("target/ is writable");
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

#[test]
fn readme_example_in_c_runs() {
    if have(&compiler("c"), &["--version"], "the README's C") {
        let (source, program) = (written("c", "hello.c"), folder("readme").join("hello"));
        let mut build = Command::new(compiler("c"));
        build.args(STRICT).arg("-std=c99").arg("-Iinclude").arg(&source).arg("-o").arg(&program);
        let libraries = library_folder();
        build.arg("-L").arg(&libraries).arg("-lforedraft").arg(format!("-Wl,-rpath,{}", libraries.display()));
        run(&mut build, "");
        prints(&mut Command::new(&program));
    }
}

#[test]
fn readme_example_in_python_runs() {
    if have("python3", &["-c", "import ctypes"], "the README's Python") {
        prints(Command::new("python3").env("PYTHONPATH", root().join("python/src")).arg(written("python", "hello.py")));
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
