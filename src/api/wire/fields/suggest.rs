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
            let edits = distance(&word, &letters);
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

fn normal(word: &str) -> Vec<char> {
    word.trim_start_matches('-').chars().flat_map(char::to_lowercase).map(|c| if c == '-' { '_' } else { c }).collect()
}

/// The Damerau-Levenshtein distance in its "optimal string alignment" form: inserting, deleting or replacing a letter, or swapping
/// two neighbours, is one edit, and no letter is edited twice.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    let mut previous_a = None;
    for (i, &letter_a) in a.iter().enumerate() {
        let mut row = Vec::with_capacity(b.len() + 1);
        let mut left = i + 1;
        row.push(left);
        let mut previous_b = None;
        for (j, &letter_b) in b.iter().enumerate() {
            let at = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX / 2);
            let mut best = (at(&above, j) + usize::from(letter_a != letter_b)).min(at(&above, j + 1) + 1).min(left + 1);
            if i > 0 && j > 0 && previous_a == Some(letter_b) && previous_b == Some(letter_a) {
                best = best.min(at(&before, j - 1) + 1);
            }
            row.push(best);
            left = best;
            previous_b = Some(letter_b);
        }
        before = above;
        above = row;
        previous_a = Some(letter_a);
    }
    above.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distances_are_computed() {
        let check = |a: &str, b: &str, expected: usize| {
            let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
            assert_eq!(distance(&a, &b), expected, "{a:?} {b:?}");
            assert_eq!(distance(&b, &a), expected, "{b:?} {a:?}");
        };
        check("", "", 0);
        check("", "abc", 3);
        check("abc", "abc", 0);
        check("abc", "abd", 1);
        check("abc", "acb", 1);
        check("abcd", "acbde", 2);
        check("kitten", "sitting", 3);
        check("ca", "abc", 3); // the unrestricted distance would be 2
        check("temprature", "temperature", 1);
        check("größe", "grösse", 2);
    }

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
