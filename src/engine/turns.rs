//! Requests with different LoRA scales cannot be evaluated in one batch, so they take turns.

use super::generation::Generation;
use super::slots::Slot;

impl Generation {
    /// Decides who takes part in this step: the slot that was evaluated longest ago, and all with the same scales.
    pub(super) fn take_turns(&mut self) {
        let works = |slot: &&Slot| slot.task.as_ref().is_some_and(|task| !task.paused);
        let Some(next) = self.slots.iter().filter(works).min_by_key(|slot| slot.last_turn) else { return };
        let scales = next.lora.clone();
        self.turn += 1;
        for slot in &mut self.slots {
            slot.sits_out = slot.lora != scales;
            if !slot.sits_out {
                slot.last_turn = self.turn;
            }
        }
        self.context.set_adapters(&scales);
    }
}
