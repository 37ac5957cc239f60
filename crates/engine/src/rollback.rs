//! How many tokens a target with recurrent states can roll back, and so the longest draft that it verifies.
//!
//! Each token takes the memory of one more state in every slot, and a decode writes as many states as it has tokens. The states of large
//! models have dozens of megabytes, so few slots get several, and many slots may get none.

use foredraft_base::error::{Code, Result};
use foredraft_llama::log::{self, Level};
use foredraft_llama::{ContextParams, DevicePlacement, Model, most_rollback};

/// The most tokens, however small the states are: a decode has some more operations for each.
const MOST: u32 = 8;
/// Earlier states of all slots take at most this fraction of the memory that the weights take.
const SHARE_OF_WEIGHTS: u64 = 4;

/// Parameters for a target's slots, with as many earlier states as their memory is worth.
pub(super) fn with_rollback(params: ContextParams, model: &Model) -> ContextParams {
    if !model.has_recurrent_states() {
        return params;
    }
    let state = DevicePlacement::bytes_per_earlier_state(model, &params).unwrap_or(0);
    let n_rollback =
        depth(state, model.size(), params.n_seq_max).min(most_rollback(params.n_ubatch.min(params.n_batch)));
    ContextParams { n_rollback, ..params }
}

/// Makes a context with `params`. If that fails and they have earlier states, for which there may be too little memory, tries again with a
/// quarter as many, down to none.
///
/// # Errors
/// It also fails without earlier states.
pub(super) fn with_less_rollback<T>(
    params: ContextParams,
    mut make: impl FnMut(&ContextParams) -> Result<T>,
) -> Result<T> {
    let mut params = params;
    loop {
        match make(&params) {
            Err(error) if params.n_rollback > 0 && error.code() != Code::Cancelled => {
                let (before, fewer) = (params.n_rollback, params.n_rollback / 4);
                params.n_rollback = fewer;
                let message =
                    format!("the target can roll back {fewer} tokens instead of {before}: {}", error.message());
                log::write(Level::Warn, &message);
            }
            made => return made,
        }
    }
}

/// The earlier states for states of `state` bytes in each of `n_slots` slots of a model of `weights` bytes. 0 bytes: the architecture keeps
/// no earlier states.
fn depth(state: u64, weights: u64, n_slots: u32) -> u32 {
    let all = state.saturating_mul(u64::from(n_slots.max(1)));
    let affordable = (weights / SHARE_OF_WEIGHTS).checked_div(all).unwrap_or(0);
    u32::try_from(affordable).unwrap_or(u32::MAX).min(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_earlier_states_are_kept_where_memory_is_short() {
        let params = ContextParams { n_rollback: 8, ..ContextParams::default() };
        let tried = |most: u32| {
            let mut tried = Vec::new();
            let made = with_less_rollback(params.clone(), |params| {
                tried.push(params.n_rollback);
                let fits = params.n_rollback <= most;
                if fits { Ok(params.n_rollback) } else { Err(foredraft_base::error::Error::model("no memory")) }
            });
            (made.unwrap(), tried)
        };
        assert_eq!(tried(8), (8, vec![8]));
        assert_eq!(tried(3), (2, vec![8, 2]));
        assert_eq!(tried(0), (0, vec![8, 2, 0]));
        let mut n = 0;
        let failed: Result<()> = with_less_rollback(params, |_| {
            n += 1;
            Err(foredraft_base::error::Error::model("no context at all"))
        });
        assert_eq!((failed.unwrap_err().message(), n), ("no context at all", 3));
    }

    #[test]
    fn earlier_states_take_no_more_than_a_quarter_of_the_weights() {
        const MIB: u64 = 1 << 20;
        assert_eq!(depth(MIB, 1000 * MIB, 1), MOST);
        assert_eq!(depth(50 * MIB, 2400 * MIB, 3), 4);
        assert_eq!(depth(150 * MIB, 400 * MIB, 1), 0, "a state costs more than it is worth");
        assert_eq!(depth(50 * MIB, 2400 * MIB, 64), 0);
        assert_eq!(depth(0, 2400 * MIB, 1), 0, "the architecture keeps none");
        assert_eq!(depth(u64::MAX, u64::MAX, u32::MAX), 0);
    }
}
