//! Models split into several files by llama-gguf-split: `name-00001-of-00003.gguf` and so on.

use std::path::{Path, PathBuf};

/// The given file, and the other files of the model that exist. llama.cpp supports no other names.
pub(crate) fn of(path: &Path) -> Vec<PathBuf> {
    let others = others(path).unwrap_or_default().into_iter().filter(|file| file.exists());
    std::iter::once(path.to_owned()).chain(others).collect()
}

fn others(path: &Path) -> Option<Vec<PathBuf>> {
    let (prefix, count) = path.file_name()?.to_str()?.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let prefix = prefix.strip_suffix("-00001")?;
    let count: u16 = count.parse().ok()?;
    Some((2..=count).map(|n| path.with_file_name(format!("{prefix}-{n:05}-of-{count:05}.gguf"))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_other_files_follow_from_the_first() {
        let others = |name: &str| others(Path::new(name));
        let expected = ["/a/b-of-c-00002-of-00003.gguf", "/a/b-of-c-00003-of-00003.gguf"].map(PathBuf::from);
        assert_eq!(others("/a/b-of-c-00001-of-00003.gguf"), Some(expected.to_vec()));
        assert_eq!(others("/a/b-00001-of-00001.gguf"), Some(Vec::new()));
        for whole in ["/", "a.gguf", "a-00002-of-00003.gguf", "a-1-of-3.gguf", "a-00001-of-99999.gguf"] {
            assert_eq!(others(whole), None, "{whole}");
        }
    }
}
