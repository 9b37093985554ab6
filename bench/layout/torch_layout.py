#!/usr/bin/env python3
"""torch_layout.py KIND MODEL DATA STEPS B T LOG: one rank of PyTorch's side of bench_layout.py; RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT are set. KIND: ddp, fsdp2, zero1, zero3 (the last two DeepSpeed's). One thread a rank, fp32, AdamW, the norm clipped.

MODEL is a directory with config.json; weights are random, dropout is off. DATA is PREFIX of a 16-bit token file; B sequences of T tokens a
step over all ranks. Rank 0 appends a line of JSON a step to LOG: seconds, loss.
"""
import json
import os
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

LR, BETAS, DECAY, CLIP = 1e-4, (0.9, 0.95), 0.1, 1.0


def build(path):
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(path)
    for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout"):
        if hasattr(config, key):
            setattr(config, key, 0.0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").train()


def groups(model):
    matrices, rest = [p for p in model.parameters() if p.dim() >= 2], [p for p in model.parameters() if p.dim() < 2]
    return [{"params": matrices, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]


def loss_of(model, x, y):
    logits = model(input_ids=x, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))


def torch_step(kind, model):
    """A step of DDP or FSDP2 (fully_shard of each block, then of the rest)."""
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.transformer.h:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(groups(model), lr=LR, betas=BETAS, fused=kind == "ddp")

    def step(x, y):
        loss = loss_of(model, x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        opt.step()
        opt.zero_grad(set_to_none=True)
        return loss.item()
    return step


def deepspeed_step(stage, model, batch):
    import deepspeed
    world = dist.get_world_size()
    config = {"train_batch_size": batch, "train_micro_batch_size_per_gpu": batch // world, "gradient_clipping": CLIP,
              "zero_optimization": {"stage": stage, "overlap_comm": True}, "zero_allow_untested_optimizer": True, "steps_per_print": 10**9}
    opt = torch.optim.AdamW(groups(model), lr=LR, betas=BETAS, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=opt, config=config, dist_init_required=False)

    def step(x, y):
        loss = loss_of(engine, x, y)
        engine.backward(loss)
        engine.step()
        return loss.item()
    return step


def main():
    kind, path, data, steps, B, T, log = sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7]), sys.argv[7]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    if kind.startswith("zero"):
        import deepspeed
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    else:
        dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = build(path)
    step = deepspeed_step(int(kind[4:]), model, B) if kind.startswith("zero") else torch_step(kind, model)
    tokens = np.memmap(data + ".bin", np.uint16, "r")
    mine = range(B * rank // world, B * (rank + 1) // world)
    for s in range(steps):
        t0 = time.perf_counter()
        rows = np.stack([tokens[i * T:i * T + T + 1] for i in (s * B + k for k in mine)]).astype(np.int64)
        loss = step(torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy()))
        if rank == 0:
            with open(log, "a") as f:
                f.write(json.dumps({"step_s": time.perf_counter() - t0, "loss": loss}) + "\n")
    dist.barrier()
    os._exit(0)  # the launcher's pipes are closed; nothing else is worth waiting for


main()
