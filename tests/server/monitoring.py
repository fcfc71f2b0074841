"""What configs/monitoring asks of Prometheus: each expression of the dashboard and the rules.

Shared by the test against the app's own exposition and by the run of a real Prometheus.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "configs" / "monitoring"
RULES = sorted((MONITORING / "rules").glob("*.yml"))

Samples = Mapping[str, list[Mapping[str, str]]]  # metric name -> the labels of each of its series

_WORDS = {"and", "or", "unless", "bool"}
_GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"(?<![\w:])([a-zA-Z_:][\w:]*+)(?!\s*\()\s*(?:\{([^}]*)\})?")  # no function
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


@dataclass(frozen=True)
class Query:
    """One expression, with the place that a reader can find it by."""

    place: str
    expr: str

    def filled(self, interval: str) -> str:
        """The expression as Grafana sends it, for all models."""
        return self.expr.replace("$__rate_interval", interval).replace("$model", ".*")

    @property
    def selectors(self) -> list[tuple[str, list[tuple[str, str, str]]]]:
        """Each metric name with its matchers (label, operator, value)."""
        text = _GROUPING.sub(" ", self.filled("1m"))
        text = re.sub(r"\[[^\]]*\]", " ", text)
        found = (match.groups(default="") for match in _SELECTOR.finditer(text))
        return [
            (name, _MATCHER.findall(matchers)) for name, matchers in found if name not in _WORDS
        ]

    @property
    def grouping(self) -> set[str]:
        """Every label that it aggregates by or matches on."""
        lists = (match[2] for match in _GROUPING.finditer(self.expr))
        return {label for text in lists for label in re.findall(r"\w+", text)}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    loaded: dict[str, Any] = json.loads(
        (MONITORING / "grafana" / "dashboards" / "treeline.json").read_text()
    )
    return loaded


def panel_queries() -> Iterator[Query]:
    """Every query of every panel."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield Query(f"{panel['title']} {target['refId']}", target["expr"])


def rules() -> Iterator[dict[str, Any]]:
    """Every rule of every file."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def rule_queries() -> Iterator[Query]:
    """The expression of every rule."""
    for rule in rules():
        yield Query(rule.get("record") or rule["alert"], rule["expr"])


def matches(labels: Mapping[str, str], matcher: tuple[str, str, str]) -> bool:
    """Prometheus's meaning of one label matcher; a missing label is an empty one."""
    label, operator, value = matcher
    actual = labels.get(label, "")
    is_equal = bool(re.fullmatch(value, actual)) if "~" in operator else actual == value
    return is_equal != operator.startswith("!")
