//! Mapping tokens between two vocabularies preserves the text.

use std::sync::Arc;

use crate::common::changed_vocabulary::ChangedVocabulary;
use crate::vocabulary::{Kind, Vocabulary};
use foredraft::engine::drafters::{Compatibility, Dictionary, VocabularyMap};
use foredraft::llama::{Model, ModelParams, Rollback, Token, Vocab};
use proptest::prelude::*;

fn load(path: &str) -> Arc<Model> {
    let params = ModelParams { vocab_only: true, ..ModelParams::new(path) };
    Arc::new(Model::load(&params, |_| true).unwrap_or_else(|error| panic!("{path}: {error}")))
}

struct Pair {
    name: String,
    target: Arc<Model>,
    draft: Arc<Model>,
    dictionary: Dictionary,
}

/// All pairs of vocabularies that differ in token ids, in which tokens they have, and in the tokenizer.
fn pairs() -> Vec<Pair> {
    let models = [
        ("shipped", crate::common::model("draft")),
        ("fewer", ChangedVocabulary::new("draft").without_every(3).shuffled().write("fewer-3")),
        ("SentencePiece", ChangedVocabulary::new("draft").sentence_piece().write("spm-vocabulary")),
        (
            "fewer of SentencePiece",
            ChangedVocabulary::new("draft").without_every(4).sentence_piece().write("spm-fewer"),
        ),
    ];
    let models = models.map(|(name, path)| (name, load(&path)));
    let mut pairs = Vec::new();
    for (from, target) in &models {
        for (to, draft) in &models {
            let (target, draft) = (Arc::clone(target), Arc::clone(draft));
            let dictionary = Dictionary::new(&target, &draft);
            pairs.push(Pair { name: format!("{from} to {to}"), target, draft, dictionary });
        }
    }
    pairs
}

impl Pair {
    fn map(&self, text: &[Token]) -> VocabularyMap {
        let mut map = VocabularyMap::new(&self.dictionary);
        map.follow(&self.dictionary, text);
        map
    }

    /// The target's tokens for `parts`, after BOS.
    fn tokens(&self, parts: &[Part]) -> Vec<Token> {
        let vocab = self.target.vocab();
        let mut tokens = vec![vocab.bos().expect("a BOS")];
        for part in parts {
            match part {
                Part::Text(text) => tokens.extend(vocab.tokenize(text.as_bytes(), false, false).expect("tokens")),
                Part::Special(name) => tokens.push(special(vocab, name)),
                Part::Any(number) => {
                    let token = (number % vocab.n_tokens()) as Token;
                    // Only tokens that are whole characters.
                    if std::str::from_utf8(vocab.text(token)).is_ok_and(|text| !text.is_empty()) {
                        tokens.push(token);
                    }
                }
            }
        }
        tokens
    }
}

fn special(vocab: &Vocab, name: &str) -> Token {
    match vocab.tokenize(name.as_bytes(), false, true).expect("tokens").as_slice() {
        [token] => *token,
        other => panic!("{name}: {other:?}"),
    }
}

/// The text of tokens, without the space that a tokenizer adds after a special token; special tokens become `\0` and a number.
fn text(vocab: &Vocab, tokens: &[Token]) -> Vec<u8> {
    let probe = vocab.tokenize(b"a", false, false).expect("tokens");
    let adds_space = vocab.piece(probe[0])[0] == b' ';
    let names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(|name| special(vocab, name));
    let mut bytes = Vec::new();
    let mut begins = true;
    for token in tokens {
        if let Some(number) = names.iter().position(|name| name == token) {
            bytes.extend([0, b'0' + number as u8]);
            begins = true;
            continue;
        }
        let piece = vocab.piece(*token);
        bytes.extend(if begins && adds_space { piece.strip_prefix(b" ").unwrap_or(piece) } else { piece });
        begins = false;
    }
    bytes
}

#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Special(&'static str),
    Any(usize),
}

