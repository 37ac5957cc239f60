//! The documents: every relative link leads to a file, and every `#anchor` to a heading. The guide: its code is that of
//! programs that tests run, and it builds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["", "docs", "docs/reference", "docs/figures", "models"].map(|folder| root.join(folder));
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("the folder is there"));
    entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|it| it == "md"))
        .collect()
}

/// The targets of `[text](target)`, outside blocks of code.
fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let ends = prose.flat_map(|part| part.split("](").skip(1));
    ends.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target).collect()
}

/// The anchors that GitHub gives to a document's headings; of equal ones, the later get a number.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for heading in text.lines().filter(|line| line.starts_with('#')) {
        let kept = |character: &char| character.is_alphanumeric() || " -_".contains(*character);
        let anchor: String = heading.trim_start_matches('#').trim().chars().filter(kept).collect();
        let anchor = anchor.to_lowercase().replace(' ', "-");
        let numbered = |n: usize| if n == 0 { anchor.clone() } else { format!("{anchor}-{n}") };
        anchors.push((0..).map(numbered).find(|it| !anchors.contains(it)).expect("numbers do not end"));
    }
    anchors
}

#[test]
fn relative_links_lead_to_files_and_headings() {
    let (mut count, mut broken) = (0, Vec::new());
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("UTF-8");
        for link in links(&text).into_iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
            count += 1;
            let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let target = if file.is_empty() { document.clone() } else { document.with_file_name(file) };
            let leads = match anchor {
                None => target.exists(),
                Some(anchor) => {
                    std::fs::read_to_string(&target).is_ok_and(|text| anchors(&text).iter().any(|it| it == anchor))
                }
            };
            if !leads {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(count > 20, "links were found");
}

/// Registries show a package's README by itself, so its links are whole; those into the repository lead to files of it.
#[test]
fn readmes_of_packages_have_whole_links() {
    let repository = include_str!("../Cargo.toml").lines().find_map(|line| line.strip_prefix("repository = "));
    let repository = repository.expect("its address").trim_matches('"');
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for readme in ["python/README.md", "node/README.md", "csharp/README.md", "csharp/unity/README.md"] {
        let text = std::fs::read_to_string(root.join(readme)).expect("UTF-8");
        let links = links(&text);
        for link in &links {
            assert!(link.starts_with("https://"), "{readme}: {link}");
            let path =
                ["blob", "tree"].iter().find_map(|kind| link.strip_prefix(&format!("{repository}/{kind}/main/")));
            assert!(path.is_none_or(|path| root.join(path).exists()), "{readme}: {link}");
        }
        assert!(links.iter().any(|link| link.starts_with(repository)), "{readme}: {links:?}");
    }
}

fn is_part_of_path(character: char) -> bool {
    character.is_ascii_alphanumeric() || "/._-".contains(character)
}

/// Whether this is a path of this repository, such as `src/lib.rs`.
fn is_path(word: &str) -> bool {
    const FOLDERS: [&str; 9] =
        ["src/", "crates/", "tests/", "benches/", "examples/", "scripts/", "docs/", "packaging/", "fuzz/"];
    FOLDERS.iter().any(|folder| word.starts_with(folder)) && word.chars().all(is_part_of_path)
}

/// Paths in a line of code, in backticks, because other words may be paths of other programs.
fn paths_in_code(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).filter(|word| is_path(word)).collect()
}

/// Paths in a line of a document, also in its commands.
fn paths_in_document(line: &str) -> Vec<&str> {
    let words = line.split(|character: char| !is_part_of_path(character) && character != '*');
    words.map(|word| word.trim_end_matches('.')).filter(|word| is_path(word)).collect()
}

/// The files with these extensions in these folders.
fn sources(folders: &[&str], extensions: &[&str]) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("an entry").path();
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => folders.push(path),
                Some(extension) if extensions.contains(&extension) => files.push(path),
                _ => {}
            }
        }
    }
    files
}

