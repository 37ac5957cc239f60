//! The names that the shared library gives to the world: the contract's and no other, so that it can be loaded beside
//! anything, another llama.cpp included.

mod contract;
mod toolbox;

use std::collections::BTreeSet;
use std::process::Command;

use contract::{FUNCTIONS, OTHERS};
use toolbox::{have, library_folder, root, run};

fn contract() -> BTreeSet<String> {
    FUNCTIONS.into_iter().chain(OTHERS).map(str::to_owned).collect()
}

#[test]
fn the_library_exports_the_contract_and_nothing_else() {
    if !have("nm", &["--version"], "the library's symbols") {
        return;
    }
    let library = library_folder().join("libforedraft.so");
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library), "");
    let exported: BTreeSet<String> =
        listed.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect();
    assert_eq!(exported, contract());
}

#[test]
fn the_header_declares_the_contract_and_nothing_else() {
    let header = std::fs::read_to_string(root().join("include/foredraft.h")).expect("the header is there");
    // cbindgen begins each declaration in the first column; a comment's lines begin with ` *`.
    let declared: BTreeSet<String> = header
        .lines()
        .filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()) && !line.starts_with("typedef"))
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .map(str::to_owned)
        .collect();
    assert_eq!(declared, contract());
}
