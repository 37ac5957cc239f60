//! "Did you mean ...?": the known word nearest to an unknown one.

/// Longer words get no suggestion, because the cost of a comparison is the product of the lengths.
const MAX_LEN: usize = 64;

/// The word of `known` with the smallest edit distance to `word`, if the distance is small enough: 1, or up to 2 or 3 for words of six or
/// nine letters. Case and leading dashes are ignored, and `-` equals `_`. The first of equally near words is returned.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > MAX_LEN * 4 {
        return None;
    }
    let word = normal(word);
    if word.is_empty() || word.len() > MAX_LEN {
        return None;
    }
    known
        .into_iter()
        .filter_map(|candidate| {
            let letters = normal(candidate);
            let limit = (word.len().max(letters.len()) / 3).clamp(1, 3);
            if word.len().abs_diff(letters.len()) > limit {
                return None;
            }
            let edits = strsim::osa_distance(&word, &letters);
            // As many edits as letters would replace the whole word.
            (edits <= limit && edits < word.len().min(letters.len())).then_some((edits, candidate))
        })
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// " (did you mean "x"?)" with the nearest known word, or nothing.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |known| format!(" (did you mean {known:?}?)"))
}

fn normal(word: &str) -> String {
    word.trim_start_matches('-').chars().flat_map(char::to_lowercase).map(|c| if c == '-' { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_key_is_suggested() {
        let known = ["temperature", "top_k", "top_p", "n_predict", "min_p", "stop", "seed", "n_ctx", "-m", "-md"];
        let check = |word: &str, expected: Option<&str>| assert_eq!(nearest(word, known), expected, "{word}");
        check("temprature", Some("temperature"));
        check("Temperature", Some("temperature"));
        check("tempretaure", Some("temperature"));
        check("topk", Some("top_k"));
        check("top-k", Some("top_k"));
        check("n_perdict", Some("n_predict"));
        check("nctx", Some("n_ctx"));
        check("sede", Some("seed"));
        check("--top-q", Some("top_k"));
        check("-mmd", Some("-md"));
        check("-x", None);
        check("stat", None);
        check("frequency", None);
        check("xyz", None);
        check("q", None);
        check("", None);
        check(&"top_k".repeat(100_000), None);
    }
}
