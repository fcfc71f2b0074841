#!/usr/bin/env python3
"""What speculation is worth where an answer must follow a grammar, and that both hold.

    python scripts/measure_structured.py --limit 200 --json out.json

Every prompt meets every constraint: JSON schemas, regular expressions and choices. An answer counts
as valid if an independent validator (jsonschema_rs, re) accepts the whole of it; the same prompt is
also answered freely, and plainly (`off`) under its constraint. Exit code 1 if a finished answer is
invalid, or if any differs from the plain one. Only counts are reported, no times.
"""

import argparse
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs

from engine.build import build_core, load_tokenizer
from engine.core import EngineCore
from engine.text.grammars import Grammars
from engine.text.tokenizer import Tokenizer
from engine.types import EngineRequest, FinishReason, SamplingParams, SpecStats, SpeculationPlan
from server.config_loader import DEFAULT_CONFIG, load_settings

SUBJECTS = (
    *("a film about the sea", "a city in the north", "an old bridge", "a well-known song"),
    *("a recipe with rice", "a dog", "the planet Mars", "a bicycle", "a chess player"),
    *("a train journey", "a novel", "the weather today", "a Python function", "a football match"),
    *("a museum", "a cup of tea", "a mountain", "a computer", "a flower", "the year 1969"),
)
WORD = {"type": "string", "maxLength": 16}


def an_object(**properties: Any) -> dict[str, Any]:
    """A closed object whose properties are all required."""
    closed = {"additionalProperties": False, "required": list(properties)}
    return {"type": "object", "properties": properties, **closed}


SCHEMAS = (
    an_object(name=WORD, year={"type": "integer", "minimum": 1000, "maximum": 2030}),
    an_object(kind={"enum": ["thing", "person", "place", "event"]}, known={"type": "boolean"}),
    an_object(title=WORD, tags={"type": "array", "items": WORD, "minItems": 1, "maxItems": 2}),
    an_object(at=an_object(x={"type": "integer", "maximum": 99, "minimum": 0}), note=WORD),
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
)
PATTERNS = (r"[A-Z][a-z]{2,12} is [a-z]{2,12}\.", r"\d{4}-\d{2}-\d{2}", r"(yes|no), [a-z ]{3,30}\.")
CHOICES = (["positive", "negative", "neutral"], ["I do not know.", "I know it.", "I am not sure."])


@dataclass(frozen=True)
class Constraint:
    """A grammar, and an independent judge of whole answers."""

    name: str
    grammar: str
    is_valid: Callable[[str], bool]


def constraints(grammars: Grammars) -> Iterator[Constraint]:
    """All constraints, the kinds mixed, so that any number of cases is varied."""
    of_schemas = [
        Constraint(f"json_schema {i}", grammars.json_schema(schema), fits_schema(schema))
        for i, schema in enumerate(SCHEMAS)
    ]
    of_patterns = [
        Constraint(f"regex {i}", grammars.regex(pattern), fits_pattern(pattern))
        for i, pattern in enumerate(PATTERNS)
    ]
    of_choices = [
        Constraint(f"choice {i}", grammars.choice(texts), texts.__contains__)
        for i, texts in enumerate(CHOICES)
    ]
    groups = itertools.zip_longest(of_schemas, of_patterns, of_choices)
    yield from (one for group in groups for one in group if one is not None)


def fits_schema(schema: dict[str, Any]) -> Callable[[str], bool]:
    """Whether a text is JSON of the schema."""
    validator = jsonschema_rs.validator_for(schema)

    def judge(text: str) -> bool:
        try:
            return bool(validator.is_valid(json.loads(text)))
        except json.JSONDecodeError:
            return False

    return judge


def fits_pattern(pattern: str) -> Callable[[str], bool]:
    """Whether the pattern matches a whole text."""
    return lambda text: re.fullmatch(pattern, text) is not None


@dataclass(frozen=True)
class Case:
    """One prompt under one constraint, or free."""

    prompt: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True)
class Result:
    """What became of one case."""

    token_ids: tuple[int, ...]
    is_finished: bool
    stats: SpecStats


