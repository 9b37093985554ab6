"""What check_peers.py and bench/peers share: token files, the data order, and PyTorch's side of a training run."""
import json
import pathlib
import struct
import subprocess
import sys
import time

import numpy as np


def write_tokens(prefix, documents, dtype=np.uint16):
    """PREFIX.bin and PREFIX.idx as Megatron writes them; documents: lists of ids."""
    code = {np.uint16: 8, np.int32: 4}[dtype]
    sizes = np.array([len(d) for d in documents], np.int32)
    item = np.dtype(dtype).itemsize
    with open(f"{prefix}.bin", "wb") as f:
        for d in documents:
            f.write(np.asarray(d, dtype).tobytes())
    pointers = np.concatenate(([0], np.cumsum(sizes[:-1], dtype=np.int64) * item)).astype(np.int64)
    with open(f"{prefix}.idx", "wb") as f:
        f.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(documents), len(documents) + 1))
        f.write(sizes.tobytes() + pointers.tobytes() + np.arange(len(documents) + 1, dtype=np.int64).tobytes())


def sequential(ids, seq_len, first, count):
    """Samples first .. first+count-1 of a file in sequential order: (ids, targets), sample i is tokens i*T .. i*T+T."""
    rows = np.stack([ids[i * seq_len:i * seq_len + seq_len + 1] for i in range(first, first + count)]).astype(np.int64)
    return rows[:, :-1], rows[:, 1:]


def groups(model, decay):
    """AdamW's two groups: weight decay on matrices and tables only."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


def train_step(model, opt, ids, targets, clip, micro_batch=None):
    """One AdamW step on the mean loss of the targets that are not negative; tells (loss, norm before clipping). The norm is summed in
    fp64 and clips as clip_grad_norm_ does: that one's fp32 sum is off by 5e-5 to 9e-5 (measured on SmolLM2-135M)."""
    import torch
    opt.zero_grad(set_to_none=True)
    micro_batch = micro_batch or len(ids)
    total, counted = 0.0, (targets >= 0).sum().item()
    for at in range(0, len(ids), micro_batch):
        logits = model(input_ids=ids[at:at + micro_batch], use_cache=False).logits
        if logits.dtype != torch.float64:
            logits = logits.float()
        part = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]),
                                                 targets[at:at + micro_batch].reshape(-1), reduction="sum") / counted
        part.backward()
        total += part.item()
    norm = sum(p.grad.double().pow(2).sum().item() for p in model.parameters()) ** 0.5
    for p in model.parameters():
        p.grad.mul_(min(1.0, clip / (norm + 1e-6)))
    opt.step()
    return total, norm


class Failed(Exception):
    pass


def run_imece(build, *args, stdin=None):
    """Runs build/imece; stdout as text. A failure is told with its stderr."""
    return run([str(pathlib.Path(build) / "imece"), *map(str, args)], stdin)


def run(argv, stdin=None):
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(argv)}\nexit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def read_metrics(run_dir):
    lines = (pathlib.Path(run_dir) / "metrics.jsonl").read_text().splitlines()
    return [m for m in map(json.loads, lines) if "loss" in m and "grad_norm" in m]


def log(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
