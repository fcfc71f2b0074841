#!/usr/bin/env python3
"""Log-likelihoods as the harness lm-eval gets them from a Treeline server that speculates, beside
those of transformers on the same weights. scripts/check_lm_eval installs lm-eval and runs this.

Each row of the task is a beginning with two ends. The exit code is 1 if any end's log-likelihood,
or whether greedy decoding would give it, is another than transformers'.
"""

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import torch
import transformers

from engine.model.source import resolve_source
from server.config_loader import DEFAULT_CONFIG, load_settings

ROWS = (
    ("The capital of France is", "Paris", "a small stone"),
    ("The opposite of hot is", "cold", "cheese"),
    ("def add(a, b):\n    return", "a + b", "the sea"),
    ("Once upon a time there was", "a little girl who lived in a village", "7 + 12 = 19"),
    ("Water boils at a temperature of", "100 degrees Celsius", "Tuesday afternoon"),
    ("The three primary colors are red, yellow and", "blue", "seventeen"),
    ("import numpy as", "np", "a river"),
    ("Grüße aus", "München, der schönsten Stadt", "return None"),
    ("Two plus two equals", "four", "the moon, which is far away"),
    ("The sun rises in the", "east and sets in the west", "for i in range(10)"),
    ("A list in Python is written with", "square brackets", "salt and pepper"),
    ("The author of Romeo and Juliet is", "William Shakespeare", "the number nine"),
)
TASK = """\
task: treeline_check
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{begin}}}}"
doc_to_choice: "{{{{[good, bad]}}}}"
doc_to_target: 0
target_delimiter: " "
metric_list: [{{metric: acc}}]
"""
Scores = list[tuple[float, bool]]  # of every end, in order: log-likelihood, and is it greedy's


@contextlib.contextmanager
def served(url: str | None, config: str) -> Iterator[str]:
    """The address of the server: the given one, or of one that runs meanwhile, in float32."""
    if url is not None:
        yield url
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "server.cli", "serve", "--config", config, "--port", port]
    process = subprocess.Popen([*command, "--dtype", "float32"])
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def wait_until_ready(url: str, process: subprocess.Popen[bytes], seconds: float = 600.0) -> None:
    """Poll /ready. Raises RuntimeError if the server ends, or takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/ready").is_success:
                return
        time.sleep(0.5)
    raise RuntimeError("the server did not become ready")


def by_harness(lm_eval: Path, url: str, model: str, tokenizer: Path, folder: Path) -> Scores:
    """What lm-eval logs for every end. Raises CalledProcessError if it fails."""
    data = folder / "rows.jsonl"
    keys = ("begin", "good", "bad")
    rows = [json.dumps(dict(zip(keys, row, strict=True))) for row in ROWS]
    data.write_text("\n".join(rows) + "\n", "utf-8")
    (folder / "task.yaml").write_text(TASK.format(data=data), "utf-8")
    arguments = {
        "model": model,
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": tokenizer,
        "num_concurrent": 4,
    }
    joined = ",".join(f"{name}={value}" for name, value in arguments.items())
    command = [lm_eval, "--model", "local-completions", "--model_args", joined]
    command += ["--tasks", "treeline_check", "--include_path", folder]
    command += ["--output_path", folder / "out", "--log_samples"]
    subprocess.run(command, check=True)
    (log,) = (folder / "out").rglob("samples_*.jsonl")
    samples = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    samples.sort(key=lambda sample: sample["doc_id"])
    ends = [answer for sample in samples for answer in sample["filtered_resps"]]
    return [(float(value), str(is_greedy) == "True") for value, is_greedy in ends]


@torch.inference_mode()
def by_transformers(folder: Path) -> Scores:
    """The same from the model itself, in float32."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    scores: Scores = []
    for begin, *ends in ROWS:
        known = len(tokenizer(begin)["input_ids"])
        for end in ends:
            ids = torch.tensor(tokenizer(f"{begin} {end}")["input_ids"])
            logits = model(ids[None]).logits[0, known - 1 : -1]
            own = logits.log_softmax(-1).gather(-1, ids[known:, None])
            is_greedy = bool((logits.argmax(-1) == ids[known:]).all())
            scores.append((own.sum().item(), is_greedy))
    return scores


def main() -> int:
    """Score with both, and print the largest difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lm-eval", type=Path, required=True, help="the harness's command")
    parser.add_argument("--config", default=DEFAULT_CONFIG)
    parser.add_argument("--url", help="a running server of the configured model")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="nats per end")
    options = parser.parse_args()
    model = load_settings(options.config).engine.model
    folder = resolve_source(model.source)
    with served(options.url, options.config) as url, tempfile.TemporaryDirectory() as work:
        described = httpx.get(f"{url}/v1/models").json()["data"][0]
        scored = by_harness(options.lm_eval, url, described["id"], folder, Path(work))
    expected = by_transformers(folder)
    differences = [abs(a - b) for (a, _), (b, _) in zip(scored, expected, strict=True)]
    same = sum(a == b for (_, a), (_, b) in zip(scored, expected, strict=True))
    print(f"method {described['speculation']['method']}: {len(scored)} log-likelihoods,")
    print(f"largest difference {max(differences):.2e} nats (tolerance {options.tolerance:g}),")
    print(f"greedy in agreement: {same} of {len(scored)}")
    is_close = all(difference <= options.tolerance for difference in differences)  # a NaN is not
    return int(not (is_close and same == len(scored)))


if __name__ == "__main__":
    sys.exit(main())
