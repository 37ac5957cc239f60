//! A model's vocabulary: tokenization, detokenization, and special tokens.

use std::collections::HashMap;
use std::ffi::c_char;
use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use crate::Token;
use crate::guard::{self, ErrorBuffer};
use crate::model::pieces::TokenPieces;
use crate::model::special::{Fragment, SpecialToken, SpecialTokens};
use crate::threads::large_stack;
use foredraft_base::error::{Error, Result};
use foredraft_base::memory;
use foredraft_native::{foredraft_guarded_detokenize, foredraft_guarded_tokenize};

foredraft_base::words! {
    /// The tokenizer families of llama.cpp.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum VocabKind {
        /// No vocabulary: the model cannot tokenize.
        None => "none",
        /// SentencePiece BPE with byte fallback (LLaMA).
        Spm => "spm",
        /// Byte-level BPE (GPT-2).
        Bpe => "bpe",
        /// WordPiece (BERT).
        Wpm => "wpm",
        /// Unigram (T5).
        Ugm => "ugm",
        /// Greedy (RWKV), and future ones of llama.cpp.
        Other => "other",
    }
}

/// The tokens for fill-in-the-middle prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fim {
    /// Precedes the text before the gap.
    pub prefix: Token,
    /// Precedes the text after the gap.
    pub suffix: Token,
    /// Precedes the text in the gap.
    pub middle: Token,
    /// Precedes the name of the repository.
    pub repository: Option<Token>,
    /// Precedes a file.
    pub separator: Option<Token>,
}

/// For many BPE vocabularies, llama.cpp splits texts with `std::regex`, which recurses for each character of a match. Texts with
/// longer possible matches need a large stack.
const MAX_MATCH_ON_STACK: usize = 1 << 10;
const STACK: usize = 1 << 20;
/// Three times the measured stack use of a character.
const STACK_PER_BYTE: usize = 1 << 10;

/// The vocabulary of a [`Model`](crate::Model), which owns it.
pub struct Vocab {
    ptr: *const sys::llama_vocab,
    kind: VocabKind,
    pieces: Arc<TokenPieces>,
    end_of_generation: Vec<bool>,
    /// Control and unknown tokens, which have no text in a completion.
    hidden: Vec<bool>,
    /// Control tokens, which structure the model's input. Text of a user must not contain them.
    control: Vec<bool>,
    specials: SpecialTokens,
    suppressed: Vec<Token>,
    /// The token for a character that the vocabulary does not have (`[UNK]` of BERT), if that is a control token.
    unknown: Option<Token>,
}

// SAFETY: the vocabulary is not written after loading, and llama.cpp documents tokenization as thread-safe.
unsafe impl Send for Vocab {}
// SAFETY: as above.
unsafe impl Sync for Vocab {}

/// A vocabulary that is alive, because a borrowed [`Vocab`] waits until the call with it has returned.
#[derive(Clone, Copy)]
struct LivingVocab(*const sys::llama_vocab);

// SAFETY: llama.cpp's functions of a vocabulary only read it.
unsafe impl Send for LivingVocab {}

impl LivingVocab {
    fn tokenize(self, text: &[u8], add_special: bool, parse_special: bool) -> Result<Vec<Token>> {
        let too_long = || Error::invalid(format!("a text of {} bytes is too long to tokenize", text.len()));
        let text_len = i32::try_from(text.len()).map_err(|_| too_long())?;
        let mut tokens = memory::filled(text.len().saturating_add(16), 0, "tokenizing")?;
        loop {
            let capacity = i32::try_from(tokens.len()).map_err(|_| too_long())?;
            let mut why = ErrorBuffer::new();
            // SAFETY: `text` is readable and `tokens` writable for the given lengths, and the vocabulary is alive. The guard catches
            // exceptions.
            let count = unsafe {
                foredraft_guarded_tokenize(
                    self.0,
                    text.as_ptr().cast::<c_char>(),
                    text_len,
                    tokens.as_mut_ptr(),
                    capacity,
                    add_special,
                    parse_special,
                    why.ptr(),
                    why.size(),
                )
            };
            match usize::try_from(count) {
                Ok(count) => {
                    tokens.truncate(count);
                    return Ok(tokens);
                }
                Err(_) if count == i32::MIN => {
                    return Err(why.error("the text cannot be tokenized"));
                }
                Err(_) => tokens.resize(count.unsigned_abs() as usize, 0),
            }
        }
    }
}

