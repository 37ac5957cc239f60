"""Train a projector (mmproj) for the shipped target on pictures.py's pictures, and write it as GGUF.

    pip install torch tokenizers gguf numpy
    python vision.py --out .         # nine minutes of a processor's time

The target is frozen. It repeats text of its context, so the encoder learns to put the caption there:

1. Prompt tuning (arXiv 2104.08691), without pictures: rows with the embeddings of a caption's tokens, and rows and
   offsets that are learned, so that the target answers a question with the caption.
2. A vision transformer, without its last layer, learns to see: a head that only training has names the colour, the
   shape and the place. Rows alone teach it slowly, shapes above all.
3. The whole encoder learns to make the rows from pictures, without the target, and keeps what the head names.
4. Both together: the encoder learns from the target's answer.

The projector has llama.cpp's type `mlp` (LLaVA): one row of each patch.
"""
import argparse
import math
import time
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch.nn.attention import SDPBackend, sdpa_kernel

import train as text
from heads import load_target
from pictures import COLORS, PLACES, SHAPES, draw

SIZE, PATCH = 40, 8  # of the picture and its patches, in pixels
ROWS = (SIZE // PATCH) ** 2
WIDTH, LAYERS, HEADS, FF = 128, 3, 4, 256
N_EMBD = text.SHAPES["target"][0]
EPS = 1e-6
START = "Repeat after me:"  # the rows before the caption begin with its embeddings
STAGES = [(250, 8, 2e-2), (1200, 64, 4e-3), (2800, 64, 2e-3), (100, 16, 5e-4)]  # steps, rows of a batch, peak learning rate
QUESTIONS = ["What is in the picture?", "What is in this picture?", "What do you see?", "What is on this screen?",
             "Describe the picture.", "What does the picture show?", "Which shapes are there, and where?"]
# Tokens of words whose own differ in number, so that each word of a caption has its rows.
TOKENS = {
    "circle": "Ġc i r c le", "square": "Ġs q u ar e", "triangle": "Ġt ri an g le", "cross": "Ġc r o s s",
    "top left": "Ġt o p Ġleft", "top": "Ġ t o p", "top right": "Ġt o p Ġright", "left": "Ġl e f t",
    "middle": "Ġm id d le", "right": "Ġr i g ht", "bottom left": "Ġbo tto m Ġleft", "bottom": "Ġb o tto m", "bottom right": "Ġbo tto m Ġright",
}
EMPTY = "The picture is empty."


def tokens_of(tok, content):
    """The caption of a picture in tokens, with the end of the turn."""
    if content is None:
        return tok.encode(EMPTY + "<|im_end|>").ids
    color, shape, place = content
    preposition, article, cell = place.split(" ", 2)
    words = ["A", f"Ġ{color}", *TOKENS[shape].split(), "Ġis", f"Ġ{preposition}", f"Ġ{article}", *TOKENS[cell].split(), ".", "<|im_end|>"]
    return [tok.token_to_id(word) for word in words]


def batches(tok, seed, n):
    """Yields pixels from -1 to 1, (n, 3, SIZE, SIZE), the captions' tokens with -1 after them, and the numbers of colours, shapes and places (-1: none)."""
    r, colors = np.random.default_rng(seed), list(COLORS)
    while True:
        pixels, contents = draw(r, n, SIZE)
        ids = [tokens_of(tok, content) for content in contents]
        longest = max(map(len, ids))
        classes = [[names.index(name) for names, name in zip((colors, SHAPES, PLACES), content or ())] or [-1] * 3 for content in contents]
        yield (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1, torch.tensor([row + [-1] * (longest - len(row)) for row in ids]),
               torch.tensor(classes))


class Prompt(nn.Module):
    """The rows that make the target say a caption: its tokens' embeddings with an offset of each place, among free rows."""

    def __init__(self, tok, target):
        super().__init__()
        start = tok.encode(START).ids
        self.first, self.end = len(start), tok.token_to_id("<|im_end|>")
        free = target.token_embd.weight.mean(0) + 0.02 * torch.randn(ROWS, N_EMBD)
        free[: self.first] = target.token_embd.weight[start]
        self.free, self.offset = nn.Parameter(free), nn.Parameter(torch.zeros(ROWS, N_EMBD))

    def forward(self, target, ids):
        ids = F.pad(ids, (self.first, ROWS), value=-1)[:, :ROWS]
        has_token = ((ids >= 0) & (ids != self.end))[..., None]
        return torch.where(has_token, target.token_embd(ids.clamp(min=0)) + self.offset, self.free)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH, EPS), nn.LayerNorm(WIDTH, EPS)
        self.attn_q, self.attn_k, self.attn_v, self.attn_out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.ffn_up, self.ffn_down = nn.Linear(WIDTH, FF), nn.Linear(FF, WIDTH)

    def forward(self, x):
        h = self.ln1(x)
        q, k, v = (f(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.attn_q, self.attn_k, self.attn_v))
        x = x + self.attn_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.ffn_down(F.gelu(self.ffn_up(self.ln2(x)), approximate="tanh"))


