"""Train draft heads for the shipped target, from its own predictions of corpus.py's text, and write them as GGUF.

    pip install torch tokenizers gguf numpy
    python heads.py --out .          # two heads, 12 minutes of processor time each; Ctrl-C ends the training of a head early

stories-eagle3.gguf: an EAGLE-3 head (arXiv 2503.01840). Its inputs are a token and the target's states of the token before, at
three layers. It uses the target's embeddings and output weights.
stories-mtp.gguf: the target with a layer for multi-token prediction (DeepSeek-V3, arXiv 2412.19437). llama.cpp knows such layers
in few architectures, so the target's weights are written as `glm4moe`, which computes the same from them.

Both predict as they draft: the first token from states of the target, each later one from a state of their own (training-time test).
"""
import argparse
import contextlib
import math
import time
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from tokenizers import Tokenizer

from train import CONTEXT, SHAPES, VOCAB, Llama, RMSNorm, batches, metadata, rope, write_tensors

WIDTH, LAYERS, HEADS, KV_HEADS, FF_TARGET = SHAPES["target"]
D = WIDTH // HEADS
FF = 256  # of a head
STATES = [2, 4, 5]  # the layers whose inputs an EAGLE-3 head reads; llama.cpp gives no later one of a LLaMA
EXPERTS, FF_EXPERT = 2, 32  # glm4moe has experts beside the feed-forward that is used; theirs are zero
STEPS = 4  # tokens that a head drafts in training, at its end
ROWS, LENGTH = 4, 192


def load_target(path):
    """The target's weights in F32."""
    target = Llama(*SHAPES["target"])
    tensors = {t.name: torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).copy()) for t in gguf.GGUFReader(path).tensors}
    target.load_state_dict({name: tensors[name].view(weight.shape) for name, weight in target.state_dict().items()})
    return target.requires_grad_(False)


def run_target(target, ids):
    """The inputs of the layers in STATES, side by side; the state after the last layer; the logits."""
    x, t, inputs = target.token_embd(ids), ids.shape[1], []
    for number, block in enumerate(target.blk):
        if number in STATES:
            inputs.append(x)
        x = block(x, target.cos[:t], target.sin[:t])
    x = target.output_norm(x)
    return torch.cat(inputs, -1), x, F.linear(x, target.token_embd.weight)


