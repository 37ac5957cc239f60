//! The structure of the source: which layer may import which, no two files that import each other, one meaning for a type name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use regex::Regex;

/// The layers from the top: the modules of `src`, the crates under `crates`, and modules of both that are layers of their own. A layer may
/// import those that stand in later rows, and itself.
const LAYERS: [&[&str]; 31] = [
    &["ffi", "typed"],
    &["api"],
    &["api/life_cycle"],
    &["api/isolation"],
    &["api/loaded"],
    &["api/prompts"],
    &["api/prompts/chat_format"],
    &["api/prompts/chat"],
    &["api/wire"],
    &["chat"],
    &["engine"],
    &["engine/drafters"],
    &["speculation", "engine/session"],
    &["sampling", "ngram"],
    &["jinja", "schema"],
    &["grammar"],
    &["llama"],
    &["llama/pictures"],
    &["llama/context"],
    &["llama/model"],
    &["llama/params"],
    &["llama/sources"],
    &["llama/threads"],
    &["llama/kernels"],
    &["llama/backend"],
    &["llama/platform"],
    &["llama/guard", "llama/log", "llama/unrecoverable"],
    &["native"],
    &["host"],
    &["hub"],
    &["base"],
];

/// Layers that do not know one below them, nor the layers that it contains.
const APART: [(&str, &str); 1] = [("api/prompts", "engine")];

/// Known exceptions. An entry that is no longer true fails the test, so these lists can only become shorter.
const CYCLES_LEFT: [&str; 0] = [];
const NAMES_LEFT: [&str; 0] = [];

/// A module path, such as `["engine", "slots"]`, or `["ngram", "cache"]` in the crate `foredraft_ngram`.
type ModulePath = Vec<String>;

struct SourceFile {
    path: PathBuf,
    /// The module that `crate` means here.
    root: ModulePath,
    module: ModulePath,
    /// The source without comments and unit tests.
    code: String,
}

struct Import {
    target: ModulePath,
    /// The name under which a `pub use` offers it.
    offered_as: Option<String>,
}

/// The folders with source code, each with the path of its root module.
fn source_roots() -> Vec<(PathBuf, ModulePath)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut roots = vec![(root.join("src"), ModulePath::new())];
    for entry in std::fs::read_dir(root.join("crates")).expect("crates is readable") {
        let entry = entry.expect("an entry");
        if !entry.path().is_dir() {
            continue;
        }
        roots.push((entry.path().join("src"), vec![entry.file_name().to_string_lossy().into_owned()]));
    }
    roots
}

fn source_files() -> Vec<SourceFile> {
    let mut files = Vec::new();
    for (root, root_module) in source_roots() {
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("the source is readable") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test(&path) {
                    let inner = path.strip_prefix(&root).expect("it is below the root").with_extension("");
                    let names = inner.iter().map(|part| part.to_string_lossy().into_owned());
                    let mut module: ModulePath = root_module.iter().cloned().chain(names).collect();
                    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
                        module.pop();
                    }
                    let code = product_code(&std::fs::read_to_string(&path).expect("UTF-8"));
                    let path = root_module.iter().collect::<PathBuf>().join(inner);
                    files.push(SourceFile { path, root: root_module.clone(), module, code });
                }
            }
        }
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(files.len() > 50, "the source was found");
    files
}

fn is_test(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.ends_with("/tests.rs") || text.contains("/tests/")
}

/// A pattern whose `\w`, `\s` and `\b` mean ASCII: the tables for Unicode are not compiled in.
fn pattern(pattern: &str) -> Regex {
    let pattern = pattern.replace(r"\w", "[A-Za-z0-9_]").replace(r"\s", r"[ \t\n]").replace(r"\b", r"(?-u:\b)");
    Regex::new(&pattern).expect("a valid pattern")
}