/// These pages name the tests that show what they say, in backticks. A name of a test has four words or more.
#[test]
fn tests_that_pages_name_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = sources(&["src", "tests", "crates"], &["rs"]);
    let code: String = files.iter().map(|file| std::fs::read_to_string(file).expect("UTF-8")).collect();
    let is_test = |word: &&str| {
        word.split('_').count() >= 4
            && word.chars().all(|it| it == '_' || it.is_ascii_lowercase() || it.is_ascii_digit())
    };
    let read = |page: &str| std::fs::read_to_string(root.join(page)).expect("UTF-8");
    let migration = read("docs/migration.md");
    let (_, plan) = migration.split_once("\n## The plan, step by step\n").expect("the section");
    let plan = plan.split("\n## ").next().expect("its text").to_owned();
    for (page, text, least) in
        [("docs/reliability.md", read("docs/reliability.md"), 21), ("docs/migration.md", plan, 12)]
    {
        let named: Vec<&str> =
            text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter(is_test).collect();
        let is_missing = |name: &&&str| {
            !code.contains(&format!("#[test]\nfn {name}()")) && !code.contains(&format!("#[test]\n    fn {name}()"))
        };
        let missing: Vec<&&str> = named.iter().filter(is_missing).collect();
        assert!(missing.is_empty(), "{page}: {missing:?}");
        assert!(named.len() >= least, "{page}: {named:?}");
        let command = "`cargo test --release --workspace NAME`";
        assert!(text.contains(command), "{page}: expected {command}, which also runs the tests of crates");
    }
}

/// The tests in the last column of the newcomers' table: of Rust, of Python (`test_...`), of Node (a sentence), and files for type checkers.
#[test]
fn tests_in_the_newcomers_table_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = sources(&["src", "crates", "tests", "python/tests", "node/test"], &["rs", "py", "mjs", "mts"]);
    let code: String = files.iter().map(|file| std::fs::read_to_string(file).expect("UTF-8")).collect();
    let page = std::fs::read_to_string(root.join("docs/troubleshooting.md")).expect("UTF-8");
    let (_, section) = page.split_once("\n## What newcomers stumbled over\n").expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    let mut missing = Vec::new();
    for row in &rows {
        let tests = row.trim_end_matches(" |").rsplit(" | ").next().expect("a last column");
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test: {row}");
        missing.extend(named.into_iter().filter(|name| match name {
            _ if name.contains('/') => !root.join(name).exists(),
            _ if name.starts_with("test_") => !code.contains(&format!("\ndef {name}(")),
            _ if name.contains(' ') => !code.contains(&format!("\ntest('{name}', ")),
            _ => !["", "    "].iter().any(|indent| code.contains(&format!("#[test]\n{indent}fn {name}()"))),
        }));
    }
    assert!(missing.is_empty(), "{missing:?}");
    assert!(rows.len() >= 15, "{rows:?}");
}

/// A release workflow does not run before there is a release, so this test finds what it would miss.
#[test]
fn scripts_and_targets_that_workflows_run_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (makefile, checks) = (include_str!("../Makefile"), include_str!("../scripts/check.sh"));
    let mut count = 0;
    for workflow in sources(&[".github/workflows"], &["yml"]) {
        let text = std::fs::read_to_string(&workflow).expect("UTF-8");
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with('#')).collect();
        let lists = lines.iter().filter_map(|line| line.strip_prefix("tool: [")?.strip_suffix(']'));
        for tool in lists.flat_map(|list| list.split(", ")) {
            assert!(checks.contains(&format!("\n    {tool}) ")), "{}: scripts/check.sh {tool}", workflow.display());
            count += 1;
        }
        let mut targets: Vec<&str> = Vec::new();
        for words in lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>()) {
            for word in words.iter().filter(|word| word.starts_with("scripts/") || word.starts_with(".ci/")) {
                let file = std::fs::metadata(root.join(word));
                assert!(file.is_ok_and(|file| is_executable(&file)), "{}: {word}", workflow.display());
                count += 1;
            }
            if let Some(at) = words.iter().position(|word| *word == "make") {
                let is_target = |word: &&&str| word.chars().all(|it| it.is_ascii_lowercase() || it == '-');
                targets.extend(words[at + 1..].iter().take_while(is_target));
            }
        }
        for target in &targets {
            let rule = format!("\n{target}:");
            assert!(makefile.contains(&rule), "{}: make {target}", workflow.display());
        }
        count += targets.len();
    }
    assert!(count > 15, "{count} commands were found");
}

