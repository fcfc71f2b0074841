from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.config import RestConfig
from engine.errors import ConfigError
from engine.spec.datastore import SEPARATOR, Datastore, build_datastore
from engine.spec.drafter import DraftLimits, Needs
from engine.spec.rest import Rest
from tests.unit.toy import ROOMY, Toy, assert_tree_is_sound, decode, plan


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


def build(folder: Path, *documents: str) -> Datastore:
    files = []
    for number, document in enumerate(documents):
        files.append(folder / f"{number}.txt")
        files[-1].write_text(document, encoding="utf-8")
    assert build_datastore(files, encode, folder / "store") == sum(map(len, documents))
    return Datastore.load(folder / "store", encode)


def rest(text: str, store: Datastore, config: RestConfig | None = None) -> Rest:
    drafter = Rest(plan(), config or RestConfig(), store)
    drafter.begin(encode(text))
    return drafter


def drafted(drafter: Rest, limits: DraftLimits = ROOMY) -> set[str]:
    """The tree's paths as text."""
    tree = drafter.draft(limits)
    assert_tree_is_sound(tree, limits)
    paths = [tree.path(node) for node in range(1, len(tree))]
    return {"".join(chr(tree.token_ids[node]) for node in path) for path in paths}


@pytest.mark.parametrize("seed", range(5))
def test_occurrences_equal_a_naive_search(tmp_path: Path, seed: int):
    rng = np.random.default_rng(seed)
    documents = ["".join(rng.choice(list("ab"), size)) for size in (0, 1, 40, 200)]
    store = build(tmp_path, *documents)
    joined = "\0".join(documents)
    for n in (1, 2, 5, 16):
        for start in range(len(joined) - n):
            gram = joined[start : start + n]
            if "\0" not in gram:
                expected = [i for i in range(len(joined)) if joined.startswith(gram, i)]
                assert sorted(store.occurrences(encode(gram)).tolist()) == expected
    assert len(store.occurrences(encode("abc"))) == 0


def test_suffixes_are_in_the_order_of_their_first_sixteen_tokens(tmp_path: Path):
    rng = np.random.default_rng(1)
    store = build(tmp_path, "".join(rng.choice(list("ab"), 300)), "b" * 40)
    windows = [tuple(row) for row in store.following(store._suffixes, 16).tolist()]
    assert windows == sorted(windows)


def test_what_follows_stops_at_a_document_s_end(tmp_path: Path):
    store = build(tmp_path, "abc", "xyz")
    assert store.following(np.array([1], np.uint32), 4).tolist()[0][:3] == [98, 99, SEPARATOR]
    last = store.following(np.array([6], np.uint32), 99).tolist()[0]
    assert last == [ord("z"), *[SEPARATOR] * 98]
    assert drafted(rest("ab", store)) == {"c"}
    assert drafted(rest("bc", store)) == set()


def test_the_longest_suffix_that_occurs_decides(tmp_path: Path):
    store = build(tmp_path, "1abX", "2abY", "2abY")
    assert drafted(rest("1ab", store)) == {"X"}
    assert drafted(rest("2ab", store)) == {"Y"}
    assert drafted(rest("3ab", store)) == {"X", "Y"}


def test_suffixes_below_the_shortest_are_not_looked_for(tmp_path: Path):
    store = build(tmp_path, "abc")
    assert drafted(rest("b", store)) == set()
    assert drafted(rest("zb", store)) == set()
    assert drafted(rest("zb", store, RestConfig(min_suffix=1))) == {"c"}


def test_the_most_frequent_prefixes_are_drafted(tmp_path: Path):
    store = build(tmp_path, *["__abcd"] * 3, *["__abxy"] * 2, "__q")
    config = RestConfig(max_nodes=4)
    assert drafted(rest("__", store, config)) == {"a", "ab", "abc", "abcd"}
    assert drafted(rest("__", store, replace(config, max_nodes=7))) == {
        *("a", "ab", "abc", "abcd", "abx", "abxy", "q")
    }