def decode(core: EngineCore, cases: Sequence[Case], plan: SpeculationPlan) -> list[Result]:
    """Run cases together to their ends. Raises RuntimeError if one fails."""
    tokens: dict[str, list[int]] = {str(index): [] for index in range(len(cases))}
    ends: dict[str, tuple[bool, SpecStats]] = {}
    for name, case in zip(tokens, cases, strict=True):
        core.add(EngineRequest(name, case.prompt, case.sampling, plan, 0.0))
    while core.has_work:
        for output in core.step().outputs:
            tokens[output.request_id] += output.new_token_ids
            if output.finish_reason is FinishReason.ERROR or output.error:
                raise RuntimeError(output.error)
            if output.finish_reason is not None and output.stats is not None:
                is_finished = output.finish_reason is FinishReason.STOP
                ends[output.request_id] = is_finished, output.stats
    return [Result(tuple(ids), *ends[name]) for name, ids in tokens.items()]


def measure(
    core: EngineCore,
    tokenizer: Tokenizer,
    named: Sequence[tuple[Constraint, str]],
    plans: Sequence[SpeculationPlan],
    sampling: dict[str, Any],
) -> list[dict[str, Any]]:
    """One row per (constraint, subject), run together. `plans`: the method's, and that of `off`."""
    plan, plain_plan = plans
    bound, free = [], []
    for constraint, subject in named:
        messages = [{"role": "user", "content": f"Describe {subject} shortly."}]
        prompt = tuple(tokenizer.encode(tokenizer.render_chat(messages), add_special_tokens=False))
        bound.append(Case(prompt, SamplingParams(grammar=constraint.grammar, **sampling)))
        free.append(Case(prompt, SamplingParams(**sampling)))
    runs = zip(
        decode(core, bound, plan),
        decode(core, bound, plain_plan),
        decode(core, free, plan),
        strict=True,
    )
    rows = []
    for (constraint, subject), (fast, plain, unbound) in zip(named, runs, strict=True):
        text = tokenizer.decode(fast.token_ids)
        rows.append(
            {
                "constraint": constraint.name,
                "subject": subject,
                "text": text,
                "is_finished": fast.is_finished,
                "is_valid": constraint.is_valid(text),
                "is_plain": fast.token_ids == plain.token_ids,
                "bound": asdict(fast.stats),
                "free": asdict(unbound.stats),
            }
        )
    return rows


def report(rows: Sequence[dict[str, Any]], method: str) -> bool:
    """Print the figures. Returns whether all finished answers are valid and all equal `off`'s."""

    def tau(some: Sequence[dict[str, Any]], arm: str) -> float:
        steps = sum(row[arm]["steps"] for row in some)
        return float(sum(row[arm]["tokens"] for row in some) / steps)

    print(f"{'constraint':>14} {'valid':>9} {'cut':>4} {'as off':>9} {'tau':>6} {'free':>6}")
    kinds = {"all": list(rows)}
    for row in rows:
        kinds.setdefault(row["constraint"].split()[0], []).append(row)
    for kind, some in kinds.items():
        finished = [row for row in some if row["is_finished"]]
        valid = f"{sum(row['is_valid'] for row in finished)}/{len(finished)}"
        same = f"{sum(row['is_plain'] for row in some)}/{len(some)}"
        taus = f"{tau(some, 'bound'):6.2f} {tau(some, 'free'):6.2f}"
        print(f"{kind:>14} {valid:>9} {len(some) - len(finished):>4} {same:>9} {taus}")
    print(f"method {method}; cut: answers that max_tokens ended; free: the prompts without grammar")
    return all((row["is_valid"] or not row["is_finished"]) and row["is_plain"] for row in rows)


def main() -> int:
    """Measure, and print a line per kind of constraint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default=DEFAULT_CONFIG)
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=1, help="cases run together")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    engine = load_settings(options.config).engine
    tokenizer = load_tokenizer(engine)
    core, info = build_core(engine, tokenizer)
    known = list(constraints(tokenizer.grammars(info.vocab_size, info.eos_token_ids)))
    pairs = [
        (known[i % len(known)], SUBJECTS[i // len(known) % len(SUBJECTS)])
        for i in range(options.limit)
    ]
    sampling = {"max_tokens": options.max_tokens, "seed": 0, "temperature": options.temperature}
    plans = [engine.speculation.resolve(method) for method in (options.method, "off")]
    rows: list[dict[str, Any]] = []
    for start in range(0, len(pairs), options.batch):
        some = pairs[start : start + options.batch]
        rows += measure(core, tokenizer, some, plans, sampling)
        print(f"\r{len(rows)}/{len(pairs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    is_right = report(rows, options.method)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main())