#[cfg(unix)]
fn is_executable(file: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.permissions().mode() & 0o111 != 0
}

#[cfg(not(unix))]
fn is_executable(file: &std::fs::Metadata) -> bool {
    file.is_file()
}

#[test]
fn files_that_documents_and_comments_name_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = sources(&["src", "crates", "tests", "benches", "examples"], &["rs", "c", "cpp", "h", "hpp", "py"]);
    code.retain(|file| !file.ends_with("tests/documents.rs"));
    let (mut count, mut missing) = (0, Vec::new());
    let mut check = |files: &[PathBuf], paths: fn(&str) -> Vec<&str>| {
        for file in files {
            let text = std::fs::read_to_string(file).expect("UTF-8");
            for path in text.lines().flat_map(paths) {
                count += 1;
                if !root.join(path).exists() {
                    missing.push(format!("{}: {path}", file.display()));
                }
            }
        }
    };
    check(&documents(), paths_in_document);
    check(&code, paths_in_code);
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(count > 40, "{count} files were named");
}

/// The keys of loads and of requests in docs/reference: the words in backticks in the columns `key` and `the draft's` of the tables.
fn documented_keys() -> Vec<String> {
    let text = [include_str!("../docs/reference/load.md"), include_str!("../docs/reference/request.md")].concat();
    let mut keys = Vec::new();
    let (mut subsection, mut columns) = ("", 0);
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("#") {
            subsection = heading.trim_start_matches('#').trim();
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        columns = match cells.get(1..3) {
            Some(["key" | "field", "the draft's" | "for several tokens"]) if cells.get(3) == Some(&"the draft's") => 3,
            Some(["key" | "field", "the draft's"]) => 2,
            Some(["key" | "field", ..]) => 1,
            Some(_) => columns,
            None => 0,
        };
        let is_of_packages = subsection != "Models from elsewhere";
        if is_of_packages && !line.contains("| meaning now |") && !cells.contains(&"meaning now") {
            let words = cells.iter().skip(1).take(columns).flat_map(|cell| cell.split('`').skip(1).step_by(2));
            keys.extend(
                words.filter(|word| word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')).map(str::to_owned),
            );
        }
        if cells.contains(&"meaning now") {
            columns = 0;
            subsection = "Models from elsewhere"; // the old server's keys, which no package needs
        }
    }
    keys
}

/// A key that is missing in the types is an error for type checkers, although the library knows it.
#[test]
fn documented_keys_are_in_the_types_of_the_packages() {
    let keys = documented_keys();
    for expected in [
        "n_predict",
        "cache_type_v_draft",
        "cpu_mask_batch",
        "prio_batch_draft",
        "xtc_threshold",
        "suffix_depth",
        "max_queue",
    ] {
        assert!(keys.iter().any(|key| key == expected), "{expected} must be found: {keys:?}");
    }
    // Arguments of their own, or the packages' own business; values; keys of the old server's HTTP side.
    let others = [
        "model",
        "model_draft",
        "prompt",
        "messages",
        "tools",
        "notify_fd",
        "__debug",
        "true",
        "false",
        "hostname",
        "port",
        "public_path",
        "read_timeout",
        "write_timeout",
    ];
    let python = include_str!("../python/src/foredraft/_options.py");
    let node = include_str!("../node/lib/index.d.cts");
    let missing: Vec<&String> = keys
        .iter()
        .filter(|key| !others.contains(&key.as_str()))
        .filter(|key| !python.contains(&format!("\n    {key}: ")) || !node.contains(&format!("\n  {key}?: ")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The README is a screen that ends in links: short, with the two commands and one small table of figures at its top, and the keys that it
/// shows are documented.
#[test]
fn readme_is_short_and_shows_documented_keys() {
    let text = include_str!("../README.md");
    let words = text.split_whitespace().count();
    assert!(words <= 700, "{words} words");
    let screen: Vec<&str> = text.lines().take(36).collect();
    let screen = screen.join("\n");
    assert!(screen.contains("    make demo ") && screen.contains("    make test "), "{screen}");
    let (_, figures) =
        text.split_once("| task | alone | with the draft |\n| --- | --- | --- |\n").expect("the figures");
    let rows = figures.lines().take_while(|line| line.starts_with("| ")).count();
    let (tables, (_, keys)) =
        (text.matches("\n| --- |").count(), text.split_once("\n## The first ten keys\n").expect("keys"));
    assert_eq!((rows, tables), (3, 2), "one table of three figures, and one of keys");
    let shown: Vec<&str> = keys
        .lines()
        .filter(|line| line.starts_with("| `"))
        .flat_map(|line| line.split(" | ").map(|cell| cell.trim_start_matches("| ")))
        .filter_map(|cell| cell.strip_prefix('`')?.strip_suffix('`'))
        .collect();
    let documented = documented_keys();
    let unknown: Vec<&&str> = shown.iter().filter(|key| !documented.contains(&(**key).to_owned())).collect();
    assert!(unknown.is_empty() && shown.len() == 10, "{unknown:?} of {shown:?}");
    assert!(
        text.contains(" toy of 4.5 M parameters") && text.contains("    make models "),
        "what the shipped model is"
    );
}

/// The change log has a section for the version that the packages have, which lists its C functions.
#[test]
fn change_log_is_cut_for_this_version() {
    let text = include_str!("../CHANGELOG.md");
    let version = format!("\n## [{}] - ", env!("CARGO_PKG_VERSION"));
    let (_, section) = text.split_once(&version).expect("its section");
    let (section, _) = section.split_once("\n## ").expect("the version before it");
    let header = include_str!("../include/foredraft.h");
    let declared = header
        .lines()
        .filter_map(|line| line.strip_prefix("FOREDRAFT_API ")?.split_once('(')?.0.rsplit([' ', '*']).next());
    let missing: Vec<&str> = declared.filter(|name| !text.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty() && section.contains("**Symbols.** New: "), "{missing:?}");
}

/// A page that shows the toy models alone leaves a reader with babble, so each guide names a file that scripts/models.sh makes.
#[test]
fn each_guide_names_a_real_model() {
    let script = include_str!("../scripts/models.sh");
    let (_, guide) = include_str!("../docs/SUMMARY.md").split_once("\n# Guide\n").expect("the guide");
    let (guide, _) = guide.split_once("\n# ").expect("the next part");
    let pages = links(guide);
    for page in &pages {
        let text =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page)).expect("UTF-8");
        let words = text.split(|character: char| !is_part_of_path(character));
        let named: Vec<&str> = words.filter_map(|word| word.strip_prefix("target/models/")).collect();
        assert!(!named.is_empty() && named.iter().all(|name| script.contains(name)), "{page}: {named:?}");
    }
    assert!(pages.len() > 6, "{pages:?}");
}

/// The page of figures is a summary. Its tables are in docs/figures, where each section begins with the dates and builds of its figures.
#[test]
fn figures_have_dates_and_their_summary_is_short() {
    let words = include_str!("../docs/performance.md").split_whitespace().count();
    assert!(words <= 2000, "{words} words");
    let mut sections = 0;
    for page in documents().iter().filter(|page| page.parent().is_some_and(|folder| folder.ends_with("figures"))) {
        let text = std::fs::read_to_string(page).expect("UTF-8");
        for section in text.split("\n## ").skip(1) {
            sections += 1;
            let first = section.lines().nth(2).expect("a line behind the heading");
            assert!(first.contains("2026-"), "{}: {section:.40}: {first}", page.display());
        }
    }
    assert!(sections > 10, "{sections}");
}

/// docs/building.md says which platforms are tested, built, or neither.
#[test]
fn building_has_the_platforms() {
    let text = include_str!("../docs/building.md");
    let (_, platforms) = text.split_once("## Platforms\n").expect("the section");
    let (platforms, _) = platforms.split_once("\n## ").expect("the next section");
    let rows: Vec<Vec<&str>> = platforms
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| platform |") && !line.starts_with("| --- |"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    let named =
        |platform: &str| rows.iter().filter(|row| row.first().is_some_and(|cell| cell.contains(platform))).count();
    for platform in ["Linux x86-64", "Linux AArch64", "macOS", "Windows", "Vulkan"] {
        assert_eq!(named(platform), 1, "{platform}: {rows:?}");
    }
    for row in &rows {
        let [_, built, tested, package] = row[..] else { panic!("four columns: {row:?}") };
        let is_built = built.starts_with("yes") || built.starts_with("as a module");
        assert!(is_built || (tested, package) == ("no", "none"), "what is not built is not tested: {row:?}");
    }
    // Packages of npm are for Linux as it is tested there.
    let packages = include_str!("../node/package.json").matches("\"@foredraft/linux-").count();
    let linux = rows.iter().filter(|row| row[0].starts_with("Linux") && row[1].starts_with("yes") && row[2] != "no");
    assert_eq!(packages, linux.count());
}

#[test]
fn anchors_are_those_of_github() {
    assert_eq!(anchors("# 2. `init`\n## The context\n## The context\n"), ["2-init", "the-context", "the-context-1"]);
}

/// The pages of the guide that show code of hosts.
fn pages() -> Vec<PathBuf> {
    documents()
        .into_iter()
        .filter(|path| {
            path.parent().is_some_and(|folder| folder.ends_with("docs") || folder.ends_with("docs/reference"))
        })
        .collect()
}

/// The fenced blocks of a page: language and text.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    let fenced = text.split("```").skip(1).step_by(2);
    fenced.map(|block| block.split_once('\n').expect("a language, or none, and a line feed")).collect()
}

/// A block of code that is a part of a program: the comment before it names the file and the anchor.
struct Snippet<'a> {
    source: &'a str,
    language: &'a str,
    code: &'a str,
}