fn part() -> impl Strategy<Value = Part> {
    let words = vec![
        "Once upon a time",
        " there was",
        " a child",
        " named",
        " Mia",
        ".",
        "\n",
        " ",
        "  ",
        "\n    return",
        " 12",
        "345",
        "<|im_end|>",
        "é",
        "日本語",
        " 😀",
        "don't",
        "Lantern",
        "_",
        "\"Hello,\" said",
        " \n\n ",
        "hedge",
        "hog",
    ];
    prop_oneof![
        8 => prop::sample::select(words).prop_map(|word| Part::Text(word.into())),
        1 => "[ -~]{1,12}".prop_map(Part::Text),
        1 => prop::sample::select(vec!["<|im_start|>", "<|im_end|>", "<|endoftext|>"]).prop_map(Part::Special),
        2 => any::<usize>().prop_map(Part::Any),
    ]
}

fn check<S: Strategy>(strategy: &S, test: impl Fn(S::Value) -> Result<(), TestCaseError>)
where
    S::Value: std::fmt::Debug,
{
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner.run(strategy, test).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn mapped_text_follows_appends_and_truncations() {
    let pairs = pairs();
    check(&prop::collection::vec((prop::collection::vec(part(), 0..8), any::<usize>()), 1..6), |steps| {
        for pair in &pairs {
            let mut map = VocabularyMap::new(&pair.dictionary);
            let mut all: Vec<Token> = Vec::new();
            for (parts, cut) in &steps {
                // Sometimes the end is truncated first.
                if cut % 3 == 0 {
                    all.truncate(cut / 3 % (all.len() + 1));
                    while std::str::from_utf8(&text(pair.target.vocab(), &all)).is_err() {
                        all.pop();
                    }
                }
                let begun = usize::from(!all.is_empty());
                for token in pair.tokens(parts).into_iter().skip(begun) {
                    all.push(token);
                    map.follow(&pair.dictionary, &all);
                }
                map.follow(&pair.dictionary, &all);
                let expected = text(pair.target.vocab(), &all);
                let shown = String::from_utf8_lossy(&expected).into_owned();
                prop_assert_eq!(text(pair.draft.vocab(), map.tokens()), expected, "{}: {:?}", pair.name, shown);
            }
        }
        Ok(())
    });
}

#[test]
fn drafted_text_is_mapped_to_the_targets_tokenization() {
    let pairs = pairs();
    check(
        &(prop::collection::vec(part(), 0..5), prop::collection::vec(part(), 1..8), 1..100_u8),
        |(before, parts, p)| {
            for pair in &pairs {
                let before = pair.map(&pair.tokens(&before));
                // The tokens that a model with the draft's vocabulary would generate.
                let expected = pair.tokens(&parts);
                let drafted = pair.map(&expected).tokens()[1..].to_vec();
                let drafted = [&[pair.draft.vocab().bos().expect("a BOS")], drafted.as_slice()].concat();
                let p = f32::from(p) / 100.0;
                let (tokens, confidence) = pair.dictionary.to_target(&before, &drafted, &vec![p; drafted.len()]);
                prop_assert_eq!(tokens.len(), confidence.len());
                let (ours, theirs) = (text(pair.target.vocab(), &tokens), text(pair.target.vocab(), &expected));
                prop_assert_eq!(String::from_utf8_lossy(&ours), String::from_utf8_lossy(&theirs), "{}", pair.name);
                for confidence in confidence {
                    prop_assert!(confidence > 0.0 && confidence <= p, "{}: {} {}", pair.name, confidence, p);
                }
            }
            Ok(())
        },
    );
}

/// For text that is tokenized as the target's tokenizer would.
#[test]
fn mapping_there_and_back_gives_the_same_tokens() {
    let pairs = pairs();
    check(&prop::collection::vec(part(), 1..12), |parts| {
        let words = parts.iter().map(|part| if let Part::Text(text) = part { text } else { "" });
        let words: String = words.collect();
        for pair in &pairs {
            let expected = pair.target.vocab().tokenize(words.as_bytes(), true, false).expect("tokens");
            let drafted = pair.map(&expected).tokens()[1..].to_vec();
            let before = pair.map(&expected[..1]);
            let (tokens, _) = pair.dictionary.to_target(&before, &drafted, &vec![1.0; drafted.len()]);
            prop_assert_eq!(&tokens, &expected[1..], "{}: {:?}", pair.name, words);
        }
        Ok(())
    });
}

/// Drafts continue text that ends inside a word, or inside a character.
#[test]
fn drafts_continue_in_the_middle_of_a_word_or_character() {
    for pair in pairs() {
        let (target, draft) = (pair.target.vocab(), pair.draft.vocab());
        let bytes = |text: &[u8]| -> Vec<Token> {
            let token = |byte: &u8| {
                let n = target.n_tokens() as Token;
                (0..n).find(|token| target.piece(*token) == [*byte]).expect("a token for each byte")
            };
            text.iter().map(token).collect()
        };
        let of_draft = |text: &str| -> Vec<Token> {
            // Without the space that the tokenizer may add.
            let space = draft.tokenize(b"\n", false, false).expect("tokens").len();
            draft.tokenize(format!("\n{text}").as_bytes(), false, false).expect("tokens")[space..].to_vec()
        };
        let start = target.tokenize("Once upon a time".as_bytes(), true, false).expect("tokens");
        for (end, drafted, expected) in [
            (&b""[..], " there was a child", &b" there was a child"[..]),
            (b" th", "ere was", b"ere was"),
            (b" caf\xC3", "é.", b"\xA9."),
            (b" caf\xC3", "e.", b""),
            (b" \xE6", "日本", b"\x97\xA5\xE6\x9C\xAC"),
            (b" \xE6\x97", "日", b"\xA5"),
            (b" \xF0\x9F\x98", "😀 a", b"\x80 a"),
        ] {
            let context = [start.as_slice(), &bytes(end)].concat();
            let after = pair.map(&context);
            let drafted = of_draft(drafted);
            let (tokens, confidence) = pair.dictionary.to_target(&after, &drafted, &vec![0.9; drafted.len()]);
            let pieces: Vec<u8> = tokens.iter().flat_map(|token| target.piece(*token)).copied().collect();
            assert_eq!(pieces, expected, "{}: {end:?}", pair.name);
            assert_eq!(confidence.len(), tokens.len());
            // Part of a character is proposed only if the text has the part before it.
            let (tokens, _) = pair.dictionary.to_target(&after, drafted.get(..1).unwrap_or(&[]), &[0.9]);
            let pieces: Vec<u8> = tokens.iter().flat_map(|token| target.piece(*token)).copied().collect();
            let all = [&text(target, &context), pieces.as_slice()].concat();
            assert!(pieces.is_empty() || std::str::from_utf8(&all).is_ok(), "{}: {end:?} {pieces:?}", pair.name);
        }
    }
}

#[test]
fn mapped_token_probability_is_the_product_of_its_parts() {
    let target = load(&crate::common::model("target"));
    let draft = load(&ChangedVocabulary::new("draft").sentence_piece().write("spm-vocabulary"));
    let spelling = load(&ChangedVocabulary::new("draft").without_every(1).write("letters"));
    let dictionary = Dictionary::new(&target, &spelling);
    let after = VocabularyMap::new(&dictionary);
    let drafted = spelling.vocab().tokenize(b"time there", false, false).expect("tokens");
    assert_eq!(drafted.len(), 10, "letters");
    let p: Vec<f32> = (0..10).map(|index| 0.9 - index as f32 / 20.0).collect();
    let expected = target.vocab().tokenize(b"time there", false, false).expect("tokens");
    let [.., last] = expected.as_slice() else { panic!("no tokens") };
    assert_eq!(target.vocab().piece(*last), b" there");
    let (tokens, confidence) = dictionary.to_target(&after, &drafted, &p);
    assert_eq!(tokens, expected);
    let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-6, "{a} {b}");
    near(confidence[..confidence.len() - 1].iter().product(), p[..4].iter().product());
    near(*confidence.last().expect("one"), p[4..].iter().product());
    // " the" may continue as " there", which this draft has to spell; a following "." rules that out.
    for (drafted, expected) in [(" the", 0.5), (" the.", 1.0)] {
        let drafted = spelling.vocab().tokenize(drafted.as_bytes(), false, false).expect("tokens");
        let (tokens, confidence) = dictionary.to_target(&after, &drafted, &vec![1.0; drafted.len()]);
        assert_eq!(target.vocab().piece(tokens[0]), b" the");
        near(confidence[0], expected);
    }
    // A draft with a token " there" that proposes " the" means " the".
    let dictionary = Dictionary::new(&target, &draft);
    let the = draft.vocab().tokenize(b"the", false, false).expect("tokens");
    let mut after = VocabularyMap::new(&dictionary);
    after.follow(&dictionary, &target.vocab().tokenize(b"time", false, false).expect("tokens"));
    let (tokens, confidence) = dictionary.to_target(&after, &the, &[0.7]);
    assert_eq!((tokens.len(), target.vocab().piece(tokens[0])), (1, &b" the"[..]));
    near(confidence[0], 0.7);
}