@pytest.mark.parametrize("size", [1, 5, 12, 64])
def test_the_tree_equals_naive_prefix_counting(tmp_path: Path, size: int):
    rng = np.random.default_rng(size)
    corpus = "".join(rng.choice(list("abcd"), 3000, p=[0.6, 0.2, 0.1, 0.1]))
    store = build(tmp_path, corpus)
    found = [i + 2 for i in range(len(corpus)) if corpus.startswith("ab", i)]
    counts = Counter(corpus[i : i + n] for i in found for n in range(1, 11) if i + n <= 3000)
    got = drafted(rest("Zab", store, RestConfig(max_nodes=size)), replace(ROOMY, width=99))
    assert len(got) == size
    assert all(path[:-1] in got or len(path) == 1 for path in got)
    kept = sorted(counts[path] for path in got)
    assert kept == sorted(counts.values())[-size:]


def test_occurrences_are_capped(tmp_path: Path):
    store = build(tmp_path, *["__a"] * 3, *["__b"] * 3)
    assert drafted(rest("__", store, RestConfig(max_occurrences=3))) == {"a"}


@pytest.mark.parametrize(
    "limits",
    [
        DraftLimits(10, 0, 0, 9),
        DraftLimits(10, 2, 0, 9),
        DraftLimits(1, 9, 0, 9),
        DraftLimits(2, 9, 0, 5),
        DraftLimits(10, 9, 0, 0),
    ],
)
def test_limits_are_hard(tmp_path: Path, limits: DraftLimits):
    store = build(tmp_path, "__abcd", "__abxy", "__ak", "__q", "__r")
    assert bool(drafted(rest("__", store), limits)) == (limits.depth > 0 and limits.budget > 0)


def test_output_equals_plain_decoding_and_known_text_is_accepted(tmp_path: Path):
    toy = Toy(vocab=100, top_k=3)
    prompt = [1, 2, 3]
    answer = toy.continuation(prompt, 60)
    store = build(tmp_path, "".join(map(chr, [*prompt, *answer])))
    drafter = Rest(plan(), RestConfig(), store)
    assert drafter.needs == Needs()
    live, results = decode(drafter, prompt, toy, steps=5)
    assert live[3:] == answer[: len(live) - 3]
    assert [len(result.path) for result in results] == [10] * 5


def test_files_that_can_not_be_used_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"missing\.txt"):
        build_datastore([tmp_path / "missing.txt"], encode, tmp_path / "store")
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe\xe9")
    with pytest.raises(ConfigError, match=r"latin\.txt"):
        build_datastore([tmp_path / "latin.txt"], encode, tmp_path / "store")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ConfigError, match="no text"):
        build_datastore([tmp_path / "empty.txt"], encode, tmp_path / "store")
    with pytest.raises(ConfigError, match="no text"):
        build_datastore([], encode, tmp_path / "store")
    (tmp_path / "good.txt").write_text("abc")
    with pytest.raises(ConfigError, match="nowhere"):
        build_datastore([tmp_path / "good.txt"], encode, tmp_path / "nowhere" / "store")


def test_a_datastore_must_fit_the_tokenizer(tmp_path: Path):
    build(tmp_path, "abc")
    with pytest.raises(ConfigError, match="another tokenizer"):
        Datastore.load(tmp_path / "store", lambda text: [1, *encode(text)])
    with pytest.raises(ConfigError, match="cannot read"):
        Datastore.load(tmp_path / "nothing", encode)
    (tmp_path / "junk").write_bytes(b"x" * 100)
    with pytest.raises(ConfigError, match="cannot read"):
        Datastore.load(tmp_path / "junk", encode)


def test_other_safetensors_files_are_refused(tmp_path: Path):
    from safetensors.numpy import save_file

    save_file({"tokens": np.zeros(3, np.uint32)}, tmp_path / "weights")
    with pytest.raises(ConfigError, match="not a datastore"):
        Datastore.load(tmp_path / "weights", encode)


def test_no_suffix_length_left_is_refused():
    with pytest.raises(ConfigError, match="min_suffix"):
        RestConfig(min_suffix=5, max_suffix=4)