impl Vocab {
    /// # Safety
    /// `ptr` is a loaded model's vocabulary and outlives the result.
    /// `control`: the tokens that the model's file calls control tokens, ascending. llama.cpp gives some of them another type.
    pub(crate) unsafe fn new(ptr: *const sys::llama_vocab, control: &[Token]) -> Result<Vocab> {
        // SAFETY: guaranteed by the caller.
        let (kind, n_tokens) = unsafe { (sys::llama_vocab_type(ptr), sys::llama_vocab_n_tokens(ptr)) };
        let kind = match kind {
            sys::LLAMA_VOCAB_TYPE_NONE => VocabKind::None,
            sys::LLAMA_VOCAB_TYPE_SPM => VocabKind::Spm,
            sys::LLAMA_VOCAB_TYPE_BPE => VocabKind::Bpe,
            sys::LLAMA_VOCAB_TYPE_WPM => VocabKind::Wpm,
            sys::LLAMA_VOCAB_TYPE_UGM => VocabKind::Ugm,
            _ => VocabKind::Other,
        };
        let n = usize::try_from(n_tokens).unwrap_or(0);
        let mut vocab = Vocab {
            ptr,
            kind,
            pieces: Arc::default(),
            end_of_generation: Vec::with_capacity(n),
            hidden: Vec::with_capacity(n),
            control: Vec::with_capacity(n),
            specials: SpecialTokens::default(),
            suppressed: Vec::new(),
            unknown: None,
        };
        let mut specials = Vec::new();
        if kind != VocabKind::None {
            let mut count = 0;
            // SAFETY: the vocabulary is alive, writes the length, and owns the list, which is copied at once.
            let list = unsafe {
                let first = sys::llama_vocab_get_suppress_tokens(ptr, &raw mut count);
                let count = usize::try_from(count).unwrap_or(0);
                if first.is_null() { &[] } else { std::slice::from_raw_parts(first, count) }
            };
            vocab.suppressed.extend(list.iter().filter(|token| (0..n_tokens).contains(*token)));
        }
        let (mut pieces, mut buffer) = (TokenPieces::default(), vec![0_u8; 256]);
        for token in 0..n_tokens {
            let len = if kind == VocabKind::None { 0 } else { vocab.copy_piece(token, &mut buffer)? };
            if !pieces.push(buffer.get(..len).unwrap_or(&[])) {
                return Err(Error::model("vocabulary of over 4 GiB"));
            }
            // llama.cpp asserts that there is a vocabulary.
            let (eog, attr) = match kind {
                VocabKind::None => (false, 0),
                // SAFETY: `token` is below the vocabulary's size.
                _ => unsafe { (sys::llama_vocab_is_eog(ptr, token), sys::llama_vocab_get_attr(ptr, token)) },
            };
            let has = |attrs: sys::llama_token_attr| attr & attrs != 0;
            let hidden = has(sys::LLAMA_TOKEN_ATTR_CONTROL | sys::LLAMA_TOKEN_ATTR_UNKNOWN);
            vocab.end_of_generation.push(eog);
            vocab.hidden.push(hidden);
            let is_control_in_file = control.binary_search(&token).is_ok();
            vocab.control.push(has(sys::LLAMA_TOKEN_ATTR_CONTROL) || is_control_in_file);
            if hidden || has(sys::LLAMA_TOKEN_ATTR_USER_DEFINED) {
                specials.push(SpecialToken {
                    token,
                    // SAFETY: the id is in the vocabulary, and its strings live as long as the vocabulary.
                    text: unsafe { guard::text(sys::llama_vocab_get_text(ptr, token)) }.into_bytes(),
                    is_control: hidden || eog || is_control_in_file,
                    strips_left: has(sys::LLAMA_TOKEN_ATTR_LSTRIP),
                    strips_right: has(sys::LLAMA_TOKEN_ATTR_RSTRIP),
                });
            }
        }
        vocab.pieces = Arc::new(pieces);
        vocab.specials = SpecialTokens::new(specials);
        if kind != VocabKind::None {
            // Characters that few vocabularies have; some tokenizers drop some of them. A vocabulary without a token for them may fail.
            let tokens =
                vocab.tokenize("\u{a66e} \u{10380} \u{2603} \u{10fffd}".as_bytes(), false, false).unwrap_or_default();
            vocab.unknown = tokens.into_iter().find(|token| vocab.is_control(*token));
        }
        Ok(vocab)
    }