const LANGUAGES: [&str; 12] =
    ["c", "cpp", "c++", "csharp", "python", "py", "js", "mjs", "ts", "javascript", "typescript", "rust"];

/// The blocks of code in a page in the languages of hosts. `source` is empty where no comment names one.
fn snippets(text: &str) -> Vec<Snippet<'_>> {
    let parts: Vec<&str> = text.split("```").collect();
    let pairs = parts.chunks(2).filter_map(|pair| Some((*pair.first()?, *pair.get(1)?)));
    let found = pairs.filter_map(|(before, block)| {
        let (language, code) = block.split_once('\n')?;
        let comment = before.trim_end_matches('\n').rsplit('\n').next().unwrap_or_default();
        let source = comment.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")).unwrap_or_default();
        Some(Snippet { source, language, code })
    });
    found.filter(|snippet| LANGUAGES.contains(&snippet.language)).collect()
}

/// The lines of a program between its anchors; `source` is `FILE:ANCHOR`. An error says what is not there.
fn part_of_program(page: &Path, source: &str) -> Result<String, String> {
    let (file, anchor) = source.split_once(':').ok_or("expected the comment <!-- FILE:ANCHOR --> before the block")?;
    let tested = ["../examples/guide/", "../csharp/unity/Samples~/", "../csharp/godot/"];
    if !tested.iter().any(|folder| file.starts_with(folder)) {
        return Err(format!("{file} is not in examples/guide, whose programs tests/hosts/guide.rs runs"));
    }
    let text = std::fs::read_to_string(page.with_file_name(file)).map_err(|error| format!("{file}: {error}"))?;
    let is = |line: &&str, word: &str| line.split_whitespace().skip_while(|it| *it != word).nth(1) == Some(anchor);
    let lines: Vec<&str> = text.lines().collect();
    let place = |word| lines.iter().position(|line| is(line, word)).ok_or(format!("{file}: no {word} {anchor}"));
    let (begin, end) = (place("ANCHOR:")?, place("ANCHOR_END:")?);
    lines
        .get(begin + 1..end)
        .filter(|it| !it.is_empty())
        .map(|it| it.join("\n") + "\n")
        .ok_or(format!("{file}: {anchor} is empty"))
}

