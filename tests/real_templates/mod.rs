//! The real chat templates that `scripts/templates.sh` downloads.

use std::path::Path;

/// Their names and sources, sorted.
pub(crate) fn real_templates() -> Vec<(String, String)> {
    // Crates lie two folders below the repository's.
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = package.ancestors().map(|folder| folder.join("target/templates")).find(|folder| folder.is_dir());
    let entries = std::fs::read_dir(folder.expect("run scripts/check.sh templates first")).expect("a folder");
    let files = entries.map(|entry| entry.expect("an entry").path());
    let mut templates: Vec<(String, String)> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "jinja"))
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).expect("UTF-8"))
        })
        .collect();
    templates.sort();
    assert!(templates.len() > 60);
    templates
}