    /// Copies the piece of `token` (for special tokens their text) to the start of `buffer`, which grows as needed.
    fn copy_piece(&self, token: Token, buffer: &mut Vec<u8>) -> Result<usize> {
        loop {
            let size = i32::try_from(buffer.len()).unwrap_or(i32::MAX);
            // SAFETY: `token` is below the vocabulary's size, `buffer` holds `size` bytes, and the vocabulary is alive.
            let len = unsafe {
                sys::llama_token_to_piece(self.ptr, token, buffer.as_mut_ptr().cast::<c_char>(), size, 0, true)
            };
            match usize::try_from(len) {
                Ok(len) => return Ok(len),
                Err(_) if len == i32::MIN => return Err(Error::model(format!("token {token} has no piece"))),
                Err(_) => buffer.resize(len.unsigned_abs() as usize, 0),
            }
        }
    }

    /// The tokenizer family.
    pub fn kind(&self) -> VocabKind {
        self.kind
    }

    /// The number of tokens. Ids are `0..n_tokens()`.
    pub fn n_tokens(&self) -> usize {
        self.pieces.n_tokens()
    }

    /// Whether `token` is an id of this vocabulary.
    pub fn contains(&self, token: Token) -> bool {
        self.pieces.contains(token)
    }

    /// The bytes of `token` (for special tokens their text). Empty for an id outside the vocabulary.
    pub fn piece(&self, token: Token) -> &[u8] {
        self.pieces.piece(token)
    }

    /// The bytes of all tokens.
    pub fn pieces(&self) -> &Arc<TokenPieces> {
        &self.pieces
    }

    /// The bytes that `token` adds to a completion: none for control tokens.
    pub fn text(&self, token: Token) -> &[u8] {
        let hidden = usize::try_from(token).ok().and_then(|index| self.hidden.get(index));
        if hidden == Some(&false) { self.piece(token) } else { &[] }
    }

    /// The bytes that `token` adds to a completion. `special`: those of control tokens, too.
    pub fn shown(&self, token: Token, special: bool) -> &[u8] {
        if special { self.piece(token) } else { self.text(token) }
    }

    /// The tokens that must not be generated (`tokenizer.ggml.suppress_tokens`).
    pub fn suppressed_tokens(&self) -> &[Token] {
        &self.suppressed
    }

    /// Whether `token` ends the generation (EOS, end of turn, ...).
    pub fn is_eog(&self, token: Token) -> bool {
        usize::try_from(token).ok().and_then(|index| self.end_of_generation.get(index)).copied().unwrap_or(false)
    }

