#!/usr/bin/env python3
"""check_megatron.py [--build DIR]: token files against megatron-core's IndexedDataset.

  read      what `imece data build` writes opens there: every document, id for id, 16 and 32 bits, with and without a mask beside it
  write     what IndexedDatasetBuilder writes (documents of several sequences, empty ones, every integer type) opens here: verified whole, shown
            document by document, and read by `imece data merge`
Exit code 3 when something differs.
"""
import argparse
import json
import pathlib
import sys
import tempfile
import warnings

import numpy as np

from peerlib import Failed, log, run_imece

warnings.filterwarnings("ignore")
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]


def documents_of(prefix):
    """The documents of a file as megatron-core reads them: arrays of ids."""
    data = IndexedDataset(str(prefix), mmap=True)
    bounds = data.document_indices
    return [np.concatenate([data[s] for s in range(a, b)] or [np.array([], np.int64)]) for a, b in zip(bounds[:-1], bounds[1:])]


def same(ours, theirs):
    return len(ours) == len(theirs) and all(len(a) == len(b) and (np.asarray(a) == np.asarray(b)).all() for a, b in zip(ours, theirs))


def check_read(build, work):
    rng = np.random.default_rng(4)
    lines = ["".join(chr(c) for c in rng.choice([*range(97, 123), 32, 0x131, 0x4e2d], rng.integers(1, 300))).strip() or "x" for _ in range(3000)]
    (work / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run_imece(build, "data", "build", work / "text.txt", "--split", "lines", "--out", work / "bytes", "--valid-fraction", 0)
    yield "bytes, uint16", same([[*line.encode(), 256] for line in lines], documents_of(work / "bytes-train"))
    ids = [rng.integers(0, 2**31 - 1, rng.integers(1, 200)) for _ in range(2000)]
    (work / "ids.txt").write_text("\n".join(" ".join(map(str, d)) for d in ids) + "\n")
    run_imece(build, "data", "build", work / "ids.txt", "--ids", "--out", work / "ids", "--valid-fraction", 0)
    yield "ids, int32", same(ids, documents_of(work / "ids-train"))
    chats = [{"prompt": "soru %d" % i, "completion": "cevap"} for i in range(50)]
    (work / "chat.jsonl").write_text("".join(json.dumps(c) + "\n" for c in chats))
    run_imece(build, "data", "build", work / "chat.jsonl", "--chat", "auto", "--out", work / "chat", "--valid-fraction", 0)
    yield "conversations", same([[*(c["prompt"] + c["completion"]).encode(), 256] for c in chats], documents_of(work / "chat-train"))


def check_write(build, work):
    rng = np.random.default_rng(5)
    for dtype in (np.uint8, np.int8, np.uint16, np.int16, np.int32, np.int64):
        most = min(np.iinfo(dtype).max, 2**31 - 1)
        docs = [[rng.integers(0, most, n).astype(dtype) for n in rng.integers(0, 40, rng.integers(1, 4))] for _ in range(300)]
        prefix = work / f"megatron-{np.dtype(dtype).name}"
        builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
        import torch
        for doc in docs:
            for sequence in doc:
                builder.add_item(torch.from_numpy(sequence.astype(np.int64)))
            builder.end_document()
        builder.finalize(f"{prefix}.idx")
        whole = [np.concatenate(d) for d in docs]
        info = json.loads(run_imece(build, "data", "info", prefix, "--json"))
        good = info["documents"] == len(docs) and info["tokens"] == sum(map(len, whole)) and info["dtype"] == np.dtype(dtype).name
        for i in range(0, len(docs), 37):
            shown = run_imece(build, "data", "show", prefix, "--document", i, "--ids").split()
            good = good and list(map(int, shown)) == whole[i].tolist()
        run_imece(build, "data", "merge", prefix, "--out", work / "merged", "--force")
        good = good and same([d for d in whole if len(d)], documents_of(work / "merged"))
        yield np.dtype(dtype).name, good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    args = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory(prefix="imece-megatron-") as work:
        for name, check in (("read", check_read), ("write", check_write)):
            log(f"megatron-core: {name}")
            try:
                for what, good in check(args.build, pathlib.Path(work)):
                    failures += not good
                    print(f"{'ok  ' if good else 'FAIL'} megatron {name}: {what}", flush=True)
            except Failed as e:
                failures += 1
                print(f"FAIL megatron {name}: {e}", flush=True)
    sys.exit(3 if failures else 0)


if __name__ == "__main__":
    main()