#[test]
fn removing_tokens_removes_their_mapped_tokens() {
    let pairs = pairs();
    let lengths = (any::<usize>(), any::<usize>(), any::<usize>());
    check(
        &(prop::collection::vec(part(), 1..30), lengths, prop::collection::vec(part(), 0..3)),
        |(parts, (a, b, c), more)| {
            for pair in &pairs {
                let mut all = pair.tokens(&parts);
                let mut map = pair.map(&all);
                let mut own = map.tokens().to_vec();
                let most = 1 + c % own.len();
                let keep = a % all.len();
                let dropped = b % (all.len() - keep + 1);
                let (from, gone) = map.shift(keep, dropped);
                own.drain(from..from + gone);
                prop_assert_eq!(map.tokens(), &own, "{}", pair.name);
                all.drain(keep..keep + dropped);
                let is_broken = std::str::from_utf8(&text(pair.target.vocab(), &all)).is_err();
                let (from, gone) = map.shorten(most);
                own.drain(from..from + gone);
                prop_assert_eq!(map.tokens(), &own, "{}", pair.name);
                prop_assert!(own.len() <= most, "{} {}", own.len(), most);
                // The map keeps following the text after its beginning was removed.
                all.extend(pair.tokens(&more).iter().skip(1));
                map.follow(&pair.dictionary, &all);
                let (whole, rest) = (text(pair.target.vocab(), &all), text(pair.draft.vocab(), map.tokens()));
                let end = text(pair.target.vocab(), &all[all.len().saturating_sub(2)..]);
                let end = end.strip_prefix(b" ").unwrap_or(&end);
                // Everything but BOS was removed.
                let all_gone = rest.get(2..).is_some_and(|rest| whole.ends_with(rest));
                prop_assert!(rest.ends_with(end) || all_gone || is_broken, "{}: {:?} {:?}", pair.name, whole, rest);
            }
            Ok(())
        },
    );
}