class Head(nn.Module):
    """One layer that predicts the token after next from a token and the state of the token before."""

    def __init__(self, n_input):
        super().__init__()
        self.embd_norm, self.state_norm, self.ffn_norm = RMSNorm(WIDTH), RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.output_norm = RMSNorm(WIDTH)
        self.q = nn.Linear(n_input, WIDTH, bias=False)
        self.k = nn.Linear(n_input, KV_HEADS * D, bias=False)
        self.v = nn.Linear(n_input, KV_HEADS * D, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, FF, bias=False)
        self.up = nn.Linear(WIDTH, FF, bias=False)
        self.down = nn.Linear(FF, WIDTH, bias=False)

    def prepare(self, target):
        """Begin near the target: its norms, small weights, and a state that passes through."""
        self.output_norm.weight.data.copy_(target.output_norm.weight)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.01 if name in ("out.weight", "down.weight") else 0.02)

    def block(self, x, residual, cos, sin, cache):
        """One step: `cache` has the keys and values of the steps before, the first of them for all tokens."""
        b, t, _ = x.shape
        split = lambda y, heads: y.view(b, t, heads, D).transpose(1, 2)
        wide = lambda y: y.repeat_interleave(HEADS // KV_HEADS, 1)
        q, k = rope(split(self.q(x), HEADS), cos, sin), wide(rope(split(self.k(x), KV_HEADS), cos, sin))
        cache.append((k, wide(split(self.v(x), KV_HEADS))))
        (keys, values), later = cache[0], cache[1:]
        scores = [(q @ keys.transpose(-1, -2)).masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)]
        scores += [(q * key).sum(-1, keepdim=True) for key, _ in later]  # of each draft, its own tokens
        weights = (torch.cat(scores, -1) / math.sqrt(D)).softmax(-1)
        a = weights[..., :t] @ values
        for index, (_, value) in enumerate(later):
            a = a + weights[..., t + index, None] * value
        x = residual + self.out(a.transpose(1, 2).reshape(b, t, WIDTH))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Eagle3(Head):
    def __init__(self):
        super().__init__(2 * WIDTH)
        self.fc = nn.Linear(len(STATES) * WIDTH, WIDTH, bias=False)

    def prepare(self, target):
        super().prepare(target)
        self.fc.weight.data[:, -WIDTH:] += 0.1 * torch.eye(WIDTH)

    def first_state(self, inputs, _hidden):
        return self.fc(inputs)

    def step(self, embd, state, cos, sin, cache):
        """Returns the state for the next step, and what the output weights read."""
        x = torch.cat((self.embd_norm(embd), self.state_norm(state)), -1)
        state = self.block(x, state, cos, sin, cache)
        return state, self.output_norm(state)

    def write(self, _target, tok, path, kind):
        description = "EAGLE-3 head for the demo target"
        w = metadata(path, "eagle3", (WIDTH, 1, HEADS, KV_HEADS, FF), tok, "stories eagle3", description, kind)
        w.add_array("eagle3.target_layers", STATES)
        w.add_uint32("eagle3.target_hidden_size", WIDTH)
        names = {"embd_norm": "blk.0.attn_norm", "state_norm": "blk.0.attn_norm_2", "ffn_norm": "blk.0.ffn_norm",
                 "output_norm": "output_norm", "q": "blk.0.attn_q", "k": "blk.0.attn_k", "v": "blk.0.attn_v",
                 "out": "blk.0.attn_output", "gate": "blk.0.ffn_gate", "up": "blk.0.ffn_up", "down": "blk.0.ffn_down", "fc": "fc"}
        write_tensors(w, {f"{names[key[:-7]]}.weight": p.numpy() for key, p in self.state_dict().items()}, kind)


