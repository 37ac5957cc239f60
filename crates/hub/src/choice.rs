//! The files that a reference means: llama.cpp's choice.

use foredraft_base::error::{Code, Error, Result};

use crate::place::HubPlace;

/// A file of a repository.
#[derive(Debug, Clone, Default)]
pub(crate) struct HubFile {
    pub(crate) path: String,
    pub(crate) size: u64,
    /// Its name in `blobs`; `None`: it is known from the cache.
    pub(crate) blob: Option<String>,
    pub(crate) url: String,
}

/// The files beside a model that are downloaded, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// A drafter and a projector.
    All,
    /// A drafter.
    Draft,
    /// None.
    Nothing,
}

/// The key of a load, and the files that it needs, the first one first.
pub(crate) type ChosenFiles<'a> = Vec<(&'static str, Vec<&'a HubFile>)>;

/// The beginnings of drafters' names, as llama.cpp's converter writes them.
const DRAFTERS: [&str; 4] = ["mtp-", "eagle3-", "dflash-", "dspark-"];

pub(crate) fn chosen<'a>(place: &HubPlace, files: &'a [HubFile], beside: Beside) -> Result<ChosenFiles<'a>> {
    let is_model = |file: &&HubFile| {
        !is_projector(file)
            && !is_drafter(file)
            && !file.path.contains("imatrix")
            && split(&file.path).is_none_or(|it| it.index == 1)
    };
    let models: Vec<&HubFile> = files.iter().filter(is_model).collect();
    let wanted = |quant: &str| models.iter().copied().find(|file| has_quant(&file.path, quant));
    let found = match (&place.path, &place.quant) {
        (Some(path), _) => files.iter().find(|file| file.path == *path),
        (None, Some(quant)) => wanted(quant),
        (None, None) => wanted("Q4_K_M").or_else(|| wanted("Q8_0")).or(models.first().copied()),
    };
    let Some(found) = found else {
        let wanted = place.path.as_ref().or(place.quant.as_ref()).map_or("GGUF file", |it| it);
        let names: Vec<&str> = models.iter().map(|file| &*file.path).collect();
        let there = if names.is_empty() { "no GGUF file".to_owned() } else { names.join(", ") };
        return Err(Error::new(Code::NotFound, format!("{}: no {wanted}; there is {there}", place.name)));
    };
    let mut chosen = vec![("model", parts(found, files)?)];
    let mut add = |key, is_kind: fn(&HubFile) -> bool| {
        // In the nearest folder, with the most similar quantization.
        let near = files.iter().filter(|file| is_kind(file) && found.path.starts_with(folder(&file.path)));
        let distance = |file: &&HubFile| {
            (std::cmp::Reverse(file.path.matches('/').count()), bits(&file.path).abs_diff(bits(&found.path)))
        };
        if let Some(file) = near.min_by_key(distance) {
            chosen.push((key, parts(file, files)?));
        }
        Ok::<(), Error>(())
    };
    if is_projector(found) || is_drafter(found) || beside == Beside::Nothing {
        return Ok(chosen);
    }
    add("model_draft", is_drafter)?;
    if beside == Beside::All {
        add("mmproj", is_projector)?;
    }
    Ok(chosen)
}

fn is_projector(file: &HubFile) -> bool {
    file.path.contains("mmproj")
}

fn is_drafter(file: &HubFile) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    DRAFTERS.iter().any(|prefix| name.starts_with(prefix))
}

fn folder(path: &str) -> &str {
    path.rfind('/').and_then(|at| path.get(..=at)).unwrap_or_default()
}

/// Whether a path has a quantization, followed by `.` or `-`.
fn has_quant(path: &str, quant: &str) -> bool {
    let (path, quant) = (path.to_uppercase(), quant.to_uppercase());
    path.match_indices(&quant)
        .any(|(at, _)| path.get(at + quant.len()..).is_some_and(|rest| rest.starts_with(['.', '-'])))
}

/// 4 of `name-Q4_K_M.gguf`.
fn bits(path: &str) -> u32 {
    let name = split(path).map_or_else(|| path.trim_end_matches(".gguf"), |it| it.prefix);
    let tag = name.rsplit(['-', '.']).next().unwrap_or_default();
    let digits = tag.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The number of a file of a split model, as its name says: `prefix-00001-of-00003.gguf`.
struct SplitName<'a> {
    prefix: &'a str,
    index: u32,
    count: u32,
}

fn split(path: &str) -> Option<SplitName<'_>> {
    let number = |digits: &str| digits.parse().ok().filter(|_| digits.len() == 5);
    let (rest, count) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, index) = rest.rsplit_once('-')?;
    Some(SplitName { prefix, index: number(index)?, count: number(count)? })
}

/// All files of a model.
fn parts<'a>(file: &'a HubFile, files: &'a [HubFile]) -> Result<Vec<&'a HubFile>> {
    let Some(SplitName { prefix, count, .. }) = split(&file.path) else { return Ok(vec![file]) };
    let part = |index: u32| {
        let path = format!("{prefix}-{index:05}-of-{count:05}.gguf");
        let found = files.iter().find(|file| file.path == path);
        found.ok_or_else(|| Error::new(Code::NotFound, format!("{}: {path} is missing", file.path)))
    };
    (1..=count).map(part).collect()
}