    /// All tokens that end the generation.
    pub fn eog_tokens(&self) -> impl Iterator<Item = Token> + '_ {
        (0..).zip(&self.end_of_generation).filter(|(_, eog)| **eog).map(|(token, _)| token)
    }

    /// The beginning-of-sentence token.
    pub fn bos(&self) -> Option<Token> {
        // SAFETY: the vocabulary is alive, also in all getters below.
        self.known(unsafe { sys::llama_vocab_bos(self.ptr) })
    }

    /// The end-of-sentence token.
    pub fn eos(&self) -> Option<Token> {
        // SAFETY: see `bos`.
        self.known(unsafe { sys::llama_vocab_eos(self.ptr) })
    }

    /// The end-of-turn token.
    pub fn eot(&self) -> Option<Token> {
        // SAFETY: see `bos`.
        self.known(unsafe { sys::llama_vocab_eot(self.ptr) })
    }

    /// The newline token.
    pub fn newline(&self) -> Option<Token> {
        // SAFETY: see `bos`.
        self.known(unsafe { sys::llama_vocab_nl(self.ptr) })
    }

    /// The fill-in-the-middle tokens. `None`: prefix, suffix or middle is missing.
    pub fn fim(&self) -> Option<Fim> {
        // SAFETY: see `bos`.
        unsafe {
            Some(Fim {
                prefix: self.known(sys::llama_vocab_fim_pre(self.ptr))?,
                suffix: self.known(sys::llama_vocab_fim_suf(self.ptr))?,
                middle: self.known(sys::llama_vocab_fim_mid(self.ptr))?,
                repository: self.known(sys::llama_vocab_fim_rep(self.ptr)),
                separator: self.known(sys::llama_vocab_fim_sep(self.ptr)),
            })
        }
    }

    /// Whether a text begins with BOS.
    pub fn adds_bos(&self) -> bool {
        // SAFETY: see `bos`.
        unsafe { sys::llama_vocab_get_add_bos(self.ptr) }
    }

    /// Whether a text ends with EOS.
    pub fn adds_eos(&self) -> bool {
        // SAFETY: see `bos`.
        unsafe { sys::llama_vocab_get_add_eos(self.ptr) }
    }

    /// The token between two texts.
    pub fn sep(&self) -> Option<Token> {
        // SAFETY: see `bos`.
        self.known(unsafe { sys::llama_vocab_sep(self.ptr) })
    }

    /// The token that stands for a hidden one, of an encoder.
    pub fn mask(&self) -> Option<Token> {
        // SAFETY: see `bos`.
        self.known(unsafe { sys::llama_vocab_mask(self.ptr) })
    }

    /// Whether the token [`Vocab::sep`] is between two texts.
    pub fn adds_sep(&self) -> bool {
        // SAFETY: see `bos`.
        unsafe { sys::llama_vocab_get_add_sep(self.ptr) }
    }

    fn known(&self, token: Token) -> Option<Token> {
        self.contains(token).then_some(token)
    }

    /// The text of `token` in the model file. Empty for an id outside the vocabulary.
    pub fn raw_text(&self, token: Token) -> String {
        if !self.contains(token) || self.kind == VocabKind::None {
            return String::new();
        }
        // SAFETY: the id is in the vocabulary, and its strings live as long as the vocabulary.
        unsafe { guard::text(sys::llama_vocab_get_text(self.ptr, token)) }
    }

    /// Tokenizes `text`. `add_special`: with BOS and EOS as the model requires. `parse_special`: the text of special tokens becomes these
    /// tokens. Accepts any bytes; invalid UTF-8 becomes U+FFFD or byte tokens. Callable from any thread. Takes time proportional to the
    /// text.
    ///
    /// # Errors
    /// The model has no vocabulary, the text is over 2 GiB, or there is no memory for the stack that its longest word needs.
    pub fn tokenize(&self, text: &[u8], add_special: bool, parse_special: bool) -> Result<Vec<Token>> {
        if self.kind == VocabKind::None {
            return Err(Error::model("the model has no vocabulary"));
        }
        if !self.specials.are_many(text, parse_special) {
            return self.tokenize_at_once(text, add_special, parse_special);
        }
        let data: Vec<usize> = if parse_special { Vec::new() } else { (1..=text.len()).collect() };
        let mut tokens = Vec::new();
        for part in self.specials.partition(text, &data, &[]) {
            match part {
                Fragment::Special(token) => tokens.push(token),
                Fragment::Text(range) => {
                    tokens.extend(self.tokenize_at_once(text.get(range).unwrap_or(&[]), false, false)?);
                }
            }
        }
        if add_special { self.with_ends(tokens) } else { Ok(tokens) }
    }

    /// As [`Vocab::tokenize`], with llama.cpp's partition of the text at its special tokens.
    fn tokenize_at_once(&self, text: &[u8], add_special: bool, parse_special: bool) -> Result<Vec<Token>> {
        let vocab = LivingVocab(self.ptr);
        let longest = longest_run(text);
        let size = STACK.saturating_add(longest.saturating_mul(STACK_PER_BYTE));
        if self.kind != VocabKind::Bpe || longest <= MAX_MATCH_ON_STACK || large_stack::left() >= size {
            return vocab.tokenize(text, add_special, parse_special);
        }
        let text = text.to_vec();
        large_stack::with(size, "tokenizing", move || vocab.tokenize(&text, add_special, parse_special))
    }

    /// The special tokens by text.
    pub fn specials(&self) -> &SpecialTokens {
        &self.specials
    }

    /// Whether `token` is a control token.
    pub fn is_control(&self, token: Token) -> bool {
        usize::try_from(token).ok().and_then(|index| self.control.get(index)).copied().unwrap_or(false)
    }

    /// Tokenizes a text that contains data: as [`Vocab::tokenize`] with `add_special` and `parse_special`, but no control token and none of
    /// `marks` contains a tainted character. `tainted` has the byte offsets after these characters, `marks` the template's marks, both
    /// ascending (see [`SpecialTokens`]).
    ///
    /// # Errors
    /// Those of [`Vocab::tokenize`].
    pub fn tokenize_tainted(&self, text: &[u8], tainted: &[usize], marks: &[Token]) -> Result<Vec<Token>> {
        if tainted.is_empty() || self.kind == VocabKind::None {
            return self.tokenize(text, true, true);
        }
        self.with_ends(self.tokenize_tainted_alone(text, tainted, marks)?)
    }

    /// As [`Vocab::tokenize_tainted`], without the tokens that every text begins and ends with.
    ///
    /// # Errors
    /// Those of [`Vocab::tokenize`].
    pub fn tokenize_tainted_alone(&self, text: &[u8], tainted: &[usize], marks: &[Token]) -> Result<Vec<Token>> {
        if tainted.is_empty() || self.kind == VocabKind::None {
            return self.tokenize(text, false, true);
        }
        let mut tokens = Vec::new();
        let mut spellings = HashMap::new();
        for part in self.specials.partition(text, tainted, marks) {
            match part {
                Fragment::Special(token) => tokens.push(token),
                Fragment::Text(range) => {
                    tokens.extend(self.tokenize_plain(text.get(range).unwrap_or(&[]), marks, &mut spellings)?);
                }
            }
        }
        Ok(tokens)
    }

    /// Tokenizes plain data: as [`Vocab::tokenize`] without `parse_special`, and without the control tokens that llama.cpp's tokenizers
    /// return nevertheless (if merges result in a control token's text, if llama.cpp has given it another type, and with RWKV's
    /// tokenizer). Those that the text does not spell stay: the tokenizer needs them for unknown characters.
    ///
    /// # Errors
    /// Those of [`Vocab::tokenize`].
    pub fn tokenize_data(&self, text: &[u8], add_special: bool) -> Result<Vec<Token>> {
        let tokens = self.tokenize_plain(text, &[], &mut HashMap::new())?;
        if add_special { self.with_ends(tokens) } else { Ok(tokens) }
    }

    /// As [`Vocab::tokenize_data`], and without these marks. `spellings` are those of the tokens until now.
    fn tokenize_plain(
        &self,
        text: &[u8],
        marks: &[Token],
        spellings: &mut HashMap<Token, Vec<Token>>,
    ) -> Result<Vec<Token>> {
        let is_guarded =
            |token: Token| marks.binary_search(&token).is_ok() || self.is_control(token) && self.unknown != Some(token);
        let tokens = self.tokenize(text, false, false)?;
        if !tokens.iter().any(|token| is_guarded(*token)) {
            return Ok(tokens);
        }
        let mut unspelled = HashMap::new();
        let mut plain = Vec::with_capacity(tokens.len());
        for token in tokens {
            let mut stays = || *unspelled.entry(token).or_insert_with(|| !contains(text, self.piece(token)));
            if !is_guarded(token) || stays() {
                plain.push(token);
            } else {
                plain.extend(spellings.entry(token).or_insert_with(|| self.spelled(token, &is_guarded)).iter());
            }
        }
        Ok(plain)
    }

    /// Adds the tokens that every text begins and ends with.
    ///
    /// # Errors
    /// Those of [`Vocab::tokenize`].
    pub fn with_ends(&self, tokens: Vec<Token>) -> Result<Vec<Token>> {
        let ends = self.tokenize(b"", true, true)?;
        let (before, after) = ends.split_at(usize::from(self.adds_bos()).min(ends.len()));
        Ok([before, &tokens, after].concat())
    }

    /// Spells the text of a token with tokens of one character, or of one byte, that are not guarded. Characters without either are
    /// omitted.
    fn spelled(&self, token: Token, is_guarded: &impl Fn(Token) -> bool) -> Vec<Token> {
        let tokens = (0..).zip(&self.control).filter(|(_, control)| !**control).map(|(token, _)| token);
        let tokens: Vec<Token> = tokens.filter(|token| self.piece(*token).len() <= 4 && !is_guarded(*token)).collect();
        let find = |piece: &[u8]| tokens.iter().copied().find(|token| self.piece(*token) == piece);
        let text = String::from_utf8_lossy(self.piece(token)).into_owned();
        let mut tokens = Vec::new();
        for c in text.chars() {
            let piece = c.encode_utf8(&mut [0; 4]).as_bytes().to_vec();
            match find(&piece) {
                Some(token) => tokens.push(token),
                None => tokens.extend(piece.iter().filter_map(|byte| find(&[*byte]))),
            }
        }
        tokens
    }

    /// Returns the text of `tokens`. `special`: includes the text of special tokens.
    ///
    /// # Errors
    /// The model has no vocabulary, a token is not in it, or the text is over 2 GiB.
    pub fn detokenize(&self, tokens: &[Token], special: bool) -> Result<Vec<u8>> {
        if self.kind == VocabKind::None {
            return Err(Error::model("the model has no vocabulary"));
        }
        if let Some(token) = tokens.iter().find(|token| !self.contains(**token)) {
            return Err(Error::invalid(format!(
                "tokens: token {token} is not in the vocabulary of {} tokens",
                self.n_tokens()
            )));
        }
        let n_tokens = i32::try_from(tokens.len())
            .map_err(|_| Error::invalid(format!("tokens: {} are too many", tokens.len())))?;
        let length = tokens.iter().map(|token| self.piece(*token).len()).sum::<usize>() + 16;
        let mut text = memory::filled(length, 0_u8, "detokenizing")?;
        loop {
            let capacity = i32::try_from(text.len()).map_err(|_| Error::invalid("tokens: their text is over 2 GiB"))?;
            let mut why = ErrorBuffer::new();
            // SAFETY: as in `tokenize`, and all ids are in the vocabulary.
            let len = unsafe {
                foredraft_guarded_detokenize(
                    self.ptr,
                    tokens.as_ptr(),
                    n_tokens,
                    text.as_mut_ptr().cast::<c_char>(),
                    capacity,
                    special,
                    why.ptr(),
                    why.size(),
                )
            };
            match usize::try_from(len) {
                Ok(len) => {
                    text.truncate(len);
                    return Ok(text);
                }
                Err(_) if len == i32::MIN => {
                    return Err(why.error("the tokens have no text"));
                }
                Err(_) => text.resize(len.unsigned_abs() as usize, 0),
            }
        }
    }
}

impl std::fmt::Debug for Vocab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocab").field("kind", &self.kind).field("n_tokens", &self.n_tokens()).finish()
    }
}

/// Whether the text contains this piece, as it is or without the space that it may begin with.
fn contains(text: &[u8], piece: &[u8]) -> bool {
    let piece = piece.strip_prefix(b" ").unwrap_or(piece);
    !piece.is_empty() && text.windows(piece.len()).any(|window| window == piece)
}

/// The length of the longest line, including the whitespace and line ends after it. No tokenizer pattern matches words of two lines.
fn longest_run(text: &[u8]) -> usize {
    let ends = text.windows(2).zip(1..).filter_map(|(pair, at)| match pair {
        [b'\n', next] if !next.is_ascii_whitespace() => Some(at),
        _ => None,
    });
    let (mut longest, mut start) = (0, 0);
    for end in ends.chain([text.len()]) {
        longest = longest.max(end - start);
        start = end;
    }
    longest
}