class Encoder(nn.Module):
    """Pixels to rows of the target's width, one of each patch."""

    def __init__(self):
        super().__init__()
        self.patch_embd = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.position_embd = nn.Parameter(torch.randn(ROWS, WIDTH) * 0.02)
        self.blk = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.post_ln = nn.LayerNorm(WIDTH, EPS)
        self.mm_0, self.mm_2 = nn.Linear(WIDTH, N_EMBD), nn.Linear(N_EMBD, N_EMBD)

    def inner(self, pixels):
        """The states before the last layer."""
        x = self.patch_embd(pixels).flatten(2).transpose(1, 2) + self.position_embd
        for layer in self.blk[:-1]:
            x = layer(x)
        return x

    def outer(self, x):
        return self.mm_2(F.gelu(self.mm_0(self.post_ln(self.blk[-1](x))), approximate="tanh"))

    def forward(self, pixels):
        return self.outer(self.inner(pixels))

    def write(self, path, kind):
        w = gguf.GGUFWriter(str(path), "clip")
        w.add_name("stories vision")
        w.add_description("Projector for the demo target, trained from scratch on generated pictures of shapes")
        w.add_license("cc0-1.0")
        w.add_file_type(gguf.LlamaFileType.ALL_F32 if kind == "F32" else gguf.LlamaFileType[f"MOSTLY_{kind}"])
        w.add_clip_projector_type("mlp")
        w.add_clip_has_vision_encoder(True)
        w.add_vision_use_gelu(True)
        w.add_vision_image_size(SIZE)
        w.add_vision_patch_size(PATCH)
        w.add_vision_embedding_length(WIDTH)
        w.add_vision_feed_forward_length(FF)
        w.add_vision_block_count(LAYERS)
        w.add_vision_head_count(HEADS)
        w.add_vision_projection_dim(N_EMBD)
        w.add_vision_attention_layernorm_eps(EPS)
        w.add_vision_image_mean([0.5] * 3)
        w.add_vision_image_std([0.5] * 3)
        w.add_array("clip.vision.feature_layer", [LAYERS])  # without it llama.cpp skips the last layer, as LLaVA does
        names = {"patch_embd": "v.patch_embd", "position_embd": "v.position_embd.weight", "blk": "v.blk",
                 "post_ln": "v.post_ln", "mm_0": "mm.0", "mm_2": "mm.2"}
        tensors = {}
        for key, p in self.state_dict().items():
            head, _, rest = key.partition(".")
            tensors[f"{names[head]}.{rest}" if rest else names[head]] = p.numpy()
        for name in ("v.patch_embd.weight", "v.position_embd.weight"):  # llama.cpp convolves and adds these in F32
            w.add_tensor(name, tensors.pop(name))
        text.write_tensors(w, tensors, kind)


def chat(tok, r):
    """The tokens around a picture in a chat's only message: the question is after it, or before."""
    question, parts = QUESTIONS[r.integers(len(QUESTIONS))], ["<|endoftext|><|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"]
    if r.random() < 0.25:
        parts[0] += question
    else:
        parts[1] = question + parts[1]
    return [torch.tensor(tok.encode(part).ids) for part in parts]


def answer(target, around, rows, ids):
    """The target's logits for each token of the captions."""
    before, after = (target.token_embd(part).expand(len(rows), -1, -1) for part in around)
    x = torch.cat((before, rows, after, target.token_embd(ids[:, :-1].clamp(min=0))), 1)
    for block in target.blk:
        x = block(x, target.cos[: x.shape[1]], target.sin[: x.shape[1]])
    return F.linear(target.output_norm(x[:, -ids.shape[1] :]), target.token_embd.weight)


def answer_loss(target, tok, r, rows, ids):
    """The loss of the target's answer, and the share of answers that are the caption."""
    logits = answer(target, chat(tok, r), rows, ids).float()
    right = ((logits.argmax(-1) == ids) | (ids < 0)).all(1).float().mean()
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten(), ignore_index=-1), right


