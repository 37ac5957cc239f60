//! GBNF grammars: which tokens may follow.
//!
//! llama.cpp's grammar sampler throws on a text that it did not expect and asserts when it is used after that, so
//! this wrapper asks before it accepts, and refuses everything once an acceptance failed.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use super::guard::{Why, foredraft_sampler_apply, foredraft_sampler_clone};
use super::{Model, Token, VocabKind};
use crate::error::{Code, Error, Result};

/// A candidate token as llama.cpp's samplers see it.
pub type TokenData = sys::llama_token_data;

/// The longest grammar in bytes.
const MAX_GRAMMAR: usize = 1 << 20;
/// llama.cpp parses nested parentheses and checks chains of rules by recursion: stack for each byte of grammar.
const STACK_PER_BYTE: usize = 512;

/// A grammar and how far the text has come in it.
#[derive(Debug)]
pub struct Grammar {
    ptr: NonNull<sys::llama_sampler>,
    model: Arc<Model>,
    /// Set when an acceptance failed: the state is undefined from then on.
    broken: bool,
}

// SAFETY: a sampler has no thread affinity, and `&mut self` keeps it to one thread at a time.
unsafe impl Send for Grammar {}

impl Grammar {
    /// Compiles `gbnf`, whose start symbol is `root`.
    pub fn new(model: &Arc<Model>, gbnf: &str) -> Result<Grammar> {
        let refuse = |why: &str| Error::invalid(format!("grammar: {why}"));
        if model.vocab().kind() == VocabKind::None {
            return Err(refuse("the model has no vocabulary"));
        }
        if gbnf.trim().is_empty() {
            return Err(refuse("is empty"));
        }
        if gbnf.len() > MAX_GRAMMAR {
            return Err(refuse(&format!("{} bytes are more than the {MAX_GRAMMAR} allowed", gbnf.len())));
        }
        super::gbnf::check(gbnf).map_err(|why| refuse(&why))?;
        let text = CString::new(gbnf).map_err(|_| refuse("contains NUL"))?;
        let compile = || {
            // SAFETY: strings are NUL-terminated, the vocabulary is alive, and the crate's wrapper catches exceptions.
            let ptr =
                unsafe { sys::llama_rs_sampler_init_grammar(model.vocab().as_ptr(), text.as_ptr(), c"root".as_ptr()) };
            NonNull::new(ptr).map(|ptr| Grammar { ptr, model: Arc::clone(model), broken: false })
        };
        let compiled = std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("foredraft-grammar".into())
                .stack_size((1 << 20) + gbnf.len() * STACK_PER_BYTE)
                .spawn_scoped(scope, compile)
                .map(|thread| thread.join())
        });
        match compiled {
            Ok(Ok(Some(grammar))) => Ok(grammar),
            Ok(Ok(None)) => Err(refuse("does not parse: see the parser's message on stderr")),
            Ok(Err(_)) | Err(_) => Err(Error::new(Code::Internal, "grammar: no thread to compile it on")),
        }
    }

    /// A copy at the same place of the text.
    pub fn try_clone(&self) -> Result<Grammar> {
        let mut why = Why::new();
        // SAFETY: the sampler is alive, and exceptions end in the guard.
        let ptr = unsafe { foredraft_sampler_clone(self.ptr.as_ptr(), why.ptr(), why.size()) };
        let ptr = NonNull::new(ptr)
            .ok_or_else(|| Error::new(Code::Internal, format!("grammar: cannot be copied: {}", why.message())))?;
        Ok(Grammar { ptr, model: Arc::clone(&self.model), broken: self.broken })
    }

    /// Brings this one to the place of `other`, a copy of the same grammar.
    pub fn copy_from(&mut self, other: &Grammar) -> Result<()> {
        *self = other.try_clone()?;
        Ok(())
    }

    /// Whether `token` may come next.
    pub fn allows(&mut self, token: Token) -> Result<bool> {
        let mut candidate = [TokenData { id: token, logit: 0.0, p: 0.0 }];
        self.filter(&mut candidate)?;
        Ok(candidate.iter().all(|candidate| candidate.logit == 0.0))
    }

    /// Sets the logits of the candidates that may not come next to -inf.
    pub fn filter(&mut self, candidates: &mut [TokenData]) -> Result<()> {
        if self.broken {
            return Err(Error::invalid("grammar: the text has left it"));
        }
        let vocab = self.model.vocab();
        if let Some(candidate) = candidates.iter().find(|candidate| !vocab.contains(candidate.id)) {
            return Err(Error::new(Code::Internal, format!("grammar: {} is no token", candidate.id)));
        }
        let mut list = sys::llama_token_data_array {
            data: candidates.as_mut_ptr(),
            size: candidates.len(),
            selected: -1,
            sorted: false,
        };
        let mut why = Why::new();
        // SAFETY: the list is readable and writable for its size, all ids are tokens, the sampler has not failed
        // (after which it asserts), and exceptions end in the guard. A grammar neither moves nor shortens the list.
        if unsafe { foredraft_sampler_apply(self.ptr.as_ptr(), &mut list, why.ptr(), why.size()) } {
            Ok(())
        } else {
            self.broken = true;
            Err(Error::invalid(format!("grammar: {}", why.message())))
        }
    }

    /// Moves past `token`. An error when the grammar does not allow it here.
    pub fn accept(&mut self, token: Token) -> Result<()> {
        // Asking first, because llama.cpp aborts on an end of text that the grammar does not allow.
        if !self.allows(token)? {
            self.broken = true;
            return Err(Error::invalid(format!("grammar: does not allow the token {token} here")));
        }
        // SAFETY: the sampler is alive, and the crate's wrapper catches exceptions.
        let status = unsafe { sys::llama_rs_sampler_accept(self.ptr.as_ptr(), token) };
        if status == sys::LLAMA_RS_STATUS_OK {
            Ok(())
        } else {
            self.broken = true;
            Err(Error::invalid(format!("grammar: does not allow the token {token} here")))
        }
    }
}

impl Drop for Grammar {
    fn drop(&mut self) {
        // SAFETY: the only owner.
        unsafe { sys::llama_sampler_free(self.ptr.as_ptr()) }
    }
}
