"""The metrics of many replicas as one page, each sample labelled with its replica.

A scrape through the proxy would reach any one replica, so the one that is asked asks all.
"""

import re
from collections.abc import Mapping

_SAMPLE = re.compile(rb"^(\w+)(?:\{(.*)\})? ", re.MULTILINE)
_FAMILY = re.compile(rb"^# HELP (\w+) ", re.MULTILINE)


def merge_expositions(pages: Mapping[str, bytes]) -> bytes:
    """One page in Prometheus's text format. `pages`: replica -> its own page, whose families each
    begin with their HELP line; a replica's name holds no quote, backslash or line break."""
    headers: dict[bytes, bytes] = {}
    samples: dict[bytes, list[bytes]] = {}
    for replica, page in sorted(pages.items()):
        starts = [found.start() for found in _FAMILY.finditer(page)]
        for start, end in zip(starts, [*starts[1:], len(page)], strict=True):
            help_line, type_line, rest = page[start:end].split(b"\n", 2)
            name = help_line.split(b" ", 3)[2]
            headers.setdefault(name, help_line + b"\n" + type_line + b"\n")
            samples.setdefault(name, []).append(_labelled(rest, replica.encode()))
    return b"".join(header + b"".join(samples[name]) for name, header in headers.items())


def _labelled(lines: bytes, replica: bytes) -> bytes:
    label = b'replica="' + replica + b'"'

    def add(found: re.Match[bytes]) -> bytes:
        name, labels = found.groups()
        return name + b"{" + label + (b"," + labels if labels else b"") + b"} "

    return _SAMPLE.sub(add, lines)
