"""The servers' part of compare_peers.py: the same prompts over HTTP, alone and several at once."""

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer_servers import ServerPeer, llama_server, treeline_server
from peers import Answer
from tqdm import tqdm

CLIENTS = (1, 4)
SERVERS = ("treeline off http", "treeline auto http", "llama.cpp server")
PLAIN = {"treeline auto http": "treeline off http"}
LLAMA_LOOKUPS = (0, 10)
_WARM_UP_TOKENS = 8


@dataclass(slots=True)
class Load:
    """All that one server in one setting answered to so many clients."""

    answers: list[Answer] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second of all clients together."""
        return sum(len(answer.token_ids) for answer in self.answers) / self.seconds


Loads = dict[tuple[str, int], dict[str, Load]]  # by name and clients, then by setting


@contextlib.contextmanager
def open_servers(
    config: str, gguf: Path | None, context: int, threads: int, encode: Callable[[str], list[int]]
) -> Iterator[tuple[list[ServerPeer], dict[str, str]]]:
    """Every server that is here, and why another is not. `gguf`: None leaves llama.cpp out."""
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(treeline_server(config))
        peers = [
            ServerPeer(
                f"treeline {method} http",
                "",
                url,
                encode,
                {"speculation": {"method": method, "stats": True}},
            )
            for method in ("off", "auto")
        ]
        try:
            if gguf is None:
                raise ImportError("no GGUF file")
            for lookup in LLAMA_LOOKUPS:
                url = stack.enter_context(llama_server(gguf, context, threads, lookup))
                setting = f"draft_model_num_pred_tokens={lookup}" if lookup else "no draft model"
                peers.append(ServerPeer(SERVERS[2], setting, url, encode))
        except ImportError as error:
            missing[SERVERS[2]] = str(error)
        yield peers, missing


def compare_servers(peers: Sequence[ServerPeer], prompts: Sequence[str], max_tokens: int) -> Loads:
    """Groups of prompts, each to every server alone and at once, so that all drift alike."""
    loads: Loads = {}
    size = max(CLIENTS)
    groups = [prompts[start : start + size] for start in range(0, len(prompts), size)]
    for peer in peers:
        peer.run(prompts[:1], 1, _WARM_UP_TOKENS)
    with tqdm(total=len(groups) * len(peers) * len(CLIENTS), unit="load", disable=None) as progress:
        for group in groups:
            for clients in CLIENTS:
                for peer in peers:
                    progress.set_description(f"{peer.name}, {clients} clients")
                    answers, seconds = peer.run(group, clients, max_tokens)
                    settings = loads.setdefault((peer.name, clients), {})
                    load = settings.setdefault(peer.setting, Load())
                    load.answers += answers
                    load.seconds += seconds
                    progress.update()
    return loads


def summarise_servers(loads: Loads, missing: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row per server and number of clients: its fastest setting. `missing`: why there is none.

    `identical`: answers that are those of one client without speculation on the same server.
    """
    rows: list[dict[str, Any]] = []
    for name in SERVERS:
        for clients in CLIENTS:
            label = name if clients == 1 else f"{name}, {clients} clients"
            if name in missing:
                empty = dict.fromkeys(("tokens_per_second", "ttft_ms", "tau"))
                rows.append({"name": label, **empty, "missing": missing[name]})
                continue
            setting, best = max(loads[name, clients].items(), key=lambda item: item[1].rate)
            plain = next(iter(loads[PLAIN.get(name, name), 1].values()))
            steps = sum(answer.forwards for answer in best.answers)
            tokens = sum(len(answer.token_ids) for answer in best.answers)
            rows.append(
                {
                    "name": label,
                    "tokens_per_second": best.rate,
                    "ttft_ms": 1e3 * statistics.median(answer.ttft for answer in best.answers),
                    "tau": tokens / steps if steps else None,
                    "clients": clients,
                    "setting": setting,
                    "prompts": len(best.answers),
                    "tokens": tokens,
                    "identical": sum(
                        a.token_ids == b.token_ids
                        for a, b in zip(best.answers, plain.answers, strict=True)
                    ),
                }
            )
    return rows