/// With `UPDATE_DOCS` set, writes the programs' lines into the pages.
#[test]
fn code_of_hosts_is_that_of_programs_that_are_tested() {
    let (mut count, mut wrong) = (0, Vec::new());
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("UTF-8");
        let mut updated = text.clone();
        for Snippet { source, language, code } in snippets(&text) {
            count += 1;
            match part_of_program(&page, source) {
                Ok(program) if program == code => {}
                Ok(program) => {
                    let block = |code: &str| format!("<!-- {source} -->\n```{language}\n{code}```");
                    updated = updated.replace(&block(code), &block(&program));
                    wrong.push(format!("{}: {source} is not what the program has", page.display()));
                }
                Err(why) => wrong.push(format!("{}: {why}:\n{code}", page.display())),
            }
        }
        if std::env::var_os("UPDATE_DOCS").is_some() && updated != text {
            std::fs::write(&page, updated).expect("the page can be written");
        }
    }
    assert!(wrong.is_empty(), "{}\n(UPDATE_DOCS=1 cargo test --release --test documents writes it)", wrong.join("\n"));
    assert!(count > 12, "{count} blocks");
}

#[test]
fn snippets_that_lead_nowhere_are_found() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/page.md");
    let hello = part_of_program(&page, "../examples/guide/hello.py:hello");
    assert!(hello.is_ok_and(|code| code.contains("Engine(")));
    for wrong in [
        "",
        "../examples/guide/hello.py",
        "../examples/guide/hello.py:hell",
        "../examples/guide/none.py:hello",
        "../examples/chat.py:hello",
    ] {
        assert!(part_of_program(&page, wrong).is_err(), "{wrong}");
    }
    let text = "text\n\n<!-- a:b -->\n```py\none\n```\n\n```c\ntwo\n```\n```sh\nthree\n```\n";
    let found: Vec<_> = snippets(text).into_iter().map(|it| (it.source, it.language, it.code)).collect();
    assert_eq!(found, [("a:b", "py", "one\n"), ("", "c", "two\n")]);
}

