//! Requests with different LoRA scales cannot be evaluated in one batch, so they take turns.

use super::generation::Generation;
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
}

impl Generation {
    /// Decides who takes part in this step: those whose turn it is, or else, for some steps, the slot that was evaluated
    /// longest ago and all with the same scales.
    pub(super) fn take_turns(&mut self) {
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
            slot.sits_out = slot.lora != scales;
            if !slot.sits_out {
                slot.last_turn = self.turn.number;
            }
        }
        self.context.set_adapters(&scales);
    }
}
