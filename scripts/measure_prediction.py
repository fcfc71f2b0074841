#!/usr/bin/env python3
"""What a predicted output is worth: edit tasks decoded plainly, by `auto`, and with a prediction.

    python scripts/measure_prediction.py --limit 10 --max-tokens 768 --begun 12 --json out.json

Each row of scripts/prompts/prediction.jsonl asks for a file with one name changed, and predicts the
file as it was. The three arms take turns on each task, so that a machine that drifts drifts for all
alike; their tokens must be equal. Speed is that of decoding alone: first token to last.

A model that is too small for the task writes something else than the edited file, and the file as
it was then predicts nothing. `--begun N` begins the answer with N lines of the edited file, from
which small models go on; `agreement` is the share of the prediction that came. `--own-answer`
measures the drafting apart from the model's skill: the prediction is the model's own plain answer
with its most frequent name replaced.
"""

import argparse
import json
import re
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from engine.build import build_core, load_tokenizer
from engine.config import SpeculationConfig
from engine.core import EngineCore
from engine.text.tokenizer import Tokenizer
from engine.types import EngineRequest, SamplingParams
from server.config_loader import DEFAULT_CONFIG, load_settings

TASKS = Path(__file__).parent / "prompts" / "prediction.jsonl"
ARMS = ("off", "auto", "prediction")


def decode(core: EngineCore, request: EngineRequest) -> tuple[list[int], dict[str, Any]]:
    """One request alone: its tokens and figures."""
    core.add(request)
    tokens: list[int] = []
    end = None
    while core.has_work:
        for output in core.step().outputs:
            tokens += output.new_token_ids
            end = output
    assert end is not None
    if end.error or end.stats is None or end.times is None:
        raise RuntimeError(end.error or "the request never ran")
    seconds = end.times.last_token - end.times.first_token
    return tokens, {
        "tokens": len(tokens),
        "tokens_per_second": (len(tokens) - 1) / seconds if seconds else 0.0,
        "tau": end.stats.tau,
        "accepted": end.stats.accepted_prediction_tokens,
        "rejected": end.stats.rejected_prediction_tokens,
    }


def begin(task: dict[str, Any], num_lines: int) -> str:
    """The first lines of the answer as it should be, in its code block."""
    (old, new) = re.findall(r"`(\w+)`", task["turns"][0].partition("\n")[0])[:2]
    edited = re.sub(rf"\b{old}\b", new, task["prediction"])
    return "\n".join(["```python", *edited.splitlines()[:num_lines], ""])


def renamed(text: str) -> str:
    """The text with its most frequent name, of four letters or more, replaced by another."""
    names = Counter(re.findall(r"[A-Za-z_]{4,}", text)).most_common(1)
    return re.sub(rf"\b{names[0][0]}\b", "replacement", text) if names else text


def measure(
    core: EngineCore,
    tokenizer: Tokenizer,
    speculation: SpeculationConfig,
    task: dict[str, Any],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """All arms on one task. Raises AssertionError if their tokens differ."""
    messages = [{"role": "user", "content": task["turns"][0]}]
    text = tokenizer.render_chat(messages)
    if options.begun:
        text += begin(task, options.begun)
    prompt = tuple(tokenizer.encode(text, add_special_tokens=False))
    predicted = tuple(tokenizer.encode(task["prediction"], add_special_tokens=False))
    sampling = SamplingParams(max_tokens=options.max_tokens, seed=0, temperature=0.0)
    texts: list[list[int]] = []
    row: dict[str, Any] = {}
    for arm in ARMS:
        if arm == "prediction" and options.own_answer:
            text = renamed(tokenizer.decode(texts[0]))
            predicted = tuple(tokenizer.encode(text, add_special_tokens=False))
        plan = speculation.resolve("off" if arm == "off" else "auto")
        expected = predicted if arm == "prediction" else ()
        request = EngineRequest(f"{task['id']}/{arm}", prompt, sampling, plan, 0.0, expected)
        tokens, row[arm] = decode(core, request)
        texts.append(tokens)
    assert texts[0] == texts[1] == texts[2], f"{task['id']}: the arms differ"
    return row


def main() -> int:
    """Measure, print a line per task, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default=DEFAULT_CONFIG)
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=768)
    parser.add_argument("--begun", type=int, default=0, metavar="N", help="lines of the answer")
    parser.add_argument("--own-answer", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    engine = load_settings(options.config).engine
    tokenizer = load_tokenizer(engine)
    core, _ = build_core(engine, tokenizer)
    tasks = [json.loads(line) for line in TASKS.read_text("utf-8").splitlines()[: options.limit]]
    rows = []
    for task in tasks:
        row = measure(core, tokenizer, engine.speculation, task, options)
        rows.append({"id": task["id"], **row})
        shown = (
            f"{arm} {row[arm]['tokens_per_second']:.1f}/s tau {row[arm]['tau']:.2f}" for arm in ARMS
        )
        last = row["prediction"]
        agreement = last["accepted"] / (last["accepted"] + last["rejected"])
        print(task["id"], *shown, f"agreement {agreement:.2f}")
    for arm, base in (("auto", "off"), ("prediction", "off"), ("prediction", "auto")):
        gains = [r[arm]["tokens_per_second"] / r[base]["tokens_per_second"] for r in rows]
        print(f"{arm} over {base}: {statistics.median(gains):.2f}, median of {len(rows)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