def rows_loss(prompt, target, rows, ids):
    """How far rows are from the prompt's, and the share of captions whose tokens are nearest to them."""
    wanted, embd, rows = prompt(target, ids), target.token_embd.weight, rows.float()
    at = slice(prompt.first, prompt.first + ids.shape[1] - 1)
    nearest = F.linear(rows[:, at] - prompt.offset[at], embd, -0.5 * embd.square().sum(1)).argmax(-1)
    ids = ids[:, :-1]
    return F.mse_loss(rows, wanted) / embd.var(), ((nearest == ids) | (ids < 0) | (ids == prompt.end)).all(1).float().mean()


def class_loss(head, states, classes):
    """How wrong the head is about the colour, the shape and the place, and the share of pictures of which it is right about all."""
    logits = head(F.layer_norm(states.float().mean(1), (WIDTH,))).float().split([len(COLORS), len(SHAPES), len(PLACES)], 1)
    right = torch.stack([part.argmax(1) for part in logits], 1) == classes
    return sum(F.cross_entropy(part, of, ignore_index=-1) for part, of in zip(logits, classes.T)), (right | (classes < 0)).all(1).float().mean()


def run(name, parameters, step_loss, tok, seed, steps, n, peak):
    """One stage of training."""
    is_matrix = [p.dim() == 2 and min(p.shape) > ROWS for p in parameters]
    optimizers = [torch.optim.AdamW([p for p, it in zip(parameters, is_matrix) if not it], betas=(0.9, 0.98), weight_decay=0.01)]
    if any(is_matrix):  # orthogonal updates need fewer steps
        optimizers.append(torch.optim.Muon([p for p, it in zip(parameters, is_matrix) if it], weight_decay=0.01, adjust_lr_fn="match_rms_adamw"))
    start, shares = time.process_time(), []
    for step, batch in zip(range(steps), batches(tok, seed, n)):
        for opt in optimizers:
            opt.zero_grad(set_to_none=True)
            for group in opt.param_groups:
                group["lr"] = peak * min(1, (step + 1) / 50) * (0.5 * (1 + math.cos(math.pi * step / steps)) * 0.98 + 0.02)
        with sdpa_kernel(SDPBackend.MATH):  # the fastest for so few rows
            with torch.autocast("cpu", torch.bfloat16):
                loss, right = step_loss(*batch)
            loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for opt in optimizers:
            opt.step()
        shares.append(right.item())
        if step % 25 == 24 or step + 1 == steps:
            print(f"{name}  step {step + 1:5d}  loss {loss.item():.4f}  right {np.mean(shares[-25:]):.3f}  {time.process_time() - start:.0f} s", flush=True)


def train(encoder, target, tok, scale, seed):
    stages = [(max(1, round(steps * scale)), n, peak) for steps, n, peak in STAGES]
    prompt, head, r = Prompt(tok, target), nn.Linear(WIDTH, len(COLORS) + len(SHAPES) + len(PLACES)), np.random.default_rng(seed)

    def rows_step(pixels, ids, classes):
        states = encoder.inner(pixels)
        loss, right = rows_loss(prompt, target, encoder.outer(states), ids)
        return loss + class_loss(head, states, classes)[0], right

    run("prompt", list(prompt.parameters()), lambda _, ids, __: answer_loss(target, tok, r, prompt(target, ids), ids), tok, seed + 1, *stages[0])
    prompt.requires_grad_(False)
    first = [*encoder.patch_embd.parameters(), encoder.position_embd, *encoder.blk[:-1].parameters(), *head.parameters()]
    run("classes", first, lambda pixels, _, classes: class_loss(head, encoder.inner(pixels), classes), tok, seed + 2, *stages[1])
    run("rows", [*encoder.parameters(), *head.parameters()], rows_step, tok, seed + 3, *stages[2])
    run("answer", list(encoder.parameters()), lambda pixels, ids, _: answer_loss(target, tok, r, encoder(pixels), ids), tok, seed + 4, *stages[3])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).parent
    p.add_argument("--target", type=Path, default=here / "stories-target.gguf")
    p.add_argument("--out", type=Path, default=Path("."))
    p.add_argument("--scale", type=float, default=1, help="of the steps of all stages; 0.01 tries it out")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--type", default="Q8_0", help="the GGUF's type for matrices: F32, F16, Q8_0")
    args = p.parse_args()
    torch.set_num_threads(1)  # the same sums each time, and no threads that wait for each other
    torch.manual_seed(args.seed)
    tok, target, encoder = Tokenizer.from_file(str(here / "tokenizer.json")), load_target(args.target), Encoder()
    train(encoder, target, tok, args.scale, args.seed)
    torch.save(encoder.state_dict(), args.out / "vision.pt")
    encoder.write(args.out / "stories-vision.gguf", args.type)


if __name__ == "__main__":
    main()
