//! The documented request and response fields as a table: each row sends a request that waits, one that is polled, and one
//! that is drafted, and checks the response.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;
mod infill;
mod limits;
mod lora;
mod output;
mod prompts;
mod sampling;
mod sessions;
mod speculation;
mod table;
mod text;

/// The documented fields of requests and responses.
const FIELDS: &str = "
    prompt messages prompts parse_special on_overflow n_predict temperature top_k top_p min_p tfs_z typical_p top_n_sigma dynatemp_range
    dynatemp_exponent xtc_probability xtc_threshold dry_multiplier dry_base dry_allowed_length dry_penalty_last_n
    dry_sequence_breakers repeat_last_n repeat_penalty presence_penalty frequency_penalty penalize_nl mirostat
    mirostat_tau mirostat_eta samplers min_keep seed n_keep ignore_eos logit_bias stop n_probs post_sampling_probs grammar
    logits_callback cache_prompt id_slot n_cmpl t_max_predict_ms return_tokens timings_per_token return_progress response_fields lora
    stream __debug input_prefix input_suffix input_extra speculative timeout_ms tag priority deadline_ms conversation
    n_beams session_load session_save prediction json_schema choices speculative.model speculative.compare
    speculative.verify speculative.n_branches speculative.p_split speculative.type speculative.n_max speculative.n_min
    speculative.p_min speculative.adaptive speculative.lookup_cache_static speculative.lookup_cache_dynamic

    success content id model tokens_predicted tokens_evaluated generation_settings truncated stopped_eos stopped_word
    stopped_limit stopping_word stop_type tokens_cached timings status prompt_stats completion_probabilities warnings
    tokens sources results index prompt_progress choice finish_reason usage stream_options
";

#[test]
fn every_documented_field_is_covered_by_a_row() {
    let tables = [
        sampling::rows(),
        prompts::rows(),
        limits::rows(),
        output::rows(),
        lora::rows(),
        infill::rows(),
        speculation::rows(),
        sessions::rows(),
    ];
    let rows: Vec<&str> = tables.iter().flatten().flat_map(|row| row.fields.iter().copied()).collect();
    let missing: Vec<&str> = FIELDS.split_whitespace().filter(|field| !rows.contains(field)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