#[test]
fn compatibility_report_names_mapped_and_unsupported_vocabularies() {
    let shipped = load(&crate::common::model("draft"));
    let kind = |text: &str| if text == "[UNK]" { Kind::Unknown } else { Kind::Control };
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let mut tokens: Vec<_> = special.iter().map(|text| ((*text).to_owned(), 0.0, kind(text))).collect();
    tokens.push(("\u{2581}the".to_owned(), 0.0, Kind::Normal));
    let ids = vec![("cls_token_id", 2), ("seperator_token_id", 3), ("unknown_token_id", 1)];
    let wpm = Vocabulary { model: "bert", pre: None, tokens, merges: Vec::new(), flags: Vec::new(), ids };
    let wpm = load(&wpm.write("map-wpm"));
    for (draft, is_cross_vocabulary, reason) in [
        (&shipped, false, None),
        (&load(&ChangedVocabulary::new("draft").shuffled().write("shuffled-vocabulary")), true, None),
        (&load(&ChangedVocabulary::new("draft").without_every(100).write("fewer-vocabulary")), true, None),
        (&load(&ChangedVocabulary::new("draft").sentence_piece().write("spm-vocabulary")), true, None),
        (&wpm, false, Some("the draft's vocabulary is of type wpm, the target's of type bpe")),
    ] {
        let report = Compatibility::of((&shipped, Rollback::Anywhere), (draft, Rollback::Anywhere), 512);
        assert_eq!((report.is_cross_vocabulary, report.reason.as_deref()), (is_cross_vocabulary, reason), "{report:?}");
    }
}
