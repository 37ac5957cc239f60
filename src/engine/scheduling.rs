//! Requests with different LoRA scales cannot be evaluated in one batch, so they take turns. So do long prompts: next to others
//! they would be divided in other places than alone, and the last bits of what they leave in the KV cache depend on that.

use super::scheduler::BatchScheduler;
use super::slots::Slot;

/// Steps that a turn lasts: llama.cpp plans its graph anew whenever scales change.
const STEPS: u64 = 8;

/// Whose turn it is.
#[derive(Default)]
pub(super) struct Turn {
    /// Counts turns.
    number: u64,
    /// Steps of this one.
    steps: u64,
    /// Counts steps.
    step: u64,
}

impl BatchScheduler {
    /// Decides who takes part in this step: those whose turn it is, or else, for some steps, the slot that was evaluated
    /// longest ago and all with the same scales.
    pub(super) fn schedule(&mut self) {
        let works = |slot: &&Slot| slot.task.as_ref().is_some_and(|task| !task.paused);
        let now = self.slots.iter().filter(works).find(|slot| slot.last_turn == self.turn.number);
        self.turn.steps += 1;
        let next = match now.filter(|_| self.turn.steps <= STEPS) {
            Some(slot) => slot,
            None => {
                let Some(slot) = self.slots.iter().filter(works).min_by_key(|slot| slot.last_turn) else { return };
                self.turn.number += 1;
                self.turn.steps = 1;
                slot
            }
        };
        let scales = next.lora.clone();
        for slot in &mut self.slots {
            slot.is_scheduled = slot.lora == scales;
            if slot.is_scheduled {
                slot.last_turn = self.turn.number;
            }
        }
        self.context.set_adapters(&scales);
        self.part_long_prompts();
    }

    /// Of those whose turn it is, leaves one with a long prompt, or all the others: who was evaluated longest ago.
    fn part_long_prompts(&mut self) {
        self.turn.step += 1;
        let most = if self.context.is_batch_invariant() { self.context.max_invariant_tokens() } else { usize::MAX };
        let is_long = |slot: &Slot| slot.pending() > most;
        let working = self.slots.iter().filter(|slot| slot.working().is_some());
        let others = working.clone().filter(|slot| !is_long(slot)).map(|slot| slot.last_step).max();
        let long = working.filter(|slot| is_long(slot)).min_by_key(|slot| slot.last_step);
        let long = long.filter(|slot| others.is_none_or(|others| slot.last_step <= others)).map(|slot| slot.index);
        for slot in &mut self.slots {
            slot.is_scheduled &= long.map_or(!is_long(slot), |long| slot.index == long);
            if slot.is_scheduled {
                slot.last_step = self.turn.step;
            }
        }
    }
}