#[test]
fn json_in_the_documents_is_json() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("UTF-8");
        for (_, block) in blocks(&text).into_iter().filter(|(language, _)| *language == "json") {
            // `...` stands for further members.
            let block = block.replace(", ...}", "}").replace(", ...]", "]");
            for value in serde_json::Deserializer::from_str(&block).into_iter::<serde_json::Value>() {
                assert!(value.is_ok(), "{}: {value:?}\n{block}", page.display());
            }
        }
    }
}

#[test]
fn every_document_is_a_page_of_the_guide() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).expect("UTF-8");
    let listed: Vec<PathBuf> =
        links(&summary).into_iter().map(|link| docs.join(link).canonicalize().expect("a page")).collect();
    for document in documents().iter().filter(|document| !document.ends_with("SUMMARY.md")) {
        assert!(listed.contains(&document.canonicalize().expect("it is there")), "{}", document.display());
    }
}

/// Builds the book, which fails where a link of a page leads nowhere. Skipped, with a line on stderr, where there is no mdBook and no
/// network; not in CI.
#[test]
fn the_guide_builds() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/docs.sh");
    let output = Command::new(script).output().expect("bash");
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    match out.trim() {
        skipped if skipped.starts_with("skipped: ") => {
            // Past the test runner's capture.
            std::io::stderr().write_all(out.as_bytes()).expect("stderr is open");
        }
        page => {
            let first = Path::new(page).with_file_name("docs").join("first-completion.html");
            let text = std::fs::read_to_string(&first).unwrap_or_else(|error| panic!("{}: {error}", first.display()));
            // The page includes the programs in each language.
            for code in ["foredraft_submit", "foredraft::engine", "from foredraft import", "for await"] {
                assert!(text.contains(code), "{code}");
            }
        }
    }
}

