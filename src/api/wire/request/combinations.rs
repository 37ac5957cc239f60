//! The settings that a request cannot combine: refused, or disabled with a warning.

use super::CompletionRequest;
use crate::engine::RequestOptions;
use crate::error::{Error, Result};
use crate::speculative::Verify;

impl CompletionRequest {
    /// Refuses or disables what the request's decision, beam search or logits callback cannot be combined with.
    ///
    /// # Errors
    /// It has two that exclude each other.
    pub(super) fn with_valid_combinations(self) -> Result<CompletionRequest> {
        self.validate_choices()?.validate_beams()?.validate_logits_callback()
    }

    /// Refuses or disables what a decision cannot be combined with.
    fn validate_choices(mut self) -> Result<CompletionRequest> {
        let name = match (self.choices.is_some(), self.questions.is_empty()) {
            (false, true) => return Ok(self),
            (true, true) => "choices",
            (given, false) if given || self.n_cmpl > 1 => {
                let name = if given { "choices" } else { "n_cmpl" };
                return Err(Error::invalid(format!("questions: expected either questions or {name}, got both")));
            }
            (_, false) => "questions",
        };
        let others = [
            ("n_beams", self.options.n_beams > 1),
            ("json_schema", self.json_schema.is_some()),
            ("grammar", self.grammar.is_some()),
            ("prompt_logprobs", self.options.prompt_probs.is_some()),
        ];
        if let Some((other, _)) = others.into_iter().find(|(_, given)| *given) {
            return Err(Error::invalid(format!("{name}: expected either {name} or {other}, got both")));
        }
        if self.sampling.n_probs > 0 {
            self.warnings.push(format!("n_probs: ignored with {name}, whose probabilities are in the answer"));
            self.sampling.n_probs = 0;
        }
        self.speculative.disable("nothing is drafted for a decision");
        Ok(self)
    }

    /// Refuses or disables what a beam search cannot be combined with.
    fn validate_beams(mut self) -> Result<CompletionRequest> {
        if self.options.n_beams > 1 {
            if self.grammar.is_some() || self.json_schema.is_some() {
                return Err(Error::invalid("n_beams: a beam search cannot use a grammar"));
            }
            if self.options.prompt_probs.is_some() {
                return Err(Error::invalid("prompt_logprobs: not available with n_beams"));
            }
            self.speculative.disable("a beam search does not speculate");
            let ignored = [
                (self.options.t_max_predict.is_some(), "t_max_predict_ms: ignored by a beam search; use timeout_ms"),
                (self.options.progress, "return_progress: ignored by a beam search"),
            ];
            self.warnings.extend(ignored.iter().filter(|(given, _)| *given).map(|(_, warning)| (*warning).to_owned()));
        }
        Ok(self)
    }

    /// Refuses or replaces what a logits callback cannot be combined with.
    fn validate_logits_callback(mut self) -> Result<CompletionRequest> {
        if !self.logits_callback {
            return Ok(self);
        }
        let others = [
            ("choices", self.choices.is_some()),
            ("questions", !self.questions.is_empty()),
            ("n_beams", self.options.n_beams > 1),
        ];
        if let Some((name, _)) = others.into_iter().find(|(_, given)| *given) {
            return Err(Error::invalid(format!("logits_callback: not available with {name}")));
        }
        if let Some(settings) = self.speculative.settings.as_mut().filter(|settings| settings.verify == Verify::Block) {
            settings.verify = Verify::Rejection;
            let warning = "speculative.verify: rejection instead of block, which reads the logits of rejected tokens";
            self.warnings.push(format!("{warning}, with logits_callback"));
        }
        Ok(self)
    }

    /// Refuses `session_load`, `session_save` and `conversation` where they are impossible.
    ///
    /// # Errors
    /// The request uses draft-only mode or beams, or would keep the states of several completions under one name.
    pub fn validate_sessions(&self) -> Result<()> {
        let completions = self.n_completions();
        let RequestOptions { session_load, session_save, conversation, .. } = &self.options;
        let all = [
            ("session_load", session_load.is_some()),
            ("session_save", session_save.is_some()),
            ("conversation", conversation.is_some()),
        ];
        for (name, _) in all.into_iter().filter(|(_, is_given)| *is_given) {
            if self.speculative.draft_only {
                return Err(Error::invalid(format!("{name}: not available with speculative.model \"draft\"")));
            }
            if self.options.n_beams > 1 {
                return Err(Error::invalid(format!("{name}: not available with n_beams")));
            }
            if name != "session_load" && completions > 1 {
                return Err(Error::invalid(format!(
                    "{name}: expected one completion, got {completions} for one state"
                )));
            }
        }
        Ok(())
    }
}
