"""GGUF files become ordinary model folders, once.

Unpacking quantised weights takes longer than everything else at start, so the result is kept in the
user's cache folder under the file's hash: float32 safetensors (the unpacked values fit nothing
smaller), config, generation config and tokenizer. A folder is written aside and renamed when
complete, and its checksums are compared at every start, so a broken one is rebuilt, never served.
"""

import fcntl
import hashlib
import json
import shutil
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from tokenizers import pre_tokenizers

from engine.errors import ModelError
from engine.model.cache_folder import cache_folder

FORMAT_VERSION = 1  # of the cached folders; raise it when what is written into them changes
MANIFEST = "treeline.json"
_BLOCK = 1 << 22


def unpack_gguf(gguf: Path) -> Path:
    """A folder in transformers' layout with the model of `gguf`, from the cache if it is there.

    Raises ModelError if the file cannot be read or converted, or the cache cannot be written.
    """
    try:
        with gguf.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{gguf} cannot be read: {error.strerror}.") from error
    folder = cache_folder() / f"{digest[:16]}-{FORMAT_VERSION}"
    if _is_intact(folder):
        return folder
    try:
        with _lock(folder):
            if not _is_intact(folder):  # another process may have built it meanwhile
                _build(gguf, folder)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"The model cache {folder.parent} cannot be written ({error}); "
            "set XDG_CACHE_HOME to a writable folder with room for the unpacked model."
        ) from error
    return folder


def _build(gguf: Path, folder: Path) -> None:
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    partial.mkdir()
    print(f"treeline: unpacking {gguf.name} into {folder} (once)", file=sys.stderr, flush=True)
    try:
        _convert(gguf, partial)
        sums = {path.name: _checksum(path) for path in sorted(partial.iterdir())}
        (partial / MANIFEST).write_text(json.dumps(sums, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _convert(gguf: Path, folder: Path) -> None:
    import torch  # here, as a start with a warm cache must not wait for it
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    fields = _read_fields(gguf)
    try:
        tokenizer = AutoTokenizer.from_pretrained(**place)
        model = AutoModelForCausalLM.from_pretrained(
            **place, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
    except Exception as error:  # transformers documents no set of exceptions
        raise ModelError(f"{gguf.name} cannot be converted: {error}".splitlines()[0]) from error
    restore_pre_tokenizer(tokenizer.backend_tokenizer, fields.get("tokenizer.ggml.pre"))
    end_ids = _end_ids(fields)
    if end_ids:
        model.generation_config.eos_token_id = end_ids
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def restore_pre_tokenizer(backend: Any, kind: str | None) -> None:
    """Make `backend` split text as the GGUF field `tokenizer.ggml.pre` says.

    `smollm`: every digit alone, then GPT-2's split; transformers reads that kind as plain GPT-2's.
    `gpt-2`, or no such field: as loaded. Any other kind is accepted only if transformers gave it a
    split of its own. Raises ModelError naming a kind that would be tokenized wrongly.
    """
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, gpt2])
        return
    loaded = backend.pre_tokenizer
    is_plain_gpt2 = loaded is not None and loaded.__getstate__() == gpt2.__getstate__()
    if is_plain_gpt2 and kind not in ("gpt-2", None):
        raise ModelError(
            f"The GGUF file splits text by the rule {kind!r} (tokenizer.ggml.pre), which Treeline "
            "does not know; serve the model from a folder or a hub id with its tokenizer.json."
        )


def _read_fields(gguf: Path) -> dict[str, Any]:
    """The file's scalar fields by name."""
    from gguf import GGUFReader, GGUFValueType

    try:
        reader = GGUFReader(gguf)
    except (ValueError, IndexError, KeyError) as error:
        raise ModelError(f"{gguf.name} is not a readable GGUF file: {error}") from error
    return {
        name: field.contents()
        for name, field in reader.fields.items()
        if field.types and field.types[0] != GGUFValueType.ARRAY
    }


def _end_ids(fields: dict[str, Any]) -> list[int]:
    """Every token that ends a text: of a document (eos), a turn (eot), a message (eom)."""
    names = ("eos", "eot", "eom")
    ids = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in names]
    return list(dict.fromkeys(id_ for id_ in ids if id_ is not None))


def _is_intact(folder: Path) -> bool:
    try:
        sums = json.loads((folder / MANIFEST).read_text())
        return bool(sums) and all(_checksum(folder / name) == sums[name] for name in sums)
    except (OSError, ValueError, TypeError):
        return False


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the one right to build `folder`; waits for a process that is building it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