class Mtp(Head):
    def __init__(self):
        super().__init__(WIDTH)
        self.attn_norm = RMSNorm(WIDTH)
        self.eh_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def prepare(self, target):
        super().prepare(target)
        self.eh_proj.weight.data[:, WIDTH:] += 0.1 * torch.eye(WIDTH)

    def first_state(self, _inputs, hidden):
        return hidden

    def step(self, embd, state, cos, sin, cache):
        x = self.eh_proj(torch.cat((self.embd_norm(embd), self.state_norm(state)), -1))
        state = self.output_norm(self.block(self.attn_norm(x), x, cos, sin, cache))
        return state, state

    def write(self, target, tok, path, kind):
        description = "The demo target as glm4moe, with a layer for multi-token prediction"
        w = metadata(path, "glm4moe", (WIDTH, LAYERS + 1, HEADS, KV_HEADS, FF_TARGET), tok, "stories mtp", description, kind)
        for key, value in {"nextn_predict_layers": 1, "leading_dense_block_count": LAYERS, "expert_count": EXPERTS,
                           "expert_used_count": 1, "expert_feed_forward_length": FF_EXPERT,
                           "expert_shared_count": FF // FF_EXPERT}.items():
            w.add_uint32(f"glm4moe.{key}", value)
        tensors = {}
        for key, p in target.state_dict().items():
            tensors[key.replace("ffn_norm", "post_attention_norm")] = halves(p.numpy()) if "attn_q" in key or "attn_k" in key else p.numpy()
        names = {"embd_norm": "nextn.enorm", "state_norm": "nextn.hnorm", "ffn_norm": "post_attention_norm", "attn_norm": "attn_norm",
                 "output_norm": "nextn.shared_head_norm", "eh_proj": "nextn.eh_proj", "q": "attn_q", "k": "attn_k", "v": "attn_v",
                 "out": "attn_output", "gate": "ffn_gate_shexp", "up": "ffn_up_shexp", "down": "ffn_down_shexp"}
        for key, p in self.state_dict().items():
            tensors[f"blk.{LAYERS}.{names[key[:-7]]}.weight"] = halves(p.numpy()) if key[:-7] in "qk" else p.numpy()
        zeros = lambda *shape: np.zeros(shape, np.float32)
        tensors |= {f"blk.{LAYERS}.ffn_gate_exps.weight": zeros(EXPERTS, FF_EXPERT, WIDTH),
                    f"blk.{LAYERS}.ffn_up_exps.weight": zeros(EXPERTS, FF_EXPERT, WIDTH),
                    f"blk.{LAYERS}.ffn_down_exps.weight": zeros(EXPERTS, WIDTH, FF_EXPERT),
                    f"blk.{LAYERS}.ffn_gate_inp.weight": zeros(EXPERTS, WIDTH),
                    f"blk.{LAYERS}.exp_probs_b.bias": zeros(EXPERTS)}
        write_tensors(w, tensors, kind)


def halves(weight):
    """The rows of q or k for rotary embeddings of two halves of a head, instead of neighbouring pairs."""
    return np.ascontiguousarray(weight.reshape(-1, D // 2, 2, weight.shape[1]).transpose(0, 2, 1, 3)).reshape(weight.shape)


def loss_of(head, target, ids, steps):
    """The loss of a draft of so many tokens after each token, and the share of positions where each step finds the target's choice."""
    with torch.no_grad():
        inputs, hidden, logits = run_target(target, ids)
    n = ids.shape[1] - steps - 1
    state, cache, loss, right = head.first_state(inputs[:, :n], hidden[:, :n]), [], 0, []
    for step in range(steps):
        embd, at = target.token_embd(ids[:, step + 1 : step + 1 + n]), slice(step, step + n)
        state, x = head.step(embd, state, target.cos[at], target.sin[at], cache)
        own, wanted = F.linear(x, target.token_embd.weight), logits[:, step + 1 : step + 1 + n]
        loss = loss + 0.8**step * F.cross_entropy(own.flatten(0, 1), wanted.softmax(-1).flatten(0, 1))
        right.append((own.argmax(-1) == wanted.argmax(-1)).float().mean().item())
    return loss, right


def train_head(head, target, tok, minutes, seed, peak=3e-3):
    head.prepare(target)
    opt = torch.optim.AdamW(head.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.01)
    start, step = time.process_time(), 0
    for batch in batches(tok, seed, 0.0):
        # The rows are longer than these drafts need.
        for ids in batch[:, : CONTEXT // LENGTH * LENGTH].reshape(-1, LENGTH).split(ROWS):
            done = (time.process_time() - start) / (60 * minutes)
            if done >= 1:
                return
            for group in opt.param_groups:
                group["lr"] = peak * min(1, (step + 1) / 50) * (0.5 * (1 + math.cos(math.pi * done)) * 0.98 + 0.02)
            # Later tokens can be right only if the first is, so training begins with that.
            loss, right = loss_of(head, target, ids, min(STEPS, 1 + int(done * (STEPS + 1))))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            opt.step()
            if step % 25 == 0:
                shares = "  ".join(f"{share:.3f}" for share in right)
                print(f"step {step:5d}  loss {loss.item():.4f}  right {shares}  {time.process_time() - start:.0f} s", flush=True)
            step += 1


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).parent
    p.add_argument("--target", type=Path, default=here / "stories-target.gguf")
    p.add_argument("--out", type=Path, default=Path("."))
    p.add_argument("--minutes", type=float, default=12, help="of processor time, for each head")
    p.add_argument("--only", choices=["eagle3", "mtp"])
    p.add_argument("--type", default="Q8_0", help="the GGUF's type for matrices: F32, F16, Q8_0")
    args = p.parse_args()
    tok, target = Tokenizer.from_file(str(here / "tokenizer.json")), load_target(args.target)
    for number, (name, make) in enumerate({"eagle3": Eagle3, "mtp": Mtp}.items()):
        if args.only in (None, name):
            torch.manual_seed(number)
            head = make()
            with contextlib.suppress(KeyboardInterrupt):
                train_head(head, target, tok, args.minutes, seed=1000 + number)
            head.write(target, tok, args.out / f"stories-{name}.gguf", args.type)


if __name__ == "__main__":
    main()
