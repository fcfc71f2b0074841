"""PTD's progressive draft tree: a generator that grows beside the text, one level per step.

Its first level is a chain, the spine: spine node s sees spine nodes 0 .. s - 1 and so sits one
position further right than they do. Every node carries a subtree that branches only over time: each
step each node receives the target's top-1 token, which becomes a new child when it is not one yet.
The tree never looks at what was accepted; it is conditioned on the text through attention alone.
"""

from collections.abc import Collection, Iterator, Sequence

from engine.spec.pool import Trie
from engine.spec.tree import EXPLORE, TokenTree

EOS_REACH = 4  # levels above an end-of-sequence token that leave the tree with it


class DraftNode:
    """A token and its continuations, oldest first."""

    __slots__ = ("children", "prediction", "token_id")

    def __init__(self, token_id: int) -> None:
        self.token_id = token_id
        self.children: dict[int, DraftNode] = {}
        self.prediction: int | None = None  # this step's top-1; None: the row was not computed

    @property
    def height(self) -> int:
        """Hops to the deepest descendant."""
        if not self.children:
            return 0
        return 1 + max([child.height for child in self.children.values()])


class DraftTree:
    """At most `width` spine nodes with at most `width` children per node and `depth` levels each.

    One step is: set every `prediction`, read `subtrees`, then `attach`, `refill`,
    `step_and_prune`, `drop_endings`, `trim`, in this order (arXiv 2607.10661, Algorithm 1).
    `max_nodes` bounds the tree after a step and must hold `width * depth` nodes.
    """

    def __init__(self, width: int, depth: int, max_nodes: int) -> None:
        if not 0 < width * depth <= max_nodes:
            raise ValueError(f"{max_nodes} nodes cannot hold {width} chains of depth {depth}")
        self.spine: dict[int, DraftNode] = {}
        self._width = width
        self._depth = depth
        self._max_nodes = max_nodes

    def __iter__(self) -> Iterator[DraftNode]:
        return iter(self._nodes())

    def __len__(self) -> int:
        return len(self._nodes())

    def _nodes(self) -> list[DraftNode]:
        """All nodes, level by level."""
        nodes = list(self.spine.values())
        for node in nodes:  # grows while it is read
            if node.children:
                nodes.extend(node.children.values())
        return nodes

    @property
    def is_full_depth(self) -> bool:
        """Whether some subtree has all its levels."""
        return any(node.height + 1 >= self._depth for node in self.spine.values())

    def plant(self, token_ids: Sequence[int]) -> None:
        """Append a spine node with a chain below it, if its token and a place are free."""
        if len(self.spine) >= self._width or token_ids[0] in self.spine:
            return
        node = self.spine[token_ids[0]] = DraftNode(token_ids[0])
        for token_id in token_ids[1 : self._depth]:
            node.children[token_id] = node = DraftNode(token_id)

    def add_to(self, tree: TokenTree, max_nodes: int, max_depth: int) -> list[DraftNode]:
        """Append EXPLORE nodes to `tree`, level by level, and return them in that order.

        What exceeds `max_nodes` or `max_depth` stays out: the deepest and youngest nodes.
        """
        added: list[tuple[DraftNode, int]] = []
        parent = 0
        for spine_node in self.spine.values():
            if len(added) >= max_nodes or tree.depths[parent] >= max_depth:
                break
            parent = tree.add(parent, spine_node.token_id, EXPLORE)
            added.append((spine_node, parent))
        for node, parent in added:  # grows while it is read: breadth first
            if tree.depths[parent] >= max_depth:
                continue
            for child in node.children.values():
                if len(added) >= max_nodes:
                    break
                added.append((child, tree.add(parent, child.token_id, EXPLORE)))
        return [node for node, _ in added]

    def subtrees(self, anchor: int) -> list[tuple[int, int, Trie]]:
        """Of each node: the token before it, its own, and the trie below it with predictions."""
        found: list[tuple[int, int, Trie]] = []
        previous = anchor
        for node in self.spine.values():
            _collect(node, previous, found)
            previous = node.token_id
        return found

    def attach(self) -> None:
        """Each prediction becomes its node's youngest child, unless known or without room."""
        for node in self._nodes():
            token_id, children = node.prediction, node.children
            if token_id is not None and token_id not in children and len(children) < self._width:
                children[token_id] = DraftNode(token_id)

    def refill(self, root_answer: int) -> None:
        """Lengthen a short spine by one node: what its last node predicts, else the root's answer.
        The prediction moves out of that node's children, without its subtree."""
        last = next(reversed(self.spine.values()), None)
        token_id = root_answer if last is None else last.prediction
        if token_id is None or len(self.spine) >= self._width:
            return
        if last is not None:
            last.children.pop(token_id, None)
        if token_id not in self.spine:
            self.spine[token_id] = DraftNode(token_id)

    def overtake(self, committed: Sequence[int]) -> None:
        """Spine nodes whose token was committed at their position step past the committed text.

        Each is replaced in place by the eldest child of the last node on its path that the text
        followed; without such a child it leaves. (Not in the paper.)
        """
        spine: dict[int, DraftNode] = {}
        for index, node in enumerate(self.spine.values()):
            heir: DraftNode | None = node
            if node.token_id in committed[index : index + 1]:
                for token_id in committed[index + 1 :]:
                    if token_id not in node.children:
                        break
                    node = node.children[token_id]
                heir = next(iter(node.children.values()), None)
            if heir is not None and heir.token_id not in spine:
                spine[heir.token_id] = heir
        self.spine = spine

    def step_and_prune(self) -> None:
        """Depth control: a spine node with a level too many gives way to its eldest child whose
        token is not in the spine, appended last; if all collide the subtree leaves."""
        for node in list(self.spine.values()):
            if node.height < self._depth:
                continue
            heirs = (child for child in node.children.values() if child.token_id not in self.spine)
            heir = next(heirs, None)
            del self.spine[node.token_id]
            if heir is not None:
                self.spine[heir.token_id] = heir

    def drop_endings(self, eos_token_ids: Collection[int]) -> None:
        """Remove what leads to an end of sequence: the subtree four levels above each such token,
        or the spine node's where that is nearer."""
        if any(node.token_id in eos_token_ids for node in self._nodes()):
            _drop_endings(self.spine, eos_token_ids)

    def trim(self) -> None:
        """Size control, and the step's end: above `max_nodes` the deepest, youngest leaves go.

        Each spine node's chain of eldest children stays, so that the tree can always step.
        """
        nodes = self._nodes()
        for node in nodes:
            node.prediction = None
        excess = len(nodes) - self._max_nodes
        if excess <= 0:
            return
        kept: set[DraftNode] = set()
        for heir in self.spine.values():
            kept.add(heir)
            while heir.children:
                heir = next(iter(heir.children.values()))
                kept.add(heir)
        edges = [(heir, child) for heir in self.spine.values() for child in heir.children.values()]
        for _, node in edges:  # grows while it is read: breadth first
            edges.extend((node, child) for child in node.children.values())
        removable = [(parent, node) for parent, node in reversed(edges) if node not in kept]
        for parent, node in removable[:excess]:
            del parent.children[node.token_id]


def _collect(node: DraftNode, previous: int, found: list[tuple[int, int, Trie]]) -> Trie:
    trie: Trie = {}
    found.append((previous, node.token_id, trie))
    for child in node.children.values():
        trie[child.token_id] = _collect(child, node.token_id, found)
    if node.prediction is not None:
        trie.setdefault(node.prediction, {})
    return trie


def _hops_to_ending(node: DraftNode, eos_token_ids: Collection[int]) -> int:
    """Hops down to the nearest end of sequence, or more than EOS_REACH."""
    if node.token_id in eos_token_ids:
        return 0
    children = node.children.values()
    return 1 + min([_hops_to_ending(child, eos_token_ids) for child in children], default=EOS_REACH)


def _drop_endings(nodes: dict[int, DraftNode], eos_token_ids: Collection[int]) -> None:
    for node in list(nodes.values()):
        if _hops_to_ending(node, eos_token_ids) <= EOS_REACH:
            del nodes[node.token_id]
        else:
            _drop_endings(node.children, eos_token_ids)
