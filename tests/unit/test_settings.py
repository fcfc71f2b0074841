"""Configuration: what loads, what wins, and what each mistake says."""

from pathlib import Path

import pytest
import yaml

from engine.config import EngineConfig, ModelConfig, ModelSource, SpeculationConfig
from engine.errors import ConfigError
from server.config_loader import CONFIG_FOLDER, DEFAULT_CONFIG, Override, load_settings
from server.settings import SCHEMA, ServerSettings, Settings

MODEL = "model:\n  name: tiny\n  source:\n    path: /models/tiny\n"
SHIPPED = sorted(CONFIG_FOLDER.glob("*.yaml"))


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str, *flags: tuple[str, str], **environment: str) -> Settings:
    Path("c.yaml").write_text(text)
    overrides = [Override("--set", path, value) for path, value in flags]
    return load_settings("c.yaml", overrides, environment)


def complaint(text: str, *flags: tuple[str, str], **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, *flags, **environment)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_shipped_config_loads(file: Path) -> None:
    settings = load_settings(file.stem)
    raw = yaml.safe_load(file.read_text())
    assert settings.engine.model.name == raw["model"]["name"]
    for bound in ("width", "depth", "budget"):
        path = f"speculation.tree.{bound}"
        assert settings.value(path) == raw["speculation"]["tree"][bound]
        assert settings.origins[path].startswith(f"{file}:")


def test_the_models_promised_are_shipped() -> None:
    assert {file.stem for file in SHIPPED} >= {
        "smollm2-135m",
        "qwen3-0.6b",
        "qwen3-8b",
        "qwen3-14b",
        "llama-3.1-8b-instruct",
        "qwen2.5-7b-instruct",
        "qwen2.5-32b-instruct",
        "codellama-7b-instruct",
        "gemma-3-4b-it",
    }


def test_the_reference_shows_every_key_with_its_default() -> None:
    settings = load_settings(DEFAULT_CONFIG)
    unset = {f"model.source.{key}" for key in ("path", "hub", "revision")}
    assert set(SCHEMA.keys) - set(settings.origins) == unset, "document it in smollm2-135m.yaml"
    assert settings.server == ServerSettings()
    assert settings.engine == EngineConfig(settings.engine.model)


def test_only_the_model_is_required() -> None:
    settings = load(MODEL)
    model = ModelConfig("tiny", ModelSource(path=Path("/models/tiny")))
    assert settings.engine == EngineConfig(model, SpeculationConfig())
    assert settings.server == ServerSettings()


def test_every_layer_wins_over_the_one_below() -> None:
    text = MODEL + "server:\n  port: 1\n  max_n: 2\n  max_prompts: 3\n"
    environment = {"TREELINE_SERVER_PORT": "11", "TREELINE_SERVER_MAX_N": "12", "HOME": "/"}
    settings = load(text, ("server.port", "21"), **environment)
    server = settings.server
    assert (server.port, server.max_n, server.max_prompts) == (21, 12, 3)
    assert server.host == ServerSettings().host
    assert settings.origins["server.port"] == "--set"
    assert settings.origins["server.max_n"] == "TREELINE_SERVER_MAX_N"
    assert settings.origins["server.max_prompts"] == "c.yaml:8"
    assert "server.host" not in settings.origins


def test_what_config_show_prints_loads_back_to_the_same() -> None:
    before = load(MODEL, ("speculation.goose.ngram_lengths", "[7, 2]"), ("server.host", "::1"))
    after = load(before.render())
    assert (after.engine, after.server) == (before.engine, before.server)
    assert "  # --set\n" in before.render()


def test_every_line_of_config_show_names_an_origin() -> None:
    lines = load(MODEL + "server: {port: 7}\n").render().splitlines()
    assert [line for line in lines if "port: 7" in line and line.endswith("# c.yaml:5")]
    assert all(line.endswith(":") or "  # " in line for line in lines)