/// `crates/native/seams.md` has each function that a linker's option replaces, by its name or in a row that counts several, and each
/// private header of llama.cpp and ggml that a file of ours includes.
#[test]
fn seams_name_each_wrapped_function_and_private_header() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("crates/native/seams.md")).expect("UTF-8");
    let files = sources(&["src", "crates/native"], &["c", "cpp", "h"]);
    let (mut headers, mut wrapped) = (BTreeSet::new(), BTreeSet::new());
    for file in &files {
        let text = std::fs::read_to_string(file).expect("UTF-8");
        let included = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.split('"').next());
        headers.extend(included.filter_map(|path| path.rsplit('/').next()).map(str::to_owned));
        let is_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
        let names = text.split("__wrap_").skip(1).map(|rest| rest.split(|it| !is_name(it)).next().expect("a part"));
        wrapped.extend(names.filter(|name| !name.is_empty()).map(str::to_owned));
    }
    // Headers of our own or made by `build/kernels.rs`, and public ones.
    let own: BTreeSet<String> = files.iter().filter_map(|file| Some(file.file_name()?.to_str()?.to_owned())).collect();
    let public = [
        "llama.h",
        "ggml.h",
        "ggml-alloc.h",
        "ggml-backend.h",
        "ggml-cpu.h",
        "ggml-rpc.h",
        "gguf.h",
        "mtmd.h",
        "mtmd-helper.h",
    ];
    headers.retain(|name| !own.contains(name) && !public.contains(&name.as_str()) && name != "ggml_threadpool.h");
    let is_named =
        |name: &&String| [format!("`{name}`"), format!("/{name}`")].iter().any(|quoted| page.contains(quoted));
    let missing: Vec<&String> = headers.iter().filter(|name| !is_named(name)).collect();
    assert!(missing.is_empty() && headers.len() >= 9, "{missing:?} of {headers:?}");
    let (of_ggml, others): (Vec<String>, Vec<String>) =
        wrapped.into_iter().partition(|name| name.starts_with("ggml_") || name.starts_with("quantize_"));
    let of_floats: Vec<&String> = others.iter().filter(|name| !is_named(name)).collect();
    let counted = |words: &str| page.lines().filter(|row| row.contains("--wrap") && row.contains(words)).count();
    assert_eq!((of_floats.len(), counted("eleven functions of floats")), (11, 1), "{of_floats:?}");
    assert_eq!((of_ggml.len(), counted("five functions, on AArch64")), (5, 1), "{of_ggml:?}");
}

/// Facts about the old server, its papers and this library that a page once lacked or had wrong: a row each, the page and a text that the row has.
#[test]
fn pages_say_what_readers_found_missing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |page: &str| std::fs::read_to_string(root.join(page)).expect("UTF-8");
    for (page, texts) in [
        ("docs/migration.md", ["DeepMind", "arXiv 2302.01318"]),
        ("docs/migration.md", ["`speculative-simple`", "\"n_max\": 7"]),
        ("docs/migration.md", ["| A decode that fails |", "`status` 200 and no `stopped_*` flag"]),
        ("docs/migration.md", ["| The first of `tokens` of `tokenize` |", "for BOS"]),
        ("docs/migration.md", ["| `text` of `tokenize` as an array |", "`{\"success\": false}`"]),
        ("docs/migration.md", ["| The log |", "with `-v`"]),
        ("docs/migration.md", ["| `ignore_eos` |", "bans EOS alone"]),
        ("docs/migration.md", ["| No prompt, or an empty one |", "if the model has one; else an error"]),
        ("docs/limits.md", ["NVIDIA H200", "seven of its twelve tests passed"]),
        ("include/foredraft.h", ["The handle is a number", "never NULL"]),
    ] {
        let text = read(page);
        let is_there = |line: &str| texts.iter().all(|text| line.contains(text));
        assert!(text.lines().any(is_there), "{page}: no line with {texts:?}");
    }
    // The paper that the person names is DeepMind's.
    assert!(!read("docs/migration.md").contains("Leviathan"));
    for page in ["README.md", "docs/limits.md"] {
        assert!(!read(page).to_lowercase().contains("a real gpu"), "{page}: figures of a GPU are in other pages");
    }
}
