"""Sample-then-walk: the one verification rule of every method.

Training-free drafters propose points, not distributions. So nothing is accepted or rejected by a
ratio: the next token is drawn from the target model as if nothing had been drafted, and the tree
merely tells whether the row after that token is already computed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engine.spec.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Walk:
    """What one verified tree gave."""

    path: list[int]  # accepted nodes, from the anchor's child downwards
    token_ids: list[int]  # drawn tokens: one per path node, then the bonus token


def walk(tree: TokenTree, draw: Callable[[int], int], is_final: Callable[[int], bool]) -> Walk:
    """Follow the drawn tokens down the tree.

    `draw(node)` draws the token after `node` from the target model. `is_final(token)` commits a
    token and says whether the request ends with it; the walk stops there, so that nothing behind
    an end is ever drawn, counted or kept. The last token is always the bonus token, also where a
    drafted child carries it: tokens = accepted + 1 in every step.
    """
    node, path, token_ids = 0, [], []
    while True:
        token_id = draw(node)
        token_ids.append(token_id)
        if is_final(token_id):
            break
        child = tree.child(node, token_id)
        if child is None:
            break
        path.append(child)
        node = child
    return Walk(path, token_ids)
