//! Self-extend: contexts longer than the model was trained on, by grouping the positions of older tokens.
//!
//! After "LLM Maybe LongLM" (arXiv 2401.01325), as in llama.cpp's former `main`: for every `w` tokens in the context, the
//! positions of the oldest ungrouped block of `w` tokens are divided by `n`, and later positions move up. Grouping depends only
//! on the number of tokens, so batches, drafts and rollbacks do not change the output.

/// `grp_attn_n` and `grp_attn_w`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelfExtend {
    /// Number of adjacent tokens that share a position; at least 2.
    n: usize,
    /// Tokens per block; a multiple of `n`.
    w: usize,
}

impl SelfExtend {
    /// Groups of `n` in blocks of `w` tokens. `None` if `n` is below 2 or `w` is not a positive multiple of `n`.
    pub fn new(n: usize, w: usize) -> Option<SelfExtend> {
        (n > 1 && w > 0 && w.is_multiple_of(n)).then_some(SelfExtend { n, w })
    }

    /// Number of adjacent tokens that share a position.
    pub fn n(self) -> usize {
        self.n
    }

    /// Tokens per block.
    pub fn w(self) -> usize {
        self.w
    }

    /// The number of grouped blocks before the token after `len` others is decoded.
    pub fn blocks(self, len: usize) -> usize {
        len / self.w
    }

    /// The position of the token at `index` with `blocks` grouped blocks.
    pub fn position(self, blocks: usize, index: usize) -> usize {
        if index < blocks * self.w { index / self.n } else { index - blocks * self.gain() }
    }

    /// The number of tokens before the position `next`; `None` if it is inside a grouped block.
    pub fn tokens_before(self, blocks: usize, next: usize) -> Option<usize> {
        (next >= blocks * self.w / self.n).then(|| next + blocks * self.gain())
    }

    /// The number of positions that grouping a block saves.
    pub fn gain(self) -> usize {
        self.w - self.w / self.n
    }

    /// The largest number of tokens, at most `len`, that a context with `blocks` grouped blocks can be rolled back to. A
    /// rollback into a grouped block removes the whole block, because its tokens have lost their own positions.
    pub fn cut(self, blocks: usize, len: usize) -> usize {
        if len < blocks * self.w { len / self.w * self.w } else { len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loop of llama.cpp's former `llama.cpp/examples/main/main.cpp` on an array of positions.
    struct Main {
        positions: Vec<usize>,
        n_past: usize,
        ga_i: usize,
    }

    impl Main {
        fn group(&mut self, n: usize, w: usize) {
            while self.n_past >= self.ga_i + w {
                let ib = n * self.ga_i / w;
                let bd = w / n * (n - 1);
                let (ga_i, n_past) = (self.ga_i, self.n_past);
                self.each(ga_i..n_past, |position| position + ib * bd);
                self.each(ga_i + ib * bd..ga_i + ib * bd + w, |position| position / n);
                self.each(ga_i + ib * bd + w..n_past + ib * bd, |position| position + w / n - ib * bd - w);
                self.n_past -= bd;
                self.ga_i += w / n;
            }
        }

        fn each(&mut self, range: std::ops::Range<usize>, change: impl Fn(usize) -> usize) {
            self.positions.iter_mut().filter(|position| range.contains(position)).for_each(|p| *p = change(*p));
        }
    }

    #[test]
    fn positions_match_llama_cpp() {
        for (n, w) in [(2, 4), (4, 8), (3, 12), (8, 8), (2, 64)] {
            let extend = SelfExtend::new(n, w).expect("it comes out even");
            let mut main = Main { positions: Vec::new(), n_past: 0, ga_i: 0 };
            for len in 0..5 * w + 3 {
                main.group(n, w);
                let blocks = extend.blocks(len);
                let positions: Vec<usize> = (0..len).map(|index| extend.position(blocks, index)).collect();
                assert_eq!(positions, main.positions, "{n} {w} {len}");
                assert_eq!(extend.position(blocks, len), main.n_past);
                assert_eq!(extend.tokens_before(blocks, main.n_past), Some(len));
                main.positions.push(main.n_past);
                main.n_past += 1;
            }
        }
    }

    #[test]
    fn rollback_keeps_whole_blocks() {
        let extend = SelfExtend::new(2, 8).expect("it comes out even");
        for (blocks, len, expected) in [(0, 5, 5), (1, 5, 0), (1, 8, 8), (1, 9, 9), (3, 23, 16), (3, 24, 24), (3, 0, 0)]
        {
            assert_eq!(extend.cut(blocks, len), expected, "{blocks} {len}");
        }
        assert_eq!((SelfExtend::new(1, 8), SelfExtend::new(4, 6), SelfExtend::new(4, 0)), (None, None, None));
    }
}