@pytest.mark.parametrize("word", ["off", "'off'", "ptd"])
def test_off_is_a_word(word: str) -> None:
    settings = load(MODEL + f"speculation:\n  method: {word}\n")
    assert settings.engine.speculation.method == word.strip("'")


def test_a_section_with_everything_commented_out_is_empty() -> None:
    assert load(MODEL + "server:\n  # port: 1\n").server == ServerSettings()


def test_numbers_follow_yaml_1_2() -> None:
    settings = load(MODEL + "speculation:\n  goose: {min_score: 1e-3, ema_alpha: 1}\n")
    assert settings.engine.speculation.goose.min_score == 0.001
    assert settings.engine.speculation.goose.ema_alpha == 1.0


def test_text_from_outside_is_taken_as_it_is() -> None:
    settings = load(MODEL, ("model.name", "2: b"), TREELINE_MODEL_SOURCE_PATH="/m # 1")
    assert settings.engine.model.name == "2: b"
    assert settings.engine.model.source.path == Path("/m # 1")


MISTAKES = {
    "speculation:\n  tree:\n    widht: 3\n": (
        "c.yaml:7: speculation.tree.widht: unknown key; did you mean width?"
    ),
    "speculation:\n  width: 3\n": (
        "c.yaml:6: speculation.width: unknown key; did you mean speculation.tree.width?"
    ),
    "sever:\n  port: 3\n": "c.yaml:5: sever: unknown key; did you mean server?",
    "zzz: 3\n": ("c.yaml:5: zzz: unknown key; known here: model, engine, speculation, server"),
    "server:\n  port: 70000\n": (
        "c.yaml:6: server.port: must be an integer from 0 to 65535, got 70000"
    ),
    "server:\n  port: '80'\n": (
        'c.yaml:6: server.port: must be an integer from 0 to 65535, got "80"'
    ),
    "server:\n  port: true\n": (
        "c.yaml:6: server.port: must be an integer from 0 to 65535, got true"
    ),
    "server:\n  port: 80.0\n": (
        "c.yaml:6: server.port: must be an integer from 0 to 65535, got 80.0"
    ),
    "server:\n  port:\n": ("c.yaml:6: server.port: must be an integer from 0 to 65535, got null"),
    "server:\n  port: {a: 1}\n": (
        "c.yaml:6: server.port: must be an integer from 0 to 65535, got a section"
    ),
    "server:\n  host: ''\n": 'c.yaml:6: server.host: must be a non-empty string, got ""',
    "server:\n  host: 127\n": "c.yaml:6: server.host: must be a non-empty string, got 127",
    "engine:\n  check_invariants: yes\n": (
        'c.yaml:6: engine.check_invariants: must be true or false, got "yes"'
    ),
    "engine:\n  max_batch: 0\n": (
        "c.yaml:6: engine.max_batch: must be an integer from 1 to 1024, got 0"
    ),
    "engine:\n  prefill_chunk: -5\n": (
        "c.yaml:6: engine.prefill_chunk: must be an integer of at least 1, got -5"
    ),
    "engine:\n  speculation: {}\n": (
        "c.yaml:6: engine.speculation: unknown key; did you mean speculation?"
    ),
    "speculation:\n  method: gose\n": (
        "c.yaml:6: speculation.method: must be one of off, auto, goose, ptd"
    ),
    "speculation:\n  goose:\n    min_score: 1.5\n": (
        "c.yaml:7: speculation.goose.min_score: must be a number from 0.0 to 1.0, got 1.5"
    ),
    "speculation:\n  goose:\n    ngram_lengths: [5, 0]\n": (
        "c.yaml:7: speculation.goose.ngram_lengths: "
        "must be a list, each item an integer of at least 1, got [5, 0]"
    ),
    "speculation:\n  goose:\n    spine_tiers: [[1, x]]\n": (
        "c.yaml:7: speculation.goose.spine_tiers: "
        'must be a list, each item [a number, a number], got [[1, "x"]]'
    ),
    "server: 5\n": "c.yaml:5: server: must be a section with the keys host, port, ",
    "server: [5]\n": "c.yaml:5: server: must be a section with the keys host, port, ",
    "server:\n  port: 1\n  port: 2\n": ("c.yaml:7: server.port: repeated; first set on line 6"),
    "model:\n  name: x\n": "c.yaml:5: model: repeated; first set on line 1",
    "server: {port: 1\n": "c.yaml:6: not valid YAML: ",
    "server:\n\tport: 1\n": "c.yaml:6: not valid YAML: ",
    "server: *a\n": "c.yaml:5: not valid YAML: aliases are not supported",
    "---\nserver: {}\n": "c.yaml:5: not valid YAML: ",
    "server:\n  host: !!python/name:os.system\n": "c.yaml:6: the tag ",
    "[1]: 2\n": "c.yaml:5: a key must be a plain word",
    "server:\n  port: " + "9" * 5000 + "\n": "c.yaml:6: server.port: must be an integer",
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: repr(text[:40]))
def test_a_mistake_names_file_line_key_and_remedy(text: str) -> None:
    assert complaint(MODEL + text).startswith(MISTAKES[text])