fn product_code(source: &str) -> String {
    let comments = pattern("(?m)//.*$");
    let fakes = pattern(r#"#\[cfg\(any\(test, feature = "fake"\)\)\]\s*[^\n]*"#);
    let test_items = pattern(r"#\[cfg\(test\)\]\s*(pub\(crate\) |pub )?(use|mod) [^;{]*;");
    let code = comments.replace_all(source, "");
    let code = fakes.replace_all(&code, "");
    let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    test_items.replace_all(code, "").into_owned()
}

/// The paths of a `use` tree such as `a::{b, c::d as e}`, each with the name that it binds.
fn expand(tree: &str, prefix: &[String], paths: &mut Vec<(ModulePath, String)>) {
    let tree = tree.trim();
    if let Some(inner) = tree.strip_prefix('{') {
        let (mut depth, mut start) = (0, 0);
        for (at, character) in inner.char_indices() {
            match character {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    expand(&inner[start..at], prefix, paths);
                    start = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let (head, rest) = tree.split_once("::").map_or((tree, None), |(head, rest)| (head, Some(rest)));
    let (head, alias) = head.split_once(" as ").map_or((head, head), |(head, alias)| (head.trim(), alias.trim()));
    if head.is_empty() {
        return;
    }
    let path: ModulePath = prefix.iter().cloned().chain([head.to_owned()]).collect();
    match rest {
        Some(rest) => expand(rest, &path, paths),
        None if head == "self" => paths.push((prefix.to_vec(), prefix.last().cloned().unwrap_or_default())),
        None => paths.push((path, alias.to_owned())),
    }
}

/// The path of the workspace; `None`: it leads to another crate. `crate` means `root`.
fn absolute(root: &[String], module: &[String], path: &[String]) -> Option<ModulePath> {
    let up = path.iter().take_while(|segment| *segment == "super").count();
    let base = match path.first().map(String::as_str) {
        Some("crate") => root.to_vec(),
        Some(name) if name.starts_with("foredraft_") => vec![name["foredraft_".len()..].to_owned()],
        Some("self") => module.to_vec(),
        Some("super") => module.get(..module.len().checked_sub(up)?)?.to_vec(),
        _ => return None,
    };
    Some(base.into_iter().chain(path.iter().skip(up.max(1)).cloned()).collect())
}

/// As [`absolute`], also of a path that begins with one of the module's own children (`pub use child::Item`).
fn resolved(file: &SourceFile, path: &[String], modules: &BTreeSet<ModulePath>) -> Option<ModulePath> {
    let module = &file.module;
    absolute(&file.root, module, path).or_else(|| {
        let child: ModulePath = module.iter().chain(path.first()).cloned().collect();
        modules.contains(&child).then(|| module.iter().chain(path).cloned().collect())
    })
}

fn imports(file: &SourceFile, modules: &BTreeSet<ModulePath>) -> Vec<Import> {
    let statement = pattern(r"(pub(?:\([^)]*\))?\s+)?\buse\s+([^;]+);");
    let inline = pattern(r"\b(?:crate|super|self|foredraft_\w+)(?:::\w+)+");
    let mut imports = Vec::new();
    for found in statement.captures_iter(&file.code) {
        let mut paths = Vec::new();
        expand(&found[2], &[], &mut paths);
        for (path, name) in paths {
            let offered_as = found.get(1).map(|_| name);
            imports.extend(resolved(file, &path, modules).map(|target| Import { target, offered_as }));
        }
    }
    // A visibility is not an import.
    let code = pattern(r"\bpub\(in [^)]*\)").replace_all(&statement.replace_all(&file.code, ""), "pub").into_owned();
    for found in inline.find_iter(&code) {
        let path: ModulePath = found.as_str().split("::").map(str::to_owned).collect();
        imports.extend(absolute(&file.root, &file.module, &path).map(|target| Import { target, offered_as: None }));
    }
    // Paths that begin with a child module, such as `child::item`.
    for child in pattern(r"\bmod (\w+);").captures_iter(&code) {
        for found in pattern(&format!(r"(?:^|[^\w:]){}::(\w+)", &child[1])).captures_iter(&code) {
            let path = [&child[1], &found[1]].map(str::to_owned);
            imports.push(Import { target: [file.module.as_slice(), path.as_slice()].concat(), offered_as: None });
        }
    }
    imports
}

/// For each file the files whose items it uses. A name that a module re-exports leads to the file that defines it.
fn dependencies(files: &[SourceFile]) -> BTreeMap<&Path, BTreeSet<&Path>> {
    let by_module: BTreeMap<&[String], &SourceFile> = files.iter().map(|file| (file.module.as_slice(), file)).collect();
    let modules: BTreeSet<ModulePath> = files.iter().map(|file| file.module.clone()).collect();
    let all: Vec<Vec<Import>> = files.iter().map(|file| imports(file, &modules)).collect();
    let mut offers: BTreeMap<(&[String], &str), &ModulePath> = BTreeMap::new();
    for (file, imports) in files.iter().zip(&all) {
        for import in imports {
            if let Some(name) = &import.offered_as {
                offers.insert((&file.module, name), &import.target);
            }
        }
    }
    let resolve = |target: &ModulePath| {
        let mut target = target.clone();
        for _ in 0..8 {
            let depth = (0..=target.len()).rev().find(|depth| by_module.contains_key(&target[..*depth]))?;
            let offered = target.get(depth).and_then(|name| offers.get(&(&target[..depth], name.as_str())));
            match offered.filter(|offered| ***offered != target) {
                Some(offered) => target = offered.iter().chain(&target[depth + 1..]).cloned().collect(),
                None => return by_module.get(&target[..depth]).map(|file| file.path.as_path()),
            }
        }
        None
    };
    let used = |file: &SourceFile, imports: &Vec<Import>| {
        let own = imports.iter().filter(|import| import.offered_as.is_none());
        let found: BTreeSet<&Path> = own.filter_map(|import| resolve(&import.target)).collect();
        found.into_iter().filter(|path| *path != file.path).collect()
    };
    files.iter().zip(&all).map(|(file, imports)| (file.path.as_path(), used(file, imports))).collect()
}

/// The row of the innermost layer that has the file, and its name. `None`: the file is the root of `src`.
fn layer(file: &Path) -> Option<(usize, &'static str)> {
    let rows = LAYERS.iter().enumerate().flat_map(|(row, layers)| layers.iter().map(move |layer| (row, *layer)));
    rows.filter(|(_, layer)| file.starts_with(layer)).max_by_key(|(_, layer)| layer.len())
}

#[test]
fn no_layer_imports_an_upper_one() {
    let files = source_files();
    let mut upward = Vec::new();
    for (file, used) in dependencies(&files) {
        for other in used {
            let allowed = match (layer(file), layer(other)) {
                (None, _) => file == Path::new("lib"),
                (Some((from, name)), Some((to, below))) => from < to || name == below,
                _ => false,
            };
            let is_apart = APART.iter().any(|(from, to)| file.starts_with(from) && other.starts_with(to));
            if !allowed || is_apart {
                upward.push(format!("{} imports {}", file.display(), other.display()));
            }
        }
    }
    assert!(upward.is_empty(), "{}", upward.join("\n"));
}

/// Groups of files that reach each other through imports.
fn cycles<'a>(uses: &BTreeMap<&'a Path, BTreeSet<&'a Path>>) -> BTreeSet<BTreeSet<&'a Path>> {
    let reached = |from: &'a Path| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(file) = open.pop() {
            for next in uses.get(file).into_iter().flatten() {
                if reached.insert(*next) {
                    open.push(next);
                }
            }
        }
        reached
    };
    let reach: BTreeMap<&Path, BTreeSet<&Path>> = uses.keys().map(|file| (*file, reached(file))).collect();
    let in_cycle = reach.iter().filter(|(file, reached)| reached.contains(*file));
    in_cycle
        .map(|(file, reached)| reached.iter().filter(|other| reach[*other].contains(file)).copied().collect())
        .collect()
}

#[test]
fn no_files_import_each_other() {
    let files = source_files();
    let cycles = cycles(&dependencies(&files));
    let lines =
        cycles.iter().map(|cycle| cycle.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" "));
    let lines: Vec<String> = lines.collect();
    assert_eq!(lines, CYCLES_LEFT, "{} import cycles:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn a_type_name_means_one_thing() {
    // Only `type` at the beginning of a line: the associated types of a trait and its implementations are no new names.
    let definition =
        pattern(r"(?m)\b(?:struct|enum|trait|union)\s+(\w+)|^(?:pub(?:\([^)]*\))?\s+)?type\s+(\w+)\s*(?:<[^>]*>)?\s*=");
    let mut defined: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for file in source_files() {
        for found in definition.captures_iter(&file.code) {
            let name = found.get(1).or(found.get(2)).expect("one of both").as_str();
            defined.entry(name.to_owned()).or_default().insert(file.path.clone());
        }
    }
    let twice: Vec<(&String, &BTreeSet<PathBuf>)> = defined.iter().filter(|(_, files)| files.len() > 1).collect();
    let names: Vec<&String> = twice.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, NAMES_LEFT, "{twice:#?}");
}

/// Indexing a `Value` mutably panics, and reading by index hides that a field is absent. clippy does not see it.
#[test]
fn no_json_value_is_indexed() {
    let index = pattern(r#"[\w)]\[""#);
    let indexed = source_files().into_iter().filter(|file| index.is_match(&file.code));
    assert_eq!(indexed.map(|file| file.path).collect::<Vec<_>>(), Vec::<PathBuf>::new());
    assert!(index.is_match(r#"message["role"]"#) && !index.is_match(r#"names(["a"])"#));
}

#[test]
fn these_checks_find_what_they_look_for() {
    let paths = |tree: &str| {
        let mut paths = Vec::new();
        expand(tree, &[], &mut paths);
        paths.into_iter().map(|(path, name)| format!("{} as {name}", path.join("::"))).collect::<Vec<_>>()
    };
    assert_eq!(paths("a::{b, c::{self, d as e}}"), ["a::b as b", "a::c as c", "a::c::d as e"]);
    let module = |text: &str| text.split("::").map(str::to_owned).collect::<ModulePath>();
    let in_src = |place: &str, path: &str| absolute(&[], &module(place), &module(path));
    assert_eq!(in_src("api::load", "super::super::llama::Model"), Some(module("llama::Model")));
    assert_eq!(in_src("api::load", "foredraft_base::error::Result"), Some(module("base::error::Result")));
    assert_eq!(in_src("api", "std::fs"), None);
    let in_crate = absolute(&module("ngram"), &module("ngram::cache"), &module("crate::index"));
    assert_eq!(in_crate, Some(module("ngram::index")));
    let file = |name: &str, code: &str| SourceFile {
        path: name.into(),
        root: ModulePath::new(),
        module: module(name),
        code: code.to_owned(),
    };
    let files = [
        file("one", "use crate::two::B; struct A;"),
        file("two", "use super::three::C;"),
        file("three", "fn f() { crate::one::A }"),
        file("four", "use crate::one::A;"),
    ];
    let found = cycles(&dependencies(&files));
    let expected: BTreeSet<&Path> = ["one", "two", "three"].map(Path::new).into();
    assert_eq!(found, [expected].into());
    let parent_and_child = [file("one", "mod child; fn f() { child::g() }"), file("one::child", "use super::f;")];
    assert_eq!(cycles(&dependencies(&parent_and_child)).len(), 1);
}

/// The crates of the workspace that a manifest has among its `[dependencies]`, in order.
fn workspace_dependencies(manifest: &str) -> Vec<String> {
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| name.starts_with("foredraft-")).map(str::to_owned).collect()
}

/// `cargo tree` of the workspace's own crates, two levels deep.
#[test]
fn architecture_page_has_the_tree_of_crates() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dependencies = |folder: PathBuf| {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        let mut names = workspace_dependencies(&manifest);
        names.sort();
        names
    };
    let branch = |is_last: bool| if is_last { ("└── ", "    ") } else { ("├── ", "│   ") };
    let mut tree = "foredraft\n".to_owned();
    let crates = dependencies(root.to_owned());
    for (index, name) in crates.iter().enumerate() {
        let (turn, indent) = branch(index + 1 == crates.len());
        tree += &format!("{turn}{name}\n");
        let below = dependencies(root.join("crates").join(&name["foredraft-".len()..]));
        for (index, name) in below.iter().enumerate() {
            tree += &format!("{indent}{}{name}\n", branch(index + 1 == below.len()).0);
        }
    }
    assert!(crates.len() > 3, "{tree}");
    let page = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("the page");
    assert!(page.contains(&tree), "ARCHITECTURE.md should have\n{tree}");
}
