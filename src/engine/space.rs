//! Room in the KV cache: full contexts shift, and slots that share its cells make way for each other.

use super::event::Stop;
use super::scheduler::BatchScheduler;
use crate::session;

impl BatchScheduler {
    /// Shifts the contexts that are full, or ends their requests.
    pub(super) fn make_space(&mut self) {
        let n_ctx = self.context.n_ctx();
        for index in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            let Some(task) = slot.task.as_mut().filter(|task| task.tokens.len() >= n_ctx) else { continue };
            // All but the newest token count, also those that are not in the cache: of a draft's branch that was right, or
            // where the cache was lost. Else the text would depend on that.
            let range = session::shift(task.tokens.len().saturating_sub(1), task.n_keep)
                .filter(|_| self.ctx_shift)
                .filter(|range| slot.cache.shift(&mut self.context, range.clone()));
            let Some(range) = range else {
                self.end(index, Stop::Limit, true);
                continue;
            };
            task.shift(range.clone());
            self.drafters.shift(index, range.start, range.len());
        }
    }

    /// Sees to it that what runs fits into the cells that all slots share. Requests that were paused go on, oldest first, as
    /// soon as they fit again.
    pub(super) fn balance(&mut self) {
        let Some(cells) = self.shared_cells else { return };
        self.resume(cells);
        let ubatch = self.context.n_ubatch();
        loop {
            let used: usize = self.slots.iter().map(|slot| slot.cache.len()).sum();
            let need: usize = self
                .running()
                .filter(|(_, task)| !task.paused)
                .map(|(slot, task)| {
                    let drafts = task.speculation.as_ref().map_or(0, |speculation| speculation.settings.n_max);
                    slot.pending().min(ubatch) + drafts
                })
                .sum();
            if used + need <= cells || !self.make_way() {
                return;
            }
        }
    }

    /// Cells that drafts may take. Were there more drafted tokens than that, the evaluation would fail, the youngest request pause,
    /// go on where there is room for it, and the same happen again.
    pub(super) fn free_cells(&self) -> usize {
        let Some(cells) = self.shared_cells else { return usize::MAX };
        let used: usize = self.slots.iter().map(|slot| slot.cache.len()).sum();
        let ubatch = self.context.n_ubatch();
        let working = self.slots.iter().filter(|slot| slot.working().is_some());
        let need: usize = working.map(|slot| slot.pending().min(ubatch)).sum();
        cells.saturating_sub(used + need)
    }

    /// Frees cells that all slots share: those of the free slot unused for longest, else those of the youngest request,
    /// which pauses. False when one request alone is left, which always fits.
    pub(super) fn make_way(&mut self) -> bool {
        let idle = self.slots.iter().filter(|slot| slot.task.is_none() && !slot.cache.is_empty());
        if let Some(index) = idle.min_by_key(|slot| slot.last_used).map(|slot| slot.index) {
            self.forget(index);
            return true;
        }
        let active = self.slots.iter().filter(|slot| slot.task.as_ref().is_some_and(|task| !task.paused));
        let youngest = active.clone().max_by_key(|slot| slot.last_used).map(|slot| slot.index);
        let Some(index) = youngest.filter(|_| active.count() > 1) else { return false };
        self.forget(index);
        if let Some(task) = self.slots.get_mut(index).and_then(|slot| slot.task.as_mut()) {
            task.paused = true;
        }
        true
    }

    fn resume(&mut self, cells: usize) {
        loop {
            let running: usize =
                self.running().filter(|(_, task)| !task.paused).map(|(_, task)| task.tokens.len()).sum();
            let paused = self.slots.iter_mut().filter(|slot| slot.task.as_ref().is_some_and(|task| task.paused));
            let Some(oldest) = paused.min_by_key(|slot| slot.last_used) else { return };
            let Some(task) = &mut oldest.task else { return };
            // An eighth of the cells to grow into, or else it would soon be paused again.
            if running > 0 && running + task.tokens.len() + cells / 8 > cells {
                return;
            }
            task.paused = false;
        }
    }

    /// Empties a slot's cache.
    pub(super) fn forget(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.cache.clear(&mut self.context);
        }
    }
}