def test_the_model_is_required() -> None:
    assert complaint("server: {}\n").startswith("c.yaml: model: missing; it must be a section")
    assert complaint("model:\n  source: {hub: a/b}\n") == (
        "c.yaml:1: model.name: missing; it must be a non-empty string"
    )
    assert complaint("model:\n  nmae: x\n").startswith("c.yaml:2: model.nmae: unknown key")


def test_exactly_one_source() -> None:
    text = "model:\n  name: x\n  source:\n    hub: a/b\n"
    assert complaint(text, ("model.source.path", "/m")) == (
        "c.yaml:3: model.source: exactly one of package, path and hub must be set "
        "(set: hub by c.yaml:4, path by --set)"
    )
    assert "exactly one of" in complaint("model:\n  name: x\n  source: {}\n")
    assert "revision goes with hub only" in complaint(MODEL + "    revision: main\n")
    replaced = load(text, ("model.source.path", "/m"), ("model.source.hub", "null"))
    assert replaced.engine.model.source == ModelSource(path=Path("/m"))


def test_mistakes_outside_the_file() -> None:
    assert complaint(MODEL, ("server.prot", "1")) == (
        "--set: server.prot: unknown key; did you mean port?"
    )
    assert complaint(MODEL, ("server", "1")).startswith("--set: server: unknown key")
    assert complaint(MODEL, ("server.port", "{")).startswith("--set:1: not valid YAML")
    assert complaint(MODEL, TREELINE_SERVER_PORT="x") == (
        'TREELINE_SERVER_PORT: server.port: must be an integer from 0 to 65535, got "x"'
    )
    assert complaint(MODEL, TREELINE_SERVER_PROT="1") == (
        "TREELINE_SERVER_PROT: unknown environment variable; did you mean TREELINE_SERVER_PORT?"
    )


def test_files_that_are_none() -> None:
    assert complaint("") == "c.yaml: the file is empty"
    assert complaint("# nothing\n") == "c.yaml: the file is empty"
    assert complaint("- 1\n").startswith("c.yaml:1: expected sections")
    assert complaint("a: &x\n  b: *x\n").startswith("c.yaml:2: not valid YAML: aliases")
    assert complaint("[" * 5000).startswith("c.yaml: nested too deeply")
    Path("c.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match=r"^c\.yaml: not UTF-8 text$"):
        load_settings("c.yaml")
    with pytest.raises(ConfigError, match=r"^nope: no such file; Treeline's own are .*qwen3-8b"):
        load_settings("nope")
    with pytest.raises(ConfigError, match="is a directory"):
        load_settings("/")


def test_a_file_in_the_way_of_a_shipped_name_wins() -> None:
    Path("qwen3-8b").write_text(MODEL)
    assert load_settings("qwen3-8b").engine.model.name == "tiny"
