//! The documents: every relative link leads to a file, and every `#anchor` to a heading.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::path::{Path, PathBuf};

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["", "docs", "python", "node", "models"].map(|folder| root.join(folder));
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

#[test]
fn anchors_are_those_of_github() {
    assert_eq!(anchors("# 2. `init`\n## The context\n## The context\n"), ["2-init", "the-context", "the-context-1"]);
}
